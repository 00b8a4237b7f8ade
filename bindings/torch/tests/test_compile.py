"""torch.compile: the attentions of a plain model are found and put on superop, patched models compile whole."""

import itertools
import shutil
import warnings

import torch
import torch.nn.functional as F
from torch import nn

import superop
from harness import DEVICES, Skip
from models import llama, make, qwen2
from superop.compiling import backend
from test_attention import ids, near

warnings.filterwarnings("ignore", message="superop:")


def compiled(f, then="eager", dynamic=True, **options):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    superop.matched(forget=True)
    return torch.compile(f, backend=backend, fullgraph=True, dynamic=dynamic, options={"then": then, **options})


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Plain(nn.Module):
    """A block as people write it."""

    def __init__(self, repeat, bias=True):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, n, bias) for n in (64, 32, 32))
        self.o = nn.Linear(64, 64)
        self.repeat = repeat

    def forward(self, x, cos, sin):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 16).transpose(1, 2)
        k, v = (f(x).view(b, n, 2, 16).transpose(1, 2) for f in (self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        if self.repeat == "expand":
            k, v = (t[:, :, None].expand(b, 2, 2, n, 16).reshape(b, 4, n, 16) for t in (k, v))
        elif self.repeat == "interleave":
            k, v = (t.repeat_interleave(2, dim=1).contiguous() for t in (k, v))
        elif self.repeat == "tile":  # heads in another order: grouped attention would be wrong
            k, v = (t.repeat(1, 2, 1, 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.repeat == "gqa")
        return self.o(o.transpose(1, 2).reshape(b, n, 64))


def rope(n, device):
    angle = torch.arange(n, device=device)[:, None] * 10000 ** (-torch.arange(8, device=device) / 8)
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def tensors(device="cpu", dtype=torch.float32, b=2, h=4, g=2, n=9, m=None, d=16):
    make_one = torch.Generator().manual_seed(1)
    return [torch.randn(b, x, y, d, generator=make_one).to(device, dtype) for x, y in ((h, n), (g, m or n), (g, m or n))]


def test_a_plain_block_is_matched_once_for_every_length():
    for device, repeat in itertools.product(DEVICES, ("gqa", "expand", "interleave", "tile")):
        torch.manual_seed(0)
        block = Plain(repeat).to(device)
        for linears in (False, True):
            f = compiled(block, "aot_eager", linears=linears)
            with torch.no_grad():
                for n in (7, 19, 128, 200):
                    x = torch.randn(2, n, 64, device=device)
                    near(block(x, *rope(n, device)), f(x, *rope(n, device)))
            said = superop.matched()
            assert str(said) == "matched 1 of 1" and graphs() == 1, (said, graphs())
            behind = {} if repeat == "tile" else {"rope": 1, "projections": 1} if linears else {"rope": 1}
            assert said.parts == {"attention": 1, **behind}, said.parts


def test_masks():
    for device in DEVICES:
        q, k, v = tensors(device, m=13)
        seen = torch.rand(2, 1, 9, 13, device=device) > 0.4
        seen[0, 0, 3] = False  # a query that sees nothing
        spread = seen.expand(2, 4, 9, 13)
        added = torch.randn(2, 4, 9, 13, device=device)
        for mask in (seen, seen[:, :, :, :1], seen[:, :, :1], seen[0, 0], spread, added, None):
            run = lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)  # noqa: E731
            f = compiled(run, dynamic=False)
            near(run(q, k, v, mask), f(q, k, v, mask))
            assert superop.matched().matched == 1, superop.matched()


def test_whole_pages_for_every_length():
    """What a card is given, here too: the room of a page depends on the length, the graph does not."""
    from superop.compiling import _attention, _index

    def run(q, k, v, mask):
        index = _index(q.shape[0], q.shape[2], k.shape[2], q)
        return _attention(q, k, v, mask, index, 0.25, mask is None, True, False)

    for masked in (False, True):
        f = compiled(run, "aot_eager")
        for n in (7, 127, 128, 129, 256):
            q, k, v = tensors(DEVICES[-1], n=n)
            mask = (torch.rand(2, 1, n, n, device=q.device) > 0.3) if masked else None
            near(F.scaled_dot_product_attention(q, k, v, mask, is_causal=not masked, enable_gqa=True), f(q, k, v, mask))
        assert graphs() == 1, graphs()


def test_heads_and_batches_that_lie_in_one_place():
    for device in DEVICES:
        q, k, v = tensors(device, g=1)
        run = lambda q, k, v: F.scaled_dot_product_attention(q, *(x[:1].expand(2, 4, -1, -1) for x in (k, v)))  # noqa: E731
        near(run(q, k, v), compiled(run, dynamic=False)(q, k, v))
        assert superop.matched().matched == 1, superop.matched()


def test_what_is_not_matched_has_a_reason_and_stays():
    q, k, v = tensors()
    wide = tensors(m=13)
    cases = [
        ("dropout of attention weights", lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, enable_gqa=True)),
        ("attention of torch.float64", lambda: F.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)),
        ("is_causal over keys", lambda: F.scaled_dot_product_attention(*wide, is_causal=True, enable_gqa=True)),
        ("3 dimensions", lambda: F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0])),
        ("batches or lengths", lambda: F.scaled_dot_product_attention(q, k[:1], v[:1], enable_gqa=True)),
    ]
    for why, run in cases:
        f = compiled(run, dynamic=False)
        assert torch.equal(run(), f()), why
        said = superop.matched()
        assert said.matched == 0 and said.of == 1 and why in str(said), said


def test_what_is_written_between_is_seen():
    """Keys repeated, then written over where they came from: the copy holds what was there before."""
    q, k, v = tensors()

    def run(q, k, v):
        k, v = k.clone(), v.clone()
        many = [x[:, :, None].expand(2, 2, 2, 9, 16).reshape(2, 4, 9, 16) for x in (k, v)]
        k.zero_()
        return F.scaled_dot_product_attention(q, *many) + k.sum()

    near(run(q, k, v), compiled(run, dynamic=False)(q, k, v))
    assert superop.matched().matched == 1


def test_training_is_left_alone():
    block, x = Plain("expand"), torch.randn(2, 9, 64)
    f = compiled(block, "aot_eager")
    block(x, *rope(9, "cpu")).sum().backward()
    want = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    f(x, *rope(9, "cpu")).sum().backward()
    for a, p in zip(want, block.parameters()):
        near(a, p.grad)
    assert str(superop.matched()) == "matched 0 of 1; gradients are asked for", superop.matched()


def test_models_nobody_patched():
    for device, maker in itertools.product(DEVICES, (qwen2, llama)):
        model = make(maker, device)
        f = compiled(model, "aot_eager", linears=True)
        with torch.no_grad():
            for n in (10, 33):
                x = ids(2, n, device)
                near(model(x, use_cache=False).logits, f(x, use_cache=False).logits)
        said = superop.matched()
        assert str(said) == "matched 3 of 3" and graphs() == 1, (said, graphs())
        assert said.parts == {"attention": 3, "rope": 3, "projections": 3}, said.parts


def test_patched_models_compile_whole():
    for device, maker in itertools.product(DEVICES, (qwen2, llama)):
        model = make(maker, device)
        several = [ids(2, n, device) for n in (10, 33, 128)]
        with torch.no_grad():
            want = [model(x, use_cache=False).logits for x in several]
            superop.patch(model, stack=True)
            f = compiled(model)
            for x, logits in zip(several, want):
                near(logits, f(x, use_cache=False).logits)
        assert graphs() == 1, graphs()
        superop.unpatch(model)


def test_a_module_put_in_since_is_compiled_anew():
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.more = base, nn.Linear(base.in_features, base.out_features, device=base.weight.device)

        def forward(self, x):
            return self.base(x) + self.more(x)

    for device in DEVICES:
        model = make(qwen2, device)
        superop.patch(model, stack=False)
        f = torch.compile(model, backend="eager", dynamic=True)
        x = ids(1, 9, device)
        with torch.no_grad():
            f(x, use_cache=False)
            mlp = model.model.layers[1].mlp
            mlp.up_proj = Adapted(mlp.up_proj)
            got = f(x, use_cache=False).logits
            superop.unpatch(model)
            near(model(x, use_cache=False).logits, got)
        torch._dynamo.reset()


def test_inductor_goes_on():
    if DEVICES == ["cpu"] and not shutil.which("g++"):
        raise Skip("inductor wants g++ on a CPU")
    for device in DEVICES:
        block, x = Plain("gqa").to(device), torch.randn(2, 9, 64, device=device)
        f = compiled(block, "inductor")
        with torch.no_grad():
            near(block(x, *rope(9, device)), f(x, *rope(9, device)))
        assert superop.matched().matched == 1
