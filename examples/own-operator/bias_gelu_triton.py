"""The same kernel in Triton, to measure against."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, bias, residual, y, dim, ACT: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * dim + i
    g = tl.load(x + at, i < dim).to(tl.float32) + tl.load(bias + i, i < dim).to(tl.float32)
    if ACT == "gelu":
        v = 0.5 * g * (1 + tl.erf(g * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        v = g * tl.sigmoid(g * (1.5957691216 + 0.0713548163 * g * g))
    else:
        v = g * tl.sigmoid(1.702 * g)
    if ADD:
        v += tl.load(residual + at, i < dim).to(tl.float32)
    tl.store(y + at, v, i < dim)


def bias_act(x, bias, residual, act, block=2048):
    """x and residual dense, [tokens, dim]."""
    y = torch.empty_like(x)
    tokens, dim = x.shape
    _kernel[(tokens, triton.cdiv(dim, block))](x, bias, residual, y, dim, act, residual is not None, block)
    return y
