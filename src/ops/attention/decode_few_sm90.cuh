/* One query of one sequence, where every word from CTA to CTA counts. All CTAs share the keys of a piece of up
 * to 8 heads equally, their warps take units of 16 keys in turn, and the partial results meet in global
 * memory: each CTA is sent all parts of a share of the results, and ends it. There is no list of the work:
 * lengths, pages and the query are read side by side. Keys and values come through rings in shared memory;
 * codes, and those of the longest sequences, by registers as in decode_sm80.cuh.
 *
 * mail, of a piece: [4 results][CTA that sends] of two float4: the results, not yet divided by their sum;
 * maximum, sum, -, -. Words are as in decode_sm80.cuh. The CTAs wait for each other, so they must fit on the
 * card at once.
 *
 * What the first units need is asked into the L2 before the kernel before this one is done: from a length and
 * a table that it may yet change, so that this is a hint and no more. */
#ifndef OPS_ATTENTION_DECODE_FEW_SM90_CUH
#define OPS_ATTENTION_DECODE_FEW_SM90_CUH

#include "ops/attention/ring_sm90.cuh"

enum {
    FEW_WARPS = 8,
    FEW_MOST_BITS = 5, /* CTAs of a piece: a lane of a warp each */
    FEW_AHEAD = 4      /* units of a warp that are asked for early, at most */
};

template <int HEAD> struct few_shared {
    enum { PITCH = HEAD + 4 };
    float m[FEW_WARPS][DECODE_GROUP], l[FEW_WARPS][DECODE_GROUP];
    alignas(16) float o[FEW_WARPS][DECODE_GROUP * PITCH];
};

SOP_DEV void few_post(float4 *to, float4 x)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x),
                 "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}
SOP_DEV float4 few_look(const float4 *from)
{
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
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

/* The warps of a CTA into one, and the CTAs of a piece: m, l: maxima and sums of the warps; part(w, h, row):
 * four rows of the result of warp w, head h; channel(row): what stands there. */
template <int HEAD, typename QO, typename Part, typename Channel>
SOP_DEV void few_merge(const decode_args &p, int bits, const float (&m)[FEW_WARPS][DECODE_GROUP],
                       const float (&l)[FEW_WARPS][DECODE_GROUP], float of_values, Part part,
                       Channel channel)
{
    enum { WARPS = FEW_WARPS, GROUP = DECODE_GROUP, QUADS = HEAD / 4 };
    enum { TURNS = (GROUP * QUADS + WARPS * 32 - 1) / (WARPS * 32) };
    const int tid = threadIdx.x;
    const int n = 1 << bits, rank = blockIdx.x & (n - 1), piece = blockIdx.x >> bits;
    const int in_piece = piece % p.parts * GROUP;
    const int first_head = piece / p.parts * p.group + in_piece;
    const int quads = min((int)GROUP, p.group - in_piece) * QUADS;
    const int each = (quads + n - 1) >> bits; /* 4 results each; of a CTA */
    float4 *const mail = (float4 *)p.mail + ((int64_t)piece * GROUP * QUADS << bits) * 2;
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
#pragma unroll
    for (int i = 0; i < TURNS; i++) { /* four rows side by side */
        const int quad = i * WARPS * 32 + tid, h = quad / QUADS, row = quad % QUADS * 4;
        if (quad >= quads) break;
        float top = -INFINITY, den = 0;
        float4 y = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, m[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float f = m[w][h] == -INFINITY ? 0 : decode_exp2((m[w][h] - top) * k2);
            const float4 x = part(w, h, row);
            den += l[w][h] * f;
            y.x += x.x * f, y.y += x.y * f, y.z += x.z * f, y.w += x.w * f;
        }
        float4 *to = mail + (((int64_t)quad << bits) + rank) * 2;
        few_post(to, make_float4(decode_word(y.x * of_values), decode_word(y.y * of_values),
                                 decode_word(y.z * of_values), decode_word(y.w * of_values)));
        few_post(to + 1, make_float4(decode_word(top), decode_word(den), 0, 0));
    }

    /* of this CTA's share: lane i of n has what CTA i sent */
    float4 y[TURNS], ml[TURNS];
    bool all;
    const int mine = max(min(each, quads - rank * each), 0) << bits;
    float4 *const own = mail + ((int64_t)rank * each << bits) * 2;
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int at = i * WARPS * 32 + tid;
            y[i] = ml[i] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
            if (at < mine) y[i] = few_look(own + at * 2), ml[i] = few_look(own + at * 2 + 1);
        }
#pragma unroll
        for (int i = 0; i < TURNS; i++)
            all &= __float_as_uint(y[i].x) && __float_as_uint(y[i].y) && __float_as_uint(y[i].z) &&
                   __float_as_uint(y[i].w) && __float_as_uint(ml[i].x) && __float_as_uint(ml[i].y);
    } while (!all);
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int at = i * WARPS * 32 + tid, quad = rank * each + (at >> bits);
        if (at < mine) own[at * 2] = own[at * 2 + 1] = make_float4(0, 0, 0, 0); /* as they were */
        float most = ml[i].x;
        for (int z = 1; z < n; z *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, z));
        const float f = ml[i].x == -INFINITY ? 0 : decode_exp2((ml[i].x - most) * k2);
        float sum = ml[i].y * f;
        y[i].x *= f, y[i].y *= f, y[i].z *= f, y[i].w *= f;
        for (int z = 1; z < n; z *= 2) {
            sum += __shfl_xor_sync(~0u, sum, z);
            y[i].x += __shfl_xor_sync(~0u, y[i].x, z);
            y[i].y += __shfl_xor_sync(~0u, y[i].y, z);
            y[i].z += __shfl_xor_sync(~0u, y[i].z, z);
            y[i].w += __shfl_xor_sync(~0u, y[i].w, z);
        }
        if (at >= mine || (at & (n - 1)) >= 4) continue;
        const int to = first_head + quad / QUADS, from = at & (n - 1),
                  each_lane = n < 4 ? 4 >> bits : 1;
        float base = most * k2, keep = 1;
        if (p.a.sinks) { /* one key more, whose value is 0 */
            const float sink = p.a.sinks[to] * 1.44269504f, up = fmaxf(base, sink);
            keep = decode_exp2(base - up);
            sum = sum * keep + decode_exp2(sink - up);
            base = up;
        }
        const float over = sum == 0 ? 0 : __fdividef(keep, sum);
        const float z[4] = {y[i].x * over, y[i].y * over, y[i].z * over, y[i].w * over};
        QO *const out = (QO *)p.a.o + to * p.o_head;
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c / each_lane == from)
                out[channel(quad % QUADS * 4 + c)] = sop_from_float<QO>(z[c]);
        if (p.a.lse && quad % QUADS == 0 && from == 0)
            p.a.lse[to] = (base + log2f(sum)) * 0.693147181f;
    }
}

/* Units in registers, as in decode_sm80.cuh: for codes, and for the longest sequences. 1 << bits: CTAs of a piece. */
template <typename T, typename QO, int HEAD, typename C = T>
static __global__ __launch_bounds__(FEW_WARPS * 32, 1) void sop_decode_few_sm90(
    const __grid_constant__ decode_args p, const int bits)
{
    enum { WARPS = FEW_WARPS, UNIT = DECODE_UNIT, GROUP = DECODE_GROUP };
    enum { PITCH = few_shared<HEAD>::PITCH, CODES = sizeof(C) == 1 };
    typedef decode_regs<HEAD, sizeof(C)> regs;
    __shared__ few_shared<HEAD> sh;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int n = 1 << bits, rank = blockIdx.x & (n - 1), piece = blockIdx.x >> bits;
    const int head = piece / p.parts;
    const int in_piece = piece % p.parts * GROUP, first_head = head * p.group + in_piece;
    const int heads = min((int)GROUP, p.group - in_piece), step = n * WARPS;
    int u = rank * WARPS + warp; /* of the units that the query sees */
    grid_go();
    {
        const int keys = *(const volatile int32_t *)p.a.kv_len;
        for (int i = 0; i < FEW_AHEAD && p.window == 0 && (u + i * step) * UNIT < keys; i++)
            few_ahead<HEAD, sizeof(C)>(p, u + i * step, head, keys);
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
    float by[2] = {}, of_values = 1;
    {
        const QO *q = (const QO *)p.a.q + (first_head + g) * p.q_head;
        const bool mine = g < heads;
        if constexpr (CODES) {
            const float power = decode_query_codes<HEAD>(qf, q, mine);
            for (int r = 0; r < 2; r++)
                by[r] = p.a.k_scales[head] * __shfl_sync(~0u, power, 4 * (2 * t + r));
            of_values = p.a.v_scales[head];
        } else {
#pragma unroll
            for (int c = 0; c < HEAD / 32; c++)
                decode_query<T, 4>(qf + 4 * c, q + (t + 4 * c) * 8, mine);
            if (HEAD % 32) decode_query<T, 2>(qf + HEAD / 8 - 2, q + HEAD - 16 + 4 * t, mine);
        }
    }
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
        decode_fetch_k<true, HEAD, sizeof(C)>(p, next, from, head);
        decode_fetch_v<true, HEAD, sizeof(C)>(p, next, from, head);
    };
    fetch(u, where[0]);
    float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    const float slope[2] = {0, 0};
#pragma unroll 2
    for (; u < end; u += step) {
        cur = next;
        fetch(u + step, where[1]);
        find(u + 2 * step, 1);
        decode_unit<T, C, HEAD, false>(
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
        p, bits, sh.m, sh.l, of_values,
        [&](int w, int h, int row) { return *(const float4 *)(sh.o[w] + h * PITCH + row); },
        [](int row) { return few_channel<HEAD, sizeof(C)>(row); });
}

/* Bytes of a warp: one CTA fits on a multiprocessor, as two of a launch on one of them are twice as slow. */
template <int HEAD> struct few_ring : ring_of<HEAD, 1, 20480> {
};

template <typename T, typename QO, int HEAD>
static __global__ __launch_bounds__(FEW_WARPS * 32, 1) void sop_decode_few_ring_sm90(
    const __grid_constant__ decode_args p, const int bits)
{
    enum { WARPS = FEW_WARPS, UNIT = DECODE_UNIT, GROUP = DECODE_GROUP };
    typedef few_ring<HEAD> ring;
    static_assert(ring::PARTS == 1, "heads up to 128");
    extern __shared__ __align__(256) uint8_t ring_memory[];
    __shared__ float sm_m[WARPS][GROUP], sm_l[WARPS][GROUP];
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int n = 1 << bits, rank = blockIdx.x & (n - 1), piece = blockIdx.x >> bits;
    const int head = piece / p.parts;
    const int in_piece = piece % p.parts * GROUP, first_head = head * p.group + in_piece;
    const int heads = min((int)GROUP, p.group - in_piece), step = n * WARPS;
    const uint32_t own_ring = ring_address(ring_memory) + warp * (ring::SLOTS * ring::PIECE);
    grid_go();

    /* Lane 2 i + h has the page of half h of the warp's unit i, of 16. */
    const int at_once = rank * WARPS + warp;
    auto entry_of = [&](int unit) {
        const int key = unit * UNIT + lane % 2 * 8;
        return p.page_bits >= 0 ? key >> p.page_bits : key / p.page;
    };
    int tab = 0, tab_next = 0, keys = *(const volatile int32_t *)p.a.kv_len;
    {
        const int i = entry_of(at_once + lane / 2 * step);
        if (i < p.table_stride) tab = ((const volatile int32_t *)p.a.table)[i];
        for (int j = 0; j < FEW_AHEAD && p.window == 0; j++) {
            const int key = (at_once + j * step) * UNIT;
            ring_unit x;
            x.page[0] = __shfl_sync(~0u, tab, 2 * j), x.page[1] = __shfl_sync(~0u, tab, 2 * j + 1);
            x.at = p.page_bits >= 0 ? key & (p.page - 1) : key % p.page;
            x.what = key < keys ? ring_what(0, keys - key, head) : 0;
            if (x.what) ring_hint<ring>(p, x);
        }
        if (warp < heads && lane < HEAD * (int)sizeof(QO) / 128)
            ring_hint_line((const uint8_t *)((const QO *)p.a.q + (first_head + warp) * p.q_head) +
                           lane * 128);
        if (warp == 0 && lane == 0) ring_hint_line(p.a.q_start);
    }
    grid_wait();

    int lo, hi, end, u, ask_i;
    auto window = [&](int q1) {
        const int pos = keys - q1;
        hi = !p.causal ? keys : max(pos + 1, 0);
        lo = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
        end = (hi + UNIT - 1) / UNIT;
        u = lo / UNIT + at_once;
        ask_i = -1;
    };
    ring_unit now[1];
    auto ask = [&](auto sub, uint32_t slot) {
        if (decltype(sub)::value == 0) { /* a unit further */
            ask_i++;
            if (ask_i > 0 && ask_i % 16 == 0) tab = tab_next;
            const int unit = u + ask_i * step, key = unit * UNIT;
            for (int h = 0; h < 2; h++) now[0].page[h] = __shfl_sync(~0u, tab, ask_i % 16 * 2 + h);
            now[0].at = p.page_bits >= 0 ? key & (p.page - 1) : key % p.page;
            now[0].what = unit < end ? ring_what(lo - key, hi - key, head) : 0;
            if (ask_i % 16 == 0) {
                const int i = entry_of(unit + (16 + lane / 2) * step);
                tab_next = i < p.table_stride ? p.a.table[i] : 0;
            }
        }
        if (now[0].what) ring_ask<ring, decltype(sub)::value>(p, slot, now);
        ring_commit();
    };
    auto fill = [&] {
        ask(ring_sub<0>(), own_ring);
        ask(ring_sub<1>(), own_ring + ring::PIECE);
        if (ring::SLOTS > 2) ask(ring_sub<0>(), own_ring + 2 * ring::PIECE);
        if (ring::SLOTS > 3) ask(ring_sub<1>(), own_ring + 3 * ring::PIECE);
        if (ring::SLOTS > 4) ask(ring_sub<0>(), own_ring + 4 * ring::PIECE);
        if (ring::SLOTS > 5) ask(ring_sub<1>(), own_ring + 5 * ring::PIECE);
    };
    static_assert(ring::SLOTS >= 2 && ring::SLOTS <= 6, "as above");
    const int q0 = p.a.q_start[0], q1 = p.a.q_start[1];
    keys = p.a.kv_len[0];
    const bool live = sop_live_rows(p.a.live, 1) > 0 && q0 <= 0 && q1 > 0;
    const int first_unit = p.window > 0 ? max(keys - q1 - p.window + 1, 0) / UNIT : 0;
    {
        const int i = entry_of(first_unit + at_once + lane / 2 * step);
        tab = i < p.table_stride && i >= 0 ? p.a.table[i] : 0;
    }
    uint32_t qf[HEAD / 8];
    ring_query<T, HEAD>(qf, (const QO *)p.a.q + (first_head + g) * p.q_head, g < heads);
    if (!live) return; /* all CTAs */
    window(q1);
    fill();
    float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    int slot = 0;
    auto further = [&] { slot = slot == (ring::SLOTS - 1) * ring::PIECE ? 0 : slot + ring::PIECE; };
    for (int unit = u; unit < end; unit += step) {
        float s[1][4] = {}, s1[4] = {};
        uint32_t b[1][2];
        const int from[1] = {lo - unit * UNIT}, to[1] = {hi - unit * UNIT};
        ring_wait<ring::SLOTS - 1>();
        ring_keys<T, ring>(own_ring + slot, qf, s[0], s1);
        for (int i = 0; i < 4; i++) s[0][i] += s1[i];
        __syncwarp();
        ask(ring_sub<ring::SLOTS % 2>(), own_ring + slot);
        further();
        ring_softmax<T, ring>(p, s, from, to, o, m, l, b);
        ring_wait<ring::SLOTS - 1>();
        ring_values<T, ring>(own_ring + slot, b[0][0], b[0][1], o);
        __syncwarp();
        ask(ring_sub<(ring::SLOTS + 1) % 2>(), own_ring + slot);
        further();
    }

    /* the warps into one, by head; nothing is on its way any more */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
        if (g == 0) sm_m[warp][2 * t + r] = m[r], sm_l[warp][2 * t + r] = l[r];
    }
    ring_put<ring>(own_ring, o);
    __syncthreads();
    few_merge<HEAD, QO>(
        p, bits, sm_m, sm_l, 1,
        [&](int w, int h, int d) {
            return *(const float4 *)(ring_memory + w * (ring::SLOTS * ring::PIECE) +
                                     ring_place<ring>(h, d) * 4);
        },
        [](int d) { return d; });
}

#endif
