"""Print a reply's text as it comes, in colour on a terminal, and what was held back at its end."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from edgeprec.cli.color import shows_color
from edgeprec.cli.render import token_text, visible
from edgeprec.runtime.reply import Reply, TokenEvent

__all__ = ["TextPrinter"]


class TextPrinter:
    """Writes to ``stream``, standard output unless given."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._is_colored = shows_color(self._stream, os.environ)
        self._shown = ""

    def show(self, event: TokenEvent) -> None:
        """Print what one token adds."""
        if event.text:
            self._write(token_text(event, is_colored=self._is_colored))
            self._shown += event.text

    def finish(self, reply: Reply) -> None:
        """Print the rest of the text, if some was held back, and end the line."""
        if reply.text.startswith(self._shown):
            rest = reply.text[len(self._shown) :]
            self._write(visible(rest) if self._is_colored else rest)
            self._shown = reply.text
        if not self._shown.endswith("\n"):
            self._write("\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
