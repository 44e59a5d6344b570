"""The ONNX Runtime engine: one graph, KV written in place through IO binding, one binding per number of rows.

Rows of an FP16 pass are bitwise independent of each other from two rows on; a single row takes another kernel inside
attention (measured, docs/lab-notes.md). So a single FP16 row runs with a second, ignored one: verification of K + 1
rows then gives the very bits of plain decoding. The extra slot of the cache is for that row at the last position.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig
from edgeprec.bundle import Bundle
from edgeprec.bundle_schema import MANIFEST_NAME
from edgeprec.errors import BundleError, EdgePrecError, EngineError, MissingDependency
from edgeprec.file_digest import file_sha256
from edgeprec.precision import Plan
from edgeprec.rotary import inverse_frequencies
from edgeprec.runtime.engine import EngineInfo, StepResult
from edgeprec.runtime.onnxruntime_cache import GrowingCache

__all__ = ["MAX_ROWS", "OnnxRuntimeEngine", "cache_bytes", "load_failure", "onnxruntime_errors"]

MAX_ROWS = 64
_INT8_ACTIVATIONS = "4"  # MatMulNBits accuracy level: INT4 x INT8 dot products, the fast CPU path


def cache_bytes(config: ModelConfig, context_tokens: int) -> int:
    """Return the bytes of keys and values of all layers in float32, at their longest."""
    return 2 * config.num_layers * (context_tokens + 1) * config.kv_size * 4


@dataclass(slots=True)
class _Binding:
    """Input and output arrays of passes with one number of rows; the session reads and writes them directly."""

    io: Any
    tokens: npt.NDArray[np.int64]  # [1, T]
    positions: npt.NDArray[np.int64]  # [1, T]
    logits: npt.NDArray[np.float32]  # [1, T, V]


class OnnxRuntimeEngine:
    """Runs ``model.fp32.onnx`` on the CPU. Not safe for several threads at once."""

    def __init__(self, session: Any, config: ModelConfig, *, context_tokens: int, ortvalue: Any) -> None:
        self._session: Any = session
        self._config = config
        self._ortvalue = ortvalue
        self._context_tokens = context_tokens
        self._gate = np.zeros(config.num_layers + 1, np.bool_)
        self._kv_length = np.zeros(1, np.int64)
        self._tables = _rotary_tables(session, config, tokens=context_tokens + 1)
        self._logits = np.zeros((MAX_ROWS, config.vocab_size), np.float32)
        self._cache = GrowingCache(config, longest=context_tokens + 1, bindable=ortvalue)
        self._bindings: dict[int, _Binding] = {}
        self._info = EngineInfo(
            name="onnxruntime",
            device="cpu",
            num_layers=config.num_layers,
            vocab_size=config.vocab_size,
            context_tokens=context_tokens,
            max_rows=MAX_ROWS,
            memory_bytes=cache_bytes(config, context_tokens),
            has_bitwise_rows=True,
        )

    @classmethod
    def open(
        cls, graph: Path, config: ModelConfig, *, context_tokens: int, threads: int | None = None
    ) -> OnnxRuntimeEngine:
        """Load a graph and its weights.

        Raises:
            MissingDependency: onnxruntime is not installed.
            BundleError: the graph or its weights are damaged, or the weights are hard links.
            EngineError: the graph cannot be loaded.
        """
        runtime = _import_onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")  # a pair's two pools share the cores
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", _INT8_ACTIVATIONS)
        try:
            session = runtime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        except onnxruntime_errors() as error:
            raise load_failure(graph, error, version=runtime.__version__) from error
        return cls(session, config, context_tokens=context_tokens, ortvalue=runtime.OrtValue.ortvalue_from_numpy)

    @property
    def info(self) -> EngineInfo:
        """Return shapes and limits."""
        return self._info

    def forward(self, tokens: Sequence[int], *, position: int, plan: Plan) -> StepResult:
        """Run ``tokens`` at ``position``; see the protocol. The logits are a view, valid until the next pass."""
        rows = len(tokens)
        self._check(rows, position, plan)
        padded = 2 if rows == 1 and plan.is_fp16 else rows
        if self._cache.fit(position + padded):
            self._bindings.clear()
        binding = self._binding(padded)
        binding.tokens[0, :rows] = tokens
        binding.tokens[0, rows:] = tokens[-1]
        binding.positions[0] = np.arange(position, position + padded)
        self._kv_length[0] = position + padded
        self._gate[:] = plan.gates
        try:
            self._session.run_with_iobinding(binding.io)
        except onnxruntime_errors() as error:
            raise EngineError(f"onnxruntime failed at position {position}: {_first_line(error)}") from error
        return StepResult(binding.logits[0, :rows])

    def close(self) -> None:
        """Free the session and the cache; calling it twice is harmless."""
        self._bindings.clear()
        self._cache.clear()
        self._session = None

    def _check(self, rows: int, position: int, plan: Plan) -> None:
        if self._session is None:
            raise EngineError("this engine is closed: open the bundle again")
        if not 1 <= rows <= MAX_ROWS:
            raise EngineError(f"a pass has {rows} rows, expected 1 to {MAX_ROWS}")
        if position < 0 or position + rows > self._context_tokens:
            raise EngineError(
                f"a pass of {rows} rows at position {position} leaves the context of {self._context_tokens} tokens"
            )
        if plan.num_layers != self._config.num_layers:
            raise EngineError(f"the plan is for {plan.num_layers} layers, the model has {self._config.num_layers}")

    def _binding(self, rows: int) -> _Binding:
        if rows not in self._bindings:
            self._bindings[rows] = self._bind(rows)
        return self._bindings[rows]

    def _bind(self, rows: int) -> _Binding:
        tokens, positions = np.zeros((1, rows), np.int64), np.zeros((1, rows), np.int64)
        logits = self._logits[:rows].reshape(1, rows, -1)
        io = self._session.io_binding()
        inputs = {"tokens": tokens, "positions": positions, "kv_length": self._kv_length, "gate": self._gate}
        for name, array in (inputs | self._tables).items():
            io.bind_ortvalue_input(name, self._ortvalue(array))
        io.bind_ortvalue_output("logits", self._ortvalue(logits))
        for name, value in self._cache.values.items():
            io.bind_ortvalue_input(f"past_{name}", value)
            io.bind_ortvalue_output(f"present_{name}", value)
        return _Binding(io, tokens, positions, logits)


def _rotary_tables(session: Any, config: ModelConfig, *, tokens: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return cos and sin [tokens, d / 2] where the graph asks for them; older ones and odd heads compute their own."""
    if "rotary_cos" not in {given.name for given in session.get_inputs()}:
        return {}
    frequencies = inverse_frequencies(config).astype(np.float32)
    angles = np.arange(tokens, dtype=np.float32)[:, None] * frequencies
    return {"rotary_cos": np.cos(angles), "rotary_sin": np.sin(angles)}


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(package="onnxruntime", purpose="the onnxruntime engine", extra="cpu") from error
    return onnxruntime


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """ONNX Runtime raises its own classes at load and RuntimeError from a bound run."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    return (RuntimeError, *(getattr(state, name) for name in (*names, "RuntimeException") if hasattr(state, name)))


def load_failure(graph: Path, error: Exception, *, version: str) -> EdgePrecError:
    """Return what a failed load is to be raised as: a graph of a bundle is compared with what was exported."""
    root = next((folder for folder in graph.parents if (folder / MANIFEST_NAME).is_file()), None)
    try:
        if root is not None:
            _check_exported(Bundle.read_manifest(root), graph)
    except BundleError as problem:
        return problem
    return EngineError(f"onnxruntime {version} cannot load {graph}: {_first_line(error)}")


def _check_exported(bundle: Bundle, graph: Path) -> None:
    """Check a graph and the weights under its folder.

    Raises:
        BundleError: one is not as exported, or has several hard links, which ONNX Runtime takes for an attack.
    """
    listed = bundle.manifest.files
    weights = [
        name for name in listed if name.endswith(".safetensors") and graph.parent in (bundle.root / name).parents
    ]
    names = [name for name in listed if bundle.root / name == graph] + weights
    bundle.check_files(names)
    for name in names:
        path = bundle.path(name)
        if file_sha256(path) != listed[name].sha256:
            raise BundleError(
                f"{path} is damaged, it has other bytes than were exported: copy or export the bundle again"
            )
    for name in weights:
        path, links = bundle.path(name), bundle.path(name).stat().st_nlink
        if links > 1:
            raise BundleError(
                f"{path} has {links} hard links, onnxruntime reads weights with one alone: run a copy made with cp -r"
            )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or "it gave no reason"
