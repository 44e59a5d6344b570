"""Three-level drafting: the draft model drafts for the INT4 target, whose tokens FP16 reads.

Every level has its own controller, its target being the level above, and so its own measured costs and acceptance:

    level    draft model against the INT4 target; its plain step is one INT4 step
    through  the INT4 target, sped up by that, against FP16; its plain step is one FP16 step
    direct   the draft model against FP16, two levels; None where the route is not to be chosen

So each part switches itself off where it does not pay: ``level`` to plain INT4 drafts, ``RouteChoice`` to the direct
route, the guard of ``through`` and ``direct`` to plain FP16. That guard counts what both levels cost. ``level`` has
none of its own: its gain is small, and a few rejections in a row would end its drafts for the rest of a reply. What
the draft model costs and is worth on this text is one thing that ``level`` and ``direct`` both know, whichever of them
runs. Pure, like the controllers it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from edgeprec.config import DrafterKind, GenerationConfig, Mode
from edgeprec.controller import Controller
from edgeprec.decision import Decision, DraftVerdict, Verification
from edgeprec.drafting import DECIDE_EVERY_ROUNDS
from edgeprec.gears import Band, Gear
from edgeprec.governor import PowerBias
from edgeprec.guard import guard_notes
from edgeprec.route_choice import Route, RouteChoice
from edgeprec.speculation import Learned

__all__ = ["ControllerMaker", "LevelController", "LevelMemory", "RouteTally", "level_controller"]

_NO_BIAS = PowerBias()
_FIRST_ROUNDS = 8  # in which the costs of the level below become known


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelMemory:
    """What outlives a sequence; None = nothing learned yet."""

    through: Learned | None = None
    direct: Learned | None = None
    level: Learned | None = None
    choice: RouteChoice = field(default_factory=RouteChoice)


@dataclass(frozen=True, slots=True)
class RouteTally:
    """Rounds that drafted on a route, and what FP16 accepted of them. ``chosen`` = rounds that were no trial."""

    rounds: int = 0
    chosen: int = 0
    drafted: int = 0
    accepted: int = 0

    def after(self, outcome: Verification, *, is_trial: bool) -> RouteTally:
        """Return the tally with one more round."""
        if outcome.rows < 2:
            return self
        return RouteTally(
            self.rounds + 1,
            self.chosen + (not is_trial),
            self.drafted + outcome.rows - 1,
            self.accepted + outcome.accepted,
        )


class LevelController:
    """Steers FP16's rounds like a ``Controller``; ``level`` steers the INT4 target's rounds inside them.

    ``memory`` is what the controllers started from.
    """

    def __init__(
        self, *, through: Controller, direct: Controller | None, level: Controller, memory: LevelMemory
    ) -> None:
        self.level = level
        self.bias = _NO_BIAS
        self._through = through
        self._direct = direct
        self._start = memory
        self._choice = RouteChoice(chosen=Route.INT4) if direct is None else memory.choice
        self._rounds = 0
        self._tallies = dict.fromkeys(Route, RouteTally())

    @property
    def route(self) -> Route:
        """Return the route of the present round."""
        return self._choice.route

    @property
    def gear(self) -> Gear:
        """Return the gear entropy asks for."""
        return self._active.gear

    @property
    def band(self) -> Band:
        """Return the thresholds in use."""
        return self._active.band

    @property
    def memory(self) -> LevelMemory:
        """Return what the next sequence may start from; where the route was not to be chosen, its part stays."""
        kept = replace(self._start, through=self._through.learned, level=self.level.learned)
        if self._direct is None:
            return kept
        guard = self._active.learned.guard  # one guard watches both routes
        through, direct = (replace(one.learned, guard=guard) for one in (self._through, self._direct))
        return replace(kept, through=through, direct=direct, choice=self._choice.carried())

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Return in words what did not run as asked."""
        return tuple(self._notes())

    def tally(self, route: Route) -> RouteTally:
        """Return what a route's rounds gave so far."""
        return self._tallies[route]

    def observe_prefill(self, entropy_bits: float) -> None:
        """Take FP16's entropy of the prompt's last row."""
        self._active.observe_prefill(entropy_bits)
        self.level.follow(self._active)

    def begin_round(self, *, room_tokens: int, bias: PowerBias = _NO_BIAS) -> Decision:
        """Decide the next round on the route in use."""
        self.bias = bias
        if self._rounds < _FIRST_ROUNDS or self._rounds % DECIDE_EVERY_ROUNDS == 0:
            self._through.expect_draft_costs_of(self.level)
        self._rounds += 1
        return self._active.begin_round(room_tokens=room_tokens, bias=bias)

    def observe_draft(self, entropy_bits: float | None, margin: float | None) -> DraftVerdict:
        """Take a token proposed to FP16 and say whether to go on."""
        return self._active.observe_draft(entropy_bits, margin)

    def observe_token(self, entropy_bits: float) -> None:
        """Take the entropy of a token nobody verifies."""
        self._active.observe_token(entropy_bits)

    def observe_verify(self, outcome: Verification) -> None:
        """Take the FP16 pass that ended the round, and settle the next round's route."""
        active, route = self._active, self.route
        active.observe_verify(outcome)
        self.level.follow(active)
        self._tallies[route] = self._tallies[route].after(outcome, is_trial=self._choice.is_trial)
        if self._direct is None:
            return
        drafting, other = (self.level, self._direct) if route is Route.INT4 else (self._direct, self.level)
        other.take_drafts_of(drafting)
        self._choice = self._choice.after_round(emitted=len(outcome.entropy_bits), rates=self._rates)
        if self.route is not route:
            self._active.take_over(active)

    @property
    def _active(self) -> Controller:
        if self._direct is None or self.route is Route.INT4:
            return self._through
        return self._direct

    def _rates(self) -> dict[Route, float | None]:
        """Return what both routes promise; what FP16's passes cost is known from the one in use."""
        assert self._direct is not None
        other = self._direct if self._active is self._through else self._through
        other.take_verifying_of(self._active)
        self._through.expect_draft_costs_of(self.level)
        return {
            Route.INT4: self._through.expected_rate(self.bias),
            Route.DIRECT: self._direct.expected_rate(self.bias),
        }

    def _notes(self) -> Iterator[str]:
        controllers = [self._through, *([] if self._direct is None else [self._direct])]
        off, rounds = (sum(counts) for counts in zip(*(one.guarded_rounds for one in controllers), strict=True))
        yield from guard_notes(off, rounds)
        level_off, passes = self.level.guarded_rounds
        if level_off:
            yield (
                f"three-level drafting switched itself off in {level_off} of {passes} passes of the INT4 target: "
                "drafting for them does not beat plain INT4 steps"
            )
        direct = self._tallies[Route.DIRECT].chosen
        if direct:
            yield (
                f"three-level drafting switched itself off in {direct} of {rounds} rounds: FP16 checked the draft "
                "model's tokens directly, which gives more tokens for the cost"
            )
        yield from dict.fromkeys(note for one in controllers for note in one.setting_notes)


class ControllerMaker(Protocol):
    """Makes a controller of the pair for a drafter and a mode, with what was learned before."""

    def __call__(
        self, drafter: DrafterKind, mode: Mode, learned: Learned | None, /, *, has_guard: bool = True
    ) -> Controller: ...


def level_controller(config: GenerationConfig, memory: LevelMemory, make: ControllerMaker) -> LevelController:
    """Return the controllers of one sequence; ``make`` returns one for a drafter, a mode and what was learned before.

    The route is free in mode exact with the adaptive length only: a fixed length switches every choice off, and what
    mode bounded may leave unverified was calibrated for the INT4 target.
    """
    is_free = config.mode is Mode.EXACT and config.drafting.draft_length is None
    return LevelController(
        through=make(DrafterKind.SELF, config.mode, memory.through),
        direct=make(DrafterKind.MODEL, config.mode, memory.direct) if is_free else None,
        level=make(DrafterKind.MODEL, Mode.EXACT, memory.level, has_guard=False),
        memory=memory,
    )
