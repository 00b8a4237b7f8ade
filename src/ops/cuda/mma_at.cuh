/* What mma.cuh has, by addresses of shared memory in 32 bits: where the pieces of a row are swapped by an
 * exclusive or, so is the way from one to the next. */
#ifndef OPS_CUDA_MMA_AT_CUH
#define OPS_CUDA_MMA_AT_CUH

#include "ops/cuda/mma.cuh"

// clang-format off
SOP_DEV uint32_t sop_shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
SOP_DEV void sop_matrices_at(uint32_t (&x)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row) : "memory");
}
SOP_DEV void sop_matrices_across_at(uint32_t (&x)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row) : "memory");
}
/* 16 bytes, of which the first n are read and the others 0; and all of them, if there is anything to copy:
 * a number of bytes that may be 16 takes many instructions. */
SOP_DEV void sop_copy_async_at(uint32_t to, const void *from, int n)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(to), "l"(from), "r"(n) : "memory");
}
SOP_DEV void sop_copy_async_if_at(bool any, uint32_t to, const void *from)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
                 "@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}"
                 ::"r"(to), "l"(from), "r"((int)any) : "memory");
}
// clang-format on

#endif
