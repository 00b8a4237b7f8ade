/* ops/cuda/mma.cuh: products by warps and copies into shared memory, of compute capability 8.0 and newer.
 * Source: the PTX ISA, sections "mma.m16n8k16", "ldmatrix" and "cp.async". */
#ifndef OPS_CUDA_MMA_CUH
#define OPS_CUDA_MMA_CUH

#include "ops/cuda/elements.cuh"

// clang-format off
/* d[16, 8] += a[16, k 16] b[k 16, 8]. Lane 4 g + c has
 *     a  rows g, g + 8, g, g + 8 at k 2c, 2c + 1 (a[0], a[1]) and 2c + 8, 2c + 9 (a[2], a[3])
 *     b  column g at k 2c, 2c + 1 (b[0]) and 2c + 8, 2c + 9 (b[1])
 *     d  columns 2c, 2c + 1 of row g (d[0], d[1]) and of row g + 8 (d[2], d[3]) */
#define SOP_MMA(T, TYPE) \
    SOP_DEV void sop_mma(T, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) \
    { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
SOP_MMA(__nv_bfloat16, "bf16")
SOP_MMA(__half, "f16")

/* Four matrices of 8 x 8 16-bit elements; lane 8 i + r has the address of row r of matrix i. As pairs of a
 * row (lane 4 g + c: columns 2c, 2c + 1 of row g), or, transposed, as pairs of a column. */
SOP_DEV void sop_matrices(uint32_t (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}
SOP_DEV void sop_matrices_across(uint32_t (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* 16 bytes to shared memory, both at multiples of 16: the first n are read, the others are 0. */
SOP_DEV void sop_copy_async(void *to, const void *from, int n)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(n) : "memory");
}
/* All 16, if there is anything to copy. */
SOP_DEV void sop_copy_async_if(bool any, void *to, const void *from)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
                 "@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}"
                 ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"((int)any) : "memory");
}
/* Closes this thread's group of copies. */
SOP_DEV void sop_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All but the last N groups are there. */
template <int N> SOP_DEV void sop_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// clang-format on

#endif
