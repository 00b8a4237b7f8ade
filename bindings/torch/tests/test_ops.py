"""torch.ops.superop against float64, over shapes, strides and types, on every device there is."""

import gc
import itertools
import math
import threading

import torch
import torch.nn.functional as F

import superop
from harness import DEVICES, Skip, close
from superop import _ops

ops = torch.ops.superop
TYPES = [torch.float32, torch.float16, torch.bfloat16]
LEADS = [(1,), (7,), (3, 5), (2, 3, 4), (0,), ()]


def randn(*shape, dtype=torch.float32, device="cpu", seed=0):
    g = torch.Generator().manual_seed(seed + 31 * sum(shape) + len(shape))
    return torch.randn(*shape, generator=g).to(device, dtype)


def strided(x):
    """The same values in rows that lie further apart, and heads that do not follow each other."""
    wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 24, dtype=x.dtype, device=x.device)
    view = wide[..., 8 : 8 + x.shape[-1]]
    view.copy_(x)
    return view


def layouts(x):
    yield x
    yield strided(x)
    if x.dim() > 1:
        yield x.transpose(0, 1).contiguous().transpose(0, 1)
        yield x.transpose(-1, -2).contiguous().transpose(-1, -2)


def everywhere(leads=LEADS, types=TYPES):
    return itertools.product(DEVICES, types, leads)


def rms(x, w, eps=1e-6, offset=0.0):
    x = x.double()
    return (w.double() + offset) * x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def test_rms_norm():
    for device, dtype, lead in everywhere():
        for dim in (1, 7, 64, 100, 896):
            x, w = randn(*lead, dim, dtype=dtype, device=device), randn(dim, device=device)
            for view in layouts(x):
                close(ops.rms_norm(view, w), rms(x, w), 16, why=f"{device} {dtype} {lead} {dim}")
            close(ops.rms_norm(x, w, 1e-5, 1.0), rms(x, w, 1e-5, 1.0), 16)
            close(ops.rms_norm(x, w.to(dtype)), rms(x, w.to(dtype)), 16)


def test_rms_norm_of_heads_inside_a_projection():
    for device, dtype in itertools.product(DEVICES, TYPES):
        qkv = randn(2, 5, 6 * 64, dtype=dtype, device=device)
        q = qkv[..., : 4 * 64].view(2, 5, 4, 64)
        w = randn(64, device=device)
        close(ops.rms_norm(q, w), rms(q, w), 16)
        part = randn(3, 9, 64, dtype=dtype, device=device)[:, 2:]
        close(ops.rms_norm(part, w), rms(part, w), 16)


def test_add_rms_norm():
    for device, dtype, lead in everywhere():
        x, r = (randn(*lead, 96, dtype=dtype, device=device, seed=s) for s in (1, 2))
        w = randn(96, device=device)
        for a, b in zip(layouts(x), layouts(r)):
            y, s = ops.add_rms_norm(a, b, w)
            close(s, x.double() + r.double())
            close(y, rms(x.double() + r.double(), w), 16)


def test_layer_norm():
    for device, dtype, lead in everywhere():
        x, r = (randn(*lead, 96, dtype=dtype, device=device, seed=s) for s in (1, 2))
        w, b = randn(96, device=device), randn(96, device=device, seed=3)
        want = F.layer_norm(x.double(), (96,), w.double(), b.double(), 1e-5)
        size = want.abs() + 4
        for view in layouts(x):
            close(ops.layer_norm(view, w, b), want, 16, size)
        close(ops.layer_norm(x), F.layer_norm(x.double(), (96,)), 16, size)
        y, s = ops.add_layer_norm(x, r, w, b)
        close(s, x.double() + r.double())
        close(y, F.layer_norm(x.double() + r.double(), (96,), w.double(), b.double()), 16, size)


def test_linear():
    for device, dtype, lead in everywhere():
        for n, k in ((1, 1), (5, 7), (64, 64), (130, 72)):
            x, w = randn(*lead, k, dtype=dtype, device=device), randn(n, k, dtype=dtype, device=device)
            b = randn(n, device=device)
            size = x.double().abs() @ w.double().abs().T
            want = x.double() @ w.double().T
            for view in layouts(x):
                close(ops.linear(view, w, numerics=1), want, 4, size)
            close(ops.linear(x, strided(w), numerics=1), want, 4, size)
            close(ops.linear(x, w, b, 1), want + b.double(), 4, size + b.double().abs())


def test_linear_of_three_weights():
    for device, dtype in itertools.product(DEVICES, TYPES):
        x = randn(3, 5, 64, dtype=dtype, device=device)
        w = [randn(n, 64, dtype=dtype, device=device, seed=n) for n in (128, 32, 32)]
        b = [randn(n, device=device, seed=n) for n in (128, 32, 32)]
        want = torch.cat([x.double() @ v.double().T for v in w], -1)
        size = torch.cat([x.double().abs() @ v.double().abs().T for v in w], -1)
        close(ops.linear3(x, *w, numerics=1), want, 4, size)
        want = want + torch.cat(b).double()
        close(ops.linear3(x, *w, *b, numerics=1), want, 4, size + torch.cat(b).abs())
        close(ops.linear2(x, w[0], w[1], b[0], None, 1), torch.cat([want[..., :128], want[..., 128:160] - b[1].double()], -1), 4, size[..., :160] + 4)


def test_linear_of_a_packed_weight():
    for device in DEVICES:
        n, k = 6, 64
        codes = torch.randint(-127, 128, (n, k // 32, 32), dtype=torch.int8)
        scale = (torch.rand(n, k // 32, 1) + 0.5).to(torch.float16)
        w = torch.cat([scale.view(torch.uint8), codes.view(torch.uint8)], -1).reshape(n, -1)
        x = randn(4, k)
        plain = (codes.double() * scale.double()).reshape(n, k)
        q8_0 = 16
        got = ops.linear_packed(x.to(device), w.to(device), q8_0, numerics=1)
        close(got.cpu(), x.double() @ plain.T, 4, x.double().abs() @ plain.abs().T)
        rows = ops.embed_packed(torch.tensor([2, 0]).to(device), w.to(device), k, q8_0)
        close(rows.cpu(), plain[[2, 0]])


def test_quantize_and_linear_of_codes():
    f8_128 = 25
    for device, dtype, lead in everywhere():
        for n, k in ((1, 128), (5, 256), (130, 640)):
            x = randn(*lead, k, dtype=dtype, device=device)
            for view in layouts(x):
                codes, scale = ops.quantize(view)
                assert codes.dtype == torch.float8_e4m3fn and codes.shape == x.shape and scale.shape == x.shape[:-1]
                close(scale, x.double().abs().amax(-1) / 448, 4)
                # half a step of three bits of mantissa, or of a subnormal
                off = (codes.double() * scale.double()[..., None] - x.double()).abs()
                assert (off <= x.double().abs() / 16 * 1.0001 + scale.double()[..., None] * 2**-10).all()
            w_codes = (randn(n, k, seed=3) * 50).to(torch.float8_e4m3fn).to(device)
            w_scale = torch.rand(n, k // 128, device=device) + 0.5
            w = superop.pack_f8(w_codes, w_scale)
            plain = (w_codes.double().unflatten(-1, (-1, 128)) * w_scale.double()[..., None]).flatten(-2)
            given = codes.double() * scale.double()[..., None]
            want, size = given @ plain.T, given.abs() @ plain.abs().T
            for number, of in enumerate(TYPES):
                y = ops.linear_f8(codes, w, f8_128, scale, type=number)
                assert y.dtype == of
                close(y, want, 4, size)
            b = randn(n, device=device)
            close(ops.linear_f8(codes, w, f8_128, scale, b), want + b.double(), 4, size + b.double().abs())
            unscaled = codes.double() @ plain.T, codes.double().abs() @ plain.abs().T
            close(ops.linear_f8(codes, w, f8_128, type=0), unscaled[0], 4, unscaled[1])
            y = torch.empty(*lead, n, dtype=dtype, device=device)
            ops.linear_f8.out(codes, w, f8_128, scale, y=y)
            close(y, want, 4, size)


def test_pack_f8_repeats_scales():
    codes = torch.randn(3, 256).to(torch.float8_e4m3fn)
    one = torch.rand(()) + 0.5
    for scale in (one, one.expand(3, 1), one.expand(3, 2)):
        assert (superop.pack_f8(codes, scale) == superop.pack_f8(codes, one.expand(3, 2))).all()
    assert superop.pack_f8(codes, one).shape == (3, 2 * 132)


def test_embed():
    for device, dtype in itertools.product(DEVICES, TYPES):
        table = randn(11, 24, dtype=dtype, device=device)
        for ids in (torch.tensor([[3, 0, 10], [1, 1, 2]]), torch.tensor(4), torch.zeros(0, dtype=torch.long)):
            ids = ids.to(device)
            for index in (ids, ids.int()):
                close(ops.embed(index, table), table[ids].double())
        close(ops.embed(torch.tensor([1, 99]).to(device), table), torch.stack([table[1], table[1] * 0]).double())


def acts(g):
    return [g * torch.sigmoid(g), F.gelu(g, approximate="tanh"), F.gelu(g), g * torch.sigmoid(1.702 * g), F.relu(g)]


def test_gated():
    for device, dtype, lead in everywhere():
        x = randn(*lead, 2 * 40, dtype=dtype, device=device)
        for act in range(3):
            for view in layouts(x):
                want = acts(x[..., :40].double())[act] * x[..., 40:].double()
                close(ops.gated(view, act), want, 4, x[..., 40:].abs() * 4)


def test_bias_act():
    for device, dtype, lead in everywhere():
        x, r = (randn(*lead, 40, dtype=dtype, device=device, seed=s) for s in (1, 2))
        b = randn(40, device=device)
        for act in range(5):
            z = x.double() + b.double()
            close(ops.bias_act(x, b, None, act), acts(z)[act], 4, z.abs() + 1)
            close(ops.bias_act(strided(x), b, strided(r), act, 1), acts(z)[act] + r.double(), 4, z.abs() + r.abs() + 1)
            close(ops.bias_act(x, None, r, act), acts(x.double() + r.double())[act], 4, z.abs() + r.abs() + 1)


def test_add():
    for device, dtype, lead in everywhere():
        a, b = (randn(*lead, 33, dtype=dtype, device=device, seed=s) for s in (1, 2))
        for x, y in zip(layouts(a), layouts(b)):
            close(ops.add(x, y), a.double() + b.double())
        close(ops.add(a, b.float()), a.double() + b.double().float().double())


def test_softmax():
    for device, dtype, lead in everywhere():
        x = randn(*lead, 65, dtype=dtype, device=device)
        for view in layouts(x):
            close(ops.softmax(view, 0.5), F.softmax(x.double() * 0.5, -1), 16)


def test_rope():
    for device, dtype in itertools.product(DEVICES, TYPES):
        x = randn(2, 5, 3, 64, dtype=dtype, device=device)
        pos = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 100, 4095]]).to(device)
        for rot, interleaved in ((64, 0), (32, 0), (64, 1)):
            freqs = (10000.0 ** (-torch.arange(rot // 2) * 2.0 / rot)).to(device)
            phase = (pos[..., None].float() * freqs).double()[:, :, None]
            cos, sin = phase.cos(), phase.sin()
            z = x[..., :rot].double()
            a, b = (z[..., ::2], z[..., 1::2]) if interleaved else z.chunk(2, -1)
            turned = (a * cos - b * sin, b * cos + a * sin)
            turned = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
            want = torch.cat([turned, x[..., rot:].double()], -1)
            for view in (x, strided(x), x.transpose(1, 2).contiguous().transpose(1, 2)):
                got = ops.rope(view, pos, freqs, 1.0, interleaved)
                # the phase itself is float32: up to 4095 * 2^-24
                close(got, want, 64, x.abs().amax(-1, keepdim=True).expand_as(x) * 64)


def paged(k, v, page, device, dtype, pools=None):
    """Keys and values [b][t, g, d] in pages, the pages in disorder; pools, table, lengths."""
    lengths = [len(x) for x in k]
    need = [-(-n // page) for n in lengths]
    total = sum(need) + 1
    order = torch.randperm(total, generator=torch.Generator().manual_seed(5))
    g, dk, dv = k[0].shape[1], k[0].shape[2], v[0].shape[2]
    kp = torch.zeros(total, g, page, dk, dtype=dtype, device=device)
    vp = torch.zeros(total, g, page, dv, dtype=dtype, device=device)
    kp, vp = kp.transpose(1, 2), vp.transpose(1, 2)
    table = torch.zeros(len(k), max(need + [1]), dtype=torch.int32)
    at = 0
    for s, n in enumerate(lengths):
        slots = []
        for j in range(need[s]):
            table[s, j] = order[at + j]
        at += need[s]
        slots = [int(table[s, t // page]) * page + t % page for t in range(n)]
        ops.kv_append(k[s].to(device, dtype), v[s].to(device, dtype), torch.tensor(slots, dtype=torch.int32, device=device), kp, vp)
    return kp, vp, table.to(device), torch.tensor(lengths, dtype=torch.int32, device=device)


def attend(q, k, v, causal, window=0, scale=None, cap=0.0, mask=None, slopes=None, sinks=None):
    """One sequence in float64: q [l, h, d], k and v [s, g, d]; o and lse."""
    q, k, v = q.double(), k.double(), v.double()
    n, h, d = q.shape
    m = k.shape[0]
    k, v = (x.repeat_interleave(h // x.shape[1], 1) for x in (k, v))
    z = torch.einsum("lhd,shd->hls", q, k) * (scale or d**-0.5)
    if cap:
        z = cap * torch.tanh(z / cap)
    p = torch.arange(n, device=q.device)[:, None] + m - n
    j = torch.arange(m, device=q.device)[None]
    if slopes is not None:
        z = z - slopes.double()[:, None, None] * (p - j).abs()
    seen = torch.ones(n, m, dtype=torch.bool, device=q.device)
    if causal:
        seen &= j <= p
    if window:
        seen &= j > p - window
    seen = seen[None].expand(h, n, m)
    if mask is not None:
        each = mask[..., :m].repeat_interleave(h // mask.shape[1], 1).transpose(0, 1)
        if mask.dtype in (torch.bool, torch.uint8):
            seen = seen & each.bool()
        else:
            z = z + each.double()
    z = z.masked_fill(~seen, -math.inf)
    if sinks is not None:
        lse = torch.logsumexp(torch.cat([z, sinks.double()[:, None, None].expand(h, n, 1)], -1), -1)
    else:
        lse = torch.logsumexp(z, -1)
    w = torch.exp(z - lse[..., None]).nan_to_num(0.0)
    return torch.einsum("hls,shd->lhd", w, v), lse.T


def test_attention_over_pages():
    cases = [
        dict(),
        dict(causal=0),
        dict(window=5),
        dict(cap=3.0, scale=0.3),
        dict(slopes=True),
        dict(sinks=True),
        dict(mask=True),
        dict(mask="number"),
    ]
    for device, dtype in itertools.product(DEVICES, TYPES):
        lengths = [(5, 5), (1, 70), (3, 9), (1, 1)]  # new, all
        h, g, d = 4, 2, 64
        k = [randn(m, g, d, seed=m) .to(dtype) for _, m in lengths]
        v = [randn(m, g, d, seed=m + 99).to(dtype) for _, m in lengths]
        q = [randn(n, h, d, seed=n + m).to(dtype) for n, m in lengths]
        for page in (16, 64):
            kp, vp, table, kv_len = paged(k, v, page, device, dtype)
            start = torch.tensor([0] + [n for n, _ in lengths]).cumsum(0).int().to(device)
            rows = torch.cat(q).to(device)
            most = table.shape[1] * page
            for case in cases:
                args = {key: value for key, value in case.items() if key in ("causal", "window", "cap", "scale")}
                want = dict(args, causal=args.get("causal", 1))
                if case.get("slopes"):
                    want["slopes"] = torch.tensor([0.5, 0.25, 0.125, 0.0625])
                if case.get("sinks"):
                    want["sinks"] = torch.tensor([0.5, -1.0, 3.0, 0.0])
                args.update({x: want[x].to(device) for x in ("slopes", "sinks") if x in want})
                mask = None
                if case.get("mask"):
                    mask = randn(len(rows), 2, most) > -0.5
                    mask[..., 0] = True
                    if case["mask"] == "number":
                        mask = randn(len(rows), 2, most)
                    args["mask"] = mask.to(device)
                o, lse = ops.attention_lse(rows, kp, vp, table, start, kv_len, **args)
                close(ops.attention(rows, kp, vp, table, start, kv_len, **args), o.double())
                for s, (n, m) in enumerate(lengths):
                    at = int(start[s])
                    if mask is not None:
                        want["mask"] = mask[at : at + n]
                    right, norm = attend(q[s], k[s], v[s], **want)
                    size = v[s].double().abs().amax() + right.abs()
                    close(o[at : at + n].cpu(), right, 64 if dtype is torch.float32 else 64 * 256, size, f"{device} {dtype} {page} {case} {s}")
                    close(lse[at : at + n].cpu(), norm, 64 if dtype is torch.float32 else 2048, norm.abs() + 4)


def test_attention_over_a_cache_of_transformers():
    for device, dtype in itertools.product(DEVICES, TYPES):
        b, h, g, s, d = 3, 4, 2, 33, 64
        k, v = (randn(b, g, s + 7, d, dtype=dtype, device=device, seed=i)[:, :, :s] for i in (1, 2))
        q = randn(b, h, 4, d, dtype=dtype, device=device)
        table = torch.arange(b, dtype=torch.int32, device=device)[:, None]
        start = torch.arange(0, 4 * b + 1, 4, dtype=torch.int32, device=device)
        lens = torch.full((b,), s, dtype=torch.int32, device=device)
        rows = q.transpose(1, 2).reshape(b * 4, h, d)
        o = ops.attention(rows, k.transpose(1, 2), v.transpose(1, 2), table, start, lens)
        for i in range(b):
            want, _ = attend(q[i].transpose(0, 1), k[i].transpose(0, 1), v[i].transpose(0, 1), 1)
            close(o[4 * i : 4 * i + 4], want, 64 if dtype is torch.float32 else 64 * 256, want.abs() + 3)


def test_operands_that_were_expanded():
    """A stride of 0 has no place in a desc, where 0 is what the operator makes dense."""
    for device, dtype in itertools.product(DEVICES, TYPES):
        x, y, w = (randn(*shape, dtype=dtype, device=device) for shape in ((1, 96), (7, 96), (5, 96)))
        many, few = x.expand(7, 96), x.expand(2, 3, 96)
        same = lambda a, b: close(a, b.double())  # noqa: E731
        same(ops.add(many, y), ops.add(many.contiguous(), y))
        same(ops.rms_norm(few, w[0].float()), ops.rms_norm(few.contiguous(), w[0].float()))
        same(ops.linear(many, x.expand(5, 96)), ops.linear(many.contiguous(), x.repeat(5, 1)))
        same(ops.softmax(y[:, :1].expand(7, 40)), ops.softmax(y[:, :1].repeat(1, 40)))
        b, n, m, h, d = 2, 3, 16, 4, 64
        q, k, v = (randn(*shape, d, dtype=dtype, device=device) for shape in ((b * n, h), (1, m, 1), (1, m, 1)))
        table = torch.zeros(b, 1, dtype=torch.int32, device=device)
        start = torch.arange(0, b * n + 1, n, dtype=torch.int32, device=device)
        lens = torch.full((b,), m, dtype=torch.int32, device=device)
        mask = (randn(1, 1, m) > 0).to(device)
        mask[..., 0] = True
        for one in (mask, mask.float() * 3):
            args = [table, start, lens]
            dense = dict(causal=0, mask=one.repeat(b * n, h, 1))
            want = ops.attention(q, k.repeat(1, 1, h, 1), v.repeat(1, 1, h, 1), *args, **dense)
            for lead in ((b * n, 1), (b * n, h)):
                got = ops.attention(q, k.expand(1, m, h, d), v.expand(1, m, h, d), *args, causal=0, mask=one.expand(*lead, m))
                assert torch.allclose(got.float(), want.float(), atol=2e-2 if dtype is not torch.float32 else 1e-5)


def test_kv_append_into_codes():
    for device in DEVICES:
        k = randn(3, 2, 64, device=device)
        scale = torch.tensor([0.05, 0.1], device=device)
        for dtype in (torch.int8, torch.float8_e4m3fn):
            kp, vp = (torch.zeros(2, 2, 16, 64, dtype=torch.uint8, device=device).view(dtype).transpose(1, 2) for _ in range(2))
            ops.kv_append(k, k, torch.tensor([17, -1, 3], dtype=torch.int32, device=device), kp, vp, scale, scale)
            back = kp.float() * scale[:, None]
            unit = scale[:, None] / 2 if dtype is torch.int8 else k[0].abs() / 8
            assert ((back[1, 1] - k[0]).abs() <= unit + 1e-6).all()
            assert (back[0, 3] - k[2]).abs().max() < 0.3
            assert (back[0, 0] == 0).all()


def test_merge():
    for device, dtype in itertools.product(DEVICES, TYPES):
        x = randn(5, 3, 4, 32, dtype=dtype, device=device)
        lse = randn(5, 3, 4, device=device) * 3
        lse[2, 1] = -math.inf
        w = torch.softmax(lse.double(), 1)
        y, total = ops.merge_lse(x, lse)
        close(y, (w[..., None] * x.double()).sum(1), 16, x.double().abs().amax(1))
        close(total, torch.logsumexp(lse.double(), 1), 8, lse.double().nan_to_num(0, 0, 0).abs().amax(1) + 1)
        close(ops.merge(x, lse), y.double())


def test_experts():
    for device, dtype in itertools.product(DEVICES, TYPES):
        tokens, experts, top, dim, width = 9, 4, 2, 32, 48
        x, gate = randn(tokens, dim, dtype=dtype, device=device), randn(tokens, experts, dtype=dtype, device=device)
        ids, weights, counts, perm = ops.moe_gate(gate, top)
        p = torch.softmax(gate.double(), -1)
        best, at = p.topk(top, -1)
        assert (ids == at).all() and counts.sum() == tokens * top
        close(weights, best, 16)
        w = randn(experts, width, dim, dtype=dtype, device=device)
        back = randn(experts, dim, width, dtype=dtype, device=device, seed=4)
        up = ops.experts_perm(x, w, counts, perm, top, 0)
        down = ops.experts_perm(up, back, counts, perm, 0, 1)
        y = ops.combine(down, weights, None)
        want = torch.zeros(tokens, dim, dtype=torch.double, device=device)
        size = want.clone()
        for t in range(tokens):
            for j in range(top):
                e = int(at[t, j])
                mid = (x[t].double() @ w[e].double().T).to(dtype).double()
                want[t] += best[t, j] * (mid @ back[e].double().T)
                size[t] += (mid.abs() @ back[e].double().abs().T)
        close(y, want, 64 if dtype is torch.float32 else 64 * 4096 * (4 if dtype is torch.bfloat16 else 1), size)
        first = ops.experts(x[perm.long() // top], w, counts)
        close(first, up.double(), 64, up.abs() + 1)


def test_sample_and_finite():
    for device in DEVICES:
        logits = randn(3, 50, device=device)
        params = torch.zeros(3, 32, dtype=torch.uint8, device=device)  # zero: greedy
        assert (ops.sample(logits, params) == logits.argmax(-1)).all()
        for dtype in TYPES:
            x = randn(4, 70, dtype=dtype, device=device)
            assert ops.finite(x).tolist() == [0]
            x[1, 3], x[2, 5], x[3, 69] = math.nan, math.inf, -math.inf
            assert ops.finite(x).tolist() == [3] and ops.finite(x, 1).tolist() == [2]


def test_out_variants_write_where_they_are_told():
    for device, dtype in itertools.product(DEVICES, TYPES):
        x, w = randn(3, 5, 64, dtype=dtype, device=device), randn(64, device=device)
        wide = torch.full((3, 5, 100), 7.0, dtype=dtype, device=device)
        ops.rms_norm.out(x, w, y=wide[..., :64])
        close(wide[..., :64], rms(x, w), 16)
        assert (wide[..., 64:] == 7).all()
        y = torch.empty(3, 5, 64, device=device)
        ops.rms_norm.out(x, w, y=y)  # another type than x
        close(y, rms(x, w), 16)
        same = x.clone()
        ops.rms_norm.out(same, w, y=same)  # in place
        close(same, rms(x, w), 16)


def test_live_rows_end_where_the_device_says():
    for device in DEVICES:
        x, w = randn(6, 64, device=device), randn(64, device=device)
        y = torch.full((6, 64), 5.0, device=device)
        ops.rms_norm.out(x, w, live=torch.tensor([2], dtype=torch.int32, device=device), y=y)
        close(y[:2], rms(x[:2], w), 16)
        assert (y[2:] == 5).all()


def refused(text, call):
    try:
        call()
    except RuntimeError as e:
        assert text in str(e), f"said: {e}"
        assert "\n" not in str(e), f"more than one sentence: {e}"
        return
    raise AssertionError(f"nothing was refused: {text}")


def test_errors_are_one_sentence():
    for device in DEVICES:
        x, w = randn(3, 64, device=device), randn(64, device=device)
        refused("w has 63 in dimension 0, the operands before it ask for 64", lambda: ops.rms_norm(x, w[:63]))
        refused("rmsnorm: eps=-1, must be > 0", lambda: ops.rms_norm(x, w, -1.0))
        refused("w is int32, must be float32", lambda: ops.rms_norm(x, w.int()))
        refused("x has 0 dimensions, wanted are at least 1", lambda: ops.rms_norm(x[0, 0], w))
        refused("b has other leading dimensions", lambda: ops.add(x, x[None]))
        refused("x has a type superop does not know", lambda: ops.rms_norm(x.to(torch.complex64), w))
        refused("rmsnorm", lambda: ops.add_rms_norm(x.double(), x, w))  # all float64, or none
        refused("r_out has other strides", lambda: ops.add_rms_norm.out(x, x, w, y=torch.empty_like(x), r_out=strided(x)))
        refused("y is written in place", lambda: ops.rms_norm.out(x, w, y=torch.empty(64, 3, device=device).T))
        refused("rms_norm: operands on", lambda: ops.rms_norm(x, w.to("meta")))
        refused("linear_packed: w has rows of 64 bytes", lambda: ops.linear_packed(x, x.new_zeros(5, 64, dtype=torch.uint8), 16))
    if "cuda" in DEVICES:
        refused("w is on another device", lambda: ops.rms_norm(randn(3, 64, device="cuda"), randn(64)))


def samples(device):
    """One call of every line: name, arguments."""
    f = lambda *s, **k: randn(*s, device=device, **k)  # noqa: E731
    i32 = lambda *v: torch.tensor(v, dtype=torch.int32, device=device)  # noqa: E731
    x, w, r = f(2, 3, 64), f(64), f(2, 3, 64, seed=2)
    q, kp, vp = f(3, 4, 64), f(2, 16, 2, 64), f(2, 16, 2, 64, seed=3)
    att = (q, kp, vp, i32([0], [1]), i32(0, 2, 3), i32(5, 9))
    q8 = torch.zeros(6, 68, dtype=torch.uint8, device=device)
    counts, perm = i32(2, 1), i32(0, 2, 1)
    dy, half = f(2, 3, 64, seed=5), f(2, 3, 32, seed=6)
    calls = {
        "bias_act_grad": (x, dy, w, r),
        "bias_act_grads": (x, dy, w, r),
        "gated_grad": (x, half),
        "softmax_grad": (x, dy),
        "rms_norm_grad": (x, w, dy, r),
        "layer_norm_grad": (x, dy, w, r),
        "attention_grad": (q, f(5, 2, 64), f(5, 2, 64), i32(0, 2, 3), i32(0, 3, 5), q, f(3, 4) + 100, q),
        "matmul": (f(3, 5), f(5, 7)),
        "matmul_t": (f(5, 3), f(5, 7)),
        "matmul_t_sums": (f(5, 3), f(5, 7)),
        "embed": (i32(1, 0), f(5, 8)),
        "embed_packed": (i32(1, 0), q8, 64, 16),
        "rope": (f(5, 2, 64), i32(0, 1, 2, 3, 4), f(32)),
        "kv_append": (f(2, 2, 64), f(2, 2, 64, seed=1), i32(3, 20), kp, vp),
        "attention": att,
        "attention_lse": att,
        "merge": (f(3, 2, 4, 8), f(3, 2, 4)),
        "merge_lse": (f(3, 2, 4, 8), f(3, 2, 4)),
        "linear": (x, f(5, 64), f(5)),
        "linear_packed": (x, q8, 16),
        "linear_f8": (f(2, 3, 128).to(torch.float8_e4m3fn), torch.zeros(6, 132, dtype=torch.uint8, device=device), 25, f(2, 3).abs()),
        "quantize": (x,),
        "linear2": (x, f(5, 64), f(7, 64)),
        "linear3": (x, f(5, 64), f(7, 64), f(7, 64), f(5), f(7), f(7)),
        "rms_norm": (x, w),
        "add_rms_norm": (x, r, w),
        "layer_norm": (x, w, w),
        "add_layer_norm": (x, r, w, w),
        "gated": (x,),
        "bias_act": (x, w, r),
        "moe_gate": (f(3, 4), 2),
        "experts": (f(3, 64), f(2, 6, 64), counts),
        "experts_packed": (f(3, 64), torch.zeros(2, 6, 68, dtype=torch.uint8, device=device), 16, counts),
        "experts_perm": (f(3, 64), f(2, 6, 64), counts, perm, 1, 1),
        "combine": (f(6, 8), f(3, 2), f(3, 8)),
        "add": (x, r),
        "softmax": (x,),
        "sample": (f(3, 50), torch.zeros(3, 32, dtype=torch.uint8, device=device)),
        "finite": (x,),
    }
    return {name: args for name, args in calls.items() if name in _ops.table}


def test_every_operator_of_the_library_has_a_line():
    import ctypes

    from superop import _lib

    _lib.lib.sop_ops.restype = ctypes.POINTER(ctypes.c_void_p)
    table = _lib.lib.sop_ops()
    names = set()
    i = 0
    while table[i]:  # struct sop_op: u32 size, u32 desc_bytes, const char *name
        names.add(ctypes.cast(table[i] + 8, ctypes.POINTER(ctypes.c_char_p))[0].decode())
        i += 1
    missing = names - {op.op for op in _ops.table.values()} - {"advance"}  # between steps of the super operator
    assert not missing, missing


def test_opcheck():
    names = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic", "test_autograd_registration")
    for device in DEVICES:
        calls = samples(device)
        assert set(calls) == set(_ops.table), set(_ops.table) ^ set(calls)
        for name, args in calls.items():
            op = getattr(ops, name)
            # PyTorch's look at the schema multiplies the operands, which it cannot for codes
            looks = names[name in ("linear_f8", "quantize") :]
            torch.library.opcheck(op.default, args, test_utils=looks)
            if not _ops.table[name].outs:
                continue
            made = op(*args)
            made = made if isinstance(made, tuple) else (made,)
            outs = {o.name: torch.zeros_like(t) for o, t in zip(_ops.table[name].outs, made)}
            torch.library.opcheck(op.out, args, outs, test_utils=looks)


def test_fakes_agree_over_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for name, args in samples("cpu").items():
        real = getattr(ops, name)(*args)
        with FakeTensorMode() as mode:
            fake = getattr(ops, name)(*[mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args])
        for a, b in zip(real if isinstance(real, tuple) else (real,), fake if isinstance(fake, tuple) else (fake,)):
            if a is not None:
                assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype), name


def test_one_trace_serves_every_length():
    """A model of our operators is compiled once and runs every length: fakes keep symbols."""
    from torch.fx.experimental.proxy_tensor import make_fx

    w, up, down = randn(64), randn(2 * 96, 64), randn(64, 96)

    def layer(x):
        y = ops.gated(ops.linear(ops.rms_norm(x, w), up))
        return ops.add(x, ops.linear(y, down))

    graph = make_fx(layer, tracing_mode="symbolic", _allow_non_fake_inputs=True)(randn(2, 5, 64))
    for n in (1, 3, 17):
        assert torch.equal(graph(randn(2, n, 64)), layer(randn(2, n, 64)))


def test_threads_share_plans():
    w = randn(64)
    wrong = []

    def many(seed):
        for n in range(1, 60):
            x = randn(n, 64, seed=seed)
            if (ops.rms_norm(x, w) - rms(x, w)).abs().max() > 1e-4:
                wrong.append(n)

    threads = [threading.Thread(target=many, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_calls_alike_in_all_but_one_thing():
    """What a call finds is kept for the next one like it: every type, extent, stride and number counts."""
    for device in DEVICES:
        w, b = randn(64, device=device), randn(64, device=device)
        half = torch.float16 if device == "cpu" else torch.bfloat16
        wide = randn(5, 128, device=device)
        live = torch.tensor([2], dtype=torch.int32, device=device)
        calls = []
        for x in (wide[:, :64], wide[:, 64:], wide[:4, :64], wide[:, :64].contiguous(), wide[:, :64].to(half), wide[:, :64].reshape(5, 1, 64)):
            for eps, offset in ((1e-6, 0.0), (0.5, 0.0), (1e-6, 1.0)):
                calls.append(lambda x=x, a=(eps, offset): ops.rms_norm(x, w, *a))
            calls.append(lambda x=x: ops.rms_norm(x, w, live=live)[:1])
            calls.append(lambda x=x: ops.add_rms_norm(x, x, w)[1])
            calls.append(lambda x=x: ops.rms_norm.out(x, w, y=(y := torch.empty_like(x))) or y)
            for act in (1, 3):
                calls += [lambda x=x, act=act: ops.bias_act(x, b, act=act), lambda x=x, act=act: ops.bias_act(x, b, x, act)]
        first = [f() for f in calls]
        for f, want in reversed(list(zip(calls, first))):
            for got in (f(), f()):
                assert got.dtype is want.dtype and got.stride() == want.stride() and torch.equal(got, want)
        x = wide[:, :64]
        close(ops.rms_norm(x, w), rms(x.double(), w.double()))
        close(ops.rms_norm(x, w, 0.5), rms(x.double(), w.double(), 0.5))
        close(ops.rms_norm(x, w, 1e-6, 1.0), rms(x.double(), w.double() + 1))


def test_kept_plans_are_bounded():
    w = randn(8)
    for n in range(1, 5000):
        ops.rms_norm(torch.empty(n, 8), w)
    assert 0 < superop.plans() <= 4096, superop.plans()


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_no_leak_over_many_calls():
    x, w, r = randn(4, 64), randn(64), randn(4, 64)
    op, two, bad = ops.rms_norm.default, ops.bias_act.default, w[:5]
    def spin(n):
        for _ in range(n):
            op(x, w)
            two(x, w, r)  # optional arguments are boxes of their own
        for _ in range(n // 10):
            try:
                op(x, bad)
            except RuntimeError:
                pass
            ops.rms_norm(x.T.contiguous().T, w)  # copies
    spin(2000)
    gc.collect()
    before = resident()
    spin(100000)
    gc.collect()
    assert resident() - before < 4 << 20, f"{resident() - before} bytes more"


def test_no_leak_on_the_card():
    if "cuda" not in DEVICES:
        raise Skip("there is no card")
    x, w = randn(4, 64, device="cuda"), randn(64, device="cuda")
    op = ops.rms_norm.default
    op(x, w)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(100000):
        op(x, w)
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    assert before[0] == after[0] and before[1] - after[1] < 64 << 20


def test_a_graph_replays_what_was_recorded():
    if "cuda" not in DEVICES:
        raise Skip("there is no card")
    for dtype in TYPES:
        for warm in (True, False):  # also when the first call of a shape is recorded
            rows = 5 if warm else 6 + TYPES.index(dtype)
            x = randn(rows, 64, dtype=dtype, device="cuda")
            w, up, down = randn(64, device="cuda"), randn(256, 64, dtype=dtype, device="cuda"), randn(64, 128, dtype=dtype, device="cuda")

            def layer():
                y = ops.gated(ops.linear(ops.rms_norm(x, w), up))
                y = ops.linear(y, down)
                k = y.view(rows, 1, 64)
                table = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
                start = torch.arange(0, rows + 1, rows, dtype=torch.int32, device="cuda")
                lens = torch.full((1,), rows, dtype=torch.int32, device="cuda")
                return ops.attention(k, k[None], k[None], table, start, lens)

            if warm:
                layer()
            torch.cuda.synchronize()
            graphs = []
            for _ in range(2):
                g = torch.cuda.CUDAGraph()
                with torch.cuda.graph(g):
                    y = layer()
                graphs.append((g, y))
            for seed in (1, 2, 3):
                x.copy_(randn(rows, 64, dtype=dtype, seed=seed))
                want = layer()
                for g, y in graphs:
                    g.replay()
                    # another row may run where nothing could be prepared
                    assert (y.float() - want.float()).abs().max() <= 0.02 * want.float().abs().max()


def test_the_current_stream_is_where_it_runs():
    if "cuda" not in DEVICES:
        raise Skip("there is no card")
    w = randn(4096, device="cuda")
    side = torch.cuda.Stream()
    for _ in range(5):
        x = torch.zeros(2000, 4096, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            x.fill_(1.0)
            y = ops.rms_norm(x, w)
        assert side.query() is False, "the call waited for the device"
        side.synchronize()
        close(y, w.double().expand(2000, 4096), 16)
        assert torch.cuda.current_device() == 0


def test_every_operator_waits_for_nothing_and_can_be_recorded():
    if "cuda" not in DEVICES:
        raise Skip("there is no card")
    side = torch.cuda.Stream()

    def flat(made):
        made = made if isinstance(made, tuple) else (made,)
        return [t for t in made if t is not None]

    for name, args in samples("cuda").items():
        op = getattr(ops, name).default
        want = flat(op(*args))
        with torch.cuda.stream(side):
            op(*args)
            side.synchronize()
            torch.cuda._sleep(20_000_000)
            there = flat(op(*args))
            assert side.query() is False, f"{name} waited for the device"
        side.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            again = flat(op(*args))
        g.replay()
        torch.cuda.synchronize()
        for a, b, c in zip(want, there, again):
            for got in (b, c):
                assert torch.allclose(a.double(), got.double(), 1e-5, 1e-5, equal_nan=True), name


def test_a_plugin_that_is_not_there_is_said():
    try:
        superop.load_plugin("/no/such.so")
    except RuntimeError as e:
        assert "/no/such.so" in str(e), e
    else:
        raise AssertionError("it was loaded")
