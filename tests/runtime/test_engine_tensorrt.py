"""The TensorRT engine over a stand-in for the library: numbers, rollback, plans, and every refusal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import load_external_data_for_model

import edgeprec
from edgeprec.bundle import Bundle
from edgeprec.config import GenerationConfig, Mode
from edgeprec.engine_file import EngineFile
from edgeprec.errors import ConfigError, EngineError, MemoryBudgetError, MissingDependency
from edgeprec.export import tensorrt
from edgeprec.export.progress import silent
from edgeprec.export.segment_graph import build_segment_graph
from edgeprec.export.tensorrt import EngineSettings, build_engines
from edgeprec.export.tensorrt_builder import PlanBuilder
from edgeprec.precision import Plan, Precision
from edgeprec.runtime import engine_tensorrt
from edgeprec.runtime.engine import NEAR_TIES
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.engine_tensorrt import TensorRtEngine
from edgeprec.tensorrt_library import TensorRtLibrary

CONTEXT = 100
TOLERANCE = 2e-5
FP16 = Plan.uniform(Precision.FP16, num_layers=3)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 272, CONTEXT)]


@pytest.fixture(scope="session")
def stand_in() -> ModuleType:
    """Return the module of the stand-in, which lies beside this file and is in no package."""
    found = spec_from_file_location("edgeprec_tests_fake_tensorrt", Path(__file__).with_name("fake_tensorrt.py"))
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def inline(self: PlanBuilder, graph: Path, *, name: str) -> memoryview:
    """Build nothing: the plan is the graph with its weights inside."""
    model = onnx.load(str(graph), load_external_data=False)
    load_external_data_for_model(model, str(graph.parent))
    return memoryview(model.SerializeToString())


@pytest.fixture(scope="module")
def built(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return the tiny pair with plans of the stand-in, two layers a segment, for SM 86 and 89."""
    root = Path(shutil.copytree(tiny_pair, tmp_path_factory.mktemp("trt") / "tiny.edgeprec"))
    members = dict.fromkeys(("SM86", "SM89"))
    module = SimpleNamespace(__version__="1.7", ComputeCapability=SimpleNamespace(__members__=members))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorrt, "find_tensorrt", lambda purpose: TensorRtLibrary("tensorrt_rtx", module))
        patch.setattr(PlanBuilder, "build", inline)
        patch.setattr(tensorrt, "_check_int4", lambda model: None)  # 48 inputs: not for TensorRT, but for the stand-in
        patch.setattr(tensorrt, "build_segment_graph", lambda *a, **k: build_segment_graph(*a, **k, compute="fp32"))
        settings = EngineSettings(sms=("sm86", "sm89"), context_tokens=CONTEXT, layers_per_segment=2)
        return build_engines(Bundle.open(root), settings, progress=silent)


@pytest.fixture
def opened(built: Bundle, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TensorRtEngine]:
    """Return ``open(model=target, context_tokens=100, memory=..., library=...)``."""

    def open_(
        model: Any = built.target, *, context_tokens: int = CONTEXT, memory: Any = None, library: Any = None
    ) -> TensorRtEngine:
        module = library or stand_in.fake_library()
        found = TensorRtLibrary("tensorrt_rtx", module)
        monkeypatch.setattr(engine_tensorrt, "find_tensorrt", lambda kinds, purpose: found)
        return TensorRtEngine.open(model, context_tokens=context_tokens, memory=memory or stand_in.HostMemory())

    return open_


def test_logits_equal_the_onnxruntime_engines(built: Bundle, opened: Callable[..., TensorRtEngine]) -> None:
    """Prefill, single rows, a draft in INT4 verified by FP16, and a rollback: the same logits as the CPU engine."""
    model = built.target
    engine = opened()
    cpu = OnnxRuntimeEngine.open(model.graph_path("fp32"), model.architecture, context_tokens=CONTEXT, threads=1)
    passes = [
        (0, 16, FP16),
        (16, 20, FP16),
        (20, 21, FP16),
        (21, 22, INT4),
        (22, 23, INT4),
        (21, 24, FP16),
        (24, 25, INT4),
    ]
    for start, end, plan in passes:
        expected = cpu.forward(TEXT[start:end], position=start, plan=plan).logits
        difference = np.abs(engine.forward(TEXT[start:end], position=start, plan=plan).logits - expected)
        assert difference.max() < TOLERANCE, f"max {difference.max()}, mean {difference.mean()}"
    cpu.close()
    engine.close()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_info_tells_shapes_and_limits(built: Bundle, opened: Callable[..., TensorRtEngine], role: str) -> None:
    """What a session plans with; the context may be shorter than what was built."""
    model = built.model(role)
    info = opened(model, context_tokens=40).info
    assert (info.name, info.device, info.num_layers) == ("tensorrt", "cuda:0", model.architecture.num_layers)
    assert (info.context_tokens, info.max_rows, info.has_bitwise_rows, info.fallbacks) == (40, 16, False, (NEAR_TIES,))
    cache_bytes = 2 * 4 * model.architecture.num_layers * CONTEXT * model.architecture.kv_size
    assert info.memory_bytes > cache_bytes


def test_a_mixed_group_runs_in_fp16_and_says_so(opened: Callable[..., TensorRtEngine]) -> None:
    """Layers 0 and 1 are one group: INT4 in one of them alone runs both in FP16, and the reply will say it."""
    engine = opened()
    fp16 = engine.forward(TEXT[:4], position=0, plan=FP16).logits.copy()
    assert engine.info.fallbacks == (NEAR_TIES,)
    mixed = engine.forward(TEXT[:4], position=0, plan=Plan((True, False, False, False))).logits.copy()
    assert np.array_equal(fp16, mixed)
    assert engine.info.fallbacks == (
        NEAR_TIES,
        "layers change precision in groups; a group with layers of both ran in FP16",
    )
    last = engine.forward(TEXT[:4], position=0, plan=Plan((False, False, True, False))).logits
    assert not np.array_equal(last, fp16)


def test_a_pass_runs_one_engine_a_group(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """Embedding, two groups and the head: four launches, none of the other precision."""
    library = stand_in.fake_library()
    engine = opened(library=library)
    engine.forward(TEXT[:2], position=0, plan=INT4)
    first = list(library.launched)
    engine.forward(TEXT[:2], position=0, plan=FP16)
    second = library.launched[4:]
    assert len(first) == len(second) == 4
    assert first[0] is second[0]
    assert not {id(item) for item in first[1:]} & {id(item) for item in second[1:]}


@pytest.mark.parametrize("profiles", [1, 2])
def test_single_rows_use_their_own_profile(
    opened: Callable[..., TensorRtEngine], stand_in: ModuleType, profiles: int
) -> None:
    """With two profiles the first takes one row and the second more; with one, it takes all."""
    engine = opened(library=stand_in.fake_library(profiles=profiles))
    rows = [engine.forward(TEXT[:count], position=0, plan=INT4).logits[0].copy() for count in (1, 2, 16, 1)]
    assert np.allclose(rows[0], rows[1], atol=TOLERANCE)
    assert np.array_equal(rows[0], rows[3])


@pytest.mark.parametrize(
    ("rows", "position", "plan", "match"),
    [
        (0, 0, FP16, "has 0 rows, expected 1 to 16"),
        (17, 0, FP16, "has 17 rows"),
        (1, -1, FP16, "leaves the context of 100"),
        (2, CONTEXT - 1, INT4, "leaves the context"),
        (1, 0, Plan.uniform(Precision.INT4, num_layers=2), "plan is for 2 layers, the model has 3"),
    ],
)
def test_passes_out_of_range_are_refused(
    opened: Callable[..., TensorRtEngine], rows: int, position: int, plan: Plan, match: str
) -> None:
    """Nothing is run that would write beside the cache."""
    with pytest.raises(EngineError, match=match):
        opened().forward([1] * rows, position=position, plan=plan)


def test_the_last_position_is_reached(opened: Callable[..., TensorRtEngine]) -> None:
    """The slots that are read end at the cache's end, not at a round number beyond it."""
    engine = opened()
    logits = engine.forward(TEXT[-1:], position=CONTEXT - 1, plan=FP16).logits
    assert np.isfinite(logits).all()


def test_a_failed_launch_names_the_engine(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """The segment stands in the error."""
    library = stand_in.fake_library()
    engine = opened(library=library)
    library.fails = True
    with pytest.raises(EngineError, match="engine embed of the target failed with 2 rows: it gave no reason"):
        engine.forward(TEXT[:2], position=0, plan=FP16)


def test_closed_engine_says_so(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """Closing twice is harmless and frees the memory; running afterwards is refused."""
    memory = stand_in.HostMemory()
    engine = opened(memory=memory)
    engine.close()
    engine.close()
    assert memory.is_closed
    with pytest.raises(EngineError, match="closed: open the bundle again"):
        engine.forward([1], position=0, plan=FP16)


def test_without_engines_the_command_is_named(tiny_pair: Path, stand_in: ModuleType) -> None:
    """A bundle as exported has none; the message holds the command that builds them."""
    with pytest.raises(
        EngineError, match=r"no TensorRT engine of its target: build one with edgeprec build \S+ --tens"
    ):
        TensorRtEngine.open(Bundle.open(tiny_pair).target, context_tokens=8, memory=stand_in.HostMemory())


def test_without_the_library_the_extra_is_named(
    built: Bundle, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the library the engines were built with would do."""
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(MissingDependency, match=r"'tensorrt_rtx', which is not installed: .*edgeprec\[tensorrt\]"):
        TensorRtEngine.open(built.target, context_tokens=8, memory=stand_in.HostMemory())


def test_another_gpu_is_named_with_what_was_built(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """Both generations and the command stand in one sentence."""
    with pytest.raises(EngineError, match=r"are for sm86, sm89, this GPU is sm120: .* --tensorrt sm120"):
        opened(memory=stand_in.HostMemory(sm="sm120"))


def test_a_gpu_the_library_refuses_is_sent_to_another_engine(
    opened: Callable[..., TensorRtEngine], stand_in: ModuleType
) -> None:
    """Building for it would fail too: the message says what runs there instead."""
    memory = stand_in.HostMemory(sm="sm90")
    with pytest.raises(
        EngineError, match=r"tensorrt_rtx 1.7 does not run on this GPU, sm90, only on sm86, .*: use --engine torch"
    ):
        opened(memory=memory)
    assert memory.is_closed


def test_a_library_that_cannot_start_says_why(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """The first line of what the library logged is the reason."""
    with pytest.raises(EngineError, match=r"tensorrt_rtx 1\.7 cannot start on this GPU: no such device$"):
        opened(library=stand_in.fake_library(cannot_start=True))


def test_another_version_is_refused(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """Plans belong to the version that made them."""
    with pytest.raises(EngineError, match=r"built with tensorrt_rtx 1\.7, 1\.8 is installed: build one"):
        opened(library=stand_in.fake_library(version="1.8"))


def test_a_plan_the_library_refuses_is_named(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """The segment, the library's reason and the remedy stand in the message; the GPU's memory is given back."""
    memory = stand_in.HostMemory()
    with pytest.raises(
        EngineError,
        match="cannot load the engine embed of the target: the plan is of another platform; if the GPU and its driver "
        r"are fine, build it again with edgeprec build \S+ --tensorrt sm89",
    ):
        opened(library=stand_in.fake_library(refuses=True), memory=memory)
    assert memory.is_closed


def test_a_stale_engine_is_refused_by_name(built: Bundle, opened: Callable[..., TensorRtEngine]) -> None:
    """Weights other than those the engine was built from are found by digest."""
    files = dict(built.manifest.files)
    files["target/int4.safetensors"] = replace(files["target/int4.safetensors"], sha256="0" * 64)
    stale = Bundle(built.root, replace(built.manifest, files=files))
    with pytest.raises(EngineError, match=r"target\.engine was built from another target than"):
        opened(stale.target)


def test_a_longer_context_than_was_built_is_refused(opened: Callable[..., TensorRtEngine]) -> None:
    """Both ways out are named."""
    with pytest.raises(ConfigError, match=r"built for 100: use --context 100, or edgeprec build .* --context 101"):
        opened(context_tokens=101)


def test_too_little_gpu_memory_is_refused(opened: Callable[..., TensorRtEngine], stand_in: ModuleType) -> None:
    """What is needed and what is free stand in the message, before anything is loaded."""
    with pytest.raises(MemoryBudgetError, match=r"need \d+ MiB of GPU memory .* 1 MiB are free"):
        opened(memory=stand_in.HostMemory(free_bytes=1 << 20))


def test_the_cache_is_allocated_once_for_each_layer(
    built: Bundle, opened: Callable[..., TensorRtEngine], stand_in: ModuleType
) -> None:
    """Keys and values of three layers, as long as what was built, beside the small buffers."""
    memory = stand_in.HostMemory()
    opened(memory=memory)
    config = built.target.architecture
    sizes = [block.nbytes for block in memory.blocks.values()]
    assert sizes.count(4 * CONTEXT * config.kv_size) >= 6
    assert len(sizes) == 2 + 8 + 6
    assert EngineFile.open(built.path(built.manifest.engines[0].file)).header.max_rows == 16


@pytest.mark.parametrize("mode", ["exact", "fp16", "int4"])
def test_a_session_generates_what_the_cpu_generates(
    built: Bundle, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """From ``edgeprec.load`` to tokens: target and draft model in TensorRT give the tokens of ONNX Runtime."""
    found = TensorRtLibrary("tensorrt_rtx", stand_in.fake_library())
    monkeypatch.setattr(engine_tensorrt, "find_tensorrt", lambda kinds, purpose: found)
    monkeypatch.setattr(engine_tensorrt, "CudaMemory", stand_in.HostMemory)
    config = GenerationConfig(mode=Mode(mode), max_new_tokens=12, ignore_eos=True)
    replies = []
    for engine in ("onnxruntime", "tensorrt"):
        with edgeprec.load(built.root, engine=engine, context_tokens=CONTEXT, sensor="none") as session:
            assert session.info.name == engine
            replies.append(session.generate("abcabc", config))
    assert replies[0].tokens == replies[1].tokens
    assert len(replies[1].tokens) == 12
