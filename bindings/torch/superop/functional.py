"""The operators as functions with gradients: superop.rms_norm(x, w), superop.linear(x, w, bias), ...

Forward and backward are the library's own, on CPU and CUDA; in float64 they are its references, for
gradcheck. torch.ops.superop itself has no gradients: a call there costs what a call costs, and these
functions go there straight when no gradient is asked for. A second derivative is refused."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import _ops

ops = torch.ops.superop

ACTS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "quick_gelu": 3, "relu": 4}


def pack_f8(codes, scale):
    """Weights of float8_e4m3fn [n, k] with their scales, as torch.ops.superop.linear_f8 and linear_packed read
    them (format 25): uint8 [n, k / 128 * 132]. scale: one for all, for each row [n, 1], or for each 128 columns
    of a row [n, k / 128]; one for a block of 128 rows and columns is that of its rows."""
    n, k = codes.shape
    if codes.dtype != torch.float8_e4m3fn or k % 128:
        raise ValueError(f"superop: {codes.dtype} of {k} columns, must be float8_e4m3fn and a multiple of 128")
    scales = scale.float().expand(n, k // 128).contiguous().view(torch.uint8).view(n, -1, 4)
    return torch.cat([scales, codes.contiguous().view(torch.uint8).view(n, -1, 128)], -1).view(n, -1)


def _act(act):
    if act not in ACTS:
        raise ValueError(f"superop: no activation {act!r}, allowed: {', '.join(ACTS)}")
    return ACTS[act]


def _grad(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _like(value, param):
    """A gradient in the type of its parameter."""
    return None if param is None else value.to(param.dtype)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx, x, w, eps, offset):
        ctx.save_for_backward(x, w)
        ctx.args = eps, offset
        return ops.rms_norm(x, w, eps, offset)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx, dw = ops.rms_norm_grad(x, w, dy, None, *ctx.args)
        return dx, _like(dw, w), None, None


def rms_norm(x, w, eps=1e-6, offset=0.0):
    """(offset + w) * x / sqrt(mean of x^2 + eps), over the last dimension."""
    return _RmsNorm.apply(x, w, eps, offset) if _grad(x, w) else ops.rms_norm(x, w, eps, offset)


class _AddRmsNorm(Function):
    @staticmethod
    def forward(ctx, x, r, w, eps, offset):
        y, s = ops.add_rms_norm(x, r, w, eps, offset)
        ctx.save_for_backward(s, w)
        ctx.args = eps, offset
        ctx.types = x.dtype, r.dtype
        return y, s

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, ds):
        s, w = ctx.saved_tensors
        dx, dw = ops.rms_norm_grad(s, w, dy, ds, *ctx.args)
        return dx.to(ctx.types[0]), dx.to(ctx.types[1]), _like(dw, w), None, None


def add_rms_norm(x, r, w, eps=1e-6, offset=0.0):
    """rms_norm of x + r, and x + r."""
    return _AddRmsNorm.apply(x, r, w, eps, offset) if _grad(x, r, w) else ops.add_rms_norm(x, r, w, eps, offset)


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, w, b, eps):
        ctx.save_for_backward(x, w, b)
        ctx.eps = eps
        return ops.layer_norm(x, w, b, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w, b = ctx.saved_tensors
        dx, dw, db = ops.layer_norm_grad(x, dy, w, None, ctx.eps)
        return dx, _like(dw, w), _like(db, b), None


def layer_norm(x, w=None, b=None, eps=1e-5):
    """w * (x - mean) / sqrt(variance + eps) + b, over the last dimension."""
    return _LayerNorm.apply(x, w, b, eps) if _grad(x, w, b) else ops.layer_norm(x, w, b, eps)


class _AddLayerNorm(Function):
    @staticmethod
    def forward(ctx, x, r, w, b, eps):
        y, s = ops.add_layer_norm(x, r, w, b, eps)
        ctx.save_for_backward(s, w, b)
        ctx.eps = eps
        ctx.types = x.dtype, r.dtype
        return y, s

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, ds):
        s, w, b = ctx.saved_tensors
        dx, dw, db = ops.layer_norm_grad(s, dy, w, ds, ctx.eps)
        return dx.to(ctx.types[0]), dx.to(ctx.types[1]), _like(dw, w), _like(db, b), None


def add_layer_norm(x, r, w=None, b=None, eps=1e-5):
    """layer_norm of x + r, and x + r."""
    return _AddLayerNorm.apply(x, r, w, b, eps) if _grad(x, r, w, b) else ops.add_layer_norm(x, r, w, b, eps)


class _Linear(Function):
    @staticmethod
    def forward(ctx, x, w, bias):
        ctx.save_for_backward(x, w, bias)
        return ops.linear(x, w, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w, bias = ctx.saved_tensors
        dx = dw = db = None
        rows = dy.reshape(-1, dy.shape[-1])
        if ctx.needs_input_grad[0]:
            dx = ops.matmul(rows, w).view_as(x)
        if bias is not None and ctx.needs_input_grad[2]:
            dw, db = ops.matmul_t_sums(rows, x.reshape(-1, x.shape[-1]))
        elif ctx.needs_input_grad[1]:
            dw = ops.matmul_t(rows, x.reshape(-1, x.shape[-1]))
        return dx, dw, None if db is None else _like(db, bias)


def linear(x, w, bias=None):
    """x w^T + bias."""
    return _Linear.apply(x, w, bias) if _grad(x, w, bias) else ops.linear(x, w, bias)


class _Gated(Function):
    @staticmethod
    def forward(ctx, x, act):
        ctx.save_for_backward(x)
        ctx.act = act
        return ops.gated(x, act)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        half = x.shape[-1] // 2
        ops.gated_grad.out(x, dy, ctx.act, dgate=dx[..., :half], dup=dx[..., half:])
        return dx, None


def gated(x, act="silu"):
    """act(first half) * second half, of the last dimension."""
    return _Gated.apply(x, _act(act)) if _grad(x) else ops.gated(x, _act(act))


class _BiasAct(Function):
    @staticmethod
    def forward(ctx, x, bias, residual, act, after):
        ctx.save_for_backward(x, bias, residual)
        ctx.args = act, after
        return ops.bias_act(x, bias, residual, act, after)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, bias, residual = ctx.saved_tensors
        act, after = ctx.args
        inside = None if after else residual
        db = None
        if bias is not None and ctx.needs_input_grad[1]:
            dx, db = ops.bias_act_grads(x, dy, bias, inside, act)
        else:
            dx = ops.bias_act_grad(x, dy, bias, inside, act)
        dr = None if residual is None else (dy if after else dx).to(residual.dtype)
        return dx, None if db is None else _like(db, bias), dr, None, None


def bias_act(x, bias=None, residual=None, act="gelu_tanh", after=False):
    """act(x + bias + residual), or with after=True act(x + bias) + residual."""
    args = x, bias, residual, _act(act), int(after)
    return _BiasAct.apply(*args) if _grad(x, bias, residual) else ops.bias_act(*args)


class _Softmax(Function):
    @staticmethod
    def forward(ctx, x, scale):
        y = ops.softmax(x, scale)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return ops.softmax_grad(ctx.saved_tensors[0], dy, ctx.scale), None


def softmax(x, scale=1.0):
    """softmax of scale * x over the last dimension."""
    return _Softmax.apply(x, scale) if _grad(x) else ops.softmax(x, scale)


class _Rope(Function):
    @staticmethod
    def forward(ctx, x, pos, freqs, mscale, interleaved):
        ctx.save_for_backward(pos, freqs)
        ctx.args = mscale, interleaved
        return ops.rope(x, pos, freqs, mscale, interleaved)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        pos, freqs = ctx.saved_tensors
        return ops.rope(dy, pos, -freqs, *ctx.args), None, None, None, None


def rope(x, pos, freqs, mscale=1.0, interleaved=False):
    """Each pair of channels of x [..., heads, k] turned by pos * freqs."""
    args = x, pos, freqs, mscale, int(interleaved)
    return _Rope.apply(*args) if _grad(x) else ops.rope(*args)


class _Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, causal, window, cap):
        from .hf import index_of, whole_pages

        b, h, n, d = q.shape
        m = k.shape[2]
        table, starts, lens = index_of(b, n, m, q.device)
        rows = q.transpose(1, 2).reshape(b * n, h, d)
        exact = int(q.dtype is torch.float32)
        kp, vp = whole_pages(k, v)
        o, lse = ops.attention_lse(
            rows, kp.transpose(1, 2), vp.transpose(1, 2), table, starts, lens, 0, causal, window, scale, cap, numerics=exact
        )
        ctx.save_for_backward(rows, k, v, o, lse, starts)
        ctx.args = m, n, causal, window, scale, cap, exact
        return o.view(b, n, h, o.shape[-1]).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        rows, k, v, o, lse, starts = ctx.saved_tensors
        m, n, causal, window, scale, cap, exact = ctx.args
        b, g = k.shape[:2]
        flat = [x.transpose(1, 2).reshape(b * m, g, x.shape[-1]) for x in (k, v)]
        borders = torch.arange(0, b * m + 1, m, dtype=torch.int32, device=k.device)
        do = do.transpose(1, 2).reshape(o.shape).to(o.dtype)
        dq, dk, dv = ops.attention_grad(rows, *flat, starts, borders, o, lse, do, n, m, causal, window, scale, cap, exact)
        dq = dq.view(b, n, *dq.shape[1:]).transpose(1, 2)
        dk, dv = (x.view(b, m, *x.shape[1:]).transpose(1, 2) for x in (dk, dv))
        return dq, dk, dv, None, None, None, None


def attention(q, k, v, scale=None, causal=True, window=0, cap=0.0):
    """Attention of q [b, h, n, d] over k, v [b, g, m, d], the last query at the last key; o as q."""
    from .hf import core

    args = float(scale or q.shape[-1] ** -0.5), int(causal), int(window), float(cap)
    if _grad(q, k, v):
        return _Attention.apply(q, k, v, *args)
    return core(q, k, v, None, *args).transpose(1, 2)


def has_gradients():
    """Whether the library has the backward operators."""
    return "rms_norm_grad" in _ops.table
