"""The prompts that ship with the product: written for it, in four kinds, in three sets that share nothing.

    calibration    40    what export may look at: thresholds, layer order, acceptance by entropy
    tuning         40    what a person may look at while choosing a default
    test          200    what is measured and reported; nothing is ever chosen by it
    short          27    numbers 1, 8, 15, ... of each kind of test (7, 7, 7 and 6), the number used in the research

An id never changes its text, so results by prompt can be compared between versions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Literal, get_args

from edgeprec.errors import ConfigError

__all__ = ["PROMPT_SETS", "Prompt", "PromptKind", "PromptSet", "load_prompts"]

PromptSet = Literal["calibration", "tuning", "test", "short"]
PROMPT_SETS: tuple[PromptSet, ...] = get_args(PromptSet)


class PromptKind(StrEnum):
    """What a prompt asks for."""

    PROSE = "prose"  # the beginning of a text, to be continued
    QUESTION = "question"  # what a person asks an assistant
    CODE = "code"  # the beginning of a program, or a task about one
    PASSAGE = "passage"  # a text and a task about it: summarise, extract, answer, rewrite


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. ``id`` is ``<set>-<kind>-<number>``; a prompt of ``short`` keeps its id of ``test``."""

    id: str
    kind: PromptKind
    text: str


def load_prompts(which: PromptSet, kind: PromptKind | str | None = None) -> tuple[Prompt, ...]:
    """Return the prompts of a set, in fixed order, of one ``kind`` or of all.

    Raises:
        ConfigError: the set or the kind does not exist.
    """
    if which not in PROMPT_SETS:
        raise ConfigError(f"prompt set is {which!r}, expected one of {', '.join(PROMPT_SETS)}")
    if kind is not None and kind not in tuple(PromptKind):
        raise ConfigError(f"prompt kind is {kind!r}, expected one of {', '.join(PromptKind)}")
    return tuple(prompt for prompt in _sets()[which] if kind is None or prompt.kind == kind)


@lru_cache(maxsize=1)
def _sets() -> dict[str, tuple[Prompt, ...]]:
    content = json.loads(files("edgeprec").joinpath("prompts.json").read_text(encoding="utf-8"))
    sets = {
        name: tuple(Prompt(row["id"], PromptKind(row["kind"]), row["text"]) for row in content[name])
        for name in ("calibration", "tuning", "test")
    }
    by_id = {prompt.id: prompt for prompt in sets["test"]}
    sets["short"] = tuple(by_id[prompt_id] for prompt_id in content["short"])
    return sets
