"""Every command line shown to users is one the commands take: the README's and those of ``--help``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from edgeprec.cli.common import all_flags
from edgeprec.cli.group import COMMANDS, load_command
from edgeprec.cli.settings import read_settings_file

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the README's code blocks in one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def command_lines(text: str) -> list[str]:
    """Return what calls ``edgeprec`` in a text: from its name to a comment, a pipe or the end of the line."""
    return re.findall(r"^ *(?:[A-Z_]+=\S+ |[^#\n|]*\| )?(edgeprec [^#|\n]+)", text, flags=re.MULTILINE)


SHOWN = [line for block in blocks("sh") for line in command_lines(block)]
IN_HELP = [line for name in COMMANDS for line in command_lines(load_command(name).help or "")]


@pytest.mark.parametrize("line", [*SHOWN, *IN_HELP])
def test_a_shown_command_line_is_taken(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that fails is worse than none."""
    monkeypatch.chdir(tmp_path)
    Path("edgeprec.toml").touch()
    _, name, *arguments = shlex.split(line)
    if name == "COMMAND":
        return
    with load_command(name).make_context(name, arguments) as context:
        assert context.params


def test_every_command_has_examples_in_its_help() -> None:
    """``--help`` is where people look first."""
    assert {line.split()[1] for line in IN_HELP} == set(COMMANDS)


def test_the_readme_shows_every_command() -> None:
    """A command nobody hears of is not used."""
    assert {line.split()[1] for line in SHOWN} | {"demo"} == set(COMMANDS)


def test_the_readmes_settings_file_is_taken(tmp_path: Path) -> None:
    """Its keys are flags and its values of the right kind."""
    (text,) = blocks("toml")
    file = tmp_path / "edgeprec.toml"
    file.write_text(text)
    assert read_settings_file(file, all_flags()).values["run"]["stop"] == ["\n\n"]


def test_the_readmes_python_compiles() -> None:
    """The five lines at the top are Python."""
    for block in blocks("python"):
        compile(block, "README.md", "exec")


def test_summaries_agree_with_the_commands() -> None:
    """The list of commands is written without importing them; it must say what they say of themselves."""
    for name, summary in COMMANDS.items():
        assert load_command(name).short_help == summary
