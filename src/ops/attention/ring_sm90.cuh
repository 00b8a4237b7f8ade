/* Keys and values through shared memory, for few queries: each warp has a ring of slots, each for a piece of
 * 16 keys, or 16 values, or of two such units, of up to 128 channels; heads over 128 are two pieces for the
 * keys, two for the values. cp.async brings them while the warp computes; the products are those of
 * decode_sm80.cuh, with the channels in their order.
 *
 *     K 0 | V 0 | K 1 | ...    a slot is asked to be filled anew as soon as its piece is used
 *
 * So that eight rows of a piece lie in different banks, chunks of 16 bytes are exchanged within rows of 128 or
 * 256 bytes, and other rows are 16 bytes longer. */
#ifndef OPS_ATTENTION_RING_SM90_CUH
#define OPS_ATTENTION_RING_SM90_CUH

#include "ops/attention/decode_sm80.cuh"

/* OF_BLOCKS: units that a warp takes at a time. OF_BYTES: of a warp, at most. */
template <int OF_HEAD, int OF_BLOCKS, int OF_BYTES> struct ring_of {
    enum { HEAD = OF_HEAD, BLOCKS = OF_BLOCKS, ROWS = BLOCKS * DECODE_UNIT };
    enum { PARTS = HEAD > 128 ? 2 : 1, WIDTH = HEAD / PARTS, CHUNKS = WIDTH / 8 };
    enum { TURNED = WIDTH % 64 == 0 }; /* chunk c of row r is at c ^ r % 8 */
    enum { PITCH = 2 * WIDTH + (TURNED ? 0 : 16), PIECE = ROWS * PITCH };
    enum { EACH = 2 * PARTS, SLOTS = OF_BYTES / PIECE }; /* of a unit; of a warp */
    enum { BYTES = DECODE_WARPS * SLOTS * PIECE };
    enum { O_PITCH = WIDTH + (TURNED ? 0 : 4) }; /* floats of a head of a partial result */
};
/* Where channel d of a head stands in a partial result. */
template <typename R> SOP_DEV int ring_place(int head, int d)
{
    return head * R::O_PITCH + (R::TURNED ? d ^ head / 2 * 8 : d);
}
/* Where a chunk of a row is; and the chunk 2 i further on, of an even one. */
template <typename R> SOP_DEV uint32_t ring_chunk(uint32_t slot, int row, int c)
{
    return slot + row * R::PITCH + (R::TURNED ? c ^ row % 8 : c) * 16;
}
template <typename R> SOP_DEV uint32_t ring_further(uint32_t chunk, int i)
{
    return R::TURNED ? chunk ^ i * 32 : chunk + i * 32;
}

/* The lane, anew each time: what follows from it is not to be kept in registers. */
SOP_DEV int ring_lane(void)
{
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    return lane;
}
SOP_DEV uint32_t ring_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
SOP_DEV void ring_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> SOP_DEV void ring_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    __syncwarp();
}

/* A piece into a slot: rows [lo, hi) of the 16, the others 0. halves: where rows 0 and 8 begin, in elements,
 * as is token, from row to row. */
template <typename R, bool FULL>
SOP_DEV void ring_copy(uint32_t slot, const uint8_t *pool, const int64_t (&halves)[2], int token,
                       int lo, int hi)
{
    enum { CHUNKS = R::CHUNKS, EVEN = 32 % CHUNKS == 0 };
    const int lane = ring_lane();
    if constexpr (FULL && EVEN) { /* whole rows at a time */
        enum { ROWS = 32 / CHUNKS };
        const int row = lane / CHUNKS, c = lane % CHUNKS;
        const int64_t own = ((int64_t)row * token + c * 8) * 2, step = (int64_t)token * ROWS * 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint8_t *from = pool + halves[h] * 2 + own;
#pragma unroll
            for (int i = 0; i < 8; i += ROWS, from += step)
                asm volatile(
                    "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(
                        ring_chunk<R>(slot, h * 8 + i + row, c)),
                    "l"(from), "l"(sop_once())
                    : "memory");
        }
    } else {
#pragma unroll
        for (int i = 0; i < CHUNKS / 2; i++) {
            const int x = i * 32 + lane, row = x / CHUNKS, c = x % CHUNKS;
            const int64_t at =
                (row < 8 ? halves[0] : halves[1]) + (int64_t)(row % 8) * token + c * 8;
            const bool live = FULL || (row >= lo && row < hi);
            asm volatile(
                "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(
                    ring_chunk<R>(slot, row, c)),
                "l"(live ? pool + at * 2 : pool), "r"(live ? 16 : 0), "l"(sop_once())
                : "memory");
        }
    }
}

/* A unit that is asked for: the pages of its halves, the first one's token of it, its keys that count and
 * the KV head. what: lo | hi << 8 | head << 16; 0: no unit. */
struct ring_unit {
    int page[2], at;
    uint32_t what;
};
SOP_DEV uint32_t ring_what(int lo, int hi, int head)
{
    return max(lo, 0) | min(hi, (int)DECODE_UNIT) << 8 | head << 16;
}

/* Piece SUB of BLOCKS units: keys first. */
template <typename R, int SUB>
SOP_DEV void ring_ask(const decode_args &p, uint32_t slot, const ring_unit (&units)[R::BLOCKS])
{
    enum { KEYS = SUB < R::PARTS, BEGIN = SUB % R::PARTS * R::WIDTH };
    const int64_t page = KEYS ? p.kp_page : p.vp_page, token = KEYS ? p.kp_token : p.vp_token;
    const int64_t of_head = KEYS ? p.kp_head : p.vp_head;
    const uint8_t *pool = (const uint8_t *)(KEYS ? p.a.k_pool : p.a.v_pool);
#pragma unroll
    for (int k = 0; k < R::BLOCKS; k++) {
        const ring_unit &unit = units[k];
        const uint32_t to = slot + k * DECODE_UNIT * R::PITCH;
        const int lo = unit.what & 255, hi = unit.what >> 8 & 255, head = unit.what >> 16;
        const decode_where from = {{unit.page[0], unit.page[1]},
                                   {unit.at, unit.at + 8 == p.page ? 0 : unit.at + 8}};
        int64_t halves[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            halves[h] = decode_half(from, h, head, page, token, of_head) + BEGIN;
        if (unit.what << 16 == DECODE_UNIT << 24)
            ring_copy<R, true>(to, pool, halves, (int)token, 0, DECODE_UNIT);
        else
            ring_copy<R, false>(to, pool, halves, (int)token, lo, hi);
    }
}

SOP_DEV void ring_hint_line(const void *row)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row) : "memory");
}
/* The rows of a unit into the L2: lane i has a key, lane 16 + i a value. Nothing is certain yet. */
template <typename R> SOP_DEV void ring_hint(const decode_args &p, const ring_unit &unit)
{
    const int lane = threadIdx.x % 32, row = lane % 16;
    const int lo = unit.what & 255, hi = unit.what >> 8 & 255, head = unit.what >> 16;
    const int page = row < 8 ? unit.page[0] : unit.page[1];
    const int at = row < 8 || unit.at + 8 < p.page ? unit.at + row : row - 8;
    const bool live = row >= lo && row < hi && page >= 0 && page < p.pages;
    const uint8_t *from = lane < 16
                              ? (const uint8_t *)p.a.k_pool +
                                    (page * p.kp_page + at * p.kp_token + head * p.kp_head) * 2
                              : (const uint8_t *)p.a.v_pool +
                                    (page * p.vp_page + at * p.vp_token + head * p.vp_head) * 2;
    if (!live) return;
#pragma unroll
    for (int i = 0; i < R::HEAD * 2; i += 128) ring_hint_line(from + i);
}

SOP_DEV void ring_rows(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}
SOP_DEV void ring_columns(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

SOP_DEV uint2 decode_again2(const uint2 *p)
{
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x.x), "=r"(x.y)
                 : "r"(ring_address(p))
                 : "memory");
    return x;
}
/* S^T += K Q^T of a piece of keys. */
template <typename T, typename R>
SOP_DEV void ring_keys(uint32_t slot, const uint32_t *qf, float (&s)[4], float (&s1)[4])
{
    const int lane = ring_lane();
    const uint32_t from = ring_chunk<R>(slot, lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < R::WIDTH / 16; i++) {
        uint32_t k[4];
        ring_rows(k, ring_further<R>(from, i));
        decode_mma(T(), i % 2 ? s1 : s, k[0], k[1], k[2], k[3], qf[2 * i], qf[2 * i + 1]);
    }
}
/* The same with queries in shared memory: they are not to be kept in registers. */
template <typename T, typename R>
SOP_DEV void ring_keys_shared(uint32_t slot, const uint4 *q, int part, float (&s)[4],
                              float (&s1)[4])
{
    const int lane = ring_lane();
    const uint32_t from = ring_chunk<R>(slot, lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < R::WIDTH / 16; i++) {
        const int of_all = part * (R::WIDTH / 16) + i;
        uint32_t k[4];
        ring_rows(k, ring_further<R>(from, i));
        const uint2 x = decode_again2((const uint2 *)(q + of_all / 2 * 32) + of_all % 2);
        decode_mma(T(), i % 2 ? s1 : s, k[0], k[1], k[2], k[3], x.x, x.y);
    }
}
/* O^T += V^T P^T of a piece of values. */
template <typename T, typename R>
SOP_DEV void ring_values(uint32_t slot, uint32_t b0, uint32_t b1, float (*o)[4])
{
    const int lane = ring_lane();
    const uint32_t from = ring_chunk<R>(slot, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < R::WIDTH / 16; i++) {
        uint32_t v[4];
        ring_columns(v, ring_further<R>(from, i));
        decode_mma(T(), o[i], v[0], v[1], v[2], v[3], b0, b1);
    }
}
/* Scores of BLOCKS units into weights, P^T in b; o, m, l as in decode_unit(). lo, hi: keys that count. */
template <typename T, typename R>
SOP_DEV void ring_softmax(const decode_args &p, float (&s)[R::BLOCKS][4],
                          const int (&lo)[R::BLOCKS], const int (&hi)[R::BLOCKS],
                          float (&o)[R::HEAD / 16][4], float (&m)[2], float (&l)[2],
                          uint32_t (&b)[R::BLOCKS][2])
{
    enum { BLOCKS = R::BLOCKS };
    const int lane = threadIdx.x % 32, g = lane / 4;
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    float alpha[2];
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS;
         i++) { /* head 2t + i % 2; key g + i % 4 / 2 * 8 of block i / 4 */
        float &x = s[i / 4][i % 4];
        const int key = g + i % 4 / 2 * 8;
        if (p.cap > 0) { /* cap tanh(scale z / cap) log2 e */
            const float in = 2 * 1.44269504f * p.scale / p.cap;
            const float out = p.cap * 1.44269504f;
            x = out - __fdividef(2 * out, decode_exp2(in * x) + 1);
        }
        if (!(key >= lo[i / 4] && key < hi[i / 4])) x = -INFINITY;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = m[r];
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) top = fmaxf(top, fmaxf(s[k][r], s[k][2 + r]));
        for (int z = 4; z < 32; z *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, z));
        alpha[r] = decode_exp2((m[r] - top) * k2);
        m[r] = top;
        l[r] *= alpha[r];
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) {
            s[k][r] = decode_exp2((s[k][r] - top) * k2);
            s[k][2 + r] = decode_exp2((s[k][2 + r] - top) * k2);
            l[r] += s[k][r] + s[k][2 + r];
        }
    }
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
#pragma unroll
        for (int j = 0; j < R::HEAD / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[j][i] *= alpha[i % 2];
    }
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        b[k][0] = decode_transpose(sop_pack<T>(s[k][0], s[k][1]));
        b[k][1] = decode_transpose(sop_pack<T>(s[k][2], s[k][3]));
    }
}
/* A piece of a partial result into a slot. */
template <typename R> SOP_DEV void ring_put(uint32_t slot, const float (*o)[4])
{
    const int lane = ring_lane(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < R::WIDTH / 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                             slot + ring_place<R>(2 * t + i % 2, j * 16 + i / 2 * 8 + g) * 4),
                         "f"(o[j][i])
                         : "memory");
}
/* Two channels of a query, in their order, as a register of a product has them. */
template <typename T, typename QO> SOP_DEV uint32_t ring_pair(const QO *q)
{
    if constexpr (sizeof(QO) == 4) {
        const float2 x = *(const float2 *)q;
        return sop_pack<T>(x.x, x.y);
    } else {
        return *(const uint32_t *)q;
    }
}
/* Of HEAD channels: both registers of each product; 0 when not live. */
template <typename T, int HEAD, typename QO>
SOP_DEV void ring_query(uint32_t (&qf)[HEAD / 8], const QO *q, bool live)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < HEAD / 8; i++) qf[i] = live ? ring_pair<T>(q + 8 * i + 2 * t) : 0;
}

/* A piece of a unit as a type. */
template <int SUB> struct ring_sub {
    enum { value = SUB };
};

#endif
