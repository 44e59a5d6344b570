"""A batch that does not fit is refused with the batch and the context that would."""

from __future__ import annotations

import pytest

from edgeprec.available_memory import AvailableMemory
from edgeprec.errors import ConfigError, MemoryBudgetError
from edgeprec.memory_plan import MemoryPlan
from edgeprec.runtime.batch_memory import require_batch

MIB = 1 << 20


def plan_at(context: int, sequences: int) -> MemoryPlan:
    """Plan 100 MiB of weights and one MiB a token of each sequence."""
    return MemoryPlan(
        context_tokens=context,
        fp16_bytes=60 * MIB,
        int4_bytes=20 * MIB,
        embedding_bytes=10 * MIB,
        cache_bytes=context * sequences * MIB,
        workspace_bytes=10 * MIB,
    )


def require(context: int, sequences: int, available_mib: int) -> MemoryPlan:
    """Ask for it."""
    return require_batch(
        plan_at,
        engine="torch",
        context_tokens=context,
        sequences=sequences,
        available=AvailableMemory(available_mib * MIB, "MemAvailable"),
    )


def test_what_fits_is_planned() -> None:
    """To the last byte."""
    assert require(50, 8, 500).cache_bytes == 400 * MIB


@pytest.mark.parametrize(
    ("context", "sequences", "available", "match"),
    [
        (
            50,
            8,
            499,
            "8 sequences with a context of 50 tokens each need 500 MiB .*: use 7 sequences or fewer, or "
            "--context 49 for all of them",
        ),
        (50, 64, 160, "use 1 sequences or fewer$"),
        (50, 8, 120, "a context of 50 tokens needs 150 MiB .*: use --context 20 or less"),
        (50, 8, 90, "it does not fit at any context"),
    ],
)
def test_what_does_not_fit_is_refused(context: int, sequences: int, available: int, match: str) -> None:
    """The message names what would."""
    with pytest.raises(MemoryBudgetError, match=match):
        require(context, sequences, available)


def test_no_sequence_at_all() -> None:
    """A batch has one or more."""
    with pytest.raises(ConfigError, match="sequences is 0, expected 1 or more"):
        require(10, 0, 500)
