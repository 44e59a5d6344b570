"""Three-level drafting at work: the draft model drafts, the target in INT4 verifies, FP16 reads what stands there.

To FP16's rounds this is a drafter like any other: what it proposes are the INT4 target's own tokens, as with self
drafts. It gets them from rounds of its own, the same ``RoundDecoder`` one level lower, whose verifying pass runs the
plan of the draft. That pass writes the target's cache, so FP16's pass, which starts at the same place, rewrites every
entry of what it accepts; the rest is overwritten before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgeprec.levels import LevelController
from edgeprec.precision import Plan
from edgeprec.route_choice import Route
from edgeprec.runtime.drafter import Draft, ModelDrafter
from edgeprec.runtime.energy import PhasePower
from edgeprec.runtime.engine import Engine
from edgeprec.runtime.passes import PassCounter
from edgeprec.runtime.reply import LevelStats
from edgeprec.runtime.rounds import RoundDecoder

__all__ = ["ThreeLevelDrafter"]


@dataclass(slots=True)
class ThreeLevelDrafter:
    """Proposes the INT4 target's tokens, several a pass thanks to ``model``; on the direct route, ``model``'s own.

    ``passes`` counts the INT4 target's. ``controller`` says which route a round takes, and steers the lower level.
    ``power`` knows what drafting costs in joules, where that was measured; ``first_passes``: see ``RoundDecoder``.
    """

    engine: Engine
    model: ModelDrafter
    controller: LevelController
    passes: PassCounter
    clock: Callable[[], int]
    power: PhasePower
    first_passes: Callable[[], int]
    is_cancelled: Callable[[], bool] = lambda: False
    name: str = "model"
    drafted: int = 0  # by the draft model for the INT4 target
    accepted: int = 0
    _level: RoundDecoder = field(init=False)
    _ahead: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._level = RoundDecoder(
            engine=self.engine,
            drafter=self.model,
            sampler=self.model.sampler,
            controller=self.controller.level,
            passes=self.passes,
            clock=self.clock,
            mark=lambda phase: None,  # all of it is FP16's drafting
            is_cancelled=lambda: self.is_cancelled(),
            millijoules=lambda phase, duration_ns: self.power.millijoules("draft", duration_ns),
            first_passes=self.first_passes,
        )

    def prefill(self, prompt: Sequence[int]) -> None:
        """Take the prompt into the draft model's cache; the target's is FP16's."""
        self.model.prefill(prompt)

    def propose(
        self, history: Sequence[int], pending: Sequence[int], plan: Plan | None, *, room: int = 1
    ) -> Draft | None:
        """Return the INT4 target's next token, from its last pass or a new one; None = cancelled, or nothing known."""
        if self.controller.route is Route.DIRECT:
            return self.model.propose(history, pending, plan, room=room)
        if not pending:
            self._ahead.clear()
        if not self._ahead:
            self._run([*history, *pending], plan, room)
        return self._ahead.pop(0) if self._ahead else None

    def rewind(self, length: int) -> None:
        """Forget what lies beyond ``length`` tokens in the draft model's cache, and tokens the round did not take."""
        self._ahead.clear()
        self.model.rewind(length)

    def stats(self) -> LevelStats:
        """Return what each level accepted so far."""
        through, direct = (self.controller.tally(route) for route in (Route.INT4, Route.DIRECT))
        return LevelStats(
            rounds=through.rounds,
            int4_passes=self._level.rounds,
            model_drafted=self.drafted,
            model_accepted=self.accepted,
            model_acceptance_rate=_ratio(self.accepted, self.drafted),
            int4_drafted=through.drafted,
            int4_accepted=through.accepted,
            int4_acceptance_rate=_ratio(through.accepted, through.drafted),
            direct_rounds=direct.rounds,
            direct_drafted=direct.drafted,
            direct_accepted=direct.accepted,
        )

    def _run(self, text: Sequence[int], plan: Plan | None, room: int) -> None:
        self._level.verify_plan = plan
        outcome = self._level.run(text, room_tokens=room, bias=self.controller.bias)
        if outcome is None:
            return
        self.drafted += len(outcome.record.drafted)
        self.accepted += outcome.record.accepted
        last = len(outcome.tokens) - 1
        self._ahead = [
            Draft(token.token, token.entropy_bits, token.margin, is_followed=place < last)
            for place, token in enumerate(outcome.tokens)
        ]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
