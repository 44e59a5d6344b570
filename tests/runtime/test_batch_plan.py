"""What a batch sweep measures first, how ways are named, and how its file is gone on from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.config import DrafterKind, Mode

Load = Callable[[str], ModuleType]


def test_main_rows_come_first(load_script: Load) -> None:
    """Batches 1 and 8 of the main ways, then the main ways elsewhere, then the other lengths; nothing twice."""
    plan = load_script("batch_plan")
    ways = [*plan.OTHER_WAYS, *plan.MAIN_WAYS]
    cases = plan.plan_cases([1, 2, 4, 8], ways, new_tokens=128, prompts=())
    lengths = [case.config.drafting.draft_length if case.config.mode is Mode.EXACT else 0 for case in cases]
    assert [case.sequences for case in cases[:10]] == [1] * 5 + [8] * 5
    assert [case.sequences for case in cases[10:20]] == [2] * 5 + [4] * 5
    assert [case.sequences for case in cases[20:]] == [1] * 3 + [8] * 3 + [2] * 3 + [4] * 3
    assert lengths[:5] == [0, 0, 3, 5, None]
    assert lengths[20:23] == [1, 2, 4]
    assert len({(case.sequences, case.config) for case in cases}) == 4 * 8


@pytest.mark.parametrize(
    ("way", "drafter", "length"),
    [("draft K=5", DrafterKind.MODEL, 5), ("self adaptive", DrafterKind.SELF, None), ("self K=7", DrafterKind.SELF, 7)],
)
def test_names_of_ways(load_script: Load, way: str, drafter: DrafterKind, length: int | None) -> None:
    """Who drafts, and how far; a reply ends where the model ends it."""
    config = load_script("batch_plan").way_config(way, 96)
    assert (config.drafting.drafter, config.drafting.draft_length, config.mode) == (drafter, length, Mode.EXACT)
    assert (config.max_new_tokens, config.ignore_eos) == (96, False)


def record(batch: int, *, rate: float, **changes: Any) -> dict[str, Any]:
    """Return what of a result tells it apart, and a number."""
    test = {"kind": "prompts", "prompt_set": "test", "new_tokens": 128, "sequences": batch}
    values: dict[str, Any] = {"schema": "edgeprec.bench", "schema_version": 1, "engine": "torch", "mode": "exact"}
    values |= {"engine_device": "cuda:0", "model": {"name": "m", "draft": "d"}, "drafter": "model", "draft_length": 5}
    return values | {"three_level": False, "test": test, "rate": rate} | changes


def test_file_keeps_the_newest_of_each(load_script: Load, tmp_path: Path) -> None:
    """A result takes the place of an older one of the same; another batch, length, program or draft is another one."""
    results = load_script("results_file")
    path = tmp_path / "sweep.jsonl"
    file = results.ResultsFile(path)
    others = [record(8, rate=2.0), record(1, rate=3.0, draft_length=3), record(1, rate=4.0, engine="vllm")]
    others.append(record(1, rate=5.0, model={"name": "m", "draft": "other"}))
    for one in (record(1, rate=1.0), *others, record(1, rate=9.0)):
        file.put(one)
    assert [json.loads(line)["rate"] for line in path.read_text().splitlines()] == [9.0, 2.0, 3.0, 4.0, 5.0]
    assert results.ResultsFile(path).records == file.records
    assert [one.name for one in tmp_path.iterdir()] == ["sweep.jsonl"]


def test_file_of_other_schemas(load_script: Load, tmp_path: Path) -> None:
    """Their lines are no results, nor is one that was cut off."""
    path = tmp_path / "sweep.jsonl"
    whole = json.dumps(record(1, rate=1.0))
    other = json.dumps(record(2, rate=1.0, schema="other"))
    newer = json.dumps(record(2, rate=1.0, schema_version=2))
    path.write_text("\n".join([whole, other, newer, "3", whole[:30]]))
    assert len(load_script("results_file").ResultsFile(path).records) == 1
