"""The decoder of a patched model as one operator, against eager."""

import copy
import gc
import inspect
import itertools
import pickle
import warnings
import weakref

import torch
import transformers as t

import superop
from harness import DEVICES, Skip
from models import gemma3, llama, make, mistral, qwen2, qwen3
from superop.cache import GrowingLayer
from superop.stack import StackLayer
from test_attention import ids, near

warnings.filterwarnings("ignore", message="superop:")

MAKERS = [qwen2, qwen3, llama]


def stacked(maker, device="cpu", dtype=torch.float32, tokens=2048, sequences=8, step_tokens=48, **kw):
    model = make(maker, device, dtype, **kw)
    model.set_attn_implementation("eager")
    return model, lambda: superop.patch(model, True, tokens, sequences, step_tokens)


def is_held(cache):
    return all(type(layer) is StackLayer for layer in cache.layers)


def left(x, pads):
    mask = torch.ones_like(x)
    for row, n in enumerate(pads):
        mask[row, :n] = 0
    return mask


def both(model, patch, run, fall=False):
    with torch.no_grad():
        want = run(model)
        done = patch()
        assert done.stack is not None, done
        before = superop.fallbacks()
        got = run(model)
        assert fall or superop.fallbacks() == before, superop.fallbacks()
    return want, got


def every(makers=MAKERS):
    for device in DEVICES:
        for maker in makers:
            yield (device, *stacked(maker, device))


def test_generate_says_what_eager_says():
    for device, model, patch in every():
        x = ids(3, 30, device)
        masks = (None, left(x, (0, 7, 21)), left(x, (3, 3, 3)))
        for mask in masks if isinstance(model, t.Qwen2ForCausalLM) else masks[1:2]:
            want, got = both(
                model,
                patch,
                lambda m: m.generate(
                    x, attention_mask=mask, max_new_tokens=20, do_sample=False, output_logits=True, return_dict_in_generate=True
                ),
            )
            assert is_held(got.past_key_values)
            same = (want.sequences == got.sequences).all(0)[30:].long().cumprod(0)
            assert same[:20].all(), same
            for i in range(20):
                near(want.logits[i], got.logits[i])
            superop.unpatch(model)


def decode(m, x, mask=None, positions=False, keep=0, chunk=0, steps=5, after=None):
    """Logits of a prompt and of single tokens after it, and the cache."""
    cache, said, n = t.DynamicCache(config=m.config), [], x.shape[1] - steps
    place = (mask.cumsum(1) - 1).clamp(min=0) if positions else None
    parts = [(0, n)] + [(i, i + 1) for i in range(n, n + steps)]
    if chunk:
        parts[:1] = [(i, min(i + chunk, n)) for i in range(0, n, chunk)]
    for i, (a, z) in enumerate(parts):
        out = m(
            x[:, a:z],
            attention_mask=None if mask is None else mask[:, :z],
            position_ids=None if place is None else place[:, a:z],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        said.append(out.logits[:, -1])
        if after:
            after(i, m, cache)
    return torch.stack(said), cache


def test_prompts_and_steps_are_eagers():
    for device, model, patch in every():
        cases = (
            (1, 12, dict(keep=1)),
            (1, 12, dict(keep=0)),  # 7 rows of output: all of them at once
            (1, 90, dict(keep=0)),  # more than that: the layers ran, their keys are taken in
            (8, 60, dict(keep=1)),  # a prompt in several calls
            (2, 60, dict(keep=1, chunk=9)),
        )
        for b, n, kw in cases if isinstance(model, t.Qwen2ForCausalLM) else cases[2:4]:
            x = ids(b, n, device)
            for pads in (None, [3 * i % 11 for i in range(b)]):
                if pads and kw.get("chunk"):
                    continue
                mask = left(x, pads) if pads else None
                for positions in (False, True) if pads else (False,):
                    (want, _), (got, cache) = both(model, patch, lambda m: decode(m, x, mask, positions, **kw))
                    assert is_held(cache)
                    near(want, got)
                    superop.unpatch(model)


def test_a_call_without_a_cache_leaves_nothing_behind():
    for device, model, patch in every([qwen2]):
        x = ids(3, 9, device)
        for _ in range(5):  # 15 sequences of the 8 that there are
            want, got = both(model, patch, lambda m: m(x, use_cache=False, logits_to_keep=1).logits)
            near(want, got)
            superop.unpatch(model)
        patch()
        with torch.no_grad():
            for _ in range(5):
                model(x, logits_to_keep=1)  # each cache is gone with its output
        assert not [why for why in superop.fallbacks() if "sequences in the stack" in why]


def test_who_asks_for_keys_gets_them():
    for device, model, patch in every():
        x = ids(2, 20, device)
        mask = left(x, (0, 6))

        def asks(i, m, cache):
            if i == 2:
                assert [layer.keys.shape[2] for layer in cache.layers] == [17] * 3
                assert all(type(layer) is not StackLayer for layer in cache.layers)

        (want, a), (got, b) = both(model, patch, lambda m: decode(m, x, mask, True, keep=1, after=asks))
        near(want, got)
        for one, other in zip(a.layers, b.layers):
            for name in ("keys", "values"):
                left_of, right_of = getattr(one, name), getattr(other, name)
                near(left_of[0], right_of[0])
                near(left_of[1, :, 6:], right_of[1, :, 6:])


def test_what_the_stack_does_not_do_goes_layer_by_layer():
    for device, model, patch in every([qwen2]):
        x = ids(1, 14, device)

        def run(m):
            cache = t.DynamicCache(config=m.config)
            m(x[:, :10], past_key_values=cache, logits_to_keep=1)
            a = m(x[:, 10:11], past_key_values=cache, output_hidden_states=True)
            b = m(x[:, 11:12], past_key_values=cache)
            hole = torch.ones(1, 13, dtype=torch.long, device=device)
            hole[:, 4] = 0
            c = m(x[:, 12:13], attention_mask=hole, past_key_values=cache)
            cache.crop(9)
            d = m(x[:, 9:10], past_key_values=cache)
            e = m(inputs_embeds=m.model.embed_tokens(x[:, 10:11]), past_key_values=cache)
            return [o.logits for o in (a, b, c, d, e)] + [a.hidden_states[1]]

        for want, got in zip(*both(model, patch, run)):
            near(want, got)
        seen = []
        hook = model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
        with torch.no_grad():
            model(x, logits_to_keep=1)
        hook.remove()
        assert seen
        loss = model(x, labels=x).loss
        loss.backward()
        assert model.model.layers[0].mlp.up_proj.weight.grad is not None


def test_beams_and_samples():
    for device, model, patch in every([qwen2]):
        x = ids(2, 9, device)
        want, got = both(model, patch, lambda m: m.generate(x, max_new_tokens=8, num_beams=3, do_sample=False))
        assert torch.equal(want, got)
        with torch.no_grad():
            assert model.generate(x, max_new_tokens=8, do_sample=True, top_k=5).shape == (2, 17)


def test_several_caches_stand_side_by_side():
    for device, model, patch in every([qwen2]):
        xs = [ids(2, 18, device), ids(3, 25, device)]

        def run(m):
            caches = [t.DynamicCache(config=m.config) for _ in xs]
            for x, cache in zip(xs, caches):
                m(x[:, :10], past_key_values=cache, logits_to_keep=1)
            return [[m(x[:, i : i + 1], past_key_values=cache).logits for x, cache in zip(xs, caches)] for i in range(10, 16)]

        want, got = both(model, patch, run)
        for a, b in zip(want, got):
            for one, other in zip(a, b):
                near(one, other)


def test_where_there_is_no_room_the_layers_run():
    for device in DEVICES:
        model, patch = stacked(qwen2, device, tokens=64, sequences=2)
        x = ids(3, 20, device)  # three sequences
        want, got = both(model, patch, lambda m: m.generate(x, max_new_tokens=5, do_sample=False), fall=True)
        assert torch.equal(want, got)
        y = ids(1, 150, device)  # tokens that it has no pages for, at once and on the way
        superop.unpatch(model)
        for cut in (150, 50):
            want, got = both(model, patch, lambda m: m.generate(y[:, :cut], max_new_tokens=30, do_sample=False), fall=True)
            assert torch.equal(want, got)
            superop.unpatch(model)
        reasons = [why for why in superop.fallbacks() if "the stack" in why]
        assert any("the stack refuses" in why for why in reasons) and len(reasons) <= 4, reasons  # not one a length


def test_ids_beyond_the_table_are_refused_as_ever():
    model, patch = stacked(qwen2)
    patch()
    for bad in (97, -1):
        x = ids(1, 9, "cpu")
        x[0, 4] = bad
        try:
            with torch.no_grad():
                model(x, logits_to_keep=1)
        except IndexError:
            continue
        raise AssertionError(f"{bad} was taken")


def test_parameters_are_read_where_they_are():
    for device, model, patch in every([qwen2, llama]):
        if device == "cpu":
            continue  # there the library packs the large ones
        x = ids(1, 12, device)
        patch()
        run = lambda m: decode(m, x, keep=1)[0]  # noqa: E731
        with torch.no_grad():
            before = run(model)
            for p in model.parameters():
                p.data.mul_(1.25)
            got = run(model)
            superop.unpatch(model)
            want = run(model)
        near(want, got)
        assert (before - got).abs().max() > 0.01
        patch()
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight * 2)  # elsewhere from now on
        with torch.no_grad():
            got = run(model)
            superop.unpatch(model)
            near(run(model), got)


def test_any_parameter_that_was_replaced_is_seen():
    def new(p):
        return torch.nn.Parameter(torch.randn_like(p))

    def other(module, name="weight"):
        setattr(module, name, new(getattr(module, name)))

    def data(module):
        module.weight.data = new(module.weight).data

    def bound(module):
        module.forward = lambda x: 2 * type(module).forward(module, x)

    def parametrized(module):
        class Twice(torch.nn.Module):
            def forward(self, p):
                return 2 * p

        torch.nn.utils.parametrize.register_parametrization(module, "weight", Twice())

    changes = [
        (other, lambda layer: layer.mlp.up_proj),
        (data, lambda layer: layer.self_attn.q_proj),
        (lambda m: other(m, "bias"), lambda layer: layer.self_attn.k_proj),
        (other, lambda layer: layer.input_layernorm),
        (bound, lambda layer: layer.mlp),
        (bound, lambda layer: layer.self_attn.o_proj),
        (parametrized, lambda layer: layer.mlp.down_proj),
    ]
    for device, (change, where) in itertools.product(DEVICES, changes):
        model, patch = stacked(qwen2, device)
        x = ids(1, 12, device)
        done = patch()
        with torch.no_grad():
            assert is_held(model(x, logits_to_keep=1).past_key_values) and done.stack
            before = model(x, logits_to_keep=1).logits
            change(where(model.model.layers[1]))
            got = model(x, logits_to_keep=1).logits
            superop.unpatch(model)
            near(model(x, logits_to_keep=1).logits, got)
            assert (before - got).abs().max() > 1e-3


def test_a_head_to_be_trained_and_dropout_go_layer_by_layer():
    for device, model, patch in every([qwen2]):
        patch()
        model.requires_grad_(False)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        superop.unpatch(model)
        patch()
        x = ids(1, 6, device)
        model(x, logits_to_keep=1).logits.sum().backward()
        assert model.lm_head.weight.grad.abs().max() > 0
    model, patch = stacked(qwen2, attention_dropout=0.5)
    patch()
    model.train()
    with torch.no_grad():
        x = ids(1, 12, "cpu")
        assert (model(x, logits_to_keep=1).logits - model(x, logits_to_keep=1).logits).abs().max() > 1e-3


def test_layers_outlive_their_cache_and_are_pickled():
    for device, model, patch in every([qwen2]):
        x = ids(2, 12, device)

        def kept(m):
            layers = m(x, logits_to_keep=1).past_key_values.layers
            return torch.stack([layer.keys for layer in layers] + [layer.values for layer in layers])

        near(*both(model, patch, kept))

        def pickled(m):
            cache = pickle.loads(pickle.dumps(m(x, logits_to_keep=1).past_key_values))
            return m(x[:, :1], past_key_values=cache).logits

        with torch.no_grad():
            got = pickled(model)
            for dtype in (torch.float32, torch.bfloat16):
                near(model(x, attention_mask=torch.ones_like(x, dtype=dtype), logits_to_keep=1).logits, model(x).logits[:, -1:])
            superop.unpatch(model)
            near(pickled(model), got)


def test_parameters_that_were_packed_and_written_since():
    model, patch = stacked(qwen2)
    x = ids(1, 12, "cpu")
    patch()
    with torch.no_grad():
        model(x, logits_to_keep=1)
        model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
        got = model(x, logits_to_keep=1).logits
        superop.unpatch(model)
        near(model(x, logits_to_keep=1).logits, got)
    assert any("parameters that were written" in why for why in superop.fallbacks())


def test_frequencies_of_rope_are_the_models_own():
    """model.to(torch.bfloat16) rounds them, and whoever wants others writes them there."""
    for device, model, patch in every([qwen2, llama]):
        x = ids(2, 90, device)
        own = model.model.rotary_emb.inv_freq
        for change in (lambda: own.copy_(own.bfloat16()), lambda: own.mul_(1.2)):
            change()
            (want, _), (got, cache) = both(model, patch, lambda m: decode(m, x, keep=1))
            assert is_held(cache)
            near(want, got)
            superop.unpatch(model)
        patch()
        with torch.no_grad():
            before = decode(model, x, keep=1)[0]
            own.mul_(0.7)
            got = decode(model, x, keep=1)[0]
            superop.unpatch(model)
            near(decode(model, x, keep=1)[0], got)
        assert (before - got).abs().max() > 0.01


def test_yarn_and_its_scale():
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128, rope_theta=10000.0)
    for device in DEVICES:
        model, patch = stacked(llama, device, rope_parameters=yarn)
        x, rotary = ids(1, 90, device), model.model.rotary_emb
        assert rotary.attention_scaling != 1
        for _ in range(2):
            (want, _), (got, cache) = both(model, patch, lambda m: decode(m, x, keep=1))
            assert is_held(cache)
            near(want, got)
            superop.unpatch(model)
            rotary.attention_scaling *= 1.3


def test_lower_precisions():
    for device in DEVICES:
        if device == "cpu":
            continue
        for dtype in (torch.bfloat16, torch.float16):
            model, patch = stacked(qwen2, device, dtype)
            x = ids(4, 40, device)
            (want, _), (got, cache) = both(model, patch, lambda m: decode(m, x, keep=1))
            assert got.dtype is dtype and is_held(cache)
            near(want.float(), got.float(), bound=0.02)


def test_windows_and_others_stay_layer_by_layer():
    for maker, why in ((gemma3, "window"), (mistral, "window")):
        model, patch = stacked(maker)
        done = patch()
        assert done.stack is None and why in done.apart and why in repr(done)
        superop.unpatch(model)


def test_copies_are_of_their_own():
    for device, model, patch in every([qwen2]):
        x = ids(1, 12, device)

        def prefixed(m):
            prefix = t.DynamicCache(config=m.config)
            m(x[:, :8], past_key_values=prefix, logits_to_keep=1)
            caches = [copy.deepcopy(prefix) for _ in range(2)]
            a = m(x[:, 8:9], past_key_values=caches[0], logits_to_keep=1).logits
            b = m(x[:, 9:10], past_key_values=caches[1], logits_to_keep=1).logits
            return torch.cat([a, b, m(x[:, 8:9], past_key_values=prefix).logits])

        near(*both(model, patch, prefixed))
        names = lambda m: set(inspect.signature(m.forward).parameters)  # noqa: E731
        other = copy.deepcopy(model)
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(1.5)
            got = other(x, logits_to_keep=1).logits
            assert names(other) == names(model) and "logits_to_keep" in names(model)
            superop.unpatch(other)
            assert names(other) == names(model)
            near(other(x, logits_to_keep=1).logits, got)
        there = weakref.ref(model.model)
        del model, patch, p, other
        gone = there() is None  # no cycle holds its memory
        assert gone


def test_unpatch_and_explain():
    for device, model, patch in every([qwen2]):
        assert "one operator" in repr(patch())
        text = superop.explain(model, 2, 1)
        assert "attention core" in text and "head" in text, text
        cache = t.DynamicCache(config=model.config)
        x = ids(1, 8, device)
        with torch.no_grad():
            model(x[:, :6], past_key_values=cache, logits_to_keep=1)
            assert is_held(cache)
            superop.unpatch(model)
            assert "forward" not in model.__dict__
            got = model(x[:, 6:7], past_key_values=cache).logits  # the cache still has what it had
            want = model(x[:, :7]).logits[:, -1:]
        near(want, got)
        assert all(type(layer) is GrowingLayer for layer in cache.layers)
        gc.collect()
