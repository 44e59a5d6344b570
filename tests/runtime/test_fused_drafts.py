"""Drafts an engine makes by itself: the text of single steps, no step that cannot be needed, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from edgeprec.config import DrafterKind, DraftingConfig, DraftRule, Mode, SamplingConfig
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.drafter import ModelDrafter, SelfDrafter, draft_chunk
from edgeprec.runtime.passes import PassCounter, WeightBits
from edgeprec.runtime.sampling import Sampler

BITS = WeightBits(weights=(10, 10, 10, 5), int4_bits=4.5)
FP16 = Plan.uniform(Precision.FP16, num_layers=3)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
GREEDY = Sampler(SamplingConfig(), 27)
MakeRig = Callable[..., Any]


@pytest.fixture
def engine(fake: ModuleType) -> Any:
    """Return an engine that drafts and holds the text 1 2."""
    made = fake.DraftingFake(fake.ToyModel())
    made.forward([1, 2], position=0, plan=FP16)
    return made


def proposed(drafter: Any, history: list[int], count: int, *, room: int) -> list[int]:
    """Take ``count`` drafts of one round."""
    pending: list[int] = []
    for index in range(count):
        pending.append(drafter.propose(history, pending, INT4, room=room - index).token)
    return pending


def test_self_drafter_asks_once_for_a_whole_round(engine: Any) -> None:
    """Five tokens come out of one call, and every step is counted."""
    drafter = SelfDrafter(engine, GREEDY, PassCounter(BITS), chunk=16)
    assert proposed(drafter, [1, 2, 3], 5, room=5) == engine.model.decode([1, 2, 3], 5)
    assert engine.calls == [(1, 5)]
    assert drafter.passes.all_passes == 5 * 4


def test_longer_rounds_take_several_calls(engine: Any) -> None:
    """As many as the engine gives at once, and never more than there is room for."""
    drafter = SelfDrafter(engine, GREEDY, PassCounter(BITS), chunk=16)
    assert proposed(drafter, [1, 2, 3], 11, room=11) == engine.model.decode([1, 2, 3], 11)
    assert engine.calls == [(1, 8), (1, 3)]


def test_what_a_round_does_not_take_is_forgotten(engine: Any) -> None:
    """The next round begins with a pass of its own, even where no rejection lies in between."""
    drafter = SelfDrafter(engine, GREEDY, PassCounter(BITS), chunk=16)
    taken = proposed(drafter, [1, 2, 3], 2, room=5)
    engine.forward([3, *taken], position=2, plan=FP16)
    drafter.rewind(5)
    text = [1, 2, 3, *taken, 9]
    assert proposed(drafter, text, 2, room=2) == engine.model.decode(text, 2)
    assert engine.calls == [(1, 5), (1, 2)]


def test_model_drafter_feeds_what_the_cache_lacks_in_the_first_step(fake: ModuleType) -> None:
    """After full acceptance two tokens are missing; they and all further steps are one call."""
    engine = fake.DraftingFake(fake.ToyModel(), always_int4=True)
    drafter = ModelDrafter(engine, GREEDY, PassCounter(BITS), 27, chunk=16)
    drafter.prefill([1, 2])
    history = [1, 2, 3]
    taken = proposed(drafter, history, 3, room=3)
    assert (engine.calls, drafter.cached) == ([(1, 3)], 5)
    drafter.rewind(len(history) + 3)
    text = [*history, *taken, 5]
    assert proposed(drafter, text, 2, room=2) == engine.model.decode(text, 2)
    assert engine.calls[-1] == (2, 2)
    assert drafter.passes.all_passes == 4 * (3 + 2 + 1)


def test_model_drafter_keeps_only_accepted_entries(fake: ModuleType) -> None:
    """The engine checks its own cache: entries of drafts that were not taken are written anew."""
    engine = fake.DraftingFake(fake.ToyModel(), always_int4=True)
    drafter = ModelDrafter(engine, GREEDY, PassCounter(BITS), 27, chunk=16)
    drafter.prefill([1, 2])
    history = [1, 2, 3]
    for wrong in (7, 8, 9):
        taken = proposed(drafter, history, 2, room=6)
        drafter.rewind(len(history) + 1)  # the first was accepted, the second replaced
        history = [*history, taken[0], wrong]
    assert proposed(drafter, history, 2, room=2) == engine.model.decode(history, 2)


def test_ids_the_target_lacks_are_never_drafted(fake: ModuleType) -> None:
    """The engine is told how many ids both models share."""
    engine = fake.DraftingFake(fake.ToyModel(), always_int4=True, width=30)
    drafter = ModelDrafter(engine, GREEDY, PassCounter(BITS), 27, chunk=4)
    assert proposed(drafter, [1, 2, 3], 4, room=4) == engine.model.decode([1, 2, 3], 4)


@pytest.mark.parametrize("sampling", [{"temperature": 0.7, "seed": 3}, {"repetition_penalty": 1.3}])
def test_other_sampling_drafts_step_by_step(engine: Any, sampling: dict[str, Any]) -> None:
    """Where the largest logit does not decide, the sampler sees every row."""
    drafter = SelfDrafter(engine, Sampler(SamplingConfig(**sampling), 27), PassCounter(BITS), chunk=16)
    assert len(proposed(drafter, [1, 2, 3], 3, room=3)) == 3
    assert engine.calls == []


def test_chunk_is_all_where_only_the_cap_stops() -> None:
    """A fixed length is drafted in one go; where a rule may stop, a small model runs ahead and the target does not."""
    fixed, rule = DraftingConfig(draft_length=5), DraftingConfig()
    assert draft_chunk(fixed, kind=DrafterKind.SELF, mode=Mode.EXACT) == 16
    assert draft_chunk(DraftingConfig(rule=DraftRule.FIXED), kind=DrafterKind.MODEL, mode=Mode.EXACT) == 16
    assert draft_chunk(rule, kind=DrafterKind.MODEL, mode=Mode.EXACT) == 2
    assert draft_chunk(rule, kind=DrafterKind.SELF, mode=Mode.EXACT) == 1
    assert draft_chunk(fixed, kind=DrafterKind.SELF, mode=Mode.BOUNDED) == 1


@pytest.mark.parametrize("draft", [None, "sometimes"])
@pytest.mark.parametrize("length", [1, 3, 5, None])
@pytest.mark.parametrize("agreement", ["always", "never", "sometimes"])
def test_exact_gives_fp16s_tokens(make_rig: MakeRig, agreement: str, length: int | None, draft: str | None) -> None:
    """Whoever drafts and however many at once, the text is plain FP16's, and the drafts are those of single steps."""
    settings = {"max_new_tokens": 30, "draft_length": length}
    rig = make_rig(agreement, draft=draft, kind="DraftingFake")
    reply = rig.session.generate("abc", **settings)
    assert list(reply.tokens) == rig.expected("abc", 30)[: len(reply.tokens)]
    assert rig.target.calls or rig.draft.calls
    if length is not None:
        plain = make_rig(agreement, draft=draft).session.generate("abc", **settings)
        assert reply.tokens == plain.tokens
        assert (reply.stats.drafted, reply.stats.accepted) == (plain.stats.drafted, plain.stats.accepted)
