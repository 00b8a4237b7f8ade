/* sop/desc.h: the concrete problem of each operator, as plain data.
 *
 * Extents are upper bounds: how many tokens or sequences there are in a step is read from the `live`
 * operand on the device. No struct has padding bytes, so equal bytes mean the same problem. Strides
 * count elements (blocks in block formats); 0 is filled in by sop_desc_complete(). Letters: b
 * sequences, t tokens, d model, h query heads, g KV heads, k head size, f FFN, v vocabulary, p page. */
#ifndef SOP_DESC_H
#define SOP_DESC_H

#include "sop/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

/** embed: y[t,:] = scale * table[ids[t],:]; also the gather of rows of an activation.
 *
 * ids    [tokens] i32; an id outside [0, rows) gives a row of zeros
 * table  [rows, dim] w; y [tokens, dim] */
typedef struct sop_embed_desc {
    int64_t tokens, rows, dim;
    int64_t table_stride, y_stride;
    float scale; /* 0 means 1 */
    int32_t w_dtype, y_dtype, reserved;
} sop_embed_desc;
enum { SOP_EMBED_IDS, SOP_EMBED_TABLE, SOP_EMBED_LIVE, SOP_EMBED_Y, SOP_EMBED_ROLES };

/** rmsnorm: s = x + r (s = x without r); y = (offset + w) * s / sqrt(mean over dim of s^2 + eps), for
 * each of `heads` groups of dim in a token.
 *
 * x [tokens, heads, dim]; r, r_out the same shape with r's strides, r_out receives s and may be r
 * w [dim] f32; y [tokens, heads, dim], may be x
 * Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4. */
typedef struct sop_rmsnorm_desc {
    int64_t tokens, heads, dim;
    int64_t x_stride, x_head, r_stride, r_head, y_stride, y_head;
    float eps, offset;
    int32_t x_dtype, r_dtype, y_dtype, reserved;
} sop_rmsnorm_desc;
enum {
    SOP_RMSNORM_X,
    SOP_RMSNORM_R,
    SOP_RMSNORM_W,
    SOP_RMSNORM_LIVE,
    SOP_RMSNORM_R_OUT,
    SOP_RMSNORM_Y,
    SOP_RMSNORM_ROLES
};

/** layernorm: s = x + r (s = x without r); y = w * (s - m) / sqrt(v + eps) + b, m the mean of s over
 * dim, v the mean of (s - m)^2.
 *
 * x, y [tokens, dim], y may be x; w, b [dim] f32, each optional: 1 and 0 without
 * r, r_out [tokens, dim] with r's strides: both or neither; r_out receives s and may be r
 * Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, equation 4. */
typedef struct sop_layernorm_desc {
    int64_t tokens, dim;
    int64_t x_stride, r_stride, y_stride;
    float eps; /* 0 means 1e-5 */
    int32_t x_dtype, r_dtype, y_dtype;
} sop_layernorm_desc;
enum {
    SOP_LAYERNORM_X,
    SOP_LAYERNORM_R,
    SOP_LAYERNORM_W,
    SOP_LAYERNORM_B,
    SOP_LAYERNORM_LIVE,
    SOP_LAYERNORM_R_OUT,
    SOP_LAYERNORM_Y,
    SOP_LAYERNORM_ROLES
};

/** linear: y[t, at_j + i] = bias_j[i] + x_scale[t] * sum over k of x[t,k] * w_j[i,k], for up to three
 * weights that share x; at_j = n_0 + ... + n_(j-1).
 *
 * x [tokens, k]; w_j [n_j, k] in a format, and in one of the layouts that layout_j has bits for. Scales
 * and zero points of a quantised format lie in its blocks (sop/types.h)
 * x_scale [tokens] f32, positive and finite, for x of f8 alone (quantize makes both); 1 without. Codes are
 * taken as they are; fast numerics allow sums as tensor cores make them, off by 2^-10 of the sum of |x w|
 * bias_j [n_j] f32, optional; y [tokens, n_0 + n_1 + n_2] */
typedef struct sop_linear_desc {
    int64_t tokens, k;
    int64_t n[3]; /* 0: no such weight */
    int64_t x_stride, y_stride, w_stride[3];
    int32_t w_dtype[3];
    uint32_t layouts[3]; /* SOP_LAYOUT_ bits; 0 is filled to PLAIN */
    int32_t x_dtype, y_dtype;
    int32_t numerics; /* sop_numerics */
    int32_t bias;     /* bit j: bias_j is there */
} sop_linear_desc;
enum {
    SOP_LINEAR_X,
    SOP_LINEAR_W0,
    SOP_LINEAR_W1,
    SOP_LINEAR_W2,
    SOP_LINEAR_B0,
    SOP_LINEAR_B1,
    SOP_LINEAR_B2,
    SOP_LINEAR_LIVE,
    SOP_LINEAR_Y,
    SOP_LINEAR_X_SCALE,
    SOP_LINEAR_ROLES
};

/** quantize: scale[t] = the largest |x[t,:]| / 448, at least 2^-126; codes[t,i] = x[t,i] / scale[t] as e4m3,
 * rounded to the nearest. The activations of a product of fp8 with fp8: linear's x and x_scale.
 *
 * x [tokens, dim] f32, f16 or bf16; codes [tokens, dim] f8; scale [tokens] f32
 * What is not finite becomes NaN and does not count for the scale. A code may be the neighbour where x /
 * scale is so near to the middle of two that roundings of float32 cross it
 * Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022. */
typedef struct sop_quantize_desc {
    int64_t tokens, dim;
    int64_t x_stride, codes_stride;
    int32_t x_dtype, reserved;
} sop_quantize_desc;
enum {
    SOP_QUANTIZE_X,
    SOP_QUANTIZE_LIVE,
    SOP_QUANTIZE_CODES,
    SOP_QUANTIZE_SCALE,
    SOP_QUANTIZE_ROLES
};

/** rope: rotate the first `rot` of each head's channels by angle pos[t] * freqs[i].
 *
 *     half:        (x[i], x[i + rot/2])    interleaved: (x[2i], x[2i + 1])
 *
 * x, y [tokens, heads, k], y may be x; pos [tokens] i32; freqs [rot/2] f32 (sop_rope_freqs)
 * Both cos and sin are multiplied by mscale. The phase is pos * freqs in float32.
 * Source: Su et al., "RoFormer", 2021, equation 34. */
typedef struct sop_rope_desc {
    int64_t tokens, heads, k, rot;
    int64_t x_stride, x_head, y_stride, y_head;
    float mscale; /* 0 means 1 */
    int32_t interleaved;
    int32_t x_dtype, y_dtype;
} sop_rope_desc;
enum { SOP_ROPE_X, SOP_ROPE_POS, SOP_ROPE_FREQS, SOP_ROPE_LIVE, SOP_ROPE_Y, SOP_ROPE_ROLES };

/** How a model stretches its positions. */
typedef enum sop_rope_scaling_kind {
    SOP_ROPE_PLAIN,
    SOP_ROPE_LINEAR,
    SOP_ROPE_YARN,
    SOP_ROPE_LLAMA3
} sop_rope_scaling_kind;
typedef struct sop_rope_scaling {
    sop_rope_scaling_kind kind;
    double base, factor;
    double original;               /* context the model was trained with */
    double low_freq, high_freq;    /* Llama 3; 0 means 1 and 4 */
    double beta_fast, beta_slow;   /* YaRN; 0 means 32 and 1 */
    double attention_factor;       /* YaRN; 0 means computed */
    double mscale, mscale_all_dim; /* YaRN; 0 means absent */
} sop_rope_scaling;
/** freqs [rot/2] and mscale of a scaling. SOP_E_ARG with the number that is wrong.
 * Source: Peng et al., "YaRN", 2023, section 3; Llama 3.1's own reference code for LLAMA3. */
SOP_API SOP_MUST_USE sop_status sop_rope_freqs(const sop_rope_scaling *s, int64_t rot, float *freqs,
                                               float *mscale);

/** kv_append: put each token's keys and values into its slot of the pools.
 *
 * k [tokens, heads, k], v [tokens, heads, v]; slots [tokens] i32: page * page_size + place in the
 * page, or negative: write nothing. Pools [pages, page, heads, k|v] by the strides.
 * Pools of i8 or f8 hold codes: k / k_scales[head] and v / v_scales[head] [heads] f32, above 0, rounded to
 * the nearest, at most 127 or 448 in size. */
typedef struct sop_kv_append_desc {
    int64_t tokens, heads, k, v;
    int64_t pages, page;
    int64_t k_stride, k_head, v_stride, v_head;                     /* of the new rows */
    int64_t kp_page, kp_token, kp_head, vp_page, vp_token, vp_head; /* of the pools */
    int32_t x_dtype, kv_dtype;
} sop_kv_append_desc;
enum {
    SOP_KV_APPEND_K,
    SOP_KV_APPEND_V,
    SOP_KV_APPEND_SLOTS,
    SOP_KV_APPEND_K_SCALES,
    SOP_KV_APPEND_V_SCALES,
    SOP_KV_APPEND_LIVE,
    SOP_KV_APPEND_K_POOL,
    SOP_KV_APPEND_V_POOL,
    SOP_KV_APPEND_ROLES
};

/** attention: for sequence s with queries q_start[s] .. q_start[s+1] - 1 (L of them) and S = kv_len[s]
 * keys (the new ones included), query i, at position P = i + S - L, sees the keys j with
 *
 *     j <= P (causal, bottom-right), and j > P - window (window > 0), and mask[i,h,j] other than 0
 *     (boolean) or -inf (a number)
 *
 *     z = scale * q . k;  z = cap * tanh(z / cap) (cap > 0)
 *     z = z - slopes[h] * |P - j| (alibi);  z = z + mask[i,h,j] (a mask of numbers)
 *     w = exp(z) / (sum of exp(z) + exp(sinks[h]));  o = sum of w * v;  without sinks that term is 0
 *     lse = log(sum of exp(z) + exp(sinks[h]))
 *
 * A query that sees nothing gets o = 0 and lse = -inf, or sinks[h]. Query head i reads KV head
 * i / (h / g), and head i / (h / mask_heads) of the mask. Cross attention is causal = 0: L and S have
 * nothing to do with each other then. With a sink, one part alone of a merge may count it.
 *
 * Pools of i8 or f8 hold codes: a key is k_scales[g] times its codes, a value v_scales[g] times its.
 *
 * q, o [tokens, h, k|v]; pools [pages, page, g, k|v]; table [seqs, table_stride] i32 of pages
 * q_start [seqs + 1] i32; kv_len [seqs] i32; k_scales, v_scales [g] f32, with pools of codes; slopes,
 * sinks [h] f32, each with its flag; mask [tokens, mask_heads, max_kv], u8 or a number below +inf; lse
 * [tokens, h] f32, natural log, optional. Keys and values that the mask hides are finite: they may be
 * read.
 * Source: Press et al., "Train Short, Test Long", 2022, section 3, for alibi; Xiao et al., "Efficient
 * Streaming Language Models with Attention Sinks", 2024, section 3, for a learned sink. */
typedef struct sop_attention_desc {
    int64_t tokens, seqs, max_kv; /* bounds; max_kv of one sequence */
    int64_t heads, kv_heads, k, v;
    int64_t pages, page, table_stride;
    int64_t q_stride, q_head, o_stride, o_head;
    int64_t kp_page, kp_token, kp_head, vp_page, vp_token, vp_head;
    int64_t window;                             /* keys seen, the query's own included; 0: all */
    int64_t mask_heads, mask_stride, mask_head; /* a divisor of heads; 0: no mask */
    float scale, cap;                           /* scale 0 means 1 / sqrt(k); cap 0: none */
    int32_t q_dtype, kv_dtype, o_dtype, mask_dtype; /* mask: U8 or a number; F32 */
    int32_t causal, alibi, sinks;
    uint32_t paths; /* SOP_ROW_FLASH | _TILED | _RING: the candidates; 0 is filled to all */
    int32_t numerics, reserved;
} sop_attention_desc;
enum {
    SOP_ATTENTION_Q,
    SOP_ATTENTION_K_POOL,
    SOP_ATTENTION_V_POOL,
    SOP_ATTENTION_TABLE,
    SOP_ATTENTION_Q_START,
    SOP_ATTENTION_KV_LEN,
    SOP_ATTENTION_K_SCALES,
    SOP_ATTENTION_V_SCALES,
    SOP_ATTENTION_SLOPES,
    SOP_ATTENTION_SINKS,
    SOP_ATTENTION_MASK,
    SOP_ATTENTION_LIVE, /* live sequences */
    SOP_ATTENTION_O,
    SOP_ATTENTION_LSE,
    SOP_ATTENTION_ROLES
};

/** merge: one attention result from partial ones over disjoint keys,
 *
 *     y = sum over p of w_p x_p / sum of w_p,  w_p = exp(lse_p - m),  m = max lse_p
 *     lse = m + log(sum of w_p)
 *
 * x [tokens, parts, heads, v] by its strides; lse of the parts [tokens, parts, heads] f32, natural log
 * y [tokens, heads, v]; lse_out [tokens, heads] f32, optional
 * A part with lse -inf saw no key: its x is not read. Without any other, y = 0 and lse = -inf. */
typedef struct sop_merge_desc {
    int64_t tokens, parts, heads, v;
    int64_t x_stride, x_part, x_head; /* between tokens, parts, heads; 0: a part after another */
    int64_t lse_stride, lse_part;     /* its heads lie side by side */
    int64_t y_stride, y_head;
    int32_t x_dtype, y_dtype;
} sop_merge_desc;
enum {
    SOP_MERGE_X,
    SOP_MERGE_LSE,
    SOP_MERGE_LIVE,
    SOP_MERGE_Y,
    SOP_MERGE_LSE_OUT,
    SOP_MERGE_ROLES
};

/** gated: y[t,i] = act(x[t,i]) * x[t, up + i] for i < dim; act is silu, gelu_tanh or gelu.
 *
 * x [tokens, up + dim], y [tokens, dim] */
typedef struct sop_gated_desc {
    int64_t tokens, dim, up; /* up: where the second half starts; 0 means dim */
    int64_t x_stride, y_stride;
    int32_t act; /* sop_act */
    int32_t x_dtype, y_dtype, reserved;
} sop_gated_desc;
typedef enum sop_act {
    SOP_ACT_SILU,       /* g / (1 + exp(-g)) */
    SOP_ACT_GELU_TANH,  /* g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2 */
    SOP_ACT_GELU,       /* g erfc(-g / sqrt 2) / 2 */
    SOP_ACT_QUICK_GELU, /* g / (1 + exp(-1.702 g)) */
    SOP_ACT_RELU        /* max(g, 0) */
} sop_act;
enum { SOP_GATED_X, SOP_GATED_LIVE, SOP_GATED_Y, SOP_GATED_ROLES };

/** bias_act: y = act(x + bias + r), or y = act(x + bias) + r (SOP_RESIDUAL_AFTER).
 *
 * x, r, y [tokens, dim], y may be x; bias [dim] f32; bias and r optional
 * Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2, for the three forms of
 * GELU. */
typedef struct sop_bias_act_desc {
    int64_t tokens, dim;
    int64_t x_stride, r_stride, y_stride;
    int32_t act;      /* sop_act */
    int32_t residual; /* sop_residual: where r goes */
    int32_t x_dtype, r_dtype, y_dtype, reserved;
} sop_bias_act_desc;
typedef enum sop_residual { SOP_RESIDUAL_INSIDE, SOP_RESIDUAL_AFTER } sop_residual;
enum {
    SOP_BIAS_ACT_X,
    SOP_BIAS_ACT_R,
    SOP_BIAS_ACT_BIAS,
    SOP_BIAS_ACT_LIVE,
    SOP_BIAS_ACT_Y,
    SOP_BIAS_ACT_ROLES
};

/** moe_gate: the experts of each token, and the order that brings each expert its tokens. A pair
 * j < top of token t is number t * top + j.
 *
 *     ids[t,:]      the top experts with the largest logits, largest first, ties to the lower index,
 *                   NaN last
 *     weights[t,j]  exp(x[t,ids[t,j]]) / sum of exp(x[t,e]), over all experts e (SOP_MOE_ALL: softmax
 *                   before the choice) or over the chosen (SOP_MOE_CHOSEN: softmax after it, which is
 *                   also softmax before it renormalised); 0 where all of these are -inf
 *     counts[e]     pairs that chose expert e
 *     perm          the pairs in the order of their experts, and within one of their numbers
 *
 * x [tokens, experts]; ids [tokens, top] i32; weights [tokens, top] f32; counts [experts] i32; perm
 * [tokens * top] i32, of which live * top are written */
typedef struct sop_moe_gate_desc {
    int64_t tokens, experts, top;
    int64_t x_stride;
    int32_t x_dtype;
    int32_t over; /* sop_moe_over */
} sop_moe_gate_desc;
typedef enum sop_moe_over { SOP_MOE_ALL, SOP_MOE_CHOSEN } sop_moe_over;
enum {
    SOP_MOE_GATE_X,
    SOP_MOE_GATE_LIVE,
    SOP_MOE_GATE_IDS,
    SOP_MOE_GATE_WEIGHTS,
    SOP_MOE_GATE_COUNTS,
    SOP_MOE_GATE_PERM,
    SOP_MOE_GATE_ROLES
};

/** experts: a linear whose rows are sorted by their expert: the first counts[0] by expert 0, the next
 * counts[1] by expert 1, and so on; with row i of them that of expert e,
 *
 *     y[out(i), c] = sum over j of x[in(i), j] * w[e, c, j]
 *
 * in(i) = perm[i] / gather (gather > 0: x has one row for so many pairs), else i
 * out(i) = perm[i] (scatter: y has a row for each pair), else i
 *
 * x [ceil(rows / gather) or rows, k]; w [experts, n, k] in a format; y [rows, n]
 * counts [experts] i32, of which those below 0 are 0 and whose sum is at most rows; perm [rows] i32,
 * rows that are all different, for gather or scatter alone; both as moe_gate makes them */
typedef struct sop_experts_desc {
    int64_t rows, experts, n, k;
    int64_t x_stride, y_stride;
    int64_t w_stride, w_expert; /* between rows, between experts; in blocks */
    int64_t gather;
    int32_t scatter;
    int32_t x_dtype, w_dtype, y_dtype;
} sop_experts_desc;
enum {
    SOP_EXPERTS_X,
    SOP_EXPERTS_W,
    SOP_EXPERTS_COUNTS,
    SOP_EXPERTS_PERM,
    SOP_EXPERTS_Y,
    SOP_EXPERTS_ROLES
};

/** combine: what the experts of a token made of it, together:
 *
 *     y[t,i] = r[t,i] + sum over j < top of weights[t,j] * x[t * top + j, i]
 *
 * x [tokens * top, dim], a row for each pair, as experts leaves them with scatter; weights [tokens, top]
 * f32, as moe_gate makes them; r, y [tokens, dim], r optional, y may be r */
typedef struct sop_combine_desc {
    int64_t tokens, top, dim;
    int64_t x_stride, r_stride, y_stride;
    int32_t x_dtype, r_dtype, y_dtype, reserved;
} sop_combine_desc;
enum {
    SOP_COMBINE_X,
    SOP_COMBINE_R,
    SOP_COMBINE_WEIGHTS,
    SOP_COMBINE_LIVE,
    SOP_COMBINE_Y,
    SOP_COMBINE_ROLES
};

/** add: y = a + b, all [tokens, dim]; y may be a. */
typedef struct sop_add_desc {
    int64_t tokens, dim;
    int64_t a_stride, b_stride, y_stride;
    int32_t a_dtype, b_dtype, y_dtype, reserved;
} sop_add_desc;
enum { SOP_ADD_A, SOP_ADD_B, SOP_ADD_LIVE, SOP_ADD_Y, SOP_ADD_ROLES };

/** softmax: y[t,:] = exp(z - max z) / sum, z = scale * x[t,:], all [tokens, dim]; y may be x. A row
 * of -inf alone gives zeros. */
typedef struct sop_softmax_desc {
    int64_t tokens, dim;
    int64_t x_stride, y_stride;
    float scale; /* 0 means 1 */
    int32_t x_dtype, y_dtype, reserved;
} sop_softmax_desc;
enum { SOP_SOFTMAX_X, SOP_SOFTMAX_LIVE, SOP_SOFTMAX_Y, SOP_SOFTMAX_ROLES };

/** What a sequence wants of its next token; an operand row of sample. */
typedef struct sop_sampling {
    float temperature;      /* 0: greedy, the lowest index of the largest finite logit */
    float top_p;            /* smallest set with this mass, at least one; 0 or >= 1: off, so that
                          * an empty struct is greedy; a user's 0 is passed as FLT_MIN */
    float min_p;            /* tokens with p >= min_p * p_max; 0: off */
    int32_t top_k;          /* 0: off; ties at the border go to the lower index */
    uint64_t seed, counter; /* the draw is a function of (seed, counter) alone */
} sop_sampling;

/** sample: ids[b] from logits [b, v]; top_k, then top_p of what is left renormalised, then min_p.
 * Non-finite logits are ignored; a row without a finite one gives -1.
 *
 * logits [rows, vocab] f32; params [rows] sop_sampling; ids [rows] i32 */
typedef struct sop_sample_desc {
    int64_t rows, vocab, logits_stride;
    int32_t x_dtype, reserved;
} sop_sample_desc;
enum { SOP_SAMPLE_LOGITS, SOP_SAMPLE_PARAMS, SOP_SAMPLE_LIVE, SOP_SAMPLE_IDS, SOP_SAMPLE_ROLES };

/** finite: count[0] = how many of x [tokens, dim] are NaN, +inf or -inf (a log-sum-exp may be -inf:
 * allow_neg_inf). The guard of the super operator. */
typedef struct sop_finite_desc {
    int64_t tokens, dim, x_stride;
    int32_t x_dtype, allow_neg_inf;
} sop_finite_desc;
enum { SOP_FINITE_X, SOP_FINITE_LIVE, SOP_FINITE_COUNT, SOP_FINITE_ROLES };

/** Every operator, in the order of a step: X(name), with sop_name_desc above. The lists of the library
 * and the helpers of sop/plan.h follow from it. */
#define SOP_OP_MAP(X) \
    X(embed) \
    X(rope) \
    X(kv_append) \
    X(attention) \
    X(merge) \
    X(linear) \
    X(rmsnorm) \
    X(layernorm) \
    X(gated) \
    X(bias_act) \
    X(moe_gate) \
    X(experts) \
    X(combine) \
    X(add) \
    X(softmax) \
    X(sample) \
    X(finite) \
    X(quantize)

#ifdef __cplusplus
}
#endif

#endif
