"""A `phantom run` and its ranks for tests of the simulator: the calls with their tokens."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import grpc

from phantom.wire import simulator_pb2 as messages
from phantom.wire import simulator_pb2_grpc as service
from phantom.wire import token as tokens


class Stub:
    """The service's methods; OpenJob presents the server's token, all others that of the job opened last."""

    def __init__(self, channel: grpc.Channel, server_token: str) -> None:
        self._stub = service.SimulatorStub(channel)
        self.server_token = server_token
        self.job_token = ""

    def __getattr__(self, name: str) -> Any:
        token = self.server_token if name == "OpenJob" else self.job_token
        return partial(getattr(self._stub, name), metadata=tokens.metadata(token))


def call(method: Any, **content: Any) -> dict[str, Any]:
    """One call with a JSON map both ways."""
    return dict(json.loads(method(messages.JsonMessage(json=json.dumps(content)), timeout=20).json))


def open_job(stub: Stub, **content: Any) -> dict[str, Any]:
    """OpenJob; later calls present the job's token. Returns the configuration for ranks."""
    reply = call(stub.OpenJob, **content)
    stub.job_token = reply["token"]
    return dict(reply["config"])
