/* Few queries, as in decode_sm80.cuh, whose list of the work and mail this kernel has; but keys and values come
 * through the rings of ring_sm90.cuh, ahead of the arithmetic without registers for them. The pages of up to
 * 16 units of a warp are looked up at once; those of the first are, as the list is, before the kernel before is
 * done. Once it is, the first pieces are asked for by what was read early, while that is read again: where it
 * was something else, what came is left, and all begins anew. The partial results of the warps stand beside the
 * rings, which go on filling under the merge, in two places in turn, so that warps meet once a segment. */
#ifndef OPS_ATTENTION_DECODE_RING_SM90_CUH
#define OPS_ATTENTION_DECODE_RING_SM90_CUH

#include "ops/attention/ring_sm90.cuh"

/* Of the units of a batch: their keys that count, their KV head. */
struct ring_batch {
    int lo, hi, head;
};
template <typename R> struct ring_shared {
    enum { HEAD = R::HEAD };
    enum { WIDE = HEAD > 128, MOST = DECODE_MOST_TOKENS };
    uint4 q[WIDE ? HEAD / 32 : 1][WIDE ? 32 : 1]; /* registers of products: [four][lane] */
    int warp_sum[DECODE_WARPS], prefix[MOST + 1], start_token;
    int seq_of[MOST], lo_of[MOST], hi_of[MOST];
    decode_segment seg[2][DECODE_WARPS]; /* asked for by a warp; that it is at */
    ring_unit now[HEAD > 128 ? DECODE_WARPS : 1][R::BLOCKS]; /* asked for */
    ring_batch batch[DECODE_WARPS];
    int u1[DECODE_WARPS]; /* where the CTA's units end */
    float m[2][DECODE_WARPS][DECODE_GROUP], l[2][DECODE_WARPS][DECODE_GROUP];
};

/* Heads up to 64 take two units at a time. More than two slots a warp only wait for memory. */
template <int HEAD> struct ring_decode : ring_of<HEAD, HEAD <= 64 ? 2 : 1, 8192> {
    typedef ring_decode ring;
    enum { PARTIAL = DECODE_GROUP * ring::O_PITCH * 4 }; /* bytes of a part of a partial result */
    enum { PARTIALS = DECODE_WARPS * ring::PARTS * PARTIAL, SHARED = ring::BYTES + 2 * PARTIALS };
};

/* A word that the kernel before may yet write. */
SOP_DEV int ring_peek(const int32_t *p)
{
    return *(const volatile int32_t *)p;
}
/* The words that the list is made of, as a thread reads them. */
struct ring_words {
    int live, q0, q1, keys, end; /* end: the first query that is of no sequence */
};
/* live: sequences, as they likely are. */
SOP_DEV ring_words ring_read(const decode_args &p, int live)
{
    const int guess = min((int)threadIdx.x, p.seqs - 1);
    ring_words x = {p.seqs, ring_peek(p.a.q_start + guess), ring_peek(p.a.q_start + guess + 1),
                    ring_peek(p.a.kv_len + guess), ring_peek(p.a.q_start + live)};
    if (p.a.live) x.live = min(max(ring_peek(p.a.live), 0), p.seqs);
    return x;
}
SOP_DEV bool ring_same(const ring_words &x, const ring_words &y)
{
    return x.live == y.live && x.q0 == y.q0 && x.q1 == y.q1 && x.keys == y.keys && x.end == y.end;
}
/* As decode_read() does, where each sequence has one query, its own; else not sure. */
SOP_DEV decode_query_of ring_query_of(const decode_args &p, const ring_words &x, bool &sure)
{
    const int i = threadIdx.x;
    if (i >= p.tokens) return {-1, 0, 0, 0};
    if (i >= x.live) {
        sure = x.end <= i;
        return {-1, 0, 0, 0};
    }
    sure = x.q0 == i && x.q1 == i + 1 && x.keys >= 0 && x.keys <= (int64_t)p.table_stride * p.page;
    return {i, x.q0, x.q1, x.keys};
}

template <typename T, int HEAD>
static __global__ __launch_bounds__(DECODE_WARPS * 32, 1) void sop_decode_ring_sm90(
    const __grid_constant__ decode_args p)
{
    enum { WARPS = DECODE_WARPS, UNIT = DECODE_UNIT, GROUP = DECODE_GROUP };
    typedef ring_decode<HEAD> ring;
    typedef T QO;
    enum { WIDE = ring_shared<ring>::WIDE };
    enum { SLOTS = ring::SLOTS, EACH = ring::EACH, PARTS = ring::PARTS, BLOCKS = ring::BLOCKS };
    extern __shared__ __align__(256) uint8_t ring_memory[];
    __shared__ ring_shared<ring> sh;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    const int n_heads = decode_heads(p);
    const uint32_t own_ring = ring_address(ring_memory) + warp * (SLOTS * ring::PIECE);

    /* What is asked for, units ahead of those that are computed, across segments: of a batch of 16, lane
     * 2 i + h has the page of half h of unit i; the next batch is looked up meanwhile. */
    decode_segment &ahead = sh.seg[0][warp], &seg = sh.seg[1][warp]; /* rarely read */
    int share = 0, &u1 = sh.u1[warp];
    bool more = false; /* a unit left for this CTA */
    auto to_segment = [&](decode_segment &s, int at) {
        decode_segment x = s;
        __syncwarp(); /* all lanes have read it */
        decode_segment_at(sh, n_heads, p.seg_cost, at, u1, &x);
        s = x;
        __syncwarp();
    };
    int64_t next_at = -1; /* where tab_next is, in the table */
    int tab = 0, tab_next = 0, key_now = 0, left = 0, batch = 0,
        u = 0; /* u: the first of the next batch */
    ring_batch &of = sh.batch[warp];
    auto look_up = [&] { /* the next batch's pages */
                         while (u >= ahead.end && ahead.last < u1) {
                             to_segment(ahead, ahead.last);
                             u = ahead.begin + warp;
                         }
                         tab_next = 0;
                         next_at = -1;
                         const int unit = u + lane / 2 * WARPS;
                         if (unit < ahead.end) {
                             const int key =
                                 (sh.lo_of[ahead.token] / UNIT + unit - ahead.first) * UNIT +
                                 lane % 2 * 8;
                             const int i = p.page_bits >= 0 ? key >> p.page_bits : key / p.page;
                             if (key < sh.hi_of[ahead.token])
                                 next_at = (int64_t)sh.seq_of[ahead.token] * p.table_stride + i;
                             if (next_at >= 0) tab_next = ring_peek(p.a.table + next_at);
                         }
    };
    auto begin = [&] { /* false: there is nothing to do */
                       share = decode_share(p, sh.prefix);
                       const int u0 = blockIdx.x * share;
                       u1 = min(sh.prefix[DECODE_MOST_TOKENS] * n_heads, u0 + share);
                       __syncwarp();
                       if (u0 >= u1) return false;
                       ahead.token = sh.start_token;
                       __syncwarp();
                       to_segment(ahead, u0);
                       const decode_segment x = ahead;
                       seg = x;
                       __syncwarp();
                       more = x.begin < x.end;
                       u = x.begin + warp;
                       left = 0;
                       look_up();
                       return true;
    };
    auto next_unit = [&](ring_unit &x, bool any_segment) {
        if (left == 0 && any_segment) {
            left = u < ahead.end ? min((ahead.end - u + WARPS - 1) / WARPS, 16) : 0;
            const int lo = sh.lo_of[ahead.token];
            __syncwarp(); /* all lanes have read it */
            of = {lo, sh.hi_of[ahead.token], ahead.head / p.parts};
            __syncwarp();
            key_now = (lo / UNIT + u - ahead.first) * UNIT;
            tab = tab_next;
            batch = 0;
            u += 16 * WARPS;
            if (left) look_up();
        }
        ring_unit y = {
            {__shfl_sync(~0u, tab, 2 * batch & 31), __shfl_sync(~0u, tab, (2 * batch + 1) & 31)},
            p.page_bits >= 0 ? key_now & (p.page - 1) : key_now % p.page,
            0};
        if (left) {
            y.what = ring_what(of.lo - key_now, of.hi - key_now, of.head);
            key_now += WARPS * UNIT;
            batch++, left--;
        }
        x = y; /* one write of each lane */
    };

    uint32_t qf[WIDE ? 4 : HEAD / 8];
    auto fetch_q = [&] {
        const int i = seg.head % p.parts * GROUP + g; /* of the group */
        const QO *q = (const QO *)p.a.q + seg.token * p.q_stride +
                      (seg.head / p.parts * p.group + i) * p.q_head;
        if constexpr (WIDE) { /* four registers of each lane's are a warp's work */
            if (warp < HEAD / 32) ring_query<T, 32>(qf, q + 32 * warp, i < p.group);
        } else {
            ring_query<T, HEAD>(qf, q, i < p.group);
        }
    };
    auto next_segment = [&](int at) { /* false: no unit left for this CTA */
                                      if (at >= u1) return false;
                                      to_segment(seg, at);
                                      return seg.begin < seg.end;
    };
    auto put_q = [&] {
        if (WIDE && warp < HEAD / 32) sh.q[warp][lane] = {qf[0], qf[1], qf[2], qf[3]};
    };

    ring_unit narrow_now[BLOCKS];
    ring_unit(&now)[BLOCKS] = PARTS == 2 ? sh.now[warp] : narrow_now;
    auto ask = [&](auto sub, int slot) {
        enum { SUB = decltype(sub)::value % EACH };
        if (SUB == 0) {
            if (PARTS == 2) __syncwarp();
            for (int k = 0; k < BLOCKS; k++) next_unit(now[k], k == 0);
            if (PARTS == 2) __syncwarp();
        }
        if (now[0].what) ring_ask<ring, SUB>(p, own_ring + slot, now);
        ring_commit();
    };

    /* The list is made while the kernel before ends, of words that it may yet change; and again, if it did. */
    grid_go();
    bool sure = true, any = false;
    ring_words was = ring_read(p, p.seqs);
    if (was.live != p.seqs) was.end = ring_peek(p.a.q_start + was.live);
    decode_query_of mine = ring_query_of(p, was, sure);
    bool early = __syncthreads_and(sure);
#pragma unroll 1
    for (;;) {
        if (!early) {
            grid_wait();
            mine = decode_read(p);
        }
        decode_list(p, sh, mine);
        any = begin();
        const int64_t tab_at = next_at;
        const int tab_was = tab_next;
        bool same = true; /* so far */
        if (early) {
            same = __all_sync(~0u, tab_at < 0 || (uint32_t)tab_was < (uint32_t)p.pages);
            grid_wait();
        }
        const ring_words is = ring_read(p, was.live);
        const int tab_is = tab_at >= 0 ? ring_peek(p.a.table + tab_at) : 0;
        if (any && same) {
            if (more) fetch_q(); /* before keys and values, behind which it would have to wait */
            ask(ring_sub<0>(), 0);
            ask(ring_sub<1>(), ring::PIECE);
            static_assert(SLOTS == 2, "each slot is asked for");
        }
        if (!early) break;
        early = __syncthreads_and(same && ring_same(was, is) && tab_was == tab_is);
        if (early) break;
        ring_wait<0>();
    }
    const int *lo_of = sh.lo_of, *hi_of = sh.hi_of;
    decode_unseeing<QO, HEAD>(p, sh);
    if (!any) return;

    int slot = 0, turn = 0; /* turn: of two places for the partial results of a segment */
    auto further = [&] { slot = slot == (SLOTS - 1) * ring::PIECE ? 0 : slot + ring::PIECE; };
    if (WIDE) {
        put_q();
        __syncthreads();
    }
    while (more) {
        float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
        decode_end end = decode_end_of(p, seg, share, warp);
        asm volatile("" : "+r"(end.first), "+r"(end.last), "+r"(end.head)); /* now, not then */
#pragma unroll 1
        for (int x = seg.begin + warp; x < seg.end; x += WARPS * BLOCKS) {
            float s[BLOCKS][4] = {}, s1[4];
            uint32_t b[BLOCKS][2];
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                ring_wait<SLOTS - 1>();
#pragma unroll
                for (int k = 0; k < BLOCKS; k++) {
                    const uint32_t from = own_ring + slot + k * UNIT * ring::PITCH;
                    if (part == 0)
                        for (int i = 0; i < 4; i++) s1[i] = 0;
                    if constexpr (WIDE)
                        ring_keys_shared<T, ring>(from, &sh.q[0][lane], part, s[k], s1);
                    else
                        ring_keys<T, ring>(from, qf, s[k], s1);
                    if (part == PARTS - 1)
                        for (int i = 0; i < 4; i++) s[k][i] += s1[i];
                }
                __syncwarp();
                if (part == 0)
                    ask(ring_sub<SLOTS>(), slot);
                else
                    ask(ring_sub<SLOTS + 1>(), slot);
                further();
            }
            const int lo = lo_of[seg.token], hi = hi_of[seg.token];
            int from[BLOCKS], to[BLOCKS];
#pragma unroll
            for (int k = 0; k < BLOCKS; k++) {
                const int key = (lo / UNIT + x + k * WARPS - seg.first) * UNIT;
                from[k] = lo - key;
                to[k] = x + k * WARPS < seg.end ? hi - key : 0; /* none of it is this CTA's */
            }
            ring_softmax<T, ring>(p, s, from, to, o, m, l, b);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                ring_wait<SLOTS - 1>();
#pragma unroll
                for (int k = 0; k < BLOCKS; k++)
                    ring_values<T, ring>(own_ring + slot + k * UNIT * ring::PITCH, b[k][0], b[k][1],
                                         o + part * (ring::WIDTH / 16));
                __syncwarp();
                if (part == 0)
                    ask(ring_sub<SLOTS + PARTS>(), slot);
                else
                    ask(ring_sub<SLOTS + PARTS + 1>(), slot);
                further();
            }
        }
        const int token = seg.token;
        const int warps = min((int)WARPS, seg.end - seg.begin); /* that had a unit */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
            if (g == 0) {
                sh.m[turn][warp][2 * t + r] = m[r];
                sh.l[turn][warp][2 * t + r] = l[r];
            }
        }
        uint8_t *const partials = ring_memory + ring::BYTES + turn * ring::PARTIALS;
        if (warp < warps)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                ring_put<ring>(ring_address(partials) + (warp * PARTS + part) * ring::PARTIAL,
                               o + part * (HEAD / 32));
        more = next_segment(seg.last);
        if (!WIDE && more) fetch_q(); /* they come in under the merge */
        __syncthreads();
        if (WIDE && more) { /* no warp needs the last ones */
            fetch_q();
            put_q();
        }
        enum { D = decode_own<HEAD>::D };
        float top = -INFINITY, den = 0, y[D] = {};
        float share_of[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            share_of[w] = w < warps ? sh.m[turn][w][warp] : -INFINITY;
            top = fmaxf(top, share_of[w]);
        }
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            share_of[w] = w < warps ? decode_exp2((share_of[w] - top) * k2) : 0;
            den += sh.l[turn][w][warp] * share_of[w];
        }
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const uint8_t *const from = partials + w * (PARTS * ring::PARTIAL);
            auto row = [&](int d) { /* where channel d is */
                                    return (const float *)(from + d / ring::WIDTH * ring::PARTIAL) +
                                           ring_place<ring>(warp, d % ring::WIDTH);
            };
            const float f = share_of[w];
            if constexpr (D % 4 == 0) {
#pragma unroll
                for (int i = 0; i < D; i += 4) {
                    float4 z = {0, 0, 0, 0};
                    if (w < warps) z = *(const float4 *)row(lane * D + i);
                    y[i] += f * z.x, y[i + 1] += f * z.y, y[i + 2] += f * z.z, y[i + 3] += f * z.w;
                }
            } else if constexpr (D == 2 && HEAD == 64) {
                float2 z = {0, 0};
                if (w < warps) z = *(const float2 *)row(lane * D);
                y[0] += f * z.x, y[1] += f * z.y;
            } else {
#pragma unroll
                for (int i = 0; i < D; i++)
                    if (w < warps && decode_own<HEAD>::live(i))
                        y[i] += f * *row(decode_own<HEAD>::channel(i));
            }
        }
        decode_finish<QO, HEAD, 8>(p, end, token, warp, lane, top, den, y);
        if (WIDE && more) __syncthreads(); /* all queries are there */
        turn ^= 1;
    }
    ring_wait<0>();
}

#endif
