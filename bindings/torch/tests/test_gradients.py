"""Gradients: gradcheck in float64, lower types against float64, training against plain PyTorch."""

import itertools

import torch
import torch.nn.functional as F

import superop
from harness import DEVICES, UNIT, Skip

TYPES = [torch.float32, torch.float16, torch.bfloat16]


def randn(*shape, dtype=torch.float64, device="cpu", seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(device, dtype)


def needs_backward():
    if not superop.has_gradients():
        raise Skip("the library has no backward operators")


def acts(g, act):
    return {
        "silu": lambda: F.silu(g),
        "gelu_tanh": lambda: F.gelu(g, approximate="tanh"),
        "gelu": lambda: F.gelu(g),
        "quick_gelu": lambda: g * torch.sigmoid(1.702 * g),
        "relu": lambda: F.relu(g),
    }[act]()


def rms(x, w, eps=1e-6, offset=0.0):
    return (offset + w) * x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def turn(x, pos, freqs):
    phase = (pos[..., None].float() * freqs).double()[..., None, :]
    a, b = x.chunk(2, -1)
    cos, sin = phase.cos().to(x.dtype), phase.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, scale, causal, window, cap):
    n, m = q.shape[2], k.shape[2]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    z = q @ k.transpose(-1, -2) * scale
    z = cap * torch.tanh(z / cap) if cap else z
    p, j = torch.arange(n, device=q.device)[:, None] + m - n, torch.arange(m, device=q.device)
    seen = (j <= p) if causal else torch.ones(n, m, dtype=torch.bool, device=q.device)
    seen = seen & (j > p - window) if window else seen
    return torch.softmax(z.masked_fill(~seen, -1e30), -1) @ v


def cases(device="cpu", dtype=torch.float64):
    """name, our function, PyTorch's in float64, the arguments that have gradients."""
    r = lambda *s, seed=0: randn(*s, dtype=dtype, device=device, seed=seed)  # noqa: E731
    p = lambda *s, seed=9: randn(*s, dtype=dtype if dtype is torch.float64 else torch.float32, device=device, seed=seed)  # noqa: E731
    x, y = r(2, 3, 10), r(2, 3, 10, seed=1)
    yield "rms_norm", lambda x, w: superop.rms_norm(x, w, 1e-5, 1.0), lambda x, w: rms(x, w, 1e-5, 1.0), (x, p(10))
    yield "rms_norm of heads", superop.rms_norm, rms, (r(2, 3, 4, 8)[:, 1:], p(8))
    yield "add_rms_norm", superop.add_rms_norm, lambda x, y, w: (rms(x + y, w), x + y), (x, y, p(10))
    ln = lambda x, w, b: F.layer_norm(x, (10,), w, b)  # noqa: E731
    yield "layer_norm", superop.layer_norm, ln, (x, p(10), p(10, seed=3))
    yield "add_layer_norm", superop.add_layer_norm, lambda x, y, w, b: (ln(x + y, w, b), x + y), (x, y, p(10), p(10, seed=3))
    yield "linear", superop.linear, F.linear, (x, r(7, 10), p(7))
    yield "linear without bias", superop.linear, F.linear, (x, r(7, 10))
    yield "softmax", lambda x: superop.softmax(x, 0.5), lambda x: F.softmax(x * 0.5, -1), (x,)
    pos, freqs = torch.tensor([[0, 1, 2], [7, 9, 30]], device=device), torch.tensor([1.0, 0.1, 0.01, 0.003], device=device)
    yield "rope", lambda x: superop.rope(x, pos, freqs), lambda x: turn(x, pos, freqs), (r(2, 3, 2, 8),)
    if "attention_grad" in superop._ops.table:
        q, k, v = r(2, 4, 3, 8), r(2, 2, 5, 8), r(2, 2, 5, 8, seed=2)
        for causal, window, cap in ((1, 0, 0.0), (0, 0, 0.0), (1, 2, 0.0), (1, 0, 2.0)):
            yield (
                f"attention {causal} {window} {cap}",
                lambda q, k, v, a=(0.3, causal, window, cap): superop.attention(q, k, v, *a),
                lambda q, k, v, a=(0.3, causal, window, cap): attend(q, k, v, *a),
                (q, k, v),
            )
    for act in ("silu", "gelu_tanh", "gelu"):
        yield f"gated {act}", lambda x, act=act: superop.gated(x, act), lambda x, act=act: acts(x[..., :5], act) * x[..., 5:], (x,)
    for act in superop.functional.ACTS:
        yield f"bias_act {act}", lambda x, b, act=act: superop.bias_act(x, b, act=act), lambda x, b, act=act: acts(x + b, act), (x, p(10))
    yield (
        "bias and residual inside",
        lambda x, b, s: superop.bias_act(x, b, s, "quick_gelu"),
        lambda x, b, s: acts(x + b + s, "quick_gelu"),
        (x, p(10), y),
    )
    yield (
        "bias and residual after",
        lambda x, b, s: superop.bias_act(x, b, s, "quick_gelu", after=True),
        lambda x, b, s: acts(x + b, "quick_gelu") + s,
        (x, p(10), y),
    )


def test_gradcheck_in_float64():
    needs_backward()
    for name, ours, _, args in cases():
        try:
            ours(*args)
        except RuntimeError as e:  # its forward has no reference in float64
            print(f"not in float64: {name}: {e}")
            continue
        args = tuple(a.clone().requires_grad_() for a in args)
        assert torch.autograd.gradcheck(ours, args, eps=1e-6, atol=1e-6, rtol=1e-5), name


def test_gradients_of_lower_types_against_float64():
    needs_backward()
    for device, dtype in itertools.product(DEVICES, TYPES):
        for name, ours, theirs, args in cases(device, dtype):
            mine = [a.detach().clone().requires_grad_() for a in args]
            wide = [a.detach().double().requires_grad_() for a in args]
            for f, given in ((ours, mine), (theirs, wide)):
                out = f(*given)
                out = out if isinstance(out, tuple) else (out,)
                sum((o.double() * torch.linspace(-1, 1, o.numel(), dtype=torch.float64, device=device).view_as(o)).sum() for o in out).backward()
            for i, (a, b) in enumerate(zip(mine, wide)):
                # roundings of the result and of dy, and sums of up to 36 products
                bound = 12 * UNIT[dtype] * (b.grad.abs() + b.grad.abs().max()) + 1e-6
                assert ((a.grad.double() - b.grad).abs() <= bound).all(), (name, device, dtype, i)


def test_no_rows_have_gradients_too():
    """Batches without a row: gradients of what came in are empty, those of parameters 0."""
    needs_backward()
    x, w, b = (torch.randn(*s) for s in ((3, 10), (10,), (10,)))
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    for device, (f, *args) in itertools.product(
        DEVICES,
        (
            (superop.rms_norm, x[:0], w),
            (lambda x, w: superop.add_rms_norm(x, x, w)[0], x[:0], w),
            (superop.layer_norm, x[:0], w, b),
            (superop.bias_act, x[:0], b),
            (superop.gated, x[:0]),
            (superop.softmax, x[:0]),
            (superop.linear, x[:0], torch.randn(4, 10), torch.randn(4)),
            (superop.attention, q[:0], k[:0], v[:0]),
            (superop.attention, q[:, :, :0], k, v),
        ),
    ):
        args = [a.detach().to(device).requires_grad_() for a in args]
        f(*args).sum().backward()
        assert all(a.grad.shape == a.shape and not a.grad.any() for a in args)


def test_strided_and_expanded_gradients_arrive():
    needs_backward()
    for device in DEVICES:
        x = randn(4, 6, device=device, dtype=torch.float32).requires_grad_()
        w = randn(6, device=device, dtype=torch.float32).requires_grad_()
        superop.rms_norm(x, w).sum().backward()  # dy is an expanded scalar
        wide = [t.detach().double().requires_grad_() for t in (x, w)]
        rms(*wide).sum().backward()
        for a, b in zip((x, w), wide):
            assert (a.grad.double() - b.grad).abs().max() < 1e-5


def train(own, seed, device, dtype, steps=200):
    """Losses of a small transformer computed in dtype, its parameters float32."""
    g = torch.Generator().manual_seed(0)
    text = torch.randint(0, 32, (16, 24), generator=g).to(device)
    torch.manual_seed(seed)
    d, f, v = 32, 48, 32
    shapes = dict(emb=(v, d), n1=(d,), qkv=(3 * d, d), qkv_b=(3 * d,), o=(d, d), n2=(d,), up=(2 * f, d), down=(d, f), n3=(d,))
    ps = {k: torch.ones(*s) if k[0] == "n" else torch.randn(*s) * 0.15 for k, s in shapes.items()}
    ps = {k: p.to(device).requires_grad_() for k, p in ps.items()}
    adam = torch.optim.Adam(ps.values(), lr=3e-3)
    norm = superop.rms_norm if own else lambda x, w: F.rms_norm(x, x.shape[-1:], w.to(dtype), 1e-6)
    lin = superop.linear if own else F.linear
    seen = torch.ones(23, 23, dtype=torch.bool, device=device).tril()
    losses = []
    for _ in range(steps):
        now = {k: p if k[0] == "n" else p.to(dtype) for k, p in ps.items()}
        x = F.embedding(text[:, :-1], now["emb"])
        q, k, val = lin(norm(x, now["n1"]), now["qkv"], now["qkv_b"]).view(16, 23, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if own:
            o = superop.attention(q, k, val, 8**-0.5, True)
        else:
            z = (q @ k.transpose(-1, -2)).masked_fill(~seen, -1e9)
            o = (superop.softmax(z, 8**-0.5) if own else F.softmax(z * 8**-0.5, -1)) @ val
        x = x + lin(o.transpose(1, 2).reshape(16, 23, d), now["o"])
        h = lin(norm(x, now["n2"]), now["up"])
        h = superop.gated(h) if own else F.silu(h[..., :f]) * h[..., f:]
        x = norm(x + lin(h, now["down"]), now["n3"])
        loss = F.cross_entropy((x @ now["emb"].T).float().flatten(0, 1), text[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def test_a_small_transformer_learns_as_with_pytorch():
    needs_backward()
    for device, dtype in [("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.bfloat16)]:
        if device not in DEVICES:
            continue
        plain, other, ours = (train(own, seed, device, dtype) for own, seed in ((False, 1), (False, 2), (True, 1)))
        noise, apart = (plain - other).abs().max(), (ours - plain).abs().max()
        print(f"{device} {str(dtype)[6:]}: {ours[0]:.4f} to {ours[-1]:.4f}, {apart:.2g} from PyTorch's; two seeds {noise:.2g}")
        assert ours[-1] < ours[0] / 2 and apart < noise, (device, dtype, ours[-1], plain[-1], noise)
