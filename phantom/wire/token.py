"""The secret that admits to a simulator, a job or a run: in gRPC metadata and in PHANTOM_TOKEN.

A simulator has a token that admits those who open jobs. Each job has one of its own, which its ranks and its
`phantom run` present with every call, also on loopback; it is the job's identity too. This file imports
nothing but the standard library, since ranks use it.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "PHANTOM_TOKEN"
METADATA_KEY = "phantom-token"
LONGEST = 256


def new() -> str:
    """A token that nobody can guess (192 random bits)."""
    return secrets.token_urlsafe(24)


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a gRPC call that presents the token."""
    return ((METADATA_KEY, token),)


def presented(pairs: Iterable[tuple[str, str | bytes]]) -> str:
    """The token in a call's metadata, "" if there is none."""
    for key, value in pairs:
        if key == METADATA_KEY and isinstance(value, str):
            return value[:LONGEST]
    return ""


def same(presented_token: str, expected: str) -> bool:
    """Compares in a time that does not depend on where they differ."""
    return bool(expected) and hmac.compare_digest(presented_token.encode(), expected.encode())


def given(file: Path | None = None, variables: Mapping[str, str] | None = None) -> str | None:
    """The token in `file`, else in PHANTOM_TOKEN, else None. Raises OSError, ValueError (unusable)."""
    text = (
        file.read_text()
        if file is not None
        else (os.environ if variables is None else variables).get(VARIABLE)
    )
    if text is None or not text.strip():
        return None
    text = text.strip()
    if not 8 <= len(text) <= LONGEST or not text.isascii() or not text.isprintable() or " " in text:
        source = str(file) if file is not None else VARIABLE
        raise ValueError(f"{source}: a token has 8 to {LONGEST} printable characters without spaces")
    return text


def file_of(port: int) -> Path:
    """Where a simulator on this machine leaves its token for this user's runs, readable by the user alone."""
    base = os.environ.get("XDG_RUNTIME_DIR") or str(Path.home() / ".cache")
    return Path(base, "phantom", f"serve-{port}.token")


def leave(port: int, token: str) -> Path:
    """Writes the token of a simulator at `port` for runs of the same user. Raises OSError."""
    path = file_of(port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    return path
