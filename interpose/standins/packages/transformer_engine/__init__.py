"""Stand-in of Transformer Engine: docs/stand-ins.md lists what it covers."""

from interpose.standins.surface import missing_names

from . import common, pytorch

__version__ = "2.10.0"
__all__ = ["common", "pytorch"]
__getattr__ = missing_names(__name__)
