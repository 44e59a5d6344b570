"""How far the next round may draft: what was learned of costs and acceptance, and the cap that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from edgeprec.acceptance import AcceptanceTable, DraftProfile
from edgeprec.calibration import AgreementGrid, StepCosts
from edgeprec.costs import CostModel
from edgeprec.drafting import LEAST_DRAFTS, CapChoice, CapProblem, survival_floor
from edgeprec.guard import Guard
from edgeprec.stop_rules import AdaedlThreshold, StopReason

__all__ = ["CapPlan", "Learned", "RoundResult", "Speculation"]

_FIRST_CAP = 2
_PLACES = 15
_ENOUGH_PLAIN_SAMPLES = 2
_PLAIN_KEEP = 0.99  # of the profile per plain round: an old verdict is looked at again
_SEQUENCE_KEEP = 0.25  # of the profile per sequence: another text


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What outlives a sequence: costs of this device and acceptance of this pair. Hand it to the next controller.

    The guard's budget is what speculation has saved, so that one rejected draft does not end it in a reply, and its
    trials go on, so that many short replies try again what looked too dear as one long reply does.
    """

    table: AcceptanceTable
    profile: DraftProfile = field(default_factory=lambda: DraftProfile.empty(_PLACES))
    seconds: CostModel = field(default_factory=CostModel)
    joules: CostModel = field(default_factory=CostModel)
    adaedl: AdaedlThreshold = field(default_factory=AdaedlThreshold)
    guard: Guard = field(default_factory=Guard)

    @classmethod
    def start(cls, grid: AgreementGrid | None) -> Learned:
        """Know the calibration's counts and no cost."""
        return cls(table=AcceptanceTable.from_grid(grid))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """A verified round: what was drafted (as table cells), accepted and emitted, and its costs in seconds and joules.

    ``outcomes`` None means that drafted tokens were judged up to the first rejection; otherwise every one was judged.
    Costs that are not ``is_typical`` are not learned, and count neither for nor against speculation. A round that is
    not ``is_chosen`` had its length set by hand: it teaches costs and acceptance by cell, and is no debt of the guard.
    """

    cells: Sequence[int]
    accepted: int
    emitted: int
    cap: int
    rung: int
    rows: int
    draft_s: float
    verify_s: float
    draft_j: float | None = None
    verify_j: float | None = None
    outcomes: Sequence[bool] | None = None
    is_typical: bool = True
    is_chosen: bool = True

    @property
    def drafted(self) -> int:
        """Return how many tokens were drafted."""
        return len(self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapPlan:
    """The cap of one round and why; drafting stops when survival falls below ``floor``."""

    cap: int
    reason: StopReason
    floor: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The adaptive part of a sequence, as a value. ``gain`` is the chosen cap's rate over plain decoding's.

    ``step_s`` and ``step_j`` are what a drafted token is expected to cost in longer drafts, where the drafter knows it:
    one that drafts in runs is dear in short drafts, and what it costs in those must not keep them short. ``is_open`` =
    a stop rule ends each draft by what its tokens look like; see ``CapChoice``.
    """

    learned: Learned
    largest_cap: int
    is_open: bool = False
    choice: CapChoice = field(default_factory=lambda: CapChoice(cap=_FIRST_CAP))
    guard: Guard = field(default_factory=Guard)
    gain: float = 1.0
    floor: float = 0.0
    rounds: int = 0
    guarded_rounds: int = 0
    drafts: int = 0  # rounds that drafted
    step_s: float | None = None
    step_j: float | None = None

    @classmethod
    def start(cls, learned: Learned, *, largest_cap: int, is_open: bool = False) -> Speculation:
        """Begin a sequence; a plain step timed before need not be timed again at once, and what was saved counts."""
        learned = replace(learned, profile=learned.profile.faded(_SEQUENCE_KEEP))
        samples = _ENOUGH_PLAIN_SAMPLES if learned.seconds.verify.has_measured(1) else 0
        guard = learned.guard.carried_on(plain_samples=samples)
        return cls(learned=learned, largest_cap=largest_cap, is_open=is_open, guard=guard)

    def planned(
        self, *, rung: int, energy_exponent: float, is_guarded: bool, least_drafts: int = 0
    ) -> tuple[Speculation, CapPlan]:
        """Return the state with this round's choice made, and the cap.

        The first ``least_drafts`` rounds of a text that may draft do, whatever an earlier text taught.
        """
        if self.guard.is_plain_sample_due(self.gain):
            return self, CapPlan(cap=0, reason=StopReason.SAMPLE)
        chosen = self._chosen(rung, energy_exponent)
        cap = chosen.choice.cap or int(self.guard.is_probe_due)
        if self.drafts < least_drafts:
            cap = max(cap, _FIRST_CAP)
        if is_guarded:
            cap = self.guard.allowed_cap(cap, self._guard_costs(energy_exponent), rung=rung)
        if cap:
            return chosen, CapPlan(cap=cap, reason=StopReason.CAP, floor=chosen.floor)
        guarded = replace(chosen, guarded_rounds=chosen.guarded_rounds + 1)
        return guarded, CapPlan(cap=0, reason=StopReason.GUARD)

    def rate(self, *, rung: int, energy_exponent: float) -> float | None:
        """Return the most tokens per cost that any cap promises; None until enough drafts were timed."""
        if self.learned.seconds.draft_samples(rung) < LEAST_DRAFTS:
            return None
        scores = self._problem(rung, energy_exponent).scores(self.largest_cap)
        return None if scores is None else max(scores)

    def token_costs(self, *, rung: int) -> tuple[float | None, float | None]:
        """Return the seconds and the joules a token costs with the best cap; None until enough drafts were measured."""
        rate = self.rate(rung=rung, energy_exponent=0.0)
        has_joules = rate is not None and self.learned.joules.round_cost(1, rung=rung) is not None
        per_joule = self.rate(rung=rung, energy_exponent=1.0) if has_joules else None
        return None if rate is None else 1.0 / rate, None if per_joule is None else 1.0 / per_joule

    def taking_over(self, other: Speculation) -> Speculation:
        """Return the state with the guard of another and what it learned of the verifying pass, which both share."""
        shared = self.with_verifying_of(other)
        return replace(shared, learned=replace(shared.learned, guard=other.guard), guard=other.guard)

    def with_verifying_of(self, other: Speculation) -> Speculation:
        """Return the state with what another learned of the cost of the verifying pass, which both share."""
        mine, theirs = self.learned, other.learned
        seconds = replace(mine.seconds, verify=theirs.seconds.verify)
        joules = replace(mine.joules, verify=theirs.joules.verify)
        return replace(self, learned=replace(mine, seconds=seconds, joules=joules))

    def with_drafts_of(self, other: Speculation) -> Speculation:
        """Return the state with what another learned of the drafter both share: a step's cost and its acceptance."""
        mine, theirs = self.learned, other.learned
        learned = replace(
            mine,
            table=theirs.table,
            profile=mine.profile.with_acceptance_of(theirs.profile),
            seconds=replace(mine.seconds, draft=theirs.seconds.draft),
            joules=replace(mine.joules, draft=theirs.joules.draft),
        )
        return replace(self, learned=learned)

    @property
    def seconds(self) -> CostModel:
        """Return the costs in seconds that decisions follow."""
        return self.learned.seconds.with_step(self.step_s)

    @property
    def joules(self) -> CostModel:
        """Return the costs in joules that decisions follow."""
        return self.learned.joules.with_step(self.step_j)

    @property
    def step_costs(self) -> StepCosts | None:
        """Return the costs theta_high depends on, as measured here; None until the cap was decided from them."""
        seconds = self.seconds
        plain, longest, step = seconds.round_cost(0), seconds.verify.cost(self.largest_cap + 1), seconds.draft_step()
        if not self.choice.is_decided or plain is None or longest is None or step is None:
            return None
        return StepCosts(draft_step=step, verify_row=(longest - plain) / self.largest_cap, plain_step=plain)

    def _chosen(self, rung: int, energy_exponent: float) -> Speculation:
        if not self.choice.is_due:
            return replace(self, choice=self.choice.aged())
        problem = self._problem(rung, energy_exponent)
        choice = self.choice.decided(problem, largest=self.largest_cap, is_open=self.is_open)
        speed = replace(problem, energy_exponent=0.0)
        plain, chosen = speed.score(0), speed.score(choice.cap)
        if not choice.is_decided or plain is None or chosen is None:
            return replace(self, choice=choice)
        floor = survival_floor(
            self.seconds,
            cap=self.largest_cap,
            rate=self.learned.table.mean_rate,
            tokens_per_cost=max(plain, chosen),
            rung=rung,
        )
        return replace(self, choice=choice, gain=chosen / plain, floor=floor)

    def _problem(self, rung: int, energy_exponent: float) -> CapProblem:
        learned = self.learned
        return CapProblem(
            acceptance=learned.profile.acceptance(learned.table.mean_rate),
            reach=learned.profile.reach(),
            seconds=self.seconds,
            joules=self.joules if energy_exponent else None,
            rung=rung,
            energy_exponent=energy_exponent,
        )

    def after_round(self, result: RoundResult, *, energy_exponent: float) -> Speculation:
        """Return the state after a verified round."""
        guard = self._guarded(result, energy_exponent)
        return replace(
            self,
            learned=replace(_learned(self.learned, result), guard=guard),
            choice=replace(self.choice, is_decided=False) if result.drafted and self._is_probing else self.choice,
            guard=guard,
            rounds=self.rounds + 1,
            drafts=self.drafts + (result.drafted > 0),
        )

    def _guarded(self, result: RoundResult, energy_exponent: float) -> Guard:
        if not result.is_chosen:
            return self.guard
        if not result.drafted:
            return self.guard.after_plain(result.emitted)
        costs = self._guard_costs(energy_exponent)
        expected, plain = costs.round_cost(result.drafted, rung=result.rung), costs.round_cost(0)
        cost = result.draft_s + result.verify_s
        if costs is self.learned.joules and result.draft_j is not None and result.verify_j is not None:
            cost = result.draft_j + result.verify_j
        if not result.is_typical:
            cost = result.emitted * (plain or 0.0) if expected is None else expected
        return self.guard.after_draft(
            emitted=result.emitted,
            cost=cost,
            expected=expected,
            plain=plain,
            paid=result.accepted > 0,
            is_probe=self._is_probing,
        )

    @property
    def _is_probing(self) -> bool:
        """Whether a draft now is only a trial: the chosen cap is 0, or theta_high kept drafts off until one was due."""
        return self.choice.cap == 0 or self.guard.is_probe_due

    def _guard_costs(self, energy_exponent: float) -> CostModel:
        """Return the costs that must not exceed plain decoding's: joules when those are asked for and measured."""
        joules = self.learned.joules
        return joules if energy_exponent and joules.round_cost(1) is not None else self.learned.seconds


def _learned(learned: Learned, result: RoundResult) -> Learned:
    common = {"rung": result.rung, "drafted": result.drafted, "rows": result.rows}
    seconds, joules = learned.seconds, learned.joules
    draft_j = 0.0 if not result.drafted else result.draft_j
    if result.is_typical:
        seconds = seconds.updated(**common, draft_cost=result.draft_s, verify_cost=result.verify_s)
    if result.is_typical and draft_j is not None and result.verify_j is not None:
        joules = joules.updated(**common, draft_cost=draft_j, verify_cost=result.verify_j)
    table, profile, adaedl = learned.table, learned.profile, learned.adaedl
    if result.outcomes is not None:
        table = table.counted(result.cells, result.outcomes)
    elif not result.cap:
        profile = profile.faded(_PLAIN_KEEP)
    else:
        table = table.updated(result.cells, accepted=result.accepted)
    if result.outcomes is None and result.cap and result.is_chosen:
        profile = profile.updated(drafted=result.drafted, accepted=result.accepted, cap=result.cap)
        adaedl = adaedl.updated(drafted=result.drafted, accepted=result.accepted)
    return replace(learned, table=table, profile=profile, seconds=seconds, joules=joules, adaedl=adaedl)
