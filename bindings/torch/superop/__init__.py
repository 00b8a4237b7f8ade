"""superop in PyTorch: its operators as torch.ops.superop, on CPU and CUDA, and its attention in
Transformers models as attn_implementation="superop"."""

import importlib.util

from . import _ops  # noqa: F401  registers torch.ops.superop
from ._lib import plans
from .attention import fallbacks

__all__ = ["fallbacks", "plans"]

if importlib.util.find_spec("transformers"):
    from . import attention as _attention

    _attention.register()
