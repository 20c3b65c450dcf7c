"""Ends a rank whose last step ends with a join that the simulator has not announced, though it has announced
what is joined. Run in a process of its own; prints the steps that the rank accounts for.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import msgpack
import torch  # noqa: F401 - the extension needs its libraries

from interpose.extension import load

END_PS = {"first": 70_000_000, "second": 90_000_000}
extension: Any = load()
extension.install({"device_count": 1, "launch_queue": 1 << 20})
extension.session_open(0)
nodes = {
    extension.occupy_stream(0, stream, what): END_PS[what] for stream, what in enumerate(("first", "second"))
}
extension.step_end(0)

steps: list[list[int]] = []
joins: list[int] = []
asked: list[tuple[int, int]] = []


def read() -> None:
    """Takes what the rank has said."""
    batch = extension.next_batch(0.0)
    if batch is None or not batch[0]:
        return
    unpacker = msgpack.Unpacker()
    unpacker.feed(batch[0])
    for record in unpacker:
        if record[0] == 4:
            joins.append(record[1])
        elif record[0] == 8:
            asked.append((record[1], record[3][0]))
        elif record[0] == 15:
            steps.extend(record[1]["steps"])


read()
assert len(joins) == 1, joins
extension.on_message(msgpack.packb([3, [number for entry in nodes.items() for number in entry]]))
ending = threading.Thread(target=extension.finish)
ending.start()
deadline_s = time.monotonic() + 60
while ending.is_alive() and time.monotonic() < deadline_s:
    read()
    if asked:
        request, node = asked.pop()
        assert node == joins[0]
        end_ps = max(END_PS.values())
        answer = msgpack.packb([3, [node, end_ps]]) + msgpack.packb([2, request, end_ps])
        extension.on_message(answer)
    time.sleep(0.01)
ending.join(1)
read()
print([(step[0], step[1]) for step in steps])
