"""Choosing tokens: greedy, filters in Hugging Face's order, and draws that follow the softmax."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.config import SamplingConfig
from edgeprec.errors import ConfigError
from edgeprec.runtime.noise import gumbel_noise
from edgeprec.runtime.sampling import Sampler

_ROW = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.5], np.float32)


def _sampler(vocab_size: int = 6, **settings: float | int) -> Sampler:
    return Sampler(SamplingConfig(**{"temperature": 1.0, "seed": 5, **settings}), vocab_size)  # type: ignore[arg-type]


def _chi_square(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    possible = expected > 0
    assert counts[~possible].sum() == 0, "a token without probability was drawn"
    return float(((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum())


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    """Temperature 0 is argmax, and ties are settled the same way everywhere."""
    assert _sampler(temperature=0.0).choose(_ROW, position=9) == 1


def test_greedy_trusts_a_known_argmax_only_without_penalty() -> None:
    """The engine's argmax is used as it is, unless the repetition penalty may move it."""
    assert _sampler(temperature=0.0).choose(_ROW, position=0, argmax=4) == 4
    assert _sampler(temperature=0.0, repetition_penalty=2.0).choose(_ROW, position=0, history=[1], argmax=1) == 3


def test_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    """A token seen twice is penalized once; the engine's logits are not written to."""
    row = _ROW.copy()
    got = _sampler(repetition_penalty=2.0).distribution(row, history=[1, 1, 4])
    logits = np.array([1.0, 1.5, 2.0, 3.0, -2.0, 0.5])
    assert got == pytest.approx(np.exp(logits) / np.exp(logits).sum(), abs=1e-6)
    assert np.array_equal(row, _ROW)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 1}, {1, 3}),  # ties with the k-th stay, as in Hugging Face's filter
        ({"top_k": 3}, {1, 2, 3}),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 1e-6}, {1}),
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.999}, {0, 1, 2, 3, 4, 5}),
        ({"min_p": 0.3}, {1, 2, 3}),
        ({"min_p": 0.999}, {1, 3}),
        ({"top_k": 3, "top_p": 0.75}, {1, 3}),
        ({"temperature": 0.1, "min_p": 0.3}, {1, 3}),
        ({"temperature": 10.0, "min_p": 0.6}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_filters_keep_the_right_tokens(settings: dict[str, float], kept: set[int]) -> None:
    """Each filter alone and in order: temperature comes before the filters that look at probabilities."""
    assert set(np.flatnonzero(_sampler(**settings).distribution(_ROW))) == kept


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30),
    st.floats(0.2, 3.0),
    st.integers(0, 12),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.9),
)
def test_distribution_is_one_and_only_filtered_tokens_vanish(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Whatever the filters, the best token stays, probabilities sum to 1 and keep their order."""
    row = np.array(values, np.float32)
    sampler = _sampler(len(values), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    p = sampler.distribution(row)
    assert p.sum() == pytest.approx(1.0)
    assert p[int(row.argmax())] == p.max() > 0
    assert p[sampler.choose(row, position=3)] > 0


@given(st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=40, unique=True), st.floats(0.05, 0.99))
def test_top_p_equals_the_plain_definition(values: list[float], top_p: float) -> None:
    """The short cut that sorts only likely tokens keeps the same set as sorting them all."""
    row = np.array(values, np.float32)
    p = np.exp(row.astype(np.float64) - row.max())
    p /= p.sum()
    order = np.argsort(-row, kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
    edge = np.abs(np.cumsum(p[order]) - top_p).min()
    if edge > 1e-5:  # float32 may decide a knife's edge either way
        assert set(np.flatnonzero(_sampler(len(values), top_p=top_p).distribution(row))) == set(order[:count])


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}])
def test_draws_follow_the_distribution(settings: dict[str, float]) -> None:
    """20,000 draws over positions pass a chi-square test at 1 in 10,000."""
    sampler = _sampler(**settings)
    draws = 20_000
    counts = np.bincount([sampler.choose(_ROW, position=i) for i in range(draws)], minlength=6)
    assert _chi_square(counts, sampler.distribution(_ROW) * draws) < 25.7  # 5 degrees of freedom


def test_masked_tokens_are_never_drawn() -> None:
    """A logit of -inf stays impossible under noise."""
    row = np.array([-inf, 0.0, -inf, 0.0], np.float32)
    assert {_sampler(4).choose(row, position=i) for i in range(200)} == {1, 3}


def test_same_seed_and_position_give_the_same_token() -> None:
    """A draw can be repeated, by another sampler and in any order."""
    first = [_sampler().choose(_ROW, position=i) for i in range(50)]
    second = [_sampler().choose(_ROW, position=i) for i in reversed(range(50))]
    assert first == second[::-1]
    assert first != [_sampler(seed=6).choose(_ROW, position=i) for i in range(50)]


def test_sampling_without_a_seed_is_refused() -> None:
    """A temperature needs a seed; greedy does not."""
    with pytest.raises(ConfigError, match="seed"):
        Sampler(SamplingConfig(temperature=0.7), 6)
    Sampler(SamplingConfig(), 6)


def test_padded_logits_are_cut_to_the_vocabulary() -> None:
    """Columns past the vocabulary (a padded head) never win."""
    padded = np.append(_ROW, np.float32(99.0))
    assert _sampler(temperature=0.0).choose(padded, position=0) == 1
    assert _sampler().choose(padded, position=0) < 6


def _context_logits(context: tuple[int, ...], salt: int) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng([salt, len(context), *context])
    return rng.standard_normal(4).astype(np.float32) * 1.5


def _generate(sampler: Sampler, *, draft_salt: int, length: int, cap: int) -> tuple[int, ...]:
    """Speculative decoding on a toy: draft with other logits and the same noise, accept what the target draws."""
    emitted: tuple[int, ...] = ()
    while len(emitted) < length:
        drafted: tuple[int, ...] = ()
        for _ in range(cap):
            context = emitted + drafted
            drafted += (sampler.choose(_context_logits(context, draft_salt), position=len(context)),)
        for token in (*drafted, None):
            target = sampler.choose(_context_logits(emitted, 0), position=len(emitted))
            emitted += (target,)
            if token != target:
                break
    return emitted[:length]


@pytest.mark.parametrize("draft_salt", [0, 1])
@pytest.mark.parametrize("cap", [1, 3, 5])
def test_speculation_emits_the_targets_own_tokens(draft_salt: int, cap: int) -> None:
    """With shared noise every draft, good or bad, at every length leaves the target's sequence untouched."""
    for seed in range(30):
        sampler = _sampler(4, seed=seed)
        plain = _generate(sampler, draft_salt=0, length=12, cap=0)
        assert _generate(sampler, draft_salt=draft_salt, length=12, cap=cap) == plain


def test_speculation_keeps_the_target_distribution_exactly() -> None:
    """Over all 64 three-token texts of a 4-token vocabulary, speculative draws follow the product of the softmaxes."""
    sampler = _sampler(4)
    texts = list(itertools.product(range(4), repeat=3))
    expected = np.array(
        [np.prod([sampler.distribution(_context_logits(text[:i], 0))[text[i]] for i in range(3)]) for text in texts]
    )
    assert expected.sum() == pytest.approx(1.0)
    draws = 8_000
    index = {text: i for i, text in enumerate(texts)}
    drawn = [index[_generate(_sampler(4, seed=s), draft_salt=1, length=3, cap=2)] for s in range(draws)]
    counts = np.bincount(drawn, minlength=64)
    assert _chi_square(counts, expected * draws) < 113.5  # 63 degrees of freedom, 1 in 10,000


def test_one_token_draw_is_exact_by_enumeration_of_the_noise() -> None:
    """P(argmax(score + noise) = i) is softmax: integrate over a fine grid of all four tokens' noise ranks."""
    row = np.array([0.3, -1.0, 1.2, 0.0], np.float32)
    grid = (np.arange(200_000) + 0.5) / 200_000
    best = row.astype(np.float64)[:, None] - np.log(-np.log(grid))  # [4, u]: value of token i at quantile u
    wins = [
        np.mean(np.prod([np.exp(-np.exp(-(best[i] - row[j]))) for j in range(4) if j != i], axis=0)) for i in range(4)
    ]
    assert _sampler(4).distribution(row) == pytest.approx(wins, abs=1e-4)


def test_noise_is_added_to_the_scores() -> None:
    """The draw is reproducible from the published recipe: argmax(logits / T + noise)."""
    sampler = _sampler(temperature=0.7, seed=11)
    for position in range(20):
        noise = gumbel_noise(seed=11, position=position, vocab_size=6)
        assert sampler.choose(_ROW, position=position) == int((_ROW / np.float32(0.7) + noise).argmax())


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"repetition_penalty": 1.3},
        {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
    ],
)
def test_distribution_equals_hugging_face(settings: dict[str, float]) -> None:
    """Filters, their order and the penalty are those of transformers' generate."""
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    config = SamplingConfig(**{"temperature": 1.0, "seed": 0, **settings})  # type: ignore[arg-type]
    chain = [processors.RepetitionPenaltyLogitsProcessor(config.repetition_penalty)]
    chain.append(processors.TemperatureLogitsWarper(config.temperature))
    chain += [processors.TopKLogitsWarper(config.top_k)] if config.top_k else []
    chain += [processors.TopPLogitsWarper(config.top_p)] if config.top_p < 1.0 else []
    chain += [processors.MinPLogitsWarper(config.min_p)] if config.min_p else []
    rng = np.random.default_rng(8)
    for _ in range(20):
        row = (3.0 * rng.standard_normal(200)).astype(np.float32)
        history = [int(i) for i in rng.integers(0, 200, 30)]
        scores = torch.tensor(row[None])
        for processor in chain:
            scores = processor(torch.tensor([history]), scores)
        expected = torch.softmax(scores.double(), dim=-1)[0].numpy()
        got = Sampler(config, 200).distribution(row, history=history)
        difference = np.abs(got - expected)
        assert difference.max() < 1e-5, f"max {difference.max()}, mean {difference.mean()}"


@pytest.mark.parametrize(
    "values", [{"temperature": 1e-5}, {"temperature": 5e-324}, {"repetition_penalty": 1e-3}, {"temperature": -1e-3}]
)
def test_settings_that_would_overflow_are_refused(values: dict[str, float]) -> None:
    """A quotient of logits beyond float32 is no score: 0 is the way to ask for the most probable token."""
    with pytest.raises(ConfigError, match="expected 0"):
        SamplingConfig(**values)


@pytest.mark.parametrize("values", [{"temperature": 1e-4}, {"temperature": 1.0, "repetition_penalty": 0.01}])
def test_the_least_settings_still_choose(values: dict[str, float]) -> None:
    """At the edge of the range scores stay finite."""
    sampler = Sampler(SamplingConfig(seed=1, **values), 4)
    assert sampler.choose(np.array([80.0, -80.0, 3.0, 0.0], np.float32), position=3, history=[1, 2]) in range(4)
