"""How many tokens to draft at most: the cap that gives the most tokens for the time or the energy of a round.

With acceptance a_i and reach r_i by place (see ``acceptance.DraftProfile``) a round with cap K

    emits   1 + sum_{i=1..K} r_i a_1 ... a_i                      tokens
    costs   sum_{d=0..K} P(d drafted) (draft(d) + verify(d + 1))

where P(d drafted) = r_d - r_{d+1} below the cap and r_K at it. K = 0 is a plain step. The best K maximises

    tokens / (seconds^(1 - e) * joules^e)

with e = 0 for speed, e = 1 for energy; e > 1 gives up speed for lower power, as a power budget asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeprec.costs import CostModel

__all__ = [
    "DECIDE_EVERY_ROUNDS",
    "LEAST_DRAFTS",
    "LEAST_GAIN",
    "OPEN_LOSS",
    "CapChoice",
    "CapProblem",
    "survival_floor",
]

DECIDE_EVERY_ROUNDS = 8
LEAST_GAIN = 1.03
LEAST_DRAFTS = 3
OPEN_LOSS = 1.1  # what a longer cap may promise less where a rule ends drafts before it


@dataclass(frozen=True, slots=True, kw_only=True)
class CapProblem:
    """What a cap is chosen from. ``joules`` None leaves only speed."""

    acceptance: tuple[float, ...]
    reach: tuple[float, ...]
    seconds: CostModel
    joules: CostModel | None = None
    rung: int = 0
    energy_exponent: float = 0.0

    def tokens(self, cap: int) -> float:
        """Return the tokens a round with this cap emits on average."""
        total = survival = 1.0
        for reach, rate in zip(self.reach[:cap], self.acceptance[:cap], strict=True):
            survival *= rate
            total += reach * survival
        return total

    def score(self, cap: int) -> float | None:
        """Return tokens per cost; None while a cost is not known."""
        seconds = self._cost(self.seconds, cap)
        if seconds is None:
            return None
        joules = None if self.joules is None else self._cost(self.joules, cap)
        if joules is None or self.energy_exponent == 0.0:
            return self.tokens(cap) / seconds
        cost: float = seconds ** (1.0 - self.energy_exponent) * joules**self.energy_exponent
        return self.tokens(cap) / cost

    def scores(self, largest: int) -> list[float] | None:
        """Return the score of every cap from 0 to ``largest``; None while a cost is not known."""
        scores = [self.score(cap) for cap in range(largest + 1)]
        known = [score for score in scores if score is not None]
        return known if len(known) == len(scores) else None

    def _cost(self, costs: CostModel, cap: int) -> float | None:
        reach, total = (1.0, *self.reach[:cap], 0.0), 0.0
        for drafted in range(cap + 1):
            cost = costs.round_cost(drafted, rung=self.rung)
            if cost is None:
                return None
            total += (reach[drafted] - reach[drafted + 1]) * cost
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChoice:
    """The cap in use and its age in rounds, as a value.

    It stays what it was until three drafts have been timed, is then looked at every 8 rounds, and changes only for a
    gain of more than 3 %. Where a rule ends each draft by what it looks like (``is_open``), the cap is only in its way:
    it is the longest one that promises no less than the best by more than 10 %, for averages know less than the rule.
    """

    cap: int
    rounds: int = 0
    is_decided: bool = False

    @property
    def is_due(self) -> bool:
        """Whether the cap is to be looked at before the coming round."""
        return not self.is_decided or self.rounds >= DECIDE_EVERY_ROUNDS

    def aged(self) -> CapChoice:
        """Return the choice one round later, unchanged."""
        return replace(self, rounds=self.rounds + 1)

    def decided(self, problem: CapProblem, *, largest: int, is_open: bool = False) -> CapChoice:
        """Return the choice for the coming 8 rounds; undecided as long as too few drafts were timed."""
        scores = problem.scores(largest)
        if scores is None or problem.seconds.draft_samples(problem.rung) < LEAST_DRAFTS:
            return self
        best = max(range(len(scores)), key=scores.__getitem__)
        is_better = self.cap > largest or scores[best] > LEAST_GAIN * scores[self.cap]
        cap = best if is_better else self.cap
        if is_open and cap:
            longer = range(largest, cap, -1)
            cap = next((at for at in longer if OPEN_LOSS * scores[at] >= scores[best]), cap)
        return CapChoice(cap=cap, rounds=1, is_decided=True)


def survival_floor(costs: CostModel, *, cap: int, rate: float, tokens_per_cost: float, rung: int = 0) -> float:
    """Return the survival of the tokens drafted so far below which one more does not pay; 0 while a cost is unknown.

    One more token costs a draft step and a row, and brings ``survival * rate`` tokens. It raises tokens per cost when
    that ratio exceeds the one there is, ``tokens_per_cost``; ``rate`` is the acceptance to expect of the next token.
    The row is the average one up to the cap: a single badly timed count of rows must not end all drafts before it. The
    step is the average one too: the first token's, which pays for what every draft costs, is drafted by then.
    """
    plain, longest, step = costs.verify.cost(1), costs.verify.cost(cap + 1), costs.draft_step(rung)
    if plain is None or longest is None or step is None or not cap or rate <= 0.0:
        return 0.0
    return (step + (longest - plain) / cap) * tokens_per_cost / rate
