"""The fidelity study's decoding: what it calls a flip, a fresh cache and an expected prefix."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.precision import Plan, Precision

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(SCRIPTS)
    yield import_module("study_decoding")
    sys.modules.pop("study_decoding", None)


def engine_of(fake: ModuleType, agreement: str, **changes: Any) -> tuple[Any, Any]:
    """Return a toy and an engine on it."""
    toy = fake.ToyModel()
    return toy, fake.FakeEngine(toy, agreement, max_rows=3, **changes)


@pytest.mark.parametrize("rewrites_cache", [True, False])
def test_layers_that_agree_give_fp16s_text(study: ModuleType, fake: ModuleType, rewrites_cache: bool) -> None:
    """With INT4 that is right the text is FP16's, whoever writes the cache."""
    toy, engine = engine_of(fake, "always")
    tokens = study.decode(engine, PROMPT, count=9, plan=INT4, rewrites_cache=rewrites_cache)
    assert tokens == toy.decode(PROMPT, 9)


def test_rewriting_leaves_nothing_of_int4_in_the_cache(study: ModuleType, fake: ModuleType) -> None:
    """Before each INT4 pass all earlier slots are FP16's; without rewriting, INT4's lie there from the third token."""
    dirty: dict[bool, int] = {}
    for rewrites_cache in (True, False):
        _, engine = engine_of(fake, "sometimes")
        dirty[rewrites_cache] = 0

        def look(asked: Any, engine: Any = engine, rewrites_cache: bool = rewrites_cache) -> None:
            slots = engine.slots[: asked.position]
            dirty[rewrites_cache] += any(slot.is_int4 for slot in slots)

        engine.before_pass = look
        study.decode(engine, PROMPT, count=6, plan=INT4, rewrites_cache=rewrites_cache)
    assert dirty == {True: 0, False: 4}


@pytest.mark.parametrize("rewrites_cache", [True, False])
@pytest.mark.parametrize(("agreement", "flips"), [("always", 0), ("never", 8)])
def test_flips_are_counted_on_fp16s_text(
    study: ModuleType, fake: ModuleType, agreement: str, flips: int, rewrites_cache: bool
) -> None:
    """Every token after the first is judged once, in FP16's own text, whatever INT4 said before."""
    toy, engine = engine_of(fake, agreement)
    reply = toy.decode(PROMPT, 9)
    assert study.count_flips(engine, PROMPT, reply, plan=INT4, rewrites_cache=rewrites_cache) == flips


@pytest.mark.parametrize(("rate", "count", "expected"), [(0.0, 10, 10.0), (1.0, 10, 1.0), (0.5, 3, 1.75)])
def test_expected_prefix(study: ModuleType, rate: float, count: int, expected: float) -> None:
    """Independent flips end the common prefix after 1/f tokens, or at the end of the text."""
    assert study.expected_prefix(rate, count) == pytest.approx(expected)


def test_reading_a_prompt_gives_fp16s_choice(study: ModuleType, fake: ModuleType) -> None:
    """A prompt longer than a pass is read in pieces."""
    toy, engine = engine_of(fake, "never")
    assert study.read_prompt(engine, PROMPT) == toy.decode(PROMPT, 1)[0]
    assert [len(asked.tokens) for asked in engine.passes] == [3, 2]
