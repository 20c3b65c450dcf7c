"""The `phantom` command. Sub-commands are imported when they are used, so that `phantom run` starts fast."""

from __future__ import annotations

import difflib
import importlib
import os
import sys

import click

from netsim.outside import printable
from phantom.launch.errors import PhantomError

COMMANDS = {
    "run": ("phantom.cli.run", "Simulate a training command."),
    "serve": ("phantom.cli.serve", "The simulator alone, for containers and several hosts."),
    "node": ("phantom.cli.node", "One simulated node of a run elsewhere."),
    "compose": ("phantom.cli.compose", "Write a docker-compose file: a container per simulated server."),
    "report": ("phantom.cli.report", "Show a finished run again."),
    "export": ("phantom.cli.export", "A recorded run in the formats of other tools."),
    "compare": ("phantom.cli.compare", "Virtual against measured step times."),
    "record": ("phantom.cli.record", "Step times of a real run, to compare with."),
    "kernels": ("phantom.cli.kernels", "The kernel store."),
    "cluster": ("phantom.cli.cluster", "Cluster descriptions."),
    "doctor": ("phantom.cli.doctor", "What works on this machine, what does not, and the remedy."),
}
"""Name, module that has a click command of that name, and what it is for."""


DEPENDENCIES = ("torch", "numpy", "grpc", "google", "msgpack", "msgspec", "rich", "ninja", "yaml", "tomli")
"""Packages that phantom itself imports, as in pyproject.toml."""


class LazyGroup(click.Group):
    """Imports a sub-command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word. Raises UsageError with the nearest name for a mistyped one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
            ctx.fail(f"no command {printable(args[0])!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="phantom-sim", prog_name="phantom")
def cli() -> None:
    """Runs an unmodified distributed training job on GPUs that are not there."""


def main() -> None:
    """Entry point; docs/running.md lists the exit statuses."""
    try:
        os.getcwd()
    except OSError as error:
        click.echo(
            f"phantom: the working folder cannot be used: {error.strerror}; change to another", err=True
        )
        sys.exit(2)
    # Names of files need not be UTF-8: they come out as the bytes that they are.
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except PhantomError as error:
        click.echo(f"phantom: {printable(str(error))}", err=True)
        sys.exit(error.status)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in DEPENDENCIES:
            raise
        click.echo(
            f"phantom: the package {package} is missing: {sys.executable} -m pip install {package}", err=True
        )
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
