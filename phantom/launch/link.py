"""The connection between a run and one of its simulated nodes elsewhere: JSON lines over TCP, both ways."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

_M = TypeVar("_M")

LINE_LIMIT_BYTES = 4 << 20
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 5
"""A peer whose machine is gone without a word is noticed after 15 s; one whose process ended, at once."""


class BadMessage(ValueError):
    """What arrived is no message: the peer is not phantom, or of another version."""


class Link(Generic[_M]):
    """One end. `send` may be called from any thread, `receive` from one; `decoder` is for what arrives."""

    def __init__(self, connection: socket.socket, decoder: msgspec.json.Decoder[_M]) -> None:
        self._connection = connection
        self._decoder = decoder
        self._buffer = b""
        self._lock = threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: Struct) -> None:
        """Sends one message; silent where the peer is gone, since `receive` tells of that."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self, timeout_s: float | None = None) -> _M | None:
        """Waits for one message; None when the peer has gone.

        Raises BadMessage for anything else than a message of at most LINE_LIMIT_BYTES, TimeoutError.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if len(self._buffer) > LINE_LIMIT_BYTES:
                raise BadMessage(f"a line of more than {LINE_LIMIT_BYTES} bytes")
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            try:
                chunk = self._connection.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            return self._decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise BadMessage(f"a malformed message: {error}") from None

    def close(self) -> None:
        """Ends the connection; the peer's `receive` gives None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
