"""Stand-in of the extension module under apex.normalization: there to be imported."""

from interpose.standins.surface import missing_names

__getattr__ = missing_names(__name__)
