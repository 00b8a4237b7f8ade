"""Two operators of PyTorch, forward by the rows of bias_gelu.c and bias_gelu.cu, backward by superop's own
bias_act_grad. `python own_operator.py` checks them."""

import os

import torch
import torch.nn.functional as F

import superop

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = {"cpu": "own:bias_gelu"}
superop.load_plugin(os.path.join(HERE, "bias_gelu.so"))
if torch.cuda.is_available() and os.path.exists(os.path.join(HERE, "bias_gelu_cuda.so")):
    superop.load_plugin(os.path.join(HERE, "bias_gelu_cuda.so"), "cuda")
    ROWS["cuda"] = "own:bias_gelu_cuda"

ops = torch.ops.superop
GELU_TANH, GELU, QUICK_GELU = 1, 2, 3  # sop_act
AFTER = 1  # sop_residual


class _BiasAct(torch.autograd.Function):
    """act(x + bias), and a residual added after it, whose gradient is dy."""

    @staticmethod
    def forward(ctx, x, bias, residual, act):
        ctx.save_for_backward(x, bias)
        ctx.act, ctx.residual = act, residual is not None
        return ops.bias_act(x, bias, residual, act, AFTER)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, bias = ctx.saved_tensors
        dx, dbias = ops.bias_act_grads(x, dy, bias, None, ctx.act)
        return dx, dbias.to(bias.dtype), dy if ctx.residual else None, None


def bias_gelu(x, bias, approximate="none"):
    """F.gelu(x + bias, approximate=approximate)"""
    return _BiasAct.apply(x, bias, None, GELU_TANH if approximate == "tanh" else GELU)


def bias_residual_quick_gelu(x, bias, residual):
    """quick_gelu(x + bias) + residual, with quick_gelu(g) = g sigmoid(1.702 g)"""
    return _BiasAct.apply(x, bias, residual, QUICK_GELU)


# Each form: ours, and the same in PyTorch.
FORMS = {
    "bias + gelu": (lambda x, b, r: bias_gelu(x, b), lambda x, b, r: F.gelu(x + b)),
    "bias + gelu_tanh": (
        lambda x, b, r: bias_gelu(x, b, "tanh"),
        lambda x, b, r: F.gelu(x + b, approximate="tanh"),
    ),
    "bias + residual + quick_gelu": (
        bias_residual_quick_gelu,
        lambda x, b, r: (x + b) * torch.sigmoid(1.702 * (x + b)) + r,
    ),
}


def main():
    torch.manual_seed(0)
    for device, row in ROWS.items():
        for name, (ours, theirs) in FORMS.items():
            # In float32 it is our row that runs, and its gradients are PyTorch's.
            args = [torch.randn(*s, device=device, requires_grad=True) for s in ((3, 37, 250), (250,), (3, 37, 250))]
            dy = torch.randn(3, 37, 250, device=device)
            with superop.rows() as seen:
                y = ours(*args)
            assert seen == [("bias_act", row)], seen
            want = theirs(*args)
            torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-6)
            used = args if "residual" in name else args[:2]
            for got, grad in zip(torch.autograd.grad(y, used, dy), torch.autograd.grad(want, used, dy)):
                torch.testing.assert_close(got, grad, rtol=1e-4, atol=1e-4)

            # In float64 the references of forward and backward run, against central differences.
            double = [torch.randn(*s, dtype=torch.float64, device=device, requires_grad=True) for s in ((4, 9), (9,), (4, 9))]
            assert torch.autograd.gradcheck(ours, double if "residual" in name else double[:2] + [None])
            print(f"{device} {name}: {row}, values and gradients are right")


if __name__ == "__main__":
    main()
