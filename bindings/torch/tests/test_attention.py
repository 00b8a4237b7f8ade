"""attn_implementation="superop" against eager, in every way that ragged data arrives."""

import importlib.util
import itertools
import warnings

import torch

import superop
from harness import DEVICES, Skip
from models import MAKERS, gemma3, llama, make, mistral, qwen2, qwen3

warnings.filterwarnings("ignore", message="superop:")


def both(model, impl="superop", **inputs):
    """Logits of eager, and of superop."""
    out = []
    for name in ("eager", impl):
        model.set_attn_implementation(name)
        with torch.no_grad():
            out.append(model(**inputs).logits.float())
    return out


def near(a, b, where=None, bound=2e-4):
    if where is not None:
        a, b = a[where], b[where]
    error = (a - b).abs().max()
    assert error <= bound * (1 + a.abs().max()), f"{float(error)} apart, of {float(a.abs().max())}"


def ids(b, n, device, seed=0):
    return torch.randint(3, 97, (b, n), generator=torch.Generator().manual_seed(seed)).to(device)


def everywhere(makers=MAKERS):
    for device, maker in itertools.product(DEVICES, makers):
        yield device, make(maker, device)


def none_fell_back(before):
    assert superop.fallbacks() == before, superop.fallbacks()


def test_plain_batches():
    before = superop.fallbacks()
    for device, model in everywhere():
        for b, n in ((1, 1), (1, 33), (3, 20)):
            near(*both(model, input_ids=ids(b, n, device)))
    none_fell_back(before)


def test_left_and_right_padding():
    before = superop.fallbacks()
    for device, model in everywhere():
        x = ids(3, 20, device)
        for side in ("left", "right"):
            mask = torch.ones_like(x)
            for row, pads in enumerate((0, 5, 13)):
                if pads:
                    mask[row, :pads] = 0 if side == "left" else mask[row, :pads]
                    mask[row, 20 - pads :] = 0 if side == "right" else mask[row, 20 - pads :]
            position = (mask.cumsum(-1) - 1).clamp(min=0)
            near(*both(model, input_ids=x, attention_mask=mask, position_ids=position), where=mask.bool())
    none_fell_back(before)


def test_packed_rows_by_their_positions():
    for device, model in everywhere():
        x = ids(1, 24, device)
        position = torch.cat([torch.arange(n) for n in (7, 1, 16)])[None].to(device)
        near(*both(model, input_ids=x, position_ids=position, use_cache=False))


def test_packed_rows_by_cu_seq_lens():
    before = superop.fallbacks()
    for device, model in everywhere():
        x = ids(1, 24, device)
        lengths = (7, 1, 16)
        cu = torch.tensor([0, 7, 8, 24], dtype=torch.int32, device=device)
        position = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
        model.set_attn_implementation("superop")
        with torch.no_grad():
            got = model(
                input_ids=x, position_ids=position, use_cache=False, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=16, max_length_k=16
            ).logits
        model.set_attn_implementation("eager")
        with torch.no_grad():
            want = torch.cat([model(part).logits for part in x.split(lengths, 1)], 1)
        near(want, got)
    none_fell_back(before)


def test_a_custom_mask():
    before = superop.fallbacks()
    for device, model in everywhere([qwen2, qwen3, llama]):
        x = ids(2, 12, device)
        allowed = (torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(3)) > 0.4).to(device).tril()
        allowed |= torch.eye(12, dtype=torch.bool, device=device)
        number = torch.zeros(2, 1, 12, 12, device=device).masked_fill(~allowed, torch.finfo(torch.float32).min)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            want = model(input_ids=x, attention_mask=number).logits
        model.set_attn_implementation("superop")
        with torch.no_grad():
            near(want, model(input_ids=x, attention_mask=number).logits)
            near(want, model(input_ids=x, attention_mask=allowed).logits)
    none_fell_back(before)


def test_prefill_in_chunks_and_decode():
    from transformers import DynamicCache, StaticCache

    before = superop.fallbacks()
    for device, model in everywhere():
        x = ids(2, 21, device)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            want = model(x).logits
        model.set_attn_implementation("superop")
        for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=30)):
            got, at = [], 0
            for n in (5, 9, 1, 1, 4, 1):
                with torch.no_grad():
                    got.append(model(x[:, at : at + n], past_key_values=cache, use_cache=True).logits)
                at += n
            near(want, torch.cat(got, 1))
    none_fell_back(before)


def test_generate_says_the_same():
    before = superop.fallbacks()
    for device, model in everywhere():
        x = ids(3, 12, device)
        mask = torch.ones_like(x)
        mask[1, :5] = 0
        mask[2, :11] = 0
        for cache in (None, "static"):
            said = []
            for name in ("eager", "superop"):
                model.set_attn_implementation(name)
                said.append(
                    model.generate(
                        x, attention_mask=mask, max_new_tokens=12, do_sample=False, cache_implementation=cache, disable_compile=True
                    )
                )
            assert torch.equal(*said), (model.config.model_type, cache)
    none_fell_back(before)


def test_lower_precisions():
    for device, maker, dtype in itertools.product(DEVICES, MAKERS, (torch.float16, torch.bfloat16)):
        model = make(maker, device, dtype)
        x = ids(2, 17, device)
        mask = torch.ones_like(x)
        mask[1, :6] = 0
        position = (mask.cumsum(-1) - 1).clamp(min=0)
        a, b = both(model, input_ids=x, attention_mask=mask, position_ids=position)
        near(a, b, mask.bool(), 0.01 if dtype is torch.float16 else 0.06)


def test_gradients_are_eagers():
    for device, model in everywhere([llama, gemma3]):
        grads = []
        x = ids(2, 12, device)
        for name in ("eager", "superop"):
            model.set_attn_implementation(name)
            model.zero_grad()
            model(x, labels=x).loss.backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads):
            near(a, b)
    if "attention_grad" in superop._ops.table:
        assert "attention has no gradient in this build" not in superop.fallbacks()


def test_weights_of_attention_come_through_the_fallback():
    for device, model in everywhere([llama]):
        x = ids(2, 12, device)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            want = model(x, output_attentions=True).attentions
        model.set_attn_implementation("superop")
        with torch.no_grad():
            got = model(x, output_attentions=True).attentions
        assert len(got) == len(want) and got[0] is not None
        for a, b in zip(want, got):
            near(a, b)


def test_small_tensors_belong_to_their_stream():
    if "cuda" not in DEVICES:
        raise Skip("there is no card")
    from superop.hf import index_of

    device = torch.device("cuda", 0)
    here = index_of(3, 1, 7, device)
    assert all(a is b for a, b in zip(here, index_of(3, 1, 7, device)))
    with torch.cuda.stream(torch.cuda.Stream()):
        assert not any(a is b for a, b in zip(here, index_of(3, 1, 7, device)))


def test_other_models_through_the_same_interface():
    """Experts, sinks, caps, layers without a direction: none of it falls back."""
    import transformers as t

    from models import SMALL

    small = {**SMALL, "num_hidden_layers": 2}
    before = superop.fallbacks()
    for config, cls in (
        (t.GptOssConfig(**small, head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2), t.GptOssForCausalLM),
        (t.MixtralConfig(**small, num_local_experts=4), t.MixtralForCausalLM),
        (t.Gemma2Config(**small, head_dim=16, sliding_window=8, attn_logit_softcapping=5.0), t.Gemma2ForCausalLM),
        (t.BertConfig(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4), t.BertForMaskedLM),
    ):
        torch.manual_seed(0)
        for device in DEVICES:
            model, x = cls(config).to(device).eval(), ids(3, 20, device)
            mask = torch.ones_like(x)
            mask[1, 15:] = 0
            near(*both(model, input_ids=x, attention_mask=mask), where=mask.bool())
    none_fell_back(before)


def test_no_mask_is_built_where_none_is_needed():
    from superop.hf import superop_mask
    from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

    window = sliding_window_causal_mask_function(4)
    for fn, size in ((causal_mask_function, None), (window, 4)):
        ask = dict(mask_function=fn, local_size=size, device="cpu", config=mistral().config)
        assert superop_mask(2, 5, 9, 4, **ask) is None
        assert superop_mask(2, 5, 9, 4, attention_mask=torch.ones(2, 9, dtype=torch.bool), **ask) is None
        assert superop_mask(2, 5, 30, 4, **ask).flatten(1).tolist() == [[9, 9]]
        assert superop_mask(2, 5, 30, torch.tensor(4), **ask).flatten(1).tolist() == [[9, 9]]
        holes = torch.ones(2, 9, dtype=torch.bool)
        holes[0, 0] = False
        assert superop_mask(2, 5, 9, 4, attention_mask=holes, **ask).flatten(1).tolist() == [[1, 0], [8, 9]]
        holes[1, 4] = False
        assert superop_mask(2, 5, 9, 4, attention_mask=holes, **ask).shape == (2, 1, 5, 9)
        assert superop_mask(2, 5, 9, 4, allow_is_causal_skip=False, **ask).shape == (2, 1, 5, 9)
        if size:  # a model whose layers may say nothing of their window
            ask.pop("config")
            assert superop_mask(2, 5, 9, 4, **ask).shape == (2, 1, 5, 9)


def test_the_expanded_mask_is_what_transformers_builds():
    from superop.hf import dense
    from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

    q = torch.zeros(2, 1, 5, 8)
    want = sdpa_mask(2, 5, 9, 4, mask_function=sliding_window_causal_mask_function(4), local_size=4, allow_is_causal_skip=False)
    assert torch.equal(dense(None, q, 9, True, 4), want)
    lens = torch.tensor([9, 9], dtype=torch.int32).view(1, 2, 1, 1)
    pads = torch.ones(2, 9, dtype=torch.bool)
    pads[1, :3] = False
    both = torch.tensor([[0, 3], [9, 6]], dtype=torch.int32).view(2, 2, 1, 1)
    assert torch.equal(dense(both, q, 9, True, 4), want & pads[:, None, None])
    assert torch.equal(dense(lens, q, 12, True, 4)[..., :9], want) and not dense(lens, q, 12, True, 4)[..., 9:].any()


def test_continuous_batching():
    from transformers import ContinuousBatchingConfig, GenerationConfig

    if not importlib.util.find_spec("psutil"):
        raise Skip("Transformers asks psutil for the memory there is")
    for device, model in everywhere([llama, qwen2, mistral]):
        prompts = [ids(1, n, "cpu", n)[0].tolist() for n in (5, 11, 3)]
        want = []
        model.set_attn_implementation("eager")
        for p in prompts:
            x = torch.tensor([p], device=device)
            want.append(model.generate(x, max_new_tokens=8, do_sample=False)[0, len(p) :].tolist())
        model.set_attn_implementation("paged|superop")
        config = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
        room = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
        try:
            out = model.generate_batch(prompts, config, room, warmup=False)
        except ValueError as e:
            raise Skip(f"these Transformers: {e}")
        got = [out[k].generated_tokens for k in sorted(out, key=lambda k: int(k.split("_")[-1]))]
        assert got == want, (got, want)
