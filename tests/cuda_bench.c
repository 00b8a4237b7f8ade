/* How fast the hot rows of CUDA are on the shapes of real models, and whether they agree there with the
 * floor row, which check_ops proves on small ones.
 *   cuda_bench [WORD]   only the lines that hold this word
 *
 * A line is timed in two ways: as a burst, a graph of some milliseconds after a pause; and sustained,
 * the same graph again and again for 0.4 s, when the card lowers its clock. Operands rotate through four
 * times the L2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "core/op.h"
#include "harness/harness.h"
#include "harness/operands.h"
#include "ops/ops.h"
#include "sop/desc.h"
#include "sop/device.h"

struct line {
    const char *op, *row, *floor, *desc; /* floor: NULL where it would take too long */
    /* attention: the first sequence has all, the others this, or -1: 16 lengths from 37 on; sample:
     * each row wants 1: all filters, 2: top_p alone, 3: a temperature alone; bias_act, layernorm,
     * gradients: 1: with what is optional but the residual, 2: with all */
    int32_t skewed;
};

#define QKV "n=3584 n1=512 n2=512 k=3584 w=bf16 w1=bf16 w2=bf16 x=bf16 y=bf16 "
#define GATE_UP "n=18944 n1=18944 k=3584 w=bf16 w1=bf16 x=bf16 y=bf16 "
#define DOWN "n=3584 k=18944 w=bf16 x=bf16 y=bf16 "
#define BF16 " q=bf16 kv=bf16 o=bf16 causal=1"
#define I8 " q=bf16 kv=i8 o=bf16 causal=1"
#define F8 " q=bf16 kv=f8 o=bf16 causal=1"
#define ONCE "linear", "linear_few_sm90", "linear_cuda"
#define SKINNY "linear", "linear_skinny_sm90", "linear_cuda"
#define LONG "linear", "linear_stream_sm90", "linear_cuda"
#define PLANES "linear", "linear_planes_sm90", "linear_cuda"
#define STREAM "linear", "linear_stream_quant_sm90", "linear_cuda"
#define QUANT "linear", "linear_skinny_quant_sm80", "linear_cuda"
#define WIDE "n=8192 k=28672 x=bf16 y=bf16 "
#define GATE_UP_F8 "n=18944 n1=18944 k=3584 w=f8_128 w1=f8_128 x=bf16 y=bf16 "
#define DOWN_F8 "n=3584 k=18944 w=f8_128 x=bf16 y=bf16 "
#define F8_FEW "linear", "linear_stream_f8_sm90", "linear_cuda"
#define F8_MANY "linear", "linear_f8_sm90"
#define F8_WIDE "n=28672 k=8192 w=f8_128 x=f8 y=bf16 "
#define F8_GATE_UP "n=18944 n1=18944 k=3584 w=f8_128 w1=f8_128 x=f8 y=bf16 "
#define F8_DOWN "n=3584 k=18944 w=f8_128 x=f8 y=bf16 "
#define GEMM "linear", "linear_gemm_sm90"
#define WIDENED "linear", "linear_gemm_widened_sm90"
#define PREFILL "attention", "attention_prefill_sm90"
#define DECODE "attention", "attention_decode_sm80", "attention_cuda"
#define RING "attention", "attention_decode_ring_sm90", "attention_cuda"
#define FEW "attention", "attention_decode_few_sm90", "attention_cuda"
#define BYTES "attention", "attention_decode_bytes_sm80", "attention_cuda"
#define EMBED "embed", "embed_wide_sm80", "embed_cuda"
#define ROPE "rope", "rope_wide_sm80", "rope_cuda"
#define APPEND "kv_append", "kv_append_wide_sm80", "kv_append_cuda"
#define BIAS_ACT "bias_act", "bias_act_wide_sm80", "bias_act_cuda"
#define BIAS_ACT_GRAD "bias_act_grad", "bias_act_grad_wide_sm80", "bias_act_grad_cuda"
#define GATED_GRAD "gated_grad", "gated_grad_wide_sm80", "gated_grad_cuda"
#define SOFTMAX_GRAD "softmax_grad", "softmax_grad_wide_sm80", "softmax_grad_cuda"
#define RMSNORM_GRAD "rmsnorm_grad", "rmsnorm_grad_wide_sm80", "rmsnorm_grad_cuda"
#define LAYERNORM_GRAD "layernorm_grad", "layernorm_grad_wide_sm80", "layernorm_grad_cuda"
#define ATTENTION_GRAD "attention_grad", "attention_grad_sm90"
#define GRAD_BF16 " causal=1 q=bf16 o=bf16 dq=bf16"
#define LAYERNORM "layernorm", "layernorm_wide_sm80", "layernorm_cuda"
#define COMBINE "combine", "combine_wide_sm80", "combine_cuda"
#define EXPERTS "experts", "experts_gemm_sm90"
#define QWEN_MOE "experts=60 n=1408 k=2048 x=bf16 w=bf16 y=bf16 "
#define MIXTRAL "experts=8 n=14336 k=4096 x=bf16 w=bf16 y=bf16 "
#define QUANTIZE "quantize", "quantize_wide_sm80", "quantize_cuda"
#define SAMPLE "sample", "sample_split_sm80", "sample_cuda"

static const struct line lines[] = {
    {ONCE, QKV "m=1", 0},
    {ONCE, QKV "m=8", 0},
    {ONCE, QKV "m=16", 0},
    {ONCE, QKV "m=32", 0},
    {ONCE, QKV "m=64", 0},
    {ONCE, DOWN "m=1", 0},
    {ONCE, DOWN "m=8", 0},
    {ONCE, DOWN "m=16", 0},
    {ONCE, DOWN "m=32", 0},
    {ONCE, DOWN "m=64", 0},
    {ONCE, "n=8192 k=8192 w=bf16 x=bf16 y=bf16 m=1", 0},
    {ONCE, "n=8192 k=8192 w=bf16 x=bf16 y=bf16 m=64", 0},
    {ONCE, "n=896 n1=128 n2=128 k=896 w=bf16 w1=bf16 w2=bf16 x=bf16 y=bf16 m=1 bias=7", 0},
    {ONCE, "n=896 k=4864 w=bf16 x=bf16 y=bf16 m=1", 0},
    {SKINNY, QKV "m=1", 0},
    {SKINNY, QKV "m=8", 0},
    {SKINNY, QKV "m=16", 0},
    {SKINNY, QKV "m=32", 0},
    {LONG, QKV "m=32", 0},
    {SKINNY, QKV "m=64", 0},
    {LONG, QKV "m=64", 0},
    {SKINNY, GATE_UP "m=1", 0},
    {SKINNY, GATE_UP "m=16", 0},
    {SKINNY, GATE_UP "m=64", 0},
    {LONG, GATE_UP "m=32", 0},
    {LONG, GATE_UP "m=64", 0},
    {SKINNY, DOWN "m=1", 0},
    {LONG, DOWN "m=1", 0},
    {SKINNY, DOWN "m=16", 0},
    {LONG, DOWN "m=16", 0},
    {SKINNY, DOWN "m=32", 0},
    {LONG, DOWN "m=32", 0},
    {SKINNY, DOWN "m=64", 0},
    {LONG, DOWN "m=64", 0},
    {SKINNY, "n=896 n1=128 n2=128 k=896 w=bf16 w1=bf16 w2=bf16 m=1 bias=7", 0},
    {SKINNY, "n=896 k=4864 w=bf16 m=1", 0},
    {SKINNY, "n=151936 k=896 w=bf16 m=1", 0},
    {PLANES, WIDE "w=i4_128 m=1", 0},
    {PLANES, WIDE "w=i4_128 m=8", 0},
    {PLANES, WIDE "w=i4_128 m=16", 0},
    {STREAM, WIDE "w=i4_128 m=32", 0},
    {STREAM, WIDE "w=i4_128 m=64", 0},
    {STREAM, WIDE "w=f8_128 m=1", 0},
    {STREAM, WIDE "w=f8_128 m=16", 0},
    {STREAM, WIDE "w=f8_128 m=32", 0},
    {STREAM, WIDE "w=f8_128 m=64", 0},
    {STREAM, GATE_UP_F8 "m=16", 0},
    {STREAM, GATE_UP_F8 "m=32", 0},
    {STREAM, GATE_UP_F8 "m=64", 0},
    {STREAM, DOWN_F8 "m=16", 0},
    {STREAM, DOWN_F8 "m=32", 0},
    {STREAM, DOWN_F8 "m=64", 0},
    {STREAM, WIDE "w=i8_128 m=1", 0},
    {STREAM, WIDE "w=i8_128 m=16", 0},
    {F8_FEW, F8_WIDE "m=1", 0},
    {F8_FEW, F8_WIDE "m=16", 0},
    {F8_FEW, F8_WIDE "m=32", 0},
    {F8_FEW, F8_WIDE "m=64", 0},
    {F8_FEW, F8_GATE_UP "m=16", 0},
    {F8_FEW, F8_GATE_UP "m=32", 0},
    {F8_FEW, F8_GATE_UP "m=64", 0},
    {F8_FEW, F8_DOWN "m=16", 0},
    {F8_FEW, F8_DOWN "m=32", 0},
    {F8_FEW, F8_DOWN "m=64", 0},
    {QUANT, WIDE "w=q8_0 m=1", 0},
    {QUANT, WIDE "w=q8_0 m=16", 0},
    {QUANT, WIDE "w=q4_k m=1", 0},
    {QUANT, WIDE "w=q4_k m=16", 0},
    {PLANES, "n=3584 n1=512 n2=512 k=3584 w=i4_128 w1=i4_128 w2=i4_128 x=bf16 y=bf16 m=1", 0},
    {QUANT, "n=3584 n1=512 n2=512 k=3584 w=q4_k w1=q4_k w2=q4_k m=1", 0},
    {QUANT, "n=18944 n1=18944 k=3584 w=q4_k w1=q4_k m=1", 0},
    {QUANT, "n=896 k=4864 w=q8_0 m=1", 0},
    {GEMM, "linear_cuda", QKV "m=128", 0},
    {GEMM, "linear_cuda", QKV "m=512", 0},
    {GEMM, "linear_cuda", QKV "m=4096", 0},
    {GEMM, NULL, QKV "m=4097", 0},
    {GEMM, NULL, GATE_UP "m=4096", 0},
    {GEMM, NULL, DOWN "m=4096", 0},
    {GEMM, NULL, "n=8192 k=8192 w=bf16 x=bf16 y=bf16 m=4096", 0},
    {GEMM, NULL, "n=8192 k=8192 w=bf16 x=bf16 y=bf16 m=4097", 0},
    {WIDENED, "linear_cuda", GATE_UP_F8 "m=128", 0},
    {WIDENED, NULL, WIDE "w=f8_128 m=4096", 0},
    {WIDENED, NULL, GATE_UP_F8 "m=4096", 0},
    {WIDENED, NULL, DOWN_F8 "m=4096", 0},
    {WIDENED, NULL, WIDE "w=i4_128 m=4096", 0},
    {WIDENED, NULL, WIDE "w=q4_k m=4096", 0},
    {F8_MANY, "linear_cuda", F8_GATE_UP "m=128", 0},
    {F8_MANY, "linear_cuda", F8_DOWN "m=512", 0},
    {F8_MANY, NULL, F8_WIDE "m=4096", 0},
    {F8_MANY, NULL, F8_GATE_UP "m=4096", 0},
    {F8_MANY, NULL, F8_DOWN "m=4096", 0},
    {F8_MANY, NULL, F8_DOWN "m=4097", 0},
    {EXPERTS, "experts_cuda", QWEN_MOE "rows=256", 0},
    {EXPERTS, "experts_cuda", QWEN_MOE "rows=256 gather=4", 0},
    {EXPERTS, "experts_cuda", QWEN_MOE "rows=2048", 0},
    {EXPERTS, "experts_cuda", QWEN_MOE "rows=2048 gather=4", 0},
    {EXPERTS, NULL, QWEN_MOE "rows=16384", 0},
    {EXPERTS, NULL, QWEN_MOE "rows=16384 gather=4", 0},
    {EXPERTS, NULL, QWEN_MOE "rows=65536", 0},
    {EXPERTS, NULL, QWEN_MOE "rows=65536 gather=4", 0},
    {EXPERTS, NULL, "experts=60 n=2048 k=1408 x=bf16 w=bf16 y=bf16 rows=65536 scatter=1", 0},
    {EXPERTS, "experts_cuda", MIXTRAL "rows=32", 0},
    {EXPERTS, NULL, MIXTRAL "rows=1024", 0},
    {EXPERTS, NULL, MIXTRAL "rows=8192", 0},
    {EXPERTS, NULL, MIXTRAL "rows=8192 gather=2", 0},
    {PREFILL, "attention_cuda", "tokens=16384 seqs=32 max_kv=512 heads=32 kv_heads=8 k=128" BF16,
     0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, "attention_cuda", "tokens=4097 seqs=1 max_kv=4097 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, NULL, "tokens=16388 seqs=4 max_kv=4097 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=1 max_kv=16384 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=1 max_kv=16384 heads=32 kv_heads=8 k=128 page=16" BF16, 0},
    {PREFILL, "attention_cuda", "tokens=1024 seqs=2 max_kv=4096 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, "attention_cuda", "tokens=16384 seqs=32 max_kv=512 heads=14 kv_heads=2 k=64" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=14 kv_heads=2 k=64" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=1 max_kv=16384 heads=14 kv_heads=2 k=64" BF16, 0},
    {PREFILL, NULL, "tokens=16388 seqs=4 max_kv=4097 heads=14 kv_heads=2 k=64" BF16, 0},
    {PREFILL, "attention_cuda", "tokens=1024 seqs=2 max_kv=4096 heads=32 kv_heads=8 k=80" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=32 kv_heads=8 k=80" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=32 kv_heads=8 k=96" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=32 kv_heads=8 k=112" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=32 kv_heads=8 k=160" BF16, 0},
    {PREFILL, "attention_cuda", "tokens=1024 seqs=2 max_kv=4096 heads=32 kv_heads=8 k=192" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=32 kv_heads=8 k=192" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=16 k=192 v=128" BF16, 0},
    {PREFILL, "attention_cuda", "tokens=16384 seqs=32 max_kv=512 heads=8 kv_heads=4 k=256" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=8 kv_heads=4 k=256" BF16, 0},
    {PREFILL, NULL, "tokens=16388 seqs=4 max_kv=4097 heads=8 kv_heads=4 k=256" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=1 max_kv=16384 heads=8 kv_heads=4 k=256" BF16, 0},
    {PREFILL, NULL, "tokens=32768 seqs=1 max_kv=32768 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, NULL, "tokens=65537 seqs=1 max_kv=65537 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, NULL, "tokens=131072 seqs=1 max_kv=131072 heads=32 kv_heads=8 k=128" BF16, 0},
    {PREFILL, NULL, "tokens=67254 seqs=16 max_kv=20011 heads=32 kv_heads=8 k=128 pages=1060" BF16,
     -1},
    {PREFILL, NULL,
     "tokens=67254 seqs=16 max_kv=20011 heads=32 kv_heads=8 k=128 page=16 pages=4212" BF16, -1},
    {PREFILL, NULL, "tokens=4096 max_kv=4096 heads=32 kv_heads=8 k=128 mask_heads=1 mask=u8" BF16,
     0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=64" BF16, 0},
    {DECODE, "tokens=16 seqs=16 max_kv=16384 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {DECODE, "tokens=1 max_kv=131072 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {DECODE, "tokens=1 max_kv=4096 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {FEW, "tokens=1 max_kv=4096 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {DECODE, "tokens=1 max_kv=512 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {FEW, "tokens=1 max_kv=512 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {FEW, "tokens=1 max_kv=512 heads=28 kv_heads=4 k=128 page=16" BF16, 0},
    {FEW, "tokens=1 max_kv=131072 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {FEW, "tokens=1 max_kv=4096 heads=64 kv_heads=8 k=128 page=16" F8, 0},
    {BYTES, "tokens=16 seqs=16 max_kv=4096 heads=32 kv_heads=8 k=128 page=64" I8, 0},
    {BYTES, "tokens=16 seqs=16 max_kv=4096 heads=32 kv_heads=8 k=128 page=64" F8, 0},
    {BYTES, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=16" F8, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=8" BF16, 0},
    {DECODE, "tokens=32 seqs=32 max_kv=65536 heads=64 kv_heads=8 k=128 page=16 pages=5088" BF16,
     512},
    {DECODE, "tokens=64 seqs=64 max_kv=2048 heads=14 kv_heads=2 k=64 page=16" BF16, 0},
    {RING, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {RING, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=64" BF16, 0},
    {RING, "tokens=16 seqs=16 max_kv=16384 heads=64 kv_heads=8 k=128 page=16" BF16, 0},
    {RING, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=8" BF16, 0},
    {RING, "tokens=32 seqs=32 max_kv=65536 heads=64 kv_heads=8 k=128 page=16 pages=5088" BF16, 512},
    {RING, "tokens=16 seqs=16 max_kv=512 heads=28 kv_heads=4 k=128 page=16" BF16, 0},
    {RING, "tokens=8 seqs=8 max_kv=2048 heads=64 kv_heads=8 k=128 page=64" BF16, 0},
    {RING, "tokens=64 seqs=64 max_kv=2048 heads=14 kv_heads=2 k=64 page=16" BF16, 0},
    {DECODE, "tokens=16 seqs=16 max_kv=4096 heads=8 kv_heads=4 k=256 page=16" BF16, 0},
    {RING, "tokens=16 seqs=16 max_kv=4096 heads=8 kv_heads=4 k=256 page=16" BF16, 0},
    {RING, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=64 page=16 sinks=1" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=80 page=16" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=96 page=16" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=112 page=16" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=160 page=16" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=192 page=16" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=256 page=16" BF16, 0},
    {RING, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=256 page=16" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=64 page=16 sinks=1" BF16, 0},
    {DECODE, "tokens=64 seqs=64 max_kv=4096 heads=64 kv_heads=8 k=128 page=16 alibi=1" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=64 kv_heads=8 k=64 sinks=1" BF16, 0},
    {PREFILL, NULL, "tokens=16384 seqs=4 max_kv=4096 heads=32 kv_heads=8 k=128 alibi=1" BF16, 0},
    {"rmsnorm", "rmsnorm_wide_sm80", "rmsnorm_cuda", "tokens=32768 dim=8192 x=bf16 r=bf16 y=bf16",
     0},
    {"gated", "gated_wide_sm80", "gated_cuda", "tokens=32768 dim=8192 x=bf16 y=bf16", 0},
    {"gated", "gated_wide_sm80", "gated_cuda", "tokens=16384 dim=28672 x=bf16 y=bf16", 0},
    {"gated", "gated_wide_sm80", "gated_cuda", "tokens=64 dim=18944 x=bf16 y=bf16", 0},
    {BIAS_ACT, "tokens=32768 dim=8192 act=gelu x=bf16 y=bf16", 1},
    {BIAS_ACT, "tokens=32768 dim=8192 act=gelu_tanh x=bf16 y=bf16", 1},
    {BIAS_ACT, "tokens=32768 dim=8192 act=quick_gelu x=bf16 y=bf16", 1},
    {BIAS_ACT, "tokens=32768 dim=8192 act=quick_gelu x=bf16 r=bf16 y=bf16", 2},
    {BIAS_ACT, "tokens=32768 dim=8192 act=gelu residual=after x=bf16 r=bf16 y=bf16", 2},
    {LAYERNORM, "tokens=32768 dim=8192 x=bf16 y=bf16", 1},
    {LAYERNORM, "tokens=32768 dim=8192 x=bf16 r=bf16 y=bf16", 2},
    {LAYERNORM, "tokens=16384 dim=1280 x=bf16 y=bf16", 1},
    {COMBINE, "tokens=16384 top=4 dim=2048 x=bf16 r=bf16 y=bf16", 0},
    {COMBINE, "tokens=4096 top=2 dim=4096 x=bf16 r=bf16 y=bf16", 0},
    {COMBINE, "tokens=64 top=4 dim=2048 x=bf16", 0},
    {"softmax", "softmax_wide_sm80", "softmax_cuda", "tokens=32768 dim=8192 x=bf16 y=bf16", 0},
    {"add", "add_wide_sm80", "add_cuda", "tokens=32768 dim=8192 a=bf16 b=bf16 y=bf16", 0},
    {EMBED, "tokens=16384 rows=32000 dim=8192 w=bf16", 0},
    {EMBED, "tokens=16384 rows=32000 dim=8192 w=bf16 y=bf16", 0},
    {EMBED, "tokens=16384 rows=32000 dim=896 w=bf16", 0},
    {EMBED, "tokens=1 rows=32000 dim=3584 w=bf16", 0},
    {ROPE, "tokens=16384 heads=72 k=128 x=bf16 y=bf16", 0},
    {ROPE, "tokens=64 heads=32 k=128 x=bf16 y=bf16", 0},
    {ROPE, "tokens=1 heads=32 k=128", 0},
    {APPEND, "tokens=16384 heads=8 k=128 x=bf16 kv=bf16 page=16", 0},
    {APPEND, "tokens=64 heads=8 k=128 x=bf16 kv=bf16 page=16", 0},
    {"finite", "finite_wide_sm80", "finite_cuda", "tokens=16384 dim=8192 x=bf16", 0},
    {"finite", "finite_wide_sm80", "finite_cuda", "tokens=1 dim=3584", 0},
    {QUANTIZE, "tokens=32768 dim=8192 x=bf16", 0},
    {QUANTIZE, "tokens=4096 dim=3584 x=bf16", 0},
    {QUANTIZE, "tokens=4096 dim=18944 x=bf16", 0},
    {QUANTIZE, "tokens=4096 dim=4096", 0},
    {QUANTIZE, "tokens=16 dim=8192 x=bf16", 0},
    {SAMPLE, "rows=1 vocab=151936", 0},
    {SAMPLE, "rows=1 vocab=151936", 1},
    {SAMPLE, "rows=1 vocab=151936", 2},
    {SAMPLE, "rows=64 vocab=151936", 0},
    {SAMPLE, "rows=64 vocab=151936", 1},
    {SAMPLE, "rows=64 vocab=151936", 2},
    {SAMPLE, "rows=64 vocab=151936", 3},
    {SAMPLE, "rows=64 vocab=151936 x=bf16", 0},
    {BIAS_ACT_GRAD, "tokens=8192 dim=4096 act=gelu x=bf16 r=bf16 dy=bf16 dx=bf16", 1},
    {BIAS_ACT_GRAD, "tokens=8192 dim=4096 act=gelu_tanh x=bf16 r=bf16 dy=bf16 dx=bf16", 1},
    {BIAS_ACT_GRAD, "tokens=8192 dim=4096 act=quick_gelu x=bf16 r=bf16 dy=bf16 dx=bf16", 2},
    {GATED_GRAD, "tokens=4096 dim=8192 x=bf16 dy=bf16 dx=bf16", 0},
    {SOFTMAX_GRAD, "tokens=8192 dim=4096 y=bf16 dy=bf16 dx=bf16", 0},
    {RMSNORM_GRAD, "tokens=8192 dim=4096 x=bf16 dy=bf16 dr=bf16 dx=bf16", 1},
    {RMSNORM_GRAD, "tokens=8192 dim=4096 x=bf16 dy=bf16 dr=bf16 dx=bf16", 2},
    {RMSNORM_GRAD, "tokens=8192 heads=32 dim=128 x=bf16 dy=bf16 dr=bf16 dx=bf16", 1},
    {LAYERNORM_GRAD, "tokens=8192 dim=4096 x=bf16 dy=bf16 dr=bf16 dx=bf16", 1},
    {LAYERNORM_GRAD, "tokens=16384 dim=768 x=bf16 dy=bf16 dr=bf16 dx=bf16", 1},
    {ATTENTION_GRAD, "attention_grad_sm80", "tokens=4096 heads=32 kv_heads=8 k=128" GRAD_BF16, 0},
    {ATTENTION_GRAD, "attention_grad_sm80",
     "tokens=8192 seqs=4 max_q=2048 max_kv=2048 heads=14 kv_heads=2 k=64" GRAD_BF16, 0},
    {ATTENTION_GRAD, NULL, "tokens=16384 heads=16 k=128" GRAD_BF16, 0},
    {"attention_grad", "attention_grad_sm80", "attention_grad_cuda",
     "tokens=1024 heads=8 k=128" GRAD_BF16, 0},
    {"attention_grad", "attention_grad_sm80", NULL,
     "tokens=4096 heads=32 kv_heads=8 k=128" GRAD_BF16, 0},
};

static sop_device *card;
static sop_queue *queue;

/* The operands of some calls, one set after another. */
struct sets {
    char *memory;
    size_t bytes;
    sop_operand *args; /* [n][roles] */
    int64_t n;
};

static void must(sop_status s)
{
    if (s == SOP_OK) return;
    printf("%s\n", sop_last_error());
    exit(1);
}

static size_t rounded(size_t bytes)
{
    return (bytes + 1023) & ~(size_t)1023;
}

/* Random content: a piece of it, laid down again and again. */
static void fill(const sop_tensor *v, char *host, uint64_t seed)
{
    enum { PIECE = 65537 };
    const size_t block = sop_dtype_bytes(v->dtype), all = v->bytes / block;
    const size_t n = all < PIECE ? all : PIECE;
    const sop_tensor piece = {.data = host,
                              .bytes = n * block,
                              .dtype = v->dtype,
                              .ndim = 1,
                              .shape = {(int64_t)n * sop_dtype_block(v->dtype)},
                              .stride = {1}};
    sop_fill(&piece, SOP_FAMILY_NORMAL, seed);
    for (size_t at = n; at < all; at += n)
        memcpy(host + at * block, host, (all - at < n ? all - at : n) * block);
}

static void skew(const sop_attention_desc *d, int32_t others, const sop_operand *args)
{
    int32_t *table = args[SOP_ATTENTION_TABLE].data, *kv_len = args[SOP_ATTENTION_KV_LEN].data;
    int32_t page = 0;
    for (int64_t s = 0; s < d->seqs; s++) {
        kv_len[s] = s ? others : (int32_t)d->max_kv;
        for (int64_t i = 0; i * d->page < kv_len[s]; i++) table[s * d->table_stride + i] = page++;
    }
}

/* The ragged batch of FlashInfer's figures. */
static const int32_t lengths[] = {37,   91,   120,  260,  411,  803,  1290,  1700,
                                  2333, 3100, 4097, 5200, 6800, 9001, 12000, 20011};

static void mix(const sop_attention_desc *d, const sop_operand *args)
{
    int32_t *table = args[SOP_ATTENTION_TABLE].data, *kv_len = args[SOP_ATTENTION_KV_LEN].data;
    int32_t *q_start = args[SOP_ATTENTION_Q_START].data, page = 0;
    for (int64_t s = 0; s < d->seqs; s++) {
        kv_len[s] = lengths[s];
        q_start[s + 1] = q_start[s] + lengths[s];
        for (int64_t i = 0; i * d->page < kv_len[s]; i++) table[s * d->table_stride + i] = page++;
    }
}

static double mixed_flops(const sop_attention_desc *d)
{
    double pairs = 0;
    for (size_t s = 0; s < sizeof lengths / sizeof *lengths; s++)
        pairs += (double)lengths[s] * (lengths[s] + 1) / 2;
    return 2 * pairs * (double)(d->heads * (d->k + d->v));
}

/* Each row's expert is drawn from all alike. */
static void deal(const sop_experts_desc *d, const sop_operand *args)
{
    int32_t *counts = args[SOP_EXPERTS_COUNTS].data;
    uint64_t state = 1;
    memset(counts, 0, (size_t)d->experts * sizeof *counts);
    for (int64_t i = 0; i < d->rows; i++) counts[sop_random(&state) % (uint64_t)d->experts]++;
}

static void want(const sop_sample_desc *d, int32_t what, const sop_operand *args)
{
    sop_sampling *s = args[SOP_SAMPLE_PARAMS].data;
    for (int64_t b = 0; b < d->rows; b++) {
        s[b] = (sop_sampling){.temperature = 0.8f, .seed = 7, .counter = (uint64_t)b};
        if (what < 3) s[b].top_p = 0.95f;
        if (what == 1) s[b].top_k = 40, s[b].min_p = 0.02f;
    }
}

static int is_residual(const sop_op *op, int32_t r)
{
    return op->roles[r].name[0] == 'r' || strcmp(op->roles[r].name, "dr") == 0;
}

/* Whether a line runs without the operand. */
static int absent(const sop_op *op, int32_t r, int32_t skewed)
{
    if (op->roles[r].flags & SOP_ROLE_LIVE) return 1;
    if (!sop_droppable(op, r)) return 0;
    if (op != &sop_op_bias_act && op != &sop_op_layernorm && !strstr(op->name, "_grad")) return 1;
    return skewed == 0 || (skewed == 1 && is_residual(op, r));
}

static void make_sets(struct sets *s, const sop_op *op, const void *desc, int32_t skewed)
{
    sop_tensor v[SOP_MOST_ROLES];
    sop_operand host[SOP_MOST_ROLES] = {{0}};
    sop_facts facts;
    size_t one = 0, at = 0;
    for (int32_t r = 0; r < op->n_roles; r++) {
        op->view(desc, r, &v[r]);
        if (absent(op, r, skewed)) v[r].ndim = 0;
        if (v[r].ndim) one += rounded(v[r].bytes);
    }
    card->ops->facts(card, &facts);
    s->n = (int64_t)(4 * (size_t)facts.l2_bytes / one) + 1;
    s->bytes = (size_t)s->n * one;
    s->args = calloc((size_t)(s->n * op->n_roles), sizeof *s->args);
    char *staging = malloc(one);
    if (!s->args || !staging) exit(1);
    must(card->ops->reserve(card, s->bytes, (void **)&s->memory));
    for (int32_t r = 0; r < op->n_roles; r++) {
        if (!v[r].ndim) continue;
        host[r] = (sop_operand){staging + at, v[r].bytes};
        if (!(op->roles[r].flags & SOP_ROLE_OUT)) fill(&v[r], staging + at, 77 + (uint64_t)r);
        for (int64_t k = 0; k < s->n; k++)
            s->args[k * op->n_roles + r] =
                (sop_operand){s->memory + (size_t)k * one + at, v[r].bytes};
        at += rounded(v[r].bytes);
    }
    if (op->fill) op->fill(desc, 0, -1, host);
    if (skewed && op == &sop_op_sample)
        want(desc, skewed, host);
    else if (op == &sop_op_experts)
        deal(desc, host);
    else if (skewed < 0)
        mix(desc, host);
    else if (skewed && op == &sop_op_attention)
        skew(desc, skewed, host);
    must(card->ops->copy(queue, s->memory, staging, one, SOP_COPY_IN));
    for (int64_t k = 1; k < s->n; k++)
        must(card->ops->copy(queue, s->memory + (size_t)k * one, s->memory, one, SOP_COPY_WITHIN));
    must(card->ops->wait(queue));
    free(staging);
}

static const sop_row *row_named(const sop_op *op, const char *name)
{
    for (int32_t i = 0; i < op->n_rows; i++)
        if (strcmp(op->rows[i].name, name) == 0) return &op->rows[i];
    printf("no row %s\n", name);
    exit(1);
}

struct planned {
    const sop_row *row;
    sop_call call;
    sop_split split;
};

static void plan(struct planned *p, const sop_op *op, const char *name, const void *desc)
{
    sop_facts facts;
    card->ops->facts(card, &facts);
    *p = (struct planned){.row = row_named(op, name)};
    const char *why = p->row->refuse(desc);
    if (why) {
        printf("%s refuses: %s\n", name, why);
        exit(1);
    }
    if (p->row->plan) must(p->row->plan(desc, NULL, &facts, SIZE_MAX, &p->split));
    p->call = (sop_call){.size = sizeof p->call,
                         .n_args = (uint32_t)op->n_roles,
                         .desc = desc,
                         .split = &p->split,
                         .queue = queue};
    must(card->ops->reserve(card, p->split.scratch_bytes, &p->call.scratch));
}

static void unplan(struct planned *p)
{
    card->ops->release(card, p->call.scratch, p->split.scratch_bytes);
}

/* |a - b| / |b| of all outputs, where a is what p made of the first set and b the floor. */
static double difference(const sop_op *op, const void *desc, const struct sets *s,
                         struct planned *p, struct planned *floor)
{
    double err = 0, all = 0;
    struct planned *const both[] = {p, floor};
    for (int32_t r = 0; r < op->n_roles; r++) {
        sop_tensor v;
        void *out[2];
        op->view(desc, r, &v);
        if (!s->args[r].data || !(op->roles[r].flags & SOP_ROLE_OUT)) continue;
        for (int k = 0; k < 2; k++) {
            out[k] = malloc(v.bytes);
            both[k]->call.args = s->args;
            memset(out[k], 0xff, v.bytes);
            must(card->ops->copy(queue, s->args[r].data, out[k], v.bytes, SOP_COPY_IN));
            must(card->ops->submit(queue, both[k]->row, &both[k]->call));
            must(card->ops->copy(queue, out[k], s->args[r].data, v.bytes, SOP_COPY_OUT));
            must(card->ops->wait(queue));
        }
        const int64_t n = sop_view_blocks(&v);
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = sop_view_at(&v, i);
            const double a = sop_load(out[0], v.dtype, at), b = sop_load(out[1], v.dtype, at);
            if (isnan(a) && isnan(b)) continue; /* written by neither */
            err += (a - b) * (a - b);
            all += b * b;
        }
        free(out[0]);
        free(out[1]);
    }
    return sqrt(all > 0 ? err / all : err);
}

static sop_graph *record(struct planned *p, const struct sets *s, int64_t calls)
{
    sop_graph *g;
    must(card->ops->record_begin(queue));
    for (int64_t i = 0; i < calls; i++) {
        p->call.args = s->args + i % s->n * p->call.n_args;
        must(card->ops->submit(queue, p->row, &p->call));
    }
    must(card->ops->record_end(queue, &g));
    return g;
}

static double replay(sop_graph *g, int64_t times)
{
    const double from = sop_now_s();
    for (int64_t i = 0; i < times; i++) must(card->ops->replay(queue, g));
    must(card->ops->wait(queue));
    return (sop_now_s() - from) / (double)times;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_line(const sop_op *op, const void *desc, const struct line *l, struct planned *p,
                      const struct sets *s, double rel)
{
    enum { BURSTS = 7 };
    sop_cost cost;
    double burst[BURSTS];
    int64_t calls = 1;
    sop_graph *g = record(p, s, calls);
    (void)replay(g, 1);
    for (double took = replay(g, 1); took < 4e-3 && calls < 4096; took = replay(g, 1)) {
        card->ops->graph_destroy(g);
        calls = took > 2e-4 ? (int64_t)(4.5e-3 / took * (double)calls) + 1 : 8 * calls;
        if (calls > 4096) calls = 4096;
        g = record(p, s, calls);
        (void)replay(g, 1);
    }
    for (int i = 0; i < BURSTS; i++) {
        (void)usleep(60000);
        burst[i] = replay(g, 1) / (double)calls;
    }
    qsort(burst, BURSTS, sizeof *burst, ascending);
    const double once = burst[BURSTS / 2];
    const double long_run = replay(g, (int64_t)(0.4 / (once * (double)calls)) + 1) / (double)calls;
    card->ops->graph_destroy(g);
    op->cost(desc, &cost);
    for (int32_t r = 0; l->skewed == 2 && op != &sop_op_sample && r < op->n_roles; r++) {
        sop_tensor v;
        op->view(desc, r, &v);
        if (is_residual(op, r)) cost.read_bytes += (double)v.bytes; /* or written */
    }
    if (l->skewed < 0) {
        cost.flops = mixed_flops(desc);
    } else if (l->skewed && op == &sop_op_attention) {
        const sop_attention_desc *d = desc;
        const double keys = (double)d->max_kv + (double)(d->seqs - 1) * l->skewed;
        cost.read_bytes = keys * (double)(d->kv_heads * 2 * d->k) * 2;
        cost.flops = 4 * keys * (double)(d->heads * d->k);
    }
    const double bytes = cost.read_bytes + cost.write_bytes;
    printf("%-22s %-70.70s %9.2f us (%.2f to %.2f) %5.2f TB/s %6.1f TFLOP/s; sustained %9.2f us "
           "%5.2f TB/s %6.1f TFLOP/s; sets %lld",
           p->row->name, l->desc, once * 1e6, burst[0] * 1e6, burst[BURSTS - 1] * 1e6,
           bytes / once * 1e-12, cost.flops / once * 1e-12, long_run * 1e6,
           bytes / long_run * 1e-12, cost.flops / long_run * 1e-12, (long long)s->n);
    if (l->skewed) printf("; skewed %d", l->skewed);
    printf(rel >= 0 ? "; off by %.2e\n" : "\n", rel);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    if (sop_device_cuda(0, &card) != SOP_OK) {
        printf("%s\n", sop_last_error());
        return 1;
    }
    must(card->ops->queue_create(card, &queue));
    printf("%s\n", card->ops->name);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const struct line *l = &lines[i];
        const sop_op *op = sop_op_find(l->op);
        _Alignas(16) char desc[1024];
        struct sets sets;
        struct planned hot, floor;
        double rel = -1;
        if (argc > 1 && !strstr(l->row, argv[1]) && !strstr(l->desc, argv[1])) continue;
        must(sop_desc_parse(op, l->desc, desc));
        make_sets(&sets, op, desc, l->skewed);
        plan(&hot, op, l->row, desc);
        if (l->floor) {
            plan(&floor, op, l->floor, desc);
            rel = difference(op, desc, &sets, &hot, &floor);
            unplan(&floor);
        }
        time_line(op, desc, l, &hot, &sets, rel);
        unplan(&hot);
        card->ops->release(card, sets.memory, sets.bytes);
        free(sets.args);
    }
    card->ops->queue_destroy(queue);
    sop_device_destroy(card);
    return 0;
}
