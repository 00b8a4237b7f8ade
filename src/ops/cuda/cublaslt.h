/* ops/cuda/cublaslt.h: products of matrices by NVIDIA's cuBLASLt, for rows of the vendor route. The
 * library is found when the first row is prepared (core/library.h) and stays; nothing links it. */
#ifndef OPS_CUDA_CUBLASLT_H
#define OPS_CUDA_CUBLASLT_H

#include "sop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library and its handle for one device. */
typedef struct sop_cublaslt sop_cublaslt;

/* y[t,i] = sum over k of x[t,k] * w[i,k]: x [tokens, k] and w [n, k] of dtype (f16 or bf16), y
 * [tokens, n] of it or f32; sums in f32, rounded once. x_down, w_down: x, w lie the other way, [k, tokens],
 * [k, n]. Addresses are multiples of 16 bytes, strides of 8 elements, at least a row long. */
typedef struct sop_cublaslt_product {
    int64_t tokens, n, k, x_stride, w_stride, y_stride;
    int32_t dtype, y_dtype;
    int32_t x_down, w_down;
} sop_cublaslt_product;

/* A product with the way to run it. */
typedef struct sop_cublaslt_plan {
    void *product, *w, *x, *y; /* descriptors of the library's */
    uint64_t algorithm[8];
    size_t workspace_bytes;
} sop_cublaslt_plan;

/* What a plan may want of workspace: NVIDIA's advice for Hopper. It starts at a multiple of 256. */
enum { SOP_CUBLASLT_WORKSPACE = 32 << 20, SOP_CUBLASLT_ALIGNMENT = 256 };

/* For the device that this thread has set. The handle stays until the process ends; one for each
 * device. SOP_E_NOT_FOUND where there is no library, SOP_E_UNSUPPORTED where it is none that we know or
 * does not take the device. */
sop_status sop_cublaslt_open(int32_t device, const sop_cublaslt **out);

/* Ask the library how it would run a product best: the first of its proposals. out: free it with
 * sop_cublaslt_unplan(), also after a failure. SOP_E_UNSUPPORTED where it has no way. */
sop_status sop_cublaslt_plan_product(const sop_cublaslt *lt, const sop_cublaslt_product *p,
                                     sop_cublaslt_plan *out);
void sop_cublaslt_unplan(const sop_cublaslt *lt, sop_cublaslt_plan *plan);

/* Launch a product on a stream; asks nothing and allocates nothing. SOP_E_DEVICE. */
sop_status sop_cublaslt_run(const sop_cublaslt *lt, const sop_cublaslt_plan *plan, const void *x,
                            const void *w, void *y, void *workspace, void *stream);

#ifdef __cplusplus
}
#endif

#endif
