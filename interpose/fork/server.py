"""Starts the processes of a job for `phantom run`, each as a fork of this one: `serve(FD)`.

With `preload` the parent has imported torch and attached the virtual device, and a rank runs its script in
the fork: 20 to 35 MB of private memory instead of 210 MB, and no import of 2-3 s. Without it a fork executes
its command. Either way no channel, thread or stream exists before the fork, and every process dies with this
one (PR_SET_PDEATHSIG), which dies with `phantom run`.

FD is a socket that carries JSON lines. Received: {"do": "preload", "modules": [...]}, {"do": "environment",
"variables"}, {"do": "start", "processes": [...]}, {"do": "signal", "signal": n}. Sent: {"event": "ready"},
{"event": "started", "name", "pid"}, {"event": "ended", "name", "status"} (negative: killed by that signal),
{"event": "failed", "reason"}.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

PR_SET_PDEATHSIG = 1
DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


@dataclass(frozen=True)
class Process:
    """One process to start. `script` and `module` run in the fork, `argv` is executed."""

    name: str
    log: str
    env: dict[str, str]
    cwd: str
    args: list[str] = field(default_factory=list)
    script: str | None = None
    module: str | None = None


class Control:
    """The socket to `phantom run`: JSON lines both ways."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def send(self, **message: Any) -> None:
        """Sends one message; silent where the other side has gone (it ends us anyway)."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self) -> dict[str, Any] | None:
        """Waits for one message; None at the end of the connection."""
        while b"\n" not in self._buffer:
            chunk = self.connection.recv(1 << 20)
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return dict(json.loads(line))

    @property
    def pending(self) -> bool:
        """Whether a message has been received but not handed out."""
        return b"\n" in self._buffer


def die_with_parent(expected_parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != expected_parent:
            os._exit(1)


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _preload(control: Control, modules: list[str]) -> None:
    """Imports torch with the virtual device; waits for the job's environment at the moment that it is
    needed."""
    from interpose.fork import memory
    from interpose.startup import import_hook

    def receive_environment() -> None:
        message = control.receive()
        if message is None or message.get("do") != "environment":
            raise SystemExit(0)  # phantom run gave up meanwhile
        os.environ.update(message["variables"])

    memory.register()
    import_hook.install(before=receive_environment)
    importlib.import_module("torch")
    for name in modules:
        importlib.import_module(name)


def _become(process: Process, control: Control, parent: int) -> None:
    """In the fork: everything that a fresh process would have."""
    os.setsid()
    die_with_parent(parent)
    for number in DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    control.connection.close()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(process.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    os.chdir(process.cwd)
    os.environ.clear()
    os.environ.update(process.env)


def _execute(process: Process) -> None:
    try:
        os.execvpe(process.args[0], process.args, process.env)
    except OSError as error:
        sys.stderr.write(f"phantom: cannot run {process.args[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _refresh_process_state() -> None:
    """What must differ between ranks although they are forks: random states, the environment that was
    read."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python starts: a lost peer is a BrokenPipeError
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    from interpose import environment
    from interpose.startup import attach

    attach.enter_process(environment.read())
    attach.end_as_fork()


def _run(process: Process) -> None:
    """Runs the script or module as `python` would, in a `__main__` of its own."""
    import types

    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    if process.module is not None:
        import runpy

        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *process.args]
        sys.orig_argv = [sys.executable, "-m", process.module, *process.args]
        runpy._run_module_as_main(process.module)  # type: ignore[attr-defined]  # what `python -m` itself calls
        return
    assert process.script is not None
    sys.path.insert(0, os.path.dirname(os.path.realpath(process.script)))
    sys.argv = [process.script, *process.args]
    sys.orig_argv = [sys.executable, process.script, *process.args]
    from importlib.machinery import SourceFileLoader

    # Absolute, as Python has it: a script may leave its folder and read itself.
    path = os.path.abspath(process.script)
    main.__file__ = path
    main.__dict__["__cached__"] = None
    main.__annotations__ = {}
    main.__loader__ = SourceFileLoader("__main__", path)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _run_to_the_end(process: Process) -> None:
    """Runs the process and ends it as Python would: traceback and status 1 for an exception."""
    try:
        _refresh_process_state()
        _run(process)
    except SystemExit as exit_:
        from interpose.time import session

        if session.is_failure(exit_.code):
            session.mark_failed()
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(130) from None
        raise SystemExit(1) from None


class ForkServer:
    """Forks, reaps and signals. `run()` returns the process to become in a child, None in the parent at the
    end."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._names: dict[int, str] = {}

    def run(self) -> Process | None:
        """Serves until the connection ends; then kills what is left."""
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_read, False)
        os.set_blocking(wakeup_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control.connection, selectors.EVENT_READ)
            selector.register(wakeup_read, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if wakeup_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup_read, 4096)
                    self._reap()
                if self._control.connection.fileno() in ready or self._control.pending:
                    while True:
                        message = self._control.receive()
                        if message is None:
                            self._signal(signal.SIGKILL)
                            return None
                        process = self._handle(message)
                        if process is not None:
                            return process
                        if not self._control.pending:
                            break

    def _handle(self, message: dict[str, Any]) -> Process | None:
        if message["do"] == "start":
            from interpose.fork import memory

            memory.share()
            for values in message["processes"]:
                process = Process(**values)
                if self._fork(process):
                    return process
            self._reap()
        elif message["do"] == "signal":
            self._signal(int(message["signal"]))
        return None

    def _fork(self, process: Process) -> bool:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _become(process, self._control, parent)
                if process.script is None and process.module is None:
                    _execute(process)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            return True
        self._names[pid] = process.name
        self._control.send(event="started", name=process.name, pid=pid)
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._names.pop(pid, None)
            _signal_group(
                pid, signal.SIGKILL
            )  # what the process left behind: loader workers, launcher's children
            if name is not None:
                self._control.send(event="ended", name=name, status=os.waitstatus_to_exitcode(status))

    def _signal(self, number: int) -> None:
        for pid in list(self._names):
            _signal_group(pid, number)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def main(descriptor: int) -> Process | None:
    """The server's life; returns the process to run where this is a fork."""
    control = Control(socket.socket(fileno=descriptor))
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message = control.receive()
    if message is None:
        return None
    if message["do"] == "preload":
        try:
            _preload(control, message["modules"])
        except SystemExit:
            return None
        except BaseException as error:
            traceback.print_exc()
            control.send(event="failed", reason=f"{type(error).__name__}: {error}")
            return None
    threads = _threads()
    control.send(event="ready", threads=threads)
    return ForkServer(control).run()


def serve(descriptor: int, parent: int) -> None:
    """Entry point: serves on the socket `descriptor`, then ends; a fork that runs a script returns when that
    is done."""
    die_with_parent(parent)
    process = main(descriptor)
    if process is not None:
        _run_to_the_end(process)
    else:
        from interpose.startup import attach

        attach.end_as_fork()
