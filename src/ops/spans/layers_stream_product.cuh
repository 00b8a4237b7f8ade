/* The products of large layers: weights that come through the ring, and their sums. */
#ifndef OPS_SPANS_LAYERS_STREAM_PRODUCT_CUH
#define OPS_SPANS_LAYERS_STREAM_PRODUCT_CUH

#include "ops/spans/layers_stream_args.cuh"

/* Row `half` of a unit of a layer's q k v. */
template <typename T, int HEAD>
SOP_DEV const char *layer_row(const layer_args &p, int layer, int unit, int half)
{
    const layer_shape &shape = p.shape[0];
    int j = 0, row = unit / (HEAD / 2) * HEAD + unit % (HEAD / 2) + half * (HEAD / 2);
    for (; j < 2 && row >= shape.n[j]; j++) row -= shape.n[j];
    return (const char *)((const T *)p.own[layer].w[j] + (int64_t)row * shape.k);
}

/* All slots of all layers, in the order in which they are used. visit(rows, where, bytes, pitch): where(i)
 * tells where row i is, of so many bytes; pitch: from row to row in the slot. What it takes for a slot is all
 * that lies between one and the next. */
template <typename T, int HEAD, typename Visit>
SOP_DEV void layer_slots(const layer_args &p, const layer_plan &plan, Visit visit)
{
#pragma unroll 1
    for (int layer = 0; layer < p.layers; layer++)
#pragma unroll 1
        for (int product = 0; product < 4; product++) {
            const layer_part part = plan.part[product];
            const int all = part.steps * 64, piece = part.piece * 64, at = p.shape[product].at;
            const char *const first = (const char *)p.own[layer].w[at];
            const char *const second = (const char *)p.own[layer].w[at + (product == 2)];
            auto group = [&](int u, int s) {
                const int rows = layer_rows_of(part, u);
#pragma unroll 1
                for (int r = 0; r < rows; r += part.rows)
                    visit(
                        min(part.rows, rows - r),
                        [&](int i) {
                            const int row = r + i;
                            if (product == 0)
                                return layer_row<T, HEAD>(p, layer, u + row / 2, row % 2) + s;
                            if (product == 2)
                                return (row % 2 ? second : first) + (int64_t)(u + row / 2) * all +
                                       s;
                            return first + (int64_t)(u + row) * all + s;
                        },
                        min(piece, all - s), part.pitch);
            };
            if (product == 3) { /* piece by piece of k */
#pragma unroll 1
                for (int i = 0; i < part.pieces; i++)
#pragma unroll 1
                    for (int u = part.first; u < part.last; u += part.next)
                        group(u, layer_piece_at(part, i) * 64);
            } else {
#pragma unroll 1
                for (int u = part.first; u < part.last; u += part.next)
#pragma unroll 1
                    for (int s = 0; s < all; s += piece) group(u, s);
            }
        }
}

/* A thread that asks for weights, a slot in turn with the others. A copy takes it about 100 clocks, however
 * long it is, and several lanes of a warp one after the other. */
template <typename T, int HEAD>
SOP_DEV void layer_ask(const layer_args &p, const layer_plan &plan, uint32_t base)
{
    const int role = (int)threadIdx.x / 32 - LAYER_WARPS;
    const uint32_t bars = base + p.map.bars;
    layer_ring r = {0, 0}, came = r; /* behind r by the window */
    int sent = 0, others = role;     /* slots until its own */
    layer_slots<T, HEAD>(p, plan, [&](int rows, auto where, int bytes, int pitch) {
        /* of every slot: so none is ahead of another by so much that a slot has come twice */
        if (sent >= p.window) mbar_wait(bars + 8 * (LAYER_FULL + came.slot), came.phase);
        if (others == 0) {
            const uint32_t full = bars + 8 * (LAYER_FULL + r.slot);
            const uint32_t to = base + p.map.ring + r.slot * p.map.slot;
            mbar_wait(bars + 8 * (LAYER_EMPTY + r.slot), r.phase ^ 1);
            mbar_expect_tx(full, rows * bytes);
#pragma unroll 1
            for (int i = 0; i < rows; i++) bulk_load_once(to + i * pitch, where(i), bytes, full);
            others = LAYER_ASKERS;
        }
        if (sent >= p.window) layer_turn(came, p.ring);
        layer_turn(r, p.ring);
        sent++, others--;
    });
}

SOP_DEV uint4 layer_shared(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

/* Groups, of all products; and the one that this warp is still to add: its number, its first unit. */
struct layer_sums {
    int group, due, unit;
};

/* The warps' sums of a group that is this warp's, added. out(unit, token, sum of that unit's row, sum of its
 * other row). */
template <typename Out>
SOP_DEV void layer_add(const layer_args &p, const layer_part &part, uint8_t *shared, layer_sums &s,
                       int tokens, Out out)
{
    const int lane = layer_thread() % 32;
    const int slot = s.due % LAYER_SUMS, phase = s.due / LAYER_SUMS % 2;
    const uint32_t bars = smem_addr(shared) + p.map.bars;
    const float *all = (const float *)(shared + p.map.sums) + slot * LAYER_SHARE * 32;
    mbar_wait(bars + 8 * (LAYER_SUMS_FULL + slot), phase);
    static_assert(LAYER_TOKENS * LAYER_ROWS == 32, "a lane each");
    const int tok = lane / LAYER_ROWS, row = lane % LAYER_ROWS;
    float x = 0;
#pragma unroll
    for (int k = 0; k < LAYER_SHARE; k++) x += all[k * 32 + lane];
    const float y = __shfl_down_sync(~0u, x, 1);
    const bool single = part.kind == LAYER_SINGLE;
    if (tok < tokens && row < layer_rows_of(part, s.unit) && (single || row % 2 == 0))
        out(s.unit + (single ? row : row / 2), tok, x, y);
    __syncwarp();
    if (lane == 0) mbar_arrive(bars + 8 * (LAYER_SUMS_EMPTY + slot));
    s.due = -1;
}

/* This warp's sum of a piece of a group, d of row lane / 4 and token lane % 4, to that of the pieces before;
 * then for the warp that adds them, which may be this one, later. */
SOP_DEV void layer_leave(const layer_args &p, uint8_t *shared, layer_sums &s, uint32_t group,
                         int unit, int tokens, bool first, bool last, float d)
{
    const int tid = layer_thread(), share = tid / 32 % LAYER_SHARE, lane = tid % 32;
    const uint32_t slot = group % LAYER_SUMS, phase = group / LAYER_SUMS % 2;
    const uint32_t bars = smem_addr(shared) + p.map.bars + 8 * slot;
    float *to = (float *)(shared + p.map.sums) + (slot * LAYER_SHARE + share) * 32 +
                lane % 4 * LAYER_ROWS + lane / 4;
    if (first) mbar_wait(bars + 8 * LAYER_SUMS_EMPTY, phase ^ 1);
    if (lane % 4 < tokens) *to = (first ? 0 : *to) + d;
    if (!last) return;
    __syncwarp();
    if (lane == 0) mbar_arrive(bars + 8 * LAYER_SUMS_FULL);
    /* of its stream, in turn */
    if (group / LAYER_STREAMS % LAYER_SHARE == (uint32_t)share) s.due = (int)group, s.unit = unit;
}

/* 16 bytes of 8 rows of a weight times 16 bytes of x: the first 8 of a row are row g of an A, its last 8 row
 * g + 8; of a token's, column 2 tok and 2 tok + 1 of a B. So d[0] + d[3] is the sum of row g and token t, where
 * g = lane / 4 and t = lane % 4; d[1] and d[2], and the columns of tokens that are not there, are nobody's. */
template <typename T> SOP_DEV void layer_mma(T, float (&d)[4], const uint4 &w, const uint2 &x)
{
    decode_mma(T(), d, w.x, w.z, w.y, w.w, x.x, x.y);
}

/* N steps of a row at `from`, from the warp's step `at` on. What lies behind the last is read as well, and
 * then nobody's. Lanes of tokens that are not there read nothing: less for the shared memory to do. */
template <int N> SOP_DEV void layer_steps(uint4 (&to)[N], uint32_t from)
{
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = layer_shared(from + i * LAYER_NEXT);
}
template <int N> SOP_DEV void layer_steps_of_x(uint2 (&to)[N], uint32_t from, bool live)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\n"
                     "@p ld.shared.v2.u32 {%0, %1}, [%2];\n}"
                     : "=&r"(to[i].x), "=&r"(to[i].y)
                     : "r"(from + i * LAYER_NEXT), "r"((int)live)
                     : "memory");
}

/* N steps of this warp's, from step `at` on of n: their products to d. */
template <typename T, bool ALL, int N>
SOP_DEV void layer_products(float (&d)[4][4], const uint4 (&w)[N], const uint2 (&x)[N], int at,
                            int n)
{
#pragma unroll
    for (int k = 0; k < N; k++)
        if (ALL || (at + k) * LAYER_SHARE < n) layer_mma(T(), d[k % 4], w[k], x[k]);
}

/* A product of what comes through the ring: group by group, the tokens' rows are in shared memory; or deep:
 * piece by piece of k, all groups, and with each piece that of the tokens' rows. A warp goes through the
 * groups of its stream. */
template <typename T, typename Out>
SOP_DEV void layer_run(const layer_args &p, const layer_part &part, bool deep, uint8_t *shared,
                       layer_ring &r, layer_ring &xr, layer_sums &sums, int tokens, Out out)
{
    enum { EACH = LAYER_EACH };
    const int tid = layer_thread();
    const int warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const bool live = g / 2 < tokens;
    const int share = warp % LAYER_SHARE, stream = warp / LAYER_SHARE;
    const uint32_t base = smem_addr(shared), full = layer_bar(p, base, LAYER_FULL);
    const uint32_t rows_at =
        base + p.map.rows + share * 64 + t * 16 + g % 2 * 8 +
        (live ? g / 2 : 0) * (deep ? part.pitch : layer_pitch(part.steps * 32));
    /* this thread's row: in which slot of a group, and where there */
    const int own = g * part.rows_th >> 16;
    const uint32_t at =
        base + p.map.ring + (g - own * part.rows) * part.pitch + share * 64 + t * 16;
    const int first = (stream + sums.group) % LAYER_STREAMS; /* group */
    const int skip = part.slots * part.inner;                /* slots of the other stream's */
    static_assert(LAYER_STREAMS == 2, "every other group");
#pragma unroll 1
    for (int pass = 0; pass < part.passes; pass++) {
        layer_ring one = r;
        if (first) layer_turn(one, p.ring, skip);
        if (deep) mbar_wait(layer_bar(p, base, LAYER_X_FULL + xr.slot), xr.phase);
#pragma unroll 1
        for (int j = first; j < part.groups; j += LAYER_STREAMS) {
            const int mine = j + 1 == part.groups ? part.last_slots : part.slots;
            const int group = sums.group + j, unit = part.first + j * part.next;
            /* the others need not have been as fast */
            if (sums.due >= 0 && group - sums.due > LAYER_LATER)
                layer_add(p, part, shared, sums, tokens, out);
#pragma unroll 1
            for (int s = pass; s < pass + part.inner; s++) {
                const int from = layer_piece_at(part, s),
                          n = min(part.piece, part.steps - from) - share;
                const uint32_t xs = rows_at + (deep ? xr.slot * p.map.x_slot : from * 64);
                float d[4][4] = {};
                /* a lane waits for a slot */
                layer_ring wait = one;
                layer_turn(wait, p.ring, min(lane, mine - 1));
                const uint32_t bar = full + 8 * wait.slot;
                int row = one.slot + min(own, mine - 1);
                row -= row >= p.ring ? p.ring : 0;
                const uint32_t ws = at + row * p.map.slot;
                if (lane < mine) mbar_wait(bar, wait.phase);
                __syncwarp();
#pragma unroll 1
                for (int i = 0; i == 0 || i * LAYER_SHARE < n; i += 2 * EACH) {
                    const bool end = (i + 2 * EACH) * LAYER_SHARE >= n;
                    uint4 w[2][EACH];
                    uint2 x[EACH];
                    layer_steps(w[0], ws + i * LAYER_NEXT);
                    layer_steps_of_x(x, xs + i * LAYER_NEXT, live);
                    if ((i + EACH) * LAYER_SHARE < n) {
                        layer_steps(w[1], ws + (i + EACH) * LAYER_NEXT);
                        __syncwarp();
                        if (end && lane < mine) mbar_arrive(bar + 8 * (LAYER_EMPTY - LAYER_FULL));
                        layer_products<T, true>(d, w[0], x, i, n);
                        layer_steps_of_x(x, xs + (i + EACH) * LAYER_NEXT, live);
                        layer_products<T, false>(d, w[1], x, i + EACH, n);
                    } else {
                        __syncwarp();
                        if (lane < mine) mbar_arrive(bar + 8 * (LAYER_EMPTY - LAYER_FULL));
                        layer_products<T, false>(d, w[0], x, i, n);
                    }
                }
                layer_leave(p, shared, sums, group, unit, tokens, s == 0, s + 1 == part.pieces,
                            ((d[0][0] + d[0][3]) + (d[1][0] + d[1][3])) +
                                ((d[2][0] + d[2][3]) + (d[3][0] + d[3][3])));
                layer_turn(one, p.ring, mine);
            }
            layer_turn(one, p.ring, skip);
        }
        layer_turn(r, p.ring, part.pass_slots);
        r.phase ^= part.pass_turns;
        if (deep) {
            __syncwarp();
            if (lane == 0) mbar_arrive(layer_bar(p, base, LAYER_X_EMPTY + xr.slot));
            layer_turn(xr, p.map.x_slots);
        }
    }
    sums.group += part.groups;
    if (sums.due >= 0) layer_add(p, part, shared, sums, tokens, out);
}

/* The warp that brings the tokens' rows of the last product, a piece at a time. */
template <typename T>
SOP_DEV void layer_bring(const layer_args &p, const layer_plan &plan, uint32_t base)
{
    const int tokens = (int)sop_live_rows(p.live_tokens, p.tokens);
    const layer_part part = plan.part[3];
    layer_ring r = {0, 0};
#pragma unroll 1
    for (int layer = 0; layer < p.layers; layer++) {
        mbar_wait(layer_bar(p, base, LAYER_X_THERE), layer % 2);
#pragma unroll 1
        for (int i = 0; i < part.pieces; i++) {
            const int s = layer_piece_at(part, i);
            const int n = min(part.piece, part.steps - s) * 4; /* 16 bytes each */
            const uint32_t to = base + p.map.rows + r.slot * p.map.x_slot;
            mbar_wait(layer_bar(p, base, LAYER_X_EMPTY + r.slot), r.phase ^ 1);
            for (int tok = 0; tok < tokens; tok++) {
                const T *from = (const T *)p.act_out + tok * p.act_stride + s * 32;
                for (int i = threadIdx.x % 32; i < n; i += 32)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                     to + tok * part.pitch + i * 16),
                                 "l"(from + i * 8)
                                 : "memory");
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                             layer_bar(p, base, LAYER_X_FULL + r.slot))
                         : "memory");
            layer_turn(r, p.map.x_slots);
        }
    }
}

#endif
