"""Engines are really built, without a GPU, for three GPU generations; and nothing is left by a build that fails."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgeprec
from edgeprec.available_memory import AvailableMemory
from edgeprec.bundle import Bundle
from edgeprec.bundle_verify import verify_bundle
from edgeprec.engine_file import EngineFile
from edgeprec.engine_segment import SegmentPart, cut_into_segments
from edgeprec.errors import ConfigError, EngineError, MemoryBudgetError
from edgeprec.export import tensorrt
from edgeprec.export.bundle_weights import locate_weights, save_graph
from edgeprec.export.progress import ProgressEvent, silent
from edgeprec.export.quantizer import QuantizerSettings
from edgeprec.export.segment_graph import build_segment_graph
from edgeprec.export.settings import ExportSettings
from edgeprec.export.tensorrt import EngineSettings, build_engines, check_library
from edgeprec.export.tensorrt_builder import PlanBuilder
from edgeprec.precision import Precision
from edgeprec.tensorrt_library import TensorRtLibrary

SMS = ("sm86", "sm89", "sm120")
SETTINGS = EngineSettings(sms=SMS, context_tokens=256)


@pytest.fixture(scope="module")
def tensorrt_rtx() -> Any:
    """Return the library, or skip where the extra is not installed."""
    return pytest.importorskip("tensorrt_rtx", reason="the extra tensorrt is not installed")


@pytest.fixture(scope="module")
def exported(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export one layer with the widths of a 1B model, so that weights outweigh the source text of kernels."""
    folder = tmp_path_factory.mktemp("wide")
    checkpoint = checkpoints.make_checkpoint(
        folder / "checkpoint", "llama", vocab_size=320, hidden_size=2048, intermediate_size=5632, num_layers=1,
        num_heads=32, num_kv_heads=8, max_positions=512,
    )  # fmt: skip
    settings = ExportSettings(quantizer=QuantizerSettings(method="rtn"))
    return edgeprec.export_bundle(checkpoint, folder / "wide.edgeprec", settings=settings)


@pytest.fixture(scope="module")
def built(exported: Path, tensorrt_rtx: Any) -> Bundle:
    """Build engines for three GPU generations."""
    return build_engines(Bundle.open(exported), SETTINGS, progress=silent)


@pytest.fixture
def tiny(bundles: ModuleType, tmp_path: Path) -> Bundle:
    """Return a bundle that TensorRT could take, of blank graphs."""
    config = bundles.make_config(hidden_size=32, intermediate_size=64, head_dim=16)
    target = bundles.make_entry(config=config)
    return Bundle.open(bundles.make_bundle(tmp_path / "pair.edgeprec", target=target))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file under the folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fake_build(monkeypatch: pytest.MonkeyPatch, build: Callable[..., memoryview]) -> None:
    """Put a stand-in where a plan is built, and a library that builds for every generation."""
    members = dict.fromkeys(("SM80", "SM86", "SM89", "SM120"))
    module = SimpleNamespace(__version__="1.7", ComputeCapability=SimpleNamespace(__members__=members))
    monkeypatch.setattr(tensorrt, "find_tensorrt", lambda purpose: TensorRtLibrary("tensorrt_rtx", module))
    monkeypatch.setattr(PlanBuilder, "build", build)


def test_manifest_lists_an_engine_for_each_generation(built: Bundle) -> None:
    """One file serves all three; kind, version and size are listed, and every byte verifies."""
    engines = built.to_summary()["engines"]
    assert [(engine["kind"], engine["sm"], engine["model"]) for engine in engines] == [
        ("tensorrt_rtx", sm, "target") for sm in SMS
    ]
    assert len({engine["file"] for engine in engines}) == 1
    assert all(engine["version"].startswith("1.") and engine["bytes"] > 1e6 for engine in engines)
    assert verify_bundle(Bundle.read_manifest(built.root)).is_ok
    assert not list(built.root.parent.glob(".*building"))


def test_engines_keep_int4_at_four_bits(built: Bundle) -> None:
    """Engines are as large as their weights within 10 %, and the packed INT4 lies in the plan once, transposed."""
    file = EngineFile.open(built.path(built.manifest.engines[0].file))
    layers = [place for place in file.header.plans if place.segment.part is SegmentPart.LAYERS]
    sizes = {place.segment.precision: place for place in layers}
    for place in layers:
        assert place.weight_bytes <= place.length_bytes
    total, weights = (sum(getattr(place, name) for place in layers) for name in ("length_bytes", "weight_bytes"))
    assert total < 1.10 * weights, f"{total:,} bytes for {weights:,} bytes of weights"
    assert sizes[Precision.INT4].length_bytes < 0.4 * sizes[Precision.FP16].length_bytes
    plan = bytes(file.plan(sizes[Precision.INT4].segment))
    with built.target.open_int4() as int4:
        for name in ("qkv", "o", "gate_up", "down"):
            packed = int4.array(f"layers.0.{name}.packed")
            values = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1).T
            transposed = values[:, 0::2] | (values[:, 1::2] << 4)
            assert plan.count(transposed.tobytes()) == 1, name


def test_plans_bind_hidden_and_cache_and_no_gate(built: Bundle) -> None:
    """The cache is bound by layer; precision is chosen by segment, so each layer and the head come in both."""
    file = EngineFile.open(built.path(built.manifest.engines[0].file))
    found = {(place.segment.part, place.segment.precision) for place in file.header.plans}
    assert found == {
        (SegmentPart.EMBED, None),
        *((part, precision) for part in (SegmentPart.LAYERS, SegmentPart.HEAD) for precision in Precision),
    }
    for place in file.header.plans:
        if place.segment.part is SegmentPart.LAYERS:
            plan = bytes(file.plan(place.segment))
            for name in (b"past_key_0", b"past_value_0", b"present_key_0", b"present_value_0", b"mask", b"write_index"):
                assert name in plan
            assert b"IfConditional" not in plan


def test_progress_counts_segments(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar has one unit a segment and names the one at work with the builder's phase."""

    def build(self: PlanBuilder, graph: Path, *, name: str) -> memoryview:
        self.on_phase("Tactics")
        return memoryview(name.encode())

    fake_build(monkeypatch, build)
    events: list[ProgressEvent] = []
    build_engines(tiny, SETTINGS, progress=events.append)
    assert {event.stage for event in events} == {"build target"}
    assert [event.done for event in events] == [0, 1, 2, 3, 4, 5]
    assert events[1].detail == "layers-0-1.int4: Tactics"
    assert {event.total for event in events} == {5}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EngineError("tensorrt_rtx 1.7 cannot build it: no kernel")])
def test_a_build_that_ends_early_leaves_the_bundle_as_it_was(
    tiny: Bundle, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Ctrl-C or a failure in the third segment leaves no half engine, no folder and the old manifest."""

    def build(self: PlanBuilder, graph: Path, *, name: str) -> memoryview:
        if "fp16" in name:
            raise error
        return memoryview(b"plan")

    fake_build(monkeypatch, build)
    before = files_of(tiny.root)
    with pytest.raises(type(error)):
        build_engines(tiny, SETTINGS, progress=silent)
    assert files_of(tiny.root) == before
    assert not list(tiny.root.parent.glob(".*building"))


def test_a_failure_leaves_the_builders_log(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names a file beside the bundle that holds what the library said."""

    def build(self: PlanBuilder, graph: Path, *, name: str) -> memoryview:
        self.log.append("ERROR no kernel for this shape")
        raise EngineError(f"cannot build {name}")

    fake_build(monkeypatch, build)
    log = tiny.root.with_name("pair.edgeprec.build.log")
    with pytest.raises(EngineError, match=rf"cannot build target embed; the build log is {log}"):
        build_engines(tiny, SETTINGS, progress=silent)
    assert "ERROR no kernel for this shape" in log.read_text()


def test_a_builder_out_of_memory_says_what_it_needed(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library knows only that there was too little: what the segment takes and what there is stand beside it."""

    def build(self: PlanBuilder, graph: Path, *, name: str) -> memoryview:
        self.log.append("ERROR Error Code 1: Myelin (Unexpected exception std::bad_alloc)")
        raise self._failure(name, "tensorrt_rtx 1.7")

    fake_build(monkeypatch, build)
    with pytest.raises(
        MemoryBudgetError,
        match=r"tensorrt_rtx 1\.7 ran out of memory while it built target embed: .*std::bad_alloc\); building segment "
        r"embed takes about 51\d MiB of memory, [\d,]+ MiB are available .*; the build log is ",
    ):
        build_engines(tiny, SETTINGS, progress=silent)


def test_engines_of_the_same_generation_are_replaced(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second build takes the place of the first where GPUs meet; a file that serves no GPU any more is deleted."""
    texts = iter(f"plan {index}".encode() for index in range(99))
    fake_build(monkeypatch, lambda self, graph, name: memoryview(next(texts)))
    first = build_engines(tiny, EngineSettings(sms=("sm86", "sm89")), progress=silent)
    old = first.manifest.engines[0].file
    second = build_engines(first, EngineSettings(sms=("sm89", "sm120")), progress=silent)
    assert [engine.sm for engine in second.manifest.engines] == ["sm86", "sm89", "sm120"]
    assert old in second.manifest.files
    third = build_engines(second, EngineSettings(sms=("sm86",)), progress=silent)
    assert [engine.sm for engine in third.manifest.engines] == ["sm86", "sm89", "sm120"]
    assert old not in third.manifest.files
    assert not (third.root / old).exists()
    assert verify_bundle(Bundle.read_manifest(third.root)).is_ok


def test_verify_names_an_engine_of_another_model(
    tiny: Bundle, bundles: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine carried over from another export is found by verify, whatever its own digest says."""
    fake_build(monkeypatch, lambda self, graph, name: memoryview(b"plan"))
    donor = build_engines(tiny, SETTINGS, progress=silent)
    engine = donor.manifest.engines[0]
    data = donor.path(engine.file).read_bytes()
    other = Bundle.open(bundles.make_bundle(tmp_path / "other.edgeprec", engines=(engine,), files={engine.file: data}))
    (problem,) = verify_bundle(other).problems
    assert (problem.path, problem.kind) == (engine.file, "unfit")
    assert "built from another target: run edgeprec build again" in problem.detail


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        ({"sms": ("sm90",)}, ConfigError, "tensorrt_rtx 1.7 builds ahead of time for sm80, sm86, sm89, sm120 only"),
        ({"sms": ("sm87",)}, ConfigError, "build on that machine with the TensorRT of its JetPack"),
        ({"context_tokens": 4000}, ConfigError, "context is 4,000 tokens, expected 2 to 2,048"),
        ({"context_tokens": 1}, ConfigError, "context is 1 tokens, expected 2 to"),
    ],
)
def test_what_cannot_be_built_is_refused_first(
    tiny: Bundle, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], error: type[Exception], expected: str
) -> None:
    """Nothing is built for a GPU, a context or weights that the library cannot take."""
    fake_build(monkeypatch, lambda self, graph, name: pytest.fail("a segment was built"))
    with pytest.raises(error) as caught:
        build_engines(tiny, EngineSettings(**{"sms": SMS} | settings), progress=silent)
    assert expected in str(caught.value)


def test_zero_points_and_odd_blocks_are_refused(
    bundles: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT has neither; the message says how to export the bundle again."""
    fake_build(monkeypatch, lambda self, graph, name: pytest.fail("a segment was built"))
    blocks = Bundle.open(bundles.make_bundle(tmp_path / "blocks.edgeprec"))  # 16 inputs, blocks of 32
    with pytest.raises(ConfigError, match="qkv has 16 inputs, no multiple of its INT4 blocks of 32"):
        build_engines(blocks, SETTINGS, progress=silent)
    entry = bundles.make_entry()
    zeros = replace(entry, int4=replace(entry.int4, symmetric=False))
    bundle = Bundle.open(bundles.make_bundle(tmp_path / "zeros.edgeprec", target=zeros))
    with pytest.raises(ConfigError, match="TensorRT takes symmetric INT4 only: export it again without --zero-point"):
        build_engines(bundle, SETTINGS, progress=silent)


def test_too_little_memory_is_told_before_the_build(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a segment needs, what there is and what to do stand in one sentence."""
    fake_build(monkeypatch, lambda self, graph, name: memoryview(b"plan"))
    monkeypatch.setattr(tensorrt, "read_available_memory", lambda: AvailableMemory(100 << 20, "a control group"))
    with pytest.raises(MemoryBudgetError, match=r"takes about 5\d\d MiB of memory, 100 MiB are available"):
        build_engines(tiny, SETTINGS, progress=silent)


def test_a_second_build_waits_for_nobody(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds of one bundle do not write over each other."""

    def build(self: PlanBuilder, graph: Path, *, name: str) -> memoryview:
        with pytest.raises(ConfigError, match="another export"):
            build_engines(tiny, SETTINGS, progress=silent)
        raise EngineError("enough")

    fake_build(monkeypatch, build)
    with pytest.raises(EngineError, match="enough"):
        build_engines(tiny, SETTINGS, progress=silent)


def test_a_graph_beyond_the_library_is_named(tmp_path: Path, tensorrt_rtx: Any) -> None:
    """A file the parser cannot read gives one sentence with the library's version, the segment and the way out."""
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x0agarbage")
    builder = PlanBuilder(TensorRtLibrary("tensorrt_rtx", tensorrt_rtx), SMS, 64, ((1, 4, 16),), lambda phase: None)
    with pytest.raises(
        EngineError, match=r"tensorrt_rtx 1\.\S+ cannot read the graph of target embed, .* newer"
    ) as caught:
        builder.build(tmp_path / "bad.onnx", name="target embed")
    assert "\n" not in str(caught.value)
    assert builder.log


def test_an_operator_the_library_does_not_know_is_named(exported: Path, tmp_path: Path, tensorrt_rtx: Any) -> None:
    """A graph newer than the library: the operator stands in the error, each node that uses it in the log."""
    model = Bundle.open(exported).target
    segment = cut_into_segments(model.architecture, layers_per_segment=1)[1]
    graph = build_segment_graph(model.architecture, locate_weights(model), segment, context_tokens=64)
    for node in graph.graph.node:
        node.op_type = node.op_type.replace("TensorScatter", "TensorScatterOfTomorrow")
    save_graph(graph, tmp_path / "newer.onnx")
    builder = PlanBuilder(TensorRtLibrary("tensorrt_rtx", tensorrt_rtx), SMS, 64, ((1, 4, 16),), lambda phase: None)
    with pytest.raises(EngineError, match="opset 24: it does not take TensorScatterOfTomorrow; install a newer"):
        builder.build(tmp_path / "newer.onnx", name="target layer")
    assert any("n_present_key_0" in line for line in builder.log)


def test_library_lists_what_it_builds_for(tensorrt_rtx: Any) -> None:
    """The demo's three generations are among them, and the library is found by the name the extra installs."""
    assert set(SMS) < set(check_library(SMS).sms)


def test_an_interrupt_ends_a_real_build(exported: Path, tmp_path: Path, tensorrt_rtx: Any) -> None:
    """Ctrl-C while the library builds reaches the caller soon, and the thread that built has ended."""
    model = Bundle.open(exported).target
    segment = cut_into_segments(model.architecture, layers_per_segment=1)[1]
    graph = build_segment_graph(model.architecture, locate_weights(model), segment, context_tokens=64)
    save_graph(graph, tmp_path / "one.onnx")
    is_told = threading.Event()

    def on_phase(phase: str) -> None:
        if not is_told.is_set():
            is_told.set()
            _thread.interrupt_main()

    library = TensorRtLibrary("tensorrt_rtx", tensorrt_rtx)
    builder = PlanBuilder(library, SMS, 64, ((1, 4, 16),), on_phase)
    with pytest.raises(KeyboardInterrupt):
        builder.build(tmp_path / "one.onnx", name="target layer")
    left = [thread for thread in threading.enumerate() if thread.name == "edgeprec-tensorrt"]
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_biases_head_norms_and_odd_vocabularies_build(
    checkpoints: ModuleType, tmp_path: Path, tensorrt_rtx: Any, family: str
) -> None:
    """What a family has beyond Llama, and a packed head one column wider than the vocabulary."""
    checkpoint = checkpoints.make_checkpoint(
        tmp_path / "c", family, vocab_size=301, hidden_size=64, intermediate_size=96, num_layers=1, num_heads=4,
        num_kv_heads=2, head_dim=16 if family == "qwen3" else None, max_positions=64,
    )  # fmt: skip
    settings = ExportSettings(quantizer=QuantizerSettings(method="rtn"))
    bundle = Bundle.open(edgeprec.export_bundle(checkpoint, tmp_path / "b.edgeprec", settings=settings))
    built = build_engines(bundle, EngineSettings(sms=("sm89",)), progress=silent)
    assert [engine.sm for engine in built.manifest.engines] == ["sm89"]
