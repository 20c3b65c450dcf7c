"""Who may call what: a server's token opens jobs, a job's token does everything else, also on loopback."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from phantom.wire import token as tokens

_OPENS = "/OpenJob"
_REMEMBERED = 8
"""Jobs whose token still admits: the newest, and those before it, whose files are still to be fetched."""


class Keys:
    """Tokens that admit. Every method may be called from any thread."""

    def __init__(self, server_token: str) -> None:
        self._server = server_token
        self._jobs: deque[str] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def admit(self, job_token: str) -> None:
        """A job has been opened."""
        with self._lock:
            self._jobs.append(job_token)

    def may_open(self, presented: str) -> bool:
        """Whether this is the server's token."""
        return tokens.same(presented, self._server)

    def may_take_part(self, presented: str) -> bool:
        """Whether this is the token of a job. Compares with all, so that the time tells nothing."""
        with self._lock:
            jobs = list(self._jobs)
        return any([tokens.same(presented, job) for job in jobs])  # noqa: C419 - no early end


class Gate(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the token that they need, before any of their content is read."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def intercept_service(
        self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Returns the method's handler, or one that refuses."""
        handler = continuation(details)
        if handler is None:
            return None
        presented = tokens.presented(details.invocation_metadata)
        if details.method.endswith(_OPENS):
            admitted = self._keys.may_open(presented)
            text = (
                "this simulator opens jobs only for its token; give the one that `phantom serve` printed in "
                "PHANTOM_TOKEN or by --token-file"
            )
        else:
            admitted = self._keys.may_take_part(presented)
            text = "this call presents no token of a job of this simulator"
        return handler if admitted else _refusal(handler, text)


def _refusal(handler: grpc.RpcMethodHandler, text: str) -> grpc.RpcMethodHandler:
    """A handler of the same shape that ends every call."""

    def refuse(request: Any, context: grpc.ServicerContext) -> Any:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        refuse,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
