"""Stand-in of bitsandbytes: its optimizers. docs/stand-ins.md lists what it covers."""

from interpose.standins.surface import missing_names

from . import functional, nn, optim

__version__ = "0.48.1"
__all__ = ["functional", "nn", "optim"]
__getattr__ = missing_names(__name__)
