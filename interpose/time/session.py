"""The stream between this rank and the simulator: opening, feeding, ending.

A process becomes a rank when it has RANK and first uses the device, or calls init_process_group. Launchers,
data-loader and compile workers never do.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from interpose import environment
from interpose.environment import Environment
from interpose.extension_protocol import Extension
from interpose.time.spool import open_spool
from phantom.wire import token
from phantom.wire.limits import CHANNEL_OPTIONS

CONNECT_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
BATCH_WAIT_S = 1.0
OTHERS_TIMEOUT_S = 30.0

_lock = threading.RLock()
_extension: Extension | None = None
_when_open: Callable[[Environment], None] | None = None
_session: Session | None = None
_forgotten: list[Any] = []  # a forked child must not destroy its parent's channel
_failed = False


class SimulatorUnreachable(RuntimeError):
    """No simulator answered at PHANTOM_SERVER, or it went away; the text says which."""


class Session:
    """One rank's stream. Made by open(), ended by close()."""

    def __init__(self, extension: Extension, here: Environment, rank: int, world_size: int) -> None:
        self.rank = rank
        self._world_size = world_size
        self._extension = extension
        self._here = here
        self._server = here.server
        self._channel: Any = None
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()
        self._welcomed = threading.Event()
        self._closing = False

    def open(self) -> None:
        """Connects and starts the stream. Raises SimulatorUnreachable."""
        # gRPC's own fork handlers hang in processes that fork data-loader workers while a stream is open.
        os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
        import grpc

        from phantom.wire import simulator_pb2 as messages
        from phantom.wire import simulator_pb2_grpc as service

        options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(self._server, options=options)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise SimulatorUnreachable(
                f"phantom: rank {self.rank} found no simulator at {environment.SERVER}={self._server} "
                f"within {CONNECT_TIMEOUT_S:.0f} s"
            ) from None
        stub = service.SimulatorStub(self._channel)
        metadata = token.metadata(self._here.token)

        def price(kernels: bytes) -> bytes:
            request = messages.KernelBatch(kernels=kernels, rank=self.rank)
            return bytes(stub.Cost(request, metadata=metadata).costs)

        self._extension.set_cost_callback(price)
        self._extension.session_open(self.rank)
        self._extension.hello(
            rank=self.rank,
            world_size=self._world_size,
            local_rank=self._here.local_rank if self._here.local_rank is not None else -1,
            node=self._here.node,
            pid=os.getpid(),
        )
        open_spool(self._extension, self._here.config, self.rank)

        def batches() -> Iterator[Any]:
            while True:
                batch = self._extension.next_batch(BATCH_WAIT_S)
                if batch is None:
                    return
                records, acked = batch
                if records:
                    yield messages.RankBatch(rank=self.rank, records=records, acked=acked)

        replies = stub.Session(batches(), metadata=metadata)
        self._reader = threading.Thread(
            target=self._read, args=(replies,), name="phantom-session", daemon=True
        )
        self._reader.start()
        # Before anything else happens in this process: the simulator may refuse it, for a reason worth
        # reading.
        if not self._welcomed.wait(CONNECT_TIMEOUT_S):
            raise SimulatorUnreachable(
                f"phantom: the simulator at {self._server} did not welcome rank {self.rank}"
            )
        refusal = self._extension.abort_error()
        if refusal is not None:
            raise RuntimeError(refusal)

    def _read(self, replies: Any) -> None:
        import grpc

        try:
            for reply in replies:
                self._extension.on_message(reply.records)
                self._welcomed.set()
        except grpc.RpcError as error:
            if not self._closing or error.code() is not grpc.StatusCode.CANCELLED:
                details = error.details() or error.code().name
                self._abort(f"the simulator at {self._server} went away ({details})")
        except RuntimeError as error:  # a record that breaks the schema
            self._abort(f"the simulator at {self._server} cannot be understood: {error}")
            replies.cancel()
        else:
            if not self._closing:
                self._abort(f"the simulator at {self._server} ended the session of rank {self.rank}")
        finally:
            self._ended.set()
            self._welcomed.set()

    def _abort(self, reason: str) -> None:
        """Lets every thread that waits for the simulator raise: the same record as when it ends the job
        itself."""
        self._extension.abort(f"phantom: {reason}")

    def close(self) -> None:
        """Final synchronisation, statistics and BYE; a rank that failed only tells its statistics. Then the
        stream ends."""
        self._closing = True
        try:
            if _failed:
                self._extension.send_stats()
            else:
                self._extension.finish()
        except Exception as error:  # an ABORT: the job is over anyway, and says why
            sys.stderr.write(f"phantom: rank {self.rank} could not finish: {error}\n")
            sys.stderr.flush()
        self._extension.session_close()
        self._ended.wait(END_TIMEOUT_S)
        self._channel.close()

    def forget(self) -> None:
        """In a forked child: keeps the parent's channel alive but unused."""
        _forgotten.append((self._channel, self._reader))


def prepare(extension: Extension, *, when_open: Callable[[Environment], None]) -> None:
    """Notes the loaded extension and what to call once the session is open; no session yet."""
    global _extension, _when_open
    _extension, _when_open = extension, when_open


def is_open() -> bool:
    """Whether this process is a rank now."""
    return _session is not None


def first_use() -> None:
    """The device is used for the first time in this process: opens the session where it has RANK."""
    if _session is not None or _failed:
        return
    here = environment.read()
    if here.may_become_rank and here.server:
        assert here.rank is not None
        _open(here, here.rank, here.world_size or 1)


def open_for_process_group(*, rank: int | None, world_size: int | None) -> None:
    """init_process_group is called: opens the session with the rank it was given, else RANK's.

    Raises RuntimeError where no rank is known, or where the given one contradicts an open session.
    """
    here = environment.read()
    if here.child_of_rank or not here.server:
        return
    chosen = rank if rank is not None and rank >= 0 else here.rank
    if chosen is None:
        return  # torch itself says what is missing
    if _session is not None:
        if _session.rank != chosen:
            raise RuntimeError(
                f"phantom: init_process_group(rank={chosen}) in a process that runs as rank {_session.rank} "
                f"already (RANK={here.rank}). A script that starts its own processes wants "
                f"`phantom run --launch node`."
            )
        return
    given_size = world_size if world_size is not None and world_size > 0 else here.world_size
    if here.may_become_rank and (chosen != here.rank and given_size != here.world_size):
        raise RuntimeError(
            f"phantom: init_process_group(rank={chosen}, world_size={given_size}) in a process that was "
            f"started as rank {here.rank} of {here.world_size}. A script that starts its own processes wants "
            f"`phantom run --launch node`."
        )
    _open(here, chosen, given_size or 1)


def _open(here: Environment, rank: int, world_size: int) -> None:
    global _session, _failed
    with _lock:
        if _session is not None:
            return
        assert _extension is not None
        session = Session(_extension, here, rank, world_size)
        try:
            session.open()
        except BaseException:
            _failed = True
            raise
        _session = session
        os.environ[environment.RANK_PID] = str(os.getpid())
        if _when_open is not None:
            _when_open(here)
        _watch_failures()
        atexit.register(close)
        if here.state is not None:
            Path(here.state, f"done-{rank}").unlink(missing_ok=True)  # of an earlier launch
            Path(here.state, f"rank-{rank}").write_text(str(os.getpid()))


def _watch_failures() -> None:
    """A rank that ends by an exception must not wait for collectives that its peers may never post."""
    previous = sys.excepthook

    def note_failure(*args: Any) -> None:
        mark_failed()
        previous(*args)

    sys.excepthook = note_failure
    plain_exit = sys.exit

    def noted_exit(status: Any = None, /) -> NoReturn:
        if not is_failure(status):
            plain_exit(status)
        raise _FailedExit(status)

    sys.exit = noted_exit  # type: ignore[assignment]


def is_failure(status: Any) -> bool:
    """Whether a process that ends by sys.exit(status) has failed.

    The system keeps the last 8 bits of a number; a text is printed and means 1.
    """
    return bool(status & 0xFF) if isinstance(status, int) else status is not None


class _FailedExit(SystemExit):
    """sys.exit with a status that means failure. Scripts may catch it; it is one once it ends the process.

    The interpreter then reads `code` from C, with no Python frame around it, and only after that runs exit
    handlers (CPython's handle_system_exit).
    """

    def __init__(self, status: Any) -> None:
        super().__init__(status)
        self._status = status

    @property
    def code(self) -> Any:  # type: ignore[override]
        """The status, as in SystemExit."""
        if sys._getframe(0).f_back is None:
            mark_failed()
        return self._status


def mark_failed() -> None:
    """The rank is ending by an error: close() leaves out the final synchronisation."""
    global _failed
    _failed = True


def close() -> None:
    """Ends the session of this process, if it has one. Safe to call twice."""
    global _session
    with _lock:
        session, _session = _session, None
    if session is not None:
        session.close()


def wait_for_others(timeout_s: float = OTHERS_TIMEOUT_S) -> None:
    """Rank 0 usually holds the store of the job: it stays until all other ranks have ended their sessions
    too."""
    here = environment.read()
    if here.state is None or here.rank is None or here.world_size is None:
        return
    Path(here.state, f"done-{here.rank}").touch()
    deadline_s = time.monotonic() + timeout_s
    while here.rank == 0 and time.monotonic() < deadline_s:
        if sum(1 for _ in Path(here.state).glob("done-*")) >= here.world_size:
            return
        time.sleep(0.02)


def drop_after_fork() -> bool:
    """In a forked child: forgets the parent's session without a word to the simulator; returns whether there
    was one."""
    global _session, _lock
    _lock = threading.RLock()
    session, _session = _session, None
    if session is None:
        return False
    session.forget()
    atexit.unregister(close)
    return True
