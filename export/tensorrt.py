"""TensorRT engines for a finished bundle, from the same weights and the same pieces as its ONNX graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeprec.available_memory import read_available_memory
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.bundle_schema import EngineEntry
from edgeprec.cuda_library import gpu_sm
from edgeprec.engine_file import EngineHeader, PlanPlace, source_digest, write_footer, write_plan
from edgeprec.engine_segment import Segment, cut_into_segments
from edgeprec.errors import ConfigError, EngineError, MemoryBudgetError
from edgeprec.export import disk
from edgeprec.export.bundle_weights import locate_weights, save_graph
from edgeprec.export.engine_shelf import shelve, work_folder
from edgeprec.export.graph_linears import GraphWeights
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.export.segment_graph import build_segment_graph
from edgeprec.export.tensorrt_builder import MAX_ROWS, PlanBuilder, Range
from edgeprec.precision import Precision
from edgeprec.tensorrt_library import TensorRtLibrary, find_tensorrt

__all__ = ["LAYERS_PER_SEGMENT", "EngineSettings", "build_engines", "check_library"]

LAYERS_PER_SEGMENT = 4
_CONTEXT_TOKENS = 4096
_BYTES_PER_WEIGHT_BYTE = 5  # graph, its copy in the network, the plan and what the builder holds; docs/lab-notes.md
_BUILDER_BYTES = 512 << 20
_KERNEL_BYTES = 4 << 20  # source text of the kernels of a segment
_ONE_PROFILE: Sequence[Range] = ((1, 4, MAX_ROWS),)
_PROFILES: Mapping[Precision | None, Sequence[Range]] = {Precision.INT4: ((1, 1, 1), (2, 4, MAX_ROWS))}
"""INT4 runs single rows and keeps one copy of its weights for both; FP16 would keep two (docs/lab-notes.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What engines are built for. ``context_tokens`` None = 4096, or less where a model was made for less.

    Raises:
        ConfigError: a value is not allowed.
    """

    sms: tuple[str, ...]
    context_tokens: int | None = None
    layers_per_segment: int = LAYERS_PER_SEGMENT

    def __post_init__(self) -> None:
        if self.layers_per_segment < 1:
            raise ConfigError(f"layers per segment is {self.layers_per_segment}, expected 1 or more")

    def context(self, bundle: Bundle) -> int:
        """Return the context of a bundle's engines.

        Raises:
            ConfigError: it is longer than a model was made for.
        """
        longest = min(model.architecture.max_positions for model in bundle.models)
        if self.context_tokens is None:
            return min(_CONTEXT_TOKENS, longest)
        if not 2 <= self.context_tokens <= longest:
            raise ConfigError(
                f"context is {self.context_tokens:,} tokens, expected 2 to {longest:,}, what the model was made for"
            )
        return self.context_tokens


def check_library(sms: Sequence[str]) -> TensorRtLibrary:
    """Return the installed library; call it before long work that comes before the build.

    Raises:
        MissingDependency: TensorRT is not installed.
        EngineError: it is installed and cannot be imported.
        ConfigError: the library does not build for one of the GPU generations.
    """
    library = find_tensorrt(purpose="building TensorRT engines")
    known = library.sms if library.is_ahead_of_time else (gpu_sm(),)
    for sm in sms:
        if sm not in known:
            where = "ahead of time for" if library.is_ahead_of_time else "for the GPU at hand,"
            raise ConfigError(
                f"--tensorrt {sm}: {library.name} builds {where} {', '.join(known)} only"
                + ("; build on that machine with the TensorRT of its JetPack" if sm in ("sm87", "sm110") else "")
            )
    return library


def build_engines(bundle: Bundle, settings: EngineSettings, *, progress: Progress) -> Bundle:
    """Build engines of every model of ``bundle``, list them in it and return it as it is then.

    Raises:
        MissingDependency: TensorRT is not installed.
        ConfigError: the library does not build for a GPU generation, or a setting or the bundle's INT4 form does not
            allow it.
        EngineError: the build failed; ``NAME.build.log`` beside the bundle says what the library said.
        MemoryBudgetError: there is not enough memory to build.
    """
    library = check_library(settings.sms)
    context_tokens = settings.context(bundle)
    for model in bundle.models:
        _check_int4(model)
    log = bundle.root.resolve().with_name(f"{bundle.root.resolve().name}.build.log")
    with work_folder(bundle) as folder:
        disk.require_space(folder, needed_bytes=sum(_expected_bytes(model, settings) for model in bundle.models))
        files = []
        for model in bundle.models:
            job = _ModelBuild(model, library, settings, context_tokens, folder, progress, log)
            files.append((job.run(), _file_name(settings, library, model), job.entries()))
        return shelve(bundle, files)


@dataclass(frozen=True, slots=True)
class _ModelBuild:
    model: BundleModel
    tensorrt: TensorRtLibrary
    settings: EngineSettings
    context_tokens: int
    folder: Path
    progress: Progress
    log: Path

    def run(self) -> Path:
        """Build every segment into one file and return its path."""
        segments = cut_into_segments(self.model.architecture, layers_per_segment=self.settings.layers_per_segment)
        weights, path = locate_weights(self.model), self.folder / f"{self.model.role}.engine"
        with path.open("wb") as file:
            places: list[PlanPlace] = []
            for index, segment in enumerate(segments):
                data, weight_bytes = self._build(segment, weights, index, len(segments))
                places.append(write_plan(file, segment, data, weight_bytes=weight_bytes))
            self.progress(ProgressEvent(f"build {self.model.role}", len(segments), len(segments)))
            write_footer(file, self._header(tuple(places)))
        return path

    def entries(self) -> tuple[EngineEntry, ...]:
        """Return what the manifest says: one entry for each GPU generation the file serves."""
        name = _file_name(self.settings, self.tensorrt, self.model)
        return tuple(
            EngineEntry(kind=self.tensorrt.kind, sm=sm, model=self.model.role, file=name, version=self.tensorrt.version)
            for sm in self.settings.sms
        )

    def _build(self, segment: Segment, weights: GraphWeights, index: int, total: int) -> tuple[memoryview, int]:
        stage, config = f"build {self.model.role}", self.model.architecture
        graph = build_segment_graph(config, weights, segment, context_tokens=self.context_tokens)
        path = self.folder / f"{self.model.role}.onnx"
        weight_bytes = save_graph(graph, path)
        _require_memory(segment, weight_bytes)
        builder = PlanBuilder(
            self.tensorrt,
            self.settings.sms,
            self.context_tokens,
            _PROFILES.get(segment.precision, _ONE_PROFILE),
            lambda phase: self.progress(ProgressEvent(stage, index, total, f"{segment.name}: {phase}")),
        )
        try:
            return builder.build(path, name=f"{self.model.role} {segment.name}"), weight_bytes
        except (EngineError, MemoryBudgetError) as error:
            self.log.write_text("\n".join(builder.log) + "\n", encoding="utf-8")
            needs = f"; {_needs(segment, weight_bytes)}" if isinstance(error, MemoryBudgetError) else ""
            raise type(error)(f"{error}{needs}; the build log is {self.log}") from error

    def _header(self, places: tuple[PlanPlace, ...]) -> EngineHeader:
        return EngineHeader(
            kind=self.tensorrt.kind,
            version=self.tensorrt.version,
            sms=self.settings.sms,
            model=self.model.role,
            context_tokens=self.context_tokens,
            max_rows=MAX_ROWS,
            source_sha256=source_digest(self.model),
            plans=places,
        )


def _file_name(settings: EngineSettings, library: TensorRtLibrary, model: BundleModel) -> str:
    return f"engines/{library.kind}-{'-'.join(settings.sms)}/{model.role}.engine"


def _expected_bytes(model: BundleModel, settings: EngineSettings) -> int:
    specs = (*model.entry.fp16_specs, *model.entry.int4_specs)
    segments = cut_into_segments(model.architecture, layers_per_segment=settings.layers_per_segment)
    return sum(spec.num_bytes for spec in specs) + _KERNEL_BYTES * len(segments)


def _check_int4(model: BundleModel) -> None:
    int4, config = model.entry.int4, model.architecture
    if not int4.symmetric:
        raise ConfigError(
            f"the {model.role}'s INT4 variant has zero points, TensorRT takes symmetric INT4 only: "
            "export it again without --zero-point"
        )
    for linear in ("qkv", "o", "gate_up", "down", "head"):
        inputs = config.linear_shape(linear)[0]
        if inputs % int4.group_size:
            raise ConfigError(
                f"the {model.role}'s {linear} has {inputs} inputs, no multiple of its INT4 blocks of "
                f"{int4.group_size}, which TensorRT demands: export it again with a smaller --group-size"
            )


def _require_memory(segment: Segment, weight_bytes: int) -> None:
    if _needed_bytes(weight_bytes) > read_available_memory().size_bytes:
        raise MemoryBudgetError(_needs(segment, weight_bytes))


def _needs(segment: Segment, weight_bytes: int) -> str:
    available = read_available_memory()
    advice = "build with fewer --segment-layers" if segment.num_layers > 1 else "build on a larger machine"
    return (
        f"building segment {segment.name} takes about {_needed_bytes(weight_bytes) >> 20:,} MiB of memory, "
        f"{available.size_bytes >> 20:,} MiB are available ({available.bound}): {advice}"
    )


def _needed_bytes(weight_bytes: int) -> int:
    return _BUILDER_BYTES + _BYTES_PER_WEIGHT_BYTE * weight_bytes
