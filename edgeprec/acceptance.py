"""How likely FP16 is to accept a drafted token, learned from what it accepted before.

Two views of the same rounds. ``AcceptanceTable`` looks at the token: entropy bin by margin bin, starting from the
calibration's counts. ``DraftProfile`` looks at the place in the draft: how often the drafter gets to an i-th token at
all before a stop rule ends it, and how often that token is then accepted.

Both are censored at the first rejection: what follows it was drafted on a wrong text, so it is no trial. What is
counted is the probability of acceptance given that everything before was accepted, and a product of those is a
survival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

from edgeprec.calibration import ENTROPY_EDGES_BITS, MARGIN_EDGES, AgreementGrid, cell_index
from edgeprec.thresholds import cell_rates, falling

__all__ = ["UNSEEN_CELL", "AcceptanceTable", "DraftProfile", "expected_tokens", "table_cell"]

_COLUMNS = len(MARGIN_EDGES) + 1
_CELLS = (len(ENTROPY_EDGES_BITS) + 1) * _COLUMNS
UNSEEN_CELL = _CELLS  # of tokens from a drafter that shows no logits (n-gram lookup)
_PRIOR_TOKENS = 20.0
_GUESS_TOKENS = 2.0  # the same for a guess
_PLACE_TOKENS = 4.0  # what the rest of the draft may weigh in one place
_ROW_TOKENS = 4.0  # what the overall rate weighs in an entropy bin
_NATS_PER_BIT = 0.6931471805599453


def table_cell(entropy_bits: float | None, margin: float | None) -> int:
    """Return the table's cell of a drafted token."""
    return UNSEEN_CELL if entropy_bits is None or margin is None else cell_index(entropy_bits, margin)


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Return the tokens a round emits on average: FP16's own and every drafted one that survives.

    ``acceptance[i]`` is the probability that drafted token i is accepted when all before it were.
    """
    total = survival = 1.0
    for rate in acceptance:
        survival *= rate
        total += survival
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceTable:
    """Acceptance by cell, as a value: ``updated`` returns the next table.

    A cell's rate is Beta-smoothed: (prior_rate * prior_tokens + accepted) / (prior_tokens + trials). Each update first
    multiplies the counts by ``forgetting``, so that a change of text is noticed.
    """

    prior_rates: tuple[float, ...]  # [33]
    prior_tokens: tuple[float, ...]
    prior_weights: tuple[float, ...]  # how often each cell is met, where that was measured
    trials: tuple[float, ...] = (0.0,) * (_CELLS + 1)
    accepted: tuple[float, ...] = (0.0,) * (_CELLS + 1)
    forgetting: float = 0.99

    @classmethod
    def from_grid(
        cls, grid: AgreementGrid | None, *, forgetting: float = 0.99, prior_tokens: float = _PRIOR_TOKENS
    ) -> AcceptanceTable:
        """Start from a calibration's counts, or from a guess by entropy where there is none.

        ``prior_tokens`` is the most the calibration may weigh in a cell against what is seen on this text.
        """
        if grid is None or not grid.tokens:
            rates = tuple(_guessed_rate(cell // _COLUMNS) for cell in range(_CELLS))
            tokens, weights = (_GUESS_TOKENS,) * _CELLS, (1.0 / _CELLS,) * _CELLS
        else:
            rates = cell_rates(grid)
            tokens = tuple(min(prior_tokens, _GUESS_TOKENS + trials) for trials in grid.trials)
            weights = tuple(trials / grid.tokens for trials in grid.trials)
        return cls(
            prior_rates=(*rates, 0.5),
            prior_tokens=(*tokens, _GUESS_TOKENS),
            prior_weights=(*weights, 0.0),
            forgetting=forgetting,
        )

    def rate(self, cell: int) -> float:
        """Return the probability that FP16 accepts a token of this cell."""
        prior = self.prior_tokens[cell]
        return (self.prior_rates[cell] * prior + self.accepted[cell]) / (prior + self.trials[cell])

    @property
    def rates(self) -> tuple[float, ...]:
        """Return the rate of every cell [33]."""
        return tuple(map(self.rate, range(_CELLS + 1)))

    @property
    def frequencies(self) -> tuple[float, ...]:
        """Return how often each cell is met [33], counts and calibration together; they sum to 1."""
        met = [weight * _PRIOR_TOKENS + trials for weight, trials in zip(self.prior_weights, self.trials, strict=True)]
        total = sum(met)
        return tuple(value / total for value in met) if total else (1.0 / len(met),) * len(met)

    @property
    def mean_rate(self) -> float:
        """Return the acceptance to expect of a token not yet drafted."""
        return sum(rate * share for rate, share in zip(self.rates, self.frequencies, strict=True))

    @property
    def rates_by_entropy(self) -> tuple[float, ...]:
        """Return the acceptance seen in each entropy bin [8], never rising with entropy.

        A bin not met yet has the rate of all: it is tried, not given up on a guess. Nothing met at all = 1 everywhere.
        """
        trials = [sum(self.trials[row : row + _COLUMNS]) for row in range(0, _CELLS, _COLUMNS)]
        accepted = [sum(self.accepted[row : row + _COLUMNS]) for row in range(0, _CELLS, _COLUMNS)]
        overall = sum(accepted) / sum(trials) if sum(trials) else 1.0
        rates = [
            (good + _ROW_TOKENS * overall) / (count + _ROW_TOKENS) for good, count in zip(accepted, trials, strict=True)
        ]
        return falling(rates, [count + _ROW_TOKENS for count in trials])

    def updated(self, cells: Sequence[int], *, accepted: int) -> AcceptanceTable:
        """Count a verified draft: ``cells`` of its tokens in order, of which the first ``accepted`` were accepted."""
        trials = cells[: accepted + 1]
        return self.counted(trials, [index < accepted for index in range(len(trials))])

    def counted(self, cells: Sequence[int], outcomes: Sequence[bool]) -> AcceptanceTable:
        """Count tokens that were each judged on a text that stood: no censoring."""
        if not cells:
            return self
        trials = [count * self.forgetting for count in self.trials]
        accepted = [count * self.forgetting for count in self.accepted]
        for cell, outcome in zip(cells, outcomes, strict=True):
            trials[cell] += 1.0
            accepted[cell] += outcome
        return replace(self, trials=tuple(trials), accepted=tuple(accepted))


def _guessed_rate(entropy_bin: int) -> float:
    """Return AdaEDL's lower bound on acceptance, 1 - sqrt(0.2 H), at the bin's upper edge, kept off 0 and 1."""
    upper_bits = (*ENTROPY_EDGES_BITS, 2.0 * ENTROPY_EDGES_BITS[-1])[entropy_bin]
    return max(1.0 - sqrt(0.2 * upper_bits * _NATS_PER_BIT), 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftProfile:
    """Reach and acceptance by place in the draft, 1 to ``places``, as a value.

    ``asked[i]`` counts drafts that stood at i tokens and were allowed one more, ``reached[i]`` those that made it;
    ``tried`` and ``accepted`` count verified tokens. Older rounds fade by ``forgetting``.
    """

    asked: tuple[float, ...]
    reached: tuple[float, ...]
    tried: tuple[float, ...]
    accepted: tuple[float, ...]
    forgetting: float = 0.98

    @classmethod
    def empty(cls, places: int, *, forgetting: float = 0.98) -> DraftProfile:
        """Return the profile before the first round."""
        zeros = (0.0,) * places
        return cls(asked=zeros, reached=zeros, tried=zeros, accepted=zeros, forgetting=forgetting)

    def updated(self, *, drafted: int, accepted: int, cap: int) -> DraftProfile:
        """Count one round that was allowed ``cap`` tokens, drafted some and had ``accepted`` of them accepted."""
        cap = min(cap, len(self.asked))
        return replace(
            self,
            asked=self._faded(self.asked, min(drafted + 1, cap)),
            reached=self._faded(self.reached, min(drafted, cap)),
            tried=self._faded(self.tried, min(accepted + 1, drafted)),
            accepted=self._faded(self.accepted, accepted),
        )

    def with_acceptance_of(self, other: DraftProfile) -> DraftProfile:
        """Return the profile with another's verified tokens; how far drafts got stays this one's own."""
        return replace(self, tried=other.tried, accepted=other.accepted)

    def faded(self, keep: float) -> DraftProfile:
        """Return the profile with every count multiplied by ``keep``: time has passed without a draft."""
        return replace(
            self,
            asked=tuple(keep * count for count in self.asked),
            reached=tuple(keep * count for count in self.reached),
            tried=tuple(keep * count for count in self.tried),
            accepted=tuple(keep * count for count in self.accepted),
        )

    def acceptance(self, default: float) -> tuple[float, ...]:
        """Return the rate of each place given all before; ``default`` stands for what was not tried.

        A place without trials of its own takes the rate of the one before it.
        """
        rates: list[float] = []
        for tried, accepted in zip(self.tried, self.accepted, strict=True):
            default = (accepted + _PLACE_TOKENS * default) / (tried + _PLACE_TOKENS)
            rates.append(default)
        return tuple(rates)

    def reach(self) -> tuple[float, ...]:
        """Return the probability that a draft without a cap gets to each place before a rule stops it.

        A place that no draft was allowed to try is reached from the one before as often as that one was.
        """
        probability = step = 1.0
        reach: list[float] = []
        for asked, reached in zip(self.asked, self.reached, strict=True):
            step = (reached + step) / (asked + 1.0)
            probability *= step
            reach.append(probability)
        return tuple(reach)

    def _faded(self, counts: tuple[float, ...], places: int) -> tuple[float, ...]:
        return tuple(count * self.forgetting + (place < places) for place, count in enumerate(counts))
