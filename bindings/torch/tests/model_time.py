"""A patched model beside PyTorch's own: python model_time.py [SHAPE] [PASSES] [WHO,...] [WHAT,...]

SHAPE is qwen2-0.5b, qwen2-7b or tiny, or qwen2-7b:8 with so many layers; its weights are random and all of WHO
share them:

    eager, sdpa  Transformers with this attention
    compile      torch.compile(mode="reduce-overhead") over a static cache; a step alone, minutes of compiling
    superop      superop.patch(model)
    layers       superop.patch(model, stack=False)

Medians of passes in turns, each ended by a synchronisation; in brackets how long the host was busy with it.
WHAT is one of

    step      a direct call of the model for one token after 512
    graph     the same of sdpa in a CUDA graph over a static cache, of superop as it records it itself
    generate  a token of generate(), of 32 (the first one and the prompt left out)
    prefill   a batch of mixed lengths, padded on the left, its last logits
    peak      memory in use beside the parameters, at most, with a prefill and a step
    shapes    200 batches of random shapes: the worst first call, in medians of the calls after it"""

import copy
import functools
import random
import statistics
import sys
import time

import torch
import transformers as t

import superop

SHAPES = {
    "tiny": dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
    "qwen2-0.5b": dict(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
    ),
    "qwen2-7b": dict(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        max_position_embeddings=32768,
    ),
}
LENGTHS = (2048, 1500, 300, 129, 17, 900, 64, 250, 1024, 700, 90, 33, 400, 1800, 512, 600)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def in_use():
    return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0


def once(f):
    """Seconds until the host is free, and until all is done."""
    start = time.perf_counter()
    f()
    host = time.perf_counter() - start
    wait()
    return host, time.perf_counter() - start


class Contestant:
    """One way to run the model. Each measure returns a pass, which returns seconds: the host's, all."""

    def __init__(self, name, model):
        before, start = in_use(), time.perf_counter()
        self.model = self.call = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        self.static = name == "compile"
        if name in ("superop", "layers"):
            print(superop.patch(self.model, stack=name == "superop"), f"in {time.perf_counter() - start:.2f} s", flush=True)
        else:
            self.model.set_attn_implementation(name if name != "compile" else "sdpa")
        if self.static:
            self.call = torch.compile(self.model, mode="reduce-overhead")
        self.stack = getattr(getattr(self.model, "_superop", None), "stack", None)
        self.standing = in_use() - before + (self.stack.bytes() if self.stack else 0)
        n = 512 if DEVICE == "cuda" else 32
        with torch.device(DEVICE):  # no longer than this: it costs every call of PyTorch's a detour
            self.prompt, self.token = torch.randint(3, 500, (1, n)), torch.randint(3, 500, (1, 1))
            lengths = torch.tensor(LENGTHS if DEVICE == "cuda" else [n // 16 + 1 for n in LENGTHS])
            most = int(lengths.max())
            self.batch = torch.randint(3, 500, (len(LENGTHS), most))
            self.mask = (torch.arange(most) >= most - lengths[:, None]).long()
        self.place = (self.mask.cumsum(-1) - 1).clamp(min=0)

    def one(self, static):
        config = self.model.config
        cache = t.StaticCache(config=config, max_cache_len=1024) if static else t.DynamicCache(config=config)
        self.model(self.prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return functools.partial(self.call, self.token, past_key_values=cache, use_cache=True)

    def step(self):
        call, start = self.one(self.static), time.perf_counter()
        for _ in range(4):
            call()
        wait()
        if self.static:
            print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
        return functools.partial(once, call)

    def graph(self):
        call = self.one(not self.stack)
        call(), call()
        if self.stack:
            held = call.keywords["past_key_values"].layers[0].held
            return functools.partial(once, lambda: self.stack.step(held, self.token, None))
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            call()
        self.recorded = call  # its cache, which a recording reads and does not hold
        return functools.partial(once, g.replay)

    def generate(self):
        n = 33 if DEVICE == "cuda" else 9

        def run(n):
            return once(lambda: self.model.generate(self.prompt, max_new_tokens=n, do_sample=False, pad_token_id=0))[1]

        run(2)
        return lambda: ((run(n) - run(1)) / (n - 1),) * 2

    def prefill(self):
        call = functools.partial(
            self.model, self.batch, attention_mask=self.mask, position_ids=self.place, use_cache=False, logits_to_keep=1
        )
        call()
        return functools.partial(once, call)

    def peak(self):
        torch.cuda.reset_peak_memory_stats()
        before = in_use()
        self.prefill(), self.step()
        return f"{(torch.cuda.max_memory_allocated() - before + self.standing) / 1e6:.0f} MB"

    def shapes(self):
        draw, worst, slowest = random.Random(0), 0, None
        self.step()
        for i in range(200):
            b, n = draw.choice((1, 2, 3, 5, 8, 13)), draw.randint(1, 700)
            x, mask = torch.randint(3, 500, (b, n)), torch.ones(b, n, dtype=torch.long)
            for row in mask[1:]:
                row[: draw.randint(0, n - 1)] = 0
            x, mask = x.to(DEVICE), mask.to(DEVICE)

            def call():
                out = self.model(x, attention_mask=mask, use_cache=True, logits_to_keep=1)
                more = torch.cat([mask, mask[:, -1:]], 1)
                self.model(x[:, :1], attention_mask=more, past_key_values=out.past_key_values)

            wait()
            first, *rest = (once(call)[1] for _ in range(4))
            ratio = first / statistics.median(rest)
            if ratio > worst:
                worst, slowest = ratio, f"{ratio:.2f}x, {b} x {n}, {first * 1e3:.1f} ms"
        return slowest


def main():
    standard = ("qwen2-0.5b", "20", "sdpa,superop", "step,generate,prefill,peak")
    name, passes, who, whats = (*sys.argv[1:5], *standard[len(sys.argv) - 1 :])
    shape, _, layers = name.partition(":")
    shape = dict(SHAPES[shape], **{"num_hidden_layers": int(layers)} if layers else {})
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    with torch.device(DEVICE):
        model = t.Qwen2ForCausalLM(t.Qwen2Config(**shape)).eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    all = {one: Contestant(one, model) for one in who.split(",")}
    for what in whats.split(","):
        said = []
        with torch.no_grad():
            without = {"step": (), "graph": ("eager", "compile")}.get(what, ("compile",))
            here = {one: getattr(c, what) for one, c in all.items() if one not in without}
            if what in ("peak", "shapes"):
                said = [f"{one} {f()}" for one, f in here.items()]
            else:
                here = {one: f() for one, f in here.items()}
                times = {one: [] for one in here}
                for _ in range(int(passes) if what in ("step", "graph") else max(int(passes) // 8, 3)):
                    for one, f in here.items():
                        times[one].append(f())
                for one, both in times.items():
                    host, total = (statistics.median(x) * 1e6 for x in zip(*both))
                    said.append(f"{one} {total:.0f} us ({host:.0f})")
        print(f"{name} {what}:", ", ".join(said), flush=True)
    for c in all.values():
        if getattr(c.model, "_superop", None):
            print(superop.explain(c.model, 1, 1))
    print(superop.fallbacks())


if __name__ == "__main__":
    main()
