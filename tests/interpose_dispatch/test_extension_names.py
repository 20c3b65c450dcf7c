"""interpose/extension_protocol.py names the functions that the built extension has."""

from __future__ import annotations

from interpose.extension_protocol import Extension

from .attached import attach


def test_the_protocol_names_what_the_extension_has() -> None:
    built = {name for name in vars(attach()) if not name.startswith("__")}
    declared = {name for name in vars(Extension) if not name.startswith("_")}
    assert declared == built - {"PoolCheckpoint"}
