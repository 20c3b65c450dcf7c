"""Stand-in of bitsandbytes: its optimizers. docs/stand-ins.md lists what it covers."""

from interpose.standins.surface import missing_names

from . import functional, nn, optim

__version__ = "0.48.1"
__all__ = ["functional", "nn", "optim"]
supported_torch_devices = {"cpu", "cuda", "hpu", "mps", "npu", "xpu"}
"""transformers looks here before it makes quantized layers, which then name this stand-in."""

__getattr__ = missing_names(__name__)
