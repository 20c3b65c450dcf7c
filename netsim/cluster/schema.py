"""Checked reading of a TOML table: every key is asked for, typed and bounded, and what is left over is an
error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from netsim.errors import ClusterError


class Table:
    """One TOML table of a cluster file, with its place in the file for error messages.

    Reading a key marks it as known; `close` raises for every key that nobody read.
    """

    def __init__(self, data: Mapping[str, Any], *, file: str, path: str = "") -> None:
        self._data = dict(data)
        self._file = file
        self._path = path
        self._known: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def name_of(self, key: str) -> str:
        """Full dotted name of `key` as the user would search for it."""
        return f"{self._path}.{key}" if self._path else key

    def fail(self, key: str, value: object, allowed: str) -> NoReturn:
        """Raise `ClusterError` for `key`."""
        raise ClusterError(f"{self._file}: {self.name_of(key)} = {value!r}: {allowed}")

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as TOML gave it."""
        self._known.add(key)
        return self._data.get(key, default)

    def _require(self, key: str, default: Any, allowed: str) -> Any:
        self._known.add(key)
        if key in self._data:
            return self._data[key]
        if default is None:
            raise ClusterError(f"{self._file}: {self.name_of(key)} is missing: {allowed}")
        return default

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        low: float,
        high: float,
        unit: str,
        zero: bool = False,
    ) -> float:
        """A float between `low` and `high`, or 0 where `zero` allows it."""
        allowed = f"a number of {unit} between {low:g} and {high:g}" + (" or 0" if zero else "")
        value = self._require(key, default, allowed)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, value, f"must be {allowed}")
        if not (low <= value <= high) and not (zero and value == 0):
            self.fail(key, value, f"must be {allowed}")
        return float(value)

    def integer(self, key: str, default: int | None = None, *, low: int, high: int, what: str = "") -> int:
        """An integer between `low` and `high`; 8.0 is not an integer."""
        allowed = f"an integer{' (' + what + ')' if what else ''} between {low} and {high}"
        value = self._require(key, default, allowed)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(key, value, f"must be {allowed}")
        return value

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """true or false."""
        value = self._require(key, default, "true or false")
        if not isinstance(value, bool):
            self.fail(key, value, "must be true or false")
        return value

    def text(
        self, key: str, default: str | None = None, *, choices: Sequence[str] = (), what: str = "a text"
    ) -> str:
        """A non-empty text, one of `choices` if given."""
        allowed = "one of " + ", ".join(f'"{c}"' for c in choices) if choices else what
        value = self._require(key, default, allowed)
        if not isinstance(value, str) or not value:
            self.fail(key, value, f"must be {allowed}")
        if choices and value not in choices:
            close = difflib.get_close_matches(value, choices, 1)
            hint = f' (did you mean "{close[0]}"?)' if close else ""
            self.fail(key, value, f"must be {allowed}{hint}")
        return value

    def table(self, key: str, *, required: bool = False) -> Table:
        """A sub-table; an empty one if it is absent and not required."""
        self._known.add(key)
        if key not in self._data and required:
            raise ClusterError(f"{self._file}: [{self.name_of(key)}] is missing: a table")
        value = self._data.get(key, {})
        if not isinstance(value, dict):
            self.fail(key, value, "must be a table")
        return Table(value, file=self._file, path=self.name_of(key))

    def integers(
        self, key: str, default: Sequence[int] | None = None, *, low: int, high: int
    ) -> tuple[int, ...]:
        """A non-empty list of integers between `low` and `high`."""
        allowed = f"a list of integers between {low} and {high}"
        value = self._require(key, default, allowed)
        if (
            not isinstance(value, list | tuple)
            or not value
            or any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in value)
        ):
            self.fail(key, value, f"must be {allowed}")
        return tuple(value)

    def factors(
        self, key: str, *, low: float = 1e-6, high: float = 1.0, zero: bool = False, what: str
    ) -> dict[str, float]:
        """A table name -> factor between `low` and `high`, or 0 where `zero` allows it."""
        allowed = f"must be a factor between {low:g} and {high:g}" + (" or 0" if zero else "")
        self._known.add(key)
        value = self._data.get(key, {})
        if not isinstance(value, dict):
            self.fail(key, value, f"must be a table of {what} = factor")
        result = {}
        for name, factor in value.items():
            if isinstance(factor, bool) or not isinstance(factor, int | float):
                self.fail(f"{key}.{name}", factor, allowed)
            if not low <= factor <= high and not (zero and factor == 0):
                self.fail(f"{key}.{name}", factor, allowed)
            result[str(name)] = float(factor)
        return result

    def items(self, key: str) -> list[Table]:
        """A list of tables."""
        self._known.add(key)
        value = self._data.get(key, [])
        if not isinstance(value, list) or any(not isinstance(v, dict) for v in value):
            self.fail(key, value, "must be a list of tables")
        return [Table(v, file=self._file, path=f"{self.name_of(key)}[{i}]") for i, v in enumerate(value)]

    def names(self) -> list[str]:
        """All keys of the table, in the file's order."""
        return list(self._data)

    def close(self) -> None:
        """Raise `ClusterError` if the table holds a key that was never asked for."""
        for key, value in self._data.items():
            if key not in self._known:
                close = difflib.get_close_matches(key, sorted(self._known), 1)
                hint = f' (did you mean "{close[0]}"?)' if close else ""
                self.fail(key, value, f"unknown key{hint}; allowed here: {', '.join(sorted(self._known))}")
