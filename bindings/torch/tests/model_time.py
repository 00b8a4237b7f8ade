"""A patched model beside PyTorch's own: python model_time.py [qwen2-0.5b|tiny] [PASSES] [sdpa|superop]

Random weights; medians, each pass ended by a synchronisation. `step` is a direct call of the model for one
token after 512, `graph` the same recorded with a static cache, `generate` one of 32 tokens, `prefill` a
batch of mixed lengths, padded on the left."""

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
}


def median(f, passes, device):
    times = []
    for i in range(passes + 2):
        start = time.perf_counter()
        f()
        if device == "cuda":
            torch.cuda.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "qwen2-0.5b"
    passes = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(device):  # no longer than this: it costs every call of PyTorch's a detour
        model = t.Qwen2ForCausalLM(t.Qwen2Config(**SHAPES[name], attn_implementation="sdpa")).eval()
        prompt = torch.randint(3, 500, (1, 512 if device == "cuda" else 32))
        token = torch.randint(3, 500, (1, 1))
        lengths = torch.tensor([512, 300, 129, 17, 400, 64, 250, 90])
        batch = torch.randint(3, 500, (8, 512))
        mask = (torch.arange(512) >= 512 - lengths[:, None]).long()
        place = (mask.cumsum(-1) - 1).clamp(min=0)
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None

    def measure(label):
        with torch.no_grad():
            cache = t.DynamicCache(config=model.config)
            model(prompt, past_key_values=cache, use_cache=True)
            n = prompt.shape[1]

            def step():
                model(token, past_key_values=cache, use_cache=True)

            torch.cuda.reset_peak_memory_stats() if device == "cuda" else None
            out = {"step": median(step, passes, device)}
            out["generate a token"] = (
                median(lambda: model.generate(prompt, max_new_tokens=32, do_sample=False, pad_token_id=0), 3, device) / 32
            )
            if device == "cuda":
                out["prefill"] = median(
                    lambda: model(batch, attention_mask=mask, position_ids=place, use_cache=False, logits_to_keep=1), 5, device
                )
                still = t.StaticCache(config=model.config, max_cache_len=1024)
                model(prompt, past_key_values=still, use_cache=True)
                at = torch.full((1, 1), n, device=device)
                try:
                    for _ in range(2):
                        model(token, past_key_values=still, position_ids=at, use_cache=True)
                    g = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(g):
                        model(token, past_key_values=still, position_ids=at, use_cache=True)
                    out["graph"] = median(g.replay, passes, device)
                except Exception as e:
                    print("graph:", str(e)[:200])
                out["peak MB"] = torch.cuda.max_memory_allocated() / 1e6
        print(f"{label:8}", "  ".join(f"{k} {v:.0f}" + (" us" if "MB" not in k else "") for k, v in out.items()), flush=True)

    only = sys.argv[3] if len(sys.argv) > 3 else ""
    if only in ("", "sdpa"):
        measure("sdpa")
    if only == "sdpa":
        return
    print(superop.patch(model))
    measure("superop")
    print(superop.explain(model, 1, 1))
    print(superop.fallbacks())


if __name__ == "__main__":
    main()
