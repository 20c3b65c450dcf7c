"""The pages of docs/commands are those of the click commands, and documented command lines are accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from phantom.cli import reference
from phantom.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "commands"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_option_tables_are_up_to_date() -> None:
    stale = [
        path.name
        for path, text in reference.pages(FOLDER).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: python -m phantom.cli.reference docs/commands"


def test_every_command_has_a_page_with_an_example_and_no_page_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*COMMANDS, "README"}
    for name in COMMANDS:
        by_hand = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition(reference.BEGIN)[0]
        assert re.search(rf"^    phantom {name}\b", by_hand, re.M), f"docs/commands/{name}.md has no example"


def test_every_option_says_what_it_means() -> None:
    def leaves(command: click.Command) -> Iterator[click.Command]:
        children = command.commands.values() if isinstance(command, click.Group) else ()
        yield from (leaf for child in children for leaf in leaves(child))
        if not children:
            yield command

    for name, command in reference.commands():
        for leaf in leaves(command):
            for option in leaf.params:
                if isinstance(option, click.Option):
                    assert option.help, f"phantom {name}: {option.opts[0]} has no help"


def documented() -> list[tuple[str, str]]:
    """Every command line in an indented block of the docs: page, line."""
    found = []
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            match = re.match(r"    (?:\$ )?(phantom [a-z].*)", line)
            if match and "[" not in line and "(" not in line and "..." not in line:
                found.append((str(page.relative_to(ROOT)), re.split(r" {2,}|\s[|#]\s", match[1])[0]))
    return found


@pytest.mark.parametrize(("page", "line"), documented())
def test_documented_command_lines_have_only_options_that_exist(page: str, line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    context = click.Context(cli, info_name="phantom")
    command = cli.get_command(context, name)
    assert command is not None, f"{page}: {line}"
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    # Parsed only: neither are files looked for, nor is the command called.
    settings = {**command.context_settings, "ignore_unknown_options": False}
    command.make_parser(click.Context(command, info_name=name, **settings)).parse_args(arguments)


def test_a_page_without_its_marks_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "run.md").write_text("# phantom run\n")
    name, command = next(reference.commands())
    with pytest.raises(reference.PageError, match="marks around the generated part"):
        reference.page(tmp_path / f"{name}.md", name, command)


def test_a_new_command_gets_a_page_and_values_are_told(tmp_path: Path) -> None:
    name, command = next(reference.commands())
    text = reference.page(tmp_path / "run.md", name, command)
    assert "| `-N`, `--nodes` | whole number | `1` | Simulated nodes. |" in text
    assert "| `--cpu-time` | `model` `measured` `none` | `model` |" in text
