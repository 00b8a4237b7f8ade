/* The attention of large layers: what goes into it, a KV head's queries of a token by some CTAs, and their merge. */
#ifndef OPS_SPANS_LAYERS_STREAM_ATTENTION_CUH
#define OPS_SPANS_LAYERS_STREAM_ATTENTION_CUH

#include "ops/spans/layers_stream_args.cuh"

/* A channel and its partner of a head, to those that attend; of a key or a value, into a page of the cache. */
template <typename T, int HEAD>
SOP_DEV void layer_put_qkv(const layer_args &p, int layer, const float2 *turns,
                           const layer_place &kept, int unit, int tok, float x, float y)
{
    const decode_args &a = p.attention;
    const int head = unit / (HEAD / 2), i = unit % (HEAD / 2), heads = p.heads + p.kv_heads;
    T u = sop_from_float<T>(x), v = sop_from_float<T>(y);
    if (head < heads) { /* both round to the cache's type before they turn, as single modules do */
        const float2 cs = turns[tok * (HEAD / 2) + i];
        const float from = sop_to_float(u), to = sop_to_float(v);
        u = sop_from_float<T>(from * cs.x - to * cs.y);
        v = sop_from_float<T>(to * cs.x + from * cs.y);
    }
    const T both[2] = {u, v};
    const int units = (heads + p.kv_heads) * (HEAD / 2);
    layer_post(p.mail.qkv + (int64_t)tok * units + unit, *(const uint32_t *)both, layer + 1);
    if (head < p.heads || kept.k < 0) return;
    T *to = head < heads
                ? (T *)((uint8_t *)p.own[layer].k_pool + kept.k) + (head - p.heads) * a.kp_head
                : (T *)((uint8_t *)p.own[layer].v_pool + kept.v) + (head - heads) * a.vp_head;
    to[i] = u;
    to[i + HEAD / 2] = v;
}

SOP_DEV layer_keys layer_keys_of(const decode_args &p, int t)
{
    layer_keys k = {};
    k.seq = sop_sequence_of(p.a.q_start, (int)sop_live_rows(p.a.live, p.seqs), t);
    if (k.seq >= 0) {
        const int q0 = p.a.q_start[k.seq], q1 = p.a.q_start[k.seq + 1], all = p.a.kv_len[k.seq];
        const int now = all - (q1 - q0), pos = t - q0 + now, hi = p.causal ? max(pos + 1, 0) : all;
        k.lo = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
        k.old = max(k.lo, min(now, hi));
        k.new_lo = q0 + max(k.lo - now, 0);
        k.new_hi = q0 + max(hi - now, 0);
        if (k.old > k.lo) k.units = decode_units(k.lo, k.old);
    }
    return k;
}

SOP_DEV layer_duty layer_duty_of(const layer_args &p, int tokens)
{
    const int cta = blockIdx.x, each = gridDim.x / (p.kv_heads * tokens), pair = cta / each;
    const int kv_head = pair < p.kv_heads * tokens ? pair / tokens : -1;
    return {kv_head, pair % tokens, pair * each, each};
}

/* Where 16 keys and values of a KV head lie: the first of each, and bytes from one to the next. */
struct layer_unit {
    const uint8_t *k, *v;
    int64_t k_next, v_next;
};

/* Of the keys what a thread has, and of the values, of those that are live: in shared memory or not. */
template <int HEAD> SOP_DEV void layer_rows_k(const layer_unit &from, decode_regs<HEAD> &to)
{
    enum { K = decode_regs<HEAD>::K };
    const int lane = layer_thread() % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = g + 8 * r;
        const uint8_t *at = from.k + row * from.k_next + decode_byte<K, 4>(0, t);
#pragma unroll
        for (int w = 0; w < K; w += 4) {
            uint4 y = make_uint4(0, 0, 0, 0);
            if (row >= to.lo && row < to.hi) y = *(const uint4 *)(at + w * 16);
            to.k[r][w] = y.x, to.k[r][w + 1] = y.y, to.k[r][w + 2] = y.z, to.k[r][w + 3] = y.w;
        }
    }
}
template <int HEAD> SOP_DEV void layer_rows_v(const layer_unit &from, decode_regs<HEAD> &to)
{
    enum { V = decode_regs<HEAD>::V };
    const int lane = layer_thread() % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int row = 2 * t + r % 2 + r / 2 * 8;
        const uint8_t *at = from.v + row * from.v_next + decode_byte<V, 8>(0, g);
#pragma unroll
        for (int w = 0; w < V; w += 4) {
            uint4 y = make_uint4(0, 0, 0, 0);
            if (row >= to.lo && row < to.hi) y = *(const uint4 *)(at + w * 32);
            to.v[r][w] = y.x, to.v[r][w + 1] = y.y, to.v[r][w + 2] = y.z, to.v[r][w + 3] = y.w;
        }
    }
}

/* Where a token's own keys and values go. */
SOP_DEV layer_place layer_kept_at(const layer_args &p, int tok)
{
    const decode_args &a = p.attention;
    const int slot = p.slots[tok], page = slot / a.page, at = slot - page * a.page;
    if (slot < 0 || page >= p.pages) return {-1, -1};
    return {2 * (page * a.kp_page + at * a.kp_token), 2 * (page * a.vp_page + at * a.vp_token)};
}

/* Where a unit of a token's keys lies. Pages have a multiple of 16 tokens. */
SOP_DEV layer_place layer_place_of(const decode_args &a, const layer_keys &k, int kv_head, int unit)
{
    const int key = (k.lo / DECODE_UNIT + unit) * DECODE_UNIT, i = key / a.page,
              at = key - i * a.page;
    const int64_t page = a.a.table[(int64_t)k.seq * a.table_stride + i];
    return {2 * (page * a.kp_page + at * a.kp_token + kv_head * a.kp_head),
            2 * (page * a.vp_page + at * a.vp_token + kv_head * a.vp_head)};
}

/* CTAs that a token's keys are shared out to, a unit each in turn. */
SOP_DEV int layer_ctas(const layer_duty &duty, const layer_keys &k)
{
    return min(duty.each,
               (k.units + LAYER_UNITS) / LAYER_UNITS); /* one more: the step's own keys */
}

/* Where each warp's first unit lies, which is the same in all layers. */
SOP_DEV void layer_places(const layer_args &p, const layer_plan &plan, layer_place *to)
{
    const int warp = layer_thread() / 32;
    const layer_duty duty = plan.duty;
    if (duty.kv_head < 0) return;
    const layer_keys k = plan.keys[duty.tok];
    const int unit = (int)blockIdx.x - duty.first + warp * layer_ctas(duty, k);
    if (unit < k.units) to[warp] = layer_place_of(p.attention, k, duty.kv_head, unit);
    __syncwarp();
}

/* Where a CTA's part of a head is sent, of the channels that are merged together: their sums, then the
 * maximum of the scores and the sum of the weights. */
template <int HEAD> SOP_DEV float *layer_part_at(const layer_args &p, int cta, int head, int slice)
{
    enum { SLICES = HEAD / LAYER_SLICE };
    return p.mail.parts + ((cta * DECODE_GROUP + head) * SLICES + slice) * (LAYER_SLICE + 4);
}

/* A slice of a head's channels, merged from the parts of CTAs first to first + ctas - 1. A warp, a lane a
 * channel. */
template <typename T, int HEAD>
SOP_DEV void layer_merge(const layer_args &p, int first, int ctas, int tok, int kv_head, int head,
                         int slice, float k2, int stamp)
{
    enum { AT_ONCE = 9, SIZE = DECODE_GROUP * (HEAD / LAYER_SLICE) * (LAYER_SLICE + 4) };
    const int lane = layer_thread() % 32, of = kv_head * p.attention.group + head;
    float *const parts = layer_part_at<HEAD>(p, first, head, slice);
    float top = -1e30f, den = 0, y = 0;
#pragma unroll 1
    for (int from = 0; from < ctas; from += AT_ONCE) {
        float x[AT_ONCE], ml[AT_ONCE][2];
        auto at = [&](int j) { /* behind the last: the last again, which then counts nothing */
                               return parts + min(from + j, ctas - 1) * SIZE;
        };
        bool all;
        do {
            all = true;
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                x[j] = decode_look(at(j) + lane);
                decode_look2(at(j) + LAYER_SLICE, ml[j][0], ml[j][1]);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                all &=
                    __float_as_uint(x[j]) && __float_as_uint(ml[j][0]) && __float_as_uint(ml[j][1]);
        } while (!__all_sync(~0u, all));
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const float up = fmaxf(top, ml[j][0]), f0 = decode_exp2((top - up) * k2);
            const float f1 = from + j < ctas ? decode_exp2((ml[j][0] - up) * k2) : 0;
            den = den * f0 + ml[j][1] * f1;
            y = y * f0 + x[j] * f1;
            top = up;
            at(j)[lane] = 0; /* as it was */
            if (lane < 2) at(j)[LAYER_SLICE + lane] = 0;
        }
    }
    if (p.attention.a.sinks) { /* one key more, whose value is 0 */
        const float sink = p.attention.a.sinks[of] * 1.44269504f, up = fmaxf(top * k2, sink);
        const float keep = decode_exp2(top * k2 - up);
        den = den * keep + decode_exp2(sink - up);
        y *= keep;
    }
    y = den > 0 ? y / den : 0;
    const float other = __shfl_down_sync(~0u, y, 1);
    const int at = (tok * p.heads + of) * HEAD + slice * LAYER_SLICE + lane;
    if (lane % 2 == 0) layer_post(p.mail.att + at / 2, sop_pack<T>(y, other), stamp);
}

/* A layer's attention. CTAs come in runs, one for a KV head's queries of a token. */
template <typename T, int HEAD>
SOP_DEV void layer_attend(const layer_args &p, const layer_plan &plan, int layer, uint8_t *shared,
                          int tokens)
{
    enum { WIDE = layer_scores<HEAD>::WIDE, HALF = HEAD / 2, SLICES = HEAD / LAYER_SLICE };
    const decode_args &a = p.attention;
    layer_scores<HEAD> &sh = *(layer_scores<HEAD> *)(shared + p.map.rows);
    const int tid = layer_thread(), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const layer_duty duty = plan.duty;
    if (duty.kv_head < 0) return;
    const int kv_head = duty.kv_head, tok = duty.tok, each = duty.each;
    const int cta = layer_anew(blockIdx.x), rank = cta - duty.first;
    const layer_keys k = plan.keys[tok];
    const int all = k.units + 1; /* with that of the step's own keys */
    const int ctas = layer_ctas(duty, k);
    const int mine = rank < ctas ? (all - rank + ctas - 1) / ctas : 0;
    const float k2 = a.cap > 0 ? 1 : a.scale * 1.44269504f;
    if (mine) {
        decode_regs<HEAD> cur;
        layer_unit from = {};
        auto place = [&](int unit, const layer_place &at) {
            const int key = (k.lo / DECODE_UNIT + unit) * DECODE_UNIT;
            from = {(const uint8_t *)p.own[layer].k_pool + at.k,
                    (const uint8_t *)p.own[layer].v_pool + at.v, 2 * a.kp_token, 2 * a.vp_token};
            cur.lo = k.lo - key, cur.hi = k.old - key;
        };
        /* the first unit of the cache is asked for before the queries are there */
        cur.lo = cur.hi = cur.at = 0;
        if (rank + warp * ctas < k.units) place(rank + warp * ctas, plan.place[warp]);
        layer_rows_k(from, cur);
        layer_rows_v(from, cur);
        /* queries, keys and values of the step, two pairs of channels a word and a thread */
        enum { AT_ONCE = 2 };
        static_assert((DECODE_GROUP + 2 * LAYER_TOKENS) * HALF / 2 <= AT_ONCE * LAYER_THREADS,
                      "all");
        const int words = (a.group + 2 * tokens) * (HALF / 2);
        auto word = [&](int i) { return min(tid + i * LAYER_THREADS, words - 1); };
        uint2 w[AT_ONCE];
        layer_collect(w, p.mail.qkv, layer + 1, [&](int i) {
            const int row = word(i) / (HALF / 2), j = row - a.group;
            const int of = j < 0 ? tok : j < tokens ? j : j - tokens; /* the token */
            const int head = j < 0        ? kv_head * a.group + row
                             : j < tokens ? p.heads + kv_head
                                          : p.heads + p.kv_heads + kv_head;
            return (of * (p.heads + 2 * p.kv_heads) + head) * HALF + word(i) % (HALF / 2) * 2;
        });
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = word(i) / (HALF / 2), c = word(i) % (HALF / 2) * 2, j = row - a.group;
            uint16_t *to = j < 0 ? sh.q[row] : j < tokens ? sh.k[j] : sh.v[j - tokens];
            *(uint32_t *)(to + c) = __byte_perm(w[i].x, w[i].y, 0x5410);
            *(uint32_t *)(to + c + HALF) = __byte_perm(w[i].x, w[i].y, 0x7632);
        }
        layer_sync();
        uint32_t qf[HEAD / 8];
#pragma unroll
        for (int i = 0; i < HEAD / 8; i++)
            qf[i] =
                g < a.group
                    ? *(const uint32_t *)((const uint8_t *)sh.q[g] + decode_byte<HEAD / 8, 4>(i, t))
                    : 0;
        float o[HEAD / 16][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {0, 0};
        const float none[2] = {};
#pragma unroll 1
        for (int j = warp; j < mine; j += LAYER_WARPS) {
            const int unit = rank + j * ctas;
            if (unit == k.units) {
                from = {(const uint8_t *)sh.k, (const uint8_t *)sh.v, sizeof sh.k[0],
                        sizeof sh.v[0]};
                cur.lo = k.new_lo, cur.hi = k.new_hi;
            } else if (j != warp) {
                place(unit, layer_place_of(a, k, kv_head, unit));
            }
            if (unit == k.units || j != warp) {
                layer_rows_k(from, cur);
                layer_rows_v(from, cur);
            }
            decode_unit<T, T, HEAD, false>(
                a, cur, none, none, o, m, l, [](int) {}, qf, [] {});
        }
        /* those of the warps into one, a head a warp */
        const int warps = min((int)LAYER_WARPS, mine);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
            if (g == 0) sh.m[warp][2 * t + r] = m[r], sh.l[warp][2 * t + r] = l[r];
        }
        float top = -1e30f, den = 0, y[SLICES] = {};
#pragma unroll 1
        for (int from_warp = 0; from_warp < warps; from_warp += LAYER_AT_ONCE) {
            if (from_warp) layer_sync();
            if (warp / LAYER_AT_ONCE * LAYER_AT_ONCE == from_warp && warp < warps)
#pragma unroll
                for (int r = 0; r < 4; r++) /* head 2t + r % 2; see decode_place() */
#pragma unroll
                    for (int i = 0; i < HEAD / 16; i += 4) {
                        const int e = i + r / 2 * (HEAD / 16);
                        *(float4 *)(sh.o[warp - from_warp] + (2 * t + r % 2) * WIDE + e / 8 * 64 +
                                    g * 8 + e % 8) =
                            make_float4(o[i][r], o[i + 1][r], o[i + 2][r], o[i + 3][r]);
                    }
            layer_sync();
            if (from_warp == 0)
                for (int w = 0; w < warps; w++) top = fmaxf(top, sh.m[w][warp]);
#pragma unroll 1
            for (int w = from_warp; w < min(warps, from_warp + (int)LAYER_AT_ONCE); w++) {
                const float f = decode_exp2((sh.m[w][warp] - top) * k2);
                den += sh.l[w][warp] * f;
#pragma unroll
                for (int i = 0; i < SLICES; i++)
                    y[i] += sh.o[w - from_warp][warp * WIDE + i * LAYER_SLICE + lane] * f;
            }
        }
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            if (warp >= a.group) break;
            float *to = layer_part_at<HEAD>(p, cta, warp, i);
            decode_post(to + lane, y[i]);
            if (lane == 0) decode_post2(to + LAYER_SLICE, top, den);
        }
    }
#pragma unroll 1
    for (int s = rank + each * warp; s < a.group * SLICES; s += each * LAYER_WARPS)
        layer_merge<T, HEAD>(p, duty.first, ctas, tok, kv_head, s / SLICES, s % SLICES, k2,
                             layer + 1);
    layer_sync(); /* what it had in shared memory is free */
}

#endif
