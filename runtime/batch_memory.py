"""Refuses a batch whose caches do not fit, and says which batch or context would."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from edgeprec.available_memory import AvailableMemory
from edgeprec.errors import ConfigError, MemoryBudgetError
from edgeprec.memory_plan import MemoryPlan, require_fit

__all__ = ["require_batch"]

_MIB = 1 << 20


def require_batch(
    plan_at: Callable[[int, int], MemoryPlan],
    *,
    engine: str,
    context_tokens: int,
    sequences: int,
    available: AvailableMemory,
) -> MemoryPlan:
    """Return the plan of so many sequences with a cache each; ``plan_at(context, sequences)`` grows with both.

    Raises:
        ConfigError: there is not even one sequence.
        MemoryBudgetError: it does not fit; the message names the largest batch and the longest context that do.
    """
    if sequences < 1:
        raise ConfigError(f"sequences is {sequences}, expected 1 or more")
    plan = plan_at(context_tokens, sequences)
    if plan.total_bytes <= available.size_bytes:
        return plan
    batch = _largest(lambda count: plan_at(context_tokens, count), sequences, available)
    if sequences == 1 or not batch:
        return require_fit(
            lambda tokens: plan_at(tokens, 1), engine=engine, context_tokens=context_tokens, available=available
        )
    longest = _largest(lambda tokens: plan_at(tokens, sequences), context_tokens, available)
    shorter = f", or --context {longest} for all of them" if longest else ""
    raise MemoryBudgetError(
        f"{sequences} sequences with a context of {context_tokens:,} tokens each need {_mib(plan.total_bytes)} of "
        f"memory with the engine {engine}, {_mib(available.size_bytes)} are available ({available.bound}): use {batch} "
        f"sequences or fewer{shorter}"
    )


def _largest(plan_of: Callable[[int], MemoryPlan], limit: int, available: AvailableMemory) -> int:
    """Return the largest number below ``limit`` whose plan fits, 0 where none does."""
    return bisect_right(range(1, limit), available.size_bytes, key=lambda count: plan_of(count).total_bytes)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.0f} MiB"
