/* attention over caches of 8 bits by the rows for 16: the pages that are seen are written to scratch as
 * numbers of the queries' type, and the other row reads them there. A layer at a time has that scratch, so
 * that it is little beside the caches of all layers.
 *
 *     scratch -> keys [pages, g, page, k] | values [pages, g, page, v] | the other row's */
#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/codes.cuh"

extern "C" {
#include "ops/kv_append/kv_append.h"
}

/* The other rows have fewer words than these. */
enum { GRID = 6, SCRATCH_AT = 7 };

static sop_attention_desc of_16_bits(const sop_attention_desc *d)
{
    sop_attention_desc p = *d;
    p.kv_dtype = d->q_dtype;
    p.kp_token = d->k, p.kp_head = d->page * d->k, p.kp_page = d->kv_heads * p.kp_head;
    p.vp_token = d->v, p.vp_head = d->page * d->v, p.vp_page = d->kv_heads * p.vp_head;
    return p;
}

static const char *refuse(const void *desc, const char *(*other)(const void *))
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const sop_attention_desc p = of_16_bits(d);
    if (!sop_is_code(d->kv_dtype)) return "the pools hold no codes";
    if (d->q_dtype == SOP_F32) return "q is not of 16 bits";
    if (d->k % 16 || d->v % 16 || d->kp_page % 16 || d->kp_token % 16 || d->kp_head % 16 ||
        d->vp_page % 16 || d->vp_token % 16 || d->vp_head % 16)
        return "a row of a pool is no multiple of 16 bytes";
    if (d->kv_heads * d->page * (d->k > d->v ? d->k : d->v) > INT32_MAX)
        return "pages are too large";
    return other(&p);
}

typedef sop_status plan_fn(const void *, const int32_t *, const sop_facts *, size_t, sop_split *);

static sop_status plan(const void *desc, const sop_facts *facts, size_t budget, sop_split *split,
                       plan_fn *other)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const sop_attention_desc p = of_16_bits(d);
    const size_t pools = (size_t)(d->pages * (p.kp_page + p.vp_page)) * 2;
    const size_t at = (pools + 255) & ~(size_t)255;
    if (at > budget) return SOP_E_LIMIT;
    const sop_status s = other(&p, NULL, facts, budget - at, split);
    split->word[GRID] = facts->workers * 8;
    split->word[SCRATCH_AT] = (int64_t)at;
    split->scratch_bytes += at;
    return s;
}

template <typename T> static sop_status read(const sop_call *call, const codes_args &p)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const unsigned grid = (unsigned)call->split->word[GRID];
    return d->kv_dtype == SOP_F8 ? sop_launch(sop_codes_read<T, true>, grid, 256, call, p)
                                 : sop_launch(sop_codes_read<T, false>, grid, 256, call, p);
}

static sop_status run(const sop_call *call, sop_status (*other)(const sop_call *))
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const sop_attention_desc numbers = of_16_bits(d);
    if (d->tokens == 0 || d->seqs == 0) return SOP_OK;
    if (d->pages == 0 || !sop_attention_aligned(call)) return sop_attention_cuda(call);
    sop_operand args[SOP_ATTENTION_ROLES];
    for (int i = 0; i < SOP_ATTENTION_ROLES; i++) args[i] = call->args[i];
    args[SOP_ATTENTION_K_POOL] = {call->scratch, (size_t)(d->pages * numbers.kp_page) * 2};
    args[SOP_ATTENTION_V_POOL] = {(char *)call->scratch + args[SOP_ATTENTION_K_POOL].bytes,
                                  (size_t)(d->pages * numbers.vp_page) * 2};
    codes_args p = {};
    p.a = sop_attention_args_of(call);
    p.pool[0] = {(const uint8_t *)p.a.k_pool,
                 args[SOP_ATTENTION_K_POOL].data,
                 p.a.k_scales,
                 d->kp_page,
                 d->kp_token,
                 d->kp_head,
                 (int)(d->k / 8)};
    p.pool[1] = {(const uint8_t *)p.a.v_pool,
                 args[SOP_ATTENTION_V_POOL].data,
                 p.a.v_scales,
                 d->vp_page,
                 d->vp_token,
                 d->vp_head,
                 (int)(d->v / 8)};
    p.pages = d->pages, p.table_stride = d->table_stride, p.window = d->window;
    p.seqs = (int)d->seqs, p.page = (int)d->page, p.heads = (int)d->kv_heads;
    const sop_status s =
        d->q_dtype == SOP_F16 ? read<__half>(call, p) : read<__nv_bfloat16>(call, p);
    if (s != SOP_OK) return s;
    sop_call then = *call;
    then.desc = &numbers;
    then.args = args;
    then.scratch = (char *)call->scratch + call->split->word[SCRATCH_AT];
    return other(&then);
}

extern "C" const char *sop_attention_decode_codes_refuse(const void *desc)
{
    return refuse(desc, sop_attention_decode_refuse);
}

extern "C" sop_status sop_attention_decode_codes_plan(const void *desc, const int32_t *params,
                                                      const sop_facts *facts, size_t budget,
                                                      sop_split *split)
{
    (void)params;
    return plan(desc, facts, budget, split, sop_attention_decode_plan);
}

extern "C" sop_status sop_attention_decode_codes_sm80(const sop_call *call)
{
    return run(call, sop_attention_decode_sm80);
}

extern "C" const char *sop_attention_prefill_codes_refuse(const void *desc)
{
    return refuse(desc, sop_attention_prefill_refuse);
}

extern "C" sop_status sop_attention_prefill_codes_plan(const void *desc, const int32_t *params,
                                                       const sop_facts *facts, size_t budget,
                                                       sop_split *split)
{
    (void)params;
    return plan(desc, facts, budget, split, sop_attention_prefill_plan);
}

extern "C" sop_status sop_attention_prefill_codes_sm90(const sop_call *call)
{
    return run(call, sop_attention_prefill_sm90);
}
