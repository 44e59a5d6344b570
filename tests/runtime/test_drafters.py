"""Who proposes tokens, and that a drafter's own cache or index follows the text through every rejection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.config import SamplingConfig
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.drafter import ModelDrafter, NgramDrafter, SelfDrafter
from edgeprec.runtime.engine import RowFacts, StepResult
from edgeprec.runtime.ngram import NgramIndex
from edgeprec.runtime.passes import PassCounter, WeightBits
from edgeprec.runtime.sampling import Sampler

BITS = WeightBits(weights=(10, 10, 10, 5), int4_bits=4.5)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
MakeDrafter = Callable[..., ModelDrafter]


@pytest.fixture(scope="session")
def make_drafter(fake: ModuleType) -> MakeDrafter:
    """Return ``make(shared_tokens=27, **engine)``: a draft model's drafter; its engine is ``drafter.engine``."""

    def make(shared_tokens: int = 27, **engine: Any) -> ModelDrafter:
        made = fake.FakeEngine(fake.ToyModel(), always_int4=True, **engine)
        return ModelDrafter(made, Sampler(SamplingConfig(), 27), PassCounter(BITS), shared_tokens)

    return make


def test_self_drafter_steps_in_the_targets_cache(fake: ModuleType) -> None:
    """One INT4 row at the last token; it keeps no state, so a rewind is nothing."""
    engine = fake.FakeEngine(fake.ToyModel())
    engine.forward([1, 2], position=0, plan=Plan.uniform(Precision.FP16, num_layers=3))
    drafter = SelfDrafter(engine, Sampler(SamplingConfig(), 27), PassCounter(BITS))
    drafter.prefill([1, 2])
    first = drafter.propose([1, 2, 3], [], INT4)
    second = drafter.propose([1, 2, 3], [first.token], INT4)
    drafter.rewind(2)
    assert [first.token, second.token] == engine.model.decode([1, 2, 3], 2)
    assert [(p.tokens, p.position) for p in engine.passes[1:]] == [((3,), 2), ((first.token,), 3)]
    assert (drafter.passes.int4_passes, drafter.passes.all_passes) == (8, 8)
    assert first.entropy_bits > 0.0
    assert first.margin > 0.0


def test_model_drafter_prefills_in_fp16_and_counts_nothing(make_drafter: MakeDrafter) -> None:
    """The prompt runs in pieces as wide as the engine takes; statistics begin with the first draft step."""
    drafter = make_drafter(max_rows=4)
    drafter.prefill(list(range(10)))
    assert [(p.position, len(p.tokens), p.is_fp16) for p in drafter.engine.passes] == [
        (0, 4, True),
        (4, 4, True),
        (8, 2, True),
    ]
    assert drafter.passes.all_passes == 0
    drafter.propose([*range(10), 11], [], INT4)
    assert (drafter.passes.all_passes, drafter.cached) == (4, 11)


@dataclass
class LazyStep:
    """A pass on a device: what is read of it is written down."""

    step: StepResult
    reads: list[str]

    @property
    def logits(self) -> Any:
        """Copy all logits to the host."""
        self.reads.append("logits")
        return self.step.logits

    def facts(self, row: int) -> RowFacts:
        """Wait for three numbers."""
        self.reads.append("facts")
        return self.step.facts(row)


def test_model_drafter_reads_logits_of_drafts_alone(make_drafter: MakeDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt is waited for once, at its end; what the cache lacks besides leaves its logits on the device."""
    drafter = make_drafter(max_rows=32, context_tokens=100)
    reads: list[str] = []
    forward = drafter.engine.forward
    monkeypatch.setattr(drafter.engine, "forward", lambda *rows, **at: LazyStep(forward(*rows, **at), reads))
    drafter.prefill(list(range(20)) + list(range(20)))
    assert (len(drafter.engine.passes), reads) == (2, ["facts"])
    drafter.propose([token % 26 for token in range(80)], [], INT4)
    assert (len(drafter.engine.passes), reads) == (4, ["facts", "logits"])


def test_model_drafter_feeds_the_last_draft_token_after_full_acceptance(make_drafter: MakeDrafter) -> None:
    """After K accepted tokens the cache lacks two: the last draft token and FP16's own. Both are fed at once."""
    drafter = make_drafter()
    drafter.prefill([1, 2])
    history, pending = [1, 2, 3], []
    for _ in range(3):
        pending.append(drafter.propose(history, pending, INT4).token)
    drafter.rewind(len(history) + 3)
    drafter.propose([*history, *pending, 5], [], INT4)
    assert drafter.engine.passes[-1].tokens == (pending[-1], 5)
    assert drafter.passes.all_passes == 4 * 5


def test_model_drafter_catches_up_as_with_a_prompt(make_drafter: MakeDrafter) -> None:
    """After many tokens of FP16 alone, what its cache lacks runs in FP16, as a prompt does, up to the last token."""
    drafter = make_drafter(max_rows=32, context_tokens=100)
    drafter.prefill([1, 2])
    tokens = [token % 26 for token in range(80)]
    draft = drafter.propose(tokens, [], INT4)
    assert [(p.position, len(p.tokens), p.is_fp16) for p in drafter.engine.passes] == [
        (0, 2, True),
        (2, 32, True),
        (34, 32, True),
        (66, 14, False),
    ]
    assert drafter.cached == 80
    assert draft is not None
    assert [draft.token] == drafter.engine.model.decode(tokens, 1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_model_drafter_follows_any_history(make_drafter: MakeDrafter, data: st.DataObject) -> None:
    """Through any drafts, acceptances and rounds without a draft it proposes what a fresh one would."""
    rows = data.draw(st.integers(1, 5), label="rows")
    drafter = make_drafter(max_rows=rows, context_tokens=200)
    history = data.draw(st.lists(st.integers(0, 26), min_size=1, max_size=8), label="prompt")
    drafter.prefill(history)
    for _ in range(data.draw(st.integers(1, 5), label="rounds")):
        history = [*history, data.draw(st.integers(0, 26))]
        pending: list[int] = []
        for _ in range(data.draw(st.integers(0, 5), label="drafted")):
            pending.append(drafter.propose(history, pending, INT4).token)
            assert pending[-1] == drafter.engine.model.decode([*history, *pending[:-1]], 1)[0]
        accepted = data.draw(st.integers(0, len(pending)), label="accepted")
        history = [*history, *pending[:accepted]]
        drafter.rewind(len(history))


@pytest.mark.parametrize("width", [20, 27, 33])
def test_only_shared_ids_are_drafted(make_drafter: MakeDrafter, width: int) -> None:
    """A draft model's logits beyond the shared ids count for nothing, be they padding or missing in the target."""
    drafter = make_drafter(min(width, 25), width=width)
    history = [1, 2, 3]
    for _ in range(30):
        history.append(drafter.propose(history, [], INT4).token)
    assert max(history) < min(width, 25)


def test_text_with_an_unknown_id_is_not_drafted_on(make_drafter: MakeDrafter) -> None:
    """An id the draft model lacks is never fed to it: it has nothing to propose until a new text."""
    drafter = make_drafter(20, width=20)
    drafter.prefill([1, 2])
    assert drafter.propose([1, 2, 25], [], INT4) is None
    assert drafter.propose([1, 2, 25, 3], [], INT4) is None
    drafter.rewind(2)
    assert drafter.propose([1, 2, 4], [], INT4) is not None
    unread = make_drafter(20, width=20)
    unread.prefill([25, 1])
    assert unread.engine.passes == []


def test_ngram_drafter_proposes_what_followed(fake: ModuleType) -> None:
    """A pair seen before proposes its continuation; something new proposes nothing."""
    drafter = NgramDrafter()
    drafter.prefill([5, 6, 7, 8])
    assert drafter.propose([5, 6, 7, 8, 1], [], None) is None
    drafter.rewind(5)
    draft = drafter.propose([5, 6, 7, 8, 1, 6, 7], [], None)
    assert (draft.token, draft.entropy_bits, draft.margin) == (8, None, None)
    assert drafter.propose([5, 6, 7, 8, 1, 6, 7], [8], None).token == 1


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_ngram_drafter_follows_any_history(data: st.DataObject) -> None:
    """Through any rounds it proposes what an index made of the whole text would."""
    few = st.integers(0, 3)
    drafter = NgramDrafter()
    history = data.draw(st.lists(few, min_size=1, max_size=12), label="prompt")
    drafter.prefill(history)
    for _ in range(data.draw(st.integers(1, 6), label="rounds")):
        history = [*history, data.draw(few)]
        pending: list[int] = []
        for _ in range(data.draw(st.integers(0, 5), label="drafted")):
            draft = drafter.propose(history, pending, None)
            assert ([] if draft is None else [draft.token]) == NgramIndex([*history, *pending]).propose(1)
            if draft is None:
                break
            pending.append(draft.token)
        accepted = data.draw(st.integers(0, len(pending)), label="accepted")
        history = [*history, *pending[:accepted]]
        drafter.rewind(len(history))
