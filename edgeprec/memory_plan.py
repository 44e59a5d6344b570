"""What a pair needs in memory at a context length, the longest context that fits, and the refusal of the rest.

Pure: available memory comes from ``edgeprec.available_memory`` or a GPU's engine as a number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgeprec.architecture import ModelConfig
from edgeprec.available_memory import AvailableMemory
from edgeprec.bundle_model import ModelEntry
from edgeprec.errors import ConfigError, MemoryBudgetError
from edgeprec.tensor_names import num_linear_weights, shares_fp16_constants

__all__ = [
    "ONNXRUNTIME_CPU",
    "MemoryPlan",
    "MemoryProfile",
    "check_context",
    "largest_context",
    "memory_by_context",
    "plan_memory",
    "require_fit",
    "require_memory",
]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """What one engine makes of a bundle's bytes once loaded; measured, see ``docs/bundle-format.md``."""

    engine: str
    fp16_bytes_per_weight: float  # a linear's FP16 variant as it lies in memory
    shared_fp16_bytes_per_weight: float  # the same where the graph keeps it outside its branches
    int4_bytes_per_byte: float  # the INT4 file as it lies in memory
    embedding_bytes_per_weight: float
    copies_tied_head: bool  # where the embedding serves as the head too, the head is a weight of its own
    packs_shared_head: bool  # a draft that shares the target's INT4 head has a packed copy of its own
    cache_bytes_per_value: int
    logits_rows: int  # rows of float32 logits in all buffers together
    base_bytes: int  # libraries, graphs, tokenizer, buffers


ONNXRUNTIME_CPU = MemoryProfile(
    engine="onnxruntime",
    fp16_bytes_per_weight=8.0,  # float32 compute: the weight's Cast folds at load, and its packed copy lies beside it
    shared_fp16_bytes_per_weight=4.0,  # the packed copy alone
    int4_bytes_per_byte=2.1,  # a packed copy here too, with scales in float32
    embedding_bytes_per_weight=2.0,
    copies_tied_head=True,
    packs_shared_head=True,
    cache_bytes_per_value=4,
    logits_rows=192,
    base_bytes=160 * _MIB,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The parts of what a pair takes at one context length."""

    context_tokens: int
    fp16_bytes: int
    int4_bytes: int
    embedding_bytes: int
    cache_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.fp16_bytes + self.int4_bytes + self.embedding_bytes + self.cache_bytes + self.workspace_bytes

    def to_json(self) -> dict[str, Any]:
        """Return what ``inspect --memory --json`` prints of it."""
        return {
            "context_tokens": self.context_tokens,
            "fp16_bytes": self.fp16_bytes,
            "int4_bytes": self.int4_bytes,
            "embedding_bytes": self.embedding_bytes,
            "cache_bytes": self.cache_bytes,
            "workspace_bytes": self.workspace_bytes,
            "total_bytes": self.total_bytes,
        }


def plan_memory(models: Sequence[ModelEntry], *, profile: MemoryProfile, context_tokens: int) -> MemoryPlan:
    """Return what the models take together; a draft ``self`` is not among them, it uses the target's memory."""
    configs = [model.architecture for model in models]
    vocabulary = max(config.vocab_size for config in configs)
    return MemoryPlan(
        context_tokens=context_tokens,
        fp16_bytes=sum(_fp16_bytes(model, profile) for model in models),
        int4_bytes=sum(_int4_bytes(model, profile) for model in models),
        embedding_bytes=sum(_embedding_bytes(model, profile) for model in models),
        cache_bytes=context_tokens * _cache_bytes_per_token(configs, profile),
        workspace_bytes=profile.base_bytes + len(models) * profile.logits_rows * vocabulary * 4,
    )


def largest_context(models: Sequence[ModelEntry], *, profile: MemoryProfile, available_bytes: int) -> int | None:
    """Return the longest context that fits, at most what the models were made for; None if not even one token does."""
    per_token = _cache_bytes_per_token([model.architecture for model in models], profile)
    fixed = plan_memory(models, profile=profile, context_tokens=0).total_bytes
    longest = min((available_bytes - fixed) // per_token, _max_positions(models))
    return longest if longest >= 1 else None


def memory_by_context(models: Sequence[ModelEntry], *, profile: MemoryProfile) -> tuple[MemoryPlan, ...]:
    """Return plans for 512, 1024, ... tokens and for the longest context of the models."""
    longest = _max_positions(models)
    lengths = [512 << step for step in range(32) if 512 << step < longest]
    return tuple(plan_memory(models, profile=profile, context_tokens=length) for length in (*lengths, longest))


def require_memory(
    models: Sequence[ModelEntry], *, profile: MemoryProfile, context_tokens: int, available: AvailableMemory
) -> MemoryPlan:
    """Return the plan, or refuse before anything is loaded.

    Raises:
        ConfigError: the context is longer than the models were made for.
        MemoryBudgetError: it does not fit; the message names the longest context that does.
    """
    check_context(models, context_tokens)
    return require_fit(
        lambda tokens: plan_memory(models, profile=profile, context_tokens=tokens),
        engine=profile.engine,
        context_tokens=context_tokens,
        available=available,
    )


def require_fit(
    plan_at: Callable[[int], MemoryPlan], *, engine: str, context_tokens: int, available: AvailableMemory
) -> MemoryPlan:
    """Return the plan at a context length, or refuse it; ``plan_at`` grows with the length.

    Raises:
        MemoryBudgetError: it does not fit; the message names the longest context that does.
    """
    plan = plan_at(context_tokens)
    if plan.total_bytes <= available.size_bytes:
        return plan
    lengths = range(1, context_tokens)
    longest = bisect_right(lengths, available.size_bytes, key=lambda tokens: plan_at(tokens).total_bytes)
    advice = f"use --context {longest} or less" if longest else "it does not fit at any context: use a smaller model"
    raise MemoryBudgetError(
        f"a context of {context_tokens:,} tokens needs {_mib(plan.total_bytes)} of memory with the engine "
        f"{engine}, {_mib(available.size_bytes)} are available ({available.bound}): {advice}"
    )


def check_context(models: Sequence[ModelEntry], context_tokens: int) -> None:
    """Refuse a context that a model was not made for.

    Raises:
        ConfigError: it is less than one token or longer than the shortest maximum of the models.
    """
    longest = _max_positions(models)
    if not 1 <= context_tokens <= longest:
        raise ConfigError(
            f"context is {context_tokens:,} tokens, expected 1 to {longest:,}, what the model was made for"
        )


def _max_positions(models: Sequence[ModelEntry]) -> int:
    return min(model.architecture.max_positions for model in models)


def _cache_bytes_per_token(configs: Sequence[ModelConfig], profile: MemoryProfile) -> int:
    return sum(2 * config.num_layers * config.kv_size * profile.cache_bytes_per_value for config in configs)


def _fp16_bytes(model: ModelEntry, profile: MemoryProfile) -> int:
    config = model.architecture
    weights = num_linear_weights(config)
    if model.shares_head or (config.tied_embeddings and not profile.copies_tied_head):
        weights -= config.vocab_size * config.hidden_size
    is_shared = shares_fp16_constants(config)
    return int(weights * (profile.shared_fp16_bytes_per_weight if is_shared else profile.fp16_bytes_per_weight))


def _int4_bytes(model: ModelEntry, profile: MemoryProfile) -> int:
    specs = replace(model, shares_head=False).int4_specs if profile.packs_shared_head else model.int4_specs
    return int(sum(spec.num_bytes for spec in specs) * profile.int4_bytes_per_byte)


def _embedding_bytes(model: ModelEntry, profile: MemoryProfile) -> int:
    if model.shares_embedding:
        return 0
    config = model.architecture
    return int(config.vocab_size * config.hidden_size * profile.embedding_bytes_per_weight)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.0f} MiB"
