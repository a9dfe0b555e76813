"""The command's help and the README speak only of commands and options that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.cli.app import main

ROOT = Path(__file__).parents[2]


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group below ``group``, with the words that call it."""
    yield path, group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


TREE = dict(commands())
LEAVES = {path: command for path, command in TREE.items() if not isinstance(command, click.Group)}


def check_line(line: str) -> click.Command:
    """Find the command that a line calls; AssertionError when it or one of its options does not exist."""
    words = shlex.split(line, comments=True)
    assert words[0] == "trigpoint"
    path: tuple[str, ...] = ()
    rest = words[1:]
    while rest and (*path, rest[0]) in TREE:
        path, rest = (*path, rest[0]), rest[1:]
    assert path in LEAVES, f"no such command: {line}"
    options = {name for p in LEAVES[path].params for name in p.opts} | {"--help"}
    used = [word.partition("=")[0] for word in rest if word.startswith("-")]
    assert set(used) <= options, f"no such option: {line}"
    return LEAVES[path]


@pytest.mark.parametrize("path", TREE, ids=lambda p: " ".join(p) or "trigpoint")
def test_help_is_there(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="trigpoint")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: trigpoint")
    assert TREE[path].help


@pytest.mark.parametrize("path", LEAVES, ids=lambda p: " ".join(p))
def test_every_command_has_an_example_that_calls_it_and_answers_in_json(path: tuple[str, ...]) -> None:
    examples = re.findall(r"Example: (trigpoint .*)", LEAVES[path].help or "")
    assert examples
    for line in examples:
        assert check_line(line) is LEAVES[path]
    assert "--json" in {name for p in LEAVES[path].params for name in p.opts}


def readme_lines() -> list[str]:
    """Lines of code blocks that call the command, and calls in running text with at least one more word."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [*re.findall(r"^ {4}(trigpoint .*)$", text, re.MULTILINE), *re.findall(r"`(trigpoint [^`]+)`", text)]


def test_the_readme_shows_commands() -> None:
    assert len(readme_lines()) >= 10


@pytest.mark.parametrize("line", readme_lines())
def test_every_command_in_the_readme_exists(line: str) -> None:
    check_line(line)


@pytest.mark.parametrize("line", ["trigpoint rnk results/x", "trigpoint rank --colour x", "trigpoint runtime", "trigpoint"])
def test_the_check_itself_sees_what_is_not_there(line: str) -> None:
    with pytest.raises(AssertionError, match="no such"):
        check_line(line)
