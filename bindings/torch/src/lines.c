/* Every operator as PyTorch sees it, a line each. An operator of the library that has a line here has a
 * schema, kernels for CPU and CUDA, and fakes: nothing else is written by hand.
 *
 *     NAME OP  INPUT...  ->  OUTPUT...
 *
 * NAME is that in torch.ops.superop, OP the library's. What stands between is in the order of the
 * schema:
 *
 *     x[*tokens,dim]   the operand x of OP. A dimension is a field of OP's desc, a name of its own, or a
 *                      sum, difference, product or quotient. * in front: all leading dimensions together;
 *                      ** alone: the same for the two fields tokens and heads
 *     r?[...]          Tensor?; r?{alibi=1}[...] sets a field of the desc when it is there
 *     pool![...]       Tensor(a!): written in place
 *     w%[...]          uint8 bytes of a weight whose format is an argument
 *     eps=1e-6         an argument with its default; 1 is an int, 1.0 a float; top is one without
 *     format>w         an argument under a name of its own: an int that becomes the field w
 *     rot:=2*half      a field that follows from the others, unless it is known by now
 *
 * An output's :x is the argument that it takes its type from, :type the int whose type it has; without, it
 * is the one that the library fixes, or f32. Each line
 * makes NAME, which returns its outputs, and NAME.out, which is given them. */
#include "lines.h"

#include <stddef.h>

/* clang-format off */
const char *const sop_torch_lines[] = {
    "embed embed  ids[*tokens] table[rows,dim] scale=1.0 live?[1]  ->  y[*tokens,dim]:table",
    "embed_packed embed  ids[*tokens] table%[rows,dim] dim format>w scale=1.0 live?[1]  ->  y[*tokens,dim]",
    "rope rope  x[*tokens,heads,k] pos[*tokens] freqs[half] mscale=1.0 interleaved=0 live?[1] rot:=2*half  ->  y[*tokens,heads,k]:x",
    "kv_append kv_append  k[*tokens,heads,k] v[*tokens,heads,v] slots[*tokens] k_pool![pages,page,heads,k] v_pool![pages,page,heads,v] "
        "k_scales?[heads] v_scales?[heads] live?[1]  ->",
    "attention attention  q[tokens,heads,k] k_pool[pages,page,kv_heads,k] v_pool[pages,page,kv_heads,v] table[seqs,table_stride] "
        "q_start[seqs+1] kv_len[seqs] max_kv=0 causal=1 window=0 scale=0.0 cap=0.0 mask?[tokens,mask_heads,max_kv] "
        "slopes?{alibi=1}[heads] sinks?{sinks=1}[heads] k_scales?[kv_heads] v_scales?[kv_heads] numerics=0 live?[1] "
        "max_kv:=table_stride*page  ->  o[tokens,heads,v]:q",
    "attention_lse attention  q[tokens,heads,k] k_pool[pages,page,kv_heads,k] v_pool[pages,page,kv_heads,v] table[seqs,table_stride] "
        "q_start[seqs+1] kv_len[seqs] max_kv=0 causal=1 window=0 scale=0.0 cap=0.0 mask?[tokens,mask_heads,max_kv] "
        "slopes?{alibi=1}[heads] sinks?{sinks=1}[heads] k_scales?[kv_heads] v_scales?[kv_heads] numerics=0 live?[1] "
        "max_kv:=table_stride*page  ->  o[tokens,heads,v]:q lse[tokens,heads]",
    "merge merge  x[tokens,parts,heads,v] lse[tokens,parts,heads] live?[1]  ->  y[tokens,heads,v]:x",
    "merge_lse merge  x[tokens,parts,heads,v] lse[tokens,parts,heads] live?[1]  ->  y[tokens,heads,v]:x lse_out[tokens,heads]",
    "linear linear  x[*m,k] w[n,k] bias?{bias=1}[n] numerics=1 live?[1]  ->  y[*m,n]:x",
    "linear_packed linear  x[*m,k] w%[n,k] format>w bias?{bias=1}[n] numerics=1 live?[1]  ->  y[*m,n]:x",
    "linear_f8 linear  x[*m,k] w%[n,k] format>w x_scale?[*m] bias?{bias=1}[n] type>y=2 numerics=0 live?[1]  ->  y[*m,n]:type",
    "quantize quantize  x[*tokens,dim] live?[1]  ->  codes[*tokens,dim] scale[*tokens]",
    "linear2 linear  x[*m,k] w[n,k] w1[n1,k] bias?{bias=1}[n] bias1?{bias=2}[n1] numerics=1 live?[1]  ->  y[*m,n+n1]:x",
    "linear3 linear  x[*m,k] w[n,k] w1[n1,k] w2[n2,k] bias?{bias=1}[n] bias1?{bias=2}[n1] bias2?{bias=4}[n2] numerics=1 live?[1]"
        "  ->  y[*m,n+n1+n2]:x",
    "rms_norm rmsnorm  x[**,dim] w[dim] eps=1e-6 offset=0.0 live?[1]  ->  y[**,dim]:x",
    "add_rms_norm rmsnorm  x[**,dim] r[**,dim] w[dim] eps=1e-6 offset=0.0 live?[1]  ->  y[**,dim]:x r_out[**,dim]:r",
    "layer_norm layernorm  x[*tokens,dim] w?[dim] b?[dim] eps=1e-5 live?[1]  ->  y[*tokens,dim]:x",
    "add_layer_norm layernorm  x[*tokens,dim] r[*tokens,dim] w?[dim] b?[dim] eps=1e-5 live?[1]"
        "  ->  y[*tokens,dim]:x r_out[*tokens,dim]:r",
    "gated gated  x[*tokens,both] act=0 live?[1] dim:=both/2  ->  y[*tokens,dim]:x",
    "bias_act bias_act  x[*tokens,dim] bias?[dim] r?[*tokens,dim] act=1 residual=0 live?[1]  ->  y[*tokens,dim]:x",
    "moe_gate moe_gate  x[tokens,experts] top over=0 live?[1]"
        "  ->  ids[tokens,top] weights[tokens,top] counts[experts] perm[tokens*top]",
    "experts experts  x[rows,k] w[experts,n,k] counts[experts]  ->  y[rows,n]:x",
    "experts_packed experts  x[rows,k] w%[experts,n,k] format>w counts[experts]  ->  y[rows,n]:x",
    "experts_perm experts  x[pairs,k] w[experts,n,k] counts[experts] perm[rows] gather=0 scatter=0  ->  y[rows,n]:x",
    "combine combine  x[pairs,dim] weights[tokens,top] r?[tokens,dim] live?[1]  ->  y[tokens,dim]:x",
    "add add  a[*tokens,dim] b[*tokens,dim] live?[1]  ->  y[*tokens,dim]:a",
    "softmax softmax  x[*tokens,dim] scale=1.0 live?[1]  ->  y[*tokens,dim]:x",
    "sample sample  logits[rows,vocab] params[rows,record] live?[1]  ->  ids[rows]",
    "finite finite  x[*tokens,dim] allow_neg_inf=0 live?[1]  ->  count[1]",
    "bias_act_grad bias_act_grad  x[*tokens,dim] dy[*tokens,dim] bias?[dim] r?[*tokens,dim] act=1  ->  dx[*tokens,dim]:x",
    "bias_act_grads bias_act_grad  x[*tokens,dim] dy[*tokens,dim] bias?[dim] r?[*tokens,dim] act=1  ->  dx[*tokens,dim]:x dbias[dim]",
    "gated_grad gated_grad  x[*tokens,both] dy[*tokens,dim] act=0  ->  dgate[*tokens,dim]:x dup[*tokens,dim]:x",
    "softmax_grad softmax_grad  y[*tokens,dim] dy[*tokens,dim] scale=1.0  ->  dx[*tokens,dim]:y",
    "rms_norm_grad rmsnorm_grad  x[**,dim] w[dim] dy[**,dim] dr?[**,dim] eps=1e-6 offset=0.0  ->  dx[**,dim]:x dw[dim]",
    "layer_norm_grad layernorm_grad  x[*tokens,dim] dy[*tokens,dim] w?[dim] dr?[*tokens,dim] eps=1e-5"
        "  ->  dx[*tokens,dim]:x dw[dim] db[dim]",
    "matmul matmul  a[rows,k] b[k,cols]  ->  y[rows,cols]:a",
    "matmul_t matmul  a{transposed=1}[k,rows] b[k,cols]  ->  y[rows,cols]:a",
    "matmul_t_sums matmul  a{transposed=1}[k,rows] b[k,cols]  ->  y[rows,cols]:a sums[rows]",
    "attention_grad attention_grad  q[tokens,heads,k] k[keys,kv_heads,k] v[keys,kv_heads,v] q_start[starts] k_start[starts] "
        "o[tokens,heads,v] lse[tokens,heads] do[tokens,heads,v] max_q=0 max_kv=0 causal=1 window=0 scale=0.0 cap=0.0 numerics=0 "
        "seqs:=starts-1  ->  dq[tokens,heads,k]:q dk[keys,kv_heads,k]:k dv[keys,kv_heads,v]:v",
    NULL,
};
/* clang-format on */
