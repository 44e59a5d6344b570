"""The TensorRT engine: engines that ``edgeprec build`` made, the cache in place, precision chosen group by group.

Not run on any GPU yet: control flow and numbers were tested with a stand-in for the library that runs the same graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from edgeprec.bundle import BundleModel
from edgeprec.bundle_schema import EngineEntry
from edgeprec.engine_file import EngineFile, source_digest
from edgeprec.engine_segment import pick_segments
from edgeprec.errors import ConfigError, EngineError, MemoryBudgetError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.cuda_memory import CudaMemory, DeviceMemory
from edgeprec.runtime.engine import NEAR_TIES, EngineInfo, StepResult
from edgeprec.runtime.tensorrt_chain import TensorRtChain
from edgeprec.tensorrt_library import TENSORRT_KINDS, TensorRtLibrary, find_tensorrt

__all__ = ["TensorRtEngine"]

_SLOTS = 256  # the part of the cache that is read grows in such steps, so that few shapes occur
_WORKSPACE_BYTES = 256 << 20


class TensorRtEngine:
    """Runs the engines of one model. Not safe for several threads at once."""

    def __init__(
        self, chain: TensorRtChain, file: EngineFile, model: BundleModel, *, device: str, context_tokens: int
    ) -> None:
        config = model.architecture
        self._chain: TensorRtChain | None = chain
        self._segments = file.header.segments
        self._built_tokens = file.header.context_tokens
        self._logits = np.zeros((file.header.max_rows, config.vocab_size), np.float32)
        self._has_mixed_group = False
        self._facts = {
            "device": device,
            "num_layers": config.num_layers,
            "vocab_size": config.vocab_size,
            "context_tokens": context_tokens,
            "max_rows": file.header.max_rows,
            "memory_bytes": chain.cache_bytes + sum(place.length_bytes for place in file.header.plans),
        }

    @classmethod
    def open(cls, model: BundleModel, *, context_tokens: int, memory: DeviceMemory | None = None) -> TensorRtEngine:
        """Load a model's engines for the GPU at hand.

        Raises:
            EngineError: the bundle has none for this GPU or this library's version, or they are of another export.
            ConfigError: the context is longer than what was built.
            MemoryBudgetError: they do not fit into the GPU's memory.
            MissingDependency: TensorRT or cuda-bindings is not installed.
            DeviceError: there is no usable GPU.
            BundleError: the engine file is damaged.
        """
        entries = [entry for entry in model.bundle.manifest.engines if entry.model == model.role]
        if not entries:
            raise EngineError(
                f"{model.bundle.root} has no TensorRT engine of its {model.role}: build one with edgeprec build "
                f"{model.bundle.root} --tensorrt SM, where SM is the GPU's generation, such as sm89"
            )
        kinds = [kind for kind in TENSORRT_KINDS if any(entry.kind == kind for entry in entries)]
        library = find_tensorrt(kinds, purpose="the tensorrt engine")
        with ExitStack() as opened:
            memory = CudaMemory() if memory is None else memory
            opened.callback(memory.close)
            entry = _choose(model, entries, library, memory.sm)
            file = EngineFile.open(model.bundle.path(entry.file))
            _check(model, file, entry, context_tokens)
            _require_memory(model, file, memory)
            rebuild = _build_command(model, entry.sm)
            chain = TensorRtChain(file, model.architecture, library=library, memory=memory, rebuild=rebuild)
            opened.pop_all()
        return cls(chain, file, model, device=memory.name, context_tokens=context_tokens)

    @property
    def info(self) -> EngineInfo:
        """Return shapes and limits."""
        groups = ("layers change precision in groups; a group with layers of both ran in FP16",)
        fallbacks = (NEAR_TIES, *(groups if self._has_mixed_group else ()))
        return EngineInfo(name="tensorrt", has_bitwise_rows=False, fallbacks=fallbacks, **self._facts)  # type: ignore[arg-type]

    def forward(self, tokens: Sequence[int], *, position: int, plan: Plan) -> StepResult:
        """Run ``tokens`` at ``position``; see the protocol. The logits are a view, valid until the next pass."""
        chain, rows = self._chain, len(tokens)
        self._check_pass(rows, position, plan)
        assert chain is not None
        end = position + rows
        slots = min(-(-end // _SLOTS) * _SLOTS, self._built_tokens)
        self._note_mixed_groups(plan)
        chain.run(list(tokens), position=position, slots=slots, plan=plan, logits=self._logits[:rows])
        return StepResult(self._logits[:rows])

    def close(self) -> None:
        """Free the engines and the cache; calling it twice is harmless."""
        if self._chain is not None:
            self._chain.close()
        self._chain = None

    def _check_pass(self, rows: int, position: int, plan: Plan) -> None:
        info = self.info
        if self._chain is None:
            raise EngineError("this engine is closed: open the bundle again")
        if not 1 <= rows <= info.max_rows:
            raise EngineError(f"a pass has {rows} rows, expected 1 to {info.max_rows}")
        if position < 0 or position + rows > info.context_tokens:
            raise EngineError(
                f"a pass of {rows} rows at position {position} leaves the context of {info.context_tokens} tokens"
            )
        if plan.num_layers != info.num_layers:
            raise EngineError(f"the plan is for {plan.num_layers} layers, the model has {info.num_layers}")

    def _note_mixed_groups(self, plan: Plan) -> None:
        for segment in pick_segments(self._segments, plan):
            if segment.precision is Precision.FP16 and any(plan.gates[layer] for layer in segment.layers):
                self._has_mixed_group = True


def _choose(model: BundleModel, entries: Sequence[EngineEntry], library: TensorRtLibrary, sm: str) -> EngineEntry:
    if not library.runs_on(sm):
        raise EngineError(
            f"{library.name} does not run on this GPU, {sm}, only on {', '.join(library.sms)}: use --engine torch, or "
            "--engine onnxruntime --provider cuda"
        )
    usable = [entry for entry in entries if entry.kind == library.kind]
    build = f"build one with {_build_command(model, sm)}"
    for entry in usable:
        if entry.sm == sm:
            if entry.version != library.version:
                raise EngineError(
                    f"{entry.file} was built with {entry.kind} {entry.version}, {library.version} is installed: {build}"
                )
            return entry
    built = ", ".join(entry.sm for entry in usable)
    raise EngineError(f"the engines of {model.bundle.root} are for {built}, this GPU is {sm}: {build}")


def _build_command(model: BundleModel, sm: str) -> str:
    return f"edgeprec build {model.bundle.root} --tensorrt {sm}"


def _check(model: BundleModel, file: EngineFile, entry: EngineEntry, context_tokens: int) -> None:
    if file.header.source_sha256 != source_digest(model):
        raise EngineError(
            f"{entry.file} was built from another {model.role} than {model.bundle.root} holds: build it again with "
            f"{_build_command(model, entry.sm)}"
        )
    built = file.header.context_tokens
    if context_tokens > built:
        raise ConfigError(
            f"context is {context_tokens:,} tokens, {entry.file} was built for {built:,}: use --context {built}, or "
            f"{_build_command(model, entry.sm)} --context {context_tokens}"
        )


def _require_memory(model: BundleModel, file: EngineFile, memory: DeviceMemory) -> None:
    config, header = model.architecture, file.header
    engine_bytes = sum(place.length_bytes for place in header.plans)
    cache_bytes = 4 * config.num_layers * header.context_tokens * config.kv_size
    needed_bytes, free_bytes = engine_bytes + cache_bytes + _WORKSPACE_BYTES, memory.free_bytes()
    if needed_bytes > free_bytes:
        raise MemoryBudgetError(
            f"the engines of the {model.role} need {needed_bytes >> 20:,} MiB of GPU memory with their cache of "
            f"{header.context_tokens:,} tokens, {free_bytes >> 20:,} MiB are free: build them with a smaller --context"
        )
