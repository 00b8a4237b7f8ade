extern "C" {
#include "ops/sample/sample.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/sample/sample_split.cuh"

/* What the plan says: blocks a row of the first kernel; of the others. */
enum { FIRST, OTHERS };

static int tiles_of(const sop_sample_desc *d)
{
    return (int)((d->vocab + SPLIT_TILE - 1) / SPLIT_TILE);
}

static int64_t between(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x < hi ? x : hi;
}

extern "C" const char *sop_sample_split_refuse(const void *desc)
{
    const sop_sample_desc *d = (const sop_sample_desc *)desc;
    if (d->vocab > SPLIT_MOST_TILES * SPLIT_TILE) return "over 262144 tokens to choose from";
    if (d->rows > SOP_CUDA_COUNTERS - 2) return "too many rows";
    return NULL;
}

/* The first kernel reads as one wave of blocks, one a multiprocessor. The others deal what it has left to as
 * many. */
extern "C" sop_status sop_sample_split_plan(const void *desc, const int32_t *params,
                                            const sop_facts *facts, size_t budget, sop_split *split)
{
    const sop_sample_desc *d = (const sop_sample_desc *)desc;
    const int64_t tiles = tiles_of(d), rows = d->rows > 0 ? d->rows : 1;
    (void)params;
    *split = {{between(facts->workers / rows, 1, tiles), between(rows * tiles, 1, facts->workers)},
              0};
    split->scratch_bytes = (size_t)d->rows * (sizeof(split_state) + sizeof(int) +
                                              (size_t)tiles * (32 * sizeof(uint4) + 1024));
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_sample_desc *d = (const sop_sample_desc *)call->desc;
    const dim3 first((unsigned)d->rows, (unsigned)call->split->word[FIRST]);
    const unsigned others = (unsigned)call->split->word[OTHERS];
    split_args p = {*d, call->args[SOP_SAMPLE_LOGITS].data};
    p.params = (const sop_sampling *)call->args[SOP_SAMPLE_PARAMS].data;
    p.live = (const int32_t *)call->args[SOP_SAMPLE_LIVE].data;
    p.ids = (int32_t *)call->args[SOP_SAMPLE_IDS].data;
    p.tiles = tiles_of(d);
    p.groups = (uint4 *)call->scratch;
    p.marks = (uint8_t *)(p.groups + d->rows * p.tiles * 32);
    p.rows = (split_state *)(p.marks + d->rows * p.tiles * 1024);
    p.rows_left = (int *)(p.rows + d->rows);
    p.arrived = sop_cuda_counters(call);
    p.pending = p.arrived + d->rows;
    p.left = p.pending + 1;
    sop_status s = sop_launch(sop_sample_split_first<T>, first, SPLIT_THREADS, call, p);
    if (s == SOP_OK) s = sop_launch(sop_sample_split_second<T>, others, SPLIT_THREADS, call, p);
    if (s == SOP_OK) s = sop_launch(sop_sample_split_third<T>, others, SPLIT_THREADS, call, p);
    return s;
}

extern "C" sop_status sop_sample_split_sm80(const sop_call *call)
{
    const sop_sample_desc *d = (const sop_sample_desc *)call->desc;
    if (d->rows == 0) return SOP_OK;
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
