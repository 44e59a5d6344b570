"""Generated text on a terminal: each token in the colour of what produced it. Elsewhere the text alone."""

from __future__ import annotations

import click

from edgeprec.runtime.reply import TokenEvent, TokenSource

__all__ = ["legend", "token_text", "visible"]

_STYLES = {
    TokenSource.DRAFT: {"fg": "green"},
    TokenSource.TARGET: {"fg": "bright_yellow"},
    TokenSource.UNVERIFIED: {"fg": "cyan"},
}
_MEANINGS = {
    TokenSource.DRAFT: "accepted INT4 draft",
    TokenSource.TARGET: "FP16",
    TokenSource.UNVERIFIED: "not verified",
}
_HIDDEN = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def token_text(event: TokenEvent, *, is_colored: bool) -> str:
    """Return what to print for one token."""
    if not is_colored or not event.text:
        return event.text
    return click.style(visible(event.text), **_STYLES[event.source])  # type: ignore[arg-type]


def visible(text: str) -> str:
    """Return ``text`` without control characters: a model must not be able to steer a terminal."""
    return text.translate(_HIDDEN)


def legend(*sources: TokenSource) -> str:
    """Return the meaning of the colours."""
    return "  ".join(
        f"{click.style('■', **_STYLES[source])} {_MEANINGS[source]}"  # type: ignore[arg-type]
        for source in sources
    )
