"""What a batch sweep measures, the most telling first: a run that is cut short still answers the main question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from edgeprec.config import DrafterKind, DraftingConfig, GenerationConfig, Mode
from edgeprec.errors import ConfigError
from edgeprec.runtime.batch_engine import MAX_BATCH_DRAFT
from edgeprec.runtime.benchmark_case import Case, CaseKind, SetPrompt

__all__ = ["MAIN_BATCHES", "MAIN_WAYS", "OTHER_WAYS", "plan_cases", "way_config"]

MAIN_BATCHES = (1, 8)
MAIN_WAYS = ("fp16", "int4", "draft K=3", "draft K=5", "draft adaptive")
OTHER_WAYS = ("draft K=1", "draft K=2", "draft K=4")
_DRAFTING = re.compile(r"(draft|self) (?:K=(\d)|(adaptive))")


def plan_cases(
    batches: Sequence[int], ways: Sequence[str], *, new_tokens: int, prompts: tuple[SetPrompt, ...]
) -> list[Case]:
    """Return the cases in the order they are measured in: main batches and ways, other batches, other ways.

    Raises:
        ConfigError: a way has no such name.
    """
    configs = {way: way_config(way, new_tokens) for way in ways}

    def rank(batch: int, way: str) -> tuple[bool, bool, int, int]:
        is_main = way in MAIN_WAYS or way.startswith("self")
        return (not is_main, batch not in MAIN_BATCHES, batch, list(ways).index(way))

    ordered = sorted(((batch, way) for batch in batches for way in ways), key=lambda pair: rank(*pair))
    return [
        Case(
            kind=CaseKind.PROMPTS,
            config=configs[way],
            new_tokens=new_tokens,
            sequences=batch,
            prompt_set="test",
            prompts=prompts,
        )
        for batch, way in ordered
    ]


def way_config(way: str, new_tokens: int) -> GenerationConfig:
    """Return how a way decodes: ``fp16``, ``int4``, ``draft K=5``, ``self adaptive`` and the like.

    Raises:
        ConfigError: there is no way of that name.
    """
    plain = GenerationConfig(max_new_tokens=new_tokens)
    if way in ("fp16", "int4"):
        return replace(plain, mode=Mode(way))
    found = _DRAFTING.fullmatch(way)
    if found is None or not 1 <= int(found[2] or 1) <= MAX_BATCH_DRAFT:
        raise ConfigError(
            f"--configs has {way!r}, expected some of {', '.join((*MAIN_WAYS, *OTHER_WAYS))}, or self in place of draft"
        )
    drafter = DrafterKind.MODEL if found[1] == "draft" else DrafterKind.SELF
    length = None if found[3] else int(found[2])
    return replace(plain, drafting=DraftingConfig(drafter=drafter, draft_length=length))
