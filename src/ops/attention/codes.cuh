/* Codes of a paged cache as numbers of 16 bits. */
#ifndef OPS_ATTENTION_CODES_CUH
#define OPS_ATTENTION_CODES_CUH

#include "ops/attention/attention.cuh"

/* One pool: where it is, where its numbers go, [pages, g, page, n] dense; pieces of 16 codes. */
struct codes_pool {
    const uint8_t *from;
    void *to;
    const float *scales;
    int64_t of_page, of_token, of_head;
    int pieces; /* of a row: n / 16 */
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

/* 4 pieces a thread are on their way before the first is turned into numbers. */
template <typename T, bool F8>
SOP_DEV void codes_page(const codes_args &p, const codes_pool &c, int64_t at)
{
    enum { REP = 4 };
    const int n = p.heads * p.page * c.pieces;
    for (int first = threadIdx.x; first < n; first += REP * blockDim.x) {
        uint4 raw[REP];
        float scale[REP];
#pragma unroll
        for (int r = 0; r < REP; r++) {
            const int i = first + r * blockDim.x;
            if (i >= n) continue;
            const int piece = i % c.pieces, row = i / c.pieces, head = row / p.page;
            raw[r] = *(const uint4 *)(c.from + at * c.of_page + head * c.of_head +
                                      (row % p.page) * c.of_token + 16 * piece);
            scale[r] = c.scales[head];
        }
#pragma unroll
        for (int r = 0; r < REP; r++) {
            const int i = first + r * blockDim.x;
            if (i >= n) continue;
            const uint32_t word[4] = {raw[r].x, raw[r].y, raw[r].z, raw[r].w};
            uint32_t out[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float2 x = codes_two<F8>(word[k / 2], k % 2 * 2);
                out[k] = sop_pack<T>(scale[r] * x.x, scale[r] * x.y);
            }
            uint4 *to = (uint4 *)c.to + (at * n + i) * 2;
            to[0] = make_uint4(out[0], out[1], out[2], out[3]);
            to[1] = make_uint4(out[4], out[5], out[6], out[7]);
        }
    }
}

/* The pages that the queries of the live sequences see, dealt out to the CTAs in turn. */
template <typename T, bool F8> static __global__ void sop_codes_read(const codes_args p)
{
    sop_begin();
    const int live = (int)sop_live_rows(p.a.live, p.seqs);
    int64_t dealt = blockIdx.x; /* to this CTA: the number of its next page */
    for (int s = 0; s < live; s++) {
        const int64_t keys = p.a.kv_len[s], queries = p.a.q_start[s + 1] - p.a.q_start[s];
        const int64_t seen = p.window > 0 ? keys - queries - p.window + 1 : 0;
        const int64_t first = seen > 0 ? seen / p.page : 0, last = (keys + p.page - 1) / p.page;
        const int64_t n = queries > 0 && last > first ? last - first : 0;
        for (; dealt < n; dealt += gridDim.x) {
            const int64_t at = p.a.table[s * p.table_stride + first + dealt];
            if (at < 0 || at >= p.pages) continue;
            codes_page<T, F8>(p, p.pool[0], at);
            codes_page<T, F8>(p, p.pool[1], at);
        }
        dealt -= n;
    }
}

#endif
