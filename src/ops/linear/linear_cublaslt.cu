/* linear by cuBLASLt, one product for each weight. The library knows neither of live rows nor of biases
 * in float32 to results of 16 bits: where there are such, products go to scratch, and a kernel of ours
 * brings their live rows to y.
 *
 *     scratch -> up to 256 to align | workspace | staged [tokens, n0 + n1 + n2] */
#include <stdlib.h>

extern "C" {
#include "base/status.h"
#include "ops/linear/linear.h"
}
#include "ops/cuda/cublaslt.h"
#include "ops/linear/finish.cuh"
#include "ops/linear/linear_cuda.cuh"

struct ways {
    const sop_cublaslt *lt;
    sop_cublaslt_plan to_y[3], to_stage[3]; /* for each weight */
};

static int64_t width(const sop_linear_desc *d)
{
    return d->n[0] + d->n[1] + d->n[2];
}

/* A bias is added before the one rounding. */
static int32_t stage_dtype(const sop_linear_desc *d)
{
    return d->bias ? (int32_t)SOP_F32 : d->y_dtype;
}

extern "C" const char *sop_linear_cublaslt_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const char *why = sop_linear_gemm_refuse(desc); /* the same types and alignment */
    if (why) return why;
    if (d->tokens == 0) return "there is no token";
    if (d->x_stride < d->k) return "rows of x overlap";
    return NULL;
}

extern "C" sop_status sop_linear_cublaslt_plan(const void *desc, const int32_t *params,
                                               const sop_facts *facts, size_t budget,
                                               sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    (void)params;
    (void)facts;
    *split = {{0},
              SOP_CUBLASLT_ALIGNMENT + SOP_CUBLASLT_WORKSPACE +
                  (size_t)(d->tokens * width(d)) * (stage_dtype(d) == SOP_F32 ? 4 : 2)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

extern "C" void sop_linear_cublaslt_release(void *state)
{
    struct ways *ways = (struct ways *)state;
    for (int j = 0; ways && ways->lt && j < 3; j++) {
        sop_cublaslt_unplan(ways->lt, &ways->to_y[j]);
        sop_cublaslt_unplan(ways->lt, &ways->to_stage[j]);
    }
    free(ways);
}

static sop_status find_ways(const sop_linear_desc *d, struct ways *ways)
{
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        sop_cublaslt_product p = {d->tokens,      d->n[j],  d->k,          d->x_stride,
                                  d->w_stride[j], width(d), d->w_dtype[0], stage_dtype(d)};
        sop_status s = sop_cublaslt_plan_product(ways->lt, &p, &ways->to_stage[j]);
        p.y_stride = d->y_stride < width(d) ? width(d) : d->y_stride; /* of one row it is free */
        p.y_dtype = d->y_dtype;
        if (s == SOP_OK && !d->bias) s = sop_cublaslt_plan_product(ways->lt, &p, &ways->to_y[j]);
        if (s != SOP_OK) return s;
    }
    return SOP_OK;
}

extern "C" sop_status sop_linear_cublaslt_prepare(const void *desc, sop_device *device,
                                                  void **state)
{
    int32_t index;
    *state = NULL;
    sop_status s = sop_cuda_enter(device, &index);
    if (s != SOP_OK) return s;
    struct ways *ways = (struct ways *)calloc(1, sizeof *ways);
    if (!ways) return sop_fail(SOP_E_NOMEM, "cublaslt: a plan");
    s = sop_cublaslt_open(index, &ways->lt);
    if (s == SOP_OK) s = find_ways((const sop_linear_desc *)desc, ways);
    if (s != SOP_OK) {
        sop_linear_cublaslt_release(ways);
        return s;
    }
    *state = ways;
    return SOP_OK;
}

template <typename S, typename T> static sop_status finish(const sop_call *call, const void *staged)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    finish_args a = {};
    for (int j = 0; j < 3; j++) {
        a.n[j] = d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
    }
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.tokens = d->tokens;
    a.y_stride = d->y_stride;
    const unsigned rows = d->tokens < 65535 ? (unsigned)d->tokens : 65535; /* of a grid */
    return sop_launch(sop_linear_finish<S, T>, dim3(sop_blocks(width(d), 8 * 128), rows), 128, call,
                      (const S *)staged, a, (T *)call->args[SOP_LINEAR_Y].data);
}

static sop_status finish(const sop_call *call, const void *staged)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const bool wide = stage_dtype(d) == SOP_F32;
    switch (d->y_dtype) {
    case SOP_F32: return finish<float, float>(call, staged);
    case SOP_F16:
        return wide ? finish<float, __half>(call, staged) : finish<__half, __half>(call, staged);
    default:
        return wide ? finish<float, __nv_bfloat16>(call, staged)
                    : finish<__nv_bfloat16, __nv_bfloat16>(call, staged);
    }
}

extern "C" sop_status sop_linear_cublaslt(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const struct ways *ways = (const struct ways *)call->prepared;
    const void *x = call->args[SOP_LINEAR_X].data;
    char *y = (char *)call->args[SOP_LINEAR_Y].data;
    if (!sop_linear_aligned(call) || !sop_aligned16(x) || !sop_aligned16(y))
        return sop_linear_cuda(call);
    const uintptr_t last = SOP_CUBLASLT_ALIGNMENT - 1;
    char *workspace = (char *)(((uintptr_t)call->scratch + last) & ~last);
    const bool staged = d->bias || call->args[SOP_LINEAR_LIVE].data;
    char *to = staged ? workspace + SOP_CUBLASLT_WORKSPACE : y;
    const int64_t element = (staged ? stage_dtype(d) : d->y_dtype) == SOP_F32 ? 4 : 2;
    for (int j = 0; j < 3; to += element * d->n[j++]) {
        if (!d->n[j]) continue;
        const sop_status s =
            sop_cublaslt_run(ways->lt, staged ? &ways->to_stage[j] : &ways->to_y[j], x,
                             call->args[SOP_LINEAR_W0 + j].data, to, workspace, sop_stream(call));
        if (s != SOP_OK) return s;
    }
    return staged ? finish(call, workspace + SOP_CUBLASLT_WORKSPACE) : SOP_OK;
}
