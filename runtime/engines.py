"""Opens an engine by name. Heavy libraries are imported only by the one that is chosen."""

from __future__ import annotations

from edgeprec.available_memory import AvailableMemory, read_available_memory
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.errors import ConfigError, EngineError
from edgeprec.memory_plan import ONNXRUNTIME_CPU, MemoryPlan, require_memory
from edgeprec.runtime.engine import Engine

__all__ = ["DEFAULT_CONTEXT_TOKENS", "ENGINES", "PROVIDERS", "default_context", "open_engine", "plan_engine_memory"]

ENGINES = ("auto", "onnxruntime")
PROVIDERS = ("cpu",)
DEFAULT_CONTEXT_TOKENS = 4096


def default_context(bundle: Bundle) -> int:
    """Return 4096 tokens, or less where a model of the pair was made for less."""
    return min(DEFAULT_CONTEXT_TOKENS, *(model.architecture.max_positions for model in bundle.models))


def plan_engine_memory(bundle: Bundle, *, context_tokens: int, available: AvailableMemory | None = None) -> MemoryPlan:
    """Return what the pair will take, before anything is loaded.

    Raises:
        ConfigError: the context is longer than the models were made for.
        MemoryBudgetError: it does not fit; the message names the longest context that does.
    """
    entries = [model.entry for model in bundle.models]
    return require_memory(
        entries,
        profile=ONNXRUNTIME_CPU,
        context_tokens=context_tokens,
        available=read_available_memory() if available is None else available,
    )


def open_engine(
    model: BundleModel,
    *,
    context_tokens: int,
    engine: str = "auto",
    provider: str | None = None,
    threads: int | None = None,
) -> Engine:
    """Load one model of a bundle into an engine.

    Raises:
        ConfigError: there is no engine or provider of this name, or no thread to run it.
        EngineError: the model cannot be loaded.
        MissingDependency: the engine's library is not installed.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}: others are not in this version")
    if provider not in (None, *PROVIDERS):
        raise ConfigError(
            f"provider is {provider!r}, expected one of {', '.join(PROVIDERS)}: others are not in this version"
        )
    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}, expected 1 or more: leave it out to use every core")
    from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine

    opened = OnnxRuntimeEngine.open(
        model.graph_path("fp32"), model.architecture, context_tokens=context_tokens, threads=threads
    )
    if opened.info.num_layers != model.architecture.num_layers:
        raise EngineError(f"the engine runs {opened.info.num_layers} layers, the model has others: export it again")
    return opened
