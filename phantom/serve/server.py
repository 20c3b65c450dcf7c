"""The gRPC server: one job at a time, one stream per rank. Every call presents a token (auth.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import grpc
import msgpack
import msgspec

from netsim.cluster import ClusterSpec, load_cluster
from netsim.errors import NetsimError
from phantom.engine import EngineOptions
from phantom.results.run_summary import plain, to_json
from phantom.serve.auth import Gate, Keys
from phantom.serve.config import cluster_digest, kernel_gpu, rank_config
from phantom.serve.job import Job
from phantom.serve.recorder import FILE
from phantom.serve.recordings import Recordings
from phantom.wire import simulator_pb2 as protobuf
from phantom.wire import simulator_pb2_grpc as service
from phantom.wire import token as tokens
from phantom.wire.limits import MAX_MESSAGE_BYTES
from phantom.wire.messages import (
    Aborted,
    CloseJob,
    JobOpened,
    Message,
    OpenJob,
    Progress,
    RankExited,
    Recording,
    parse,
    text_of,
)

if TYPE_CHECKING:
    from phantom.kernels import CostModel

# Each session holds one thread while it lasts (the pool makes them as needed), kernel costs a few more.
_THREADS = 4096
_WATCH_S = 0.25
KERNELS_FILE = "kernels.jsonl"
"""In a run's folder: one kernel per line, for `phantom kernels measure`."""

KEPT_FILES = (FILE, KERNELS_FILE)
"""What a run elsewhere may fetch."""

_M = TypeVar("_M", bound=Message)
_Opening = OpenJob  # whose name a method of the service has too
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a silent second listener
]


class Server:
    """The simulator behind `phantom serve`.

    `cluster`: a ClusterSpec, or what `load_cluster` takes. `listen`: host:port, port 0 for any free one.
    `kernels` and `store`: where kernel costs come from (phantom.kernels.CostModel). `engine`: the engine's
    switches. `token`: what those who open a job must present; a new one if None (`server.token`). `folder`:
    the run's folder where this is the simulator of one run; without it, jobs fetch their files. Raises
    netsim.errors.ClusterError for a bad cluster and phantom.kernels.UnknownGpuError for a GPU that nobody can
    price.
    """

    def __init__(
        self,
        cluster: ClusterSpec | str,
        *,
        listen: str = "127.0.0.1:0",
        kernels: str = "auto",
        store: str | None = None,
        seed: int = 0,
        lookahead: bool = True,
        engine: EngineOptions | None = None,
        cost_model: CostModel | None = None,
        token: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.token = token or tokens.new()
        self.cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
        self._listen = listen
        self._servicer = _Servicer(
            self.cluster,
            seed=seed,
            options=replace(engine or EngineOptions(), lookahead=lookahead),
            costs=cost_model or _cost_model(self.cluster, kernels, store),
            keys=Keys(self.token),
            folder=folder,
        )
        self._server: grpc.Server | None = None
        self.address = ""

    def start(self) -> str:
        """Listens; returns host:port. Raises OSError if the address cannot be had."""
        host, separator, _ = self._listen.rpartition(":")
        if not separator:
            raise OSError(f"listen address {self._listen!r} is not HOST:PORT")
        server = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, "phantom-rpc"),
            options=_GRPC_OPTIONS,
            interceptors=(Gate(self._servicer.keys),),
        )
        service.add_SimulatorServicer_to_server(self._servicer, server)
        try:
            port = server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}: {error}") from None
        if port == 0:
            raise OSError(f"cannot listen on {self._listen}: address in use or not ours")
        server.start()
        self._server = server
        self.address = f"{host}:{port}"
        return self.address

    def wait(self) -> None:
        """Blocks until the server is stopped."""
        if self._server is not None:
            self._server.wait_for_termination()

    def stop(self, grace_s: float = 1.0) -> None:
        """Ends the job, if any, and the server."""
        self._servicer.shutdown()
        if self._server is not None:
            self._server.stop(grace_s).wait(grace_s + 1.0)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _cost_model(cluster: ClusterSpec, kernels: str, store: str | None) -> CostModel:
    from phantom.kernels import CostModel

    return CostModel(kernel_gpu(cluster), store=store, mode=kernels)


def _reply(message: Message) -> protobuf.JsonMessage:
    return protobuf.JsonMessage(json=text_of(message))


class _Servicer(service.SimulatorServicer):  # type: ignore[misc]
    def __init__(
        self,
        cluster: ClusterSpec,
        *,
        seed: int,
        options: EngineOptions,
        costs: CostModel,
        keys: Keys,
        folder: Path | None,
    ) -> None:
        self._cluster = cluster
        self._seed = seed
        self._options = options
        self._costs = costs
        self.keys = keys
        self._folder = folder
        self._recordings = Recordings()
        self._job: Job | None = None
        self._opening = False
        self._lock = threading.Lock()

    # The life of a job

    def OpenJob(self, request: protobuf.JsonMessage, context: grpc.ServicerContext) -> protobuf.JsonMessage:
        wanted = _parse(OpenJob, request, context)
        with self._lock:
            if self._opening or (self._job is not None and self._job.is_live()):
                other = self._job.describe() if self._job is not None else "being opened"
                _refuse(
                    context,
                    "FAILED_PRECONDITION",
                    f"this simulator runs another job ({other}); wait for its end, or start another "
                    f"`phantom serve`",
                )
            self._opening = True
            previous, self._job = self._job, None
        # A large network takes a while to build: not under the lock, which the end of the server needs too.
        job = None
        try:
            if previous is not None and not previous.closed.is_set():
                previous.close(statuses={}, interrupted=True)
            job = self._make(wanted, tokens.new())
        except (ValueError, NetsimError) as error:
            _refuse(context, "INVALID_ARGUMENT", str(error))
        finally:
            with self._lock:
                self._opening = False
                self._job = job
        assert job is not None
        self._costs.begin_job(ranks_per_server=min(wanted.world_size, wanted.gpus_per_node))
        self.keys.admit(job.token)
        config = rank_config(self._cluster, world_size=wanted.world_size, gpus_per_node=wanted.gpus_per_node)
        return _reply(JobOpened(token=job.token, config=config, recording=self._folder is None))

    def _make(self, wanted: _Opening, token: str) -> Job:
        """Builds the job. Raises ValueError, NetsimError."""
        digest = wanted.cluster_digest
        if digest is not None and digest != cluster_digest(self._cluster):
            raise ValueError(
                f"this simulator serves cluster {self._cluster.name}, the run means another one or another "
                f"version of it ({wanted.cluster}); give both the same --cluster"
            )
        options = self._options
        if wanted.options.network_lookahead is not None:
            options = replace(options, lookahead=wanted.options.network_lookahead)
        seed = self._seed if wanted.options.seed is None else wanted.options.seed
        folder = self._folder or self._recordings.create(token)
        return Job(wanted, token=token, folder=folder, cluster=self._cluster, seed=seed, options=options)

    def CloseJob(self, request: protobuf.JsonMessage, context: grpc.ServicerContext) -> protobuf.JsonMessage:
        message = _parse(CloseJob, request, context)
        job = self._current(context)
        summary = job.close(statuses=message.statuses, interrupted=message.interrupted)
        summary = summary.warned(*self._save_kernels(job), *self._failures())
        with self._lock:
            if self._job is job:
                self._job = None
        return protobuf.JsonMessage(json=to_json(summary))

    def Recording(
        self, request: protobuf.JsonMessage, context: grpc.ServicerContext
    ) -> Iterator[protobuf.Chunk]:
        name = _parse(Recording, request, context).file
        if name not in KEPT_FILES:
            _refuse(context, "INVALID_ARGUMENT", f"the simulator keeps no file {name[:40]!r} of a job")
        try:
            for content in self._recordings.read(_token(context), name):
                yield protobuf.Chunk(content=content)
        except KeyError:
            _refuse(context, "NOT_FOUND", "there is no record of this job here (any more)")

    def _failures(self) -> list[str]:
        """Warnings of kernels that could not be measured, or whose arguments nobody expected."""
        failures = self._costs.failures
        if not failures:
            return []
        key, reason = next(iter(sorted(failures.items())))
        return [
            f"{len(failures)} kernel{'s' if len(failures) > 1 else ''} could not be measured or priced "
            f"as intended, such as {key}: {reason}"
        ]

    def _save_kernels(self, job: Job) -> list[str]:
        """Writes what the job's kernels are, so that they can be measured elsewhere. Returns warnings."""
        try:
            self._costs.save_requests(job.folder / KERNELS_FILE)
        except OSError as error:
            return [f"cannot write {job.folder / KERNELS_FILE}: {error.strerror}"]
        return []

    def RankExited(
        self, request: protobuf.JsonMessage, context: grpc.ServicerContext
    ) -> protobuf.JsonMessage:
        message = _parse(RankExited, request, context)
        self._current(context).exited(message.rank, message.status)
        return protobuf.JsonMessage(json="{}")

    def Watch(
        self, request: protobuf.JsonMessage, context: grpc.ServicerContext
    ) -> Iterator[protobuf.JsonMessage]:
        job = self._current(context)
        with job.watched():
            yield from _watch(job, context)

    # Ranks

    def Session(
        self, request_iterator: Iterator[protobuf.RankBatch], context: grpc.ServicerContext
    ) -> Iterator[protobuf.EngineBatch]:
        job = self._current(context)
        try:
            first = next(request_iterator)
        except StopIteration:
            return
        rank = first.rank
        try:
            outgoing = job.attach(rank)
        except ValueError as error:
            _refuse(context, "INVALID_ARGUMENT", str(error))
        except RuntimeError as error:
            _refuse(context, "ALREADY_EXISTS", str(error))

        def read() -> None:
            reason = "its session ended without a goodbye"
            try:
                job.feed(rank, first.records, first.acked)
                for batch in request_iterator:
                    if batch.rank != rank:
                        reason = f"its session sent a batch of rank {batch.rank}"
                        break
                    job.feed(rank, batch.records, batch.acked)
            except Exception as error:  # gRPC raises its own untyped error when a stream breaks
                reason = f"its session broke ({str(error) or 'its process is gone'})"
            job.detach(rank, reason)

        threading.Thread(target=read, name=f"phantom-rank-{rank}", daemon=True).start()
        while True:
            batch = outgoing.get()
            if batch is None:
                return
            yield protobuf.EngineBatch(records=batch)

    def Cost(self, request: protobuf.KernelBatch, context: grpc.ServicerContext) -> protobuf.CostBatch:
        try:
            costs = self._costs.cost_batch(request.kernels)
            factor = self._cluster.degrade.gpus.get(request.rank)
            return protobuf.CostBatch(costs=costs if factor is None else _slower(costs, factor))
        except ValueError as error:
            _refuse(context, "INVALID_ARGUMENT", f"cannot read the kernels: {error}")

    # Inside

    def _current(self, context: grpc.ServicerContext) -> Job:
        """The job whose token the call presents."""
        job = self._job
        if job is None or not tokens.same(_token(context), job.token):
            _refuse(
                context,
                "FAILED_PRECONDITION",
                "the job of this call is over, or was never open here; start it with `phantom run`",
            )
        return job

    def shutdown(self) -> None:
        """Ends the job, if any."""
        with self._lock:
            job, self._job = self._job, None
        if job is not None and not job.closed.is_set():
            job.close(statuses={}, interrupted=True)
        self._recordings.close()


def _watch(job: Job, context: grpc.ServicerContext) -> Iterator[protobuf.JsonMessage]:
    """What is told of a job until it is closed: its progress, and once why it was ended."""
    told, shown = False, 0
    while context.is_active():
        over = job.closed.is_set()
        failure = job.failure() if job.aborted.is_set() else None
        progress = job.progress
        if failure is not None and not told:
            told = True
            if failure.kind != "shutdown":
                abort = Aborted(kind=failure.kind, message=failure.message)
                yield _reply(msgspec.structs.replace(progress or Progress(), abort=abort))
        if over:
            return
        if progress is not None:
            partial = job.partial
            if partial is not None and partial.number > shown:
                shown = partial.number
                progress = msgspec.structs.replace(progress, summary=plain(partial.summary))
            yield _reply(progress)
        (job.closed if told else job.aborted).wait(_WATCH_S)


def _token(context: grpc.ServicerContext) -> str:
    return tokens.presented(context.invocation_metadata())


def _refuse(context: grpc.ServicerContext, code: str, text: str) -> NoReturn:
    """Ends the call with an error."""
    context.abort(grpc.StatusCode[code], text)
    raise AssertionError("abort raises")


def _slower(costs: bytes, factor: float) -> bytes:
    """Costs of a GPU that runs at `factor` times its speed ([degrade] gpus)."""
    rows = msgpack.unpackb(costs)
    packed: bytes = msgpack.packb([[round(duration_ps / factor), *rest] for duration_ps, *rest in rows])
    return packed


def _parse(kind: type[_M], request: protobuf.JsonMessage, context: grpc.ServicerContext) -> _M:
    try:
        return parse(kind, request.json)
    except ValueError as error:
        _refuse(context, "INVALID_ARGUMENT", str(error))
