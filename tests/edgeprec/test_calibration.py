"""The calibration file, and the rates and thresholds drawn from its counts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.calibration import ENTROPY_EDGES_BITS, AgreementGrid, Calibration, StepCosts, cell_index, layer_order
from edgeprec.errors import BundleError, ConfigError
from edgeprec.thresholds import MAX_ENTROPY_BITS, cell_rates, entropy_rates, find_thresholds

_COUNTS = st.lists(st.tuples(st.integers(0, 400), st.floats(0, 1)), min_size=32, max_size=32)


def _grid(rows: list[tuple[int, int]]) -> AgreementGrid:
    """Build a grid from (trials, agreed) by entropy bin, all in the first margin bin."""
    trials = [count for row in rows for count in (row[0], 0, 0, 0)]
    agreed = [count for row in rows for count in (row[1], 0, 0, 0)]
    return AgreementGrid(tuple(trials), tuple(agreed))


def _any_grid(counts: list[tuple[int, float]]) -> AgreementGrid:
    return AgreementGrid(tuple(n for n, _ in counts), tuple(int(n * share) for n, share in counts))


_TYPICAL = _grid([(900, 899), (300, 299), (250, 248), (300, 280), (300, 240), (200, 120), (150, 60), (100, 20)])


def _calibration(**changes: Any) -> Calibration:
    values = {
        "int4": _TYPICAL,
        "theta_low_bits": 0.5,
        "theta_high_bits": 3.0,
        "layer_order": (2, 0, 1),
        "sensitivity": (0.2, 0.1, 0.7),
    }
    return Calibration(**{**values, **changes})


@pytest.mark.parametrize(
    ("entropy", "margin", "cell"),
    [(0.0, 0.0, 0), (0.1, 0.0, 4), (0.0999, 0.5, 1), (1.0, 1.49, 17), (4.5, 99.0, 31), (1e9, float("inf"), 31)],
)
def test_bins_hold_their_lower_edge(entropy: float, margin: float, cell: int) -> None:
    """A token on an edge belongs to the bin above it."""
    assert cell_index(entropy, margin) == cell


@given(st.lists(st.tuples(st.floats(0, 16), st.floats(0, 40), st.booleans()), max_size=60))
def test_counting_equals_placing_each_token(tokens: list[tuple[float, float, bool]]) -> None:
    """The vectorised count and the run-time's cell index agree, and grids add up."""
    columns = [[t[i] for t in tokens] for i in range(3)]
    grid = AgreementGrid.count(*columns)
    expected = [0] * 32
    for entropy, margin, agreed in tokens:
        expected[cell_index(entropy, margin)] += agreed
    assert grid.agreed == tuple(expected)
    assert grid.tokens == len(tokens) == sum(grid.trials_by_entropy)
    half = len(tokens) // 2
    halves = [AgreementGrid.count(*([c[part] for c in columns])) for part in (slice(half), slice(half, None))]
    assert halves[0] + halves[1] == grid


@pytest.mark.parametrize("trials", [(1,) * 31, (0,) * 32])
def test_impossible_grids_are_refused(trials: tuple[int, ...]) -> None:
    """A grid has 32 cells, none of which agrees more often than it was tried."""
    with pytest.raises(ConfigError, match="calibration"):
        AgreementGrid(trials, (1,) * len(trials))


@pytest.mark.parametrize("changes", [{}, {"draft": _TYPICAL, "step_costs": StepCosts(draft_step=0.3), "text": "demo"}])
def test_json_round_trip(changes: dict[str, Any]) -> None:
    """What is written is read back equal, through JSON text."""
    calibration = _calibration(**changes)
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


def test_json_shows_agreement_by_entropy() -> None:
    """A reader sees each bin's range, tokens and agreement."""
    first = _calibration().to_json()["int4"][0]
    assert (first["low_bits"], first["high_bits"], first["tokens"]) == (0.0, 0.1, 900)
    assert first["agreement"] == pytest.approx(899 / 900)


def _set(path: str, value: Any) -> Any:
    """Return the stored object with one place changed."""
    values = json.loads(json.dumps(_calibration(draft=_TYPICAL, step_costs=StepCosts()).to_json()))
    target, keys = values, path.split(".")
    for key in keys[:-1]:
        target = target[int(key) if key.isdigit() else key]
    if value is None:
        del target[keys[-1]]
    else:
        target[int(keys[-1]) if keys[-1].isdigit() else keys[-1]] = value
    return values


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", 2),
        ("schema_version", None),
        ("theta_low_bits", 9.0),
        ("theta_low_bits", float("nan")),
        ("theta_high_bits", "3"),
        ("layer_order", [0, 0, 1]),
        ("layer_order", [0, 1, 2.0]),
        ("sensitivity", [0.1, "x", 0.2]),
        ("sensitivity", [0.1]),
        ("step_costs.plain_step", None),
        ("step_costs.draft_step", -1.0),
        ("entropy_edges_bits", [0.1]),
        ("int4", []),
        ("int4.0.tokens", 5),
        ("int4.3.agreed_by_margin", [1000, 0, 0, 0]),
        ("int4.3.trials_by_margin", [True, 0, 0, 0]),
        ("draft.7", {}),
        ("text", 3),
        ("surprise", 1),
    ],
)
def test_damaged_files_are_refused(path: str, value: Any) -> None:
    """Whatever is wrong in the file is a BundleError that names the file."""
    with pytest.raises(BundleError, match=r"calibration\.json"):
        Calibration.from_json(_set(path, value))


@pytest.mark.parametrize("values", [None, [], "x", 3])
def test_other_json_is_refused(values: Any) -> None:
    """Only an object can be a calibration."""
    with pytest.raises(BundleError, match="expected an object"):
        Calibration.from_json(values)


def test_layer_order_is_by_falling_sensitivity() -> None:
    """Most sensitive first, the earlier of equals first."""
    assert layer_order([0.1, 0.5, 0.1, 0.9]) == (3, 1, 0, 2)


@given(_COUNTS)
def test_rates_are_probabilities_that_never_rise(counts: list[tuple[int, float]]) -> None:
    """Whatever was counted, a bin of more entropy is not trusted more."""
    rates = entropy_rates(_any_grid(counts))
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    assert all(low >= high for low, high in pairwise(rates))
    assert all(0.0 <= rate <= 1.0 for rate in cell_rates(_any_grid(counts)))


def test_rates_follow_large_counts() -> None:
    """With many tokens in each bin smoothing changes next to nothing."""
    rows = [(10_000, 9_990 - 1_000 * i) for i in range(8)]
    assert entropy_rates(_grid(rows)) == pytest.approx([agreed / trials for trials, agreed in rows], abs=2e-4)


def test_a_lucky_small_bin_is_not_trusted() -> None:
    """Five agreements out of five above a bad bin do not open the gate."""
    rows = [(1000, 999), (500, 450), (5, 5)] + [(300, 100)] * 5
    rates = entropy_rates(_grid(rows))
    assert rates[2] == rates[1] < 0.91
    assert find_thresholds(_grid(rows), costs=StepCosts()).theta_low_bits == 0.1


def test_empty_bins_take_the_rate_above_them() -> None:
    """An empty bin of low entropy is at least as good as the next; beyond the last counted bin nothing is assumed."""
    rates = entropy_rates(_grid([(0, 0), (1000, 999), (0, 0), (1000, 700)] + [(0, 0)] * 4))
    assert rates[0] == rates[1]
    assert rates[2] == rates[3]
    assert rates[4:] == (0.5,) * 4
    assert entropy_rates(AgreementGrid()) == (0.5,) * 8


def test_cells_without_tokens_have_their_bins_rate() -> None:
    """Margins never seen fall back on entropy alone."""
    cells, rows = cell_rates(_TYPICAL), entropy_rates(_TYPICAL)
    assert [cells[4 * i + 3] for i in range(8)] == list(rows)


def test_typical_thresholds() -> None:
    """theta_low ends with the last bin at 99 %, theta_high with the last one that pays."""
    low, high = find_thresholds(_TYPICAL, costs=StepCosts(draft_step=0.33, verify_row=0.03, plain_step=1.0))
    assert (low, high) == (0.5, 4.5)


@pytest.mark.parametrize(("draft_step", "high"), [(0.0, MAX_ENTROPY_BITS), (0.5, 3.0), (0.9, 1.0), (5.0, 0.0)])
def test_dearer_drafting_lowers_theta_high(draft_step: float, high: float) -> None:
    """The break-even acceptance is the cost of a drafted row over a plain step's."""
    costs = StepCosts(draft_step=draft_step, verify_row=0.03)
    low, got = find_thresholds(_TYPICAL, costs=costs)
    assert got == high
    assert low == min(0.5, high)


def test_a_drafted_row_pays_exactly_below_theta_high() -> None:
    """The rule against the ratio it is derived from: a row raises tokens per cost iff p(H) is above it."""
    costs = StepCosts(draft_step=0.4, verify_row=0.05)
    plain = 1.0 / costs.plain_step
    for rate in np.linspace(0.0, 1.0, 101):
        with_row = (1.0 + rate) / (costs.plain_step + costs.draft_step + costs.verify_row)
        if abs(rate - costs.break_even_acceptance) > 1e-9:
            assert (with_row > plain) == (rate > costs.break_even_acceptance)


def test_theta_high_follows_the_draft_model() -> None:
    """With a draft model its own acceptance decides what pays; INT4's agreement still decides theta_low."""
    poor = _grid([(200, 150), (200, 100)] + [(200, 20)] * 6)
    low, high = find_thresholds(_TYPICAL, draft=poor, costs=StepCosts())
    assert (low, high) == (0.25, 0.25)


@given(_COUNTS, _COUNTS, st.floats(0, 3), st.floats(0, 1))
def test_band_is_always_in_order(
    int4: list[tuple[int, float]], draft: list[tuple[int, float]], draft_step: float, verify_row: float
) -> None:
    """0 <= theta_low <= theta_high <= the largest entropy, for any counts and costs."""
    costs = StepCosts(draft_step=draft_step, verify_row=verify_row)
    low, high = find_thresholds(_any_grid(int4), draft=_any_grid(draft), costs=costs)
    assert 0.0 <= low <= high <= MAX_ENTROPY_BITS
    assert {low, high} <= {0.0, *ENTROPY_EDGES_BITS, MAX_ENTROPY_BITS}


@pytest.mark.parametrize("changes", [{"draft_step": -0.1}, {"verify_row": -1.0}, {"plain_step": 0.0}])
def test_impossible_costs_are_refused(changes: dict[str, float]) -> None:
    """Costs are not negative and a plain step costs something."""
    with pytest.raises(ConfigError, match="costs"):
        StepCosts(**changes)


@pytest.mark.parametrize("changes", [{"layer_order": (0, 1)}, {"theta_low_bits": 4.0}, {"theta_low_bits": -1.0}])
def test_impossible_calibrations_are_refused(changes: dict[str, Any]) -> None:
    """The order names each layer once, the thresholds are in order."""
    with pytest.raises(ConfigError, match="calibration"):
        _calibration(**changes)
