"""When output is coloured, and what a colour means."""

from __future__ import annotations

import io
from types import SimpleNamespace

import click
import pytest

from edgeprec.cli.color import shows_color
from edgeprec.cli.render import legend, token_text, visible
from edgeprec.runtime.reply import TokenSource


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (io.StringIO(), {}, False),
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (Terminal(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True),
    ],
)
def test_when_output_is_coloured(stream: io.StringIO, environ: dict[str, str], expected: bool) -> None:
    """The conventions of NO_COLOR and FORCE_COLOR hold."""
    assert shows_color(stream, environ) is expected


def test_every_source_has_its_own_colour(script: SimpleNamespace) -> None:
    """Three kinds of token can be told apart, and the legend explains each."""
    texts = {token_text(script.event(1, source=source, text="x"), is_colored=True) for source in TokenSource}
    assert len(texts) == len(TokenSource)
    assert {click.unstyle(text) for text in texts} == {"x"}
    assert click.unstyle(legend(*TokenSource)).count("■") == len(TokenSource)


def test_without_colour_the_text_is_untouched(script: SimpleNamespace) -> None:
    """A pipe gets the model's bytes."""
    assert token_text(script.event(1, text="a\x07b"), is_colored=False) == "a\x07b"


def test_visible_keeps_newlines_and_tabs() -> None:
    """Only what steers a terminal goes."""
    assert visible("a\tb\nc\x1b[0m\x07\r\x9b") == "a\tb\nc[0m"
