"""superop in PyTorch: its operators as torch.ops.superop, on CPU and CUDA."""

from . import _ops  # noqa: F401  registers torch.ops.superop
from ._lib import plans

__all__ = ["plans"]
