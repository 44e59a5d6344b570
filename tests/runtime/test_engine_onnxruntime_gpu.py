"""The engine for ONNX Runtime's GPU providers, on the CPU provider in their place; and the real one where a GPU is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edgeprec.bundle import Bundle
from edgeprec.errors import ConfigError, EngineError, MissingDependency
from edgeprec.precision import Plan, Precision
from edgeprec.runtime import engine_onnxruntime_gpu
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.engine_onnxruntime_gpu import PROVIDERS, OnnxRuntimeGpuEngine, Provider

CONTEXT = 60
TOLERANCE = 0.02  # FP16 activations against float32 ones, on logits of a few units
INT4_TOLERANCE = 0.2  # the CPU engine rounds activations to int8 there, and its cache holds INT4's entries
FP16 = Plan.uniform(Precision.FP16, num_layers=3)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 272, CONTEXT)]


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
    for start, end, plan in [(0, 20, FP16), (20, 21, INT4), (21, 22, INT4), (20, 24, FP16), (24, 25, FP16)]:
        expected = cpu.forward(TEXT[start:end], position=start, plan=plan).logits
        found = engine.forward(TEXT[start:end], position=start, plan=plan).logits
        assert (found.dtype, found.shape) == (np.float32, expected.shape)
        difference = np.abs(found - expected)
        tolerance = TOLERANCE if plan.is_fp16 else INT4_TOLERANCE
        assert difference.max() < tolerance, f"max {difference.max()}, mean {difference.mean()}"
    cpu.close()


def test_rollback_leaves_nothing_behind(engine: OnnxRuntimeGpuEngine) -> None:
    """The cache is written in place: wrong tokens beyond a position change nothing once it is passed again."""
    engine.forward(TEXT[:10], position=0, plan=FP16)
    whole = engine.forward(TEXT[10:20], position=10, plan=FP16).logits
    engine.forward([5] * 30, position=10, plan=INT4)
    assert np.array_equal(engine.forward(TEXT[10:20], position=10, plan=FP16).logits, whole)


def test_gates_choose_the_variant(engine: OnnxRuntimeGpuEngine) -> None:
    """Each gate changes the logits."""
    plans = [FP16, *(Plan(tuple(index == gate for index in range(4))) for gate in range(4))]
    rows = [engine.forward(TEXT[:4], position=0, plan=plan).logits for plan in plans]
    assert all(not np.array_equal(rows[0], row) for row in rows[1:])


def test_info_tells_shapes_limits_and_no_fallback(engine: OnnxRuntimeGpuEngine) -> None:
    """Every node runs with the provider asked for here."""
    info = engine.info
    assert (info.name, info.num_layers, info.context_tokens, info.max_rows) == ("onnxruntime", 3, CONTEXT, 64)
    assert (info.has_bitwise_rows, info.fallbacks) == (False, ())
    assert info.memory_bytes == 2 * 2 * 3 * CONTEXT * 24


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


@pytest.mark.parametrize("provider", ["cuda", "tensorrt", "nvtensorrtrtx"])
def test_a_provider_this_onnxruntime_lacks_is_named(
    tiny_pair: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package for CPUs has none of them; the message holds the extra that brings them."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EngineError, match=rf"has no provider {provider}, only CPUE.*pip install 'edgeprec\[cuda\]'"):
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
        (0, 0, FP16, "has 0 rows, expected 1 to 64"),
        (65, 0, FP16, "has 65 rows"),
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
        rows = [one.forward(TEXT[:30], position=0, plan=plan).logits for one in (gpu, cpu)]
        difference = np.abs(rows[0] - rows[1])
        tolerance = TOLERANCE if plan.is_fp16 else INT4_TOLERANCE
        assert difference.max() < tolerance, f"max {difference.max()}, mean {difference.mean()}"
    gpu.close()
    cpu.close()
