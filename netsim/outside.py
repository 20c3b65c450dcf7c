"""Reads files that come from outside.

Such a file is bounded in size, depth and digits before anything looks at its values. It gives a result or one
sentence (`OutsideError`), never a traceback. Reading never waits: named pipes and devices are refused.
"""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser under its older name
    import tomli as tomllib

MAX_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_DIGITS = 40
"""More than any whole number of 64 bits has; Python itself refuses only above 4300, after quadratic work."""
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class OutsideError(ValueError):
    """A file from outside cannot be used; the text is one sentence that names the file and what is wrong."""


def printable(text: str) -> str:
    """Returns `text` with every character that UTF-8 cannot hold as an escape (names of files need not be
    UTF-8, and Python keeps the bytes of such a name as lone surrogates).
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text).decode("utf-8", "backslashreplace") if _is_name(text) else _escaped(text)
    return text


def _is_name(text: str) -> bool:
    return all(not "\ud800" <= c <= "\udfff" or "\udc80" <= c <= "\udcff" for c in text)


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def read_bytes(path: Path, *, limit_bytes: int = MAX_BYTES) -> bytes:
    """Returns the content of a regular file of at most `limit_bytes`. Raises OutsideError."""
    name = printable(str(path))
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OutsideError(f"cannot read {name}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the name
        raise OutsideError(f"cannot read {name!r}: {error}") from None
    mode = os.fstat(number).st_mode
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            os.close(number)
            raise OutsideError(f"cannot read {name}: it is {kind}, not a file")
    with open(number, "rb") as file:
        try:
            content = file.read(limit_bytes + 1)
        except OSError as error:
            raise OutsideError(f"cannot read {name}: {error.strerror}") from None
    if len(content) > limit_bytes:
        raise OutsideError(f"{name} is larger than the {limit_bytes >> 20} MiB that are read of such a file")
    return content


def decode_text(content: bytes, name: str) -> str:
    """Returns UTF-8 text. Raises OutsideError naming the first byte that is not."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OutsideError(
            f"{name} is not UTF-8 text: byte {content[error.start]:#04x} at {error.start}"
        ) from None


def read_text(path: Path, *, limit_bytes: int = MAX_BYTES) -> str:
    """Returns the content of a UTF-8 file. Raises OutsideError."""
    return decode_text(read_bytes(path, limit_bytes=limit_bytes), printable(str(path)))


def parse_json(text: str, name: str, *, not_a_number: bool = False) -> Any:
    """Returns JSON's value: at most MAX_DEPTH levels, whole numbers of 64 bits, finite numbers, text that
    UTF-8 can hold.

    `name` stands for the file in messages. `not_a_number` lets NaN and Infinity pass, which some programs
    write. Raises OutsideError.
    """

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise OutsideError(f"{name}: a whole number of {len(digits)} digits")
        return int(digits)

    def constant(word: str) -> float:
        if not not_a_number:
            raise OutsideError(f"{name}: {word} is not a JSON number")
        return float(word)

    try:
        value = json.loads(text, parse_int=integer, parse_constant=constant)
    except OutsideError:
        raise
    except ValueError as error:
        raise OutsideError(f"{name} is not JSON: {error}") from None
    except RecursionError:
        _too_deep(name)
    _check_values(value, name, finite=not not_a_number)
    return value


def read_json(path: Path, *, limit_bytes: int = MAX_BYTES, not_a_number: bool = False) -> Any:
    """Returns the value of a JSON file (`parse_json`). Raises OutsideError."""
    return parse_json(
        read_text(path, limit_bytes=limit_bytes), printable(str(path)), not_a_number=not_a_number
    )


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Returns TOML's table, with the bounds of `parse_json`. Raises OutsideError."""
    try:
        value = tomllib.loads(text)
    except ValueError as error:  # also a number of more than 4300 digits
        raise OutsideError(f"{name}: not a TOML file: {error}") from None
    except RecursionError:
        _too_deep(name)
    _check_values(value, name, finite=False)
    return value


def read_csv(path: Path, columns: Sequence[str], *, limit_bytes: int = MAX_BYTES) -> list[dict[str, str]]:
    """Returns the rows of a CSV file with a line of headings; missing fields are empty.

    Raises OutsideError where one of `columns` is missing or a row has more fields than headings.
    """
    return parse_csv(read_text(path, limit_bytes=limit_bytes), printable(str(path)), columns)


def parse_csv(text: str, name: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The same for text; `name` stands for the file in messages."""
    reader = csv.DictReader(text.splitlines(), restval="", restkey="")
    try:
        found = list(reader.fieldnames or [])
        missing = [column for column in columns if column not in found]
        if missing:
            raise OutsideError(f"{name}: no column {', '.join(missing)}; the first line names {found}")
        rows = []
        for row in reader:
            if "" in row and "" not in found:
                raise OutsideError(f"{name}: line {reader.line_num} has more fields than the first line")
            rows.append(dict(row))
    except csv.Error as error:
        raise OutsideError(f"{name}: line {reader.line_num} is not CSV: {error}") from None
    return rows


def _too_deep(name: str) -> NoReturn:
    raise OutsideError(f"{name}: nested more than {MAX_DEPTH} levels deep") from None


def _check_values(value: Any, name: str, *, finite: bool) -> None:
    """Walks a parsed value without recursion. Raises OutsideError."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            _too_deep(name)
        if isinstance(item, dict):
            pending += [(each, depth + 1) for pair in item.items() for each in pair]
        elif isinstance(item, list):
            pending += [(each, depth + 1) for each in item]
        elif isinstance(item, str):
            if printable(item) is not item:
                raise OutsideError(f"{name}: {_escaped(item)[:80]!r} holds half of a UTF-16 pair")
        elif isinstance(item, float):
            if finite and not math.isfinite(item):
                raise OutsideError(f"{name}: a number beyond {sys.float_info.max:.1e}")
        elif isinstance(item, int) and not _MIN_INTEGER <= item <= _MAX_INTEGER:
            digits = f"{item.bit_length()} bits"
            raise OutsideError(f"{name}: a whole number of {digits}; at most 64 are allowed")
