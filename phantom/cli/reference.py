"""Writes the option tables of docs/commands from the click commands.

    python -m phantom.cli.reference docs/commands

A page is written by hand but for the part between BEGIN and END, which this command replaces; a command
without a page gets one. `--check` changes nothing and exits 1 where a page is missing or not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from phantom.cli.main import COMMANDS, cli

BEGIN = "<!-- made by `python -m phantom.cli.reference docs/commands`; do not edit up to the end mark -->"
END = "<!-- end mark -->"
INDEX = "README.md"


class PageError(click.ClickException):
    """A page that cannot be brought up to date: exit status 2."""

    exit_code = 2


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every top-level command with its name, in the order of `phantom --help`."""
    context = click.Context(cli, info_name="phantom")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None, name
        yield name, command


def generated(name: str, command: click.Command) -> str:
    """The part of the command's page that comes from its click command, with the marks around it."""
    blocks = [
        block for full_name, each in _leaves(f"phantom {name}", command) for block in _block(full_name, each)
    ]
    return "\n\n".join([BEGIN, *blocks, END])


def _leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _leaves(f"{name} {child.name}", child)
    else:
        yield name, command


def _block(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"## {name}"
    yield f"    {usage}"
    yield " ".join((command.help or "").split())
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        lines = ["| option | value | default | meaning |", "|---|---|---|---|"]
        yield "\n".join(lines + [_row(option) for option in options])


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
    meaning = " ".join((option.help or "").split())
    if option.multiple and "repeatable" not in meaning:
        meaning += " (repeatable)"
    return f"| {names} | {_cell(_value(option))} | {_cell(_default(option))} | {_cell(meaning)} |"


def _value(option: click.Option) -> str:
    """What is given after the option: its metavar, its choices, or its type and range."""
    if option.is_flag:
        return "-"
    kind = option.type
    if option.metavar:
        return f"`{option.metavar}`"
    if isinstance(kind, click.Choice):
        return " ".join(f"`{choice}`" for choice in kind.choices)
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        number = "whole number" if isinstance(kind, click.IntRange) else "number"
        bounds = [f"from {kind.min}"] if kind.min is not None else []
        bounds += [f"to {kind.max}"] if kind.max is not None else []
        return " ".join([number, *bounds])
    if isinstance(kind, click.Path):
        return "folder" if not kind.file_okay else "file" if not kind.dir_okay else "path"
    return {"integer": "whole number", "float": "number"}.get(kind.name, kind.name)


def _default(option: click.Option) -> str:
    if option.required:
        return "must be given"
    if isinstance(option.show_default, str):
        return option.show_default
    if option.is_flag:
        return "off"
    default = option.to_info_dict()["default"]
    return "not set" if default in (None, "", ()) else f"`{default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(path: Path, name: str, command: click.Command) -> str:
    """The command's page as it should be: what `path` says now, with the generated part replaced."""
    made = generated(name, command)
    if not path.exists():
        return f"# phantom {name}\n\n{COMMANDS[name][1]}\n\n{made}\n"
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PageError(f"{path}: the marks around the generated part are gone: put back {BEGIN} and {END}")
    return before + made + after


def index() -> str:
    """docs/commands/README.md."""
    rows = [f"| [phantom {name}]({name}.md) | {COMMANDS[name][1]} |" for name, _ in commands()]
    return "\n".join(
        [
            "# Commands",
            "",
            "One page per command: every option with its value, default and meaning, and examples. Sizes are",
            "bytes and times seconds unless a name says otherwise. Exit statuses are in",
            "[running.md](../running.md#ends).",
            "",
            "| command | what it does |",
            "|---|---|",
            *rows,
            "",
            f"{BEGIN} (the whole page)",
            "",
        ]
    )


def pages(folder: Path) -> dict[Path, str]:
    """Every page of the folder as it should be."""
    wanted = {
        folder / f"{name}.md": page(folder / f"{name}.md", name, command) for name, command in commands()
    }
    return {**wanted, folder / INDEX: index()}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--check", is_flag=True, help="Change nothing; exit 1 where a page is not up to date.")
def main(folder: Path, check: bool) -> None:
    """Brings the option tables of the pages in FOLDER up to date."""
    folder.mkdir(parents=True, exist_ok=True)
    stale = [
        path
        for path, text in pages(folder).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        click.echo(str(path))
        if not check:
            path.write_text(pages(folder)[path], encoding="utf-8")
    if check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
