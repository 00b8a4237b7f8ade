extern "C" {
#include "ops/sample/sample.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/sample/cluster_sm90.cuh"

extern "C" const char *sop_sample_cluster_refuse(const void *desc)
{
    const sop_sample_desc *d = (const sop_sample_desc *)desc;
    if (d->rows < 4) return "under 4 rows"; /* filters want more than eight multiprocessors a row */
    if (d->vocab > CLUSTER_MOST_VOCAB) return "over 262144 tokens to choose from";
    if (d->rows > INT32_MAX / CLUSTER) return "too many rows";
    return NULL;
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_sample_desc *d = (const sop_sample_desc *)call->desc;
    const int64_t each = 16 / sizeof(T) * CLUSTER;
    const cluster_args p = {*d, call->args[SOP_SAMPLE_LOGITS].data,
                            (const sop_sampling *)call->args[SOP_SAMPLE_PARAMS].data,
                            (const int32_t *)call->args[SOP_SAMPLE_LIVE].data,
                            (int32_t *)call->args[SOP_SAMPLE_IDS].data};
    return sop_launch_cluster(sop_sample_cluster<T>, (unsigned)(d->rows * CLUSTER), CLUSTER_THREADS,
                              (size_t)(16 * ((d->vocab + each - 1) / each)), CLUSTER, call, p);
}

extern "C" sop_status sop_sample_cluster_sm90(const sop_call *call)
{
    const sop_sample_desc *d = (const sop_sample_desc *)call->desc;
    if (d->rows == 0) return SOP_OK;
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
