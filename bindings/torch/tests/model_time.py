"""A patched model beside PyTorch's own: python model_time.py [SHAPE] [PASSES] [eager,sdpa,superop,layers] [WHAT,...]

SHAPE is qwen2-0.5b, qwen2-7b or tiny, its weights are random. Medians, each pass ended by a synchronisation;
in brackets how long the host was busy with it. WHAT is one of

    step      a direct call of the model for one token after 512
    graph     the same, recorded in a CUDA graph over a static cache; not for superop
    generate  a token of generate(), of 32 (the first one and the prompt left out)
    prefill   a batch of mixed lengths, padded on the left, its last logits
    peak      memory in use beside the parameters, at most, of all that was measured before
    shapes    200 batches of random shapes: the worst first call, in medians of the calls after it

`layers` is superop.patch(model, stack=False)."""

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


def once(f):
    """Seconds until the host is free, and until all is done."""
    start = time.perf_counter()
    f()
    host = time.perf_counter() - start
    wait()
    return host, time.perf_counter() - start


def median(f, passes):
    both = [once(f) for _ in range(passes + 2)][2:]
    host, all = (statistics.median(x) * 1e6 for x in zip(*both))
    return f"{all:.0f} us ({host:.0f})"


class Measure:
    def __init__(self, model, passes):
        self.model, self.passes = model, passes
        self.n = 512 if DEVICE == "cuda" else 32
        with torch.device(DEVICE):  # no longer than this: it costs every call of PyTorch's a detour
            self.prompt = torch.randint(3, 500, (1, self.n))
            self.token = torch.randint(3, 500, (1, 1))
            lengths = torch.tensor(LENGTHS if DEVICE == "cuda" else [n // 16 + 1 for n in LENGTHS])
            most = int(lengths.max())
            self.batch = torch.randint(3, 500, (len(LENGTHS), most))
            self.mask = (torch.arange(most) >= most - lengths[:, None]).long()
        self.place = (self.mask.cumsum(-1) - 1).clamp(min=0)
        self.parameters = sum(p.numel() * p.element_size() for p in model.parameters())
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def step(self):
        cache = t.DynamicCache(config=self.model.config)
        self.model(self.prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return median(lambda: self.model(self.token, past_key_values=cache, use_cache=True), self.passes)

    def graph(self):
        still = t.StaticCache(config=self.model.config, max_cache_len=1024)
        self.model(self.prompt, past_key_values=still, use_cache=True)
        at = torch.full((1, 1), self.n, device=DEVICE)
        step = functools.partial(self.model, self.token, past_key_values=still, position_ids=at, use_cache=True)
        step(), step()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            step()
        return median(g.replay, self.passes)

    def generate(self):
        def run(n):
            return once(lambda: self.model.generate(self.prompt, max_new_tokens=n, do_sample=False, pad_token_id=0))[1]

        run(2)
        n = 33 if self.passes > 8 else 9
        times = [run(n) - run(1) for _ in range(3)]
        return f"{statistics.median(times) / (n - 1) * 1e6:.0f} us"

    def prefill(self):
        call = functools.partial(
            self.model, self.batch, attention_mask=self.mask, position_ids=self.place, use_cache=False, logits_to_keep=1
        )
        return median(call, max(self.passes // 4, 2))

    def peak(self):
        stack = getattr(getattr(self.model, "_superop", None), "stack", None)
        bytes = torch.cuda.max_memory_allocated() - self.parameters + (stack.bytes() if stack else 0)
        return f"{bytes / 1e6:.0f} MB"

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
    name, passes, which, what = (*sys.argv[1:5], *standard[len(sys.argv) - 1 :])
    passes = int(passes)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    with torch.device(DEVICE):
        model = t.Qwen2ForCausalLM(t.Qwen2Config(**SHAPES[name])).eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    for one in which.split(","):
        if one in ("superop", "layers"):
            start = time.perf_counter()
            print(superop.patch(model, stack=one == "superop"), f"in {time.perf_counter() - start:.2f} s", flush=True)
        else:
            superop.unpatch(model)
            model.set_attn_implementation(one)
        with torch.no_grad():
            measure = Measure(model, passes if one != "eager" else min(passes, 8))
            print(f"{name} {one:8}", *(f"{w} {getattr(measure, w)()}" for w in what.split(",")), sep="  ", flush=True)
    if getattr(model, "_superop", None):
        print(superop.explain(model, 1, 1))
    print(superop.fallbacks())


if __name__ == "__main__":
    main()
