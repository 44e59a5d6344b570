"""The loop of ``edgeprec chat``: a line is a turn of the user, or a command when it begins with a slash."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from edgeprec.cli.follow import follow
from edgeprec.cli.printer import TextPrinter
from edgeprec.cli.prompt import decode_prompt
from edgeprec.cli.stats import stats_line, stats_lines
from edgeprec.config import GenerationConfig, Mode
from edgeprec.errors import ConfigError
from edgeprec.runtime.reply import Reply

if TYPE_CHECKING:
    from edgeprec.runtime.session import Session

__all__ = ["Conversation"]

_HELP = """\
/stats        statistics of the last reply
/mode [MODE]  show or set what runs: exact, bounded, gated, fp16 or int4
/reset        forget the conversation
/help         this list
/exit         leave; so does Ctrl-D"""


class Conversation:
    """Keeps the messages; a turn the model could not take is not kept."""

    def __init__(
        self, session: Session, config: GenerationConfig, *, system: str | None = None, is_quiet: bool = False
    ) -> None:
        self._session = session
        self._config = config
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._is_quiet = is_quiet
        self._last: Reply | None = None

    def run(self) -> None:
        """Answer lines from standard input until it ends or ``/exit`` is said."""
        is_person = sys.stdin.isatty()
        if is_person:
            click.echo("Ask something, or /help. Ctrl-D leaves.", err=True)
        for line in _lines(is_person=is_person):
            words = line.split()
            if not words:
                continue
            if words[0] in ("/exit", "/quit"):
                return
            if line.startswith("/"):
                self._obey(words)
            else:
                self._answer(line)

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["/help"]:
                click.echo(_HELP)
            case ["/reset"]:
                self._messages = list(self._opening)
                click.echo("forgotten")
            case ["/stats"]:
                click.echo(stats_lines(self._last) if self._last else "nothing was generated yet")
            case ["/mode"]:
                click.echo(str(self._config.mode))
            case ["/mode", name]:
                self._set_mode(name)
            case _:
                click.echo(f"there is no command {' '.join(words)!r}, /help lists what there is")

    def _set_mode(self, name: str) -> None:
        if name not in list(Mode):
            click.echo(f"mode is {name!r}, expected {', '.join(Mode)}")
            return
        self._config = replace(self._config, mode=Mode(name))
        click.echo(f"mode {name} from the next reply on")

    def _answer(self, line: str) -> None:
        messages = [*self._messages, {"role": "user", "content": line}]
        try:
            generation = self._session.stream(messages, self._config)
        except ConfigError as error:
            click.echo(f"edgeprec: {error}; /reset forgets the conversation", err=True)
            return
        printer = TextPrinter()
        reply = follow(generation, show=printer.show)
        printer.finish(reply)
        if not self._is_quiet:
            click.echo(stats_line(reply), err=True)
        self._messages = [*messages, {"role": "assistant", "content": reply.text}]
        self._last = reply


def _lines(*, is_person: bool) -> Iterator[str]:
    """Give lines without their newline. A person gets a prompt sign, and Ctrl-C there only clears the line."""
    if not is_person:
        for data in sys.stdin.buffer:
            yield decode_prompt(data.rstrip(b"\r\n"), where="standard input")
        return
    import readline  # noqa: F401  # input() edits and remembers lines once this is imported

    while True:
        try:
            yield input("> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D or /exit leaves)", err=True)
