/* sop/grad.h: the operators of training, as sop/desc.h has those of inference: the gradients that the
 * rules of an operator of its own are worth. How a gradient arrives and leaves:
 *
 *     bias_act             bias_act_grad; a residual added after the activation has dy itself
 *     rmsnorm, layernorm   rmsnorm_grad, layernorm_grad, of s = x + r where there is a residual
 *     gated, softmax       gated_grad, softmax_grad
 *     rope                 rope of dy with freqs of the other sign
 *     linear               dx: matmul of dy and w; dw and dbias: matmul of dy transposed and x
 *     attention            attention_grad
 *
 * Extents are exact: there is no live count. Sums over tokens (dw, dbias, dk) are in float32, in an order
 * that the desc alone decides, so that they have the same bits in every run. Types are f32, f16 and bf16
 * at will, or f64 for all of them together, w and bias too: that is for the reference rows of these
 * operators and of their forward ones, which gradients can be checked on. */
#ifndef SOP_GRAD_H
#define SOP_GRAD_H

#include "sop/desc.h"

#ifdef __cplusplus
extern "C" {
#endif

/** bias_act_grad: of y = act(v), v = x + bias + r:
 *
 *     dx[t,i] = act'(v[t,i]) * dy[t,i];  dbias[i] = sum over t of act'(v[t,i]) * dy[t,i]
 *
 * dx is the gradient of r too. relu' is 0 at 0.
 *
 * x, r, dy, dx [tokens, dim]; bias, dbias [dim] f32; bias, r and dbias optional */
typedef struct sop_bias_act_grad_desc {
    int64_t tokens, dim;
    int64_t x_stride, r_stride, dy_stride, dx_stride;
    int32_t act; /* sop_act */
    int32_t x_dtype, r_dtype, dy_dtype, dx_dtype, reserved;
} sop_bias_act_grad_desc;
enum {
    SOP_BIAS_ACT_GRAD_X,
    SOP_BIAS_ACT_GRAD_R,
    SOP_BIAS_ACT_GRAD_BIAS,
    SOP_BIAS_ACT_GRAD_DY,
    SOP_BIAS_ACT_GRAD_DX,
    SOP_BIAS_ACT_GRAD_DBIAS,
    SOP_BIAS_ACT_GRAD_ROLES
};

/** gated_grad: of y[t,i] = act(x[t,i]) * x[t, up + i]:
 *
 *     dgate[t,i] = act'(x[t,i]) * x[t, up + i] * dy[t,i];  dup[t,i] = act(x[t,i]) * dy[t,i]
 *
 * x [tokens, up + dim]; dy, dgate, dup [tokens, dim]; dgate and dup may be the halves of one tensor */
typedef struct sop_gated_grad_desc {
    int64_t tokens, dim, up; /* up: where the second half starts; 0 means dim */
    int64_t x_stride, dy_stride, dgate_stride, dup_stride;
    int32_t act; /* sop_act */
    int32_t x_dtype, dy_dtype, dx_dtype;
} sop_gated_grad_desc;
enum {
    SOP_GATED_GRAD_X,
    SOP_GATED_GRAD_DY,
    SOP_GATED_GRAD_DGATE,
    SOP_GATED_GRAD_DUP,
    SOP_GATED_GRAD_ROLES
};

/** softmax_grad: of y = softmax(scale * x):
 *
 *     dx[t,i] = scale * y[t,i] * (dy[t,i] - sum over j of y[t,j] * dy[t,j])
 *
 * y, dy, dx [tokens, dim] */
typedef struct sop_softmax_grad_desc {
    int64_t tokens, dim;
    int64_t y_stride, dy_stride, dx_stride;
    float scale; /* 0 means 1 */
    int32_t y_dtype, dy_dtype, dx_dtype;
} sop_softmax_grad_desc;
enum { SOP_SOFTMAX_GRAD_Y, SOP_SOFTMAX_GRAD_DY, SOP_SOFTMAX_GRAD_DX, SOP_SOFTMAX_GRAD_ROLES };

/** rmsnorm_grad: of y = (offset + w) * x * c, c = 1 / sqrt(mean over dim of x^2 + eps), in each of `heads`
 * groups of dim in a token:
 *
 *     dx = c * (g - x * c * mean over dim of (g * x * c)) + dr,  g = (offset + w) * dy
 *     dw[i] = sum over tokens and heads of dy * x * c
 *
 * Of a norm with a residual, x is what it left in r_out, dr the gradient that arrives there, and dx the
 * gradient of its x and its r alike.
 *
 * x, dy, dr, dx [tokens, heads, dim]; w, dw [dim] f32; dr and dw optional */
typedef struct sop_rmsnorm_grad_desc {
    int64_t tokens, heads, dim;
    int64_t x_stride, x_head, dy_stride, dy_head, dr_stride, dr_head, dx_stride, dx_head;
    float eps, offset;
    int32_t x_dtype, dy_dtype, dr_dtype, dx_dtype;
} sop_rmsnorm_grad_desc;
enum {
    SOP_RMSNORM_GRAD_X,
    SOP_RMSNORM_GRAD_W,
    SOP_RMSNORM_GRAD_DY,
    SOP_RMSNORM_GRAD_DR,
    SOP_RMSNORM_GRAD_DX,
    SOP_RMSNORM_GRAD_DW,
    SOP_RMSNORM_GRAD_ROLES
};

/** layernorm_grad: of y = w * z + b, z = (x - m) * c, c = 1 / sqrt(v + eps), m the mean of x over dim, v
 * the mean of (x - m)^2:
 *
 *     dx = c * (g - mean over dim of g - z * mean over dim of (g * z)) + dr,  g = w * dy
 *     dw[i] = sum over tokens of dy * z;  db[i] = sum over tokens of dy
 *
 * Of a norm with a residual, x, dr and dx are as in rmsnorm_grad.
 *
 * x, dy, dr, dx [tokens, dim]; w, dw, db [dim] f32; w, dr, dw and db optional: w is 1 without */
typedef struct sop_layernorm_grad_desc {
    int64_t tokens, dim;
    int64_t x_stride, dy_stride, dr_stride, dx_stride;
    float eps; /* 0 means 1e-5 */
    int32_t x_dtype, dy_dtype, dr_dtype, dx_dtype, reserved;
} sop_layernorm_grad_desc;
enum {
    SOP_LAYERNORM_GRAD_X,
    SOP_LAYERNORM_GRAD_W,
    SOP_LAYERNORM_GRAD_DY,
    SOP_LAYERNORM_GRAD_DR,
    SOP_LAYERNORM_GRAD_DX,
    SOP_LAYERNORM_GRAD_DW,
    SOP_LAYERNORM_GRAD_DB,
    SOP_LAYERNORM_GRAD_ROLES
};

/** matmul: y[i,j] = sum over k of a[i,k] * b[k,j]; sums[i] = sum over k of a[i,k]. With `transposed`, a
 * lies the other way: a[k,i].
 *
 * a [rows, k], or [k, rows]; b [k, cols]; y [rows, cols]; sums [rows] f32, optional */
typedef struct sop_matmul_desc {
    int64_t rows, cols, k;
    int64_t a_stride, b_stride, y_stride;
    int32_t transposed;
    int32_t a_dtype, b_dtype, y_dtype;
} sop_matmul_desc;
enum { SOP_MATMUL_A, SOP_MATMUL_B, SOP_MATMUL_Y, SOP_MATMUL_SUMS, SOP_MATMUL_ROLES };

/** attention_grad: of attention whose keys lie as a training step has them, one after another. Sequence s
 * has the queries q_start[s] .. q_start[s+1] - 1 (L of them) and the keys k_start[s] .. k_start[s+1] - 1 (S
 * of them); query i, at position P = i + S - L, sees the keys j with
 *
 *     j <= P (causal, bottom-right), and j > P - window (window > 0)
 *
 *     z = scale * q . k;  z = cap * tanh(z / cap) (cap > 0);  p = exp(z - lse)
 *     e = p * (do . v - sum over channels of do * o) * (1 - (z / cap)^2), the last factor with a cap
 *     dq = scale * sum over keys of e * k;  dk = scale * sum over queries of e * q
 *     dv = sum over queries of p * do
 *
 * Query head i reads KV head i / (h / g), whose dk and dv are of all its query heads together. o and lse
 * are what attention left: lse is at least every z of its query, or -inf where it sees nothing. A sink is
 * in them, and has no gradient here.
 *
 * q, dq [tokens, h, k]; k, dk [keys, g, k]; v, dv [keys, g, v]; o, do [tokens, h, v]; lse [tokens, h] f32
 * q_start, k_start [seqs + 1] i32, from 0 to tokens and to keys, of at most max_q and max_kv each
 * Source: Dao, "FlashAttention-2", 2023, section 3.1.2. */
typedef struct sop_attention_grad_desc {
    int64_t tokens, keys, seqs, max_q, max_kv;
    int64_t heads, kv_heads, k, v;
    int64_t q_stride, q_head, k_stride, k_head, v_stride, v_head;
    int64_t o_stride, o_head, do_stride, do_head;
    int64_t dq_stride, dq_head, dk_stride, dk_head, dv_stride, dv_head;
    int64_t window;                     /* keys seen, the query's own included; 0: all */
    float scale, cap;                   /* scale 0 means 1 / sqrt(k); cap 0: none */
    int32_t q_dtype, o_dtype, dq_dtype; /* of q, k, v; of o, do; of dq, dk, dv */
    int32_t causal, numerics, reserved;
} sop_attention_grad_desc;
enum {
    SOP_ATTENTION_GRAD_Q,
    SOP_ATTENTION_GRAD_K,
    SOP_ATTENTION_GRAD_V,
    SOP_ATTENTION_GRAD_Q_START,
    SOP_ATTENTION_GRAD_K_START,
    SOP_ATTENTION_GRAD_O,
    SOP_ATTENTION_GRAD_LSE,
    SOP_ATTENTION_GRAD_DO,
    SOP_ATTENTION_GRAD_DQ,
    SOP_ATTENTION_GRAD_DK,
    SOP_ATTENTION_GRAD_DV,
    SOP_ATTENTION_GRAD_ROLES
};

/** Every operator of training, as SOP_OP_MAP. */
#define SOP_GRAD_OP_MAP(X) \
    X(bias_act_grad) \
    X(gated_grad) \
    X(softmax_grad) \
    X(rmsnorm_grad) \
    X(layernorm_grad) \
    X(matmul) \
    X(attention_grad)

#ifdef __cplusplus
}
#endif

#endif
