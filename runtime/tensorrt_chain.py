"""The engines of one model, bound to device buffers: a chain of segments that runs one pass.

Buffers carry the names of the graphs' inputs and outputs. ``hidden`` is two buffers in turn: a segment reads one and
writes the other. The cache is one buffer a layer for past and present, so keys and values are written in place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeprec.architecture import ModelConfig
from edgeprec.engine_file import EngineFile
from edgeprec.engine_segment import Segment, SegmentPart, pick_segments
from edgeprec.errors import EngineError
from edgeprec.precision import Plan
from edgeprec.runtime.cuda_memory import DeviceMemory
from edgeprec.tensorrt_library import TensorRtLibrary
from edgeprec.tensorrt_log import last_error, logger_into

__all__ = ["TensorRtChain"]

_LOG_LINES = 50  # enough for the reason of a failure


@dataclass(frozen=True, slots=True)
class _Bound:
    """One engine and its contexts by optimization profile; ``dynamic`` are its inputs without a fixed shape."""

    engine: Any
    contexts: list[Any]
    dynamic: tuple[str, ...]
    names: tuple[str, ...]


class TensorRtChain:
    """Loads every engine of a file and runs those a plan asks for, one after the other on one stream.

    ``rebuild`` is the command that builds the file again, for errors.

    Raises:
        EngineError: the library cannot start, or cannot load an engine.
    """

    def __init__(
        self, file: EngineFile, config: ModelConfig, *, library: TensorRtLibrary, memory: DeviceMemory, rebuild: str
    ) -> None:
        self._trt = library.module
        self._library = library
        self._memory = memory
        self._config = config
        self._header = file.header
        self._rebuild = rebuild
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._runtime = self._start()
        self._bound = {segment: self._load(file, segment) for segment in file.header.segments}
        first = next(bound for segment, bound in self._bound.items() if segment.part is SegmentPart.EMBED)
        self._value_bytes = int(np.dtype(self._trt.nptype(first.engine.get_tensor_dtype("hidden"))).itemsize)
        self._hidden = [memory.allocate(self._hidden_bytes) for _ in range(2)]
        self._addresses = self._allocate()
        memory.upload(self._addresses["columns"], np.arange(self._header.context_tokens, dtype=np.int64))

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of keys and values of all layers."""
        return 2 * self._config.num_layers * self._layer_cache_bytes

    def run(self, tokens: list[int], *, position: int, slots: int, plan: Plan, logits: Any) -> None:
        """Run rows [T] at ``position`` over the first ``slots`` slots of the cache and fill ``logits`` [T, V].

        Raises:
            EngineError: an engine refused its shapes or failed.
        """
        rows, memory = len(tokens), self._memory
        memory.upload(self._addresses["tokens"], np.asarray(tokens, np.int64))
        memory.upload(self._addresses["positions"], np.arange(position, position + rows, dtype=np.int64))
        memory.upload(self._addresses["write_index"], np.asarray([position], np.int64))
        shapes = self._shapes(rows, slots)
        source = 0
        for segment in pick_segments(self._header.segments, plan):
            self._launch(segment, rows, shapes, source)
            source ^= segment.part is SegmentPart.LAYERS
        memory.download(logits, self._addresses["logits"])

    def close(self) -> None:
        """Let go of the engines and the memory; calling it twice is harmless."""
        self._bound.clear()
        self._memory.close()

    def _start(self) -> Any:
        try:
            return self._trt.Runtime(logger_into(self._trt, self._log))
        except TypeError as error:  # what the bindings make of the null that the library returns
            raise EngineError(f"{self._library.name} cannot start on this GPU: {last_error(self._log)}") from error

    def _load(self, file: EngineFile, segment: Segment) -> _Bound:
        engine = self._runtime.deserialize_cuda_engine(file.plan(segment))
        if engine is None:
            raise EngineError(
                f"{self._library.name} cannot load the engine {segment.name} of the {self._header.model}: "
                f"{last_error(self._log)}; if the GPU and its driver are fine, build it again with {self._rebuild}"
            )
        names = tuple(engine.get_tensor_name(index) for index in range(engine.num_io_tensors))
        inputs = [name for name in names if engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT]
        dynamic = tuple(name for name in inputs if -1 in tuple(engine.get_tensor_shape(name)))
        return _Bound(engine, [None] * engine.num_optimization_profiles, dynamic, names)

    def _launch(self, segment: Segment, rows: int, shapes: dict[str, tuple[int, ...]], source: int) -> None:
        bound, addresses = self._bound[segment], self._addresses
        context = self._context(bound, segment, rows)
        hidden_in = self._hidden[source]
        is_embedding = segment.part is SegmentPart.EMBED
        hidden = {"hidden": self._hidden[0] if is_embedding else hidden_in, "hidden_out": self._hidden[1 - source]}
        for name in bound.dynamic:
            if not context.set_input_shape(name, shapes[name]):
                raise EngineError(
                    f"engine {segment.name} refuses {name} of shape {shapes[name]}: build it again with {self._rebuild}"
                )
        for name in bound.names:
            context.set_tensor_address(name, hidden.get(name) or addresses[name.replace("present_", "past_")])
        if not context.execute_async_v3(self._memory.stream):
            raise EngineError(
                f"engine {segment.name} of the {self._header.model} failed with {rows} rows: {last_error(self._log)}"
            )

    def _context(self, bound: _Bound, segment: Segment, rows: int) -> Any:
        """Return the context of the profile for so many rows: the first takes one row where there are two."""
        profile = int(len(bound.contexts) > 1 and rows > 1)
        if bound.contexts[profile] is None:
            context = self._new_context(bound.engine)
            if context is None or not context.set_optimization_profile_async(profile, self._memory.stream):
                raise EngineError(
                    f"engine {segment.name} of the {self._header.model} cannot start: {last_error(self._log)}; is GPU "
                    "memory free?"
                )
            bound.contexts[profile] = context
        return bound.contexts[profile]

    def _new_context(self, engine: Any) -> Any:
        """TensorRT-RTX captures CUDA graphs itself, one for each shape it meets."""
        if not hasattr(self._trt, "CudaGraphStrategy"):
            return engine.create_execution_context()
        config = engine.create_runtime_config()
        config.cuda_graph_strategy = self._trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        return engine.create_execution_context(config)

    def _shapes(self, rows: int, slots: int) -> dict[str, tuple[int, ...]]:
        half = self._config.head_dim // 2
        return {
            "tokens": (1, rows),
            "positions": (1, rows),
            "columns": (slots,),
            "hidden": (1, rows, self._config.hidden_size),
            "cos": (1, rows, half),
            "sin": (1, rows, half),
            "mask": (1, 1, rows, slots),
        }

    @property
    def _hidden_bytes(self) -> int:
        return self._header.max_rows * self._config.hidden_size * self._value_bytes

    @property
    def _layer_cache_bytes(self) -> int:
        return self._header.context_tokens * self._config.kv_size * self._value_bytes

    def _allocate(self) -> dict[str, int]:
        rows, context, config = self._header.max_rows, self._header.context_tokens, self._config
        table_bytes = rows * config.head_dim // 2 * self._value_bytes
        sizes = {"tokens": 8 * rows, "positions": 8 * rows, "columns": 8 * context, "write_index": 8}
        sizes |= {
            "cos": table_bytes,
            "sin": table_bytes,
            "mask": rows * context,
            "logits": 4 * rows * config.vocab_size,
        }
        for layer in range(config.num_layers):
            sizes |= {f"past_{part}_{layer}": self._layer_cache_bytes for part in ("key", "value")}
        return {name: self._memory.allocate(size_bytes) for name, size_bytes in sizes.items()}
