"""Stand-in of NVIDIA Apex: docs/stand-ins.md lists what it covers."""

from interpose.standins.surface import missing_names

from . import multi_tensor_apply, normalization, optimizers, parallel

__all__ = ["multi_tensor_apply", "normalization", "optimizers", "parallel"]
__getattr__ = missing_names(__name__)
