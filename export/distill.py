"""Distill a small draft from any target: open, draw text, choose layers, train, write. The steps live in ``distill_*``.

Work in progress lies in ``OUTPUT.partial`` and goes when the draft is in place:

    run.json               target and settings, by which --resume knows its own work
    samples.safetensors    the text drawn from the target
    state.pt               the training, at its last measurement
    draft/                 the best draft so far
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeprec.errors import ConfigError, DeviceError, MissingDependency
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.export.disk import disk_error, write_file
from edgeprec.export.distill_settings import DistillDevice, DistillSettings
from edgeprec.export.draft_facts import DraftFacts
from edgeprec.export.folder_lock import FolderLock
from edgeprec.export.json_object import read_json_object
from edgeprec.export.progress import Progress, silent
from edgeprec.export.settings import ExportSettings

if TYPE_CHECKING:
    import torch

    from edgeprec.export.distill_model import Decoder
    from edgeprec.export.distill_samples import Samples
    from edgeprec.export.distill_state import TrainingState
    from edgeprec.export.text_codec import TextCodec

__all__ = ["DistilledDraft", "distill"]

_LOG = logging.getLogger(__name__)
_RUN = "run.json"
_SAMPLING_SHARE = 0.3  # of the time
_GPU_LAYER_ROWS, _CPU_LAYER_ROWS = 16, 2
_GPU_TOKENS, _CPU_TOKENS = 20_000_000, 200_000
_GPU_ROWS, _CPU_ROWS = 2048, 32
_GPU_STEP_ROWS, _CPU_STEP_ROWS = 64, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilledDraft:
    """Where the draft lies and what its training record says."""

    path: Path
    record: Mapping[str, Any]


def distill(
    target: str,
    output: Path,
    settings: DistillSettings | None = None,
    *,
    resume: bool = False,
    command: str = "",
    progress: Progress = silent,
) -> DistilledDraft:
    """Train a draft for the checkpoint ``target`` and write it into the folder ``output``, which must not exist.

    ``command`` is what the training record says was run.

    Raises:
        ConfigError: the target, the text, a setting or the output cannot be used.
        DeviceError: CUDA is asked for and not there.
        EdgePrecError: the loss became NaN, or the disk is full.
        MissingDependency: torch is not installed.
    """
    started_s = time.monotonic()
    if find_spec("torch") is None:
        raise MissingDependency(package="torch", purpose="distilling a draft", extra="torch")
    settings = settings or DistillSettings()
    if not output.name:
        raise ConfigError(f"{output} cannot become a draft: choose a new folder with -o")
    partial = output.with_name(f"{output.name}.partial")
    _require_free(output, partial, resume=resume)
    checkpoint = open_checkpoint(target)
    if settings.layers >= checkpoint.config.num_layers:
        raise ConfigError(
            f"a draft of {settings.layers} layers is asked for, expected fewer than the target's "
            f"{checkpoint.config.num_layers}"
        )
    work = _Work(checkpoint, output, partial, settings, command, progress, started_s)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(partial)
        lock.acquire()
    except OSError as error:
        raise disk_error(error, output.parent, needed_bytes=1) from error
    try:
        return work.run()
    except KeyboardInterrupt:
        _LOG.warning("the unfinished work stays in %s: continue it with --resume", partial)
        raise
    finally:
        lock.release()
        if not (partial / _RUN).exists():
            shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Work:
    """One distillation."""

    checkpoint: Checkpoint
    output: Path
    partial: Path
    settings: DistillSettings
    command: str
    progress: Progress
    started_s: float
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def run(self) -> DistilledDraft:
        from edgeprec.export.distill_data import encode_text
        from edgeprec.export.text_codec import TextCodec

        device = choose_device(self.settings.device)
        codec = TextCodec.of(self.checkpoint.tokenizer)
        text = ExportSettings(calibration=self.settings.text).read_text()
        given = encode_text(codec, text)
        self._claim(text)
        teacher = self._teacher(device, given)
        if device.type == "cpu":
            self._warn(teacher)
        samples = self._samples(teacher, codec, given)
        record = self._train(teacher, codec, samples)
        try:
            os.rename(self.partial / "draft", self.output)
        except OSError as error:
            raise disk_error(error, self.output.parent, needed_bytes=1) from error
        shutil.rmtree(self.partial)
        return DistilledDraft(path=self.output, record=record)

    def _teacher(self, device: torch.device, given: Sequence[int]) -> Decoder:
        """Load the target, on a GPU in FP16, as it will run; in BF16 where its activations are beyond FP16."""
        import torch

        from edgeprec.export.distill_model import load_decoder

        if device.type == "cpu":
            return load_decoder(self.checkpoint, device=device, dtype=torch.float32)
        teacher = load_decoder(self.checkpoint, device=device, dtype=torch.float16)
        with torch.no_grad():
            hidden = teacher(torch.tensor([given[: self._length]], device=device))
        if bool(hidden.isfinite().all()):
            return teacher
        _LOG.warning("the target's activations are beyond FP16: its text is drawn and learned in BF16")
        return load_decoder(self.checkpoint, device=device, dtype=torch.bfloat16)

    def _claim(self, text: str) -> None:
        """Write down what is made here, or see that it is what was begun.

        Raises:
            ConfigError: the folder holds work on another target or with other settings.
        """
        sources = {name: digest.sha256 for name, digest in self.checkpoint.digest_sources().items()}
        facts = {"settings": asdict(replace(self.settings, text=None)), "text": text, "sources": sources}
        fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        path = self.partial / _RUN
        if not path.exists():
            self._write_file(path, json.dumps({"fingerprint": fingerprint, "command": self.command}).encode())
        elif read_json_object(path).get("fingerprint") != fingerprint:
            raise ConfigError(
                f"{self.partial} belongs to another target or other settings: repeat the first command's flags, "
                "or delete it and begin again"
            )

    def _write_file(self, path: Path, data: bytes) -> None:
        try:
            write_file(path, data, scratch=path.with_suffix(".part"))
        except OSError as error:
            raise disk_error(error, self.partial, needed_bytes=len(data)) from error

    @property
    def _length(self) -> int:
        return min(self.settings.sequence_tokens, self.checkpoint.config.max_positions)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def _warn(self, teacher: Decoder) -> None:
        from edgeprec.export.distill_estimate import estimate

        settings, rows = self.settings, self.settings.rows_per_step or _CPU_STEP_ROWS
        expected = estimate(
            teacher,
            layers=settings.layers,
            token_count=settings.sample_tokens or _CPU_TOKENS,
            length=self._length,
            rows=settings.sample_rows or _CPU_ROWS,
            rows_per_step=rows,
            group_size=settings.group_size,
        )
        _LOG.warning(expected.sentence(steps=settings.steps, minutes=settings.minutes, rows_per_step=rows))

    def _samples(self, teacher: Decoder, codec: TextCodec, given: list[int]) -> Samples:
        from edgeprec.export.distill_data import write_samples
        from edgeprec.export.distill_samples import Samples

        path = self.partial / "samples.safetensors"
        if path.exists():
            return Samples.load(path)
        settings, is_gpu = self.settings, teacher.ends.head.is_cuda
        limit_s = _SAMPLING_SHARE * 60.0 * settings.minutes
        samples = write_samples(
            teacher,
            codec,
            given,
            token_count=settings.sample_tokens or (_GPU_TOKENS if is_gpu else _CPU_TOKENS),
            length=self._length,
            rows=settings.sample_rows or (_GPU_ROWS if is_gpu else _CPU_ROWS),
            seed=settings.seed,
            progress=self.progress,
            is_over=lambda: settings.steps is None and self._elapsed_s() > limit_s,
        )
        samples.save(path)
        return samples

    def _train(self, teacher: Decoder, codec: TextCodec, samples: Samples) -> dict[str, Any]:
        """Train, and return the record of the draft that then lies in the partial folder."""
        from edgeprec.export.distill_layers import take_layers
        from edgeprec.export.distill_pace import Pace
        from edgeprec.export.distill_probe import Probe
        from edgeprec.export.distill_step import TrainingStep
        from edgeprec.export.distill_train import TrainingRun

        settings, is_gpu = self.settings, teacher.ends.head.is_cuda
        probe = Probe.of(teacher, codec, new_tokens=settings.probe_tokens)
        layers, errors_bits = self._layers(teacher, samples)
        facts = DraftFacts.of(self.checkpoint, layers)
        step = TrainingStep(
            take_layers(teacher, layers),
            teacher,
            group_size=settings.group_size,
            learning_rate=settings.learning_rate,
            argmax_weight=settings.argmax_weight,
        )
        about = self._about(samples, step.device) | {"layers": list(layers), "skip_errors_bits": errors_bits}
        state = TrainingRun(
            step=step,
            samples=samples,
            probe=probe,
            pace=Pace(steps=settings.steps, seconds=60.0 * settings.minutes),
            rows_per_step=settings.rows_per_step or (_GPU_STEP_ROWS if is_gpu else _CPU_STEP_ROWS),
            draft_length=settings.draft_length,
            seed=settings.seed,
            state_path=self.partial / "state.pt",
            progress=self.progress,
            on_better=lambda state: self._write(state, facts, about),
            spent_s=self._elapsed_s(),
        ).run()
        return self._write(state, facts, about)

    def _layers(self, teacher: Decoder, samples: Samples) -> tuple[tuple[int, ...], list[float]]:
        import torch

        from edgeprec.export.distill_layers import choose_layers, skip_errors_bits

        device = teacher.ends.head.device
        some = samples.rows(slice(0, _GPU_LAYER_ROWS if device.type == "cuda" else _CPU_LAYER_ROWS))
        tokens, mask = (torch.from_numpy(values).to(device) for values in (some.tokens, some.mask()))
        errors = skip_errors_bits(teacher, tokens.long(), mask, self.progress)
        return choose_layers(errors, self.settings.layers), [round(error, 4) for error in errors]

    def _write(self, state: TrainingState, facts: DraftFacts, about: Mapping[str, Any]) -> dict[str, Any]:
        """Write the best draft so far, as INT4 holds it, into the partial folder and return its training record."""
        from edgeprec.export.distill_int4 import round_to_int4
        from edgeprec.export.draft_writer import write_draft

        group = self.settings.group_size
        weights = {
            name: (round_to_int4(value, group_size=group) if value.ndim == 2 else value).float().cpu().numpy()
            for name, value in state.best_weights.items()
        }
        record = {
            **about,
            "steps": state.step,
            "best_step": state.best_step,
            "acceptance_rate": round(state.best_acceptance, 4),
            "training_s": round(state.elapsed_s, 1),
            "curve": state.curve,
        }
        config = replace(self.checkpoint.config, num_layers=len(facts.layers))
        write_draft(self.partial / "draft", config, weights, facts, record, group_size=group)
        return record

    def _about(self, samples: Samples, device: torch.device) -> dict[str, Any]:
        """Return the part of the training record that is known before training."""
        import torch

        settings = {name: value for name, value in asdict(self.settings).items() if name != "text"}
        return {
            "schema_version": 1,
            "command": self.command,
            "date": self.date,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "torch": str(torch.__version__),
            "target": self.checkpoint.name,
            "settings": settings,
            "text": "packaged" if self.settings.text is None else self.settings.text.name,
            "sequences": len(samples),
            "learned_tokens": samples.learned_tokens,
        }


def choose_device(wanted: DistillDevice) -> torch.device:
    """Return where to train.

    Raises:
        DeviceError: CUDA is asked for and not there.
    """
    import torch

    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise DeviceError("distilling on cuda is asked for, but torch sees no GPU: use --device cpu, which takes long")
    return torch.device("cuda" if wanted != "cpu" and has_cuda else "cpu")


def _require_free(output: Path, partial: Path, *, resume: bool) -> None:
    if os.path.lexists(output):
        raise ConfigError(f"{output} exists already: choose another folder with -o, or delete it")
    if (partial / _RUN).exists() and not resume:
        raise ConfigError(f"{partial} holds an interrupted run: repeat the command with --resume, or delete it")
