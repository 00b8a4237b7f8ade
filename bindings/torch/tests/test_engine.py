"""SuperAttentionEngine against the same block of plain PyTorch in float64."""

import copy
import itertools

import torch

from harness import DEVICES
from superop import SuperAttentionEngine


def make(device, dtype=torch.float32, **kw):
    torch.manual_seed(0)
    return SuperAttentionEngine(64, 4, 80, dtype, num_kv_heads=2, device=device, **kw)


def plain(e, x, mask=None, window=0):
    """The block in float64: causal over x [b, n, 64]."""
    b, n, _ = x.shape
    x = x.detach().double()
    q, k, v = (
        torch.nn.functional.linear(x, p.weight.double(), None if p.bias is None else p.bias.double()).view(b, n, -1, 16).transpose(1, 2)
        for p in (e.q_proj, e.k_proj, e.v_proj)
    )
    phase = (torch.arange(n, device=x.device)[:, None].float() * e.freqs.float()).double()

    def turn(z):
        a, c = z.chunk(2, -1)
        return torch.cat([a * phase.cos() - c * phase.sin(), c * phase.cos() + a * phase.sin()], -1)

    q, k = turn(q), turn(k).repeat_interleave(2, 1)
    z = q @ k.transpose(-1, -2) * 16**-0.5
    i, j = torch.arange(n, device=x.device)[:, None], torch.arange(n, device=x.device)
    seen = j <= i
    if window:
        seen = seen & (j > i - window)
    seen = seen[None, None] if mask is None else seen[None, None] & mask
    w = torch.softmax(z.masked_fill(~seen, -1e30), -1)
    return (w @ v.repeat_interleave(2, 1)).transpose(1, 2).reshape(b, n, 64) @ e.o_proj.weight.double().T, w


def near(a, b, dtype=torch.float32, where=None):
    a, b = (a, b) if where is None else (a[where], b[where])
    bound = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    assert (a.double() - b).abs().max() <= bound * (1 + b.abs().max()), float((a.double() - b).abs().max())


def everywhere():
    return itertools.product(DEVICES, (torch.float32, torch.float16, torch.bfloat16))


def test_a_block():
    for device, dtype in everywhere():
        for kw in ({}, dict(bias=True), dict(sliding_window=5)):
            e = make(device, dtype, **kw)
            x = torch.randn(3, 17, 64, device=device).to(dtype)
            with torch.no_grad():
                y, w, past = e(x, None, None, None, False, False)
            assert w is None and past is None
            near(y, plain(e, x, window=kw.get("sliding_window", 0))[0], dtype)


def test_a_cache_continues_the_sequence():
    for device, dtype in everywhere():
        e = make(device, dtype)
        x = torch.randn(2, 40, 64, device=device).to(dtype)
        want, at, past = plain(e, x)[0], 0, None
        with torch.no_grad():
            for n in (7, 1, 1, 20, 11):
                y, _, past = e(x[:, at : at + n], past_key_value=past, use_cache=True)
                near(y, want[:, at : at + n], dtype)
                at += n
        assert past.get_seq_length() == 40
        try:
            with torch.no_grad():
                e(torch.zeros(2, 41, 64, device=device, dtype=dtype), past_key_value=past, use_cache=True)
            raise AssertionError("41 more were taken")
        except ValueError as err:
            assert "40 keys and 41 more, max_seq_len is 80" in str(err)


def test_a_cache_of_inference_mode_goes_on_outside_of_it():
    for device in DEVICES:
        e = make(device)
        x = torch.randn(2, 9, 64, device=device)
        with torch.inference_mode():
            _, _, past = e(x[:, :5], use_cache=True)
        with torch.no_grad():
            y, _, _ = e(x[:, 5:], past_key_value=past, use_cache=True)
        near(y, plain(e, x)[0][:, 5:])


def test_gradients_go_back_through_a_cache():
    for device in DEVICES:
        e = make(device)
        x, grads = torch.randn(2, 9, 64, device=device), []
        for borders in ((0, 9), (0, 5, 6, 9)):
            past, parts = None, []
            for a, z in zip(borders, borders[1:]):
                y, _, past = e(x[:, a:z], past_key_value=past, use_cache=True)
                parts.append(y)
            grads.append(torch.autograd.grad(torch.cat(parts, 1).square().sum(), list(e.parameters())))
        for a, b in zip(*grads):
            near(a, b)
        _, _, past = e(x[:, :5], use_cache=True)  # and where no more than that is to be trained
        e.requires_grad_(False)
        assert e(x[:, 5:], past_key_value=past)[0].requires_grad


def test_projections_that_were_replaced_or_are_listened_to():
    for device in DEVICES:
        e, x = make(device), torch.randn(2, 9, 64, device=device)
        with torch.no_grad():
            near(e(x)[0], plain(e, x)[0])
            hook = e.o_proj.register_forward_hook(lambda *a: a[2] * 2)
            near(e(x)[0], 2 * plain(e, x)[0])
            hook.remove()
            near(e(x)[0], plain(e, x)[0])
            other = torch.nn.Linear(64, 64, bias=False, device=device)
            e.q_proj = torch.nn.Sequential(other)
            got = e(x)[0]
            e.q_proj = other
            near(got, plain(e, x)[0])
            near(copy.deepcopy(e)(x)[0], plain(e, x)[0])


def test_masks_and_weights():
    for device in DEVICES:
        e = make(device)
        x = torch.randn(2, 12, 64, device=device)
        pads = torch.ones(2, 12, dtype=torch.long, device=device)
        pads[1, 9:] = 0
        want, weights = plain(e, x, pads.bool()[:, None, None])
        with torch.no_grad():
            near(e(x, pads)[0], want, where=pads.bool())
            near(e(x, torch.ones_like(pads))[0], plain(e, x)[0])
            y, w, _ = e(x, pads, output_attentions=True)
        near(y, want, where=pads.bool())
        near(w.transpose(1, 2), weights.transpose(1, 2), where=pads.bool())
        whole = (torch.rand(2, 1, 12, 12, device=device) > 0.5) | torch.eye(12, dtype=torch.bool, device=device)
        with torch.no_grad():
            near(e(x, whole & torch.ones(12, 12, dtype=torch.bool, device=device).tril())[0], plain(e, x, whole)[0])


def test_it_can_be_trained():
    for device in DEVICES:
        e = make(device)
        x = torch.randn(2, 9, 64, device=device, requires_grad=True)
        y, _, _ = e(x)
        y.square().sum().backward()
        wide = make(device).double()
        wide.load_state_dict({k: v.double() for k, v in e.state_dict().items()})
        z = x.detach().double().requires_grad_()
        for p in wide.parameters():
            p.requires_grad_()
        # the same formula with gradients, in float64
        b, n = 2, 9
        q, k, v = (p(z).view(b, n, -1, 16).transpose(1, 2) for p in (wide.q_proj, wide.k_proj, wide.v_proj))
        phase = (torch.arange(n, device=device)[:, None].float() * e.freqs).double()

        def turn(t):
            a, c = t.chunk(2, -1)
            return torch.cat([a * phase.cos() - c * phase.sin(), c * phase.cos() + a * phase.sin()], -1)

        k, v = turn(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        s = (turn(q) @ k.transpose(-1, -2) * 16**-0.5).masked_fill(~torch.ones(n, n, dtype=torch.bool, device=device).tril(), -1e30)
        o = wide.o_proj((torch.softmax(s, -1) @ v).transpose(1, 2).reshape(b, n, 64))
        o.square().sum().backward()
        near(x.grad, z.grad)
        for (name, a), c in zip(e.named_parameters(), wide.parameters()):
            near(a.grad, c.grad)
