"""What a pair needs in memory: the parts, the longest context that fits, and the refusal."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.available_memory import AvailableMemory
from edgeprec.bundle_model import ModelEntry
from edgeprec.errors import ConfigError, MemoryBudgetError
from edgeprec.memory_plan import (
    ONNXRUNTIME_CPU,
    MemoryProfile,
    largest_context,
    memory_by_context,
    plan_memory,
    require_memory,
)
from edgeprec.tensor_names import num_linear_weights

SIMPLE = MemoryProfile(
    engine="simple",
    fp16_bytes_per_weight=2.0,
    shared_fp16_bytes_per_weight=1.0,
    int4_bytes_per_byte=1.0,
    embedding_bytes_per_weight=2.0,
    copies_tied_head=False,
    packs_shared_head=False,
    cache_bytes_per_value=4,
    logits_rows=1,
    base_bytes=1000,
)


@pytest.fixture(scope="module")
def target(bundles: ModuleType) -> ModelEntry:
    """Return a tied model of two layers."""
    entry: ModelEntry = bundles.make_entry()
    return entry


def test_parts_of_a_small_model(target: ModelEntry) -> None:
    """Every part is what the shapes say."""
    plan = plan_memory([target], profile=SIMPLE, context_tokens=100)
    per_layer = 16 * 32 + 16 * 16 + 16 * 80 + 40 * 16
    assert plan.fp16_bytes == 2 * 2 * per_layer  # the tied head is the embedding
    assert plan.embedding_bytes == 2 * 21 * 16
    assert plan.int4_bytes == sum(spec.num_bytes for spec in target.int4_specs)
    assert plan.cache_bytes == 100 * 2 * 2 * 8 * 4  # keys and values, 2 layers, 8 wide, float32
    assert plan.workspace_bytes == 1000 + 21 * 4
    assert plan.total_bytes == sum(value for key, value in plan.to_json().items() if key.endswith("_bytes")) // 2


def test_a_draft_model_adds_its_own(target: ModelEntry, bundles: ModuleType) -> None:
    """A pair takes the sum of both, less what the draft shares."""
    draft = bundles.make_entry("draft", bundles.make_config(num_layers=1))
    sharing = replace(draft, shares_embedding=True, shares_head=True)
    alone = plan_memory([target], profile=SIMPLE, context_tokens=10)
    pair = plan_memory([target, draft], profile=SIMPLE, context_tokens=10)
    shared = plan_memory([target, sharing], profile=SIMPLE, context_tokens=10)
    assert pair.cache_bytes == alone.cache_bytes * 3 // 2
    assert pair.embedding_bytes == 2 * alone.embedding_bytes
    assert shared.embedding_bytes == alone.embedding_bytes
    assert shared.int4_bytes < pair.int4_bytes


def test_an_engine_that_packs_weights_has_the_shared_int4_head_twice(target: ModelEntry, bundles: ModuleType) -> None:
    """What is stored once is still packed by each session; the FP16 head and the embedding are not."""
    sharing = bundles.make_entry("draft", bundles.make_config(num_layers=1), shares_embedding=True, shares_head=True)
    packing = replace(SIMPLE, packs_shared_head=True)
    once, twice = (plan_memory([target, sharing], profile=profile, context_tokens=1) for profile in (SIMPLE, packing))
    head = sum(spec.num_bytes for spec in target.int4_specs if spec.name.startswith("head."))
    assert twice.int4_bytes - once.int4_bytes == head > 0
    assert (twice.fp16_bytes, twice.embedding_bytes) == (once.fp16_bytes, once.embedding_bytes)


def test_an_untied_head_is_counted(bundles: ModuleType, target: ModelEntry) -> None:
    """The FP16 head of an untied model is a weight of its own."""
    untied = bundles.make_entry(config=bundles.make_config(tied_embeddings=False))
    plans = [plan_memory([model], profile=SIMPLE, context_tokens=1) for model in (untied, target)]
    assert plans[0].fp16_bytes - plans[1].fp16_bytes == 2 * 21 * 16


def test_a_tied_head_may_be_a_weight_of_its_own(target: ModelEntry) -> None:
    """An engine that packs weights has the embedding a second time where it serves as the head."""
    copying = replace(SIMPLE, copies_tied_head=True)
    plans = [plan_memory([target], profile=profile, context_tokens=1) for profile in (copying, SIMPLE)]
    assert plans[0].fp16_bytes - plans[1].fp16_bytes == 2 * 21 * 16


def test_weights_outside_the_branches_lie_once(bundles: ModuleType, target: ModelEntry) -> None:
    """A large model's graph keeps FP16 weights where the engine holds one copy, and the plan knows it."""
    large = bundles.make_entry(config=bundles.make_config(hidden_size=4096, intermediate_size=16384, num_layers=2))
    for model, bytes_per_weight in ((target, 2), (large, 1)):
        linears = num_linear_weights(model.architecture) - 21 * model.architecture.hidden_size
        assert plan_memory([model], profile=SIMPLE, context_tokens=1).fp16_bytes == bytes_per_weight * linears


@given(spare=st.integers(0, 10_000_000))
@pytest.mark.parametrize("profile", [SIMPLE, ONNXRUNTIME_CPU], ids=lambda profile: profile.engine)
def test_largest_context_is_the_largest(target: ModelEntry, profile: MemoryProfile, spare: int) -> None:
    """The context named fits, and one token more does not unless the model ends there."""
    available = plan_memory([target], profile=profile, context_tokens=0).total_bytes + spare
    longest = largest_context([target], profile=profile, available_bytes=available)
    limit = target.architecture.max_positions
    if longest is not None:
        assert plan_memory([target], profile=profile, context_tokens=longest).total_bytes <= available
    if (longest or 0) < limit:
        more = plan_memory([target], profile=profile, context_tokens=(longest or 0) + 1)
        assert more.total_bytes > available


def test_refusal_names_need_supply_and_the_context_that_fits(target: ModelEntry) -> None:
    """The refusal tells the user what to type instead."""
    fixed = plan_memory([target], profile=SIMPLE, context_tokens=0).total_bytes
    available = AvailableMemory(fixed + 300 * 128, "the limit of control group /app")
    with pytest.raises(MemoryBudgetError, match=r"control group /app.*--context 300 or less") as caught:
        require_memory([target], profile=SIMPLE, context_tokens=301, available=available)
    assert caught.value.exit_code == 4
    assert require_memory([target], profile=SIMPLE, context_tokens=300, available=available).context_tokens == 300


def test_refusal_at_any_context(target: ModelEntry) -> None:
    """Where not even the weights fit, no context is offered."""
    with pytest.raises(MemoryBudgetError, match="does not fit at any context"):
        require_memory([target], profile=SIMPLE, context_tokens=1, available=AvailableMemory(10, "MemAvailable"))


@pytest.mark.parametrize("context_tokens", [-1, 0, 2049])
def test_context_beyond_the_model(target: ModelEntry, context_tokens: int) -> None:
    """A context the model was not made for is a usage error with both numbers, whatever the memory."""
    with pytest.raises(ConfigError, match=f"context is {context_tokens:,} tokens, expected 1 to 2,048"):
        require_memory([target], profile=SIMPLE, context_tokens=context_tokens, available=AvailableMemory(1, "x"))


def test_table_doubles_up_to_the_models_limit(target: ModelEntry) -> None:
    """``inspect --memory`` shows doubling contexts and ends with the longest there is."""
    plans = memory_by_context([target], profile=SIMPLE)
    assert [plan.context_tokens for plan in plans] == [512, 1024, 2048]
    assert len({plan.fp16_bytes for plan in plans}) == 1


def test_shorter_model_of_a_pair_limits_the_context(target: ModelEntry, bundles: ModuleType) -> None:
    """A draft that was made for less binds the pair."""
    draft = bundles.make_entry("draft", bundles.make_config(max_positions=64))
    assert largest_context([target, draft], profile=SIMPLE, available_bytes=1 << 40) == 64
