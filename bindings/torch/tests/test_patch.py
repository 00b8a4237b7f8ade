"""superop.patch(model) against eager, in every way that ragged data arrives."""

import importlib.util
import io
import itertools
import sys
import threading
import warnings

import torch

import superop
from harness import DEVICES, Skip
from models import MAKERS, gemma3, llama, make, mistral, qwen2, qwen3
from test_attention import ids, near

warnings.filterwarnings("ignore", message="superop:")


def everywhere(makers=MAKERS, **kw):
    for device, maker in itertools.product(DEVICES, makers):
        yield device, make(maker, device, **kw)


def eager_then_patched(model, run):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        want = run(model)
    done = superop.patch(model)
    assert done.layers == len(model.model.layers) and not done.refused, done
    before = superop.fallbacks()
    with torch.no_grad():
        got = run(model)
    assert superop.fallbacks() == before, superop.fallbacks()
    superop.unpatch(model)
    return want, got


def test_plain_batches():
    for device, model in everywhere():
        for b, n in ((1, 1), (1, 33), (3, 20), (64, 2)):
            x = ids(b, n, device)
            near(*eager_then_patched(model, lambda m: m(x).logits))


def test_biases_and_tied_weights():
    for device, model in everywhere([llama], attention_bias=True, mlp_bias=True, tie_word_embeddings=True):
        x = ids(2, 9, device)
        near(*eager_then_patched(model, lambda m: m(x).logits))


def test_left_and_right_padding():
    for device, model in everywhere():
        x = ids(3, 20, device)
        for side in ("left", "right"):
            mask = torch.ones_like(x)
            for row, pads in enumerate((0, 5, 13)):
                if pads and side == "left":
                    mask[row, :pads] = 0
                elif pads:
                    mask[row, -pads:] = 0
            position = (mask.cumsum(-1) - 1).clamp(min=0)
            want, got = eager_then_patched(model, lambda m: m(x, attention_mask=mask, position_ids=position).logits)
            near(want, got, mask.bool())


def test_packed_rows():
    for device, model in everywhere():
        x = ids(1, 24, device)
        position = torch.cat([torch.arange(n) for n in (7, 1, 16)])[None].to(device)
        want, got = eager_then_patched(model, lambda m: m(x, position_ids=position, use_cache=False).logits)
        near(want, got)
        cu = torch.tensor([0, 7, 8, 24], dtype=torch.int32, device=device)
        borders = dict(cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=16, max_length_k=16)
        superop.patch(model)
        with torch.no_grad():
            near(want, model(x, position_ids=position, use_cache=False, **borders).logits)
            near(want, model(x, position_ids=position, **borders).logits)  # a cache is the default
        superop.unpatch(model)


def test_a_custom_mask():
    for device, model in everywhere([qwen2, qwen3, llama]):
        x = ids(2, 12, device)
        allowed = (torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(3)) > 0.4).to(device).tril()
        allowed |= torch.eye(12, dtype=torch.bool, device=device)
        number = torch.zeros(2, 1, 12, 12, device=device).masked_fill(~allowed, torch.finfo(torch.float32).min)
        near(*eager_then_patched(model, lambda m: m(x, attention_mask=number).logits))


def test_prefill_in_chunks_and_decode():
    from transformers import DynamicCache, StaticCache

    for device, model in everywhere():
        x = ids(2, 90, device)

        def whole(m):
            return m(x).logits

        def steps(m):
            out = []
            for cache in (DynamicCache(config=m.config), DynamicCache(), StaticCache(config=m.config, max_cache_len=100)):
                at, got = 0, []
                for n in (5, 9, 1, 1, 50, 1, 13, 10):
                    got.append(m(x[:, at : at + n], past_key_values=cache, use_cache=True).logits)
                    at += n
                out.append(torch.cat(got, 1))
            return out

        want, _ = eager_then_patched(model, whole)
        _, got = eager_then_patched(model, steps)
        for logits in got:
            near(want, logits)


def test_generate_says_the_same():
    for device, model in everywhere():
        x = ids(4, 12, device)
        mask = torch.ones_like(x)
        mask[1, :5] = 0
        mask[2, :11] = 0
        for kw in ({}, {"cache_implementation": "static", "disable_compile": True}, {"num_beams": 2}):
            run = lambda m: m.generate(x, attention_mask=mask, max_new_tokens=12, do_sample=False, **kw)  # noqa: E731
            assert torch.equal(*eager_then_patched(model, run)), (model.config.model_type, kw)


def test_lengths_around_a_power_of_two():
    for device, model in everywhere([qwen2, gemma3]):
        for n in (255, 256, 257):
            x = ids(1, n, device)
            near(*eager_then_patched(model, lambda m: m(x).logits))


def test_lower_precisions():
    for device, maker, dtype in itertools.product(DEVICES, MAKERS, (torch.float16, torch.bfloat16)):
        exact = make(maker, device)
        x = ids(2, 17, device)
        with torch.no_grad():
            right = exact(x).logits
        model = make(maker, device, dtype)
        want, got = eager_then_patched(model, lambda m: m(x).logits.float())
        # as far from float32 as eager is in this type, and half more
        assert (got - right).abs().max() <= 1.5 * (want - right).abs().max() + 1e-3, (maker.__name__, dtype)


def test_graphs_take_caches_padding_and_gradients():
    """Each compiled whole (fullgraph), in no more graphs than the model that nobody patched."""
    from transformers import DynamicCache, StaticCache

    def graph(model, dynamic=True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return torch.compile(model, backend="eager", fullgraph=True, dynamic=dynamic)

    def steps(model, run, x):
        out, cache = [], DynamicCache(config=model.config)
        for a, z in ((0, 10), (10, 11), (11, 12), (12, 20)):
            out.append(run(x[:, a:z], past_key_values=cache).logits)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4
        return torch.cat(out, 1)

    def fixed(model, run, x):
        cache = StaticCache(config=model.config, max_cache_len=64)
        out = [model(x[:, :18], past_key_values=cache).logits]
        for i in (18, 19):
            out.append(run(x[:, i : i + 1], past_key_values=cache, position_ids=torch.full((2, 1), i, device=x.device)).logits)
        return torch.cat(out, 1)

    def padded(model, run, x):
        mask = torch.ones_like(x)
        mask[1, :9] = 0
        return run(x, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[:, -1]

    def gradients(model, run, x):
        model.zero_grad()
        with torch.enable_grad():
            run(x, labels=x, use_cache=False).loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    for device, (maker, ways) in itertools.product(DEVICES, ((qwen2, (steps, gradients)), (gemma3, (fixed, padded)))):
        model, x = make(maker, device), ids(2, 20, device)
        model.set_attn_implementation("eager")
        for way in ways:
            with torch.no_grad():
                want = way(model, model, x)
                superop.patch(model, stack=False)
                near(want, way(model, graph(model, None if way is fixed else True), x))
                superop.unpatch(model)


def test_unpatch_restores_the_model():
    for device, model in everywhere([qwen3]):
        x = ids(2, 9, device)
        model.set_attn_implementation("sdpa")
        before = {name: (type(m), m.__dict__.get("forward")) for name, m in model.named_modules()}
        with torch.no_grad():
            want = model(x).logits
            superop.patch(model)
            superop.patch(model)  # once more is the same
            near(want, model(x).logits)
            superop.unpatch(model)
            assert torch.equal(want, model(x).logits)
        assert before == {name: (type(m), m.__dict__.get("forward")) for name, m in model.named_modules()}
        assert model.config._attn_implementation == "sdpa"


def test_parts_get_their_own_attention_back():
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, PreTrainedModel

    text = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=56, patch_size=14)
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config={**text, "head_dim": 32}, vision_config=vision, mm_tokens_per_image=4))
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    names = lambda: [m.config._attn_implementation for m in model.modules() if isinstance(m, PreTrainedModel)]  # noqa: E731
    before = names()
    assert superop.patch(model).layers == 2 and set(names()) == {"superop"}
    superop.unpatch(model)
    assert names() == before and len(set(before)) == 2


def test_parameters_are_the_models_own():
    for device, model in everywhere([qwen2]):
        model = model.to(torch.bfloat16)
        pointers = {n: p.data_ptr() for n, p in model.named_parameters()}
        superop.patch(model)
        assert pointers == {n: p.data_ptr() for n, p in model.named_parameters()}
        x = ids(1, 5, device)
        with torch.no_grad():
            a = model(x).logits
            model.model.layers[0].input_layernorm.weight.mul_(1.5)  # also what is kept in float32 follows
            model.model.layers[1].self_attn.q_proj.bias.data += 0.25  # also where no version tells
            b = model(x).logits
        superop.unpatch(model)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            want = model(x).logits
        assert (a - b).abs().max() > 0.05 and (b - want).abs().max() < 0.1


def test_training_goes_the_old_way():
    for device, model in everywhere([llama, gemma3]):
        x = ids(2, 12, device)
        grads = []
        for patched in (False, True):
            if patched:
                superop.patch(model)
            model.zero_grad()
            model(x, labels=x).loss.backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        superop.unpatch(model)
        for a, b in zip(*grads):
            near(a, b)
    assert "a decoder layer under gradients" in superop.fallbacks()


def test_gradients_go_through_a_cache():
    """Two calls before one backward, over a prefix that came without gradients."""
    from transformers import DynamicCache

    for device, model in everywhere([qwen2]):
        x, grads = ids(2, 12, device), []
        for patched in (False, True):
            if patched:
                superop.patch(model)
            model.zero_grad()
            cache = DynamicCache(config=model.config)
            with torch.no_grad():
                model(x[:, :4], past_key_values=cache)
            losses = [model(x[:, i : i + 4], past_key_values=cache).logits.square().mean() for i in (4, 8)]
            sum(losses).backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        superop.unpatch(model)
        for a, b in zip(*grads):
            near(a, b)


def test_a_learned_prefix_gets_its_gradients():
    from transformers import DynamicCache

    for device, model in everywhere([qwen2]):
        model.requires_grad_(False)
        x, grads = ids(1, 5, device), []
        torch.manual_seed(0)
        shape = (1, model.config.num_key_value_heads, 3, model.model.layers[0].self_attn.head_dim)
        prefix = [torch.randn(shape, device=device, requires_grad=True) for _ in range(2 * len(model.model.layers))]
        for patched in (False, True):
            if patched:
                superop.patch(model, stack=False)
            cache = DynamicCache()
            for i in range(len(model.model.layers)):
                cache.update(prefix[2 * i], prefix[2 * i + 1], i)
            grads.append(torch.autograd.grad(model(x, past_key_values=cache).logits.square().mean(), prefix))
        superop.unpatch(model)
        for a, b in zip(*grads):
            assert a.abs().max() > 0
            near(a, b)


def test_tensors_of_a_trace_stay_in_it():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for device, model in everywhere([qwen2]):
        model.set_attn_implementation("superop")
        x = ids(1, 29, device)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            model(torch.zeros(1, 29, dtype=torch.long, device=device))
        with torch.no_grad():
            got = model(x).logits
            assert type(got) is torch.Tensor
            model.set_attn_implementation("eager")
            near(model(x).logits, got)


def test_weights_of_attention_are_eagers():
    for device, model in everywhere([llama, qwen3]):
        x = ids(2, 12, device)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            want = model(x, output_attentions=True)
            superop.patch(model)
            got = model(x, output_attentions=True, output_hidden_states=True)
        superop.unpatch(model)
        assert len(got.attentions) == len(want.attentions) and len(got.hidden_states) == 4
        for a, b in zip(want.attentions, got.attentions):
            near(a, b)
        near(want.logits, got.logits)


def test_other_types_and_autocast_go_the_old_way():
    for device, model in everywhere([qwen2, gemma3]):
        x = ids(2, 9, device)
        model = model.double()
        with torch.no_grad():
            want = model(x).logits
            superop.patch(model)
            assert (model(x).logits - want).abs().max() < 1e-9
            superop.unpatch(model)
        model = model.float()
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            want = model(x).logits
            superop.patch(model)
            got = model(x).logits
            superop.unpatch(model)
        assert want.dtype == got.dtype and (got - want).abs().max() < 0.1


def test_continuous_batching_goes_through_the_attention():
    from transformers import ContinuousBatchingConfig, GenerationConfig

    if not importlib.util.find_spec("psutil"):
        raise Skip("Transformers asks psutil for the memory there is")
    for device, model in everywhere([qwen2]):
        prompts = [ids(1, n, "cpu", n)[0].tolist() for n in (5, 11, 3)]
        want = []
        for p in prompts:
            x = torch.tensor([p], device=device)
            want.append(model.generate(x, max_new_tokens=8, do_sample=False)[0, len(p) :].tolist())
        superop.patch(model)
        config = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
        room = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
        try:
            out = model.generate_batch(prompts, config, room, warmup=False)
        except ValueError as e:
            superop.unpatch(model)
            raise Skip(f"these Transformers: {e}")
        superop.unpatch(model)
        assert want == [out[k].generated_tokens for k in sorted(out, key=lambda k: int(k.split("_")[-1]))]


def test_what_cannot_be_patched_is_named():
    for device, model in everywhere([llama]):
        model.model.layers[1].mlp.act_fn = torch.nn.Tanh()
        done = superop.patch(model)
        assert done.layers == 2 and done.refused == {"model.layers.1": "the activation Tanh"}, done
        x = ids(1, 9, device)
        with torch.no_grad():
            got = model(x).logits
            superop.unpatch(model)
            near(model(x).logits, got)
        heard = []
        model.model.layers[2].mlp.up_proj.register_forward_hook(lambda *a: heard.append(1))
        model.model.layers[0].self_attn.q_proj = torch.nn.Sequential(model.model.layers[0].self_attn.q_proj)
        done = superop.patch(model)
        assert done.layers == 0 and set(done.refused.values()) == {
            "q_proj is no plain linear but a Sequential",
            "the activation Tanh",
            "a hook on mlp.up_proj",
        }, done
        with torch.no_grad():
            near(model(x).logits, got)
        assert heard


class Adapter(torch.nn.Module):
    """A low-rank adapter around a linear."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = torch.nn.Linear(base.in_features, 4, device=base.weight.device)
        self.b = torch.nn.Linear(4, base.out_features, device=base.weight.device)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def after_patch(model, x, change, **kw):
    """Logits of a model that is changed after it was patched and ran, and what they should be."""
    superop.patch(model, **kw)
    with torch.no_grad():
        model(x, logits_to_keep=1)
        undo = change(model)
        got = model(x, logits_to_keep=1).logits
        superop.unpatch(model)
        model.set_attn_implementation("eager")
        want = model(x, logits_to_keep=1).logits
    return want, got, undo


def adapt(name):
    def change(model):
        parent, child = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        setattr(parent, child, Adapter(getattr(parent, child)))

    return change


def test_modules_that_were_replaced_since_run():
    changes = [adapt(f"model.layers.1.{name}") for name in ("self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")]
    changes += [lambda m: setattr(m.model.layers[2], "input_layernorm", torch.nn.Identity())]
    changes += [lambda m: setattr(m, "lm_head", torch.nn.Linear(64, 50, device=m.device))]
    for device, stack in itertools.product(DEVICES, (False, True)):
        for maker, change in itertools.product((qwen2, gemma3), changes):
            want, got, _ = after_patch(make(maker, device), ids(2, 12, device), change, stack=stack)
            near(want, got)

        def shorter(m):
            m.model.layers = m.model.layers[:2]
            m.config.num_hidden_layers = 2
            m.config.layer_types = m.config.layer_types[:2]

        want, got, _ = after_patch(make(qwen2, device), ids(2, 12, device), shorter, stack=stack)
        near(want, got)
    assert any("another v_proj than when it was patched" in why for why in superop.fallbacks())


def test_hooks_that_came_since_are_called():
    for device, stack in itertools.product(DEVICES, (False, True)):
        for name in ("self_attn", "self_attn.o_proj", "mlp", "mlp.down_proj", "post_attention_layernorm"):
            model, heard = make(qwen2, device), []

            def listen(m):
                def hear(_, args, out):
                    heard.append(1)
                    return (out[0] * 2, *out[1:]) if isinstance(out, tuple) else out * 2

                return m.model.layers[1].get_submodule(name).register_forward_hook(hear)

            x = ids(2, 12, device)
            want, got, hook = after_patch(model, x, listen, stack=stack)
            near(want, got)
            assert len(heard) == 2, name
            superop.patch(model, stack=stack)  # without the layer
            hook.remove()
            superop.patch(model, stack=stack)
            before = superop.fallbacks()
            with torch.no_grad():
                model(x, logits_to_keep=1)
                hook = listen(model)
                model(x, logits_to_keep=1)
                hook.remove()
                model(x, logits_to_keep=1)
            assert len(heard) == 3 and sum(superop.fallbacks().values()) == sum(before.values()) + 1


def test_threads_share_a_patched_model():
    for device, (maker, stack) in itertools.product(DEVICES, ((qwen2, False), (qwen2, True), (gemma3, False))):
        model = make(maker, device)
        xs = [ids(1 + i % 3, 10 + 3 * i, device, i) for i in range(6)]
        want = [model.generate(x, max_new_tokens=10, do_sample=False) for x in xs]
        superop.patch(model, stack=stack)
        wrong, every = [], sys.getswitchinterval()

        def work(i):
            try:
                for _ in range(3):
                    if not torch.equal(model.generate(xs[i], max_new_tokens=10, do_sample=False), want[i]):
                        wrong.append(i)
            except Exception as e:
                wrong.append(repr(e))

        sys.setswitchinterval(1e-5)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(every)
        superop.unpatch(model)
        assert not wrong, wrong


def test_a_patched_model_is_saved_without_its_patches():
    for device, stack in itertools.product(DEVICES, (False, True)):
        model, x, file = make(qwen2, device), ids(2, 12, device), io.BytesIO()
        superop.patch(model, stack=stack)
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
        with torch.no_grad():
            near(model(x).logits, other(x).logits)
        superop.unpatch(other)
        assert not any("forward" in m.__dict__ for m in other.modules()) and superop.patch(other).layers == 3


def test_a_part_that_was_patched_before_is_patched_anew():
    model = make(qwen2)
    model.set_attn_implementation("eager")
    superop.patch(model.model)
    superop.patch(model)
    superop.unpatch(model)
    assert model.config._attn_implementation == "eager"
    assert not any("forward" in m.__dict__ or hasattr(m, "_superop") for m in model.modules())


def test_what_inference_mode_left_behind_serves_outside_of_it():
    from transformers import DynamicCache

    from superop import hf

    hf._small.kept.clear()
    for device, model in everywhere([qwen2, gemma3]):
        x = ids(2, 12, device)

        def run(m):
            cache, out = DynamicCache(config=m.config), []
            for i in range(4):  # in and out of it, over one cache
                with torch.inference_mode() if i % 2 == 0 else torch.no_grad():
                    out.append(m(x[:, 3 * i : 3 * i + 3], past_key_values=cache).logits.clone())
            return torch.cat([o.clone() for o in out], 1)

        near(*eager_then_patched(model, run))
        model.set_attn_implementation("superop")
        with torch.inference_mode():
            model(x)
        model(x, labels=x).loss.backward()


def test_small_parameters_that_were_read_in_inference_mode():
    for device, model in everywhere([qwen2], dtype=torch.bfloat16):
        x = ids(2, 12, device)
        with torch.inference_mode():
            superop.patch(model, stack=False)
            want = model(x).logits.clone()
        with torch.no_grad():
            assert torch.equal(want, model(x).logits)
        superop.unpatch(model)


def test_a_model_of_which_nothing_is_patched_is_said():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=64, n_layer=1, n_head=4))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        done = superop.patch(model, stack=True)
    assert done.layers == 0 and "no layer is patched" in repr(done)
    assert any("nothing of this GPT2LMHeadModel is patched" in str(w.message) for w in said)
    superop.unpatch(model)


def test_parts_that_are_not_transformers_own_stay():
    """What somebody changed before patch() counts, is named, and is there after unpatch()."""

    def doubled(name):
        def change(model):
            part = model.get_submodule(name)
            part.__class__ = type(type(part).__name__ + "X2", (type(part),), {"forward": lambda self, x: 2 * super(type(self), self).forward(x)})

        return change

    def wrapped(name):
        def change(model):
            part = model.get_submodule(name)
            old = part.forward
            part.forward = lambda *args, **kw: 2 * old(*args, **kw)

        return change

    def put(name, key, value):
        return lambda model: setattr(model.get_submodule(name), key, value)

    one = "model.layers.1."
    changes = [
        (wrapped("model.layers.1"), "a layer of a forward of its own"),
        (wrapped(one + "mlp"), "mlp is of a forward of its own"),
        (wrapped(one + "mlp.up_proj"), "up_proj is no plain linear but a Linear"),
        (doubled(one + "post_attention_layernorm"), "post_attention_layernorm is a Qwen2RMSNormX2"),
        (doubled("model.norm"), "norm is a Qwen2RMSNormX2"),
        (doubled("model.embed_tokens"), "embed_tokens is a EmbeddingX2 of its own"),
        (wrapped("model.embed_tokens"), "embed_tokens is a Embedding of its own"),
        (put(one + "self_attn", "scaling", 0.7), "layers.1.self_attn scales by 0.7, not 0.25"),
        (put(one + "input_layernorm", "variance_epsilon", 0.5), "layers.1.input_layernorm adds 0.5, not 1e-06"),
        (put(one + "mlp", "act_fn", torch.nn.GELU()), "the activation GELU"),
    ]
    for device, stack, (change, why) in itertools.product(DEVICES, (False, True), changes):
        model, x = make(qwen2, device), ids(2, 12, device)
        model.set_attn_implementation("eager")
        change(model)
        before = {name: (type(m), m.__dict__.get("forward")) for name, m in model.named_modules()}
        with torch.no_grad():
            want = model(x, logits_to_keep=1).logits
            done = superop.patch(model, stack=stack)
            assert done.stack is None and (not stack or why in repr(done)), (why, done)
            near(want, model(x, logits_to_keep=1).logits)
        superop.unpatch(model)
        assert before == {name: (type(m), m.__dict__.get("forward")) for name, m in model.named_modules()}


def test_explain_names_the_rows():
    for device, model in everywhere([qwen2]):
        assert repr(superop.explain(model)) == "superop: this model is not patched"
        superop.patch(model)
        text = superop.explain(model, batch=2, length=7)
        for word in ("rope", "attention", "add_rms_norm", "3 layers patched", "batch 2, length 7"):
            assert word in text, text
        model.model.layers[0].mlp.up_proj = torch.nn.Identity()
        assert "as Transformers has it: a decoder layer with another up_proj" in superop.explain(model)
        superop.unpatch(model)


def test_a_step_is_recorded_in_a_graph():
    if "cuda" not in DEVICES:
        raise Skip("there is no card")
    from transformers import StaticCache

    for maker in (qwen2, qwen3, llama):
        model = make(maker, "cuda", torch.bfloat16)
        superop.patch(model)
        prompt = ids(2, 9, "cuda")
        tokens = [ids(2, 1, "cuda", s) for s in range(5)]

        def prefilled():
            cache = StaticCache(config=model.config, max_cache_len=64)
            model(prompt, past_key_values=cache, use_cache=True)
            return cache

        with torch.no_grad():
            cache, want = prefilled(), []
            for i, t in enumerate(tokens):
                at = torch.full((2, 1), 9 + i, device="cuda")
                want.append(model(t, past_key_values=cache, position_ids=at, use_cache=True).logits.clone())
            cache = prefilled()
            x, at = tokens[0].clone(), torch.full((2, 1), 9, device="cuda")
            model(x, past_key_values=prefilled(), position_ids=at, use_cache=True)  # warm
            kept = [layer.cumulative_length.clone() for layer in cache.layers]
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                out = model(x, past_key_values=cache, position_ids=at, use_cache=True).logits
            for layer, n in zip(cache.layers, kept):
                layer.cumulative_length.copy_(n)
            for i, t in enumerate(tokens):
                x.copy_(t)
                at.fill_(9 + i)
                g.replay()
                near(want[i].float(), out.float(), bound=0.02)
        superop.unpatch(model)


def test_tokens_are_eagers_or_ties():
    """Of 1 to 64 prompts of mixed lengths, and around 4,096: where a token is another one, eager's own
    logits of the two are hardly apart, and that is rare."""
    for device, maker, dtype in itertools.product(DEVICES, (llama, qwen2, gemma3), (torch.float32, torch.float16, torch.bfloat16)):
        cases = [(b, 40, torch.randint(1, 41, (b, 1), generator=torch.Generator().manual_seed(b))) for b in (1, 7, 64)]
        cases += [(1, n, torch.tensor([[n]])) for n in (4095, 4096, 4097)] if dtype is torch.float32 else []
        model = make(maker, device, dtype, room=8192)
        for b, n, lengths in cases:
            if n == 4095:  # one layer from here on: eager's own takes a second each
                model.model.layers, model.config.num_hidden_layers = model.model.layers[1:2], 1
                model.model.layers[0].self_attn.layer_idx = 0
                model.config.layer_types = ["full_attention"]
            x, mask = ids(b, n, device, b), (torch.arange(n) >= n - lengths).long().to(device)
            run = lambda m: m.generate(  # noqa: E731
                x, attention_mask=mask, max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True
            )
            want, got = eager_then_patched(model, run)
            others = 0
            for row in (want.sequences != got.sequences).any(1).nonzero()[:, 0].tolist():
                at = int((want.sequences[row] != got.sequences[row]).nonzero()[0])
                logits = want.logits[at - n][row].float()
                apart = logits[want.sequences[row, at]] - logits[got.sequences[row, at]]
                assert dtype is not torch.float32 and apart < 0.05 * logits.std(), (maker.__name__, dtype, b, n, float(apart))
                others += 1
            assert others <= max(2, b // 5), (maker.__name__, dtype, b, others)


def test_tokens_of_a_real_shape_are_eagers():
    """Qwen2-0.5B's layers, fewer of them: each next token is eager's, or one of two that eager can hardly
    tell apart in this type."""
    if "cuda" not in DEVICES:
        raise Skip("there is no card")
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = dict(
        vocab_size=4000, hidden_size=896, intermediate_size=4864, num_hidden_layers=4, num_attention_heads=14, num_key_value_heads=2
    )
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**shape, max_position_embeddings=8192)).to("cuda", dtype).eval()
        cases = [(torch.ones(1, n, dtype=torch.long, device="cuda"), n) for n in (4095, 4096, 4097)]
        for b in (1, 7, 64):
            lengths = torch.randint(1, 257, (b, 1), generator=torch.Generator().manual_seed(b)).cuda()
            cases.append(((torch.arange(256, device="cuda") >= 256 - lengths).long(), b))
        for mask, seed in cases:
            x = torch.randint(3, 4000, mask.shape, generator=torch.Generator().manual_seed(seed)).cuda()
            place = (mask.cumsum(-1) - 1).clamp(min=0)
            run = lambda m: m(x, attention_mask=mask, position_ids=place, logits_to_keep=1).logits[:, -1].float()  # noqa: E731
            want, got = eager_then_patched(model, run)
            noise = 0.05 * want.std()  # of eager itself: 4 layers rounded to 8 or 11 bits
            at = got.argmax(-1, keepdim=True)
            assert (want.amax(-1, keepdim=True) - want.gather(-1, at) <= noise).all(), (dtype, tuple(mask.shape))
            assert (want - got).abs().max() <= 4 * noise, (dtype, tuple(mask.shape), float((want - got).abs().max() / noise))
