"""The Python API: export a pair, load it, check it. Alone with the command line it joins export and runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeprec.bundle import Bundle, BundleModel
from edgeprec.export.progress import Progress, ProgressEvent, silent
from edgeprec.export.settings import ExportSettings
from edgeprec.extras import require_export_packages

if TYPE_CHECKING:
    from edgeprec.architecture import ModelConfig
    from edgeprec.calibration import Calibration
    from edgeprec.devices.meter import Meter
    from edgeprec.export.calibrate import Forward
    from edgeprec.runtime.session import Session

__all__ = [
    "ExportSettings",
    "Progress",
    "ProgressEvent",
    "export_bundle",
    "export_compressed_tensors",
    "export_rotated",
    "load",
]

_CALIBRATION_CONTEXT = 1024


def load(
    path: str | PathLike[str],
    *,
    engine: str = "auto",
    provider: str | None = None,
    context_tokens: int | None = None,
    sensor: str = "auto",
    threads: int | None = None,
    sequences: int = 1,
) -> Session:
    """Load a bundle and return a session; use it in a ``with`` statement, from one thread.

    ``context_tokens`` None = 4096, or less where the models were made for less. ``sensor`` as in ``edgeprec power``.
    ``sequences`` is how many prompts of a list the torch engine runs together; every one of them has a cache.

    Raises:
        BundleError: it is no bundle, is damaged or of a newer schema.
        ConfigError: a setting is unknown, or the context is longer than the models'.
        MemoryBudgetError: it does not fit; the message names the longest context, or the largest batch, that does.
        EngineError, MissingDependency: it cannot run here.
    """
    from edgeprec.errors import ConfigError
    from edgeprec.runtime.engines import (
        computes_on_gpu,
        default_context,
        open_engines,
        plan_engine_memory,
        resolve_engine,
    )
    from edgeprec.runtime.passes import WeightBits
    from edgeprec.runtime.session import Session
    from edgeprec.runtime.setting_checks import check_whole, require_threads
    from edgeprec.runtime.tokenizer import TextTokenizer

    _check_path(path, "path of the bundle")
    require_threads(threads)
    for name, value in (("context_tokens", context_tokens), ("sequences", sequences)):
        check_whole(name, value)
    if sequences < 1:
        raise ConfigError(f"sequences is {sequences}, expected 1 or more")
    if not isinstance(sensor, str):
        raise ConfigError(f"sensor is {sensor!r}, expected a text such as auto or none")
    bundle = Bundle.open(path)
    context = default_context(bundle) if context_tokens is None else context_tokens
    engine = resolve_engine(engine, provider)
    memory: dict[str, Any] = {
        "context_tokens": context,
        "engine": engine,
        "provider": provider,
        "sequences": sequences,
    }
    plan_engine_memory(bundle, **memory)
    for model in bundle.models:  # their headers: not every engine reads those, and garbage would be taken for weights
        model.open_fp16().close()
        model.open_int4().close()
    tokenizer = TextTokenizer.load(bundle.root)
    draft = bundle.draft if isinstance(bundle.draft, BundleModel) else None
    shared_tokens = None if draft is None else _shared_tokens(bundle.target, draft)
    calibration = _read_calibration(bundle)
    bits = [WeightBits.of(model.architecture, int4_bits=model.entry.int4.bits_per_weight) for model in bundle.models]
    with ExitStack() as opened:
        meter, note = _open_meter(sensor, is_gpu=computes_on_gpu(engine, provider))
        if meter is not None:
            opened.callback(meter.sensor.close)
        engines = open_engines(bundle, **memory, threads=threads)
        opened.pop_all()
    return Session(
        engine=engines[0],
        tokenizer=tokenizer,
        target_bits=bits[0],
        calibration=calibration,
        draft_engine=engines[1] if draft is not None else None,
        draft_bits=bits[1] if draft is not None else None,
        shared_tokens=shared_tokens,
        meter=meter,
        meter_note=note,
    )


def export_bundle(
    source: str | PathLike[str],
    output: str | PathLike[str],
    *,
    draft: str = "self",
    settings: ExportSettings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export a checkpoint (a folder, a hub id, a GGUF file or a bundle) and its draft into the folder ``output``.

    ``draft`` is ``"self"`` (the target's INT4 variant drafts), ``"none"`` or a checkpoint of its own.

    Raises:
        ConfigError: a source, a setting or the output cannot be used.
        EdgePrecError: the disk is full, or the exported graph does not run as meant.
        MissingDependency: a package of the extra ``export`` is not installed.
    """
    _check_export(source, output, draft, settings)
    require_export_packages()
    from edgeprec.export.pipeline import export_pair

    return export_pair(
        str(source),
        Path(output),
        draft=str(draft),
        settings=settings or ExportSettings(),
        resume=resume,
        open_forward=_open_forward,
        progress=progress or silent,
    )


def export_compressed_tensors(
    source: str | PathLike[str],
    output: str | PathLike[str],
    *,
    draft: str = "self",
    settings: ExportSettings | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a model in INT4 as a checkpoint that vLLM, SGLang and transformers load, into the new folder ``output``.

    ``source`` is as in ``export_bundle``. ``draft`` is a checkpoint, which goes into ``output/draft`` in FP16, or
    ``"none"``. ``"self"`` is the draft model in ``source`` where that is a bundle with one, and none otherwise, because
    the INT4 target is what is served.

    Raises:
        ConfigError: a source, a setting or the output cannot be used, or the model does not fit the format.
        EdgePrecError: the disk is full.
        MissingDependency: a package of the extra ``export`` is not installed, or onnxruntime to calibrate.
    """
    _check_export(source, output, draft, settings)
    require_export_packages()
    from edgeprec.export.compressed_tensors import export_hand_off

    return export_hand_off(
        str(source),
        Path(output),
        draft=str(draft),
        settings=settings or ExportSettings(),
        progress=progress or silent,
    )


def export_rotated(
    source: str | PathLike[str],
    output: str | PathLike[str],
    *,
    seed: int = 0,
    settings: ExportSettings | None = None,
    progress: Progress | None = None,
) -> Path:
    """Export the same function in rotated weights, drafted for by itself; takes up or returns what lies at ``output``.

    Rounding those weights to INT4 errs as on full precision, whatever grid the source's weights lay on: fidelity is
    measured on such a copy. Errors are those of ``export_bundle``.
    """
    from edgeprec.export.checkpoint import open_checkpoint
    from edgeprec.export.pipeline import export_pair
    from edgeprec.export.rotate import rotate

    return export_pair(
        rotate(open_checkpoint(str(source)), seed=seed),
        Path(output),
        draft="self",
        settings=settings or ExportSettings(),
        resume=True,
        open_forward=_open_forward,
        progress=progress or silent,
    )


def _check_path(path: object, what: str) -> None:
    from edgeprec.errors import ConfigError

    if not isinstance(path, str | PathLike):
        raise ConfigError(f"the {what} is {path!r}, expected a text or a Path")


def _check_export(source: object, output: object, draft: object, settings: object) -> None:
    from edgeprec.errors import ConfigError

    for what, path in (("source", source), ("output", output), ("draft", draft)):
        _check_path(path, what)
    if not isinstance(settings, ExportSettings | None):
        raise ConfigError(f"settings is {settings!r}, expected ExportSettings or None")


@contextmanager
def _open_forward(graph: Path, config: ModelConfig) -> Iterator[Forward]:
    """Run a graph on the CPU for calibration."""
    from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine

    context = min(_CALIBRATION_CONTEXT, config.max_positions)
    engine = OnnxRuntimeEngine.open(graph, config, context_tokens=context)
    try:
        yield lambda tokens, position, plan: engine.forward(tokens, position=position, plan=plan).logits
    finally:
        engine.close()


def _shared_tokens(target: BundleModel, draft: BundleModel) -> int:
    from edgeprec.errors import BundleError, ConfigError
    from edgeprec.vocabulary import Vocabulary, require_same_vocabulary

    try:
        vocabularies = [
            Vocabulary.from_tokenizer_json(
                model.tokenizer_path.read_bytes(), width=model.architecture.vocab_size, where=str(model.tokenizer_path)
            )
            for model in (target, draft)
        ]
        return require_same_vocabulary(*vocabularies)
    except ConfigError as error:  # of a checkpoint it would be one; here an export has checked both before
        raise BundleError(f"{target.bundle.root} is no pair: {error}; copy or export the bundle again") from error


def _read_calibration(bundle: Bundle) -> Calibration | None:
    from edgeprec.calibration import Calibration
    from edgeprec.errors import BundleError
    from edgeprec.strict_json import parse_json

    path = bundle.calibration_path
    if path is None:
        return None
    values = parse_json(path.read_bytes(), where=str(path), error=BundleError)
    calibration = Calibration.from_json(values, where=str(path))
    if len(calibration.layer_order) != bundle.target.architecture.num_layers:
        raise BundleError(
            f"{path} is for {len(calibration.layer_order)} layers, the target has "
            f"{bundle.target.architecture.num_layers}: export the bundle again"
        )
    return calibration


def _open_meter(sensor: str, *, is_gpu: bool) -> tuple[Meter | None, str | None]:
    """Return a meter on the sensor asked for, or None and why there is none. A GPU's joules are no CPU engine's."""
    from edgeprec.devices.detect import detect
    from edgeprec.devices.meter import Meter
    from edgeprec.devices.power_mode import read_power_modes
    from edgeprec.errors import DeviceError

    found = detect(sensor)
    if sensor == "auto" and found.sensor.source == "nvml" and not is_gpu:
        found.sensor.close()
        try:
            found = detect("rapl")
        except DeviceError as error:
            return None, f"NVML measures the GPU, this engine runs on the CPU, and {error}"
    if not found.sensor.rails:
        return None, found.note
    return Meter(found.sensor, power_mode=read_power_modes(found.sysfs).label), None
