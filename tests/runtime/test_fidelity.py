"""Agreement and KL: against numbers worked out by hand, additive, and never negative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.calibration import ENTROPY_EDGES_BITS
from edgeprec.errors import EngineError
from edgeprec.runtime.fidelity import LOW_ENTROPY_BITS, Fidelity, RowComparison, compare_rows, count_rows
from edgeprec.runtime.token_match import TokenMatch, match_tokens


def rows(*probabilities: list[float]) -> np.ndarray:
    """Return logits [T, V] of given distributions, each shifted by a constant that must not matter."""
    values = np.log(np.array(probabilities))
    return (values + np.arange(len(values))[:, None]).astype(np.float32)


def test_kl_is_that_of_the_textbook() -> None:
    """sum p log2(p / q), in bits, with p of FP16."""
    compared = compare_rows(rows([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]), rows([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]))
    assert compared.kl_bits == pytest.approx([0.0, 0.5 * 1.0 + 0.25 * -1.0], abs=1e-5)
    assert compared.agrees.tolist() == [True, False]
    assert compared.entropy_bits == pytest.approx([1.5, 1.5], abs=1e-5)


def test_a_token_without_mass_does_not_break_the_sum() -> None:
    """Padding has a logit of -inf in both, and a certain prediction leaves nothing to the others."""
    reference = np.array([[0.0, 1.0, -np.inf], [0.0, 1e9, 0.0]], np.float32)
    compared = compare_rows(reference, reference)
    assert compared.kl_bits.tolist() == [0.0, 0.0]
    assert compared.agrees.all()


def test_nan_is_refused() -> None:
    """Broken logits must not be counted as a disagreement."""
    with pytest.raises(EngineError, match="NaN"):
        compare_rows(rows([0.5, 0.5]), np.array([[np.nan, 0.0]], np.float32))


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(2, 40))
def test_kl_is_never_negative_and_zero_for_the_same(seed: int, count: int, width: int) -> None:
    """Rounding must not produce a divergence below 0."""
    random = np.random.default_rng(seed)
    left, right = (4.0 * random.standard_normal((count, width)).astype(np.float32) for _ in range(2))
    assert (compare_rows(left, right).kl_bits >= 0.0).all()
    assert compare_rows(left, left).kl_bits == pytest.approx(np.zeros(count), abs=1e-6)


def compared(entropy_bits: list[float], agrees: list[bool]) -> RowComparison:
    """Return rows with a KL of 0.5 bits each."""
    count = len(entropy_bits)
    return RowComparison(np.array(agrees, bool), np.full(count, 0.5), np.array(entropy_bits, np.float32))


def test_tokens_are_counted_in_their_bins() -> None:
    """Each bin holds its lower edge; below one bit is reported by itself."""
    fidelity = count_rows(compared([0.05, 0.9, 1.0, 9.0], [True, False, True, False]))
    assert fidelity.tokens == (1, 0, 0, 1, 1, 0, 0, 1)
    assert fidelity.agreed == (1, 0, 0, 0, 1, 0, 0, 0)
    assert (fidelity.top1, fidelity.top1_low_entropy, fidelity.kl_bits) == (0.5, 0.5, 0.5)
    bins = fidelity.bins()
    assert [entry["low_bits"] for entry in bins] == [0.0, *ENTROPY_EDGES_BITS]
    assert [entry["high_bits"] for entry in bins] == [*ENTROPY_EDGES_BITS, None]
    assert [entry["top1"] for entry in bins] == [1.0, None, None, 0.0, 1.0, None, None, 0.0]
    assert LOW_ENTROPY_BITS in ENTROPY_EDGES_BITS


def test_sums_of_texts_are_one_text() -> None:
    """Where a text is cut makes no difference."""
    first, second = compared([0.05, 2.0], [True, True]), compared([0.3, 2.0], [False, True])
    whole = compared([0.05, 2.0, 0.3, 2.0], [True, True, False, True])
    assert count_rows(first) + count_rows(second) == count_rows(whole)
    assert Fidelity() + count_rows(first) == count_rows(first)


def test_no_tokens_have_no_share() -> None:
    """Nothing measured is null, never 0 or 1."""
    assert (Fidelity().top1, Fidelity().top1_low_entropy, Fidelity().kl_bits) == (None, None, None)
    assert (TokenMatch().share, TokenMatch().mean_prefix_tokens) == (None, None)


@pytest.mark.parametrize(
    ("tokens", "same", "prefix"),
    [
        ([1, 2, 3, 4], 4, 4),
        ([1, 2, 9, 4], 3, 2),
        ([9, 2, 3, 4], 3, 0),
        ([1, 2], 2, 2),  # ended earlier: the rest counts as different
        ([1, 2, 3, 4, 5, 6], 4, 4),  # went on: what is beyond FP16's end does not count
        ([], 0, 0),
    ],
)
def test_match_is_by_place(tokens: list[int], same: int, prefix: int) -> None:
    """FP16's text is the measure."""
    assert match_tokens(tokens, [1, 2, 3, 4]) == TokenMatch(texts=1, tokens=4, same=same, prefix=prefix)


def test_matches_add_up() -> None:
    """Shares are over tokens, prefixes over texts."""
    total = match_tokens([1, 2], [1, 2]) + match_tokens([1, 9, 3, 9], [1, 2, 3, 4])
    assert (total.share, total.mean_prefix_tokens) == (4 / 6, 1.5)
