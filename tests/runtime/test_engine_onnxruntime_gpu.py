"""The engine for ONNX Runtime's GPU providers, on the CPU provider in their place; and the real one where a GPU is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from edgeprec.bundle import Bundle
from edgeprec.errors import BundleError, ConfigError, EngineError, MissingDependency
from edgeprec.precision import Plan, Precision
from edgeprec.runtime import engine_onnxruntime_gpu
from edgeprec.runtime.engine import NEAR_TIES
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.engine_onnxruntime_gpu import PROVIDERS, OnnxRuntimeGpuEngine, Provider

CONTEXT = 60
TOLERANCE = 0.02  # FP16 activations against float32 ones, on logits of a few units
INT4_TOLERANCE = 0.2  # the CPU engine rounds activations to int8 there, and its cache holds INT4's entries
FP16 = Plan.uniform(Precision.FP16, num_layers=3)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
MIXED = Plan((True, False, True, False))
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 272, CONTEXT)]


@dataclass
class Recorder:
    """A binding that tells what is bound."""

    io: Any
    bind_cpu_input: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.io, name)


@pytest.fixture
def engine(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnnxRuntimeGpuEngine]:
    """Open the tiny target with the CPU provider under the name of cuda."""
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name="CPUExecutionProvider", device="cpu"))
    opened = OnnxRuntimeGpuEngine.open(Bundle.open(tiny_pair).target, provider="cuda", context_tokens=CONTEXT)
    yield opened
    opened.close()


def test_logits_are_the_cpu_engines(tiny_pair: Path, engine: OnnxRuntimeGpuEngine) -> None:
    """Prefill, single rows in both precisions and a rollback follow the float32 engine within FP16's error."""
    model = Bundle.open(tiny_pair).target
    cpu = OnnxRuntimeEngine.open(model.graph_path("fp32"), model.architecture, context_tokens=CONTEXT, threads=1)
    for start, end, plan in [
        (0, 16, FP16),
        (16, 20, FP16),
        (20, 21, INT4),
        (21, 22, INT4),
        (20, 24, FP16),
        (24, 25, FP16),
    ]:
        expected = cpu.forward(TEXT[start:end], position=start, plan=plan).logits
        found = engine.forward(TEXT[start:end], position=start, plan=plan).logits
        assert (found.dtype, found.shape) == (np.float32, expected.shape)
        difference = np.abs(found - expected)
        tolerance = TOLERANCE if plan.is_fp16 else INT4_TOLERANCE
        assert difference.max() < tolerance, f"max {difference.max()}, mean {difference.mean()}"
    cpu.close()


def test_a_damaged_graph_is_the_bundles_fault(tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is another copy, not another engine."""
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name="CPUExecutionProvider", device="cpu"))
    model = Bundle.open(Path(shutil.copytree(tiny_pair, tmp_path / "copy.edgeprec"))).target
    graph = model.graph_path("fp16")
    graph.write_bytes(bytes(graph.stat().st_size))
    with pytest.raises(BundleError, match="is damaged"):
        OnnxRuntimeGpuEngine.open(model, provider="cuda", context_tokens=CONTEXT)


def test_rollback_leaves_nothing_behind(engine: OnnxRuntimeGpuEngine) -> None:
    """The cache is written in place: wrong tokens beyond a position change nothing once it is passed again."""
    engine.forward(TEXT[:10], position=0, plan=FP16)
    whole = engine.forward(TEXT[10:20], position=10, plan=FP16).logits
    engine.forward([5] * 16, position=10, plan=INT4)
    engine.forward([7] * 16, position=26, plan=FP16)
    assert np.array_equal(engine.forward(TEXT[10:20], position=10, plan=FP16).logits, whole)


def test_gates_choose_the_variant(engine: OnnxRuntimeGpuEngine) -> None:
    """Each gate changes the logits."""
    plans = [FP16, *(Plan(tuple(index == gate for index in range(4))) for gate in range(4))]
    rows = [engine.forward(TEXT[:4], position=0, plan=plan).logits for plan in plans]
    assert all(not np.array_equal(rows[0], row) for row in rows[1:])


def test_info_tells_shapes_limits_and_no_fallback(engine: OnnxRuntimeGpuEngine) -> None:
    """Every node runs with the provider asked for here; that bits do not depend on rows was not measured with it."""
    info = engine.info
    assert (info.name, info.num_layers, info.context_tokens, info.max_rows) == ("onnxruntime", 3, CONTEXT, 16)
    assert (info.has_bitwise_rows, info.fallbacks) == (False, (NEAR_TIES,))
    assert info.memory_bytes == 2 * 2 * 3 * (CONTEXT + 16) * 24


def test_a_provider_that_was_measured_says_nothing_of_near_ties(
    tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the bits of rows were compared, replies carry no warning."""
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name="CPUExecutionProvider", device="cpu", has_bitwise_rows=True))
    opened = OnnxRuntimeGpuEngine.open(Bundle.open(tiny_pair).target, provider="cuda", context_tokens=CONTEXT)
    assert (opened.info.has_bitwise_rows, opened.info.fallbacks) == (True, ())
    opened.close()


def in_pieces(engine: OnnxRuntimeGpuEngine, size: int) -> npt.NDArray[np.float32]:
    """Run the whole text in FP16, ``size`` rows at a time, up to the context's last slot."""
    pieces = [TEXT[start : start + size] for start in range(0, CONTEXT, size)]
    rows = [engine.forward(piece, position=size * index, plan=FP16).logits for index, piece in enumerate(pieces)]
    return np.concatenate(rows)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16])
def test_fp16_rows_do_not_depend_on_their_pass(engine: OnnxRuntimeGpuEngine, size: int) -> None:
    """Every FP16 pass has the same shape, so that verification gives the bits of plain decoding."""
    found = in_pieces(engine, size)
    assert found.shape == (CONTEXT, 288)
    assert np.array_equal(found, in_pieces(engine, 11))


@pytest.mark.parametrize(
    ("plan", "rows", "expected"),
    [(FP16, 1, 16), (FP16, 6, 16), (FP16, 16, 16), (INT4, 1, 1), (INT4, 6, 6), (MIXED, 3, 3)],
)
def test_only_fp16_passes_are_padded(
    engine: OnnxRuntimeGpuEngine, monkeypatch: pytest.MonkeyPatch, plan: Plan, rows: int, expected: int
) -> None:
    """The rows that fill a pass repeat its last token behind it, and are not returned; INT4 decides nothing."""
    bound: dict[str, Any] = {}
    io = engine._io

    def remember(name: str, values: Any) -> None:
        bound[name] = values.copy()
        io.bind_cpu_input(name, values)

    monkeypatch.setattr(engine, "_io", Recorder(io, remember))
    result = engine.forward(TEXT[:rows], position=4, plan=plan)
    assert result.logits.shape == (rows, 288)
    assert bound["tokens"].tolist() == [TEXT[:rows] + [TEXT[rows - 1]] * (expected - rows)]
    assert bound["positions"].tolist() == [list(range(4, 4 + expected))]
    assert bound["kv_length"].tolist() == [4 + expected]


def test_passes_are_as_short_as_asked_for_on_request(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``fp16_rows`` 1 pads nothing: what the comparison of bits is made with."""
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name="CPUExecutionProvider", device="cpu"))
    model = Bundle.open(tiny_pair).target
    opened = OnnxRuntimeGpuEngine.open(model, provider="cuda", context_tokens=CONTEXT, fp16_rows=1)
    assert not np.array_equal(in_pieces(opened, 1), in_pieces(opened, 16))
    opened.close()


def test_nodes_on_the_cpu_are_counted() -> None:
    """What fell back stands in words that a reply can carry, by operator."""
    parts = [
        SimpleNamespace(ep_name="CUDAExecutionProvider", get_nodes=lambda: [SimpleNamespace(op_type="MatMul")] * 7),
        SimpleNamespace(ep_name="CPUExecutionProvider", get_nodes=lambda: [SimpleNamespace(op_type="Shape")] * 2),
        SimpleNamespace(ep_name="CPUExecutionProvider", get_nodes=lambda: [SimpleNamespace(op_type="Attention")]),
    ]
    session = SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)
    assert engine_onnxruntime_gpu._fallbacks(session, PROVIDERS["cuda"]) == (
        "3 of 10 nodes run on the CPU, not with CUDAExecutionProvider: Attention 1, Shape 2",
    )
    assert engine_onnxruntime_gpu._fallbacks(SimpleNamespace(), PROVIDERS["cuda"]) == (
        "this onnxruntime does not tell which nodes fell back to the CPU",
    )


@pytest.mark.parametrize(
    ("provider", "remedy"),
    [
        ("cuda", r"pip install 'edgeprec\[cuda\]'"),
        ("tensorrt", r"pip install 'edgeprec\[cuda\]'"),
        ("nvtensorrtrtx", "an onnxruntime built with TensorRT-RTX"),
    ],
)
def test_a_provider_this_onnxruntime_lacks_is_named(
    tiny_pair: Path, provider: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package for CPUs has none of them; the message says what brings them."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EngineError, match=rf"has no provider {provider}, only CPUE.*: .*{remedy}"):
        OnnxRuntimeGpuEngine.open(Bundle.open(tiny_pair).target, provider=provider, context_tokens=8)


def test_a_provider_that_does_not_start_is_no_silent_cpu(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would run everything on the CPU; that is refused."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    found = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, **settings: found)
    with pytest.raises(EngineError, match="has CUDAExecutionProvider but could not start it: look for a GPU driver"):
        OnnxRuntimeGpuEngine.open(Bundle.open(tiny_pair).target, provider="cuda", context_tokens=8)


def test_without_onnxruntime_the_extra_is_named(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message holds the command that installs it, for a GPU."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependency, match=r"pip install 'edgeprec\[cuda\]'"):
        OnnxRuntimeGpuEngine.open(Bundle.open(tiny_pair).target, provider="cuda", context_tokens=8)


def test_unknown_provider_is_named(tiny_pair: Path) -> None:
    """A provider of other makers is refused by name."""
    with pytest.raises(ConfigError, match="provider is 'rocm', expected one of cuda, tensorrt, nvtensorrtrtx"):
        OnnxRuntimeGpuEngine.open(Bundle.open(tiny_pair).target, provider="rocm", context_tokens=8)


@pytest.mark.parametrize(
    ("rows", "position", "plan", "match"),
    [
        (0, 0, FP16, "has 0 rows, expected 1 to 16"),
        (17, 0, FP16, "has 17 rows"),
        (2, CONTEXT - 1, FP16, "leaves the context of 60"),
        (1, 0, Plan.uniform(Precision.INT4, num_layers=2), "plan is for 2 layers, the model has 3"),
    ],
)
def test_passes_out_of_range_are_refused(
    engine: OnnxRuntimeGpuEngine, rows: int, position: int, plan: Plan, match: str
) -> None:
    """Nothing is run that would write beside the cache."""
    with pytest.raises(EngineError, match=match):
        engine.forward([1] * rows, position=position, plan=plan)


def test_closed_engine_says_so(engine: OnnxRuntimeGpuEngine) -> None:
    """Closing twice is harmless, running afterwards is not."""
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed: open the bundle again"):
        engine.forward([1], position=0, plan=FP16)


@pytest.mark.gpu
@pytest.mark.skipif(
    PROVIDERS["cuda"].name not in onnxruntime.get_available_providers(), reason="needs onnxruntime-gpu and a CUDA GPU"
)
def test_cuda_gives_the_cpus_tokens(tiny_pair: Path) -> None:
    """On a real GPU, greedy tokens of both precisions are the CPU engine's, as far as FP16 can tell them apart."""
    model = Bundle.open(tiny_pair).target
    gpu: Any = OnnxRuntimeGpuEngine.open(model, provider="cuda", context_tokens=CONTEXT)
    cpu: Any = OnnxRuntimeEngine.open(model.graph_path("fp32"), model.architecture, context_tokens=CONTEXT)
    for plan in (FP16, INT4):
        rows = [one.forward(TEXT[:16], position=0, plan=plan).logits for one in (gpu, cpu)]
        difference = np.abs(rows[0] - rows[1])
        tolerance = TOLERANCE if plan.is_fp16 else INT4_TOLERANCE
        assert difference.max() < tolerance, f"max {difference.max()}, mean {difference.mean()}"
    gpu.close()
    cpu.close()


@pytest.mark.gpu
@pytest.mark.skipif(
    PROVIDERS["cuda"].name not in onnxruntime.get_available_providers(), reason="needs onnxruntime-gpu and a CUDA GPU"
)
def test_cuda_rows_do_not_depend_on_their_pass(tiny_pair: Path) -> None:
    """On a real GPU, verification of any length gives the bits of single FP16 rows."""
    opened = OnnxRuntimeGpuEngine.open(Bundle.open(tiny_pair).target, provider="cuda", context_tokens=CONTEXT)
    single = in_pieces(opened, 1)
    for size in (2, 3, 5, 7, 16):
        difference = np.abs(in_pieces(opened, size) - single)
        assert difference.max() == 0.0, f"{size} rows: max {difference.max()}, mean {difference.mean()}"
    opened.close()
