"""The ONNX Runtime engine on a real tiny graph: rows, rollback, plans, limits and broken files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgeprec.bundle import Bundle
from edgeprec.errors import BundleError, EngineError, MissingDependency
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine_onnxruntime import MAX_ROWS, OnnxRuntimeEngine, cache_bytes

CONTEXT = 100
FP16 = Plan.uniform(Precision.FP16, num_layers=3)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 272, CONTEXT)]
Rows = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def engine(tiny_pair: Path) -> Iterator[OnnxRuntimeEngine]:
    """Open the tiny pair's target with two threads."""
    target = Bundle.open(tiny_pair).target
    opened = OnnxRuntimeEngine.open(target.graph_path("fp32"), target.architecture, context_tokens=CONTEXT, threads=2)
    yield opened
    opened.close()


def run(engine: OnnxRuntimeEngine, start: int, end: int, plan: Plan = FP16) -> Rows:
    """Run TEXT[start:end] in one pass and return a copy of its logits."""
    return engine.forward(TEXT[start:end], position=start, plan=plan).logits.copy()


def in_pieces(engine: OnnxRuntimeEngine, end: int, size: int) -> Rows:
    """Run the first ``end`` tokens in FP16, ``size`` rows at a time."""
    return np.concatenate([run(engine, start, min(start + size, end)) for start in range(0, end, size)])


def test_info_tells_shapes_and_limits(engine: OnnxRuntimeEngine) -> None:
    """What a session plans with."""
    info = engine.info
    assert (info.name, info.device, info.num_layers, info.vocab_size) == ("onnxruntime", "cpu", 3, 288)
    assert (info.context_tokens, info.max_rows, info.has_bitwise_rows, info.fallbacks) == (CONTEXT, 64, True, ())
    assert info.memory_bytes == 2 * 3 * (CONTEXT + 1) * 24 * 4


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16, 17, 33, 64])
def test_fp16_rows_do_not_depend_on_their_pass(engine: OnnxRuntimeEngine, size: int) -> None:
    """Single steps, drafts of any length and prompts in pieces give the very same bits: exact means exact."""
    whole = in_pieces(engine, 80, 16)
    assert np.array_equal(in_pieces(engine, 80, size), whole)


def test_rollback_leaves_nothing_behind(engine: OnnxRuntimeEngine) -> None:
    """Wrong tokens in FP16 and INT4 beyond a position change nothing once the position is passed again."""
    whole = in_pieces(engine, 40, 10)
    engine.forward([5] * 30, position=20, plan=INT4)
    engine.forward([7] * 12, position=22, plan=FP16)
    assert np.array_equal(run(engine, 20, 40), whole[20:])


def test_int4_drafts_leave_fp16_verification_exact(engine: OnnxRuntimeEngine) -> None:
    """A round as it is decoded: three INT4 steps, then four FP16 rows over them."""
    whole = in_pieces(engine, 40, 10)
    in_pieces(engine, 30, 10)
    drafted = [run(engine, index, index + 1, INT4) for index in range(30, 33)]
    assert np.array_equal(run(engine, 30, 34), whole[30:34])
    assert not np.array_equal(np.concatenate(drafted), whole[30:33])


def test_every_gate_changes_the_logits(engine: OnnxRuntimeEngine) -> None:
    """Each layer and the head have two variants that differ, and the plan picks between them at every pass."""
    in_pieces(engine, 20, 20)
    plans = [FP16, INT4, *(Plan(tuple(index == gate for index in range(4))) for gate in range(4))]
    rows = [run(engine, 20, 22, plan) for plan in plans]
    for index, row in enumerate(rows):
        for other in rows[:index]:
            assert not np.array_equal(row, other)
    assert np.array_equal(run(engine, 20, 22), rows[0])


def test_last_position_of_the_context(engine: OnnxRuntimeEngine) -> None:
    """A single row fits into the last slot although it runs with a second one."""
    whole = in_pieces(engine, CONTEXT, 50)
    assert np.array_equal(run(engine, CONTEXT - 1, CONTEXT)[0], whole[-1])
    run(engine, CONTEXT - 1, CONTEXT, INT4)


def test_logits_are_a_view_of_the_last_pass(engine: OnnxRuntimeEngine) -> None:
    """No copy is made: what was returned is overwritten by the next pass of as many rows or more."""
    first = engine.forward(TEXT[:2], position=0, plan=FP16).logits
    kept = first.copy()
    engine.forward(TEXT[2:4], position=2, plan=FP16)
    assert not np.array_equal(first, kept)


@pytest.mark.parametrize(
    ("rows", "position", "plan", "match"),
    [
        (0, 0, FP16, f"has 0 rows, expected 1 to {MAX_ROWS}"),
        (65, 0, FP16, "has 65 rows"),
        (1, -1, FP16, "leaves the context of 100"),
        (1, CONTEXT, FP16, "1 rows at position 100 leaves the context"),
        (4, CONTEXT - 3, INT4, "leaves the context"),
        (1, 0, Plan.uniform(Precision.INT4, num_layers=2), "plan is for 2 layers, the model has 3"),
    ],
)
def test_passes_out_of_range_are_refused(
    engine: OnnxRuntimeEngine, rows: int, position: int, plan: Plan, match: str
) -> None:
    """Nothing is run that would write beside the cache."""
    with pytest.raises(EngineError, match=match):
        engine.forward([1] * rows, position=position, plan=plan)


def test_token_the_model_lacks_is_an_engine_error(engine: OnnxRuntimeEngine) -> None:
    """ONNX Runtime's own refusal arrives as ours, and the engine goes on."""
    with pytest.raises(EngineError, match="failed at position 0"):
        engine.forward([288], position=0, plan=FP16)
    run(engine, 0, 2)


def test_closed_engine_says_so(tiny_pair: Path) -> None:
    """Closing twice is harmless, running afterwards is not."""
    target = Bundle.open(tiny_pair).target
    opened = OnnxRuntimeEngine.open(target.graph_path("fp32"), target.architecture, context_tokens=8)
    opened.close()
    opened.close()
    with pytest.raises(EngineError, match="closed: open the bundle again"):
        opened.forward([1], position=0, plan=FP16)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        ("missing", "missing from the bundle"),
        ("garbage", "is damaged, it has other bytes"),
        ("no weights", "has 0 bytes"),
        ("links", "has 2 hard links, onnxruntime reads weights with one alone: run a copy"),
    ],
)
def test_bundle_that_cannot_be_loaded(tiny_pair: Path, tmp_path: Path, damage: str, match: str) -> None:
    """A graph that is gone or broken, or whose weights are, is the bundle's fault, and one sentence with its path."""
    target = Bundle.open(Path(shutil.copytree(tiny_pair, tmp_path / "copy.edgeprec"))).target
    graph, broken = target.graph_path("fp32"), target.fp16_path
    if damage == "links":
        os.link(broken, tmp_path / "backup")
    elif damage == "no weights":
        broken.write_bytes(b"")
    else:
        broken = graph
        graph.write_bytes(bytes(graph.stat().st_size))
        if damage == "missing":
            graph.unlink()
    with pytest.raises(BundleError, match=match) as caught:
        OnnxRuntimeEngine.open(graph, target.architecture, context_tokens=8)
    assert str(broken) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_graph_outside_a_bundle_that_cannot_be_loaded(tiny_pair: Path, tmp_path: Path) -> None:
    """There is nothing to compare it with: the engine's own first line is the reason."""
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"\x08\x0agarbage")
    with pytest.raises(EngineError, match="cannot load") as caught:
        OnnxRuntimeEngine.open(graph, Bundle.open(tiny_pair).target.architecture, context_tokens=8)
    assert str(graph) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_onnxruntime_the_extra_is_named(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message holds the command that installs it."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    target = Bundle.open(tiny_pair).target
    with pytest.raises(MissingDependency, match=r"pip install 'edgeprec\[cpu\]'"):
        OnnxRuntimeEngine.open(target.graph_path("fp32"), target.architecture, context_tokens=8)


def test_cache_bytes_by_hand(tiny_pair: Path) -> None:
    """Keys and values of every layer and position in float32, and one more position."""
    config = Bundle.open(tiny_pair).target.architecture
    assert cache_bytes(config, 10) == 2 * 3 * 11 * (2 * 12) * 4
