"""Whole sequences on a simulated device: noisy clocks, stalls, texts of known difficulty. Costs in plain FP16 steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from edgeprec.calibration import AgreementGrid, Calibration, StepCosts
from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, Mode
from edgeprec.controller import Controller, Verification
from edgeprec.guard import LARGEST_STEPS, STEPS_PER_TOKEN
from edgeprec.speculation import Learned, RoundResult, Speculation
from edgeprec.thresholds import find_thresholds

_NS = 10_000_000  # a plain step
_DRAFT, _ROW = 0.33, 0.03
_SEEDS = range(6)


@dataclass(frozen=True)
class _Text:
    """Per token: FP16's entropy, the draft's margin, and whether the draft would be right."""

    entropy_bits: npt.NDArray[np.float64]
    margin: npt.NDArray[np.float64]
    agrees: npt.NDArray[np.bool_]


def _text(seed: int, tokens: int, *, bits: float, slope: float = 0.28) -> _Text:
    """Entropy wanders around ``bits``; the draft is right with probability 0.98 - slope * entropy."""
    rng = np.random.default_rng(seed)
    walk = np.zeros(tokens)
    for i in range(1, tokens):
        walk[i] = 0.5 * walk[i - 1] + 0.87 * rng.standard_normal()
    entropy = np.clip(bits * np.exp(walk - 0.5), 0.0, 14.0)
    margin = 6.0 * np.exp(-0.7 * entropy + 0.3 * rng.standard_normal(tokens))
    chance = np.zeros(tokens) if np.isinf(slope) else np.clip(0.98 - slope * entropy, 0.03, 0.99)
    return _Text(entropy, margin, rng.random(tokens) < chance)


def _calibration() -> Calibration:
    text = _text(99, 8_000, bits=0.8)
    grid = AgreementGrid.count(text.entropy_bits, text.margin, text.agrees)
    low, high = find_thresholds(grid, costs=StepCosts())
    return Calibration(int4=grid, theta_low_bits=low, theta_high_bits=high, layer_order=(0, 1), sensitivity=(2.0, 1.0))


_CALIBRATION = _calibration()


@dataclass(frozen=True)
class _Run:
    speedup: float  # over plain decoding, with the true costs
    drafted: int
    drafts: int
    learned: Learned
    fallbacks: tuple[str, ...]


def _generate(
    text: _Text,
    *,
    seed: int,
    drafting: DraftingConfig | None = None,
    draft_step: float = _DRAFT,
    learned: Learned | None = None,
    growth: float = 0.0,
    slow_drafts: int = 0,
) -> _Run:
    """Run the controller through a text. It sees clocks that err by 10 % and stall once in a hundred steps.

    ``growth`` makes every step dearer by that share per token, as a longer context does; the first ``slow_drafts``
    drafts take ten times what others do, as on a device that other work shares for a while.
    """
    rng = np.random.default_rng(1_000 + seed)

    def seen_ns(steps: float) -> int:
        stall = 5.0 if rng.random() < 0.01 else 1.0
        return int(steps * stall * np.exp(0.1 * rng.standard_normal()) * _NS)

    controller = Controller(
        mode=Mode.EXACT,
        config=ControllerConfig(),
        drafting=drafting or DraftingConfig(),
        calibration=_CALIBRATION,
        drafter=DrafterKind.SELF,
        num_layers=2,
        learned=learned,
    )
    controller.observe_prefill(float(text.entropy_bits[0]))
    tokens, position, spent, drafted_all, drafts = len(text.agrees), 1, 0.0, 0, 0
    while position < tokens:
        decision = controller.begin_round(room_tokens=min(15, tokens - position - 1))
        factor, drafted, stop, draft_ns = 1.0 + growth * position, 0, None, 0
        drafts += decision.draft_cap > 0
        draft_factor = factor * (10.0 if drafts <= slow_drafts else 1.0)
        while decision.draft_cap and stop is None:
            at = position + drafted
            bits = float(text.entropy_bits[at] * np.exp(0.1 * rng.standard_normal()))
            stop = controller.observe_draft(bits, float(text.margin[at])).stop
            draft_ns += seen_ns(draft_step * draft_factor)
            drafted += 1
        accepted = 0
        while accepted < drafted and text.agrees[position + accepted]:
            accepted += 1
        emitted = min(accepted + 1, tokens - position)
        spent += drafted * draft_step * draft_factor + (1.0 + _ROW * drafted) * factor
        controller.observe_verify(
            Verification(
                accepted=accepted,
                entropy_bits=[float(bits) for bits in text.entropy_bits[position : position + emitted]],
                rows=drafted + 1,
                draft_ns=draft_ns,
                verify_ns=seen_ns((1.0 + _ROW * drafted) * factor),
            )
        )
        position += emitted
        drafted_all += drafted
    plain = sum(1.0 + growth * at for at in range(1, tokens))
    return _Run(plain / spent, drafted_all, drafts, controller.learned, controller.fallbacks)


_KINDS = {"easy": (0.25, 0.28), "prose": (0.8, 0.28), "hard": (2.5, 0.28), "overrated": (0.8, 0.84)}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("tokens", [128, 600])
def test_exact_is_never_slower_than_plain_by_more_than_three_percent(kind: str, tokens: int) -> None:
    """On every kind of text, also one the calibration overrates, each single run stays above 97 % of plain decoding."""
    bits, slope = _KINDS[kind]
    speedups = [_generate(_text(seed, tokens, bits=bits, slope=slope), seed=seed).speedup for seed in _SEEDS]
    assert min(speedups) >= 0.97, speedups


@pytest.mark.parametrize("draft_step", [0.1, 0.33, 0.9])
@pytest.mark.parametrize("bits", [0.1, 0.8])
def test_a_text_on_which_no_draft_is_ever_right(bits: float, draft_step: float) -> None:
    """The adversary: low entropy, always rejected. The guard stops it within 3 % and says so."""
    for seed in _SEEDS:
        run = _generate(_text(seed, 160, bits=bits, slope=float("inf")), seed=seed, draft_step=draft_step)
        assert run.speedup >= 0.97
        assert any("switched itself off" in note for note in run.fallbacks)


@pytest.mark.parametrize("kind", _KINDS)
def test_adaptive_keeps_up_with_the_best_fixed_length(kind: str) -> None:
    """Once costs are known, the adaptive length is within 4 % of the best fixed K of this text, on average."""
    bits, slope = _KINDS[kind]

    def mean(drafting: DraftingConfig | None, learned: Learned | None) -> float:
        runs = [
            _generate(_text(s, 500, bits=bits, slope=slope), seed=s, drafting=drafting, learned=learned) for s in _SEEDS
        ]
        return float(np.mean([run.speedup for run in runs]))

    learned = _generate(_text(77, 500, bits=bits, slope=slope), seed=77).learned
    fixed = {k: mean(DraftingConfig(draft_length=k), None) for k in (1, 2, 3, 4, 5, 8)}
    assert mean(None, learned) >= 0.96 * max(fixed.values()), fixed


def test_a_growing_context_does_not_mislead_the_guard() -> None:
    """Steps that become three times dearer over a sequence are no reason to stop speculation that pays."""
    runs = [_generate(_text(seed, 800, bits=0.25), seed=seed, growth=0.0025) for seed in _SEEDS]
    assert float(np.mean([run.speedup for run in runs])) > 1.5


def test_a_text_that_turns_bad_is_noticed() -> None:
    """After 200 good tokens nothing is accepted any more: what was won is kept but for a few steps."""
    for seed in _SEEDS:
        good, bad = _text(seed, 200, bits=0.25), _text(seed, 400, bits=0.25, slope=float("inf"))
        whole = _Text(*(np.concatenate(pair) for pair in zip(_columns(good), _columns(bad), strict=True)))
        steps = 599 / _generate(whole, seed=seed).speedup
        alone = 199 / _generate(good, seed=seed).speedup
        assert steps <= alone + 400 * 1.04 + 2.0


def _columns(text: _Text) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return a text's columns."""
    return text.entropy_bits, text.margin, text.agrees


def test_a_text_that_turns_good_is_noticed() -> None:
    """After 300 hopeless tokens trials find out that drafting pays again."""
    for seed in _SEEDS:
        bad, good = _text(seed, 300, bits=0.25, slope=float("inf")), _text(seed, 1_500, bits=0.25)
        whole = _Text(*(np.concatenate(pair) for pair in zip(_columns(bad), _columns(good), strict=True)))
        assert _generate(whole, seed=seed).speedup > 1.25


def test_same_clock_same_decisions() -> None:
    """Replaying a sequence replays every decision."""
    text = _text(5, 200, bits=0.8)
    assert _generate(text, seed=5) == _generate(text, seed=5)


@pytest.mark.parametrize("accepted", [0, 2])
def test_a_round_that_compiles_neither_costs_nor_earns(accepted: int) -> None:
    """Before drafts were timed, too: the guard's budget grows by its share of the tokens and no more."""
    plain = RoundResult(cells=(), accepted=0, emitted=1, cap=0, rung=0, rows=1, draft_s=0.0, verify_s=0.01)
    state = Speculation.start(Learned.start(None), largest_cap=8)
    for _ in range(2):
        state = state.after_round(plain, energy_exponent=0.0)
    first = replace(
        plain, cells=(1, 2), cap=2, rows=3, emitted=accepted + 1, accepted=accepted, draft_s=5.0, is_typical=False
    )
    after = state.after_round(first, energy_exponent=0.0)
    grown = STEPS_PER_TOKEN * first.emitted
    assert after.guard.budget_steps == pytest.approx(state.guard.budget_steps + grown)
    assert after.learned.seconds == state.learned.seconds


def test_adaptive_keeps_up_with_the_best_fixed_length_in_short_replies() -> None:
    """Replies of 32 tokens in one session, easy and hard ones mixed: what was learned and saved goes on.

    A guard that began anew in every reply decoded a third of such a reply plainly after one early rejection.
    """
    texts = [_text(seed, 32, bits=(0.25, 0.8)[seed % 2]) for seed in range(60)]

    def steps(drafting: DraftingConfig | None) -> float:
        learned, spent = None, 0.0
        for seed, text in enumerate(texts):
            run = _generate(text, seed=seed, drafting=drafting, learned=learned)
            learned, spent = run.learned, spent + 31.0 / run.speedup
        return spent

    fixed = {k: steps(DraftingConfig(draft_length=k)) for k in (1, 2, 3, 4, 5)}
    assert steps(None) <= min(fixed.values()), fixed


@pytest.mark.parametrize("tokens", [2_000, 40])
@pytest.mark.parametrize("slow_drafts", [1, 3, 6])
def test_a_device_that_was_slow_once_is_tried_again(tokens: int, slow_drafts: int) -> None:
    """Costs that forbid every draft, theta_high at 0, are doubted now and then, in short replies as in a long one."""
    learned, steps, notes = None, 0.0, list[str]()
    for seed in range(4_000 // tokens):
        text = _text(seed, tokens, bits=0.25)
        run = _generate(text, seed=seed, draft_step=0.14, learned=learned, slow_drafts=slow_drafts)
        learned, slow_drafts = run.learned, max(slow_drafts - run.drafts, 0)
        steps, notes = steps + (tokens - 1) / run.speedup, [*notes, *run.fallbacks]
    assert 4_000 / steps > 1.6
    assert any("switched itself off" in note for note in notes), notes


def test_what_was_saved_goes_on_in_the_next_sequence_and_no_more_than_that() -> None:
    """The guard's budget is the session's: over good and hopeless replies in turn, the bound holds for all together."""
    learned, steps, tokens = None, 0.0, 0
    for seed in range(12):
        text = _text(seed, 64, bits=0.25, slope=float("inf") if seed else 0.28)
        run = _generate(text, seed=seed, learned=learned)
        assert run.learned.guard.budget_steps <= LARGEST_STEPS
        learned, steps, tokens = run.learned, steps + (63.0 / run.speedup if seed else 0.0), tokens + 63 * bool(seed)
    assert steps <= tokens * (1.0 + STEPS_PER_TOKEN) + LARGEST_STEPS + 1.0


def test_lengths_set_by_hand_are_no_debt_of_the_guard() -> None:
    """After hopeless drafts of eight that were asked for, an adaptive sequence begins with the budget it had."""
    bad = _text(3, 100, bits=0.25, slope=float("inf"))
    learned = _generate(bad, seed=3, drafting=DraftingConfig(draft_length=8)).learned
    assert learned.guard.budget_steps == Learned.start(None).guard.budget_steps
    assert sum(learned.profile.asked) == 0.0
    assert learned.seconds.draft_samples() > 0


def _failing(state: Speculation, rounds: int, *, least_drafts: int = 0) -> tuple[Speculation, list[int]]:
    """Run rounds of which FP16 accepts nothing, without a guard; return their caps too."""
    caps = []
    for _ in range(rounds):
        state, plan = state.planned(rung=0, energy_exponent=0.0, is_guarded=False, least_drafts=least_drafts)
        caps.append(plan.cap)
        result = RoundResult(
            cells=(0,) * plan.cap,
            accepted=0,
            emitted=1,
            cap=plan.cap,
            rung=0,
            rows=plan.cap + 1,
            draft_s=_DRAFT * plan.cap,
            verify_s=1.0 + _ROW * plan.cap,
        )
        state = state.after_round(result, energy_exponent=0.0)
    return state, caps


@pytest.mark.parametrize(("least", "expected"), [(0, [0, 0, 0, 0, 0]), (3, [2, 2, 2, 0, 0])])
def test_a_new_text_may_be_tried_whatever_the_last_one_taught(least: int, expected: list[int]) -> None:
    """After texts on which no draft was right, the next one begins with so many drafts, and no more if they fail."""
    learned = Learned.start(None)
    for _ in range(3):
        learned = _failing(Speculation.start(learned, largest_cap=8), 60)[0].learned
    _, caps = _failing(Speculation.start(learned, largest_cap=8), len(expected), least_drafts=least)
    assert caps == expected
