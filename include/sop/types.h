/* sop/types.h: element types and tensor views. */
#ifndef SOP_TYPES_H
#define SOP_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "sop/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One list makes the enum, the names and the sizes: X(name, value, text, elements of a block,
 * bytes of a block). Values are part of the ABI: append only. f8 is e4m3 without infinities, up to
 * 448. The block formats up to q6_k are GGUF's; i8_128, f8_128 and i4_128 are for int8, fp8 (e4m3)
 * and int4 (AWQ, GPTQ) weights with scales (ops/linear/dequant.c draws them). A "block" of the plain
 * types is one element. */
#define SOP_DTYPE_MAP(X) \
    X(F32, 0, "f32", 1, 4) \
    X(F16, 1, "f16", 1, 2) \
    X(BF16, 2, "bf16", 1, 2) \
    X(F64, 3, "f64", 1, 8) \
    X(I8, 4, "i8", 1, 1) \
    X(U8, 5, "u8", 1, 1) \
    X(I32, 6, "i32", 1, 4) \
    X(I64, 7, "i64", 1, 8) \
    X(F8, 8, "f8", 1, 1) \
    X(Q8_0, 16, "q8_0", 32, 34) \
    X(Q4_0, 17, "q4_0", 32, 18) \
    X(Q4_1, 18, "q4_1", 32, 20) \
    X(Q5_0, 19, "q5_0", 32, 22) \
    X(Q5_1, 20, "q5_1", 32, 24) \
    X(Q4_K, 21, "q4_k", 256, 144) \
    X(Q5_K, 22, "q5_k", 256, 176) \
    X(Q6_K, 23, "q6_k", 256, 210) \
    X(I8_128, 24, "i8_128", 128, 132) \
    X(F8_128, 25, "f8_128", 128, 132) \
    X(I4_128, 26, "i4_128", 128, 68)

typedef enum sop_dtype {
#define X(name, value, text, elems, bytes) SOP_##name = (value),
    SOP_DTYPE_MAP(X)
#undef X
} sop_dtype;

/** The type's text ("q4_k"), or NULL when there is no such type. */
SOP_API const char *sop_dtype_text(int32_t dtype);
/** The type of a text, or -1. */
SOP_API int32_t sop_dtype_of(const char *text);
/** Elements and bytes of one block; 0 when there is no such type. */
SOP_API int64_t sop_dtype_block(int32_t dtype);
SOP_API size_t sop_dtype_bytes(int32_t dtype);
/** Bytes of n elements in a row: n / block * bytes. n is a multiple of the block; SIZE_MAX when it
 * is not, when it is negative, or when the product does not fit. */
SOP_API size_t sop_dtype_row_bytes(int32_t dtype, int64_t n);

#define SOP_MAX_DIMS 6

/** A view: it borrows data and never frees it. Strides count elements, in block formats the last
 * dimension's blocks are dense and the other strides count blocks. */
typedef struct sop_tensor {
    void *data;
    size_t bytes; /* that may be touched from data on */
    int32_t dtype;
    int32_t ndim;
    int64_t shape[SOP_MAX_DIMS];
    int64_t stride[SOP_MAX_DIMS];
} sop_tensor;

#ifdef __cplusplus
}
#endif

#endif
