extern "C" {
#include "ops/experts/experts.h"
}
#include "ops/cuda/tma.cuh"
#include "ops/experts/gemm_sm90.cuh"

/* What the plan says. */
enum { MOST, HIGH, STAGES, GRID, COPIED };

/* Bytes of shared memory that a block may have. */
enum { SHARED_BYTES = 227 * 1024 };

static int64_t strips_of(const sop_experts_desc *d)
{
    return (d->n + EXPERTS_BN - 1) / EXPERTS_BN;
}

/* Between rows of x where they are copied to. */
static int64_t copy_stride(const sop_experts_desc *d)
{
    return (d->k + 7) / 8 * 8;
}

extern "C" const char *sop_experts_gemm_refuse(const void *desc)
{
    const sop_experts_desc *d = (const sop_experts_desc *)desc;
    if (d->w_dtype != SOP_BF16 && d->w_dtype != SOP_F16)
        return "the weight is neither bf16 nor f16";
    if (d->x_dtype != d->w_dtype) return "x has not the weight's type";
    if (d->y_dtype != d->w_dtype && d->y_dtype != SOP_F32)
        return "y is neither f32 nor of the weight's type";
    if (!d->n || !d->k) return "an extent is 0";
    if (d->n % 8) return "rows of a weight are no multiple of 8";
    if (d->x_stride % 8 || d->y_stride % 8)
        return "rows of x or y are no multiple of 16 bytes apart";
    if (d->w_stride % 8 || d->w_expert % 8)
        return "rows of a weight are no multiple of 16 bytes apart";
    if (d->w_expert >= (int64_t)1 << 39) return "the weights are too far apart";
    if (d->experts > 1024) return "over 1024 experts";
    if ((d->rows / 32 + d->experts) * strips_of(d) > INT32_MAX) return "too many tiles";
    return NULL;
}

/* Where experts have over 96 rows of x each, tiles are 256 rows of a weight by at most 160 of x, as far as
 * four stages fit: of 273 rows each they take 177 us, and 128 by 256 take 203. Of fewer, they hold half as
 * many again as an expert has on average: the ring is the deeper the narrower they are. */
extern "C" sop_status sop_experts_gemm_plan(const void *desc, const int32_t *params,
                                            const sop_facts *facts, size_t budget, sop_split *split)
{
    const sop_experts_desc *d = (const sop_experts_desc *)desc;
    const int experts = (int)d->experts;
    const int high = d->rows > 96 * d->experts && d->n > EXPERTS_BN ? 2 : 1;
    int most = 32;
    if (high == 2) {
        most = EXPERTS_MOST;
        while (experts_smem_bytes(most, high, 4, experts) > SHARED_BYTES) most -= 16;
    } else {
        while (most < EXPERTS_MOST && most * d->experts * 2 < d->rows * 3)
            most = most < 128 ? 2 * most : EXPERTS_MOST;
    }
    int stages = EXPERTS_MOST_STAGES;
    while (experts_smem_bytes(most, high, stages, experts) > SHARED_BYTES) stages--;
    const int64_t strips = (strips_of(d) + high - 1) / high;
    const int64_t tiles = (d->rows / most + (d->rows < d->experts ? d->rows : d->experts)) * strips;
    const size_t copy_bytes = (size_t)d->rows * (size_t)copy_stride(d) * 2;
    (void)params;
    *split = {{0}, 0};
    split->word[COPIED] = d->gather && high == 2 && copy_bytes <= budget;
    if (split->word[COPIED]) split->scratch_bytes = copy_bytes;
    split->word[MOST] = most;
    split->word[HIGH] = high;
    split->word[STAGES] = stages;
    split->word[GRID] = tiles < facts->workers ? tiles : facts->workers;
    return SOP_OK;
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_experts_desc *d = (const sop_experts_desc *)call->desc;
    experts_maps maps = {};
    experts_args a = {};
    a.counts = (const int32_t *)call->args[SOP_EXPERTS_COUNTS].data;
    a.perm = (const int32_t *)call->args[SOP_EXPERTS_PERM].data;
    a.x = call->args[SOP_EXPERTS_X].data;
    a.y = call->args[SOP_EXPERTS_Y].data;
    a.x_stride = d->x_stride;
    a.y_stride = d->y_stride;
    a.rows = (int32_t)d->rows;
    a.experts = (int32_t)d->experts;
    a.n = (int32_t)d->n;
    a.k = (int32_t)d->k;
    a.gather = (int32_t)d->gather;
    a.scatter = d->scatter;
    a.y_f32 = d->y_dtype == SOP_F32;
    a.most = (int32_t)call->split->word[MOST];
    a.high = (int32_t)call->split->word[HIGH];
    a.stages = (int32_t)call->split->word[STAGES];
    a.taken = sop_cuda_counters(call);
    sop_status s = SOP_OK;
    if (call->split->word[COPIED]) {
        s = sop_launch(sop_experts_copy_sm90<T>, sop_blocks(d->rows, EXPERTS_COPIERS),
                       EXPERTS_COPIERS * 32, call, a, (T *)call->scratch, (int)copy_stride(d));
        if (s != SOP_OK) return s;
        a.x = call->scratch;
        a.x_stride = copy_stride(d);
        a.gather = 0;
    }
    const int64_t dims[3] = {d->k, d->n, d->experts},
                  strides[2] = {2 * d->w_stride, 2 * d->w_expert};
    const uint32_t box[3] = {EXPERTS_BK, EXPERTS_BN, 1};
    s = sop_tensor_map(&maps.w, d->w_dtype, call->args[SOP_EXPERTS_W].data, 3, dims, strides, box);
    for (uint32_t i = 0; i < 5 && s == SOP_OK && !a.gather; i++)
        s = sop_tensor_map_2d(&maps.x[i], d->x_dtype, a.x, d->rows, d->k, a.x_stride, 128u >> i);
    if (s != SOP_OK) return s;
    return sop_launch_cluster(
        sop_experts_gemm_sm90<T>, (unsigned)call->split->word[GRID], EXPERTS_THREADS,
        (size_t)experts_smem_bytes(a.most, a.high, a.stages, a.experts), 1, call, maps, a);
}

extern "C" sop_status sop_experts_gemm_sm90(const sop_call *call)
{
    const sop_experts_desc *d = (const sop_experts_desc *)call->desc;
    if (d->rows == 0) return SOP_OK;
    if (!sop_aligned16(call->args[SOP_EXPERTS_X].data) ||
        !sop_aligned16(call->args[SOP_EXPERTS_W].data) ||
        !sop_aligned16(call->args[SOP_EXPERTS_Y].data))
        return sop_experts_cuda(call);
    return d->w_dtype == SOP_F16 ? run<__half>(call) : run<__nv_bfloat16>(call);
}
