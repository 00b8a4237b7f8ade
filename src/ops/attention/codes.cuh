/* Codes of a paged cache as numbers of 16 bits. */
#ifndef OPS_ATTENTION_CODES_CUH
#define OPS_ATTENTION_CODES_CUH

#include "ops/attention/attention.cuh"

/* One pool: where it is, where its numbers go, [pages, g, page, n] dense; pieces of 8 codes. */
struct codes_pool {
    const uint8_t *from;
    void *to;
    const float *scales;
    int64_t of_page, of_token, of_head;
    int pieces; /* of a row: n / 8, at most as many as threads */
};

struct codes_args {
    sop_attention_args a;
    codes_pool pool[2];
    int64_t pages, table_stride, window;
    int seqs, page, heads;
};

/* Codes k and k + 1 of a word, k 0 or 2, as numbers. */
template <bool F8> SOP_DEV float2 codes_two(uint32_t word, int k)
{
    if constexpr (F8) {
#if __CUDA_ARCH__ >= 890
        uint32_t pair;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)(word >> 8 * k)));
        float2 x;
        sop_unpack<__half>(pair, x.x, x.y);
        return x;
#else
        return make_float2(sop_f8_to_float((uint8_t)(word >> 8 * k)),
                           sop_f8_to_float((uint8_t)(word >> (8 * k + 8))));
#endif
    } else { /* 2^23 + 128 + code has the code's bits, less its sign, at its end */
        const uint32_t from_zero = word ^ 0x80808080u;
        const float a = __uint_as_float(__byte_perm(from_zero, 0x4b000000u, 0x7440u + k));
        const float b = __uint_as_float(__byte_perm(from_zero, 0x4b000000u, 0x7441u + k));
        return make_float2(a - 8388736.0f, b - 8388736.0f);
    }
}

/* A head of a page. Threads side by side have the pieces of a row, so that what they write is one run; 4
 * rows are on their way before the first is turned into numbers. */
template <typename T, bool F8>
SOP_DEV void codes_head(const codes_args &p, const codes_pool &c, int64_t at, int head)
{
    enum { REP = 4 };
    const int piece = threadIdx.x % c.pieces, step = blockDim.x / c.pieces;
    const int rows = threadIdx.x < step * c.pieces ? p.page : 0;
    const uint8_t *from = c.from + at * c.of_page + head * c.of_head + 8 * piece;
    uint4 *to = (uint4 *)c.to + (at * p.heads + head) * p.page * c.pieces + piece;
    const float scale = c.scales[head];
    for (int first = threadIdx.x / c.pieces; first < rows; first += REP * step) {
        uint2 raw[REP];
#pragma unroll
        for (int r = 0; r < REP; r++) {
            const int row = first + r * step;
            if (row < rows) raw[r] = *(const uint2 *)(from + row * c.of_token);
        }
#pragma unroll
        for (int r = 0; r < REP; r++) {
            const int row = first + r * step;
            if (row >= rows) continue;
            uint32_t out[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 x = codes_two<F8>(k < 2 ? raw[r].x : raw[r].y, k % 2 * 2);
                out[k] = sop_pack<T>(scale * x.x, scale * x.y);
            }
            to[row * c.pieces] = make_uint4(out[0], out[1], out[2], out[3]);
        }
    }
}

/* The pages that the queries of the live sequences see, head by head, keys and values apart, dealt out to
 * the CTAs in turn. */
template <typename T, bool F8> static __global__ void sop_codes_read(const codes_args p)
{
    sop_begin();
    const int live = (int)sop_live_rows(p.a.live, p.seqs), each = 2 * p.heads;
    int64_t dealt = blockIdx.x; /* to this CTA: the number of its next one */
    for (int s = 0; s < live; s++) {
        const int64_t keys = p.a.kv_len[s], queries = p.a.q_start[s + 1] - p.a.q_start[s];
        const int64_t seen = p.window > 0 ? keys - queries - p.window + 1 : 0;
        const int64_t first = seen > 0 ? seen / p.page : 0, last = (keys + p.page - 1) / p.page;
        const int64_t n = queries > 0 && last > first ? (last - first) * each : 0;
        for (; dealt < n; dealt += gridDim.x) {
            const int64_t listed = dealt / each,
                          at = p.a.table[s * p.table_stride + first + listed];
            const int part = (int)(dealt - listed * each), is_value = part >= p.heads;
            if (at >= 0 && at < p.pages)
                codes_head<T, F8>(p, p.pool[is_value], at, part - is_value * p.heads);
        }
        dealt -= n;
    }
}

#endif
