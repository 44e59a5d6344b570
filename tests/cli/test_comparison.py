"""Exact against FP16: the first token that differs, and how much faster."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from edgeprec.cli.comparison import compare, overall_speedup


@pytest.mark.parametrize(
    ("left", "right", "first"),
    [
        ((), (), None),
        ((1, 2, 3), (1, 2, 3), None),
        ((1, 2, 3), (1, 9, 3), 1),
        ((1, 2), (1, 2, 3), 2),
        ((1, 2, 3), (1, 2), 2),
        ((), (1,), 0),
    ],
)
def test_the_first_difference_is_found(
    script: SimpleNamespace, left: tuple[int, ...], right: tuple[int, ...], first: int | None
) -> None:
    """Also where one reply is longer: the end is a difference too."""
    reply = script.reply([])
    found = compare(replace(reply, tokens=left), replace(reply, tokens=right))
    assert found.first_difference == first
    assert found.is_identical is (first is None)


def test_speedup_needs_both_speeds(script: SimpleNamespace) -> None:
    """A reply of one token has no speed, and no speedup is made up."""
    reply = script.reply([script.event(0)])
    assert compare(reply, replace(reply, stats=script.stats(1, tokens_per_s=None))).speedup is None
    assert overall_speedup([(reply, reply)]) is None


def test_overall_speedup_weighs_by_time(script: SimpleNamespace) -> None:
    """Two prompts count by their tokens, not by the mean of two ratios."""
    reply = script.reply([script.event(index) for index in range(11)])
    fast = replace(reply, stats=script.stats(11, decode_s=1.0))
    slow = replace(reply, stats=script.stats(11, decode_s=3.0))
    assert overall_speedup([(fast, slow), (slow, slow)]) == pytest.approx(6 / 4)
