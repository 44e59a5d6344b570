"""Opening an engine by name: what is refused, and that it is refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest

from edgeprec.available_memory import AvailableMemory
from edgeprec.bundle import Bundle
from edgeprec.errors import ConfigError, EngineError, MemoryBudgetError, MissingDependency
from edgeprec.runtime import engines
from edgeprec.runtime.engines import (
    computes_on_gpu,
    default_context,
    open_engines,
    plan_engine_memory,
    resolve_engine,
)

PLENTY = AvailableMemory(1 << 40, "MemAvailable")


@pytest.fixture(scope="session")
def bundle(tiny_pair: Path) -> Bundle:
    """Open the tiny pair."""
    return Bundle.open(tiny_pair)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return ``gpu(has_one)``: what this machine is taken to have."""
    return lambda has_one: monkeypatch.setattr(engines, "_has_torch_gpu", lambda: has_one)


@pytest.mark.parametrize(
    ("name", "opened"), [("auto", "onnxruntime"), ("onnxruntime", "onnxruntime"), ("torch", "torch")]
)
def test_known_engines_open(bundle: Bundle, name: str, opened: str) -> None:
    """``auto`` on a CPU and the name itself give the same engine, target first, with the context asked for."""
    pair = open_engines(bundle, context_tokens=48, engine=name, provider="cpu", threads=1)
    assert [(engine.info.name, engine.info.context_tokens) for engine in pair] == [(opened, 48)] * 2
    assert [engine.info.num_layers for engine in pair] == [3, 1]
    for engine in pair:
        engine.close()


def test_auto_is_torch_only_with_a_gpu(gpu: Callable[[bool], None]) -> None:
    """A GPU that runs the kernels makes it torch, a wish for the CPU keeps onnxruntime."""
    gpu(True)
    assert (resolve_engine("auto"), resolve_engine("auto", "cuda"), resolve_engine("auto", "cpu")) == (
        "torch",
        "torch",
        "onnxruntime",
    )
    gpu(False)
    assert resolve_engine("auto") == "onnxruntime"
    assert resolve_engine("auto", "cuda") == "onnxruntime"
    with pytest.raises(ConfigError, match="provider is 'cpu', expected one of cuda with the engine tensorrt"):
        resolve_engine("tensorrt", "cpu")


def test_a_cpu_without_device_files_does_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a GPU costs nothing where there is none."""
    monkeypatch.setattr(engines, "_GPU_NODES", ("/dev/no-such-gpu",))
    monkeypatch.setattr(engines, "find_spec", lambda name: pytest.fail("torch was looked for"))
    assert resolve_engine() == "onnxruntime"


def test_only_what_runs_on_a_gpu_is_metered_as_one() -> None:
    """A CPU engine is not billed with the GPU's joules."""
    assert not computes_on_gpu("onnxruntime")
    assert not computes_on_gpu("torch", "cpu")
    assert not computes_on_gpu("onnxruntime", "cpu")
    assert computes_on_gpu("onnxruntime", "cuda")
    assert computes_on_gpu("tensorrt")


def test_torch_that_is_not_installed(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning, metering and opening all name the extra."""
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    for ask in (
        lambda: plan_engine_memory(bundle, context_tokens=48, engine="torch"),
        lambda: computes_on_gpu("torch"),
        lambda: open_engines(bundle, context_tokens=48, engine="torch"),
    ):
        with pytest.raises(MissingDependency, match=r"pip install 'edgeprec\[torch\]'"):
            ask()


@pytest.mark.parametrize("name", ["", "openvino", "TORCH", "ONNXRUNTIME"])
def test_unknown_engine_is_named(bundle: Bundle, name: str) -> None:
    """The message lists what there is."""
    with pytest.raises(ConfigError, match=f"engine is '{name}', expected one of auto, onnxruntime, torch"):
        open_engines(bundle, context_tokens=48, engine=name)


def test_unknown_provider_is_named(bundle: Bundle) -> None:
    """Providers of other devices are refused by name, not ignored."""
    with pytest.raises(ConfigError, match="provider is 'rocm', expected one of cpu"):
        open_engines(bundle, context_tokens=48, provider="rocm")


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_must_be_positive(bundle: Bundle, threads: int) -> None:
    """A number of threads that is none is refused."""
    with pytest.raises(ConfigError, match=f"threads is {threads}, expected 1 or more"):
        open_engines(bundle, context_tokens=48, threads=threads)


def test_default_context_is_the_shorter_models(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft was made for 200 tokens, the target for 256; a long model gets 4096."""
    assert default_context(bundle) == 200
    monkeypatch.setattr(engines, "DEFAULT_CONTEXT_TOKENS", 64)
    assert default_context(bundle) == 64


def test_memory_is_planned_for_both_models(bundle: Bundle) -> None:
    """More context takes more memory, by the caches of target and draft."""
    plans = [plan_engine_memory(bundle, context_tokens=count, available=PLENTY) for count in (100, 200)]
    target, draft = bundle.models
    per_token = 2 * 4 * (3 * target.architecture.kv_size + draft.architecture.kv_size)
    assert plans[1].cache_bytes - plans[0].cache_bytes == 100 * per_token


def test_what_does_not_fit_is_refused(bundle: Bundle) -> None:
    """Need, what there is and the longest context that fits stand in one sentence."""
    fixed = plan_engine_memory(bundle, context_tokens=1, available=PLENTY)
    room = AvailableMemory(fixed.total_bytes + 49 * fixed.cache_bytes, "a control group")
    with pytest.raises(
        MemoryBudgetError, match=r"needs .* are available \(a control group\): use --context 50 or less"
    ):
        plan_engine_memory(bundle, context_tokens=200, available=room)
    assert plan_engine_memory(bundle, context_tokens=50, available=room).total_bytes <= room.size_bytes


def test_longer_context_than_the_models_is_refused(bundle: Bundle) -> None:
    """Neither model was trained beyond its own limit."""
    with pytest.raises(ConfigError, match="context is 201 tokens, expected 1 to 200"):
        plan_engine_memory(bundle, context_tokens=201, available=PLENTY)


@pytest.mark.parametrize(("engine", "provider"), [("tensorrt", None), ("onnxruntime", "cuda")])
def test_engines_of_a_gpu_are_not_measured_against_host_memory(
    bundle: Bundle, engine: str, provider: str | None
) -> None:
    """The GPU's free memory is what counts, and the engine asks it; a context beyond the models is refused here."""
    none = AvailableMemory(1, "a control group")
    plan = plan_engine_memory(bundle, context_tokens=100, engine=engine, provider=provider, available=none)
    target, draft = bundle.models
    assert plan.cache_bytes == 100 * 2 * 2 * (3 * target.architecture.kv_size + draft.architecture.kv_size)
    with pytest.raises(ConfigError, match="context is 201 tokens, expected 1 to 200"):
        plan_engine_memory(bundle, context_tokens=201, engine=engine, provider=provider)


def test_missing_gpu_engines_say_what_is_missing(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle without TensorRT engines names the command, an onnxruntime for CPUs the extra."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EngineError, match="has no TensorRT engine of its target: build one with edgeprec build"):
        open_engines(bundle, context_tokens=48, engine="tensorrt")
    with pytest.raises(EngineError, match=r"has no provider cuda, .*edgeprec\[cuda\]"):
        open_engines(bundle, context_tokens=48, engine="onnxruntime", provider="cuda")
