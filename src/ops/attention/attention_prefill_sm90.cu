#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/prefill_sm90.cuh"

/* What the plan says: CTAs, heads of a section; where in the scratch the tiles and the rounded queries
 * begin. */
enum { GRID, SECTION, TILES_AT, Q_AT };

extern "C" const char *sop_attention_prefill_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_attention_refuse_16(d);
    if (why) return why;
    if (d->k != 64 && d->k != 128) return "heads are neither of 64 nor of 128";
    if (!(d->paths & (SOP_ROW_FLASH | SOP_ROW_RING))) return "no path of it is a candidate";
    if (d->page < 8 || (128 % d->page != 0 && d->page % 128 != 0))
        return "pages are neither 8, 16, 32, 64 nor a multiple of 128 tokens";
    if (d->window > INT32_MAX || d->max_kv > INT32_MAX - 256) return "sequences are too long";
    return NULL;
}

/* The K and V of a section of heads stay in the L2 while all queries pass: 8 heads of long sequences.
 * Short ones want all heads, so that the list of tiles is gone through once. */
static int64_t section_of(const sop_attention_desc *d)
{
    if (d->max_kv < 8192) return d->heads;
    int64_t section = d->heads < 8 ? d->heads : 8;
    while (d->heads % section) section--;
    return section;
}

extern "C" sop_status sop_attention_prefill_plan(const void *desc, const int32_t *params,
                                                 const sop_facts *facts, size_t budget,
                                                 sop_split *split)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const int64_t tiles = d->tokens / PREFILL_TILE + d->seqs + 1;
    (void)params;
    *split = {{facts->workers, section_of(d), 64}, 0};
    split->word[Q_AT] = 64 + (tiles * (int64_t)sizeof(prefill_tile) + 127) / 128 * 128;
    split->scratch_bytes = (size_t)split->word[Q_AT];
    if (d->q_dtype == SOP_F32) split->scratch_bytes += (size_t)(d->tokens * d->heads * d->k) * 2;
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

static sop_status maps_of(const sop_call *call, const void *q, int64_t q_head, int64_t q_stride,
                          prefill_maps *maps)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const uint32_t page_box = d->page < 128 ? (uint32_t)d->page : 128;
    const int64_t q_dims[3] = {d->k, d->heads, d->tokens};
    const int64_t q_strides[2] = {2 * q_head, 2 * q_stride};
    const uint32_t q_box[3] = {64, 1, PREFILL_TILE}, box[4] = {64, page_box, 1, 1};
    const int64_t dims[4] = {d->k, d->page, d->kv_heads, d->pages};
    const int64_t k_strides[3] = {2 * d->kp_token, 2 * d->kp_head, 2 * d->kp_page};
    const int64_t v_strides[3] = {2 * d->vp_token, 2 * d->vp_head, 2 * d->vp_page};
    sop_status s = sop_tensor_map(&maps->q, d->kv_dtype, q, 3, q_dims, q_strides, q_box);
    if (s == SOP_OK)
        s = sop_tensor_map(&maps->k, d->kv_dtype, call->args[SOP_ATTENTION_K_POOL].data, 4, dims,
                           k_strides, box);
    if (s == SOP_OK)
        s = sop_tensor_map(&maps->v, d->kv_dtype, call->args[SOP_ATTENTION_V_POOL].data, 4, dims,
                           v_strides, box);
    return s;
}

template <typename T, typename O, int HEAD>
static sop_status launch(const sop_call *call, const prefill_maps &maps, const prefill_args &p)
{
    return sop_launch_cluster(p.a.slopes ? sop_prefill_sm90<T, O, HEAD, true>
                                         : sop_prefill_sm90<T, O, HEAD, false>,
                              (unsigned)call->split->word[GRID], PREFILL_THREADS,
                              prefill_smem<HEAD>::bytes, 1, call, maps, p);
}

template <typename T, typename O> static sop_status run(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    char *scratch = (char *)call->scratch;
    prefill_maps maps;
    prefill_args p = {sop_attention_args_of(call)};
    const void *q = call->args[SOP_ATTENTION_Q].data;
    int64_t q_head = d->q_head, q_stride = d->q_stride;
    p.state = (int *)scratch;
    p.tiles = (const prefill_tile *)(scratch + call->split->word[TILES_AT]);
    p.o_stride = d->o_stride, p.o_head = d->o_head;
    p.heads = (int)d->heads, p.group = (int)(d->heads / d->kv_heads);
    p.section = (int)call->split->word[SECTION];
    p.page = (int)d->page, p.table_stride = (int)d->table_stride;
    p.window = (int)d->window, p.causal = d->causal;
    p.scale = d->scale, p.cap = d->cap;
    if (d->q_dtype == SOP_F32) {
        T *rounded = (T *)(scratch + call->split->word[Q_AT]);
        const sop_status s =
            sop_launch(sop_round_q<T>, (unsigned)d->tokens, 256, call, (const float *)q, q_stride,
                       q_head, p.heads, (int)d->k, rounded);
        if (s != SOP_OK) return s;
        q = rounded;
        q_head = d->k, q_stride = d->heads * d->k;
    }
    sop_status s = maps_of(call, q, q_head, q_stride, &maps);
    if (s == SOP_OK)
        s = sop_launch(sop_prefill_plan, 1, 1024, call, p.a, (int)d->seqs, p.window, p.causal,
                       (prefill_tile *)p.tiles, p.state);
    if (s != SOP_OK) return s;
    return d->k == 64 ? launch<T, O, 64>(call, maps, p) : launch<T, O, 128>(call, maps, p);
}

extern "C" sop_status sop_attention_prefill_sm90(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    if (d->tokens == 0 || d->seqs == 0) return SOP_OK;
    if (d->pages == 0 || !sop_attention_aligned(call)) return sop_attention_cuda(call);
    if (d->q_dtype == SOP_F32)
        return d->kv_dtype == SOP_F16 ? run<__half, float>(call) : run<__nv_bfloat16, float>(call);
    return d->kv_dtype == SOP_F16 ? run<__half, __half>(call)
                                  : run<__nv_bfloat16, __nv_bfloat16>(call);
}
