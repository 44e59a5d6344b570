"""Speculation that does not pay switches itself off: a budget of lost time, counted in plain FP16 steps.

The budget starts with ``START_STEPS``, grows by ``STEPS_PER_TOKEN`` with every emitted token, and every speculative
round takes from it what it cost beyond plain decoding of the same tokens, or adds what it saved. A round may only
draft as far as the worst case, all of it rejected, stays within the budget. So speculation that always fails costs at
most ``START_STEPS + STEPS_PER_TOKEN * tokens`` plain steps: 2.3 % of 128 tokens, 1.5 % in the long run. What was
saved counts up to ``LARGEST_STEPS``, so a text that turns bad cannot eat up all that a good one has won.

What is left goes on in the next sequence of a session, and the bound is then one on all its sequences together: a
hopeless reply after good ones may lose the ``LARGEST_STEPS`` that they saved.

While measured costs keep drafts off (the chosen cap is 0, or theta_high is), a draft is tried now and then: after
``PROBE_TOKENS`` plain tokens, after twice as many when it fails, and so on up to ``LONGEST_PROBE_TOKENS``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgeprec.costs import CostModel

__all__ = ["Guard", "guard_notes"]

START_STEPS = 1.0
STEPS_PER_TOKEN = 0.015
LARGEST_STEPS = 8.0
PROBE_TOKENS = 32
LONGEST_PROBE_TOKENS = 256
_FEW_PLAIN_SAMPLES = 2
_CLIP = 2.0  # a round counts as at most so many times what it was expected to cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The budget of lost plain steps and the schedule of trials, as a value."""

    budget_steps: float = START_STEPS
    tokens: int = 0
    plain_samples: int = 0
    tokens_since_plain: int = 0
    tokens_since_draft: int = 0
    probe_tokens: int = PROBE_TOKENS

    def allowed_cap(self, wanted: int, costs: CostModel, *, rung: int = 0) -> int:
        """Return the largest cap up to ``wanted`` whose rejection the budget covers. Costs not known yet count as 1."""
        plain = costs.round_cost(0)
        for cap in range(wanted, 0, -1):
            worst = costs.round_cost(cap, rung=rung)
            steps = 0.5 * cap if worst is None or plain is None else worst / plain - 1.0
            if steps <= self.budget_steps:
                return cap
        return 0

    def carried_on(self, *, plain_samples: int) -> Guard:
        """Return the guard of the next sequence: its budget and its trials go on."""
        return replace(self, tokens=0, plain_samples=plain_samples, tokens_since_plain=0)

    @property
    def is_probe_due(self) -> bool:
        """Whether a single token should be drafted although the chosen cap is 0."""
        return self.tokens_since_draft >= self.probe_tokens

    def is_plain_sample_due(self, gain: float) -> bool:
        """Return whether a plain step should be timed; ``gain`` is tokens per second over plain decoding's.

        A plain step costs what speculation would have gained, so the closer the two are the more often it is timed.
        """
        if self.plain_samples < _FEW_PLAIN_SAMPLES:
            return True
        interval = 16 if gain < 1.15 else 64 if gain < 1.4 else 256
        return self.tokens_since_plain >= interval

    def after_plain(self, tokens: int = 1) -> Guard:
        """Return the guard after a plain round."""
        return replace(
            self._grown(tokens),
            plain_samples=self.plain_samples + 1,
            tokens_since_plain=0,
            tokens_since_draft=self.tokens_since_draft + tokens,
        )

    def after_draft(
        self, *, emitted: int, cost: float, expected: float | None, plain: float | None, paid: bool, is_probe: bool
    ) -> Guard:
        """Return the guard after a speculative round.

        ``cost`` is what it took, ``expected`` what the cost model thought, ``plain`` a plain step, all in one unit;
        ``paid`` says whether any drafted token was accepted, ``is_probe`` whether the round was only a trial.
        """
        grown = self._grown(emitted)
        counted = cost if expected is None else min(cost, _CLIP * expected)
        lost = 0.0 if plain is None else counted / plain - emitted
        longer = min(2 * self.probe_tokens, LONGEST_PROBE_TOKENS) if is_probe else self.probe_tokens
        return replace(
            grown,
            budget_steps=min(grown.budget_steps - lost, LARGEST_STEPS),
            tokens_since_plain=self.tokens_since_plain + emitted,
            tokens_since_draft=0,
            probe_tokens=PROBE_TOKENS if paid else longer,
        )

    def _grown(self, tokens: int) -> Guard:
        budget = min(self.budget_steps + STEPS_PER_TOKEN * tokens, LARGEST_STEPS)
        return replace(self, budget_steps=budget, tokens=self.tokens + tokens)


def guard_notes(off: int, rounds: int) -> Iterator[str]:
    """Say so where speculation drafted nothing in ``off`` of ``rounds`` rounds because it does not pay."""
    if off:
        yield (
            f"speculation switched itself off in {off} of {rounds} rounds: with this drafter, text and device "
            "it does not beat plain FP16 decoding"
        )
