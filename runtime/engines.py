"""Opens a pair in an engine by name. Heavy libraries are imported only by the one that is chosen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from edgeprec.available_memory import AvailableMemory, read_available_memory
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.errors import ConfigError, EngineError, MissingDependency
from edgeprec.memory_plan import (
    ONNXRUNTIME_CPU,
    MemoryPlan,
    MemoryProfile,
    check_context,
    plan_memory,
    require_memory,
)
from edgeprec.runtime.engine import Engine

__all__ = [
    "DEFAULT_CONTEXT_TOKENS",
    "ENGINES",
    "PROVIDERS",
    "computes_on_gpu",
    "default_context",
    "open_engines",
    "plan_engine_memory",
    "resolve_engine",
]

ENGINES = ("auto", "onnxruntime", "torch", "tensorrt")
PROVIDERS = {
    "onnxruntime": ("cpu", "cuda", "tensorrt", "nvtensorrtrtx"),
    "torch": ("cpu", "cuda"),
    "tensorrt": ("cuda",),
}
DEFAULT_CONTEXT_TOKENS = 4096
NVIDIA_GPU = MemoryProfile(  # FP16 compute; not measured on a GPU yet
    engine="FP16 on a GPU",
    fp16_bytes_per_weight=2.0,
    shared_fp16_bytes_per_weight=2.0,
    int4_bytes_per_byte=1.0,
    embedding_bytes_per_weight=2.0,
    copies_tied_head=True,
    packs_shared_head=True,
    cache_bytes_per_value=2,
    logits_rows=128,
    base_bytes=512 << 20,
)
_GPU_NODES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/nvmap", "/dev/dxg")


def default_context(bundle: Bundle) -> int:
    """Return 4096 tokens, or less where a model of the pair was made for less."""
    return min(DEFAULT_CONTEXT_TOKENS, *(model.architecture.max_positions for model in bundle.models))


def resolve_engine(engine: str = "auto", provider: str | None = None) -> str:
    """Return the engine's name: ``auto`` is torch where a GPU runs its kernels, else onnxruntime.

    Raises:
        ConfigError: there is no engine of this name, or it has no such provider.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}: others are not in this version")
    if engine == "auto":
        wants_gpu = provider in (None, "cuda")
        engine = "torch" if wants_gpu and _has_torch_gpu() else "onnxruntime"
    providers = PROVIDERS[engine]
    if provider not in (None, *providers):
        raise ConfigError(
            f"provider is {provider!r}, expected one of {', '.join(providers)} with the engine {engine}: others are "
            "not in this version"
        )
    return engine


def computes_on_gpu(engine: str, provider: str | None = None) -> bool:
    """Return whether a resolved engine computes on a GPU, whose sensor then counts.

    Raises:
        EngineError, MissingDependency: it cannot be used here.
    """
    if engine == "tensorrt":
        return True
    if engine != "torch":
        return provider not in (None, "cpu")
    _require_torch()
    from edgeprec.runtime.torch_device import choose_device

    return choose_device(provider).type == "cuda"


def plan_engine_memory(
    bundle: Bundle,
    *,
    context_tokens: int,
    engine: str = "onnxruntime",
    provider: str | None = None,
    sequences: int = 1,
    available: AvailableMemory | None = None,
) -> MemoryPlan:
    """Return what the pair will take in a resolved engine, before anything is loaded.

    ``sequences`` is how many texts the torch engine's cache holds at once; the others hold one.

    Raises:
        ConfigError: the context is longer than the models were made for.
        EngineError, MissingDependency: the engine cannot be used here.
        MemoryBudgetError: it does not fit; the message names the longest context that does.
    """
    if engine == "torch":
        _require_torch()
        from edgeprec.runtime.torch_opening import plan_torch_pair

        return plan_torch_pair(bundle, context_tokens=context_tokens, provider=provider, sequences=sequences)
    entries = [model.entry for model in bundle.models]
    if computes_on_gpu(engine, provider):
        check_context(entries, context_tokens)  # the engine compares with the GPU's free memory itself
        return plan_memory(entries, profile=NVIDIA_GPU, context_tokens=context_tokens)
    return require_memory(
        entries,
        profile=ONNXRUNTIME_CPU,
        context_tokens=context_tokens,
        available=read_available_memory() if available is None else available,
    )


def open_engines(
    bundle: Bundle,
    *,
    context_tokens: int,
    engine: str = "auto",
    provider: str | None = None,
    threads: int | None = None,
    sequences: int = 1,
) -> tuple[Engine, ...]:
    """Load every model of a bundle, the target first; ``sequences`` as in ``plan_engine_memory``.

    Raises:
        ConfigError: there is no engine or provider of this name, or no thread to run it.
        EngineError: a model cannot be loaded.
        MemoryBudgetError: the torch engine's arena does not fit.
        MissingDependency: the engine's library is not installed.
    """
    name = resolve_engine(engine, provider)
    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}, expected 1 or more: leave it out to use every core")
    if name == "torch":
        _require_torch()
        from edgeprec.runtime.torch_opening import open_torch_pair

        return open_torch_pair(
            bundle, context_tokens=context_tokens, provider=provider, threads=threads, sequences=sequences
        )
    if name == "tensorrt":
        from edgeprec.runtime.engine_tensorrt import TensorRtEngine

        return _open_each(bundle, lambda model: TensorRtEngine.open(model, context_tokens=context_tokens))
    if provider not in (None, "cpu"):
        from edgeprec.runtime.engine_onnxruntime_gpu import OnnxRuntimeGpuEngine

        return _open_each(
            bundle, lambda model: OnnxRuntimeGpuEngine.open(model, provider=provider, context_tokens=context_tokens)
        )
    return _open_onnxruntime(bundle, context_tokens=context_tokens, threads=threads)


def _open_each(bundle: Bundle, open_model: Callable[[BundleModel], Engine]) -> tuple[Engine, ...]:
    """Open every model; where a later one cannot be, the earlier ones are closed."""
    with ExitStack() as opened:
        engines: list[Engine] = []
        for model in bundle.models:
            engines.append(open_model(model))
            opened.callback(engines[-1].close)
        opened.pop_all()
        return tuple(engines)


def _open_onnxruntime(bundle: Bundle, *, context_tokens: int, threads: int | None) -> tuple[Engine, ...]:
    from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine

    opened: list[Engine] = []
    for model in bundle.models:
        engine = OnnxRuntimeEngine.open(
            model.graph_path("fp32"), model.architecture, context_tokens=context_tokens, threads=threads
        )
        opened.append(engine)
        if engine.info.num_layers != model.architecture.num_layers:
            raise EngineError(f"the engine runs {engine.info.num_layers} layers, the model has others: export it again")
    return tuple(opened)


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise MissingDependency(package="torch", purpose="the torch engine", extra="torch")


def _has_torch_gpu() -> bool:
    """Look at device files first: where there is no GPU, importing torch would only take time."""
    if not any(Path(node).exists() for node in _GPU_NODES) or find_spec("torch") is None:
        return False
    from edgeprec.runtime.torch_device import has_usable_gpu

    return has_usable_gpu()
