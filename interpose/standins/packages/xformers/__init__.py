"""Stand-in of xFormers: docs/stand-ins.md lists what it covers."""

from interpose.standins.surface import missing_names

__version__ = "0.0.32"
_is_functorch_available = False
_has_cpp_library = True

__getattr__ = missing_names(__name__)
