extern "C" {
#include "base/status.h"
#include "ops/attention/attention.h"
#include "ops/spans/layer_modules.h"
#include "ops/spans/spans.h"
}
#include "ops/attention/decode_cuda.cuh"
#include "ops/spans/layers_decode.cuh"

typedef layers_model<64, 896, 2, 7, 4864, SOP_ACT_SILU, 5, 512> model; /* Qwen2-0.5B */

enum { WINDOW = 3, WINDOW_HEADS = 4 }; /* slots on their way */
enum { PAUSE = 1800 };                 /* clocks, see layers_posted */

/* Keys of a sequence, of one and of two, from where on more multiprocessors than those of the heads' clusters
 * should read them. */
enum { MOST_KEYS = 14336, MOST_KEYS_OF_TWO = 4096 };

extern "C" const char *sop_layers_decode_refuse(const void *desc)
{
    const void *const *of = (const void *const *)desc;
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    const char *why = sop_layer_decode_refuse(desc);
    if (why) return why;
    if (((const sop_rmsnorm_desc *)of[NORM1])->dim != model::D || core->k != model::HEAD ||
        core->kv_heads != model::KV_HEADS || core->heads != model::KV_HEADS * model::GROUP ||
        ((const sop_gated_desc *)of[GATED])->dim != model::CHANNELS ||
        ((const sop_gated_desc *)of[GATED])->act != model::ACT)
        return "it is compiled for the shape of Qwen2-0.5B alone";
    if (core->sinks || core->cap > 0) return "sinks and caps are not taken by the layers' kernel";
    if (core->tokens > LAYERS_TOKENS)
        return "over two tokens, where the layer's own kernel is faster";
    if (core->max_kv > (core->tokens < 2 ? MOST_KEYS : MOST_KEYS_OF_TWO))
        return "sequences may be longer than the clusters of their heads should read";
    return NULL;
}

typedef void kernel(layers_args);

template <typename T> static kernel *kernel_of(int64_t tokens)
{
    return tokens <= 1 ? sop_layers_decode_sm90<T, model, 1> : sop_layers_decode_sm90<T, model, 2>;
}

static kernel *kernel_of(int32_t type, int64_t tokens)
{
    return type == SOP_F16 ? kernel_of<__half>(tokens) : kernel_of<__nv_bfloat16>(tokens);
}

/* How many clusters run at once; all must, as they wait for each other. */
static int clusters_of(void)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr = {};
    attr.id = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x = LAYERS_CLUSTER;
    attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
    config.gridDim = LAYERS_CLUSTER;
    config.blockDim = LAYERS_ALL;
    config.dynamicSmemBytes = LAYERS_SHARED;
    config.attrs = &attr;
    config.numAttrs = 1;
    int least = 0;
    for (int32_t type : {SOP_F16, SOP_BF16})
        for (int i = 1; i <= 2; i++) {
            kernel *k = kernel_of(type, i);
            int n = 0;
            if (cudaFuncSetAttribute(k, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ||
                cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     LAYERS_SHARED) ||
                cudaOccupancyMaxActiveClusters(&n, k, &config)) {
                (void)cudaGetLastError();
                return 0;
            }
            if (!least || n < least) least = n;
        }
    return least;
}

extern "C" sop_status sop_layers_decode_plan(const void *desc, const int32_t *params,
                                             const sop_facts *facts, size_t budget,
                                             sop_split *split)
{
    const void *const *of = (const void *const *)desc;
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    static int at_once; /* the same whoever asks, and for every kernel */
    int *clusters = &at_once;
    SOP_TRY(sop_attention_decode_plan(core, params, facts, budget, split));
    split->scratch_bytes = 0;
    if (!*clusters) *clusters = clusters_of();
    if (*clusters < model::CLUSTERS)
        return sop_fail(SOP_E_UNSUPPORTED, "%d clusters of %d run at once, there must be %d",
                        *clusters, LAYERS_CLUSTER, model::CLUSTERS);
    static_assert((model::KV_HEADS + model::CLUSTERS) * LAYERS_TOKENS * model::D * 8 <=
                      SOP_CUDA_COUNTERS * sizeof(int),
                  "the words of mail");
    return SOP_OK;
}

/* The weights and the cache of one layer more. */
static sop_status add(layers_args *p, const void *const *of, const sop_operand *a)
{
    static const int at[7][2] = {
        {QKV, AT_QKV},         {QKV, AT_QKV + 1},         {QKV, AT_QKV + 2}, {OUTPUT, AT_OUTPUT},
        {GATE_UP, AT_GATE_UP}, {GATE_UP, AT_GATE_UP + 1}, {DOWN, AT_DOWN}};
    static const int norms[2] = {AT_NORM1, AT_NORM2};
    if (!sop_layer_is_chained(of, a))
        return sop_fail(SOP_E_UNSUPPORTED,
                        "layers_decode_sm90: the modules do not read each other");
    layers_own *own = &p->own[p->layers++];
    const void *wide[11];
    for (int i = 0; i < 7; i++) {
        const sop_linear_desc *d = (const sop_linear_desc *)of[at[i][0]];
        const int j = at[i][1] - at[i == 1 || i == 2 ? 0 : i == 5 ? 4 : i][1];
        own->w[i] = wide[i] = a[at[i][1] + SOP_LINEAR_W0].data;
        if (d->bias >> j & 1) own->bias[i] = (const float *)a[at[i][1] + SOP_LINEAR_B0].data;
    }
    for (int i = 0; i < 2; i++)
        wide[7 + i] = own->norm[i] = (const float *)a[norms[i] + SOP_RMSNORM_W].data;
    wide[9] = own->k_pool = a[AT_CORE + SOP_ATTENTION_K_POOL].data;
    wide[10] = own->v_pool = a[AT_CORE + SOP_ATTENTION_V_POOL].data;
    for (int i = 0; i < 11; i++)
        if (!sop_aligned16(wide[i]))
            return sop_fail(
                SOP_E_UNSUPPORTED,
                "layers_decode_sm90: a weight or a cache lies at no multiple of 16 bytes");
    return SOP_OK;
}

/* A launch whose CTAs run all at once or not at all, since they wait for each other: whatever else the card
 * has to do, by other streams or of a higher priority, none waits for one that has no place. */
static sop_status launch_together(kernel *k, const sop_call *call, const layers_args &p)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attrs[3];
    int n = 0;
    attrs[n].id = cudaLaunchAttributeCooperative;
    attrs[n++].val.cooperative = 1;
    attrs[n].id = cudaLaunchAttributeClusterDimension;
    attrs[n].val.clusterDim.x = LAYERS_CLUSTER;
    attrs[n].val.clusterDim.y = attrs[n].val.clusterDim.z = 1;
    n++;
    if (sop_cuda_early(call)) {
        attrs[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attrs[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    config.gridDim = model::CLUSTERS * LAYERS_CLUSTER;
    config.blockDim = LAYERS_ALL;
    config.dynamicSmemBytes = LAYERS_SHARED;
    config.stream = sop_stream(call);
    config.attrs = attrs;
    config.numAttrs = (unsigned)n;
    (void)cudaLaunchKernelEx(&config, k, p);
    const cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? SOP_OK : sop_cuda_fail((int)e);
}

static sop_status launch(const sop_call *call, const void *const *of, const sop_operand *a,
                         layers_args *p)
{
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    const int norms[2] = {NORM1, NORM2};
    sop_call inner = *call; /* the attention core's part of it */
    inner.desc = core;
    inner.args = a + AT_CORE;
    p->attention = sop_decode_args_of(&inner);
    p->live_tokens = (const int32_t *)a[AT_QKV + SOP_LINEAR_LIVE].data;
    p->pos = (const int32_t *)a[AT_ROPE + SOP_ROPE_POS].data;
    p->slots = (const int32_t *)a[AT_APPEND + SOP_KV_APPEND_SLOTS].data;
    p->freqs = (const float *)a[AT_ROPE + SOP_ROPE_FREQS].data;
    p->mscale = ((const sop_rope_desc *)of[ROPE])->mscale;
    p->x = (float *)a[AT_NORM2 + SOP_RMSNORM_R].data;
    p->x_stride = ((const sop_rmsnorm_desc *)of[NORM2])->r_stride;
    p->first = a[AT_NORM1 + SOP_RMSNORM_R].data ? a[AT_NORM1 + SOP_RMSNORM_X].data : NULL;
    p->first_stride = ((const sop_rmsnorm_desc *)of[NORM1])->x_stride;
    p->y = a[AT_DOWN + SOP_LINEAR_Y].data;
    p->y_stride = ((const sop_linear_desc *)of[DOWN])->y_stride;
    p->pages = core->pages;
    p->mail = (unsigned long long *)sop_cuda_counters(call);
    for (int i = 0; i < 2; i++) {
        p->eps[i] = ((const sop_rmsnorm_desc *)of[norms[i]])->eps;
        p->offset[i] = ((const sop_rmsnorm_desc *)of[norms[i]])->offset;
    }
    p->tokens = (int)core->tokens;
    p->pause = PAUSE;
    p->window[0] = WINDOW;
    p->window[1] = WINDOW_HEADS;
    return launch_together(kernel_of(core->kv_dtype, core->tokens), call, *p);
}

extern "C" sop_status sop_layers_decode_sm90(const sop_call *call)
{
    const void *const *of = (const void *const *)call->desc;
    const int layers = (int)call->n_args / LAYER_ARGS;
    if (((const sop_linear_desc *)of[QKV])->tokens == 0) return SOP_OK;
    for (int l = 0; l < layers;) {
        layers_args p = {};
        const int first = l;
        do SOP_TRY(add(&p, of + l * MODULES, call->args + l * LAYER_ARGS));
        while (++l < layers && p.layers < LAYERS_MOST &&
               sop_layer_follows(of + l * MODULES, call->args + l * LAYER_ARGS));
        SOP_TRY(launch(call, of + first * MODULES, call->args + first * LAYER_ARGS, &p));
    }
    return SOP_OK;
}
