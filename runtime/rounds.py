"""One decoding round after the other: draft with INT4, read everything again in FP16, emit what stands.

    pending = []
    draft until the controller stops
    one FP16 pass over the last token and all pending ones; it rewrites their cache entries
    emit the pending tokens FP16 would have chosen itself, and one of FP16's own

In mode ``bounded`` pending tokens the controller calls final stand whatever FP16 says. The modes that verify nothing
run one pass a round, with the plan of the gear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from edgeprec.decision import Decision, RoundPolicy, Verification
from edgeprec.governor import PowerBias
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.drafter import Draft, Drafter
from edgeprec.runtime.engine import Engine, RowFacts, Step
from edgeprec.runtime.logprobs import TokenLogprobs, token_logprobs
from edgeprec.runtime.passes import PassCounter
from edgeprec.runtime.reply import RoundRecord, TokenSource
from edgeprec.runtime.sampling import Sampler
from edgeprec.stop_rules import StopReason

__all__ = ["Emitted", "Outcome", "RoundDecoder"]

_NO_BIAS = PowerBias()
_PAYING_STOPS = (StopReason.ENTROPY, StopReason.SURVIVAL, StopReason.RULE)  # one more draft would not pay


@dataclass(frozen=True, slots=True)
class Emitted:
    """A token that stands. ``int4_layers`` counts the decoder layers that proposed it in INT4; ``margin`` is None where
    nobody verified it."""

    token: int
    entropy_bits: float
    source: TokenSource
    int4_layers: int
    logprobs: TokenLogprobs | None = None
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round gave."""

    tokens: tuple[Emitted, ...]
    record: RoundRecord


@dataclass(slots=True)
class _Pending:
    """The tokens drafted in this round, in order."""

    tokens: list[int] = field(default_factory=list)
    entropy_bits: list[float | None] = field(default_factory=list)
    is_final: list[bool] = field(default_factory=list)
    stop: str = "none"

    def add(self, draft: Draft, *, is_final: bool) -> None:
        self.tokens.append(draft.token)
        self.entropy_bits.append(draft.entropy_bits)
        self.is_final.append(is_final)

    def proposals(self) -> Iterator[tuple[int | None, bool]]:
        """Yield each token and whether it is final, then None for FP16's own token."""
        yield from zip(self.tokens, self.is_final, strict=True)
        yield None, False


@dataclass(slots=True)
class RoundDecoder:
    """Runs rounds on one sequence. ``clock`` is in ns; ``mark`` tells the meter which phase begins,
    ``millijoules`` what so many ns of a phase cost, where that is known. ``first_passes`` counts passes that took more
    time than the next of their kind will: a round with one of them is no measure of what rounds cost.

    ``is_cancelled`` is asked between passes: a round that is cancelled while drafting gives nothing. Emitted tokens
    carry their log probability and the ``top_logprobs`` largest ones, None = neither. ``verify_plan`` None = FP16
    verifies; another plan makes the rounds those of a level below it, see ``edgeprec.runtime.three_level``.
    """

    engine: Engine
    drafter: Drafter | None
    sampler: Sampler
    controller: RoundPolicy
    passes: PassCounter
    clock: Callable[[], int]
    mark: Callable[[str], object]
    is_cancelled: Callable[[], bool] = lambda: False
    millijoules: Callable[[str, int], float | None] = lambda phase, duration_ns: None
    top_logprobs: int | None = None
    verify_plan: Plan | None = None
    first_passes: Callable[[], int] = lambda: 0
    rounds: int = 0
    start_ns: int = 0

    def run(self, history: Sequence[int], *, room_tokens: int, bias: PowerBias = _NO_BIAS) -> Outcome | None:
        """Run one round on the text ``history``; at most ``room_tokens`` tokens are emitted. None = cancelled."""
        began_ns, first_passes = self.clock(), self.first_passes()
        room_rows = min(room_tokens, self.engine.info.max_rows)
        decision = self.controller.begin_round(room_tokens=room_rows - 1, bias=bias)
        if not decision.is_verified:
            return self._unverified(history, decision, began_ns)
        pending = self._draft(history, decision)
        if self.is_cancelled():
            return None
        drafted_ns = self.clock()
        self.mark("verify")
        tokens, verdicts = self._verify(history, pending, decision.draft_plan)
        if self.drafter is not None:
            self.drafter.rewind(len(history) - 1 + len(tokens))
        times = (began_ns, drafted_ns, self.clock())
        accepted = verdicts.index(False) if False in verdicts else len(verdicts)
        is_typical = self.first_passes() == first_passes
        self._observe(tokens, verdicts, accepted, pending, times, is_typical=is_typical)
        return Outcome(tokens, self._record(len(history) - 1, decision, pending, accepted, len(tokens), times))

    def _draft(self, history: Sequence[int], decision: Decision) -> _Pending:
        pending = _Pending(stop=str(decision.reason))
        if self.drafter is None or decision.draft_cap == 0:
            return pending
        self.mark("draft")
        while len(pending.tokens) < decision.draft_cap and not self.is_cancelled():
            room = decision.draft_cap - len(pending.tokens)
            draft = self.drafter.propose(history, pending.tokens, decision.draft_plan, room=room)
            if draft is None:
                return pending
            verdict = self.controller.observe_draft(draft.entropy_bits, draft.margin)
            pending.add(draft, is_final=verdict.is_final)
            if verdict.stop is None:
                continue
            pending.stop = str(verdict.stop)
            if verdict.stop not in _PAYING_STOPS or not draft.is_followed:
                return pending
        return pending

    def _verify(
        self, history: Sequence[int], pending: _Pending, draft_plan: Plan | None
    ) -> tuple[tuple[Emitted, ...], list[bool]]:
        """Run FP16 over the last token and the pending ones; return what stands and the verdict on each it read."""
        step = self._forward([history[-1], *pending.tokens], len(history) - 1, self.verify_plan or self._fp16)
        int4_layers = 0 if draft_plan is None else sum(draft_plan.gates[:-1])
        text = list(history)
        tokens: list[Emitted] = []
        verdicts: list[bool] = []
        for row, (proposed, is_final) in enumerate(pending.proposals()):
            token, facts = self._chosen(step, row, text)
            if proposed is not None:
                verdicts.append(token == proposed)
            if proposed is not None and (is_final or token == proposed):
                source = TokenSource.UNVERIFIED if is_final else TokenSource.DRAFT
                logprobs = self.logprobs(step, row, proposed)
                tokens.append(Emitted(proposed, facts.entropy_bits, source, int4_layers, logprobs, facts.margin))
                text.append(proposed)
                continue
            logprobs = self.logprobs(step, row, token)
            tokens.append(Emitted(token, facts.entropy_bits, TokenSource.TARGET, 0, logprobs, facts.margin))
            break
        return tuple(tokens), verdicts

    def _unverified(self, history: Sequence[int], decision: Decision, began_ns: int) -> Outcome:
        """Run one token with the decision's plan and emit it."""
        assert decision.draft_plan is not None
        plan, position = decision.draft_plan, len(history) - 1
        self.mark("verify" if plan.is_fp16 else "draft")
        step = self._forward([history[-1]], position, plan)
        token, entropy_bits = self.choose(step, 0, history)
        ended_ns = self.clock()
        times = (began_ns, began_ns if plan.is_fp16 else ended_ns, ended_ns)
        self.controller.observe_token(entropy_bits)
        logprobs = self.logprobs(step, 0, token)
        emitted = Emitted(token, entropy_bits, TokenSource.UNVERIFIED, sum(plan.gates[:-1]), logprobs)
        return Outcome((emitted,), self._record(position, decision, _Pending(), 0, 1, times))

    def choose(self, step: Step, row: int, history: Sequence[int]) -> tuple[int, float]:
        """Return the sampler's token after ``history`` and the entropy in bits of its row.

        The logits are looked at only where the largest one does not decide: they may lie on another device.
        """
        token, facts = self._chosen(step, row, history)
        return token, facts.entropy_bits

    def _chosen(self, step: Step, row: int, history: Sequence[int]) -> tuple[int, RowFacts]:
        facts = step.facts(row)
        if self.sampler.takes_argmax:
            return facts.argmax, facts
        return self.sampler.choose(step.logits[row], position=len(history), history=history), facts

    def logprobs(self, step: Step, row: int, token: int) -> TokenLogprobs | None:
        """Return what was asked for of an emitted token, from its row."""
        if self.top_logprobs is None:
            return None
        return token_logprobs(step.logits[row][: self.sampler.vocab_size], token, top=self.top_logprobs)

    def _forward(self, tokens: Sequence[int], position: int, plan: Plan) -> Step:
        self.passes.add(plan, rows=len(tokens))
        return self.engine.forward(tokens, position=position, plan=plan)

    def _observe(
        self,
        tokens: Sequence[Emitted],
        verdicts: Sequence[bool],
        accepted: int,
        pending: _Pending,
        times: tuple[int, int, int],
        *,
        is_typical: bool,
    ) -> None:
        began_ns, drafted_ns, ended_ns = times
        self.controller.observe_verify(
            Verification(
                accepted=accepted,
                entropy_bits=[emitted.entropy_bits for emitted in tokens],
                rows=len(pending.tokens) + 1,
                draft_ns=drafted_ns - began_ns,
                verify_ns=ended_ns - drafted_ns,
                draft_mj=self.millijoules("draft", drafted_ns - began_ns),
                verify_mj=self.millijoules("verify", ended_ns - drafted_ns),
                agreed=verdicts if any(pending.is_final) else None,
                is_typical=is_typical,
            )
        )

    def _record(
        self,
        position: int,
        decision: Decision,
        pending: _Pending,
        accepted: int,
        emitted: int,
        times: tuple[int, int, int],
    ) -> RoundRecord:
        began_ns, drafted_ns, ended_ns = times
        self.rounds += 1
        return RoundRecord(
            round=self.rounds,
            position=position,
            drafted=tuple(pending.tokens),
            draft_entropy_bits=tuple(pending.entropy_bits),
            accepted=accepted,
            emitted=emitted,
            verified_rows=len(pending.tokens) + 1 if decision.is_verified else 0,
            draft_cap=decision.draft_cap if decision.is_verified else 0,
            stop_reason=pending.stop,
            smoothed_entropy_bits=decision.smoothed_bits,
            gear=decision.gear,
            draft_plan=() if decision.draft_plan is None else decision.draft_plan.gates,
            draft_ns=drafted_ns - began_ns,
            verify_ns=ended_ns - drafted_ns,
            start_ns=began_ns - self.start_ns,
        )

    @property
    def _fp16(self) -> Plan:
        return Plan.uniform(Precision.FP16, num_layers=self.engine.info.num_layers)
