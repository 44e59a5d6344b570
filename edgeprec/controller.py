"""The controller: from what a sequence's rounds showed, what the next round runs.

It is a pure function of its observations: no clock, device, random state or log. One round of a session is

    decision = controller.begin_round(room_tokens=...)
    while decision.draft_cap and not verdict.stop:
        verdict = controller.observe_draft(entropy_bits, margin)           # one drafted token
    controller.observe_verify(Verification(...))                           # one FP16 pass, its own token included

and in the modes that verify nothing, token by token,

    decision = controller.begin_round(room_tokens=1)
    controller.observe_token(entropy_bits)

Smoothed entropy runs over the draft's values while drafting and over FP16's for what was emitted; a rejection rewinds
it. A sequence in a batch has its own controller; a level of three-level drafting too, its target being the level above.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edgeprec.acceptance import table_cell
from edgeprec.bounded import VERIFY_EVERY_TOKENS, FlipBudget
from edgeprec.calibration import AgreementGrid, Calibration
from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, DraftRule, Mode, Objective
from edgeprec.decision import Decision, DraftVerdict, Verification
from edgeprec.drafting import LEAST_DRAFTS
from edgeprec.entropy import SmoothedEntropy
from edgeprec.errors import ConfigError
from edgeprec.flip_fit import FlipFit
from edgeprec.gears import Band, Gear, GearState, ladder
from edgeprec.governor import PowerBias
from edgeprec.guard import guard_notes
from edgeprec.precision import Plan, Precision
from edgeprec.speculation import CapPlan, Learned, RoundResult, Speculation
from edgeprec.stop_rules import StopReason, adaedl_stops, svip_stops
from edgeprec.thresholds import MAX_ENTROPY_BITS, entropy_rates, highest_paying_bits

__all__ = ["Controller", "Decision", "DraftVerdict", "Verification"]

_DEFAULT_BAND_BITS = (0.5, 2.5)  # without a calibration
_NO_BIAS = PowerBias()
_MODELS = (DrafterKind.SELF, DrafterKind.MODEL)


@dataclass(slots=True)
class _Round:
    """A round in progress: the entropy window and the survival grow with the draft."""

    decision: Decision
    rung: int
    floor: float
    at_cap: StopReason
    entropy: SmoothedEntropy
    energy_exponent: float
    survival: float = 1.0
    cells: list[int] = field(default_factory=list)


class Controller:
    """Decides for one sequence. Equal observations give equal decisions.

    ``drafter`` is who really drafts (not ``auto``); ``num_layers`` are the target's, ``draft_layers`` a draft model's.
    ``learned`` carries on from an earlier sequence on the same device and pair. Without ``has_guard`` measured costs
    alone decide whether to draft, once each text was tried: of a level below, whose losses the guard above counts.

    Raises:
        ConfigError: mode bounded without a calibration of the drafter, or thresholds out of order.
    """

    def __init__(
        self,
        *,
        mode: Mode,
        config: ControllerConfig,
        drafting: DraftingConfig,
        calibration: Calibration | None,
        drafter: DrafterKind,
        num_layers: int,
        draft_layers: int | None = None,
        learned: Learned | None = None,
        has_guard: bool = True,
    ) -> None:
        self._mode = mode
        self._has_guard = has_guard
        self._drafting = drafting
        self._drafter = drafter
        self._grid = _drafter_grid(calibration, drafter)
        learns_theta_high = calibration is None and mode is Mode.EXACT and drafter in _MODELS
        self._band = _band(config, calibration, is_open=learns_theta_high)
        self._moves_theta_high = config.theta_high_bits is None and (learns_theta_high or self._grid is not None)
        self._rates = None if self._grid is None else entropy_rates(self._grid)
        self._theta_low_bits = self._band.theta_low_bits
        self._has_default_band = calibration is None and None in (config.theta_low_bits, config.theta_high_bits)
        order = None if calibration is None else calibration.layer_order
        self._plans = ladder(
            num_layers=num_layers, middle_gears=config.middle_gears, order=order, gated_layers=config.gated_layers
        )
        self._model_plan = Plan.uniform(Precision.INT4, num_layers=draft_layers) if draft_layers else None
        self._entropy = SmoothedEntropy(config.window)
        self._gear = GearState.start(top=len(self._plans) - 1, band=self._band, first_bits=None)
        self._speculation = Speculation.start(
            Learned.start(self._grid) if learned is None else learned,
            largest_cap=drafting.max_draft_length,
            is_open=self._stops_on_entropy and not (drafting.three_level and drafter is DrafterKind.SELF),
        )
        self._fit: FlipFit | None = None
        self._flips: FlipBudget | None = None
        if mode is Mode.BOUNDED:
            self._fit, self._flips = self._flip_budget()
        self._round: _Round | None = None

    @property
    def learned(self) -> Learned:
        """Return what the next sequence may start from."""
        return self._speculation.learned

    @property
    def gear(self) -> Gear:
        """Return the gear entropy asks for."""
        return self._gear.gear

    @property
    def band(self) -> Band:
        """Return the thresholds in use; theta_high may follow the costs measured here."""
        return self._band

    @property
    def smoothed_bits(self) -> float | None:
        """Return the smoothed entropy of the emitted tokens."""
        return self._entropy.bits

    @property
    def guarded_rounds(self) -> tuple[int, int]:
        """Return in how many rounds nothing was drafted because it does not pay, and how many rounds there were."""
        return self._speculation.guarded_rounds, self._speculation.rounds

    def expected_rate(self, bias: PowerBias = _NO_BIAS) -> float | None:
        """Return the most tokens per measured cost that a cap promises; None until drafts were timed."""
        return self._speculation.rate(
            rung=self._draft_rung(self._gear.rung), energy_exponent=self._energy_exponent(bias)
        )

    def expect_draft_costs_of(self, below: Controller) -> None:
        """Take the cost of a drafted token in long drafts from the controller of the level that drafts."""
        step_s, step_j = below._speculation.token_costs(rung=0)
        self._speculation = replace(self._speculation, step_s=step_s, step_j=step_j)

    def take_drafts_of(self, other: Controller) -> None:
        """Take from another controller of the same draft model what its tokens cost and are worth on this text."""
        self._speculation = self._speculation.with_drafts_of(other._speculation)

    def take_verifying_of(self, other: Controller) -> None:
        """Take from another controller of the same target what its passes cost."""
        self._speculation = self._speculation.with_verifying_of(other._speculation)

    def follow(self, other: Controller) -> None:
        """Take the text as another controller knows it: smoothed entropy and gear."""
        self._entropy, self._gear = other._entropy, other._gear

    def take_over(self, other: Controller) -> None:
        """Go on where another controller of the same target stops: its text, its guard, what verifying costs."""
        self.follow(other)
        self._speculation = self._speculation.taking_over(other._speculation)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Return in words what did not run as asked."""
        return (*guard_notes(*self.guarded_rounds), *self.setting_notes)

    @property
    def setting_notes(self) -> tuple[str, ...]:
        """Return the part of the fallbacks that says which settings could not be met."""
        return tuple(note for note in (self._energy_note(), self._band_note()) if note is not None)

    def observe_prefill(self, entropy_bits: float) -> None:
        """Take FP16's entropy of the prompt's last row, from which the first token was chosen."""
        self._entropy = self._entropy.pushed(entropy_bits)
        self._gear = GearState.start(top=self._gear.top, band=self._band, first_bits=self._entropy.bits)

    def begin_round(self, *, room_tokens: int, bias: PowerBias = _NO_BIAS) -> Decision:
        """Decide the next round. ``room_tokens`` is how many tokens rows, context and limit let it draft."""
        rung = min(self._gear.rung, self._highest_rung(bias))
        exponent = self._energy_exponent(bias)
        is_verified = self._mode not in (Mode.GATED, Mode.INT4)
        draft_rung = self._draft_rung(rung) if is_verified else 0
        plan = self._cap_plan(rung, draft_rung, exponent, bias)
        cap = min(plan.cap, max(room_tokens, 0)) if is_verified else 1
        reason = plan.reason if cap == plan.cap or not is_verified else StopReason.BUFFER
        decision = Decision(
            gear=GearState(rung=rung, top=self._gear.top, tokens_since_change=0).gear,
            draft_plan=self._plan(rung, draft_rung, is_verified=is_verified),
            draft_cap=cap,
            is_verified=is_verified,
            reason=reason,
            smoothed_bits=self._entropy.bits,
        )
        self._round = _Round(decision, draft_rung, plan.floor, reason, self._entropy, exponent)
        return decision

    def observe_draft(self, entropy_bits: float | None, margin: float | None) -> DraftVerdict:
        """Take the entropy and margin of a drafted token (None from a drafter without logits); say whether to go on."""
        current = self._in_round()
        cell = table_cell(entropy_bits, margin)
        current.cells.append(cell)
        rate = self.learned.table.rate(cell)
        current.survival *= rate
        if entropy_bits is not None:
            current.entropy = current.entropy.pushed(entropy_bits)
        if self._flips is not None:
            return self._bounded_verdict(current, entropy_bits, margin)
        if len(current.cells) >= current.decision.draft_cap:
            return DraftVerdict(current.at_cap)
        return DraftVerdict(self._rule_stop(current, entropy_bits))

    def observe_verify(self, outcome: Verification) -> None:
        """Take the FP16 pass that ended the round."""
        current = self._in_round()
        self._round = None
        for entropy_bits in outcome.entropy_bits:
            self._emit(entropy_bits)
        is_chosen = self._mode is Mode.EXACT and self._drafting.draft_length is None
        result = _result(current, outcome, is_chosen=is_chosen)
        self._speculation = self._speculation.after_round(result, energy_exponent=current.energy_exponent)
        if self._flips is not None:
            self._flips = self._after_verify(self._flips, outcome)

    def _after_verify(self, budget: FlipBudget, outcome: Verification) -> FlipBudget:
        drafted = outcome.rows - 1
        wrong = drafted - outcome.accepted if outcome.agreed is None else sum(not verdict for verdict in outcome.agreed)
        return budget.after_verify(max(len(outcome.entropy_bits) - budget.pending, 0), flips=wrong)

    def observe_token(self, entropy_bits: float) -> None:
        """Take the entropy of a token that the decision's plan produced and nobody verifies (gated, int4)."""
        self._in_round()
        self._round = None
        self._emit(entropy_bits)

    def _emit(self, entropy_bits: float) -> None:
        self._entropy = self._entropy.pushed(entropy_bits)
        self._gear = self._gear.emitted(self._entropy.bits, self._band)

    def _in_round(self) -> _Round:
        if self._round is None:
            raise ConfigError("controller: an observation came outside a round, expected begin_round first")
        return self._round

    def _cap_plan(self, rung: int, draft_rung: int, exponent: float, bias: PowerBias) -> CapPlan:
        fixed = self._drafting.draft_length
        if self._mode not in (Mode.EXACT, Mode.BOUNDED) or self._drafter is DrafterKind.NONE or fixed == 0:
            return CapPlan(cap=0, reason=StopReason.NONE)
        if fixed is not None:
            return CapPlan(cap=fixed, reason=StopReason.CAP)
        if rung == self._gear.top and self._stops_on_entropy and not self._is_worth_a_draft:
            return CapPlan(cap=0, reason=StopReason.HIGH_GEAR)
        if self._mode is Mode.BOUNDED:
            return CapPlan(cap=VERIFY_EVERY_TOKENS - 1, reason=StopReason.CAP)
        least, is_guarded = (0 if self._has_guard else LEAST_DRAFTS), self._has_guard and bias.strength == 0.0
        self._speculation, plan = self._speculation.planned(
            rung=draft_rung, energy_exponent=exponent, is_guarded=is_guarded, least_drafts=least
        )
        self._follow_costs()
        return plan

    def _follow_costs(self) -> None:
        """Move theta_high, unless it was set by hand, to where drafting stops paying with this device's costs."""
        if not self._moves_theta_high or self._speculation.choice.rounds != 1:
            return
        costs = self._speculation.step_costs
        if costs is not None:
            high = highest_paying_bits(self._rates or self.learned.table.rates_by_entropy, costs)
            low = min(self._theta_low_bits, high)
            self._band = replace(self._band, theta_low_bits=low, theta_high_bits=high)

    def _plan(self, rung: int, draft_rung: int, *, is_verified: bool) -> Plan | None:
        if self._mode is Mode.INT4:
            return self._plans[0]
        if not is_verified:
            return self._plans[rung]
        if self._drafter is DrafterKind.MODEL:
            return self._model_plan
        return self._plans[draft_rung] if self._drafter is DrafterKind.SELF else None

    def _rule_stop(self, current: _Round, entropy_bits: float | None) -> StopReason | None:
        rule = self._drafting.rule
        if self._drafting.draft_length is not None or rule is DraftRule.FIXED:
            return None
        if rule is DraftRule.ENTROPY:
            return self._entropy_stop(current)
        if entropy_bits is None:
            return None
        if rule is DraftRule.SVIP:
            return StopReason.RULE if svip_stops(entropy_bits) else None
        return StopReason.RULE if adaedl_stops(entropy_bits, self.learned.adaedl.threshold) else None

    def _entropy_stop(self, current: _Round) -> StopReason | None:
        if self._stops_on_entropy and self._is_above(current.entropy):
            return StopReason.ENTROPY
        return StopReason.SURVIVAL if current.survival < current.floor else None

    def _bounded_verdict(self, current: _Round, entropy_bits: float | None, margin: float | None) -> DraftVerdict:
        assert self._flips is not None
        assert self._fit is not None
        flip = 1.0 if entropy_bits is None or margin is None else self._fit.flip(entropy_bits, margin)
        if not self._flips.is_final(flip):
            self._flips = self._flips.after_doubtful(flip)
            return DraftVerdict(StopReason.FLIP)
        self._flips = self._flips.after_final(flip)
        is_last = len(current.cells) >= current.decision.draft_cap or self._flips.must_verify
        return DraftVerdict(current.at_cap if is_last else None, is_final=True)

    def _draft_rung(self, rung: int) -> int:
        return min(rung, self._gear.top - 1) if self._drafter is DrafterKind.SELF else 0

    @property
    def _is_worth_a_draft(self) -> bool:
        """Whether entropy allows a draft, or costs measured once that forbid it are to be doubted by a trial."""
        doubts = self._band.theta_high_bits == 0.0 or self._speculation.guard.is_probe_due
        return not self._is_above(self._entropy) or (self._moves_theta_high and doubts)

    @property
    def _stops_on_entropy(self) -> bool:
        return self._drafting.rule is DraftRule.ENTROPY and self._drafter in _MODELS

    def _is_above(self, entropy: SmoothedEntropy) -> bool:
        return entropy.bits is not None and entropy.bits > self._band.theta_high_bits

    def _highest_rung(self, bias: PowerBias) -> int:
        return round(self._gear.top * (1.0 - bias.strength))

    def _energy_exponent(self, bias: PowerBias) -> float:
        """Return how much energy counts: 1 when asked for, up to 4 when a power budget presses."""
        asked = 1.0 if self._drafting.objective is Objective.ENERGY else 0.0
        return max(asked, 4.0 * bias.strength)

    def _flip_budget(self) -> tuple[FlipFit, FlipBudget]:
        if self._grid is None or not self._grid.tokens:
            raise ConfigError(
                f"mode bounded needs a calibration of the drafter {self._drafter!s} and this bundle has none: "
                "export it with calibration, or use mode exact"
            )
        epsilon, fit = self._drafting.epsilon, FlipFit.of(self._grid)
        return fit, FlipBudget(epsilon=epsilon, limit=fit.limit(self._grid, epsilon=epsilon))

    def _energy_note(self) -> str | None:
        is_measured = self.learned.joules.verify.samples > 0
        if self._drafting.objective is Objective.SPEED or is_measured or not self._speculation.rounds:
            return None
        return "objective energy follows speed: nothing measured the energy of a round"

    def _band_note(self) -> str | None:
        if not self._has_default_band or self._mode not in (Mode.GATED, Mode.EXACT, Mode.BOUNDED):
            return None
        low, high = self._band.theta_low_bits, self._band.theta_high_bits
        if self._moves_theta_high:
            return "this bundle has no calibration: the entropy thresholds follow what FP16 accepts"
        return f"this bundle has no calibration: the entropy thresholds are {low} and {high} bits"


def _drafter_grid(calibration: Calibration | None, drafter: DrafterKind) -> AgreementGrid | None:
    if calibration is None or drafter not in _MODELS:
        return None
    return calibration.int4 if drafter is DrafterKind.SELF else calibration.draft


def _band(config: ControllerConfig, calibration: Calibration | None, *, is_open: bool) -> Band:
    low, high = _DEFAULT_BAND_BITS
    if is_open:
        high = MAX_ENTROPY_BITS
    if calibration is not None:
        low, high = calibration.theta_low_bits, calibration.theta_high_bits
    if config.theta_high_bits is not None:
        high = config.theta_high_bits
        low = min(low, high)
    if config.theta_low_bits is not None:
        low = config.theta_low_bits
        high = high if config.theta_high_bits is not None else max(low, high)
    return Band(theta_low_bits=low, theta_high_bits=high, hold_tokens=config.hold_tokens)


def _result(current: _Round, outcome: Verification, *, is_chosen: bool) -> RoundResult:
    return RoundResult(
        cells=tuple(current.cells),
        accepted=outcome.accepted,
        emitted=len(outcome.entropy_bits),
        cap=current.decision.draft_cap,
        rung=current.rung,
        rows=outcome.rows,
        draft_s=outcome.draft_ns * 1e-9,
        verify_s=outcome.verify_ns * 1e-9,
        draft_j=None if outcome.draft_mj is None else outcome.draft_mj * 1e-3,
        verify_j=None if outcome.verify_mj is None else outcome.verify_mj * 1e-3,
        outcomes=outcome.agreed,
        is_typical=outcome.is_typical,
        is_chosen=is_chosen,
    )
