/* What the kernel of all layers is told, how its shared memory is laid out, and how its CTAs send words to each
 * other. */
#ifndef OPS_SPANS_LAYERS_ARGS_CUH
#define OPS_SPANS_LAYERS_ARGS_CUH

#include "ops/attention/decode_sm80.cuh"
#include "ops/cuda/hopper.cuh"

enum {
    LAYERS_CLUSTER = 16,
    LAYERS_WARPS = 16,
    LAYERS_THREADS = LAYERS_WARPS * 32,
    LAYERS_TOKENS = 2, /* at most */
    LAYERS_MOST = 32,  /* in a launch */
    LAYERS_ASKERS = 3, /* warps that ask for weights; one more asks for keys and values */
    LAYERS_ALL = LAYERS_THREADS + 32 * (LAYERS_ASKERS + 1),
    LAYERS_SOON = 8,      /* warps that share a slot that is to be free soon */
    LAYERS_SLOTS = 14,    /* of a ring, at most */
    LAYERS_KV_SLOTS = 16, /* at most */
    LAYERS_LEAST_KV = 4,
    LAYERS_PARTS = 48, /* sums of a product that wait to be added, at most */
    LAYERS_SHARED = 224 * 1024
};

/* A model that the kernel is compiled for: most of a layer's time it waits for instructions, and divisions by
 * what is not known take many. SHARE: of the channels, what a cluster with a KV head has of them. */
template <int HEAD_, int D_, int KV_HEADS_, int GROUP_, int CHANNELS_, int ACT_, int OTHERS_,
          int SHARE_>
struct layers_model {
    enum {
        HEAD = HEAD_,
        D = D_,
        KV_HEADS = KV_HEADS_,
        GROUP = GROUP_,
        CHANNELS = CHANNELS_,
        ACT = ACT_,
        OTHERS = OTHERS_,
        CLUSTERS = KV_HEADS + OTHERS,
        ROWS = D / LAYERS_CLUSTER,                      /* of the residual, a CTA */
        QKV = (GROUP + 2) * HEAD,                       /* of a KV head */
        ATT = GROUP * HEAD,                             /* channels of attention, the same */
        HEADS_SHARE = SHARE_,                           /* channels of the second half, */
        SHARE = (CHANNELS - KV_HEADS * SHARE_) / OTHERS /* of the other clusters */
    };
    static_assert(D % (4 * LAYERS_CLUSTER) == 0 && QKV % (4 * LAYERS_CLUSTER) == 0,
                  "quads of rows");
    static_assert(SHARE * OTHERS + SHARE_ * KV_HEADS == CHANNELS, "all channels");
    static_assert(SHARE % (8 * LAYERS_CLUSTER) == 0 && SHARE_ % (8 * LAYERS_CLUSTER) == 0,
                  "whole tiles of gate and up");
};

/* What differs from layer to layer. Weights: q, k, v, output, gate, up, down. */
struct layers_own {
    const void *w[7];
    const float *bias[7];
    const float *norm[2];
    void *k_pool, *v_pool;
};

struct layers_args {
    decode_args attention;
    const int32_t *live_tokens, *pos, *slots;
    const float *freqs;
    float *x;          /* [tokens, d], the residual */
    const void *first; /* [tokens, d], what is still to be added to it; NULL: nothing */
    void *y;           /* [tokens, d], what is to be added to it after the last layer */
    int64_t x_stride, first_stride, y_stride, pages;
    unsigned long long *mail; /* [KV heads, then all clusters, tokens, d] */
    float mscale, eps[2], offset[2];
    int layers, tokens;
    int pause;     /* clocks, see layers_posted */
    int window[2]; /* slots on their way: of the others, of those with heads */
    layers_own own[LAYERS_MOST];
};

/* Bytes of a row of k elements of 16 bits in shared memory: neighbours differ by 64 bytes modulo 128. */
static inline __host__ __device__ constexpr int layers_pitch(int k)
{
    return (2 * k + 127) / 128 * 128 + 64;
}

/* A slot of the ring: 16 rows of up to PIECE of k, apart by 64 bytes modulo 128: no conflicts among 8 rows. */
template <bool HEADS> struct layers_slot {
    enum { PIECE = HEADS ? 512 : 896, PITCH = 2 * PIECE + 64, BYTES = 16 * PITCH };
};

/* A unit of keys and values: 16 rows each, apart so that reads of fragments meet no conflicts. */
template <int HEAD> struct layers_kv {
    enum { K = 2 * HEAD + 64, V = 2 * HEAD + 16, BYTES = 16 * (K + V) };
    enum { WARPS = 8 }; /* that attend */
};

/* ---- clusters ---- */

SOP_DEV int layers_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
}
SOP_DEV uint32_t layers_at(uint32_t addr, int cta)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(cta));
    return r;
}
/* Data into the shared memory of a CTA of the cluster; its barrier counts the bytes. */
SOP_DEV void layers_send(uint32_t to, uint32_t bar, uint32_t x)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(x), "r"(bar)
        : "memory");
}
SOP_DEV void layers_send2(uint32_t to, uint32_t bar, float x, float y)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
            to),
        "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(bar)
        : "memory");
}
SOP_DEV void layers_send4(uint32_t to, uint32_t bar, const float (&x)[4])
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(to),
        "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[1])), "r"(__float_as_uint(x[2])),
        "r"(__float_as_uint(x[3])), "r"(bar)
        : "memory");
}
/* The warps that compute. */
SOP_DEV void layers_sync(void)
{
    named_sync(1, LAYERS_THREADS);
}
SOP_DEV void layers_arrive(uint32_t bar, int count)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
/* 16 bytes on their way; and an arrival once all of this thread are there. */
SOP_DEV void layers_copy(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
SOP_DEV void layers_copied(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

/* ---- mail ---- */

SOP_DEV void layers_post(unsigned long long *to, float x, uint32_t stamp)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to),
                 "l"((unsigned long long)stamp << 32 | __float_as_uint(x))
                 : "memory");
}
/* The sum of N words, stride apart, in their order, once all are there. */
template <int N>
SOP_DEV float layers_collect(const unsigned long long *from, int64_t stride, uint32_t stamp)
{
    unsigned long long w[N];
    float sum = 0;
    bool all;
    do {
        all = true;
#pragma unroll
        for (int j = 0; j < N; j++)
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                         : "=l"(w[j])
                         : "l"(from + j * stride)
                         : "memory");
#pragma unroll
        for (int j = 0; j < N; j++) all &= (uint32_t)(w[j] >> 32) == stamp;
    } while (!all);
#pragma unroll
    for (int j = 0; j < N; j++) sum += __uint_as_float((uint32_t)w[j]);
    return sum;
}

#endif
