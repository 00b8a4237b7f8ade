"""Tokens of a patched model beside eager's: python model_tokens.py [SHAPE] [bfloat16,float16] [superop,layers] [BATCH,...]

Eager decodes greedily from prompts of mixed lengths, padded on the left; the patched model is given the same
tokens. A next token is right when it is eager's, or when eager's logits of the two lie nearer together than
eager is to float32 there. A BATCH of 1000 and more is one prompt of this length."""

import sys

import torch
import transformers as t

import superop
from model_time import DEVICE, SHAPES

STEPS = 8


def decode(model, x, mask, given=None):
    """Logits [b, STEPS, vocab] of what comes after x, and the tokens given or chosen."""
    cache, said, chosen = t.DynamicCache(config=model.config), [], []
    place = (mask.cumsum(-1) - 1).clamp(min=0)
    for i in range(STEPS):
        out = model(x, attention_mask=mask, position_ids=place, past_key_values=cache, use_cache=True, logits_to_keep=1)
        said.append(out.logits[:, -1].float())
        x = said[-1].argmax(-1, keepdim=True) if given is None else given[:, i : i + 1]
        chosen.append(x)
        mask, place = torch.cat([mask, mask.new_ones(len(mask), 1)], 1), place[:, -1:] + 1
    return torch.stack(said, 1), torch.cat(chosen, 1)


def judge(want, got, exact):
    """Tokens, those that differ, those that are wrong, and how far from float32 the two are."""
    noise = (want - exact).abs().amax(-1)
    a, b = want.argmax(-1), got.argmax(-1)
    gap = want.amax(-1) - want.gather(-1, b[..., None])[..., 0]
    wrong = (a != b) & (gap > 2 * noise)
    scale = exact.std()
    return [a.numel(), int((a != b).sum()), int(wrong.sum()), float(noise.max() / scale), float((got - exact).abs().max() / scale)]


def main():
    standard = ("qwen2-0.5b", "bfloat16,float16", "superop,layers", "1,7,64,4095,4096,4097")
    name, dtypes, which, batches = (*sys.argv[1:5], *standard[len(sys.argv) - 1 :])
    bad = 0
    for dtype in (getattr(torch, d) for d in dtypes.split(",")):
        torch.manual_seed(0)
        with torch.device(DEVICE):
            wide = t.Qwen2ForCausalLM(t.Qwen2Config(**SHAPES[name], attn_implementation="eager")).eval().to(dtype)
            model = t.Qwen2ForCausalLM(wide.config).to(dtype).eval()
        model.load_state_dict(wide.state_dict())
        wide.float()
        cases, draw = [], torch.Generator().manual_seed(0)
        for n in map(int, batches.split(",")):
            b, most = (1, n) if n >= 1000 else (n, 256)
            lengths = torch.randint(1, most + 1, (b,), generator=draw)
            lengths[0] = most
            mask = (torch.arange(most) >= most - lengths[:, None]).long().to(DEVICE)
            x = torch.randint(3, SHAPES[name]["vocab_size"], (b, most), generator=draw).to(DEVICE)
            with torch.no_grad():
                want, tokens = decode(model, x, mask)
                exact, _ = decode(wide, x, mask, tokens)
            cases.append((n, x, mask, tokens, want, exact))
        for one in which.split(","):
            print(superop.patch(model, stack=one == "superop"))
            for n, x, mask, tokens, want, exact in cases:
                with torch.no_grad():
                    got, _ = decode(model, x, mask, tokens)
                all, other, wrong, noise, error = judge(want, got, exact)
                bad += wrong
                print(
                    f"{name} {str(dtype)[6:]:8} {one:8} {n:5}: {all} tokens, {other} differ, {wrong} wrong;"
                    f" from float32: eager {noise:.4f}, here {error:.4f} of the spread",
                    flush=True,
                )
            superop.unpatch(model)
            model.set_attn_implementation("eager")
    print(superop.fallbacks())
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
