/* ops/linear/decode.h: panels of any format to floats, for kernels of any width. It is included after
 * vf_ and vb_ (ops/simd), R, NV, INLINE, UNROLL, and where the floats go:
 *
 *     decoded        the type of the place; 32 k further it is DECODED_STEP on
 *     decode_put     quad q (k = 4 q to 4 q + 3) of the rows of vector v, a vector for each k
 *
 * Each value is the float nearest to the format's formula: d q is exact, so the sum alone rounds. */

/* d and m of group g: w = d q + m. */
struct scale {
    vf d, m;
};

INLINE struct scale scale_of(int32_t dtype, const uint8_t *w, int64_t g, int v)
{
    const vf d = vb_half(w + 2 * VF * v);
    switch (dtype) {
    case SOP_Q4_0: return (struct scale){d, vf_mul(d, vf_set(-8))};
    case SOP_Q5_0: return (struct scale){d, vf_mul(d, vf_set(-16))};
    case SOP_Q4_1:
    case SOP_Q5_1: return (struct scale){d, vb_half(w + 32 + 2 * VF * v)};
    default: {
        const vf m = vf_mul(vb_half(w + 32 + 2 * VF * v), vb_u8(w + 192 + 16 * g + VF * v));
        return (struct scale){vf_mul(d, vb_u8(w + 64 + 16 * g + VF * v)), vf_sub(vf_zero(), m)};
    }
    }
}

/* A quad of unsigned bytes. */
INLINE void decode_quad(int32_t dtype, decoded *out, int quad, int v, vb bytes, struct scale s)
{
    vf f[4];
    UNROLL for (int i = 0; i < 4; i++) f[i] = vf_fma(s.d, vb_byte(bytes, i), s.m);
    decode_put(dtype, out, quad, v, f);
}

INLINE void decode_nibbles(int32_t dtype, const uint8_t *w, const uint8_t *q, int64_t g,
                           decoded *out)
{
    const int five = dtype == SOP_Q5_0 || dtype == SOP_Q5_1 || dtype == SOP_Q5_K;
    for (int v = 0; v < NV; v++) {
        const struct scale s = scale_of(dtype, w, g, v);
        const vb fifth = vb_load(q + 4 * VF * v);
        UNROLL for (int i = 0; i < 4; i++)
        {
            const vb both = vb_load(q + (five ? 64 : 0) + 64 * i + 4 * VF * v);
            vb low = vb_low4(both), high = vb_high4(both);
            if (five) {
                low = vb_or(low, vb_bit4(fifth, i));
                high = vb_or(high, vb_bit4(fifth, i + 4));
            }
            decode_quad(dtype, out, i, v, low, s);
            decode_quad(dtype, out, i + 4, v, high, s);
        }
    }
}

INLINE void decode_q8_0(const uint8_t *w, decoded *out)
{
    for (int v = 0; v < NV; v++) {
        const vf d = vb_half(w + 2 * VF * v);
        UNROLL for (int i = 0; i < 8; i++)
        {
            const vb quad = vb_load(w + 32 + 64 * i + 4 * VF * v);
            vf f[4];
            UNROLL for (int c = 0; c < 4; c++) f[c] = vf_mul(d, vb_signed(quad, c));
            decode_put(SOP_Q8_0, out, i, v, f);
        }
    }
}

INLINE void decode_q6_k(const uint8_t *w, int64_t g, decoded *out)
{
    for (int c = 0; c < 2; c++)
        for (int v = 0; v < NV; v++) {
            const uint8_t *q = w + 288 + 192 * (2 * g + c) + 4 * VF * v;
            const vf d = vf_mul(vb_half(w + 2 * VF * v), vb_i8(w + 32 + 16 * (2 * g + c) + VF * v));
            const struct scale s = {d, vf_mul(d, vf_set(-32))};
            const vb a = vb_load(q), b = vb_load(q + 64), high = vb_load(q + 128);
            const vb bytes[4] = {
                vb_or(vb_low4(a), vb_bits45(high, 0)), vb_or(vb_high4(a), vb_bits45(high, 1)),
                vb_or(vb_low4(b), vb_bits45(high, 2)), vb_or(vb_high4(b), vb_bits45(high, 3))};
            UNROLL for (int i = 0; i < 4; i++)
                decode_quad(SOP_Q6_K, out, 4 * c + i, v, bytes[i], s);
        }
}

INLINE void decode_plain(int32_t dtype, const uint8_t *w, decoded *out)
{
    for (int v = 0; v < NV; v++) UNROLL for (int i = 0; i < 8; i++)
        {
            vf f[4];
            UNROLL for (int c = 0; c < 4; c++)
            {
                const int k = 4 * i + c;
                if (dtype == SOP_F32) f[c] = vf_load((const float *)w + R * k + VF * v);
                if (dtype == SOP_F16) f[c] = vb_half(w + 2 * R * k + 2 * VF * v);
                if (dtype == SOP_BF16) /* pairs (k, k + 2), (k + 1, k + 3) */
                    f[c] = vb_bf16(vb_load(w + 128 * i + 64 * (c % 2) + 4 * VF * v), c / 2);
            }
            decode_put(dtype, out, i, v, f);
        }
}

/* k0 to k0 + kn of a panel, k0 a multiple of 32. */
INLINE void decode_blocks(int32_t dtype, const uint8_t *w, int64_t k0, int64_t kn, decoded *out)
{
    const int64_t block = sop_panel_block(dtype);
    const size_t bytes = sop_panel_block_bytes(dtype);
    const size_t group = dtype == SOP_Q5_K ? 320 : 256;
    for (int64_t k = k0; k < k0 + kn; k += 32, out += DECODED_STEP) {
        const uint8_t *at = w + (size_t)(k / block) * bytes;
        const int64_t g = k % block / 32;
        for (int i = 0; i < 384; i += 64) /* 2 KiB ahead in the stream */
            _mm_prefetch((const char *)at + 2048 + 384 * g + i, _MM_HINT_T0);
        switch (dtype) {
        case SOP_F32:
        case SOP_F16:
        case SOP_BF16: decode_plain(dtype, at, out); break;
        case SOP_Q8_0: decode_q8_0(at, out); break;
        case SOP_Q6_K: decode_q6_k(at, g, out); break;
        case SOP_Q4_K:
        case SOP_Q5_K: decode_nibbles(dtype, at, at + 320 + group * g, g, out); break;
        default:
            decode_nibbles(dtype, at, at + (dtype == SOP_Q4_1 || dtype == SOP_Q5_1 ? 64 : 32), g,
                           out);
        }
    }
}

static void decode(int32_t dtype, const uint8_t *w, int64_t k0, int64_t kn, decoded *out)
{
    switch (dtype) { /* each with its own copy of decode_blocks */
#define ONE(type) \
    case type: decode_blocks(type, w, k0, kn, out); break;
        ONE(SOP_F32)
        ONE(SOP_F16)
        ONE(SOP_BF16)
        ONE(SOP_Q8_0)
        ONE(SOP_Q4_0)
        ONE(SOP_Q4_1)
        ONE(SOP_Q5_0)
        ONE(SOP_Q5_1)
        ONE(SOP_Q4_K)
        ONE(SOP_Q5_K)
        ONE(SOP_Q6_K)
#undef ONE
    default: break;
    }
}
