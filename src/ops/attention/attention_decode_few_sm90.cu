#include "ops/attention/decode_cuda.cuh"
#include "ops/attention/decode_few_sm90.cuh"

extern "C" {
#include "ops/kv_append/kv_append.h"
}

/* What the plan says: 1 << bits CTAs a piece. */
enum { FEW_BITS };

typedef void few_kernel(const decode_args, int);
struct few_choice {
    few_kernel *kernel;
    size_t shared; /* beside what the kernel has of its own */
};
/* Of 131,072 keys registers take 127.8 us on an H200, the ring 130.0; of 16,384 25.8 and 23.8. */
enum { FEW_RING_KEYS = 65536 };
template <typename T, typename QO, int HEAD> static few_choice choice(const sop_attention_desc *d)
{
    if (d->max_kv > FEW_RING_KEYS) return {sop_decode_few_sm90<T, QO, HEAD>, 0};
    return {sop_decode_few_ring_sm90<T, QO, HEAD>, few_ring<HEAD>::BYTES};
}
template <typename T, typename QO> static few_choice choice_of(const sop_attention_desc *d)
{
    switch (d->k) {
    case 64: return choice<T, QO, 64>(d);
    case 80: return choice<T, QO, 80>(d);
    case 96: return choice<T, QO, 96>(d);
    case 112: return choice<T, QO, 112>(d);
    default: return choice<T, QO, 128>(d);
    }
}
template <typename QO, bool F8> static few_choice choice_of_codes(const sop_attention_desc *d)
{
    typedef decode_code<F8> code;
    switch (d->k) {
    case 64: return {sop_decode_few_sm90<__half, QO, 64, code>, 0};
    case 96: return {sop_decode_few_sm90<__half, QO, 96, code>, 0};
    default: return {sop_decode_few_sm90<__half, QO, 128, code>, 0};
    }
}

static int64_t pieces_of(const sop_attention_desc *d)
{
    return d->kv_heads * sop_decode_parts(d);
}

extern "C" const char *sop_attention_decode_few_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_is_code(d->kv_dtype) ? sop_attention_decode_bytes_refuse(d)
                                               : sop_attention_decode_refuse(d);
    if (why) return why;
    if (d->tokens > 1 || d->seqs != 1) return "not one query of one sequence";
    if (d->alibi) return "alibi is not taken";
    if (d->k > 128) return "heads are over 128";
    if (pieces_of(d) > 32) return "too many heads";
    return NULL;
}

extern "C" sop_status sop_attention_decode_few_plan(const void *desc, const int32_t *params,
                                                    const sop_facts *facts, size_t budget,
                                                    sop_split *split)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const int64_t pieces = pieces_of(d), floats = pieces * DECODE_GROUP * d->k * 2; /* of a CTA */
    const int64_t units = (d->max_kv + DECODE_UNIT - 1) / DECODE_UNIT;
    int64_t bits = FEW_MOST_BITS;
    while (bits > 0 && ((pieces << bits) > facts->workers || (floats << bits) > SOP_CUDA_COUNTERS ||
                        FEW_WARPS << bits > units)) /* no warp without a unit */
        bits--;
    (void)params, (void)budget;
    *split = {{bits}, 0};
    return SOP_OK;
}

static sop_status run(const sop_call *call, few_choice c)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const int bits = (int)call->split->word[FEW_BITS];
    return sop_launch_cluster(c.kernel, (unsigned)(pieces_of(d) << bits), FEW_WARPS * 32, c.shared,
                              1, call, sop_decode_args_of(call), bits);
}

extern "C" sop_status sop_attention_decode_few_sm90(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const bool half = d->q_dtype == SOP_F16, f8 = d->kv_dtype == SOP_F8;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_attention_aligned(call)) return sop_attention_cuda(call);
    if (sop_is_code(d->kv_dtype))
        return run(call,
                   half ? f8 ? choice_of_codes<__half, true>(d) : choice_of_codes<__half, false>(d)
                   : f8 ? choice_of_codes<__nv_bfloat16, true>(d)
                        : choice_of_codes<__nv_bfloat16, false>(d));
    if (d->q_dtype == SOP_F32)
        return run(call, d->kv_dtype == SOP_F16 ? choice_of<__half, float>(d)
                                                : choice_of<__nv_bfloat16, float>(d));
    return run(call,
               half ? choice_of<__half, __half>(d) : choice_of<__nv_bfloat16, __nv_bfloat16>(d));
}
