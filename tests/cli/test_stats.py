"""What stands under a reply: one line of figures, where the energy went, and what did not run as asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgeprec.cli.stats import stats_line, stats_lines


@pytest.mark.parametrize("fallbacks", [(), ("objective energy follows speed", "drafts were cut")])
def test_every_fallback_has_a_line(script: SimpleNamespace, fallbacks: tuple[str, ...]) -> None:
    """A person reads it without ``--json``; a chat's short line stays one line."""
    stats = script.stats(2, fallbacks=fallbacks, energy_note="no rail (none is known)")
    reply = script.reply([script.event(0), script.event(1)], stats=stats)
    assert stats_lines(reply).splitlines() == [
        stats_line(reply),
        "energy not measured: no rail (none is known)",
        *(f"note: {text}" for text in fallbacks),
    ]
