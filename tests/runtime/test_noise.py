"""Position-keyed Gumbel noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.runtime.noise import gumbel_noise

_SEEDS = st.integers(0, 2**64 - 1)
_POSITIONS = st.integers(0, 2**31)


@given(_SEEDS, _POSITIONS, st.integers(1, 300), st.data())
def test_noise_depends_on_seed_position_and_token_only(
    seed: int, position: int, vocab: int, data: st.DataObject
) -> None:
    """A token's noise is the same whether all tokens are asked for, some, or a wider vocabulary."""
    whole = gumbel_noise(seed=seed, position=position, vocab_size=vocab)
    wider = gumbel_noise(seed=seed, position=position, vocab_size=vocab + 77)
    ids = np.array(data.draw(st.lists(st.integers(0, vocab - 1), max_size=20)), np.int64)
    some = gumbel_noise(seed=seed, position=position, vocab_size=vocab, token_ids=ids)
    assert whole.shape == (vocab,)
    assert whole.dtype == np.float32
    assert np.array_equal(whole, wider[:vocab])
    assert np.array_equal(some, whole[ids])


@pytest.mark.parametrize("other", [{"seed": 2}, {"position": 8}, {"seed": 2**63}])
def test_other_keys_give_unrelated_noise(other: dict[str, int]) -> None:
    """Neighbouring seeds and positions are not correlated."""
    key = {"seed": 1, "position": 7, **other}
    first = gumbel_noise(seed=1, position=7, vocab_size=20_000)
    second = gumbel_noise(seed=key["seed"], position=key["position"], vocab_size=20_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_noise_follows_the_gumbel_distribution() -> None:
    """The empirical distribution stays within the Kolmogorov bound of exp(-exp(-x)), tails included."""
    values = np.sort(np.concatenate([gumbel_noise(seed=3, position=p, vocab_size=50_000) for p in range(10)]))
    assert np.isfinite(values).all()
    expected = np.exp(-np.exp(-values.astype(np.float64)))
    distance = np.abs(expected - (np.arange(values.size) + 0.5) / values.size).max()
    assert distance < 1.95 / np.sqrt(values.size), f"Kolmogorov distance {distance}"
    assert values[-1] > 10.0
    assert len(np.unique(values[-1000:])) > 990, "the upper tail must not be quantized"


def test_noise_is_the_same_on_every_platform() -> None:
    """The random bits are pinned: a change would change the tokens of every seeded generation."""
    values = gumbel_noise(seed=42, position=1234, vocab_size=1001)
    assert values[[0, 1, 2, 3, 1000]] == pytest.approx([2.553824, 0.332193, 0.479906, 0.02759, 0.402219], abs=1e-5)


def test_largest_seed_and_position_work() -> None:
    """Every seed the configuration takes makes noise."""
    assert np.isfinite(gumbel_noise(seed=2**64 - 1, position=2**40, vocab_size=9)).all()
