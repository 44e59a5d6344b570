"""The share of tokens that repeat: text that goes round in circles shows, ordinary text does not."""

from __future__ import annotations

import pytest

from edgeprec.runtime.loop_share import LOOP_TOKENS, loop_share


def test_text_without_a_loop() -> None:
    """Tokens that come again one by one, or fifteen in a row, are no loop."""
    assert loop_share([list(range(40))]) == 0.0
    piece = list(range(LOOP_TOKENS - 1))
    assert loop_share([[*piece, 99, *piece, 98]]) == 0.0


def test_loop_is_counted_from_its_second_time_on() -> None:
    """A sentence of 20 tokens written three times: 25 of 60 tokens end a row of 16 that stood there before."""
    tokens = [*range(20)] * 3
    assert loop_share([tokens]) == pytest.approx((20 - LOOP_TOKENS + 1 + 20) / 60)
    assert loop_share([[7] * 100]) == pytest.approx((100 - LOOP_TOKENS) / 100)


def test_replies_do_not_see_each_other() -> None:
    """The same text twice is two replies, not a loop; shares are of all tokens."""
    assert loop_share([list(range(40))] * 2) == 0.0
    assert loop_share([[7] * 100, list(range(100))]) == pytest.approx((100 - LOOP_TOKENS) / 200)


@pytest.mark.parametrize("replies", [[], [[]]])
def test_no_token(replies: list[list[int]]) -> None:
    """Nothing written has no share."""
    assert loop_share(replies) is None
