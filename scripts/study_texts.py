"""Texts of a study on disk: FP16 answers the prompts once, and every part reads the same replies."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from edgeprec.prompts import PromptKind
from edgeprec.runtime.evaluation_texts import EvaluationText

__all__ = ["first_of_each_kind", "load_texts", "store_texts", "write_json"]


def store_texts(path: Path, texts: Sequence[EvaluationText]) -> None:
    """Write the texts."""
    write_json(path, [{"kind": text.kind, "prompt": text.prompt, "reply": text.reply} for text in texts])


def load_texts(path: Path) -> tuple[EvaluationText, ...]:
    """Return the texts in the order in which they were written."""
    return tuple(
        EvaluationText(kind=PromptKind(row["kind"]), prompt=tuple(row["prompt"]), reply=tuple(row["reply"]))
        for row in json.loads(path.read_text())
    )


def first_of_each_kind(texts: Sequence[EvaluationText], count: int) -> tuple[EvaluationText, ...]:
    """Return the first ``count`` texts of each kind, in their order."""
    taken: Counter[PromptKind] = Counter()
    chosen = []
    for text in texts:
        taken[text.kind] += 1
        if taken[text.kind] <= count:
            chosen.append(text)
    return tuple(chosen)


def write_json(path: Path, values: object) -> None:
    """Write a file whole or not at all: a part that is killed leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(values, indent=1) + "\n")
    temporary.replace(path)
