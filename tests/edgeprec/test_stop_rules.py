"""The published stop rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.stop_rules import AdaedlThreshold, adaedl_stops, svip_stops


@pytest.mark.parametrize(("entropy_bits", "stops"), [(0.0, False), (0.86, False), (0.87, True), (5.0, True)])
def test_svip_stops_above_087_bits(entropy_bits: float, stops: bool) -> None:
    """sqrt(0.15 H) > 0.3 in nats is H > 0.866 bits."""
    assert svip_stops(entropy_bits) is stops


@pytest.mark.parametrize(
    ("entropy_bits", "threshold", "stops"),
    [(0.0, 1.0, False), (0.0, 0.4, False), (2.0, 0.4, True), (2.0, 0.5, True), (2.0, 0.3, False), (9.0, 0.0, True)],
)
def test_adaedl_compares_its_bound_with_lambda(entropy_bits: float, threshold: float, stops: bool) -> None:
    """1 - sqrt(0.2 H) in nats is 0.473 at 2 bits."""
    expected = 1.0 - (0.2 * entropy_bits * 0.693147) ** 0.5 < threshold
    assert adaedl_stops(entropy_bits, threshold) is expected
    if (entropy_bits, threshold) != (2.0, 0.4):
        assert expected is stops


def test_lambda_rises_while_drafts_are_rejected_and_falls_while_accepted() -> None:
    """Too many rejections make AdaEDL stop earlier, full acceptance later."""
    start = AdaedlThreshold()
    rejected = accepted = start
    for _ in range(20):
        rejected = rejected.updated(drafted=4, accepted=0)
        accepted = accepted.updated(drafted=4, accepted=4)
    assert rejected.threshold > start.threshold > accepted.threshold


def test_a_round_without_draft_says_nothing() -> None:
    """Plain rounds leave lambda alone."""
    assert AdaedlThreshold().updated(drafted=0, accepted=0) == AdaedlThreshold()


@given(st.lists(st.integers(0, 4), max_size=200))
def test_lambda_stays_a_probability(accepted: list[int]) -> None:
    """However long it is pushed one way, lambda stays in 0..1."""
    threshold = AdaedlThreshold(step=5.0)
    for count in accepted:
        threshold = threshold.updated(drafted=4, accepted=count)
        assert 0.0 <= threshold.threshold <= 1.0
