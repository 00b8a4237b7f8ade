/* One query of one sequence, where every word from CTA to CTA counts. All CTAs share the keys of a piece of up
 * to 8 heads equally, their warps take units of 16 keys in turn, and the partial results of a piece meet: each
 * CTA is sent all parts of a share of the results, and ends it. There is no list of the work: lengths, pages
 * and the query are read side by side. Keys and values come through rings in shared memory, by the copy
 * engine; codes by registers as in decode_sm80.cuh.
 *
 * Up to 8 CTAs of a piece are a cluster and send into each other's shared memory, where a barrier counts the
 * bytes; more meet in global memory:
 * mail, of a piece: [CTA it is for][CTA that sends][4 results] as they are, not yet divided by their sum, then
 * in the same order their maximum and sum. Words are as in decode_sm80.cuh. The CTAs wait for each other, so
 * they must fit on the card at once.
 *
 * What the first units need is asked into the L2 before the kernel before this one is done: from a length and
 * a table that it may yet change, so that this is a hint and no more. Once it is done, the first copies are
 * asked for by the same length and table, while both are read again: where they were others, what came is
 * left, and asked for anew. */
#ifndef OPS_ATTENTION_DECODE_FEW_SM90_CUH
#define OPS_ATTENTION_DECODE_FEW_SM90_CUH

#include <cuda.h>

#include "ops/attention/ring_sm90.cuh"
#include "ops/cuda/hopper.cuh"

enum {
    FEW_WARPS = 8,
    FEW_MOST_BITS = 5, /* CTAs of a piece: a lane of a warp each */
    FEW_AHEAD = 4,     /* units of codes of a warp that are asked for early, at most */
    FEW_CLUSTER_BITS = 3,
    FEW_CLUSTERS = 96 /* CTAs of a launch whose clusters surely fit on the card at once */
};
static inline __host__ __device__ bool few_is_cluster(int bits, unsigned grid)
{
    return bits > 0 && bits <= FEW_CLUSTER_BITS && grid <= FEW_CLUSTERS;
}

template <int HEAD> struct few_shared {
    enum { PITCH = HEAD + 4 };
    float m[FEW_WARPS][DECODE_GROUP], l[FEW_WARPS][DECODE_GROUP];
    alignas(16) float o[FEW_WARPS][DECODE_GROUP * PITCH];
};

SOP_DEV void few_post(float4 *to, float4 x)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "f"(decode_word(x.x)), "f"(decode_word(x.y)), "f"(decode_word(x.z)),
                 "f"(decode_word(x.w))
                 : "memory");
}
SOP_DEV void few_post2(float2 *to, float x, float y)
{
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(decode_word(x)),
                 "f"(decode_word(y))
                 : "memory");
}
/* Six words, once they are there. */
SOP_DEV void few_look(float4 &y, const float4 *from, float2 &ml, const float2 *ml_from)
{
    float4 a;
    float2 b;
    do {
        asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(a.x), "=f"(a.y), "=f"(a.z), "=f"(a.w)
                     : "l"(from)
                     : "memory");
        asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
                     : "=f"(b.x), "=f"(b.y)
                     : "l"(ml_from)
                     : "memory");
    } while (!(__float_as_uint(a.x) && __float_as_uint(a.y) && __float_as_uint(a.z) &&
               __float_as_uint(a.w) && __float_as_uint(b.x) && __float_as_uint(b.y)));
    y = a, ml = b;
}
/* Which channel stands in a row of the products: decode_place() backwards. */
template <int HEAD, int BYTES> SOP_DEV int few_channel(int row)
{
    enum { WORDS = HEAD * BYTES / 32, BY4 = WORDS / 4 * 4, BY2 = WORDS / 2 * 2, EACH = 16 / BYTES };
    enum { FROM2 = BY4 * 4 / BYTES, FROM1 = BY2 * 4 / BYTES }; /* elements of a g */
    const int g = row % 8, e = row / 16 + row % 16 / 8 * (HEAD / 16);
    if (e < FROM2) return e / EACH * 8 * EACH + g * EACH + e % EACH;
    if (e < FROM1) return 8 * FROM2 + g * (EACH / 2) + e - FROM2;
    return 8 * FROM1 + g * (EACH / 4) + e - FROM1;
}
/* The row of a key and of a value into the L2: a lane's of one of the 16 keys of a unit. */
template <int HEAD, int BYTES>
SOP_DEV void few_ahead(const decode_args &p, int unit, int head, int keys)
{
    const int lane = threadIdx.x % 32, key = unit * DECODE_UNIT + lane % 16, i = key / p.page;
    if (key >= keys || i >= p.table_stride) return;
    const int page = ((const volatile int32_t *)p.a.table)[i], at = key - i * p.page;
    if (page < 0 || page >= p.pages) return;
    const uint8_t *row = lane < 16
                             ? (const uint8_t *)p.a.k_pool +
                                   (page * p.kp_page + at * p.kp_token + head * p.kp_head) * BYTES
                             : (const uint8_t *)p.a.v_pool +
                                   (page * p.vp_page + at * p.vp_token + head * p.vp_head) * BYTES;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "n"(HEAD * BYTES)
                 : "memory");
}

/* Where the CTAs of a cluster meet: what each sends of this CTA's share, [CTA][4 results]. */
template <int HEAD> struct few_meeting {
    float4 y[DECODE_GROUP * HEAD / 4];
    float2 ml[DECODE_GROUP * HEAD / 4]; /* maximum, sum */
    uint64_t in;                        /* barrier that counts the bytes */
    enum { EACH = sizeof(float4) + sizeof(float2) };
};
SOP_DEV uint32_t few_place(const void *p, int cta)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(smem_addr(p)), "r"(cta));
    return r;
}
template <int HEAD>
SOP_DEV void few_send(few_meeting<HEAD> &meeting, int cta, int at, float4 y, float most, float sum)
{
    const uint32_t in = few_place(&meeting.in, cta);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(few_place(&meeting.y[at], cta)),
                 "f"(y.x), "f"(y.y), "f"(y.z), "f"(y.w), "r"(in)
                 : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(few_place(&meeting.ml[at], cta)),
                 "f"(most), "f"(sum), "r"(in)
                 : "memory");
}
/* How the results of a piece are shared out, in fours: `mine` of them from rank * each on. */
struct few_share {
    int n, rank, first_head, heads, quads, each, mine;
};
template <int HEAD> SOP_DEV few_share few_share_of(const decode_args &p, int bits)
{
    enum { QUADS = HEAD / 4 };
    few_share x;
    x.n = 1 << bits, x.rank = blockIdx.x & (x.n - 1);
    const int piece = blockIdx.x >> bits, in_piece = piece % p.parts * DECODE_GROUP;
    x.first_head = piece / p.parts * p.group + in_piece;
    x.heads = min((int)DECODE_GROUP, p.group - in_piece);
    x.quads = x.heads * QUADS;
    x.each = (x.quads + x.n - 1) >> bits;
    x.mine = max(min(x.each, x.quads - x.rank * x.each), 0);
    return x;
}
/* Four results, their maximum and sum from all CTAs. */
template <int HEAD, typename QO, typename Channel>
SOP_DEV void few_end(const decode_args &p, const few_share &x, int quad, float4 y, float most,
                     float sum, Channel channel)
{
    enum { QUADS = HEAD / 4 };
    const int to = x.first_head + quad / QUADS;
    float base = p.cap > 0 ? most : most * (p.scale * 1.44269504f), keep = 1;
    if (p.a.sinks) { /* one key more, whose value is 0 */
        const float sink = p.a.sinks[to] * 1.44269504f, up = fmaxf(base, sink);
        keep = decode_exp2(base - up);
        sum = sum * keep + decode_exp2(sink - up);
        base = up;
    }
    const float over = sum == 0 ? 0 : __fdividef(keep, sum);
    const float z[4] = {y.x * over, y.y * over, y.z * over, y.w * over};
    QO *const out = (QO *)p.a.o + to * p.o_head;
#pragma unroll
    for (int c = 0; c < 4; c++) out[channel(quad % QUADS * 4 + c)] = sop_from_float<QO>(z[c]);
    if (p.a.lse && quad % QUADS == 0) p.a.lse[to] = (base + log2f(sum)) * 0.693147181f;
}

/* The warps of a CTA into one, and the CTAs of a piece: m, l: maxima and sums of the warps; part(w, h, row):
 * four rows of the result of warp w, head h; channel(row): what stands there; cluster: the CTAs are one. */
template <int HEAD, typename QO, typename Part, typename Channel>
SOP_DEV void few_merge(const decode_args &p, int bits, const few_share &x,
                       const float (&m)[FEW_WARPS][DECODE_GROUP],
                       const float (&l)[FEW_WARPS][DECODE_GROUP], float of_values,
                       few_meeting<HEAD> &meeting, bool cluster, Part part, Channel channel)
{
    enum { WARPS = FEW_WARPS, QUADS = HEAD / 4, MOST = DECODE_GROUP * QUADS };
    static_assert(MOST <= WARPS * 32, "four results a thread");
    const int tid = threadIdx.x, n = x.n;
    float4 *const mail = (float4 *)p.mail + ((int64_t)(blockIdx.x >> bits) * MOST << bits) * 2;
    float2 *const mail_ml = (float2 *)(mail + (MOST << bits));
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    if (tid < x.quads) { /* four rows side by side */
        const int h = tid / QUADS, row = tid % QUADS * 4;
        float top = -INFINITY, den = 0;
        float4 y = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, m[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float f = m[w][h] == -INFINITY ? 0 : decode_exp2((m[w][h] - top) * k2);
            const float4 z = part(w, h, row);
            den += l[w][h] * f;
            y.x += z.x * f, y.y += z.y * f, y.z += z.z * f, y.w += z.w * f;
        }
        y.x *= of_values, y.y *= of_values, y.z *= of_values, y.w *= of_values;
        const int to = tid / x.each, at = x.rank * x.each + tid - to * x.each;
        if (n == 1) {
            few_end<HEAD, QO>(p, x, tid, y, top, den, channel);
        } else if (cluster) {
            few_send<HEAD>(meeting, to, at, y, top, den);
        } else {
            few_post(mail + to * n * x.each + at, y);
            few_post2(mail_ml + to * n * x.each + at, top, den);
        }
    }
    if (n == 1) return;

    /* of this CTA's share: a thread has four results of one CTA, then of all of them */
    if (!cluster) {
        if (tid < n * x.each && tid % x.each < x.mine) {
            float4 *const y = mail + x.rank * n * x.each + tid;
            float2 *const ml = mail_ml + x.rank * n * x.each + tid;
            few_look(meeting.y[tid], y, meeting.ml[tid], ml);
            *y = make_float4(0, 0, 0, 0), *ml = make_float2(0, 0); /* as they were */
        }
        __syncthreads();
    }
    if (tid >= x.mine) return;
    if (cluster) mbar_wait(smem_addr(&meeting.in), 0);
    float most = -INFINITY, sum = 0;
    float4 y = {0, 0, 0, 0};
#pragma unroll 4
    for (int z = 0; z < n; z++) most = fmaxf(most, meeting.ml[z * x.each + tid].x);
#pragma unroll 4
    for (int z = 0; z < n; z++) {
        const float2 ml = meeting.ml[z * x.each + tid];
        const float4 of = meeting.y[z * x.each + tid];
        const float f = ml.x == -INFINITY ? 0 : decode_exp2((ml.x - most) * k2);
        sum += ml.y * f;
        y.x += of.x * f, y.y += of.y * f, y.z += of.z * f, y.w += of.w * f;
    }
    few_end<HEAD, QO>(p, x, x.rank * x.each + tid, y, most, sum, channel);
}

/* Codes, in registers as in decode_sm80.cuh. 1 << bits: CTAs of a piece. */
template <typename QO, int HEAD, typename C>
static __global__ __launch_bounds__(FEW_WARPS * 32, 1) void sop_decode_few_sm90(
    const __grid_constant__ decode_args p, const int bits)
{
    enum { WARPS = FEW_WARPS, UNIT = DECODE_UNIT };
    enum { PITCH = few_shared<HEAD>::PITCH, BYTES = sizeof(C) };
    typedef decode_regs<HEAD, BYTES> regs;
    __shared__ few_shared<HEAD> sh;
    __shared__ few_meeting<HEAD> meeting;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const few_share share = few_share_of<HEAD>(p, bits);
    const int head = (blockIdx.x >> bits) / p.parts, heads = share.heads, step = share.n * WARPS;
    const int first_head = share.first_head;
    int u = share.rank * WARPS + warp; /* of the units that the query sees */
    grid_go();
    {
        const int keys = *(const volatile int32_t *)p.a.kv_len;
        for (int i = 0; i < FEW_AHEAD && p.window == 0 && (u + i * step) * UNIT < keys; i++)
            few_ahead<HEAD, BYTES>(p, u + i * step, head, keys);
    }
    grid_wait();

    decode_where where[2] = {}; /* of the next unit, of the one after it */
    auto find = [&](int unit, int to) {
        if (unit * UNIT < p.table_stride * p.page)
            where[to] = decode_find(p, p.a.table, unit * UNIT, p.table_stride * p.page);
    };
    find(u, 0);
    find(u + step, 1);
    const int q0 = p.a.q_start[0], q1 = p.a.q_start[1], keys = p.a.kv_len[0];
    const bool live = sop_live_rows(p.a.live, 1) > 0 && q0 <= 0 && q1 > 0;
    uint32_t qf[HEAD / 8];
    float by[2];
    {
        const QO *q = (const QO *)p.a.q + (first_head + g) * p.q_head;
        const float power = decode_query_codes<HEAD>(qf, q, g < heads);
        for (int r = 0; r < 2; r++)
            by[r] = p.a.k_scales[head] * __shfl_sync(~0u, power, 4 * (2 * t + r));
    }
    const float of_values = p.a.v_scales[head];
    if (!live) return; /* all CTAs */
    const int pos = keys - q1;
    const int hi = !p.causal ? keys : max(pos + 1, 0);
    const int lo = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
    const int end = (hi + UNIT - 1) / UNIT;
    if (lo >= UNIT) {
        u += lo / UNIT;
        find(u, 0);
        find(u + step, 1);
    }
    regs next, cur;
    auto fetch = [&](int unit, const decode_where &from) {
        if (unit >= end) return;
        next.lo = lo - unit * UNIT;
        next.hi = min((int)UNIT, hi - unit * UNIT);
        decode_fetch_k<true, HEAD, BYTES>(p, next, from, head);
        decode_fetch_v<true, HEAD, BYTES>(p, next, from, head);
    };
    fetch(u, where[0]);
    float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    const float slope[2] = {0, 0};
#pragma unroll 2
    for (; u < end; u += step) {
        cur = next;
        fetch(u + step, where[1]);
        find(u + 2 * step, 1);
        decode_unit<__half, C, HEAD, false>(
            p, cur, slope, by, o, m, l, [](int) {}, qf, [] {});
    }

    /* the warps into one, by head and by row of the products */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
        if (g == 0) sh.m[warp][2 * t + r] = m[r], sh.l[warp][2 * t + r] = l[r];
        float *to = sh.o[warp] + (2 * t + r) * PITCH;
#pragma unroll
        for (int j = 0; j < HEAD / 16; j++) {
            to[j * 16 + g] = o[j][r];
            to[j * 16 + g + 8] = o[j][2 + r];
        }
    }
    __syncthreads();
    few_merge<HEAD, QO>(
        p, bits, share, sh.m, sh.l, of_values, meeting, false,
        [&](int w, int h, int row) { return *(const float4 *)(sh.o[w] + h * PITCH + row); },
        [](int row) { return few_channel<HEAD, BYTES>(row); });
}

/* A piece of 16 keys or values in shared memory, as the copy engine lays it down: parts of 64 channels (of 16
 * where a head is no multiple of 64), of which each key has a row; chunks of 16 bytes are exchanged, so that
 * eight rows lie in different banks. */
template <int OF_HEAD> struct few_ring {
    enum { HEAD = OF_HEAD, CHUNKS = HEAD % 64 ? 2 : 8, PARTS = HEAD / 8 / CHUNKS }; /* of a part */
    enum { ROW = CHUNKS * 16, PART = DECODE_UNIT * ROW, PIECE = PARTS * PART };
    enum { FIT = 12288 / PIECE, SLOTS = FIT < 6 ? FIT : 6 }; /* of a warp */
    /* Over half of what a multiprocessor has: two CTAs of a launch on one of them are twice as slow. */
    enum { SHARED = 117 << 10, ROOM = SHARED - 1024 };
    static_assert(FEW_WARPS * SLOTS * PIECE <= ROOM, "what is left by the alignment");
};
template <int HEAD> SOP_DEV uint32_t few_chunk(uint32_t slot, int row, int c)
{
    typedef few_ring<HEAD> R;
    const int turn = R::CHUNKS == 8 ? row % 8 : row % 8 / 4;
    return slot + c / R::CHUNKS * R::PART + row * R::ROW + ((c % R::CHUNKS) ^ turn) * 16;
}
/* The chunk 2 i further on, of one of the first two. */
template <int HEAD> SOP_DEV uint32_t few_further(uint32_t chunk, int i)
{
    typedef few_ring<HEAD> R;
    return (chunk ^ i * 2 % R::CHUNKS * 16) + i * 2 / R::CHUNKS * R::PART;
}
/* How the copies of a launch are made. A map: [pages][KV heads][parts][tokens][channels of a part]. */
struct few_copies {
    CUtensorMap k, v;
    uint64_t over_page; /* 2^63 / page, rounded up */
    int of_piece;       /* 1 where pages are multiples of 16, else one of 8 keys of each part */
};
SOP_DEV void few_hint(const CUtensorMap *map, int token, int part, int head, int page)
{
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(0),
        "r"(token), "r"(part), "r"(head), "r"(page)
        : "memory");
}
SOP_DEV void few_copy(uint32_t to, const CUtensorMap *map, int token, int part, int head, int page,
                      uint32_t full)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
        "l"(map), "r"(0), "r"(token), "r"(part), "r"(head), "r"(page), "r"(full), "l"(sop_once())
        : "memory");
}
/* What the kernel before may have written, read where it stands. */
SOP_DEV int few_read(const int32_t *p)
{
    int x;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

template <typename T, typename QO, int HEAD>
static __global__ __launch_bounds__(FEW_WARPS * 32, 1) void sop_decode_few_ring_sm90(
    const __grid_constant__ decode_args p, const int bits, const __grid_constant__ few_copies c)
{
    enum { WARPS = FEW_WARPS, UNIT = DECODE_UNIT, GROUP = DECODE_GROUP, Q_PITCH = HEAD + 8 };
    typedef few_ring<HEAD> ring;
    typedef ring_of<HEAD, 1, 1 << 14> rows; /* how a partial result lies in a piece */
    enum { SLOTS = ring::SLOTS };
    static_assert(GROUP * HEAD <= WARPS * 32 * 8, "a thread has 8 channels of q");
    static_assert(GROUP * rows::O_PITCH * 4 <= SLOTS * ring::PIECE, "a partial result in a ring");
    extern __shared__ __align__(1024) uint8_t few_memory[];
    __shared__ float sm_m[WARPS][GROUP], sm_l[WARPS][GROUP];
    __shared__ alignas(16) T sm_q[GROUP * Q_PITCH];
    __shared__ uint64_t full[WARPS * SLOTS];
    __shared__ few_meeting<HEAD> meeting;
    const few_share share = few_share_of<HEAD>(p, bits);
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4;
    const int head = (blockIdx.x >> bits) / p.parts, step = share.n * WARPS;
    const int at_once = share.rank * WARPS + warp;
    const bool cluster = few_is_cluster(bits, gridDim.x);
    uint8_t *const memory = few_memory + (-smem_addr(few_memory) & 1023);
    uint8_t *const own = memory + warp * (SLOTS * ring::PIECE);
    const uint32_t own_ring = smem_addr(own), own_full = smem_addr(full + warp * SLOTS);

    /* Lane 2 i + h has the page of half h of the warp's unit i, of 16. */
    auto page_of = [&](int key) {
        return (int)__umul64hi(2 * (uint64_t)(uint32_t)key, c.over_page);
    };
    auto entry_of = [&](int unit) { return page_of(unit * UNIT + lane % 2 * 8); };
    int keys = *(const volatile int32_t *)p.a.kv_len, tab = 0, tab_next = 0;
    const int entry = entry_of(at_once + lane / 2 * step);
    if (entry < p.table_stride) tab = ((const volatile int32_t *)p.a.table)[entry];
    if (cluster && tid == 0) {
        mbar_init(smem_addr(&meeting.in), 1);
        mbar_expect_tx(smem_addr(&meeting.in), share.mine * share.n * few_meeting<HEAD>::EACH);
    }
    if (lane < SLOTS) mbar_init(own_full + lane * 8, 1);
    fence_mbar_init();
    if (cluster) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    __syncwarp();

    /* Lane i has where piece i of the warp is, of unit i / 2: keys, or values. */
    const int first_key = (at_once + lane / 2 * step) * UNIT;
    const int first_page = __shfl_sync(~0u, tab, lane & ~1);
    const int first_token = first_key - page_of(first_key) * p.page;
    const CUtensorMap *const first_map = lane % 2 ? &c.v : &c.k;
    if (p.window == 0 && lane < 2 && first_key < keys) {
        for (int i = 0; i < c.of_piece; i += 2)
            few_hint(first_map, first_token, i / 2, head, first_page);
    }
    if (warp < share.heads && lane < HEAD * (int)sizeof(QO) / 128)
        ring_hint_line((const uint8_t *)((const QO *)p.a.q + (share.first_head + warp) * p.q_head) +
                       lane * 128);
    if (warp == 0 && lane == 0) ring_hint_line(p.a.q_start);
    bool guess = __all_sync(~0u, p.window == 0 && c.of_piece == 1 && keys > 0 &&
                                     keys <= p.table_stride * p.page);

    int lo, hi, end, u, ask_i, ask_slot;
    auto window = [&](int q1) {
        const int pos = keys - q1;
        hi = !p.causal ? keys : max(pos + 1, 0);
        lo = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
        end = (hi + UNIT - 1) / UNIT;
        u = lo / UNIT + at_once;
        ask_i = 0;
    };
    auto next_pages = [&](int unit) { /* 16 units from this one on */
                                      const int i = entry_of(unit + (16 + lane / 2) * step);
                                      tab_next = unit + 16 * step < end && i < p.table_stride
                                                     ? p.a.table[i]
                                                     : 0;
    };
    auto ask = [&] { /* the next piece: keys or values of unit ask_i / 2 */
                     const int i = ask_i / 2, unit = u + i * step, key = unit * UNIT, h = lane % 2;
                     if (unit >= end) return;
                     if (ask_i && ask_i % 32 == 0) tab = tab_next;
                     if (ask_i % 32 == 0) next_pages(unit);
                     const int page = __shfl_sync(~0u, tab, i % 16 * 2 + h);
                     const int token = key - page_of(key) * p.page;
                     if (lane == 0) mbar_expect_tx(own_full + ask_slot * 8, ring::PIECE);
                     if (lane < c.of_piece)
                         few_copy(own_ring + ask_slot * ring::PIECE + lane / 2 * ring::PART +
                                      h * 8 * ring::ROW,
                                  ask_i % 2 ? &c.v : &c.k,
                                  h && token + 8 == p.page ? 0 : token + 8 * h, lane / 2, head,
                                  page, own_full + ask_slot * 8);
                     ask_i++;
                     ask_slot = ask_slot == SLOTS - 1 ? 0 : ask_slot + 1;
    };
    window(1);
    if (cluster) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    grid_wait();

    const int q0 = few_read(p.a.q_start), q1 = few_read(p.a.q_start + 1);
    const int keys_now = few_read(p.a.kv_len), rows_now = p.a.live ? few_read(p.a.live) : 1;
    const int tab_now = p.window == 0 && entry < p.table_stride ? few_read(p.a.table + entry) : 0;
    const int q_head = tid / (HEAD / 8), q_at = tid % (HEAD / 8) * 8;
    uint4 q[sizeof(QO) / 2];
#pragma unroll
    for (int i = 0; i < (int)sizeof(QO) / 2; i++)
        q[i] = q_head < share.heads
                   ? ((const uint4 *)((const QO *)p.a.q + (share.first_head + q_head) * p.q_head +
                                      q_at))[i]
                   : make_uint4(0, 0, 0, 0);
    if (guess) {
        const bool asks = lane < SLOTS && first_key < hi;
        if (asks) {
            mbar_expect_tx(own_full + lane * 8, ring::PIECE);
            few_copy(own_ring + lane * ring::PIECE, first_map, first_token, 0, head, first_page,
                     own_full + lane * 8);
        }
        ask_i = __popc(__ballot_sync(~0u, asks));
        next_pages(u);
    }
    ask_slot = ask_i == SLOTS ? 0 : ask_i;
    if (q_head < GROUP) {
        uint4 x = q[0];
        if constexpr (sizeof(QO) == 4) {
            const float *f = (const float *)q;
            x = make_uint4(sop_pack<T>(f[0], f[1]), sop_pack<T>(f[2], f[3]),
                           sop_pack<T>(f[4], f[5]), sop_pack<T>(f[6], f[7]));
        }
        *(uint4 *)(sm_q + q_head * Q_PITCH + q_at) = x;
    }
    const bool live = rows_now > 0 && q0 <= 0 && q1 > 0;
    uint32_t parity = 0; /* of slot `slot` */
    int slot = 0;
    auto await = [&] {
        mbar_wait(own_full + slot * 8, parity);
        __syncwarp();
    };
    auto further = [&] {
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    };
    if (guess && __any_sync(~0u, !live || q1 != 1 || keys_now != keys || tab_now != tab)) {
        for (int i = ask_i; i > 0; i--, further()) await();
        guess = false;
    }
    if (!live) return; /* all CTAs */
    if (!guess) {
        keys = keys_now;
        tab = tab_now;
        window(q1);
        if (p.window > 0) {
            const int i = entry_of(u + lane / 2 * step);
            tab = i < p.table_stride ? p.a.table[i] : 0;
        }
        ask_slot = slot;
        for (int i = 0; i < SLOTS; i++) ask();
    }
    grid_go();
    __syncthreads();
    uint32_t qf[HEAD / 8];
    ring_query<T, HEAD>(qf, sm_q + g * Q_PITCH, true);
    float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll 1
    for (int unit = u; unit < end; unit += step) {
        float s[1][4] = {}, s1[4] = {};
        uint32_t b[1][2];
        const int from[1] = {lo - unit * UNIT}, to[1] = {hi - unit * UNIT};
        await();
        const uint32_t k_from =
            few_chunk<HEAD>(own_ring + slot * ring::PIECE, lane % 16, lane / 16);
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            uint32_t k[4];
            ring_rows(k, few_further<HEAD>(k_from, i));
            decode_mma(T(), i % 2 ? s1 : s[0], k[0], k[1], k[2], k[3], qf[2 * i], qf[2 * i + 1]);
        }
        for (int i = 0; i < 4; i++) s[0][i] += s1[i];
        __syncwarp();
        ask();
        further();
        ring_softmax<T, rows>(p, s, from, to, o, m, l, b);
        await();
        const uint32_t v_slot = own_ring + slot * ring::PIECE;
        if (from[0] > 0 || to[0] < UNIT) { /* 0 times what is there is to be 0 */
#pragma unroll 1
            for (int i = lane; i < UNIT * (HEAD / 8); i += 32) {
                const int row = i % UNIT;
                if (row < from[0] || row >= to[0])
                    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                                     few_chunk<HEAD>(v_slot, row, i / UNIT)),
                                 "r"(0)
                                 : "memory");
            }
            fence_async();
            __syncwarp();
        }
        const uint32_t v_from = few_chunk<HEAD>(v_slot, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            uint32_t v[4];
            ring_columns(v, few_further<HEAD>(v_from, i));
            decode_mma(T(), o[i], v[0], v[1], v[2], v[3], b[0][0], b[0][1]);
        }
        __syncwarp();
        ask();
        further();
    }

    /* the warps into one, by head; nothing is on its way any more */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
        if (g == 0) sm_m[warp][lane % 4 * 2 + r] = m[r], sm_l[warp][lane % 4 * 2 + r] = l[r];
    }
    ring_put<rows>(own_ring, o);
    __syncthreads();
    few_merge<HEAD, QO>(
        p, bits, share, sm_m, sm_l, 1, meeting, cluster,
        [&](int w, int h, int d) {
            return *(const float4 *)(memory + w * (SLOTS * ring::PIECE) +
                                     ring_place<rows>(h, d) * 4);
        },
        [](int d) { return d; });
}

#endif
