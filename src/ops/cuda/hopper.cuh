/* ops/cuda/hopper.cuh: what compute capability 9.0 has beside plain CUDA: mbarriers, the copy engine
 * (TMA), products by warpgroups (wgmma), register budgets.
 *
 * Device code only. Shared-memory addresses are the 32-bit ones of smem_addr(); every tile that TMA
 * swizzles or wgmma reads starts at a multiple of 1024 bytes, else the swizzle phase is wrong.
 * Source: the PTX ISA, sections "mbarrier", "cp.async.bulk.tensor" and "wgmma". */
#ifndef OPS_CUDA_HOPPER_CUH
#define OPS_CUDA_HOPPER_CUH

#include <cuda.h>

#include "ops/cuda/elements.cuh"

/* The 32-bit shared-memory address of a generic pointer. */
SOP_DEV uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- mbarrier: 8 bytes of shared memory; a phase ends when `count` arrivals and all announced
 * bytes are in. On a fresh barrier a wait on parity 1 returns at once: a producer starts with
 * parity 1 on "empty" barriers, a consumer with parity 0 on "full" ones. ---- */
// clang-format off
/* One thread; then fence_mbar_init() and __syncthreads(). */
SOP_DEV void mbar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
/* Makes the inits visible to TMA and to the cluster. */
SOP_DEV void fence_mbar_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* One arrival, releases what this thread did before. */
SOP_DEV void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* One arrival on the same barrier of another CTA of the cluster. No .release.cluster: with it a product
 * fell from 784 to 604 TFLOP/s, and a consumer that only read through wgmma has nothing to release. */
SOP_DEV void mbar_arrive_remote(uint32_t bar, uint32_t cta)
{
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(bar), "r"(cta) : "memory");
}
/* One arrival that also announces `bytes` of TMA traffic. */
SOP_DEV void mbar_expect_tx(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(bar), "r"(bytes) : "memory");
}
/* Returns once the phase of this parity is over. */
SOP_DEV void mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra W;\n}" ::"r"(bar), "r"(parity) : "memory");
}

/* ---- TMA. Maps are const __grid_constant__ CUtensorMap kernel parameters. Coordinates count
 * elements, innermost first; what lies outside the tensor is read as 0 and not written. ---- */
SOP_DEV void tma_load_2d(uint32_t dst, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
/* The same of what is read once. */
SOP_DEV void tma_load_2d_once(uint32_t dst, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "l"(sop_once()) : "memory");
}
/* The same into several CTAs of the cluster (bit i of mask: CTA i), same offsets in each. */
SOP_DEV void tma_load_2d_multicast(uint32_t dst, const CUtensorMap *map, int x, int y, uint32_t bar,
                                   uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory");
}
SOP_DEV void tma_load_3d(uint32_t dst, const CUtensorMap *map, int x, int y, int z, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}
SOP_DEV void tma_load_3d_once(uint32_t dst, const CUtensorMap *map, int x, int y, int z,
                              uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(sop_once()) : "memory");
}
SOP_DEV void tma_load_4d(uint32_t dst, const CUtensorMap *map, int x, int y, int z, int w,
                         uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}
/* Bytes without a map, a multiple of 16 at multiples of 16, read once. */
SOP_DEV void bulk_load_once(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(sop_once()) : "memory");
}
/* From shared memory; writers call fence_async() before the barrier. */
SOP_DEV void tma_store_2d(const CUtensorMap *map, uint32_t src, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(src), "r"(x), "r"(y) : "memory");
}
/* Closes this thread's group of stores. */
SOP_DEV void tma_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* All but the last N groups have left shared memory. */
template <int N> SOP_DEV void tma_store_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
/* Ordinary shared-memory writes become visible to TMA and wgmma. */
SOP_DEV void fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- Roles ---- */
/* bar.sync on barrier `id` (1..15; 0 is __syncthreads) among `threads` threads. */
SOP_DEV void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* setmaxnreg: whole warpgroups; needs __launch_bounds__(threads, 1). The sum over the warpgroups may
 * not pass what the launch gave: 384 threads start with 168 each, so 40 + 232 + 232. */
template <int N> SOP_DEV void regs_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> SOP_DEV void regs_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
/* All threads of all CTAs of the cluster. */
SOP_DEV void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* ---- Shared-memory matrix descriptors, 16-bit elements, 128-byte swizzle ----
 *
 *  63  62 61   52 51  49 48 46 45        32 31 30 29        16 15 14 13         0
 * [ mode |   0   | base |  0  | SBO >> 4   |  0  | LBO >> 4   |  0  | addr >> 4   ]
 *   mode: 0 none, 1 128 B, 2 64 B, 3 32 B; base 0 when tiles are 1024-byte aligned
 *
 * Both forms lie in memory as TMA writes a box of 64 elements (128 bytes) by R rows with SWIZZLE_128B:
 * 16-byte chunk c of row r sits at r * 128 + ((c ^ (r & 7)) << 4); 8 rows are a 1024-byte atom.
 *
 * K-major (row = m or n, 128 bytes = 64 of k): SBO = 1024, from 8 rows to the next 8; LBO unused.
 *   next 16 of k: addr + 32 bytes, inside the atom; the hardware swizzles the address it forms.
 * MN-major (row = k, 128 bytes = 64 of m or n; the transposed operand, V): SBO = 1024, from 8 of k
 *   to the next 8; LBO = bytes from 64 of n to the next 64 = rows in the box * 128.
 *   next 16 of k: addr + 2048 bytes. */
SOP_DEV uint64_t desc_encode(uint32_t addr, uint32_t lbo, uint32_t sbo)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(lbo >> 4) << 16 |
           (uint64_t)(sbo >> 4) << 32 | (uint64_t)1 << 62;
}
SOP_DEV uint64_t desc_k_major(uint32_t addr)
{
    return desc_encode(addr, 16, 1024);
}
SOP_DEV uint64_t desc_mn_major(uint32_t addr, uint32_t box_rows)
{
    return desc_encode(addr, box_rows * 128, 1024);
}
/* The descriptor `bytes` further on: adds to the address field only. */
SOP_DEV uint64_t desc_advance(uint64_t desc, uint32_t bytes)
{
    return desc + (bytes >> 4);
}

/* ---- wgmma m64nNk16, bf16 or f16 to f32, by the 128 threads of a warpgroup ----
 *
 * Accumulator d[N/2] of thread t (warp w = t/32 % 4, lane l): for j = 0 .. N/8 - 1
 *      column:        8j + 2(l%4)   8j + 2(l%4) + 1
 *   row 16w + l/4        d[4j]          d[4j+1]
 *   row 16w + l/4 + 8    d[4j+2]        d[4j+3]
 * A from registers, k = 16: a[0] = row, k 2(l%4)..+1; a[1] = row + 8; a[2], a[3] = same, k + 8.
 * So accumulator columns 16i .. 16i+15, packed pairwise from d[8i], are the next product's a. */
/* Before the first wgmma, and after registers it reads or adds to were written. */
SOP_DEV void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
SOP_DEV void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* All but the last N groups are done. */
template <int N> SOP_DEV void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* No instruction; keeps the compiler from moving uses of d across it. Call after wgmma_wait. */
template <int N> SOP_DEV void wgmma_touch(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define R4 "%0, %1, %2, %3"
#define R8 R4 ", %4, %5, %6, %7"
#define R16 R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define R24 R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define R32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R40 R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define R48 R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define R56 R48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define R60 R56 ", %56, %57, %58, %59"
#define R64 R32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49" \
    ", %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define R72 R64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define R68 R64 ", %64, %65, %66, %67"
#define R76 R72 ", %72, %73, %74, %75"
#define R80 R72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define R96 R72 \
    ", %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89" \
    ", %90, %91, %92, %93, %94, %95"
#define R128 R96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112" \
    ", %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126" \
    ", %127"
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
    "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
#define WGMMA_SS(N, TYPE, REGS, A, B, ADD, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS \
                 "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}" \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(add))
#define WGMMA_RS(N, TYPE, REGS, A0, A1, A2, A3, B, ADD, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 1;\n}" \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

/* The products of one element type. ss: d = A B^T + (add ? d : 0), A and B K-major in shared memory.
 * rs: d = A B + (add ? d : 0), A in registers, B MN-major (transposed) in shared memory. */
template <typename T> struct wgmma;
#define WGMMA_OF(T, TYPE) \
    template <> struct wgmma<T> { \
        SOP_DEV void ss(float (&d)[4], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(8, TYPE, R4, 4, 5, 6, F4(0)); \
        } \
        SOP_DEV void ss(float (&d)[8], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(16, TYPE, R8, 8, 9, 10, F8(0)); \
        } \
        SOP_DEV void ss(float (&d)[16], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(32, TYPE, R16, 16, 17, 18, F8(0), F8(8)); \
        } \
        SOP_DEV void ss(float (&d)[24], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(48, TYPE, R24, 24, 25, 26, F8(0), F8(8), F8(16)); \
        } \
        SOP_DEV void ss(float (&d)[32], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(64, TYPE, R32, 32, 33, 34, F32(0)); \
        } \
        SOP_DEV void ss(float (&d)[40], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(80, TYPE, R40, 40, 41, 42, F32(0), F8(32)); \
        } \
        SOP_DEV void ss(float (&d)[48], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(96, TYPE, R48, 48, 49, 50, F32(0), F8(32), F8(40)); \
        } \
        SOP_DEV void ss(float (&d)[56], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(112, TYPE, R56, 56, 57, 58, F32(0), F8(32), F8(40), F8(48)); \
        } \
        SOP_DEV void ss(float (&d)[60], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(120, TYPE, R60, 60, 61, 62, F32(0), F8(32), F8(40), F8(48), F4(56)); \
        } \
        SOP_DEV void ss(float (&d)[64], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(128, TYPE, R64, 64, 65, 66, F32(0), F32(32)); \
        } \
        SOP_DEV void ss(float (&d)[68], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(136, TYPE, R68, 68, 69, 70, F32(0), F32(32), F4(64)); \
        } \
        SOP_DEV void ss(float (&d)[72], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(144, TYPE, R72, 72, 73, 74, F32(0), F32(32), F8(64)); \
        } \
        SOP_DEV void ss(float (&d)[76], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(152, TYPE, R76, 76, 77, 78, F32(0), F32(32), F8(64), F4(72)); \
        } \
        SOP_DEV void ss(float (&d)[80], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(160, TYPE, R80, 80, 81, 82, F32(0), F32(32), F8(64), F8(72)); \
        } \
        SOP_DEV void ss(float (&d)[96], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(192, TYPE, R96, 96, 97, 98, F32(0), F32(32), F32(64)); \
        } \
        SOP_DEV void ss(float (&d)[128], uint64_t a, uint64_t b, int add) \
        { \
            WGMMA_SS(256, TYPE, R128, 128, 129, 130, F32(0), F32(32), F32(64), F32(96)); \
        } \
        SOP_DEV void rs(float (&d)[32], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(64, TYPE, R32, 32, 33, 34, 35, 36, 37, F32(0)); \
        } \
        SOP_DEV void rs(float (&d)[40], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(80, TYPE, R40, 40, 41, 42, 43, 44, 45, F32(0), F8(32)); \
        } \
        SOP_DEV void rs(float (&d)[48], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(96, TYPE, R48, 48, 49, 50, 51, 52, 53, F32(0), F8(32), F8(40)); \
        } \
        SOP_DEV void rs(float (&d)[56], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(112, TYPE, R56, 56, 57, 58, 59, 60, 61, F32(0), F8(32), F8(40), F8(48)); \
        } \
        SOP_DEV void rs(float (&d)[64], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(128, TYPE, R64, 64, 65, 66, 67, 68, 69, F32(0), F32(32)); \
        } \
        SOP_DEV void rs(float (&d)[80], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(160, TYPE, R80, 80, 81, 82, 83, 84, 85, F32(0), F32(32), F8(64), F8(72)); \
        } \
        SOP_DEV void rs(float (&d)[96], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(192, TYPE, R96, 96, 97, 98, 99, 100, 101, F32(0), F32(32), F32(64)); \
        } \
        SOP_DEV void rs(float (&d)[128], const uint32_t *a, uint64_t b, int add) \
        { \
            WGMMA_RS(256, TYPE, R128, 128, 129, 130, 131, 132, 133, F32(0), F32(32), F32(64), F32(96)); \
        } \
    }
WGMMA_OF(__nv_bfloat16, "bf16");
WGMMA_OF(__half, "f16");

/* stmatrix.x4: four 8 x 8 tiles in accumulator layout; lane l: row l % 8 of tile l / 8. */
SOP_DEV void stmatrix_x4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// clang-format on

/* exp2 by the special function unit: within 2 ulp. */
SOP_DEV float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
