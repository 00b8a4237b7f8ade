"""superop in PyTorch: its operators as torch.ops.superop and as functions with gradients, on CPU and
CUDA, and its attention in Transformers models as attn_implementation="superop"."""

import importlib.util

from . import _ops  # noqa: F401  registers torch.ops.superop
from ._lib import load_plugin, plans, rows
from .compiling import graph_pass, matched
from .hf import fallbacks
from .functional import (
    add_layer_norm,
    add_rms_norm,
    attention,
    bias_act,
    gated,
    has_gradients,
    layer_norm,
    linear,
    pack_f8,
    rms_norm,
    rope,
    softmax,
)

__all__ = [
    "add_layer_norm", "add_rms_norm", "attention", "bias_act", "fallbacks", "gated", "graph_pass", "has_gradients", "layer_norm", "linear",
    "load_plugin", "matched", "pack_f8", "plans", "rms_norm", "rope", "rows", "softmax",
]  # fmt: skip

if importlib.util.find_spec("transformers"):
    from . import hf as _attention
    from .engine import SuperAttentionEngine
    from .patching import explain, patch, unpatch

    _attention.register()
    __all__ += ["SuperAttentionEngine", "explain", "patch", "unpatch"]
