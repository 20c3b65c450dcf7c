"""The gRPC server: one job at a time, one stream per rank."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import msgpack

from netsim.cluster import ClusterSpec, load_cluster
from netsim.errors import NetsimError
from phantom.engine import EngineOptions
from phantom.results.run_summary import plain
from phantom.serve.config import cluster_digest, kernel_gpu, rank_config
from phantom.serve.job import Job, JobRequest
from phantom.serve.recorder import FILE
from phantom.serve.recordings import Recordings
from phantom.wire import simulator_pb2 as messages
from phantom.wire import simulator_pb2_grpc as service
from phantom.wire.records import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from phantom.kernels import CostModel

# Each session holds one thread while it lasts (the pool makes them as needed), kernel costs a few more.
_THREADS = 4096
_WATCH_S = 0.25
KERNELS_FILE = "kernels.jsonl"
"""In a run's folder: one kernel per line, for `phantom kernels measure`."""
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a silent second listener
]


class Server:
    """The simulator behind `phantom serve`.

    `cluster`: a ClusterSpec, or what `load_cluster` takes. `listen`: host:port, port 0 for any free one.
    `kernels` and `store`: where kernel costs come from (phantom.kernels.CostModel). `engine`: the engine's
    switches. Raises netsim.errors.ClusterError for a bad cluster and phantom.kernels.UnknownGpuError for a
    GPU nobody can price.
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
    ) -> None:
        self.cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
        self._listen = listen
        self._servicer = _Servicer(
            self.cluster,
            seed=seed,
            options=replace(engine or EngineOptions(), lookahead=lookahead),
            costs=cost_model or _cost_model(self.cluster, kernels, store),
        )
        self._server: grpc.Server | None = None
        self.address = ""

    def start(self) -> str:
        """Listens; returns host:port. Raises OSError if the address cannot be had."""
        host, separator, _ = self._listen.rpartition(":")
        if not separator:
            raise OSError(f"listen address {self._listen!r} is not HOST:PORT")
        server = grpc.server(futures.ThreadPoolExecutor(_THREADS, "phantom-rpc"), options=_GRPC_OPTIONS)
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


def _reply(content: dict[str, Any]) -> messages.JsonMessage:
    return messages.JsonMessage(json=json.dumps(content))


class _Servicer(service.SimulatorServicer):  # type: ignore[misc]
    def __init__(self, cluster: ClusterSpec, *, seed: int, options: EngineOptions, costs: CostModel) -> None:
        self._cluster = cluster
        self._seed = seed
        self._options = options
        self._costs = costs
        self._recordings = Recordings()
        self._job: Job | None = None
        self._lock = threading.Lock()

    # The life of a job

    def OpenJob(self, request: messages.JsonMessage, context: grpc.ServicerContext) -> messages.JsonMessage:
        message = _parse(request, context)
        with self._lock:
            if self._job is not None and not self._job.abandoned():
                _refuse(context, "FAILED_PRECONDITION", "this simulator is busy with another job")
            try:
                wanted = JobRequest.parse(message)
                key = self._check(wanted, message)
                if key is not None:
                    assert wanted.spool is not None
                    wanted = replace(wanted, spool=(self._recordings.folder(key), wanted.spool[1]))
                options = self._options
                if wanted.options.get("network_lookahead") is not None:
                    options = replace(options, lookahead=bool(wanted.options["network_lookahead"]))
                seed = wanted.options.get("seed")
                job = Job(
                    wanted,
                    cluster=self._cluster,
                    seed=self._seed if seed is None else int(seed),
                    options=options,
                )
            except (ValueError, NetsimError) as error:
                _refuse(context, "INVALID_ARGUMENT", str(error))
            self._end_job()
            self._costs.begin_job(ranks_per_server=min(wanted.world_size, wanted.gpus_per_node))
            self._job = job
        config = rank_config(self._cluster, world_size=wanted.world_size, gpus_per_node=wanted.gpus_per_node)
        return _reply(config if key is None else {**config, "recording": key})

    def CloseJob(self, request: messages.JsonMessage, context: grpc.ServicerContext) -> messages.JsonMessage:
        message = _parse(request, context)
        job = self._current(context)
        statuses = {str(rank): int(status) for rank, status in (message.get("statuses") or {}).items()}
        summary = job.close(statuses=statuses, interrupted=bool(message.get("interrupted")))
        summary = summary.warned(*self._save_kernels(job), *self._failures())
        with self._lock:
            if self._job is job:
                self._job = None
        return _reply(plain(summary))

    def Recording(
        self, request: messages.JsonMessage, context: grpc.ServicerContext
    ) -> Iterator[messages.Chunk]:
        key = str(_parse(request, context).get("recording"))
        try:
            for content in self._recordings.read(key, FILE):
                yield messages.Chunk(content=content)
        except KeyError:
            _refuse(context, "NOT_FOUND", f"there is no record {key} of collectives here (any more)")

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
        """Writes what the job's kernels are, so that they can be measured elsewhere; on another host than the
        run's folder there is nowhere to write to. Returns warnings."""
        folder = job.request.out
        if folder is None or not folder.is_dir():
            return []
        try:
            self._costs.save_requests(folder / KERNELS_FILE)
        except OSError as error:
            return [f"cannot write {folder / KERNELS_FILE}: {error.strerror}"]
        return []

    def RankExited(
        self, request: messages.JsonMessage, context: grpc.ServicerContext
    ) -> messages.JsonMessage:
        message = _parse(request, context)
        try:
            rank, status = int(message["rank"]), int(message["status"])
        except (KeyError, TypeError, ValueError):
            _refuse(context, "INVALID_ARGUMENT", "RankExited wants rank and status")
        self._current(context).exited(rank, status)
        return _reply({})

    def Watch(
        self, request: messages.JsonMessage, context: grpc.ServicerContext
    ) -> Iterator[messages.JsonMessage]:
        job = self._current(context)
        told = False
        while context.is_active():
            over = job.closed.is_set()
            failure = job.failure() if job.aborted.is_set() else None
            if failure is not None and not told:
                told = True
                if failure.kind != "shutdown":
                    yield _reply({"abort": {"kind": failure.kind, "message": failure.message}})
            if over:
                return
            if job.progress:
                yield _reply(job.progress)
            (job.closed if told else job.aborted).wait(_WATCH_S)

    # Ranks

    def Session(
        self, request_iterator: Iterator[messages.RankBatch], context: grpc.ServicerContext
    ) -> Iterator[messages.EngineBatch]:
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
            yield messages.EngineBatch(records=batch)

    def Cost(self, request: messages.KernelBatch, context: grpc.ServicerContext) -> messages.CostBatch:
        try:
            costs = self._costs.cost_batch(request.kernels)
            factor = self._cluster.degrade.gpus.get(request.rank)
            return messages.CostBatch(costs=costs if factor is None else _slower(costs, factor))
        except ValueError as error:
            _refuse(context, "INVALID_ARGUMENT", f"cannot read the kernels: {error}")

    # Inside

    def _check(self, wanted: JobRequest, message: dict[str, Any]) -> str | None:
        """Raises ValueError for a job that means another cluster; gives the key of a record to be fetched."""
        digest = message.get("cluster_digest")
        if digest is not None and digest != cluster_digest(self._cluster):
            raise ValueError(
                f"this simulator serves cluster {self._cluster.name}, the run means another one or another "
                f"version of it ({message.get('cluster')}); give both the same --cluster"
            )
        return self._recordings.create() if wanted.spool is not None and wanted.spool[0] is None else None

    def _current(self, context: grpc.ServicerContext) -> Job:
        job = self._job
        if job is None:
            _refuse(
                context,
                "FAILED_PRECONDITION",
                "no job is open on this simulator; start it with `phantom run`",
            )
        return job

    def _end_job(self) -> None:
        if self._job is not None and not self._job.closed.is_set():
            self._job.close(statuses={}, interrupted=True)
        self._job = None

    def shutdown(self) -> None:
        with self._lock:
            self._end_job()
        self._recordings.close()


def _refuse(context: grpc.ServicerContext, code: str, text: str) -> NoReturn:
    """Ends the call with an error."""
    context.abort(grpc.StatusCode[code], text)
    raise AssertionError("abort raises")


def _slower(costs: bytes, factor: float) -> bytes:
    """Costs of a GPU that runs at `factor` times its speed ([degrade] gpus)."""
    rows = msgpack.unpackb(costs)
    packed: bytes = msgpack.packb([[round(duration_ps / factor), *rest] for duration_ps, *rest in rows])
    return packed


def _parse(request: messages.JsonMessage, context: grpc.ServicerContext) -> dict[str, Any]:
    try:
        message = json.loads(request.json)
        if not isinstance(message, dict):
            raise ValueError("not a map")
    except ValueError as error:
        _refuse(context, "INVALID_ARGUMENT", f"malformed message: {error}")
    return message
