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

template <typename T, bool F8>
SOP_DEV void codes_page(const codes_args &p, const codes_pool &c, int64_t at)
{
    const int n = p.heads * p.page * c.pieces;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int piece = i % c.pieces, row = i / c.pieces, head = row / p.page;
        const uint4 raw = *(const uint4 *)(c.from + at * c.of_page + head * c.of_head +
                                           (row % p.page) * c.of_token + 16 * piece);
        const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
        const float scale = c.scales[head];
        uint32_t out[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t two = word[k / 2] >> 16 * (k % 2);
            const uint8_t lo = (uint8_t)two, hi = (uint8_t)(two >> 8);
            out[k] = F8 ? sop_pack<T>(scale * sop_f8_to_float(lo), scale * sop_f8_to_float(hi))
                        : sop_pack<T>(scale * (float)(int8_t)lo, scale * (float)(int8_t)hi);
        }
        uint4 *to = (uint4 *)c.to + ((at * n + i) * 2);
        to[0] = make_uint4(out[0], out[1], out[2], out[3]);
        to[1] = make_uint4(out[4], out[5], out[6], out[7]);
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
