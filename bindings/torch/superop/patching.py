"""superop.patch(model): the decoder layers of a Transformers model on superop's operators.

A layer keeps its class, its parameters and its hooks; its forward alone is another one, bound to the
instance, so that unpatch() has only to take it away. A layer goes

    norm -> q, k, v in one linear -> [norms of heads] -> rope -> cache -> attention -> linear
         -> residual and norm -> gate and up in one linear -> gated -> linear -> residual

What a layer cannot do for a call (gradients, weights of attention, a type) goes its old way for that
call, counted in superop.fallbacks() and said once."""

import threading
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from . import hf as _attention
from . import stack as _stack
from .bound import Bound, Watch, hooked
from .cache import GrowingLayer, grow

ops = torch.ops.superop

# Class of a layer: what is added to the weight of a norm, and whether norms follow the blocks too.
_FAMILIES = {
    "Qwen2DecoderLayer": (0.0, False),
    "Qwen3DecoderLayer": (0.0, False),
    "LlamaDecoderLayer": (0.0, False),
    "MistralDecoderLayer": (0.0, False),
    "Gemma3DecoderLayer": (1.0, True),
}
# What a layer is made of, and how Transformers names the class behind the name of the family.
_PARTS = {
    "": "DecoderLayer",
    "self_attn": "Attention",
    "mlp": "MLP",
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"), "RMSNorm"),
    **dict.fromkeys(("q_norm", "k_norm"), "RMSNorm"),
}
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_ROPES = ("default", "linear", "llama3", "yarn")
_ACTS = {
    "SiLU": 0,
    "SiLUActivation": 0,
    "GELUTanh": 1,
    "PytorchGELUTanh": 1,
    "GELUActivation": 2,
}


# What a layer may be told: what attention may, without what it does with keys of its own.
_KNOWN = _attention._PLAIN - {"cache", "read_index", "write_index", "block_table", "s_aux", "softcap"}


class _Param:
    """A small parameter as the operators read it, in float32: itself, or a copy that its group keeps."""

    def __init__(self, module, name, group):
        self.params, self.name, self.wide = module._parameters, name, None
        group.members.append(self)


class _Group:
    """The small parameters of a model. Their copies are made anew at the start of each pass, by one call:
    a parameter that was written through .data shows it nowhere."""

    def __init__(self):
        self.members, self.seen, self.narrow, self.wide = [], None, [], []

    def refresh(self):
        now = [p.params.get(p.name) for p in self.members]
        key = [(id(t), t.dtype, t.device) for t in now if t is not None]
        if key == self.seen:
            if self.wide:
                with torch.no_grad():
                    torch._foreach_copy_(self.wide, self.narrow)
            return
        narrow, wide = [], []
        for p, t in zip(self.members, now):
            if t is not None and t.dtype is not torch.float32:
                narrow.append(t)
                with torch.inference_mode(False), torch.no_grad():
                    t = torch.empty_like(t, dtype=torch.float32, requires_grad=False).copy_(t.detach())
                wide.append(t)
            p.wide = t  # with its numbers in it: another thread may be reading them
        self.narrow, self.wide, self.seen = narrow, wide, key


class _Norm:
    def __init__(self, module, offset, group):
        self.weight = _Param(module, "weight", group)
        self.eps = getattr(module, "variance_epsilon", None) or module.eps
        self.offset = offset

    def __call__(self, x):
        return ops.rms_norm(x, self.weight.wide, self.eps, self.offset)

    def after(self, x, residual):
        """The norm of x + residual, and the sum."""
        return ops.add_rms_norm(x, residual, self.weight.wide, self.eps, self.offset)


class _Linears:
    """One to three linears that share their input, side by side in the result. On a CPU they are
    PyTorch's own: superop's fast rows there read weights that were packed at load, which would be a
    second copy of the model's."""

    def __init__(self, group, *modules):
        self.params = [m._parameters for m in modules]
        self.bias = [_Param(m, "bias", group) for m in modules]
        self.op = {1: ops.linear, 2: ops.linear2, 3: ops.linear3}[len(modules)]

    def __call__(self, x):
        if x.is_cuda:
            return self.op(x, *[p["weight"] for p in self.params], *[b.wide for b in self.bias])
        parts = [F.linear(x, p["weight"], p["bias"]) for p in self.params]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class _Step:
    """What the layers of a model share in one forward pass; the first one makes it anew."""

    def __init__(self, group):
        self.group = group
        self.source = self.pos = self.index = self.slots = self.shift = self.ends = None
        self.freqs = {}

    def begin(self, positions, b, n):
        self.group.refresh()
        self.source = positions
        self.pos = positions.expand(b, n).to(torch.int32).reshape(-1)
        self.index = self.slots = self.shift = self.ends = None
        self.freqs = {}

    def covers(self, cu, m):
        """Whether sequences with these borders are all of the m keys that are there."""
        if self.ends is None or self.ends[0] is not cu:
            self.ends = cu, int(cu[-1])
        return self.ends[1] == m

    def shifted(self, mask, said, each, index):
        """The index of pages that begin at the first key of each sequence; between those of two lie `each`
        tokens."""
        if self.shift is None or self.shift[0] != (id(mask), each):
            first, lens = said
            table = torch.arange(0, first.shape[0] * each, each, dtype=torch.int32, device=mask.device) + first
            self.shift = (id(mask), each), (table.unsqueeze(1), index[1], lens)
        return self.shift[1]


class _Steps(threading.local):
    """A step for each thread that runs the model; graphs have one of their own."""

    def __init__(self, group):
        self.step = _Step(group)


class _LazyRope:
    """(cos, sin) of Transformers, made when somebody asks: a patched layer does not."""

    def __init__(self, make):
        self.make = make
        self.made = None

    def __iter__(self):
        if self.made is None:
            self.made = self.make()
        return iter(self.made)

    def __getitem__(self, i):
        return tuple(self)[i]

    def __len__(self):
        return 2


def _plain(module):
    """Whether a module is a linear without anything around it, of weights that lie as they look."""
    if type(module) is not nn.Linear or hasattr(module, "_hf_hook") or "forward" in module.__dict__:
        return False
    return type(module.weight.data) is torch.Tensor


def _strange(module, name):
    """Why a module is not what Transformers has under a name, or None."""
    kind = type(module)
    if kind.__name__ != name or not kind.__module__.startswith("transformers.models."):
        return f"a {kind.__name__}"
    return "of a forward of its own" if "forward" in module.__dict__ else None


class _Layer(Bound):
    """The forward of a decoder layer."""

    def __init__(self, module, group, steps, traced, rotary, first, offset, sandwich):
        super().__init__(module)
        attn, mlp = module.self_attn, module.mlp
        self.steps, self.traced = steps, traced
        self.rotary, self.first, self.sandwich, self.watch = rotary, first, sandwich, Watch(module)
        self.kind = getattr(attn, "layer_type", None)
        self.index, self.dim, self.attn = attn.layer_idx, attn.head_dim, attn
        self.causal = getattr(attn, "is_causal", True)
        self.dropout = getattr(attn, "attention_dropout", 0.0)
        mistral = type(module).__name__ == "MistralDecoderLayer"
        window = getattr(attn.config if mistral else attn, "sliding_window", None)
        self.window = window or 0
        self.qkv, self.out = _Linears(group, attn.q_proj, attn.k_proj, attn.v_proj), _Linears(group, attn.o_proj)
        self.heads, self.groups = (p.out_features // self.dim for p in (attn.q_proj, attn.k_proj))
        self.weight = attn.o_proj.weight
        norms = [getattr(attn, name, None) for name in ("q_norm", "k_norm")]
        self.head_norms = [_Norm(x, offset, group) for x in norms if x is not None]
        self.before = _Norm(module.input_layernorm, offset, group)
        between, after = module.post_attention_layernorm, []
        if sandwich:
            between, after = module.pre_feedforward_layernorm, [between, module.post_feedforward_layernorm]
        self.between, self.after = _Norm(between, offset, group), [_Norm(x, offset, group) for x in after]
        self.up, self.down = _Linears(group, mlp.gate_proj, mlp.up_proj), _Linears(group, mlp.down_proj)
        self.act = _ACTS[type(mlp.act_fn).__name__]

    @staticmethod
    def refusal(module):
        """Why this layer cannot be patched, or None."""
        attn, mlp = module.self_attn, module.mlp
        family = type(module).__name__.removesuffix("DecoderLayer")
        for name, inner in module.named_modules():
            kind = _PARTS.get(name.rpartition(".")[2])
            why = kind and not hasattr(inner, "_hf_hook") and _strange(inner, family + kind)
            if why:
                return f"{name} is {why}" if name else f"a layer {why}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            if not _plain(getattr(attn, name)):
                return f"{name} is no plain linear but a {type(getattr(attn, name)).__name__}"
        for name in ("gate_proj", "up_proj", "down_proj"):
            if not _plain(getattr(mlp, name)):
                return f"{name} is no plain linear but a {type(getattr(mlp, name)).__name__}"
        if type(mlp.act_fn).__name__ not in _ACTS:
            return f"the activation {type(mlp.act_fn).__name__}"
        if hasattr(module, "_hf_hook"):
            return "a hook of accelerate's"
        for name, inner in module.named_modules():
            if name and hooked(inner):
                return f"a hook on {name}"
            if name and "forward" in inner.__dict__:
                return f"{name} has a forward of its own"
        return None

    def learns(self, cache):
        """Whether the keys or values that are there want gradients: a learned prefix."""
        layers = getattr(cache, "layers", ())
        past = layers[self.index] if self.index < len(layers) else None
        return any(getattr(getattr(past, name, None), "requires_grad", False) for name in ("keys", "values"))

    def not_now(self, x, mask, cache, kwargs):
        """Why this call goes the old way, or None."""
        module = self.module()
        if torch.is_grad_enabled() and (
            x.requires_grad or any(p.requires_grad for p in module.parameters()) or self.learns(cache)
        ):
            return "a decoder layer under gradients"
        if kwargs.get("output_attentions"):
            return "output_attentions asks for the weights"
        if module.training and self.dropout:
            return "dropout of attention weights"
        if x.dtype not in _FLOATS or x.dtype != self.weight.dtype:
            return f"a decoder layer of {self.weight.dtype} with {x.dtype}"
        if x.device != self.weight.device or x.device.type not in ("cpu", "cuda"):
            return f"a decoder layer on {x.device.type}"
        if torch.is_autocast_enabled(x.device.type):
            return "autocast"
        if not _attention.takes_mask(mask):
            return f"a mask of {mask.dtype}"
        why = self.watch.changed()
        if why is not None:
            return f"a decoder layer with {why}"
        for key, value in kwargs.items():  # among them a cache of continuous batching
            if value is None or value is cache:
                continue
            if key not in _KNOWN or (key == "is_causal" and value is False):
                return f"a decoder layer with {key}"
        return None

    def freqs(self, step):
        known = step.freqs.get(self.kind)
        if known is None:
            rotary, kind = self.rotary, "" if hasattr(self.rotary, "inv_freq") else f"{self.kind}_"
            known = getattr(rotary, f"{kind}inv_freq").float(), float(getattr(rotary, f"{kind}attention_scaling"))
            step.freqs[self.kind] = known
        return known

    def attend(self, step, x, mask, cache, kwargs):
        """Attention of x [b, n, channels]: [b, n, heads * d]."""
        b, n, _ = x.shape
        h, g, d = self.heads, self.groups, self.dim
        every = self.qkv(x).view(b * n, h + 2 * g, d)
        q, k, v, both = every[:, :h], every[:, h : h + g], every[:, h + g :], every[:, : h + g]
        for norm, part in zip(self.head_norms, (q, k)):
            ops.rms_norm.out(part, norm.weight.wide, norm.eps, norm.offset, y=part)
        ops.rope.out(both, step.pos, *self.freqs(step), y=both)
        if cache is not None:
            kp, vp, m = self.remember(step, cache, b, n, k, v)
        else:
            kp, vp, m = None, None, n
        cu, cu_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
        # In a graph borders are taken at their word.
        if cu is not None and b == 1 and (cache is None or (n == m if torch.compiler.is_compiling() else step.covers(cu_k, m))):
            if m > n:
                k, v = kp[0, :m], vp[0, :m]
            q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
            longest = int(kwargs.get("max_length_k") or (cu_k[1:] - cu_k[:-1]).max())
            o = _attention.packed(q, k, v, cu, cu_k, longest, self.attn.scaling, self.causal, self.window)
            return o.view(b, n, h * d)
        if cache is None:
            kp, vp = (x.transpose(1, 2) for x in _attention.whole_pages(*self.as_cached(b, n, k, v)))
        if step.index is None or step.index[0] != (b, n, m):
            step.index = (b, n, m), _attention.index_of(b, n, m, x.device)
        index = step.index[1]
        said = _attention.extents(mask)
        if said is not None and said[0] is not None:
            if cache is not None and type(cache.layers[self.index]) is GrowingLayer:
                kp, vp = cache.layers[self.index].any
                index, mask = step.shifted(mask, said, g * kp.shape[1], index), None
            else:
                mask = _attention.dense(mask, q.view(b, n, h, d).transpose(1, 2), m, self.causal, self.window)
        o = _attention.over_pages(q, kp, vp, index, mask, self.attn.scaling, self.causal, self.window)
        return o.view(b, n, h * d)

    def as_cached(self, b, n, *parts):
        """Keys or values [b * n, g, d] as a cache has them: [b, g, n, d]."""
        return [x.view(b, n, self.groups, self.dim).transpose(1, 2) for x in parts]

    def remember(self, step, cache, b, n, k, v):
        """Append to the cache: keys and values [b, page, g, d] as attention reads them, of a growing layer
        with the room for what is to come, and how many are there."""
        if self.first:
            grow(cache)
        layers = cache.layers
        if self.index >= len(layers) or type(layers[self.index]) is not GrowingLayer or torch.compiler.is_compiling():
            keys, values = cache.update(*self.as_cached(b, n, k, v), self.index)
            m = keys.shape[2]
            return *(x.transpose(1, 2) for x in _attention.whole_pages(keys, values)), m
        layer = layers[self.index]
        had = layer.room_for(*self.as_cached(b, n, k, v), n)
        kp, vp = layer.pools
        room = kp.shape[1]
        if step.slots is None or step.slots[0] != (b, n, had, room):
            at = torch.arange(had, had + n, dtype=torch.int32, device=k.device)
            rows = torch.arange(0, b * room, room, dtype=torch.int32, device=k.device)
            step.slots = (b, n, had, room), (rows[:, None] + at).flatten()
        ops.kv_append(k, v, step.slots[1], kp, vp)
        layer.hold(had + n)
        return kp, vp, had + n

    def __call__(self, hidden_states, attention_mask=None, position_ids=None, **kwargs):
        x, module = hidden_states, self.module()
        # Transformers 5.24 calls it cache; continuous batching has one of its own kind.
        cache = kwargs.get("past_key_values")
        if cache is None and hasattr(kwargs.get("cache"), "layers"):
            cache = kwargs["cache"]
        why = self.not_now(x, attention_mask, cache, kwargs)
        if why is None and position_ids is None:
            why = "a decoder layer without position_ids"
        if why is not None:
            _attention._fallback(why)
            old = type(module).forward
            return old(module, hidden_states, attention_mask=attention_mask, position_ids=position_ids, **kwargs)
        step = self.traced if torch.compiler.is_compiling() else self.steps.step
        if self.first or step.source is not position_ids:
            step.begin(position_ids, x.shape[0], x.shape[1])
        a = self.out(self.attend(step, self.before(x), attention_mask, cache, kwargs))
        if self.sandwich:
            a = self.after[0](a)
        y, x = self.between.after(a, x)
        y = self.down(ops.gated(self.up(y), self.act))
        if self.sandwich:
            y = self.after[1](y)
        return ops.add(y, x)


def _old_way(module, x):
    """Whether a call of a norm or a linear outside of the layers is not for superop."""
    weight = module.weight
    return (
        x.dtype not in _FLOATS
        or x.dtype != weight.dtype
        or (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
        or torch.is_autocast_enabled(x.device.type)
    )


class _Alone(Bound):
    """The forward of a norm or a linear outside of the layers, which make(group) is in superop."""

    def __init__(self, module, make):
        super().__init__(module)
        self.group = _Group()
        self.new = make(self.group)
        self.group.refresh()

    def __call__(self, x):
        module = self.module()
        if _old_way(module, x):
            return type(module).forward(module, x)
        self.group.refresh()
        return self.new(x)


class _Rotary(Bound):
    """The forward of what makes cos and sin."""

    def __call__(self, x, position_ids, *args, **kwargs):
        module = self.module()
        old = type(module).forward
        if torch.compiler.is_compiling():
            return old(module, x, position_ids, *args, **kwargs)
        return _LazyRope(lambda: old(module, x, position_ids, *args, **kwargs))


def _rope_types(rotary):
    kind = getattr(rotary, "rope_type", "default")
    return set(kind.values()) if isinstance(kind, dict) else {kind}


class _Text(str):
    """Shown in lines where an interpreter shows a value."""

    __repr__ = str.__str__


class Patched:
    """What patch() did: how many layers run on superop, and why others do not."""

    def __init__(self):
        self.layers, self.refused, self.modules = 0, {}, []
        self.attention, self.stack = [], None
        self.whole = False  # whether the model's own forward is another (that it is no module here makes no cycle)
        self.apart = "not asked for"  # why the decoder is not one operator

    def __repr__(self):
        why = "".join(f"; {name}: {text}" for name, text in self.refused.items())
        one = "as one operator" if self.stack else f"one by one ({self.apart})"
        return f"superop: {self.layers} layers patched, {one}, {len(self.refused)} not{why}"


def _bind(patched, module, forward):
    object.__setattr__(module, "forward", forward)
    patched.modules.append(module)


def patch(model, stack=None, tokens=32768, sequences=64, step_tokens=2048):
    """Put the decoder layers of a model of Transformers on superop; its parameters stay where they are.
    Returns what was done. A second patch() is the same as one.

    stack        whether the whole decoder becomes one operator where that is possible; None: on a card
    tokens       keys and values that this operator has memory for, of all sequences together
    sequences    that it holds at once
    step_tokens  of one call: longer prompts go in several"""
    for inner in list(model.modules()):
        unpatch(inner)
    patched, decoder = Patched(), None
    for name, parent in model.named_modules():
        layers, rotary = getattr(parent, "layers", None), getattr(parent, "rotary_emb", None)
        if not isinstance(layers, nn.ModuleList) or rotary is None:
            continue
        group, first = _Group(), True
        steps, traced = _Steps(group), _Step(group)
        odd = _rope_types(rotary) - set(_ROPES)
        for i, layer in enumerate(layers):
            family = _FAMILIES.get(type(layer).__name__)
            why = f"a {type(layer).__name__}" if family is None else _Layer.refusal(layer)
            if why is None and odd:
                why = f"rope of type {', '.join(sorted(odd))}"
            if why is None and (strange := _strange(rotary, type(layer).__name__.replace("DecoderLayer", "RotaryEmbedding"))):
                why = f"rotary_emb is {strange}"
            if why is not None:
                patched.refused[f"{name}.layers.{i}".lstrip(".")] = why
                continue
            _bind(patched, layer, _Layer(layer, group, steps, traced, rotary, first, *family))
            patched.layers += 1
            first, offset, kind = False, family[0], type(layer).__name__.replace("DecoderLayer", "RMSNorm")
        if first:
            continue
        decoder = parent
        group.refresh()  # here, so that nothing of it is made inside a recording
        _bind(patched, rotary, _Rotary(rotary))
        norm = getattr(parent, "norm", None)
        if norm is not None and _strange(norm, kind) is None:
            _bind(patched, norm, _Alone(norm, lambda group: _Norm(norm, offset, group)))
    head = getattr(model, "lm_head", None)
    if patched.layers and head is not None and _plain(head):
        _bind(patched, head, _Alone(head, lambda group: _Linears(group, head)))
    if patched.layers and hasattr(model, "set_attn_implementation"):
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "set_attn_implementation")}
        patched.attention = [(config, config._attn_implementation) for config in configs.values()]
        model.set_attn_implementation("superop")
    object.__setattr__(model, "_superop", patched)
    if not patched.layers:
        patched.apart = "no layer is patched"
        known = ", ".join(name.removesuffix("DecoderLayer") for name in _FAMILIES)
        warnings.warn(f"superop: nothing of this {type(model).__name__} is patched, only layers of {known} are", stacklevel=2)
    if decoder is not None and (stack or (stack is None and decoder.embed_tokens.weight.is_cuda)):
        patched.apart = "some layers are not patched" if patched.refused else _stack.refusal(model, decoder)
        if patched.apart is None:
            try:
                patched.stack = _stack.Stack(model, decoder, tokens, sequences, step_tokens)
            except RuntimeError as why:
                patched.apart = str(why)
        if patched.stack:
            patched.whole = True
            object.__setattr__(model, "forward", _stack.Forward(model, patched.stack))
    return patched


def unpatch(model):
    """Take back what patch() did; nothing when it did nothing."""
    patched = getattr(model, "_superop", None)
    if patched is None:
        return
    for module in (*patched.modules, *([model] if patched.whole else ())):
        module.__dict__.pop("forward", None)
    for config, implementation in patched.attention:
        config._attn_implementation = implementation
    object.__delattr__(model, "_superop")


def explain(model, batch=1, length=1):
    """What runs for a batch of sequences of this length in a patched model: a line for each operator of one
    layer, with the row the library chose (linears on a CPU are PyTorch's), and before them what the decoder
    as one operator runs. Returns the text."""
    from . import _lib

    patched = getattr(model, "_superop", None)
    layer = next((m for m in patched.modules if isinstance(m.__dict__.get("forward"), _Layer)), None) if patched else None
    if layer is None:
        return _Text("superop: this model is not patched")
    weight = layer.self_attn.o_proj.weight
    x = torch.zeros(batch, length, weight.shape[0], dtype=weight.dtype, device=weight.device)
    positions = torch.arange(length, device=weight.device).unsqueeze(0)
    lines = [f"{type(layer).__name__}, batch {batch}, length {length}, {weight.dtype}, {weight.device}"]
    if patched.stack:
        lines += ["the decoder as one operator:"] + [f"  {text}" for text in patched.stack.lines(batch, length)]
        lines += ["one of its layers alone:"]
    with _lib.rows() as seen, torch.no_grad():
        why = layer.forward.not_now(x, None, None, {})
        if why is None:
            layer.forward(x, position_ids=positions)
    lines += [f"  {op:14} {row}" for op, row in seen] if why is None else [f"  as Transformers has it: {why}"]
    return _Text("\n".join(lines + [repr(patched)]))
