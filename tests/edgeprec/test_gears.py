"""Gears: a dead band, a hold, a ladder of plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.errors import ConfigError
from edgeprec.gears import Band, Gear, GearState, ladder

_BAND = Band(theta_low_bits=0.5, theta_high_bits=2.0, hold_tokens=4)
_ENTROPIES = st.lists(st.floats(0.0, 6.0), max_size=80)


def _run(entropies: list[float], *, top: int = 1, band: Band = _BAND, rung: int = 0) -> list[GearState]:
    states = [GearState(rung=rung, top=top, tokens_since_change=0)]
    for bits in entropies:
        states.append(states[-1].emitted(bits, band))
    return states


@given(st.lists(st.floats(0.5, 2.0), max_size=80), st.integers(0, 3))
def test_gear_never_changes_inside_the_band(entropies: list[float], rung: int) -> None:
    """Between the thresholds, edges included, the gear stays whatever it is."""
    assert {state.rung for state in _run(entropies, top=3, rung=rung)} == {rung}


@given(_ENTROPIES, st.integers(0, 9), st.integers(1, 4))
def test_changes_lie_at_least_hold_tokens_apart(entropies: list[float], hold: int, top: int) -> None:
    """However entropy jumps, two changes of gear have h emitted tokens between them, and each is one rung."""
    band = Band(theta_low_bits=0.5, theta_high_bits=2.0, hold_tokens=hold)
    rungs = [state.rung for state in _run(entropies, top=top, band=band)]
    changes = [i for i in range(1, len(rungs)) if rungs[i] != rungs[i - 1]]
    assert all(abs(rungs[i] - rungs[i - 1]) == 1 for i in changes)
    assert all(later - earlier >= max(hold, 1) for earlier, later in zip([0, *changes], changes, strict=False))


@given(_ENTROPIES)
def test_changes_go_the_way_entropy_points(entropies: list[float]) -> None:
    """Up only above theta_high, down only below theta_low."""
    states = _run(entropies, top=3)
    for bits, before, after in zip(entropies, states, states[1:], strict=False):
        if after.rung > before.rung:
            assert bits > _BAND.theta_high_bits
        if after.rung < before.rung:
            assert bits < _BAND.theta_low_bits


def test_gear_names() -> None:
    """The lowest rung is LOW, the highest HIGH, the others MIDDLE."""
    names = [GearState(rung=rung, top=3, tokens_since_change=0).gear for rung in range(4)]
    assert names == [Gear.LOW, Gear.MIDDLE, Gear.MIDDLE, Gear.HIGH]


@pytest.mark.parametrize(("first", "gear"), [(None, Gear.HIGH), (0.4, Gear.LOW), (0.5, Gear.HIGH), (3.0, Gear.HIGH)])
def test_start_is_careful(first: float | None, gear: Gear) -> None:
    """A sequence starts in FP16 unless its prompt ended in plain certainty."""
    assert GearState.start(top=2, band=_BAND, first_bits=first).gear is gear


def test_unknown_entropy_changes_nothing() -> None:
    """A token without entropy only counts for the hold."""
    state = GearState(rung=1, top=2, tokens_since_change=0).emitted(None, _BAND, tokens=9)
    assert (state.rung, state.tokens_since_change) == (1, 9)


def test_ladder_goes_from_int4_to_fp16_by_sensitivity() -> None:
    """Each rung keeps more of the most sensitive layers in FP16; the last one the head too."""
    plans = ladder(num_layers=4, middle_gears=3, order=[2, 0, 3, 1])
    assert [plan.gates for plan in plans] == [
        (True, True, True, True, True),
        (True, True, False, True, True),
        (False, True, False, True, True),
        (False, True, False, False, True),
        (False, False, False, False, False),
    ]


@given(st.integers(1, 40), st.integers(0, 16))
def test_ladder_plans_are_distinct_and_rising(num_layers: int, middle_gears: int) -> None:
    """More rungs than layers collapse; every rung has fewer INT4 layers than the one below."""
    passes = [plan.int4_passes for plan in ladder(num_layers=num_layers, middle_gears=middle_gears, order=None)]
    assert passes[0] == num_layers + 1
    assert passes[-1] == 0
    assert passes == sorted(set(passes), reverse=True)


def test_ladder_gates_the_least_sensitive_layers() -> None:
    """Two gated layers are the last two of the order; the head stays in FP16, and rungs lie above that."""
    plans = ladder(num_layers=4, middle_gears=1, order=[2, 0, 3, 1], gated_layers=2)
    assert [plan.gates for plan in plans] == [
        (False, True, False, True, False),
        (False, True, False, False, False),
        (False, False, False, False, False),
    ]
    (every, _) = ladder(num_layers=4, middle_gears=0, order=None, gated_layers=4)
    assert every.gates == (True, True, True, True, False)


@given(st.integers(1, 40), st.integers(0, 16), st.data())
def test_a_gated_ladder_rises_from_its_number(num_layers: int, middle_gears: int, data: st.DataObject) -> None:
    """Whatever the number of gears, the lowest gates as many layers as asked and no two are alike."""
    gated = data.draw(st.integers(1, num_layers))
    plans = ladder(num_layers=num_layers, middle_gears=middle_gears, order=None, gated_layers=gated)
    passes = [plan.int4_passes for plan in plans]
    assert (passes[0], passes[-1]) == (gated, 0)
    assert passes == sorted(set(passes), reverse=True)


@pytest.mark.parametrize("gated", [0, 4, -1])
def test_more_gated_layers_than_there_are_is_refused(gated: int) -> None:
    """The number is 1 to the model's."""
    with pytest.raises(ConfigError, match="gated_layers"):
        ladder(num_layers=3, middle_gears=0, order=None, gated_layers=gated)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 2, 3]])
def test_a_wrong_layer_order_is_refused(order: list[int]) -> None:
    """The order names every layer once."""
    with pytest.raises(ConfigError, match="layer order"):
        ladder(num_layers=3, middle_gears=1, order=order)


@pytest.mark.parametrize(("low", "high"), [(-0.1, 1.0), (2.0, 1.0)])
def test_a_band_out_of_order_is_refused(low: float, high: float) -> None:
    """0 <= theta_low <= theta_high."""
    with pytest.raises(ConfigError, match="theta_low"):
        Band(theta_low_bits=low, theta_high_bits=high, hold_tokens=4)
