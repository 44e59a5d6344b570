"""ONNX Runtime on a GPU: the bundle's FP16 graph through one of its GPU providers, the cache bound on the device.

What a provider cannot run falls back to the CPU node by node; ``EngineInfo.fallbacks`` counts it. A provider that
cannot be loaded at all is an error: ONNX Runtime itself would go on with the CPU alone.

GPU libraries choose a kernel by the shape of a product, so the bits of a row would depend on the rows beside it. Every
FP16 pass therefore runs ``FP16_ROWS`` rows, the last token again in those that were not asked for: they are written
behind the text, where causal attention does not look and the next pass writes over them (docs/decisions/021).
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig
from edgeprec.bundle import BundleModel
from edgeprec.errors import ConfigError, EngineError, MissingDependency
from edgeprec.precision import Plan
from edgeprec.runtime.engine import NEAR_TIES, EngineInfo, StepResult

__all__ = ["FP16_ROWS", "PROVIDERS", "OnnxRuntimeGpuEngine", "Provider"]

FP16_ROWS = 16  # of every FP16 pass, and the most of any pass: the longest draft and one
_SETTINGS = {
    "session.record_ep_graph_assignment_info": "1",
    "session.qdq_matmulnbits_accuracy_level": "0",  # for nodes that fall back: level 4 gives zeros in FP16
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One of ONNX Runtime's execution providers, and where its memory lies."""

    name: str  # ONNX Runtime's own
    device: str  # "cuda"
    has_bitwise_rows: bool = False  # measured: scripts/check_cuda_provider.py


PROVIDERS = {
    "cuda": Provider(name="CUDAExecutionProvider", device="cuda", has_bitwise_rows=True),  # on an H200
    "tensorrt": Provider(name="TensorrtExecutionProvider", device="cuda"),
    "nvtensorrtrtx": Provider(name="NvTensorRTRTXExecutionProvider", device="cuda"),
}


class OnnxRuntimeGpuEngine:
    """Runs ``model.fp16.onnx`` on a GPU. Not safe for several threads at once."""

    def __init__(
        self,
        session: Any,
        config: ModelConfig,
        *,
        provider: Provider,
        context_tokens: int,
        runtime: Any,
        fp16_rows: int = FP16_ROWS,
    ) -> None:
        self._session: Any = session
        self._config = config
        self._context_tokens = context_tokens
        self._fp16_rows = fp16_rows
        self._io = session.io_binding()
        self._io.bind_output("logits", "cpu")
        self._cache = self._bind_cache(provider, runtime)
        self._info = EngineInfo(
            name="onnxruntime",
            device="cuda:0" if provider.device == "cuda" else provider.device,
            num_layers=config.num_layers,
            vocab_size=config.vocab_size,
            context_tokens=context_tokens,
            max_rows=FP16_ROWS,
            memory_bytes=4 * config.num_layers * self._slots * config.kv_size,
            has_bitwise_rows=provider.has_bitwise_rows,
            fallbacks=(*_fallbacks(session, provider), *(() if provider.has_bitwise_rows else (NEAR_TIES,))),
        )

    @classmethod
    def open(
        cls, model: BundleModel, *, provider: str, context_tokens: int, fp16_rows: int = FP16_ROWS
    ) -> OnnxRuntimeGpuEngine:
        """Load a model's FP16 graph with a provider by our name for it; ``fp16_rows`` 1 pads no pass, to compare.

        Raises:
            ConfigError: there is no such provider.
            MissingDependency: onnxruntime is not installed.
            BundleError: the graph or its weights are damaged, or the weights are hard links.
            EngineError: the installed onnxruntime has no such provider, cannot load it, or cannot load the graph.
        """
        if provider not in PROVIDERS:
            raise ConfigError(f"provider is {provider!r}, expected one of {', '.join(PROVIDERS)}")
        runtime, chosen = _import_onnxruntime(provider), PROVIDERS[provider]
        _require_provider(runtime, chosen, provider)
        session = _open_session(runtime, model.graph_path("fp16"), chosen)
        return cls(
            session,
            model.architecture,
            provider=chosen,
            context_tokens=context_tokens,
            runtime=runtime,
            fp16_rows=fp16_rows,
        )

    @property
    def info(self) -> EngineInfo:
        """Return shapes and limits."""
        return self._info

    def forward(self, tokens: Sequence[int], *, position: int, plan: Plan) -> StepResult:
        """Run ``tokens`` at ``position``; see the protocol."""
        rows = len(tokens)
        self._check(rows, position, plan)
        padded = max(rows, self._fp16_rows) if plan.is_fp16 else rows
        inputs = {
            "tokens": np.asarray([[*tokens, *[tokens[-1]] * (padded - rows)]], np.int64),
            "positions": np.arange(position, position + padded, dtype=np.int64)[None],
            "kv_length": np.asarray([position + padded], np.int64),
            "gate": np.asarray(plan.gates, np.bool_),
        }
        for name, values in inputs.items():
            self._io.bind_cpu_input(name, values)
        self._io.bind_output("logits", "cpu")
        try:
            self._session.run_with_iobinding(self._io)
        except _run_errors() as error:
            raise EngineError(f"onnxruntime failed at position {position}: {_first_line(error)}") from error
        return StepResult(self._logits(rows))

    def close(self) -> None:
        """Free the session and the cache; calling it twice is harmless."""
        self._io = None
        self._cache.clear()
        self._session = None

    @property
    def _slots(self) -> int:
        """Return the cache's length: the rows that pad a pass at the last position need their own."""
        return self._context_tokens + FP16_ROWS

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        """Return the first output: a binding keeps its outputs in the order in which they were bound."""
        logits: npt.NDArray[np.float32] = self._io.get_outputs()[0].numpy()[0, :rows].astype(np.float32)
        return logits

    def _check(self, rows: int, position: int, plan: Plan) -> None:
        if self._session is None:
            raise EngineError("this engine is closed: open the bundle again")
        if not 1 <= rows <= FP16_ROWS:
            raise EngineError(f"a pass has {rows} rows, expected 1 to {FP16_ROWS}")
        if position < 0 or position + rows > self._context_tokens:
            raise EngineError(
                f"a pass of {rows} rows at position {position} leaves the context of {self._context_tokens} tokens"
            )
        if plan.num_layers != self._config.num_layers:
            raise EngineError(f"the plan is for {plan.num_layers} layers, the model has {self._config.num_layers}")

    def _bind_cache(self, provider: Provider, runtime: Any) -> dict[str, Any]:
        """Bind each layer's keys and values as past and as present: written in place, never copied to the host."""
        config = self._config
        shape = (1, config.num_kv_heads, self._slots, config.head_dim)
        zeros, cache = np.zeros(shape, np.float16), {}
        for name in (f"{part}_{layer}" for layer in range(config.num_layers) for part in ("key", "value")):
            cache[name] = runtime.OrtValue.ortvalue_from_numpy(zeros.copy(), provider.device, 0)
            self._io.bind_ortvalue_input(f"past_{name}", cache[name])
            self._io.bind_ortvalue_output(f"present_{name}", cache[name])
        return cache


def _import_onnxruntime(provider: str) -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingDependency(
            package="onnxruntime-gpu", purpose=f"onnxruntime's provider {provider}", extra="cuda"
        ) from error


def _require_provider(runtime: Any, provider: Provider, name: str) -> None:
    available = runtime.get_available_providers()
    if provider.name not in available:
        remedy = "run pip uninstall onnxruntime and pip install 'edgeprec[cuda]'"
        if name == "nvtensorrtrtx":
            remedy = "it takes an onnxruntime built with TensorRT-RTX; the extra cuda brings cuda and tensorrt"
        raise EngineError(
            f"onnxruntime {runtime.__version__} has no provider {name}, only {', '.join(available)}: {remedy}"
        )


def _open_session(runtime: Any, graph: Path, provider: Provider) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    for key, value in _SETTINGS.items():
        options.add_session_config_entry(key, value)
    providers = list(dict.fromkeys((provider.name, "CPUExecutionProvider")))
    try:
        session = runtime.InferenceSession(str(graph), options, providers=providers)
    except _load_errors() as error:
        from edgeprec.runtime.engine_onnxruntime import load_failure

        raise load_failure(graph, error, version=runtime.__version__) from error
    if provider.name not in session.get_providers():
        raise EngineError(
            f"onnxruntime {runtime.__version__} has {provider.name} but could not start it: look for a GPU driver, "
            "CUDA and cuDNN that fit, edgeprec doctor shows what is there"
        )
    return session


def _fallbacks(session: Any, provider: Provider) -> tuple[str, ...]:
    """Say how many nodes another provider than the one asked for runs, and of which operators."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return ("this onnxruntime does not tell which nodes fell back to the CPU",)
    others: Counter[str] = Counter()
    total = 0
    for part in session.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        total += len(nodes)
        if part.ep_name != provider.name:
            others.update(node.op_type for node in nodes)
    if not others:
        return ()
    operators = ", ".join(f"{name} {count}" for name, count in sorted(others.items()))
    return (f"{sum(others.values())} of {total} nodes run on the CPU, not with {provider.name}: {operators}",)


def _load_errors() -> tuple[type[Exception], ...]:
    from edgeprec.runtime.engine_onnxruntime import onnxruntime_errors

    return onnxruntime_errors()


def _run_errors() -> tuple[type[Exception], ...]:
    return (*_load_errors(), ValueError)  # ValueError: an input bound with another shape


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or "it gave no reason"
