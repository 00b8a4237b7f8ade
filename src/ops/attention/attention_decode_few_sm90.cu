#include "ops/attention/decode_cuda.cuh"
#include "ops/attention/decode_few_sm90.cuh"

extern "C" {
#include "ops/kv_append/kv_append.h"
}

/* What the plan says: 1 << bits CTAs a piece. */
enum { FEW_BITS };

typedef void few_kernel(const decode_args, int);
typedef void few_ring_kernel(const decode_args, int, const few_copies);
struct few_choice {
    few_kernel *kernel;    /* of codes, or */
    few_ring_kernel *ring; /* of elements of 16 bits, */
    int shared;            /* of these bytes, beside what the kernel has of its own */
};
template <typename T, typename QO, int HEAD> static few_choice choice(void)
{
    return {NULL, sop_decode_few_ring_sm90<T, QO, HEAD>, few_ring<HEAD>::SHARED};
}
template <typename T, typename QO> static few_choice choice_of(const sop_attention_desc *d)
{
    switch (d->k) {
    case 64: return choice<T, QO, 64>();
    case 80: return choice<T, QO, 80>();
    case 96: return choice<T, QO, 96>();
    case 112: return choice<T, QO, 112>();
    default: return choice<T, QO, 128>();
    }
}
template <typename QO, bool F8> static few_choice choice_of_codes(const sop_attention_desc *d)
{
    typedef decode_code<F8> code;
    switch (d->k) {
    case 64: return {sop_decode_few_sm90<QO, 64, code>, NULL, 0};
    case 96: return {sop_decode_few_sm90<QO, 96, code>, NULL, 0};
    default: return {sop_decode_few_sm90<QO, 128, code>, NULL, 0};
    }
}

/* A pool as the copies see it; its channels in parts of 64, or of 16. */
static sop_status map_of(CUtensorMap *map, const sop_attention_desc *d, const void *pool,
                         int64_t token, int64_t head, int64_t page)
{
    const int64_t part = d->k % 64 ? 16 : 64, parts = d->k / part;
    const int64_t dims[5] = {part, d->page, parts, d->kv_heads, d->pages};
    const int64_t strides[4] = {2 * token, 2 * part, 2 * head, 2 * page};
    const bool whole = d->page % DECODE_UNIT == 0;
    const uint32_t box[5] = {(uint32_t)part, whole ? 16u : 8u, whole ? (uint32_t)parts : 1u, 1, 1};
    return sop_tensor_map_of(map,
                             d->kv_dtype == SOP_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                             part == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_32B,
                             pool, 5, dims, strides, box, SOP_TMA_ONCE);
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
    const int64_t strides[] = {d->kp_page, d->kp_token, d->kp_head,
                               d->vp_page, d->vp_token, d->vp_head};
    for (int i = 0; i < 6 && !sop_is_code(d->kv_dtype); i++)
        if (strides[i] <= 0) return "a stride of keys or values is not above 0";
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
    /* a cluster's CTAs meet sooner than 16 elsewhere */
    if (bits > FEW_CLUSTER_BITS && !sop_is_code(d->kv_dtype) &&
        few_is_cluster(FEW_CLUSTER_BITS, (unsigned)(pieces << FEW_CLUSTER_BITS)) &&
        units <= 2 * FEW_WARPS << FEW_CLUSTER_BITS)
        bits = FEW_CLUSTER_BITS;
    (void)params, (void)budget;
    *split = {{bits}, 0};
    return SOP_OK;
}

static sop_status run(const sop_call *call, few_choice choice)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const decode_args args = sop_decode_args_of(call);
    const int bits = (int)call->split->word[FEW_BITS];
    const unsigned grid = (unsigned)(pieces_of(d) << bits), threads = FEW_WARPS * 32;
    if (choice.kernel) return sop_launch(choice.kernel, grid, threads, call, args, bits);
    few_copies copies = {};
    sop_status s = map_of(&copies.k, d, args.a.k_pool, d->kp_token, d->kp_head, d->kp_page);
    if (s == SOP_OK) s = map_of(&copies.v, d, args.a.v_pool, d->vp_token, d->vp_head, d->vp_page);
    if (s != SOP_OK) return s;
    copies.over_page = ((uint64_t)1 << 63) / (uint64_t)d->page + 1;
    copies.of_piece = d->page % DECODE_UNIT == 0 ? 1 : 2 * (int)(d->k / (d->k % 64 ? 16 : 64));
    return sop_launch_cluster(choice.ring, grid, threads, (size_t)choice.shared,
                              few_is_cluster(bits, grid) ? 1u << bits : 1, call, args, bits,
                              copies);
}

extern "C" sop_status sop_attention_decode_few_sm90(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const bool half = d->q_dtype == SOP_F16, f8 = d->kv_dtype == SOP_F8;
    if (d->tokens == 0) return SOP_OK;
    if (d->pages == 0 || !sop_attention_aligned(call)) return sop_attention_cuda(call);
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
