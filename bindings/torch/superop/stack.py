"""The decoder of a patched model as one operator: embedding, all layers, the last norm and the head go
through one call into the library's super operator, which has its own pages of keys and values, its own
recorded steps, and reads the model's parameters where they are.

    model(...)    -> Stack.run: what it can do, it does; for everything else the layers run one by one
    DynamicCache  -> its layers become StackLayers, which stand for sequences of the stack; whoever asks
                     one for its keys gets GrowingLayers back, with all that is there
    GrowingLayer  -> taken in at the next single token, when the layers ran one by one before

Rows may be padded on the left: the stack has no padding, its sequences begin behind it."""

import contextlib
import copy
import ctypes
import inspect
import json
import weakref

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from . import _lib
from . import hf as _attention
from .bound import Bound, Watch
from .cache import GrowingLayer

ops = torch.ops.superop

_TYPES = {torch.float32: b"f32", torch.float16: b"f16", torch.bfloat16: b"bf16"}
_MODELS = {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Gemma3ForCausalLM"}
# What a model may be told beside what run() looks at; only what is given and says something counts.
_KNOWN = {"cache_position", "return_dict", "is_first_iteration", "next_sequence_length"}
_LAST, _ALL = 1, 2  # SOP_WANT_
_P, _I, _L, _S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
_LINE = ctypes.CFUNCTYPE(None, _S, _I, _I, _S)


class _Tensor(ctypes.Structure):
    _fields_ = [("name", _S), ("dtype", _S), ("data", _P), ("rows", _L), ("cols", _L)]


def _function(name, result, *args):
    f = getattr(_lib.lib, f"sop_torch_stack_{name}")
    f.restype, f.argtypes = result, args
    return f


_open = _function("open", _S, _I, _P, _S, _P, _L, _P, _P)
_close = _function("close", None, _P)
_put = _function("put", _S, _P, _I, _P, _P, _P, _P, _P, _P)
_begin = _function("begin", _I, _P)
_end = _function("end", None, _P, _I)
_extend = _function("extend", _S, _P, _I, _L)
_cut = _function("cut", _S, _P, _I, _L)
_pages = _function("pages", _L, _P, _I, _P, _L)
_pool = _function("pool", _P, _P, _I, _I, _P)
_bytes = _function("bytes", _L, _P)
_explain = _function("explain", _S, _P, _I, _L, _L, _LINE)


def _ints(values):
    return (_I * len(values))(*values)


class _There:
    """Memory of a card as torch.as_tensor() takes it."""

    def __init__(self, data, shape, kind):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": kind, "data": (data, False), "version": 3}


class _Held:
    """Sequences of a stack that stand for the rows of a cache."""

    def __init__(self, stack, seqs, pads, columns, cache):
        self.stack, self.pads, self.columns, self.cache = stack, pads, columns, cache
        self.padded, self.layers = any(pads), []
        self.list, self.seqs = list(seqs), _ints(seqs)
        self.ones, self.n = _ints([1] * len(seqs)), len(seqs)

    def end(self):
        seqs, self.list = self.list, []
        for seq in seqs:
            self.stack.end(seq)

    __del__ = end

    def lengths(self):
        return [self.columns - pad for pad in self.pads]

    def release(self, cache):
        """Give the cache, where there still is one, layers that hold what is there, and the sequences back."""
        if self.list:
            for keys, values in self.stack.read(self):
                layer = GrowingLayer()
                layer.update(keys, values)
                self.layers.append(layer)
            self.end()
        if cache is not None:
            cache.layers[:] = [self.layers[x.index] if type(x) is StackLayer and x.held is self else x for x in cache.layers]


class StackLayer(DynamicLayer):
    """A layer of a cache whose keys and values are in a stack."""

    def __init__(self, held, index):
        self.__dict__.update(held=held, index=index, is_initialized=True)

    def _real(self):
        self.held.release(self.held.cache())
        return self.held.layers[self.index]

    def get_seq_length(self):
        return self.held.columns

    def __getattr__(self, name):  # dtype, device
        return getattr(self._real(), name)

    def __deepcopy__(self, memo):
        return copy.deepcopy(self._real(), memo)

    def __reduce_ex__(self, protocol):
        return copy.copy, (self._real(),)

    def _is(name):  # noqa: N805
        def one(self):
            return getattr(self._real(), name)

        def put(self, value):
            setattr(self._real(), name, value)

        return property(one, put)

    keys, values = _is("keys"), _is("values")

    def _does(name):  # noqa: N805
        def call(self, *args, **kwargs):
            return getattr(self._real(), name)(*args, **kwargs)

        return call

    update, crop, reset, offload, prefetch = map(_does, ("update", "crop", "reset", "offload", "prefetch"))
    reorder_cache, batch_repeat_interleave = map(_does, ("reorder_cache", "batch_repeat_interleave"))
    batch_select_indices, lazy_initialization = map(_does, ("batch_select_indices", "lazy_initialization"))


def _not_said(config, decoder):
    """What of the layers is not as the config says, which is all that the library is told; or None."""
    table, kind = decoder.embed_tokens, type(decoder.embed_tokens).__name__
    if kind not in ("Embedding", "Gemma3TextScaledWordEmbedding") or table.max_norm is not None or "forward" in table.__dict__:
        return f"embed_tokens is a {kind} of its own"
    scale = (getattr(config, "query_pre_attn_scalar", None) or decoder.layers[0].self_attn.head_dim) ** -0.5
    act = type(ACT2FN[getattr(config, "hidden_activation", None) or config.hidden_act])
    for name, m in decoder.named_modules():
        if abs(getattr(m, "scaling", scale) - scale) > 1e-6 * scale:
            return f"{name} scales by {m.scaling:g}, not {scale:g}"
        eps = getattr(m, "variance_epsilon", getattr(m, "eps", config.rms_norm_eps))
        if eps != config.rms_norm_eps:
            return f"{name} adds {eps:g}, not {config.rms_norm_eps:g}"
        if name.endswith(".act_fn") and type(m) is not act:
            return f"{name} is a {type(m).__name__}, not a {act.__name__}"
        if not getattr(m, "is_causal", True):
            return f"{name} is not causal"
    return None if isinstance(decoder.norm.__dict__.get("forward"), Bound) else f"norm is a {type(decoder.norm).__name__}"


def refusal(model, decoder):
    """Why the decoder of this patched model cannot be one operator, or None."""
    config, head = decoder.config, getattr(model, "lm_head", None)
    if type(model).__name__ not in _MODELS or getattr(model, "model", None) is not decoder:
        return f"a {type(model).__name__}"
    if type(head) is not nn.Linear or head.bias is not None:
        return "no plain head"
    if any(hasattr(m, "_hf_hook") for m in (model, decoder, decoder.embed_tokens, head)):
        return "a hook of accelerate's"
    why = _not_said(config, decoder)
    if why is not None:
        return why
    if "forward" in model.__dict__ or "forward" in decoder.__dict__:
        return "a forward of its own"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "layers with a window"
    if type(model).__name__ == "MistralForCausalLM" and config.sliding_window is not None:
        return "layers with a window"
    rotary = decoder.rotary_emb
    if not hasattr(rotary, "inv_freq"):
        return "rope of several kinds"
    if rotary.attention_scaling != 1 and rotary.rope_type != "yarn":
        return f"rope of type {rotary.rope_type} with a scale"
    if getattr(config, "quantization_config", None) is not None:
        return "quantised parameters"
    weights = [p for p in model.parameters() if p.dim() == 2]
    one = weights[0]
    if one.dtype not in _TYPES or any(p.dtype is not one.dtype or p.device != one.device for p in weights):
        return "parameters of several types or on several devices"
    if one.device.type not in ("cpu", "cuda") or not all(p.is_contiguous() for p in weights):
        return f"parameters on {one.device.type}"
    return None


def _said(mask):
    """Of each row of a mask: where its first one is; how many there are."""
    bits = mask.bool().to(torch.uint8) if mask.dtype is torch.bool or mask.is_floating_point() else mask
    return torch.stack((bits.argmax(1), bits.sum(1))).tolist()


class Stack:
    """A decoder and its head, over the model's own parameters.

    tokens      that fit in all pages of keys and values together
    sequences   at once
    most        tokens of one call into the library: longer prompts go in several"""

    def __init__(self, model, decoder, tokens, sequences, most):
        config = decoder.config
        self.decoder, self.layers, self.config = decoder, decoder.layers, model.config
        self.said = vars(model.config)  # a config is slow to ask
        head, table = model.lm_head.weight, decoder.embed_tokens.weight
        some = (model.lm_head, decoder.embed_tokens, decoder.layers[0].self_attn.o_proj, decoder.layers[-1].mlp.down_proj)
        self.watched = [(m._parameters, m.weight.data_ptr()) for m in some]  # where parameters were
        every = [m._parameters for m in (*decoder.modules(), model.lm_head)]
        self.every = [(params, name) for params in every for name, p in params.items() if p is not None]
        self.places = self.now()
        self.head = model.lm_head._parameters
        self.drops = [m for m in (layer.self_attn for layer in decoder.layers) if getattr(m, "attention_dropout", 0)]
        self.watch = Watch(model)
        self.dtype, self.device, self.vocab, self.rows = head.dtype, head.device, head.shape[0], table.shape[0]
        self.index = -1
        self.stream = None
        if self.device.type == "cuda":
            self.index = self.device.index or 0
            self.stream = torch._C._cuda_getCurrentRawStream(self.index)
        self.narrow, self.wide, self.named = [], [], []
        # with its own frequencies: model.to(dtype) rounds them
        for name, p in (*decoder.named_parameters(), ("rotary_emb.inv_freq", decoder.rotary_emb.inv_freq)):
            at = p.detach()
            if p.dim() == 1 and p.dtype is not torch.float32:
                with torch.inference_mode(False):
                    at = torch.empty_like(p, dtype=torch.float32, requires_grad=False)
                self.narrow.append(p)
                self.wide.append(at)
            self.named.append(("model." + name, at))
        if head is not table:
            self.named.append(("lm_head.weight", head.detach()))
        self.refresh()
        self.most, self.sequences = max(most, sequences), sequences
        tensors = (_Tensor * len(self.named))()
        for to, (name, p) in zip(tensors, self.named):
            rows, cols = (0, p.shape[0]) if p.dim() == 1 else p.shape
            to.name, to.dtype, to.data, to.rows, to.cols = name.encode(), _TYPES[p.dtype], p.data_ptr(), rows, cols
        said = json.loads(config.to_json_string(use_diff=False))
        if decoder.rotary_emb.attention_scaling != 1:
            said["rope_parameters"]["attention_factor"] = float(decoder.rotary_emb.attention_scaling)
        text = json.dumps(said).encode()
        context = min(getattr(config, "max_position_embeddings", tokens), tokens)
        limits = (_L * 4)(context, sequences, self.most, tokens)
        self.handle = None
        handle = _P()
        self.alone = self.index < 0 or torch.cuda.device_count() == 1
        with self.here():
            why = _open(self.index, self.stream, text, tensors, len(tensors), limits, ctypes.byref(handle))
        if why:
            raise RuntimeError("superop: " + why.decode())
        self.handle = handle
        if self.index >= 0:
            with self.here(), torch.no_grad():
                self.warm(min(context, self.most))
        self.packed = self.versions() if self.index < 0 else None

    def now(self):
        """Where all parameters are; None where one is gone."""
        tensors = [params.get(name) for params, name in self.every]
        return None if any(p is None for p in tensors) else [*map(torch.Tensor.data_ptr, tensors)]

    def versions(self):
        """How often the large parameters were written: on a CPU the library has packed them."""
        return sum(p._version for _, p in self.named if p.dim() == 2 and not p.is_inference())

    def warm(self, most):
        """What steps of few tokens run is recorded by now; the kernels of long prompts are loaded at their
        first use, which is here."""
        n = 512
        while n <= most:
            seq = _begin(self.handle)
            self.prompt([seq], [n], torch.zeros(1, n, dtype=torch.long, device=self.device), None, False)
            self.end(seq)
            n *= 2
        # PyTorch's own kernels of padded prompts too
        seqs = [_begin(self.handle) for _ in range(min(2, self.sequences))]
        self.prompt(seqs, [1, 8][: len(seqs)], torch.zeros(len(seqs), 8, dtype=torch.long, device=self.device), None, False)
        for seq in seqs:
            self.end(seq)
        for dtype in (torch.long, torch.bool):
            _said(torch.ones(2, 8, dtype=dtype, device=self.device))

    def __del__(self):
        if getattr(self, "handle", None):
            with self.here():
                _close(self.handle)
            self.handle = None

    def __deepcopy__(self, memo):
        return None  # it is of parameters, which the copy has elsewhere

    def __reduce__(self):
        return type(None), ()

    def here(self):
        """The library makes its device the thread's; PyTorch wants its own back, where there are several."""
        return contextlib.nullcontext() if self.alone else torch.cuda.device(self.index)

    def refresh(self):
        """The small parameters, in float32, as they are now."""
        if self.wide:
            with torch.no_grad():
                torch._foreach_copy_(self.wide, self.narrow)

    def bytes(self):
        """Of the device, beside the parameters."""
        return _bytes(self.handle)

    def end(self, seq):
        if self.handle:
            _end(self.handle, seq)

    def pool(self, layer, which):
        """[pages, heads, page, channels]"""
        shape = (_L * 4)()
        data = _pool(self.handle, layer, which, shape)
        size, shape = torch.empty(0, dtype=self.dtype).element_size(), tuple(shape)
        if self.index < 0:
            n = shape[0] * shape[1] * shape[2] * shape[3] * size
            flat = torch.frombuffer((ctypes.c_char * n).from_address(data), dtype=self.dtype)
            return flat.view(shape)
        there = torch.as_tensor(_There(data, shape, f"<i{size}" if size == 2 else "<f4"), device=self.device)
        return there.view(self.dtype)

    def pages(self, seq, n):
        said = (_I * max(n, 1))()
        return list(said[: _pages(self.handle, seq, said, n)])

    def read(self, held):
        """Keys and values [b, g, columns, d] of each layer."""
        size = self.pool(0, 0).shape[2]
        lengths = held.lengths()
        most = -(-max(lengths) // size)
        table = [p + [0] * (most - len(p)) for p in (self.pages(s, most) for s in held.list)]
        table = torch.tensor(table, device=self.device)
        for layer in range(len(self.layers)):
            both = []
            for which in (0, 1):
                pool = self.pool(layer, which)
                rows = pool[table].transpose(1, 2).flatten(2, 3)  # [b, g, most * size, d]
                if not held.padded:
                    both.append(rows[:, :, : held.columns])
                    continue
                out = rows.new_zeros(held.n, rows.shape[1], held.columns, rows.shape[3])
                for i, (pad, n) in enumerate(zip(held.pads, lengths)):
                    out[i, :, pad:] = rows[i, :, :n]
                both.append(out)
            yield both

    def begin(self, n):
        """n new sequences, or None."""
        seqs = []
        for _ in range(n):
            seq = _begin(self.handle)
            if seq < 0:
                for seq in seqs:
                    self.end(seq)
                _attention._fallback(f"more than {self.sequences} sequences in the stack")
                return None
            seqs.append(seq)
        return seqs

    def hold(self, cache, seqs, pads, columns):
        """The cache's layers stand for these sequences from now on."""
        held = _Held(self, seqs, pads, columns, weakref.ref(cache))
        cache.layers[:] = [StackLayer(held, i) for i in range(len(self.layers))]
        return held

    def take(self, cache, pads):
        """The keys and values of a cache that grew layer by layer, into pages; None where they do not fit."""
        n = cache.layers[0].present()
        seqs = self.begin(len(pads))
        if seqs is None:
            return None
        lengths = [n - pad for pad in pads]
        for seq, length in zip(seqs, lengths):
            why = _extend(self.handle, seq, length)
            if why:
                _attention._fallback("a cache that does not fit in the stack", why.decode())
                for seq in seqs:
                    self.end(seq)
                return None
        size = self.pool(0, 0).shape[2]
        slots = []
        for seq, length in zip(seqs, lengths):
            pages = torch.tensor(self.pages(seq, -(-length // size)), dtype=torch.int32)
            slots.append((pages[:, None] * size + torch.arange(size, dtype=torch.int32)).flatten()[:length])
        slots = torch.cat(slots).to(self.device)
        for i, layer in enumerate(cache.layers):
            rows = [
                torch.cat([x[row, :, pad:n].transpose(0, 1) for row, pad in enumerate(pads)])
                for x in (layer.keys, layer.values)
            ]
            ops.kv_append(*rows, slots, *(self.pool(i, which).transpose(1, 2) for which in (0, 1)))
        return self.hold(cache, seqs, pads, n)

    def able(self, ids, cache, kwargs):
        """Whether a call is anything for the stack at all. What takes long to ask is asked where it begins."""
        goes_on = bool(cache is not None and getattr(cache, "layers", None) and type(cache.layers[0]) is StackLayer)
        if torch.is_grad_enabled() and any(p.requires_grad for p in (*self.decoder.parameters(), *self.head.values()) if p is not None):
            return False
        if any(m.training for m in self.drops):
            return False
        if ids is None or ids.dim() != 2 or ids.device != self.device or ids.numel() == 0:
            return False
        for key, value in kwargs.items():
            if value is not None and value is not False and key not in _KNOWN:
                return False
        said = self.said
        if kwargs.get("return_dict", said.get("return_dict", True)) is False:
            return False
        if kwargs.get("output_attentions", said.get("_output_attentions", said.get("output_attentions"))):
            return False
        if kwargs.get("output_hidden_states", said.get("output_hidden_states")):
            return False
        if cache is not None and type(cache) is not DynamicCache:
            return False
        if self.index < 0 and not 0 <= int(ids.min()) <= int(ids.max()) < self.rows:
            return False  # the table says so as it always does
        if self.index >= 0 and (
            torch._C._cuda_getCurrentRawStream(self.index) != self.stream or torch.cuda.is_current_stream_capturing()
        ):
            return False
        if torch.is_autocast_enabled(self.device.type):
            return False
        for p, at in self.watched:
            if "weight" not in p or p["weight"].data_ptr() != at:
                return False
        if not goes_on and self.now() != self.places:
            return False
        if self.packed is not None and self.packed != self.versions():
            _attention._fallback("parameters that were written after the stack packed them; patch() again")
            return False
        return self.watch.changed(not goes_on) is None

    def run(self, ids, mask, positions, cache, use_cache, keep, kwargs):
        """(logits, cache) of a call of the model, or None: then nothing has happened."""
        if self.alone:
            return self._run(ids, mask, positions, cache, use_cache, keep, kwargs)
        with self.here():
            return self._run(ids, mask, positions, cache, use_cache, keep, kwargs)

    def _run(self, ids, mask, positions, cache, use_cache, keep, kwargs):
        if not self.able(ids, cache, kwargs) or not isinstance(keep, int) or keep not in (0, 1):
            return None
        (b, n), held, had = ids.shape, None, 0
        if b > self.sequences or (positions is not None and (positions.dim() != 2 or positions.shape[1] != n)):
            return None
        every = n > 1 and keep == 0
        if every and b * n > self.sequences:
            return None  # rows of output, of which the stack has as many as sequences
        if cache is not None and len(cache.layers):
            kinds = {type(layer) for layer in cache.layers}
            if kinds == {StackLayer}:
                held = cache.layers[0].held
                if held.stack is not self or held.n != b:
                    return None
                had = held.columns
            elif kinds == {GrowingLayer} and len(cache.layers) == len(self.layers):
                had = cache.layers[0].present()
                if n > 1 or not had or any(layer.present() != had for layer in cache.layers):
                    return None
            elif any(kind is not DynamicLayer for kind in kinds) or any(layer.is_initialized for layer in cache.layers):
                return None
        pads = held.pads if held else [0] * b
        if mask is not None:
            if not isinstance(mask, torch.Tensor) or mask.shape != (b, had + n):
                return None
            said = _said(mask)
            if any(first + count != had + n or not count for first, count in zip(*said)):
                return None
            if held and said[0] != pads:
                return None
            pads = said[0]
        elif held and held.padded:
            return None  # eager would see the padding
        elif n > 1 and positions is not None and not held and not bool((positions.diff() == 1).all()):
            return None  # several sequences in a row
        padded = any(pads)
        if not held and padded and (every or any(pad >= had + n for pad in pads)):
            return None
        if had and not held:
            held = self.take(cache, pads)
            if held is None:
                return None
        if positions is None and padded:
            positions = torch.arange(had, had + n, device=self.device).unsqueeze(0)
        if held:
            rows = self.step(held, ids, positions) if n == 1 else self.prompt(held.list, [n] * b, ids, positions, every)
            if rows is None:
                for seq, length in zip(held.list, held.lengths()):
                    _cut(self.handle, seq, length)
                return None
            held.columns += n
        else:
            self.refresh()
            seqs = self.begin(b)
            if seqs is None:
                return None
            rows = self.prompt(seqs, [n - pad for pad in pads], ids, positions, every)
            if cache is None and (self.said.get("use_cache", True) if use_cache is None else use_cache):
                cache = DynamicCache(config=self.config)
            if rows is not None and cache is not None:
                self.hold(cache, seqs, pads, n)
            else:
                for seq in seqs:
                    self.end(seq)
            if rows is None:
                return None
        return rows.view(b, n if every else 1, self.vocab), cache

    def step(self, held, ids, positions):
        """One token of each sequence: [b, vocab]."""
        b = held.n
        if b == 1:  # the low half of an integer of 64 bits
            pos = positions
        else:
            ids = ids.to(torch.int32).contiguous()
            pos = None if positions is None else positions.expand(b, 1).to(torch.int32).contiguous()
        logits = torch.empty((b, self.vocab), dtype=torch.float32, device=self.device)
        at = None if pos is None else pos.data_ptr()
        why = _put(self.handle, b, held.seqs, held.ones, held.ones, ids.data_ptr(), at, logits.data_ptr())
        if why:
            _attention._fallback("a step that the stack refuses", why.decode())
            return None
        return logits.to(self.dtype)

    def prompt(self, seqs, counts, ids, positions, every):
        """Several tokens of each sequence, the last ones of its row: [rows wanted, vocab]."""

        def pick(x):  # not by a mask: to count its ones would be to wait for the device
            if min(counts) == x.shape[1]:
                return x.reshape(-1)
            return torch.cat([row[-count:] for row, count in zip(x, counts)])

        flat = pick(ids).to(torch.int32).contiguous()
        pos = None if positions is None else pick(positions.expand(ids.shape)).to(torch.int32).contiguous()
        want = _ALL if every else _LAST
        logits = torch.empty((sum(counts) if every else len(seqs), self.vocab), dtype=torch.float32, device=self.device)
        done, row, items, room = 0, 0, [], self.most

        def flush():
            nonlocal done, row, items, room
            n = sum(count for _, count, _ in items)
            parts = [_ints(list(x)) for x in zip(*items)]
            at = None if pos is None else pos.data_ptr() + 4 * done
            why = _put(self.handle, len(items), *parts, flat.data_ptr() + 4 * done, at, logits.data_ptr() + 4 * self.vocab * row)
            done += n
            row += sum(count if want == _ALL else want for _, count, want in items)
            items, room = [], self.most
            return why

        for i, (seq, left) in enumerate(zip(seqs, counts)):
            while left:
                n = min(left, room)
                left -= n
                room -= n
                items.append((seq, n, want if every or not left else 0))
                why = flush() if not room or (not left and i == len(seqs) - 1) else None
                if why:
                    _attention._fallback("a prompt that the stack refuses", why.decode())
                    return None
        return logits.to(self.dtype)

    def lines(self, batch, length):
        """What sequences of so many new tokens run: a line for each module, the layers that are alike in one."""
        seen = []

        def hear(module, layer, repeats, row):
            where = "" if layer < 0 else f"layer {layer}" if repeats == 1 else f"{repeats} layers"
            if row and repeats:
                seen.append(f"{module.decode():18} {where:10} {row.decode()}")

        why = _explain(self.handle, batch, length, length, _LINE(hear))
        return [why.decode()] if why else seen


class Forward(Bound):
    """The forward of a model whose decoder is a stack."""

    def __init__(self, model, stack):
        super().__init__(model)
        self.stack = stack
        self.__signature__ = inspect.signature(model.forward)

    def __call__(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        **kwargs,
    ):
        if inputs_embeds is None and labels is None and not torch.compiler.is_compiling():
            done = self.stack.run(input_ids, attention_mask, position_ids, past_key_values, use_cache, logits_to_keep, kwargs)
            if done is not None:
                return CausalLMOutputWithPast(logits=done[0], past_key_values=done[1])
        layers = getattr(past_key_values, "layers", None)
        if layers and type(layers[0]) is StackLayer:
            layers[0].held.release(past_key_values)
        model = self.module()
        return type(model).forward(
            model,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )
