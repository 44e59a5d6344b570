"""Sampling with speculation: the same tokens as FP16 for the same seed, and the target's distribution over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from math import sqrt
from typing import Any

import pytest

from edgeprec.config import SamplingConfig
from edgeprec.runtime.sampling import Sampler

MakeRig = Callable[..., Any]
AGREEMENTS = ("always", "never", "sometimes")
GENERATIONS = 1000
PROMPT = [0, 1]


@pytest.mark.parametrize("draft_length", [1, 5, 8, 15, None])
@pytest.mark.parametrize("drafter", ["self", "model", "ngram", "none"])
def test_same_seed_same_tokens(make_rig: MakeRig, drafter: str, draft_length: int | None) -> None:
    """At any temperature and with any filter, drafting changes no token of a seed; the toy itself says which."""
    settings: tuple[dict[str, Any], ...] = (
        {"temperature": 0.3},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.4, "top_k": 5, "repetition_penalty": 1.5},
        {"temperature": 3.0, "min_p": 0.05, "top_p": 0.95},
    )
    for agreement, sampling, seed in product(AGREEMENTS, settings, (0, 2**64 - 1)):
        rig = make_rig(agreement, draft=agreement)
        common = {**sampling, "seed": seed, "max_new_tokens": 16, "ignore_eos": True}
        reply = rig.session.generate("abab", drafter=drafter, draft_length=draft_length, **common)
        sampler = Sampler(SamplingConfig(**sampling, seed=seed), rig.model.vocab_size)
        assert list(reply.tokens) == rig.model.decode([0, 1, 0, 1], 16, sampler=sampler)


def test_modes_without_verification_draw_with_the_same_noise(make_rig: MakeRig) -> None:
    """INT4 that agrees draws FP16's tokens: the noise belongs to seed and position, not to who asks."""
    rig = make_rig("always")
    common = {"temperature": 1.0, "seed": 9, "max_new_tokens": 25, "ignore_eos": True}
    assert rig.session.generate("ab", mode="int4", **common).tokens == rig.session.generate("ab", **common).tokens


def test_seeds_differ_and_repeat(make_rig: MakeRig) -> None:
    """A seed gives one text, another seed another one."""
    rig = make_rig()
    common = {"temperature": 1.5, "max_new_tokens": 25, "ignore_eos": True}
    texts = [rig.session.generate("ab", seed=seed, **common).tokens for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_a_missing_seed_is_drawn_and_reported(make_rig: MakeRig) -> None:
    """Without a seed each generation draws one; with the one it reports it can be repeated."""
    rig = make_rig()
    common = {"temperature": 1.5, "max_new_tokens": 25, "ignore_eos": True}
    first, second = (rig.session.generate("ab", **common) for _ in range(2))
    assert first.stats.seed != second.stats.seed
    assert rig.session.generate("ab", seed=first.stats.seed, **common).tokens == first.tokens
    assert rig.session.generate("ab", max_new_tokens=2).stats.seed is None


def test_repetition_penalty_works_through_drafts(make_rig: MakeRig) -> None:
    """Greedy text that loops stops looping, and drafts see the same history as FP16 does."""
    loop = dict.fromkeys(range(2, 40, 2), 0)  # every other token is the same one
    rig = make_rig("sometimes", model={"forced": loop, "vocab_size": 8})
    common = {"max_new_tokens": 30, "ignore_eos": True, "repetition_penalty": 10.0}
    penalized = rig.session.generate("bb", draft_length=4, **common).tokens
    assert penalized == rig.session.generate("bb", mode="fp16", **common).tokens
    assert Counter(penalized)[0] < Counter(rig.expected("bb", 30))[0]


def exact_distribution(model: Any, sampler: Sampler, count: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every continuation of ``count`` tokens, from the toy's own softmaxes."""
    known = {(): 1.0}
    for _ in range(count):
        known = {
            (*path, token): weight * float(probability)
            for path, weight in known.items()
            for token, probability in enumerate(next_probabilities(model, sampler, path))
        }
    return known


def next_probabilities(model: Any, sampler: Sampler, path: tuple[int, ...]) -> Any:
    """Return the distribution of the token after the prompt and ``path``."""
    text = [*PROMPT, *path]
    row = model.row(model.identity(text), len(text))
    return sampler.distribution(row, history=text)


def critical_chi_square(freedom: int) -> float:
    """Return the value a true hypothesis exceeds once in ten thousand times (Wilson and Hilferty's approximation)."""
    spread = 2.0 / (9.0 * freedom)
    return freedom * float(1.0 - spread + 3.72 * sqrt(spread)) ** 3


def chi_square(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom; cells that expect less than five are taken together."""
    total = sum(counts.values())
    assert set(counts) <= {path for path, probability in expected.items() if probability > 0.0}
    cells = [(counts[path], total * probability) for path, probability in expected.items()]
    large = [cell for cell in cells if cell[1] >= 5.0]
    small = [cell for cell in cells if cell[1] < 5.0]
    rest = (sum(count for count, _ in small), sum(wanted for _, wanted in small))
    kept = [*large, rest] if rest[1] >= 5.0 else large
    return sum((count - wanted) ** 2 / wanted for count, wanted in kept), len(kept) - 1


@pytest.mark.parametrize(("drafter", "top_p"), [("self", 1.0), ("self", 0.85), ("model", 1.0)])
@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_distribution_is_the_targets(make_rig: MakeRig, agreement: str, drafter: str, top_p: float) -> None:
    """Over seeds, three tokens drafted and verified follow FP16's joint distribution on a vocabulary of four."""
    rig = make_rig(agreement, draft=agreement, model={"vocab_size": 4, "scales": (0.4, 0.8, 1.3)})
    sampler = Sampler(SamplingConfig(temperature=1.2, top_p=top_p, seed=0), 4)
    common = {"temperature": 1.2, "top_p": top_p, "max_new_tokens": 3, "ignore_eos": True}
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = drafted = 0
    for seed in range(GENERATIONS):
        reply = rig.session.generate(PROMPT, drafter=drafter, draft_length=2, seed=seed, **common)
        counts[reply.tokens] += 1
        accepted, drafted = accepted + reply.stats.accepted, drafted + reply.stats.drafted
    statistic, freedom = chi_square(counts, exact_distribution(rig.model, sampler, 3))
    assert statistic < critical_chi_square(freedom), f"chi-square {statistic:.1f} at {freedom} degrees of freedom"
    assert drafted
    assert (accepted == drafted) == (agreement == "always")


def test_the_chi_square_test_can_fail(make_rig: MakeRig) -> None:
    """Unverified INT4 that never agrees is told from the target by the same test and the same number of texts."""
    rig = make_rig("never", model={"vocab_size": 4, "scales": (0.4, 0.8, 1.3)})
    sampler = Sampler(SamplingConfig(temperature=1.2, seed=0), 4)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(GENERATIONS):
        counts[rig.session.generate(PROMPT, mode="int4", temperature=1.2, seed=seed, max_new_tokens=3).tokens] += 1
    whole = Counter({path: count for path, count in counts.items() if len(path) == 3})
    statistic, freedom = chi_square(whole, exact_distribution(rig.model, sampler, 3))
    assert statistic > critical_chi_square(freedom)
