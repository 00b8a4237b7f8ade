"""attn_implementation="superop": the attention core of a Transformers model, and its masks.

A mask function is registered under the same name: without one Transformers would build no mask at all,
and causality would be lost. What it returns is one of

    None           every key there is, the last one belonging to the last query, causal when the layer is
    [b, h, q, kv]  what each query sees (bool), or what is added to its scores (a float)
    int32 [1, b, 1, 1]  as None, but only so many keys of each row are there: a static cache has a tail
    int32 [2, b, 1, 1]  the first key of each row, and how many there are from it on: padding on the left

(generate() gives a mask that it made to the model again, which leaves alone what has four dimensions)
so a plain batch, a chunk of a prefill, a sliding window and a static cache need no mask in memory, nor
does padding on the left in a patched model."""

import collections
import warnings

import torch
import torch.nn.functional as F

from . import _ops, functional

ops = torch.ops.superop
_counts = collections.Counter()


def fallbacks():
    """How many calls did not run on superop, by reason."""
    return dict(_counts)


@torch.compiler.assume_constant_result  # said and counted once for a graph, when it is made
def _fallback(why, numbers=""):
    if not _counts[why]:
        warnings.warn(f"superop: {why}{numbers and f' ({numbers})'}; such calls go the model's old way", stacklevel=4)
    _counts[why] += 1


class _Small:
    """The little index tensors of a call, which all layers of a step share. Nothing that a graph may
    hold on to comes from here: while one is recorded or traced, each call makes its own."""

    def __init__(self):
        self.kept = collections.OrderedDict()

    def __call__(self, make, device, *key):
        stream = 0
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():  # of fakes, say
            return make(device, *key)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return make(device, *key)
            # each stream its own: another would not wait for them to be made, nor with freeing them
            stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if device.index is None else device.index)
        name = (make, device, stream, *key)
        value = self.kept.get(name)
        if value is None:
            with torch.inference_mode(False):  # others may want them outside of it
                value = self.kept[name] = make(device, *key)
            if len(self.kept) > 64:
                self.kept.popitem(last=False)
        return value


_small = _Small()


def _table(device, rows):
    return torch.arange(rows, dtype=torch.int32, device=device).unsqueeze(1)


def _starts(device, rows, each):
    return torch.arange(rows + 1, dtype=torch.int32, device=device) * each


def _full(device, rows, value):
    return torch.full((rows,), value, dtype=torch.int32, device=device)


def extents(mask):
    """(first key or None, how many keys) of each row, when that is what a mask says; else None."""
    if mask is None or mask.dtype is not torch.int32 or mask.shape[2:] != (1, 1):
        return None
    rows = mask[..., 0, 0]
    return (None, rows[0]) if rows.shape[0] == 1 else (rows[0], rows[1])


def dense(mask, q, kv_length, causal, window):
    """The boolean [b, 1, q, kv] that a mask of superop's stands for; a dense one as it is."""
    said = extents(mask)
    if mask is not None and said is None:
        return mask[..., :kv_length]
    rows, n, device = q.shape[0], q.shape[2], q.device
    first, lens = said or (None, None)
    end = lens if lens is not None else _full(device, rows, kv_length)
    end = (end if first is None else end + first).view(-1, 1, 1)
    j = torch.arange(kv_length, device=device)
    last = end + torch.arange(n, device=device).view(1, -1, 1) - n
    seen = (j < end).expand(rows, n, kv_length)
    if first is not None:
        seen = seen & (j >= first.view(-1, 1, 1))
    if causal:
        seen = seen & (j <= last)
    if window:
        seen = seen & (j > last - window)
    return seen.unsqueeze(1)


def _is_window(mask_function):
    """Whether a mask function of Transformers is its causal sliding window and nothing else."""
    cells = [c.cell_contents for c in getattr(mask_function, "__closure__", None) or ()]
    parts = [p for c in cells for p in (c if isinstance(c, (tuple, list)) else (c,))]
    names = sorted(getattr(p, "__qualname__", "?").split(".")[0] for p in parts)
    return names == ["causal_mask_function", "sliding_window_overlay"]


# Models whose layers tell attention their window: others have it in the mask alone.
_WINDOWED = {"qwen2", "qwen3", "mistral", "gemma3", "gemma3_text"}


def superop_mask(
    batch_size,
    q_length=None,
    kv_length=None,
    q_offset=0,
    kv_offset=0,
    mask_function=None,
    attention_mask=None,
    local_size=None,
    allow_is_causal_skip=True,
    device=None,
    **kwargs,
):
    """The mask function of attn_implementation="superop"; see the top of this file."""
    from transformers.masking_utils import causal_mask_function, is_tracing, sdpa_mask

    if q_length is None:  # before 5.0 positions came in their place
        position = kwargs.pop("cache_position")
        q_length, q_offset = position.shape[0], position[0]
    plain = mask_function is causal_mask_function and local_size is None
    if local_size is not None and not torch.compiler.is_compiling() and _is_window(mask_function):
        plain = getattr(kwargs.get("config"), "model_type", None) in _WINDOWED
    if plain and (allow_is_causal_skip or q_length == 1) and (attention_mask is None or not is_tracing(attention_mask)):
        present = q_offset + q_length - kv_offset
        if attention_mask is None or bool(attention_mask.all()):
            if isinstance(present, torch.Tensor):
                return present.to(torch.int32).reshape(1, 1, 1, 1).repeat(1, batch_size, 1, 1)
            if present == kv_length:
                return None
            return _small(_full, torch.device(device or "cpu"), batch_size, present).view(1, batch_size, 1, 1)
        whole = not isinstance(present, torch.Tensor) and attention_mask.shape[1] == present + kv_offset
        if whole and bool((attention_mask[:, 1:] >= attention_mask[:, :-1]).all()):
            first = ((~attention_mask).sum(1) - kv_offset).clamp_(min=0)
            return torch.stack([first, present - first]).to(torch.int32).view(2, batch_size, 1, 1)
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        device=device or (attention_mask.device if attention_mask is not None else "cpu"),
        **{k: v for k, v in kwargs.items() if k in ("allow_is_bidirectional_skip", "use_vmap", "dtype", "config")},
    )


# What a layer may say that does not change what attention is.
_PLAIN = {
    "position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "is_causal", "cache_position",
    "num_items_in_batch", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "position_embeddings", "cache",
    "read_index", "write_index", "block_table", "logits_to_keep", "labels", "dropout", "attention_mask",
    "is_first_iteration", "s_aux", "softcap", "output_router_logits",
}  # fmt: skip


def needs_grad(*tensors):
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def takes_mask(mask):
    kinds = (torch.bool, torch.float32, torch.float16, torch.bfloat16)
    return mask is None or mask.dtype in kinds or extents(mask) is not None


def _refusal(module, q, k, v, mask, dropout, kwargs):
    """Why a call cannot run on superop, or None."""
    if dropout and module.training:
        return "dropout of attention weights"
    if kwargs.get("output_attentions"):
        return "output_attentions asks for the weights"
    if needs_grad(q, k, v):
        if "attention_grad" not in _ops.table:
            return "attention has no gradient in this build"
        if mask is not None or kwargs.get("cu_seq_lens_q") is not None or kwargs.get("s_aux") is not None:
            return "gradients of attention with a mask, borders or sinks"
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return f"attention of {q.dtype}"
    if q.device.type not in ("cpu", "cuda"):
        return f"attention on {q.device.type}"
    if not takes_mask(mask):
        return f"a mask of {mask.dtype}"
    for key, value in kwargs.items():
        if value is not None and key not in _PLAIN:
            return f"the argument {key}"
    return None


def index_of(b, n, m, device):
    """The table, starts and lengths of b rows of n queries over m keys."""
    return _small(_table, device, b), _small(_starts, device, b, n), _small(_full, device, b, m)


def room_for_pages(x, dim):
    """x with room for a multiple of 128 along dim, in a graph: by a gather that repeats the last, for a pad
    or a slice would ask whether there is anything to pad, and be compiled twice."""
    m = x.shape[dim]
    return x.index_select(dim, torch.arange((m + 127) // 128 * 128, device=x.device).clamp_(max=m - 1))


def whole_pages(k, v):
    """Keys and values [b, g, m, d] that end with a page, as the rows of a card want them: by a copy where
    m is no multiple of one."""
    if k.is_cuda and torch.compiler.is_compiling():
        return room_for_pages(k, 2), room_for_pages(v, 2)
    rest = -k.shape[2] % 128
    if not k.is_cuda or rest == 0:
        return k, v
    return F.pad(k, (0, 0, 0, rest)), F.pad(v, (0, 0, 0, rest))


def over_pages(rows, kp, vp, index, mask, scale, causal, window=0, cap=0.0, sinks=None):
    """Attention of rows [b * n, h, d] over a page of keys and values [b, page, g, d] for each of b
    sequences, of which index says how many are there; o [b * n, h, d]."""
    table, starts, lens = index
    said = extents(mask)
    if said is not None:
        lens, mask = said[1], None
    elif mask is not None:
        b, m = kp.shape[0], min(kp.shape[1], mask.shape[-1])
        n = rows.shape[0] // b
        mask = mask[..., :m].expand(b, -1, n, m).transpose(1, 2).reshape(b * n, mask.shape[1], m)
        causal, window = False, 0  # the mask says it all
    return ops.attention(
        rows,
        kp,
        vp,
        table,
        starts,
        lens,
        0,
        int(causal),
        int(window or 0),
        float(scale),
        float(cap or 0.0),
        mask,
        None,
        sinks,
        None,
        None,
        int(rows.dtype is torch.float32),
    )


def core(q, k, v, mask, scale, causal, window=0, cap=0.0, sinks=None, index=None):
    """Attention of q [b, h, n, d] over k, v [b, g, m, d], as they lie; o [b, n, h, d]. index: what
    index_of() makes, where a caller has it already."""
    b, h, n, d = q.shape
    index = index or index_of(b, n, k.shape[2], q.device)
    said = extents(mask)
    if said is not None and said[0] is not None:
        mask = dense(mask, q, k.shape[2], causal, window)
    k, v = whole_pages(k, v)
    rows = q.transpose(1, 2).reshape(b * n, h, d)
    o = over_pages(rows, k.transpose(1, 2), v.transpose(1, 2), index, mask, scale, causal, window, cap, sinks)
    return o.view(b, n, h, o.shape[-1])


def packed(q, k, v, cu_q, cu_k, longest, scale, causal, window=0, cap=0.0, sinks=None):
    """Sequences one after another in a row: q [1, h, t, d], k and v [1, g, s, d], borders cu [n + 1]."""
    s, n = k.shape[2], cu_k.shape[0] - 1
    first = cu_k[:-1].to(torch.int32)
    lens = (cu_k[1:] - cu_k[:-1]).to(torch.int32)
    if k.is_cuda:
        # Each sequence into pages of its own.
        room = -(-longest // 128) * 128
        at = torch.arange(s, dtype=torch.int32, device=k.device)
        row = torch.searchsorted(cu_k[1:].to(torch.int32).contiguous(), at, right=True, out_int32=True)
        row = row.clamp_(max=n - 1)
        slots = at - first[row] + row * room
        kp, vp = (x.new_zeros(n, x.shape[1], room, x.shape[3]).transpose(1, 2) for x in (k, v))
        ops.kv_append(k[0].transpose(0, 1), v[0].transpose(0, 1), slots.masked_fill_(at >= cu_k[-1], -1), kp, vp)
        table = _small(_table, k.device, n)
    else:
        # Every key is a page of its own, so that a sequence may begin anywhere.
        kp, vp = (x[0].transpose(0, 1).unsqueeze(1) for x in (k, v))
        table = (first.unsqueeze(1) + torch.arange(longest, dtype=torch.int32, device=q.device)).clamp_(max=s - 1)
    o = ops.attention(
        q[0].transpose(0, 1),
        kp,
        vp,
        table,
        cu_q.to(torch.int32),
        lens,
        0,
        int(causal),
        int(window or 0),
        float(scale),
        float(cap or 0.0),
        None,
        None,
        sinks,
        None,
        None,
        int(q.dtype is torch.float32),
    )
    return o.unsqueeze(0)


def _eager(module, q, k, v, mask, scaling, causal, window, dropout, cap, sinks, weights):
    """The formula, on PyTorch's own operators: with gradients, dropout and weights."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
    mask = dense(mask, q, k.shape[2], causal, window)
    if not weights and not cap and sinks is None:
        if mask.dtype is not torch.bool:
            mask = mask.to(q.dtype)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        return o.transpose(1, 2).contiguous(), None
    z = q @ k.transpose(2, 3) * scaling
    if cap:
        z = cap * torch.tanh(z / cap)
    z = z.masked_fill(~mask, torch.finfo(z.dtype).min) if mask.dtype is torch.bool else z + mask
    if sinks is not None:
        z = torch.cat([z, sinks.view(1, -1, 1, 1).expand(*z.shape[:3], 1).to(z.dtype)], -1)
    p = F.softmax(z, -1, dtype=torch.float32).to(q.dtype)
    p = p[..., : k.shape[2]]
    return (F.dropout(p, dropout, module.training) @ v).transpose(1, 2).contiguous(), p


def superop_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    s_aux=None,
    **kwargs,
):
    """The attention function of attn_implementation="superop"."""
    scaling = scaling if scaling is not None else query.shape[-1] ** -0.5
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    cu_q, cu_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    cap, window = softcap or 0.0, sliding_window or 0
    why = _refusal(module, query, key, value, attention_mask, dropout, {**kwargs, "s_aux": s_aux})
    if cu_q is not None and query.shape[0] == 1 and key.shape[2] == int(cu_k[-1]):
        if why is None:
            longest = int(kwargs.get("max_length_k") or (cu_k[1:] - cu_k[:-1]).max())
            sinks = None if s_aux is None else s_aux.float()
            return packed(query, key, value, cu_q, cu_k, longest, scaling, causal, window, cap, sinks), None
        row = torch.repeat_interleave(torch.arange(len(cu_k) - 1, device=query.device), cu_k[1:] - cu_k[:-1])
        same = (row[:, None] == row[None])[None, None]
        attention_mask = dense(None, query, key.shape[2], causal, window) & same
    if why is not None:
        _fallback(why)
        return _eager(
            module, query, key, value, attention_mask, scaling, causal, window, dropout, cap, s_aux, bool(kwargs.get("output_attentions"))
        )
    if needs_grad(query, key, value):
        return functional.attention(query, key, value, scaling, causal, window, cap).transpose(1, 2), None
    return core(query, key, value, attention_mask, scaling, causal, window, cap, None if s_aux is None else s_aux.float()), None


def superop_attention_paged(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """The same for continuous batching: the cache takes the new keys and gives all of them, one sequence
    after another. Transformers makes masks for its own functions alone, and borders for all."""
    cache = kwargs.pop("cache", None)
    if cache is None:
        raise ValueError('superop: "paged|superop" is for continuous batching; use "superop" elsewhere')
    key, value = cache.update(
        key_states=key,
        value_states=value,
        layer_idx=module.layer_idx,
        read_index=kwargs["read_index"],
        write_index=kwargs["write_index"],
    )
    key, value = (x.transpose(0, 1).unsqueeze(0) for x in (key, value))
    sinks, cap = kwargs.get("s_aux"), kwargs.get("softcap")
    window = kwargs.get("sliding_window") or 0
    cu_q, cu_k, longest = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"], kwargs["max_seqlen_k"]
    if isinstance(cu_k, dict):
        kind = "sliding_attention" if window else "full_attention"
        cu_k, longest = cu_k[kind], longest[kind]
    scaling = scaling if scaling is not None else query.shape[-1] ** -0.5
    sinks = None if sinks is None else sinks.float()
    return packed(query, key, value, cu_q, cu_k, longest, scaling, True, window, cap or 0.0, sinks), None


def _no_mask(*args, **kwargs):
    return None


def register():
    """Put both functions under their names; harmless when done again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register("superop", superop_attention)
    AttentionMaskInterface.register("superop", superop_mask)
    AttentionInterface.register("paged|superop", superop_attention_paged)
    AttentionMaskInterface.register("paged|superop", _no_mask)
