"""The connection between a run and one of its simulated nodes elsewhere: JSON lines over TCP, both ways."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

LINE_LIMIT_BYTES = 4 << 20
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 5
"""A peer whose machine is gone without a word is noticed after 15 s; one whose process ended, at once."""


class BadMessage(ValueError):
    """What arrived is no message: the peer is not phantom, or of another version."""


class Link:
    """One end. `send` may be called from any thread, `receive` from one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
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

    def send(self, message: dict[str, Any]) -> None:
        """Sends one message; silent where the peer is gone, since `receive` tells of that."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Waits for one message; None when the peer has gone.

        Raises BadMessage for anything else than a JSON map of at most LINE_LIMIT_BYTES, TimeoutError.
        """
        self._connection.settimeout(timeout_s)
        while b"\n" not in self._buffer:
            if len(self._buffer) > LINE_LIMIT_BYTES:
                raise BadMessage(f"a line of more than {LINE_LIMIT_BYTES} bytes")
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
            message = json.loads(line)
        except ValueError as error:
            raise BadMessage(f"no JSON: {error}") from None
        if not isinstance(message, dict):
            raise BadMessage(f"no map but {type(message).__name__}")
        return message

    def close(self) -> None:
        """Ends the connection; the peer's `receive` gives None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
