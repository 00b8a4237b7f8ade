extern "C" {
#include "base/status.h"
#include "ops/attention/attention.h"
#include "ops/spans/layer_modules.h"
#include "ops/spans/spans.h"
}
#include "ops/attention/decode_cuda.cuh"
#include "ops/spans/layers_stream.cuh"

template <int HEAD>
static layer_map map_of(int64_t tokens, const sop_linear_desc *qkv, const sop_linear_desc *output,
                        const sop_linear_desc *down, int ring, int64_t grid)
{
    return layer_map_of<HEAD>((int)tokens, (int)qkv->k, (int)(qkv->n[0] + qkv->n[1] + qkv->n[2]),
                              (int)output->k, (int)down->k, ring, (int)grid);
}

static layer_mail mail_of(const sop_attention_desc *d, int64_t dim, int grid, void *at,
                          int64_t *bytes)
{
    return (d->k == 64 ? layer_mail_of<64> : layer_mail_of<128>)(at, (int)d->tokens, (int)dim,
                                                                 (int)d->heads, (int)d->kv_heads,
                                                                 grid, bytes);
}

/* The map with as many slots as the tokens' rows leave room for, on a grid of that many CTAs. */
static layer_map room_of(const void *const *of, int64_t grid, int *ring)
{
    const sop_linear_desc *qkv = (const sop_linear_desc *)of[QKV];
    const auto map = ((const sop_attention_desc *)of[CORE])->k == 64 ? map_of<64> : map_of<128>;
    for (*ring = LAYER_SLOTS; *ring > 0; --*ring) {
        const layer_map m = map(qkv->tokens, qkv, (const sop_linear_desc *)of[OUTPUT],
                                (const sop_linear_desc *)of[DOWN], *ring, grid);
        if (m.bytes <= LAYER_SHARED) return m;
    }
    return {};
}

extern "C" const char *sop_layers_stream_refuse(const void *desc)
{
    const void *const *of = (const void *const *)desc;
    const sop_linear_desc *qkv = (const sop_linear_desc *)of[QKV];
    const char *why = sop_layer_refuse(desc);
    if (why) return why;
    const int64_t d = qkv->k, channels = ((const sop_gated_desc *)of[GATED])->dim;
    if (3 * d * channels < LAYER_SMALL)
        return "a small layer, whose bytes are not what it waits for";
    if (d > LAYER_WIDEST) return "rows of over 4096, whose bytes take longer than its exchanges";
    if (qkv->tokens > LAYER_TOKENS) return "over 4 tokens";
    int ring;
    (void)room_of(of, 64, &ring);
    if (ring < LAYER_LEAST) return "too wide for so many tokens";
    return NULL;
}

extern "C" sop_status sop_layers_stream_plan(const void *desc, const int32_t *params,
                                             const sop_facts *facts, size_t budget,
                                             sop_split *split)
{
    const void *const *of = (const void *const *)desc;
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    const int64_t d = ((const sop_linear_desc *)of[DOWN])->n[0];
    SOP_TRY(sop_attention_decode_plan(core, params, facts, budget, split));
    const int grid = (int)split->word[DECODE_GRID];
    if (core->kv_heads * core->tokens > grid)
        return sop_fail(SOP_E_UNSUPPORTED, "%lld KV heads of %lld tokens are too many for %d CTAs",
                        (long long)core->kv_heads, (long long)core->tokens, grid);
    int64_t bytes;
    (void)mail_of(core, d, grid, NULL, &bytes);
    if (bytes > (int64_t)((SOP_CUDA_COUNTERS - 2) * sizeof(int)))
        return sop_fail(SOP_E_UNSUPPORTED, "layers_stream_sm90: %lld bytes of words are too many",
                        (long long)bytes);
    if (d < grid || layer_most((int)d, grid) > LAYER_SUMS * LAYER_ROWS)
        return sop_fail(SOP_E_UNSUPPORTED, "%lld rows of a layer do not fit %d CTAs", (long long)d,
                        grid);
    return SOP_OK;
}

/* Whether a layer goes on where the one before it ended, with the same arguments. */
static bool follows(const void *const *of, const sop_operand *a)
{
    static const int same[] = {AT_QKV + SOP_LINEAR_Y, AT_CORE + SOP_ATTENTION_O,
                               AT_GATED + SOP_GATED_Y};
    for (int i : same)
        if (a[i].data != (a - LAYER_ARGS)[i].data) return false;
    return sop_layer_follows(of, a) && !a[AT_CORE + SOP_ATTENTION_SINKS].data &&
           ((const sop_rmsnorm_desc *)of[NORM1])->x_stride ==
               ((const sop_linear_desc *)of[DOWN])->y_stride;
}

/* The weights and the cache of one layer more. */
static sop_status add(layer_args *p, const void *const *of, const sop_operand *a)
{
    static const int at[7][3] = {{QKV, AT_QKV, 0},         {QKV, AT_QKV, 1},
                                 {QKV, AT_QKV, 2},         {OUTPUT, AT_OUTPUT, 0},
                                 {GATE_UP, AT_GATE_UP, 0}, {GATE_UP, AT_GATE_UP, 1},
                                 {DOWN, AT_DOWN, 0}};
    static const int wide[] = {
        AT_NORM1 + SOP_RMSNORM_X,       AT_NORM1 + SOP_RMSNORM_W,       AT_QKV + SOP_LINEAR_W0,
        AT_QKV + SOP_LINEAR_W1,         AT_QKV + SOP_LINEAR_W2,         AT_QKV + SOP_LINEAR_Y,
        AT_CORE + SOP_ATTENTION_K_POOL, AT_CORE + SOP_ATTENTION_V_POOL, AT_CORE + SOP_ATTENTION_O,
        AT_OUTPUT + SOP_LINEAR_W0,      AT_NORM2 + SOP_RMSNORM_R,       AT_NORM2 + SOP_RMSNORM_W,
        AT_GATE_UP + SOP_LINEAR_W0,     AT_GATE_UP + SOP_LINEAR_W1,     AT_GATED + SOP_GATED_Y,
        AT_DOWN + SOP_LINEAR_W0};
    if (!sop_layer_is_chained(of, a))
        return sop_fail(SOP_E_UNSUPPORTED,
                        "layers_stream_sm90: the modules do not read each other");
    for (int i : wide)
        if (!sop_aligned16(a[i].data))
            return sop_fail(SOP_E_UNSUPPORTED,
                            "layers_stream_sm90: operand %d lies at no multiple of 16 bytes", i);
    layer_own *own = &p->own[p->layers++];
    for (int i = 0; i < 7; i++) {
        const sop_linear_desc *d = (const sop_linear_desc *)of[at[i][0]];
        const int j = at[i][2];
        own->w[i] = a[at[i][1] + SOP_LINEAR_W0 + j].data;
        if (d->bias >> j & 1) own->bias[i] = (const float *)a[at[i][1] + SOP_LINEAR_B0 + j].data;
    }
    own->norm[0] = (const float *)a[AT_NORM1 + SOP_RMSNORM_W].data;
    own->norm[1] = (const float *)a[AT_NORM2 + SOP_RMSNORM_W].data;
    own->k_pool = a[AT_CORE + SOP_ATTENTION_K_POOL].data;
    own->v_pool = a[AT_CORE + SOP_ATTENTION_V_POOL].data;
    return SOP_OK;
}

static layer_shape shape_of(const sop_linear_desc *d, int at)
{
    return {{(int)d->n[0], (int)d->n[1], (int)d->n[2]}, (int)d->k, at};
}

static sop_status launch(const sop_call *call, const void *const *of, const sop_operand *a,
                         layer_args *p)
{
    const sop_rmsnorm_desc *norm[2] = {(const sop_rmsnorm_desc *)of[NORM1],
                                       (const sop_rmsnorm_desc *)of[NORM2]};
    const sop_linear_desc *qkv = (const sop_linear_desc *)of[QKV];
    const sop_linear_desc *down = (const sop_linear_desc *)of[DOWN];
    const sop_gated_desc *gated = (const sop_gated_desc *)of[GATED];
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    const unsigned grid = (unsigned)call->split->word[DECODE_GRID];
    int64_t bytes;
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
    p->x_stride = norm[1]->r_stride;
    p->first = a[AT_NORM1 + SOP_RMSNORM_R].data ? a[AT_NORM1 + SOP_RMSNORM_X].data : NULL;
    p->first_stride = norm[0]->x_stride;
    for (int i = 0; i < 2; i++) p->eps[i] = norm[i]->eps, p->offset[i] = norm[i]->offset;
    p->shape[0] = shape_of(qkv, 0);
    p->shape[1] = shape_of((const sop_linear_desc *)of[OUTPUT], 3);
    p->shape[2] = shape_of((const sop_linear_desc *)of[GATE_UP], 4);
    p->shape[3] = shape_of(down, 6);
    p->act_out = a[AT_GATED + SOP_GATED_Y].data;
    p->y = a[AT_DOWN + SOP_LINEAR_Y].data;
    p->act_stride = gated->y_stride;
    p->y_stride = down->y_stride;
    p->pages = core->pages;
    p->tokens = (int)qkv->tokens;
    p->d = (int)norm[0]->dim;
    p->heads = (int)core->heads;
    p->kv_heads = (int)core->kv_heads;
    p->act = gated->act;
    p->met = sop_cuda_counters(call) + SOP_CUDA_COUNTERS - 2;
    p->mail = mail_of(core, p->d, (int)grid, sop_cuda_counters(call), &bytes);
    p->map = room_of(of, grid, &p->ring);
    const int slot = p->map.slot, most = p->ring - 1;
    p->window = LAYER_WINDOW / slot < most ? LAYER_WINDOW / slot : most;
    const size_t shared = (size_t)p->map.bytes;
    if (core->kv_dtype == SOP_F16)
        return sop_launch_cluster(core->k == 64 ? sop_layers_stream_sm90<__half, 64>
                                                : sop_layers_stream_sm90<__half, 128>,
                                  grid, LAYER_ALL, shared, 1, call, *p);
    return sop_launch_cluster(core->k == 64 ? sop_layers_stream_sm90<__nv_bfloat16, 64>
                                            : sop_layers_stream_sm90<__nv_bfloat16, 128>,
                              grid, LAYER_ALL, shared, 1, call, *p);
}

extern "C" sop_status sop_layers_stream_sm90(const sop_call *call)
{
    const void *const *of = (const void *const *)call->desc;
    const int layers = (int)call->n_args / LAYER_ARGS;
    if (((const sop_linear_desc *)of[QKV])->tokens == 0) return SOP_OK;
    for (int l = 0; l < layers;) {
        layer_args p = {};
        const int first = l;
        do SOP_TRY(add(&p, of + l * MODULES, call->args + l * LAYER_ARGS));
        while (++l < layers && p.layers < LAYER_MOST &&
               follows(of + l * MODULES, call->args + l * LAYER_ARGS));
        SOP_TRY(launch(call, of + first * MODULES, call->args + first * LAYER_ARGS, &p));
    }
    return SOP_OK;
}
