"""Ends a rank whose last step ends with a join that the simulator has not announced, though it has announced
what is joined. Run in a process of its own; prints the steps that the rank accounts for.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch  # noqa: F401 - the extension needs its libraries

from interpose.extension import load
from phantom.wire import schema as wire
from phantom.wire.fields import SettledStep
from phantom.wire.records import decode, pack

END_PS = {"first": 70_000_000, "second": 90_000_000}
extension: Any = load()
extension.install({"device_count": 1, "launch_queue": 1 << 20})
extension.session_open(0)
nodes = {
    extension.occupy_stream(0, stream, what): END_PS[what] for stream, what in enumerate(("first", "second"))
}
extension.step_end(0)

steps: list[SettledStep] = []
joins: list[int] = []
asked: list[tuple[int, int]] = []


def read() -> None:
    """Takes what the rank has said."""
    batch = extension.next_batch(0.0)
    if batch is None or not batch[0]:
        return
    decoded = decode(batch[0])
    assert decoded.error is None, decoded.error
    for record in decoded.records:
        if isinstance(record, wire.Node):
            joins.append(record.node)
        elif isinstance(record, wire.Sync):
            asked.append((record.request, record.tail.node))
        elif isinstance(record, wire.Stats):
            steps.extend(record.account.steps)


read()
assert len(joins) == 1, joins
extension.on_message(pack(wire.Resolved([number for entry in nodes.items() for number in entry])))
ending = threading.Thread(target=extension.finish)
ending.start()
deadline_s = time.monotonic() + 60
while ending.is_alive() and time.monotonic() < deadline_s:
    read()
    if asked:
        request, node = asked.pop()
        assert node == joins[0]
        end_ps = max(END_PS.values())
        extension.on_message(pack(wire.Resolved([node, end_ps]), wire.Answer(request, end_ps)))
    time.sleep(0.01)
ending.join(1)
read()
print([(step.index, step.end_ps) for step in steps])
