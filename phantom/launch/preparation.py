"""Makes ready the interpreter that a command will run under."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from phantom.launch import interpreter as interpreters
from phantom.launch.command import RANK, Command
from phantom.launch.errors import UsageError


def prepare_interpreter(command: Command, *, say: Callable[[str], None], verbose: bool = False) -> bool:
    """Checks the job's interpreter; returns whether ranks can be forks of a process of phantom's own.

    `say` is told of slow work and of interpreters that cannot be simulated. Raises UsageError where the
    command's own cannot.
    """
    if command.python is not None:
        found = interpreters.prepare(command.python, say=say)
        runnable = command.script is not None or command.module is not None
        return found.is_own and command.launch == RANK and runnable
    # A shell script or mpirun: the interpreter shows only later. Prepare those that it will most likely be.
    candidates = [text for text in command.argv if os.path.basename(text).startswith("python")]
    prepared = False
    for name in (*candidates, "python", "python3"):
        program = shutil.which(name)
        if program is None:
            continue
        try:
            interpreters.prepare(program, say=say)
            prepared = True
        except UsageError as error:
            if name in candidates:
                raise
            if verbose:
                say(str(error))
    if not prepared:
        say("no python on PATH can be simulated; if the command uses another one, start it once by "
            "`phantom doctor --python PATH`")  # fmt: skip
    return False
