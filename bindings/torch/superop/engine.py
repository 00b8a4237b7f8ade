"""SuperAttentionEngine: a whole attention block for people who write their own module."""

import torch
from torch import nn

from . import hf as _attention
from . import functional as SF
from .bound import Watch
from .patching import _Group, _Linears

ops = torch.ops.superop


class Past:
    """Keys and values [b, g, max_seq_len, d] of a block, of which the first `length` are there; graph: these
    once more, as gradients go back through them."""

    def __init__(self, b, g, most, d, like):
        with torch.inference_mode(False):  # what is made within could not be written outside of it
            self.keys, self.values = (torch.zeros(b, g, most, d, dtype=like.dtype, device=like.device) for _ in range(2))
        self.length, self.graph = 0, None

    def get_seq_length(self):
        return self.length

    def append(self, k, v):
        """k and v [b, g, n, d] go behind what is there."""
        n, most = k.shape[2], self.keys.shape[2]
        if self.length + n > most:
            raise ValueError(f"superop: {self.length} keys and {n} more, max_seq_len is {most}")
        self.keys[:, :, self.length : self.length + n] = k
        self.values[:, :, self.length : self.length + n] = v
        self.length, self.graph = self.length + n, None


class SuperAttentionEngine(nn.Module):
    """q, k, v projections, rope, cache, causal attention and the output projection.

    hidden_size   channels of hidden_states [batch, tokens, hidden_size]
    num_heads     query heads; num_kv_heads of keys and values, as many unless it is given
    max_seq_len   keys that a cache has room for
    dtype         of parameters and inputs

    engine(hidden_states, attention_mask, position_ids, past_key_value, output_attentions, use_cache)
    returns (output, weights or None, cache or None). attention_mask is None, [batch, keys] with 0 for
    padding, or [batch, 1 or heads, tokens, keys] as Transformers has it. Give the cache that a call
    returned to the next one. With gradients and with output_attentions the core is PyTorch's."""

    def __init__(
        self,
        hidden_size,
        num_heads,
        max_seq_len,
        dtype=torch.float32,
        num_kv_heads=None,
        head_dim=None,
        bias=False,
        rope_base=10000.0,
        sliding_window=0,
        device=None,
    ):
        super().__init__()
        self.heads, self.groups = num_heads, num_kv_heads or num_heads
        self.dim = head_dim or hidden_size // num_heads
        if self.heads % self.groups or self.dim % 2:
            raise ValueError(f"superop: {self.heads} heads, {self.groups} of keys, of {self.dim} channels do not fit")
        self.max_seq_len, self.window = max_seq_len, sliding_window
        kw = dict(bias=bias, dtype=dtype, device=device)
        self.q_proj = nn.Linear(hidden_size, self.heads * self.dim, **kw)
        self.k_proj = nn.Linear(hidden_size, self.groups * self.dim, **kw)
        self.v_proj = nn.Linear(hidden_size, self.groups * self.dim, **kw)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden_size, **{**kw, "bias": False})
        freqs = 1.0 / rope_base ** (torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim)
        self.register_buffer("freqs", freqs, persistent=False)
        self._linears, self._watch = None, Watch(self)

    def _project(self, x, called):
        if called:
            return torch.cat([p(x) for p in (self.q_proj, self.k_proj, self.v_proj)], -1)
        if self._linears is None:
            group = _Group()
            linears = group, _Linears(group, self.q_proj, self.k_proj, self.v_proj), _Linears(group, self.o_proj)
            object.__setattr__(self, "_linears", linears)
        self._linears[0].refresh()
        return self._linears[1](x)

    def forward(
        self, hidden_states, attention_mask=None, position_ids=None, past_key_value=None, output_attentions=False, use_cache=False
    ):
        x, (b, n, _) = hidden_states, hidden_states.shape
        h, g, d = self.heads, self.groups, self.dim
        past = past_key_value
        graph = x.requires_grad or any(p.requires_grad for p in self.parameters()) or getattr(past, "graph", None) is not None
        grad = torch.is_grad_enabled() and graph
        had = past.length if past is not None else 0
        if position_ids is None:
            position_ids = torch.arange(had, had + n, device=x.device).unsqueeze(0)
        # with gradients, or where somebody changed them since, the projections are called
        called = grad or torch.is_autocast_enabled(x.device.type) or self._watch.changed() is not None
        qkv = self._project(x, called)
        both = qkv[..., : (h + g) * d].view(b, n, h + g, d)
        both = SF.rope(both, position_ids.expand(b, n).to(torch.int32).contiguous(), self.freqs.float())
        q, k = both[:, :, :h].transpose(1, 2), both[:, :, h:].transpose(1, 2)
        v = qkv[..., (h + g) * d :].view(b, n, g, d).transpose(1, 2)
        if use_cache or past is not None:
            if past is None:
                past = Past(b, g, self.max_seq_len, d, k)
            keys, values = past.keys, past.values
            if grad:
                there = past.graph or (keys[:, :, :had], values[:, :, :had])
                keys, values = (torch.cat([old, new], 2) for old, new in zip(there, (k, v)))
            past.append(k.detach(), v.detach())
            if grad:
                past.graph = keys, values
        else:
            keys, values = k, v
        m, scale = had + n, d**-0.5
        mask = attention_mask
        if mask is not None and mask.dim() == 2:
            mask = mask.bool()
            alone = torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())
            if not alone and bool(mask.all()):
                mask = None
            else:
                mask = _attention.dense(None, q, m, True, self.window) & mask[:, None, None, :m]
        if grad or output_attentions:
            o, weights = _attention._eager(
                self, q, keys[:, :, :m], values[:, :, :m], mask, scale, True, self.window, 0.0, 0.0, None, output_attentions
            )
        else:
            index = _attention.index_of(b, n, m, x.device)
            o, weights = _attention.core(q, keys, values, mask, scale, True, self.window, index=index), None
        o = o.reshape(b, n, h * d)
        return self.o_proj(o) if called else self._linears[2](o), weights, past if use_cache else None
