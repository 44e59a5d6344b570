"""Acceptance counted from agreements is what speculative decoding would have counted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from edgeprec.export.distill_acceptance import Acceptance, count_acceptance


def speculate(target: Sequence[int], draft: Sequence[int], draft_length: int) -> Acceptance:
    """Run rounds over a target's greedy text; ``draft`` is what a teacher-forced draft says at each place."""
    drafted = accepted = judged = rounds = position = 0
    while position < len(target):
        proposal = list(draft[position : position + draft_length])
        wanted = list(target[position : position + draft_length])
        matched = 0
        while matched < len(proposal) and proposal[matched] == wanted[matched]:
            matched += 1
        drafted += len(proposal)
        accepted += matched
        judged += min(matched + 1, len(proposal))
        rounds += 1
        position += matched + 1
    return Acceptance(drafted, judged, accepted, rounds)


@pytest.mark.parametrize("draft_length", [1, 2, 4, 7])
def test_rounds_are_those_of_speculation(draft_length: int) -> None:
    """Against a plain simulation on random texts of two tokens."""
    source = random.Random(draft_length)
    for length in (0, 1, 5, 60):
        target, draft = ([source.randint(0, 1) for _ in range(length)] for _ in range(2))
        agreements = [a == b for a, b in zip(target, draft, strict=True)]
        assert count_acceptance([agreements], draft_length=draft_length) == speculate(target, draft, draft_length)


def test_texts_are_added_up() -> None:
    """Rounds do not run from one text into the next."""
    total = count_acceptance([[True, False, True], [True]], draft_length=2)
    assert total == Acceptance(drafted=4, judged=4, accepted=3, rounds=3)
    assert total.rate == pytest.approx(3 / 4)
    assert total.tokens_per_round == pytest.approx(2.0)
    assert total.per_token == pytest.approx(3 / 4)


def test_nothing_drafted_is_no_division() -> None:
    """An empty probe has rates of 0."""
    nothing = count_acceptance([], draft_length=4)
    assert (nothing.rate, nothing.per_token, nothing.tokens_per_round) == (0.0, 0.0, 0.0)


def test_always_and_never_right() -> None:
    """The two ends of the scale."""
    assert count_acceptance([[True] * 20], draft_length=4).rate == 1.0
    never = count_acceptance([[False] * 20], draft_length=4)
    assert (never.rate, never.rounds) == (0.0, 20)
