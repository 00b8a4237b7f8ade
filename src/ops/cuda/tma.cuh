/* ops/cuda/tma.cuh: tensor maps, made on the host when a call is submitted; in a graph they are part of
 * the node. */
#ifndef OPS_CUDA_TMA_CUH
#define OPS_CUDA_TMA_CUH

#include <cuda.h>

#include "ops/cuda/launch.cuh"

/* How much of memory comes into the L2 where a box needs some of it: pieces of 256 or of 128 bytes. What is
 * read once streams faster by the smaller ones: weights 4.47 instead of 4.14 TB/s. */
enum {
    SOP_TMA_AGAIN = CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
    SOP_TMA_ONCE = CU_TENSOR_MAP_L2_PROMOTION_L2_128B
};

/* dims and box innermost first, strides in bytes from dimension 1 on (multiples of 16). */
static inline sop_status sop_tensor_map_of(CUtensorMap *map, CUtensorMapDataType type,
                                           CUtensorMapSwizzle swizzle, const void *p, int rank,
                                           const int64_t *dims, const int64_t *strides,
                                           const uint32_t *box, int often = SOP_TMA_AGAIN)
{
    typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                               const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                               const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static encode_fn *encode; /* the driver's, found by name: nothing links it */
    if (!encode) {
        cudaDriverEntryPointQueryResult found;
        void *f = NULL;
        const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                               cudaEnableDefault, &found);
        if (e != cudaSuccess || !f)
            return sop_cuda_fail(e == cudaSuccess ? (int)cudaErrorNotSupported : (int)e);
        encode = (encode_fn *)f;
    }
    const uint32_t ones[5] = {1, 1, 1, 1, 1};
    cuuint64_t d[5], s[4];
    for (int i = 0; i < rank; i++) d[i] = (cuuint64_t)dims[i];
    for (int i = 0; i + 1 < rank; i++) s[i] = (cuuint64_t)strides[i];
    const CUresult r = encode(map, type, (cuuint32_t)rank, const_cast<void *>(p), d, s, box, ones,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, (CUtensorMapL2promotion)often,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? SOP_OK : sop_cuda_fail((int)cudaErrorInvalidValue);
}

/* Of 16-bit elements; boxes of 64 of them, swizzled by 128 bytes. */
static inline sop_status sop_tensor_map(CUtensorMap *map, int32_t dtype, const void *p, int rank,
                                        const int64_t *dims, const int64_t *strides,
                                        const uint32_t *box, int often = SOP_TMA_AGAIN)
{
    return sop_tensor_map_of(
        map, dtype == SOP_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        CU_TENSOR_MAP_SWIZZLE_128B, p, rank, dims, strides, box, often);
}

/* Row-major [rows, cols], rows `stride` elements apart; boxes of 64 columns. */
static inline sop_status sop_tensor_map_2d(CUtensorMap *map, int32_t dtype, const void *p,
                                           int64_t rows, int64_t cols, int64_t stride,
                                           uint32_t box_rows, int often = SOP_TMA_AGAIN)
{
    const int64_t dims[2] = {cols, rows}, strides[1] = {2 * stride};
    const uint32_t box[2] = {64, box_rows};
    return sop_tensor_map(map, dtype, p, 2, dims, strides, box, often);
}

/* Words of 32 bits, [rows, words], rows `stride` bytes apart; boxes as they lie. */
static inline sop_status sop_tensor_map_words(CUtensorMap *map, const void *p, int64_t rows,
                                              int64_t words, int64_t stride, uint32_t box_words,
                                              uint32_t box_rows, int often = SOP_TMA_AGAIN)
{
    const int64_t dims[2] = {words, rows};
    const uint32_t box[2] = {box_words, box_rows};
    return sop_tensor_map_of(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, CU_TENSOR_MAP_SWIZZLE_NONE, p, 2,
                             dims, &stride, box, often);
}

#endif
