"""One decoding round: what is drafted, what FP16 reads, what stands, and what is written down about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.calibration import Calibration
from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, DraftRule, Mode, SamplingConfig
from edgeprec.controller import Controller
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.drafter import Draft, SelfDrafter
from edgeprec.runtime.passes import PassCounter, WeightBits
from edgeprec.runtime.reply import TokenSource
from edgeprec.runtime.rounds import RoundDecoder
from edgeprec.runtime.sampling import Sampler

BITS = WeightBits(weights=(10, 10, 10, 5), int4_bits=4.5)
FP16 = Plan.uniform(Precision.FP16, num_layers=3)
HISTORY = [1, 2, 3, 4]


@dataclass
class ScriptedDrafter:
    """Proposes the tokens of a script, then nothing; ``followed`` = the next one is there after so many tokens."""

    script: Sequence[int]
    name: str = "ngram"
    entropy_bits: float | None = None
    followed: int = 0
    lengths: list[int] = field(default_factory=list)

    def prefill(self, prompt: Sequence[int]) -> None:
        """Nothing to do."""

    def propose(
        self, history: Sequence[int], pending: Sequence[int], plan: Plan | None, *, room: int = 1
    ) -> Draft | None:
        """Return the next token of the script."""
        if len(pending) >= len(self.script):
            return None
        margin = None if self.entropy_bits is None else 0.1
        return Draft(self.script[len(pending)], self.entropy_bits, margin, is_followed=len(pending) < self.followed)

    def rewind(self, length: int) -> None:
        """Note the length."""
        self.lengths.append(length)


@dataclass
class Bench:
    """A decoder on a fake engine whose cache holds ``HISTORY`` but its last token."""

    decoder: RoundDecoder
    engine: Any
    phases: list[str]

    def run(self, room_tokens: int = 30) -> Any:
        """Run one round on HISTORY."""
        return self.decoder.run(HISTORY, room_tokens=room_tokens)


@pytest.fixture(scope="session")
def make_bench(fake: ModuleType) -> Callable[..., Bench]:
    """Return ``make(agreement, mode=..., kind=..., drafter=..., calibration=..., sampling=..., engine fields)``."""

    def make(
        agreement: str = "always",
        *,
        mode: Mode = Mode.EXACT,
        kind: DrafterKind = DrafterKind.SELF,
        drafter: Any = None,
        drafting: dict[str, Any] | None = None,
        controller: dict[str, Any] | None = None,
        calibration: Calibration | None = None,
        sampling: SamplingConfig | None = None,
        model: dict[str, Any] | None = None,
        **engine: Any,
    ) -> Bench:
        made = fake.FakeEngine(fake.ToyModel(**(model or {})), agreement, **engine)
        for row, token in enumerate(HISTORY[:-1]):
            made.forward([token], position=row, plan=FP16)
        made.passes.clear()
        sampler = Sampler(sampling or SamplingConfig(), made.info.vocab_size)
        decider = Controller(
            mode=mode,
            config=ControllerConfig(**(controller or {})),
            drafting=DraftingConfig(**{"draft_length": 3, **(drafting or {})}),
            calibration=calibration,
            drafter=kind,
            num_layers=3,
        )
        own = SelfDrafter(made, sampler, PassCounter(BITS)) if kind is DrafterKind.SELF else None
        phases: list[str] = []
        decoder = RoundDecoder(
            engine=made,
            drafter=drafter or own,
            sampler=sampler,
            controller=decider,
            passes=PassCounter(BITS),
            clock=made.clock,
            mark=phases.append,
            start_ns=made.clock.now_ns,
        )
        return Bench(decoder, made, phases)

    return make


MakeBench = Callable[..., Bench]


@pytest.mark.parametrize(("followed", "drafted"), [(0, 1), (1, 2), (9, 2)])
def test_a_rule_ends_no_draft_before_tokens_that_are_there(make_bench: MakeBench, followed: int, drafted: int) -> None:
    """A rule asks whether one more draft pays; a token that was paid for is read, as far as the cap of two allows."""
    drafter = ScriptedDrafter([5, 6, 7, 8], entropy_bits=5.0, followed=followed)
    drafting = {"draft_length": None, "rule": DraftRule.SVIP}
    bench = make_bench(kind=DrafterKind.NGRAM, drafter=drafter, drafting=drafting)
    records = [bench.run().record for _ in range(3)]
    assert [record.stop_reason for record in records[:2]] == ["sample"] * 2
    assert len(records[2].drafted) == drafted


def test_one_fp16_pass_reads_the_last_token_and_all_pending(make_bench: MakeBench) -> None:
    """K draft steps, then K + 1 rows in one pass that begins where the draft began."""
    bench = make_bench()
    bench.run()
    asked = [(p.position, len(p.tokens), p.is_fp16) for p in bench.engine.passes]
    assert asked == [(3, 1, False), (4, 1, False), (5, 1, False), (3, 4, True)]
    assert bench.engine.passes[-1].tokens == (4, *(p.tokens[0] for p in bench.engine.passes[1:-1]), asked_last(bench))
    assert bench.phases == ["draft", "verify"]


def asked_last(bench: Bench) -> int:
    """Return the last drafted token, which no draft step has read."""
    return int(bench.engine.model.decode(HISTORY, 3)[-1])


def test_full_acceptance_emits_one_more(make_bench: MakeBench) -> None:
    """All drafted tokens stand and FP16 adds its own."""
    bench = make_bench()
    outcome = bench.run()
    assert [emitted.token for emitted in outcome.tokens] == bench.engine.model.decode(HISTORY, 4)
    assert [emitted.source for emitted in outcome.tokens] == [*[TokenSource.DRAFT] * 3, TokenSource.TARGET]
    assert [emitted.int4_layers for emitted in outcome.tokens] == [3, 3, 3, 0]


def test_rejection_emits_the_correction_only(make_bench: MakeBench) -> None:
    """Of a draft that is wrong from the start only FP16's token comes out."""
    bench = make_bench("never")
    outcome = bench.run()
    assert [emitted.token for emitted in outcome.tokens] == bench.engine.model.decode(HISTORY, 1)
    assert outcome.record.accepted == 0


def test_record_tells_the_round(make_bench: MakeBench) -> None:
    """Counts, plan, cap, reason and times of a round by hand: 3 INT4 steps of 1 us, one pass of 4 us and 3 rows."""
    bench = make_bench()
    record = bench.run().record
    assert record.drafted == tuple(bench.engine.model.decode(HISTORY, 3))
    assert (record.round, record.position, record.accepted, record.emitted) == (1, 3, 3, 4)
    assert (record.verified_rows, record.draft_cap, record.stop_reason) == (4, 3, "cap")
    assert record.draft_plan == (True,) * 4
    assert (record.draft_ns, record.verify_ns, record.start_ns) == (3_000, 4_300, 0)
    assert len(record.draft_entropy_bits) == 3
    second = bench.decoder.run([*HISTORY, *bench.engine.model.decode(HISTORY, 4)], room_tokens=30).record
    assert (second.round, second.position, second.start_ns) == (2, 7, 7_300)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    room=st.integers(1, 20),
    draft_length=st.integers(0, 15),
    rows=st.integers(1, 16),
    agreement=st.sampled_from(("always", "never", "sometimes")),
)
def test_room_and_rows_bound_every_round(
    make_bench: MakeBench, room: int, draft_length: int, rows: int, agreement: str
) -> None:
    """However long the draft may be, a round emits at least one token and at most what there is room for."""
    bench = make_bench(agreement, drafting={"draft_length": draft_length}, max_rows=rows)
    outcome = bench.run(room)
    assert 1 <= len(outcome.tokens) <= min(room, rows, draft_length + 1)
    assert outcome.record.verified_rows <= min(room, rows)
    assert outcome.record.emitted == len(outcome.tokens) == outcome.record.accepted + 1
    if draft_length > min(room, rows) - 1:
        assert outcome.record.stop_reason == "buffer"


def test_cancelled_while_drafting_gives_nothing(make_bench: MakeBench) -> None:
    """The draft stops after the pass at work and is not verified."""
    bench = make_bench()
    bench.decoder.is_cancelled = lambda: len(bench.engine.passes) >= 2
    assert bench.run() is None
    assert [asked.is_fp16 for asked in bench.engine.passes] == [False, False]
    assert bench.decoder.passes.all_passes == 0


def test_drafter_without_logits(make_bench: MakeBench) -> None:
    """A lookup's draft has no plan and no entropy; where it ends the round verifies what there is."""
    bench = make_bench(kind=DrafterKind.NGRAM, drafter=ScriptedDrafter([9, 9]))
    record = bench.run().record
    assert (record.drafted, record.draft_entropy_bits, record.draft_plan) == ((9, 9), (None, None), ())
    assert record.verified_rows == 3
    assert bench.engine.passes[-1].tokens == (4, 9, 9)


def test_every_proposal_leaves_the_targets_tokens(make_bench: MakeBench) -> None:
    """Whatever is proposed, the tokens that come out are the beginning of the target's own draw.

    On four tokens all 64 drafts of three are tried for several seeds. What comes out therefore does not depend on the
    drafter, only how much of it comes out in one round: so its distribution is the target's, exactly.
    """
    for seed in range(5):
        sampling = SamplingConfig(temperature=1.3, seed=seed)
        own = make_bench(model={"vocab_size": 5}).engine.model.decode(HISTORY, 4, sampler=Sampler(sampling, 5))
        lengths = []
        for script in product(range(4), repeat=3):
            drafter = ScriptedDrafter(script)
            bench = make_bench(kind=DrafterKind.NGRAM, drafter=drafter, sampling=sampling, model={"vocab_size": 5})
            outcome = bench.run()
            tokens = [emitted.token for emitted in outcome.tokens]
            matches = next((i for i, (a, b) in enumerate(zip(script, own, strict=False)) if a != b), 3)
            assert tokens == own[: matches + 1]
            assert outcome.record.accepted == matches
            assert drafter.lengths == [len(HISTORY) + matches]
            lengths.append(len(tokens))
        assert min(lengths) == 1


@pytest.mark.parametrize(("mode", "is_int4"), [(Mode.INT4, True), (Mode.GATED, False), (Mode.GATED, True)])
def test_unverified_round_is_one_pass(make_bench: MakeBench, mode: Mode, is_int4: bool) -> None:
    """One token, one pass with the plan of the gear; its time belongs to the phase of its precision."""
    low = {"theta_low_bits": 30.0, "theta_high_bits": 30.0} if is_int4 else {}
    bench = make_bench("never", mode=mode, kind=DrafterKind.NONE, controller=low)
    bench.decoder.controller.observe_prefill(1.0)
    outcome = bench.run()
    (emitted,) = outcome.tokens
    assert emitted.source is TokenSource.UNVERIFIED
    assert (emitted.int4_layers, bench.phases) == ((3, ["draft"]) if is_int4 else (0, ["verify"]))
    assert (outcome.record.draft_ns, outcome.record.verify_ns) == ((1_000, 0) if is_int4 else (0, 4_000))
    assert (outcome.record.drafted, outcome.record.verified_rows, outcome.record.draft_cap) == ((), 0, 0)
    assert (emitted.token == bench.engine.model.decode(HISTORY, 1)[0]) is not is_int4


def test_bounded_round_keeps_final_tokens(make_bench: MakeBench, calibration: Callable[..., Calibration]) -> None:
    """Tokens the controller calls final stand whatever FP16 says; what follows them is FP16's choice after them."""
    bench = make_bench(
        "never",
        mode=Mode.BOUNDED,
        calibration=calibration(1000),
        drafting={"draft_length": 3, "epsilon": 0.9},
    )
    outcome = bench.run()
    tokens = [emitted.token for emitted in outcome.tokens]
    assert [emitted.source for emitted in outcome.tokens] == [*[TokenSource.UNVERIFIED] * 3, TokenSource.TARGET]
    assert tokens[:3] == list(outcome.record.drafted)
    assert tokens[3:] == bench.engine.model.decode([*HISTORY, *tokens[:3]], 1)
    assert outcome.record.accepted == 0


def test_smoothed_entropy_is_fp16s(make_bench: MakeBench) -> None:
    """After a round the controller's window holds FP16's entropies of what was emitted, not the draft's."""
    bench = make_bench("never", controller={"window": 1})
    outcome = bench.run()
    assert bench.decoder.controller.smoothed_bits == pytest.approx(outcome.tokens[-1].entropy_bits)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_round_with_a_first_pass_teaches_no_cost(make_bench: Callable[..., Bench], is_first: bool) -> None:
    """What was captured or compiled in it will not be paid again; what was accepted still counts."""
    bench = make_bench("always", drafting={"draft_length": None})
    counts = iter([0, int(is_first)])
    bench.decoder.first_passes = lambda: next(counts)
    before = bench.decoder.controller.learned
    bench.run()
    after = bench.decoder.controller.learned
    assert (after.seconds == before.seconds) is is_first
    assert after.seconds.verify.samples == int(not is_first)
