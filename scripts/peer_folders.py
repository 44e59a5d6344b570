"""The same models in the forms other programs load: Hugging Face folders, and onnxruntime-genai's INT4 of one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from decode_pair import open_drafter
from widened_checkpoint import is_written_from, write_widened

from edgeprec.errors import ConfigError, EngineError
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint

__all__ = ["GENAI_OPTIONS", "PeerFolders", "make_folders"]

GENAI_OPTIONS = ("int4_accuracy_level=4", "int4_block_size=32")  # 8-bit activations, as the bundle's INT4 graph has


@dataclass(frozen=True, slots=True)
class PeerFolders:
    """Where the models lie; None = there is none."""

    target: Path
    draft: Path | None
    genai: Path | None


def make_folders(
    bundle: Path, draft: Path | None, work: Path, *, genai_python: str | None, report: Callable[[str], object]
) -> PeerFolders:
    """Write what is missing in ``work``: the bundle's FP16 weights, the draft, and INT4 where there is a Python for it.

    Raises:
        ConfigError: the draft was made for another target, or ``work`` holds other models.
        EngineError: onnxruntime-genai's model builder failed; its last line stands in the message.
    """
    work.mkdir(parents=True, exist_ok=True)
    small = open_checkpoint(str(bundle))
    target = _written(small, work / "target", report)
    drafts = None if draft is None else _written(open_drafter(draft, small), work / "draft", report)
    genai = None if genai_python is None else work / "genai-int4"
    if genai_python is not None and genai is not None and not (genai / "genai_config.json").exists():
        report(f"building {genai}")
        _build(genai_python, target, genai, work)
    return PeerFolders(target, drafts, genai)


def _written(model: Checkpoint, folder: Path, report: Callable[[str], object]) -> Path:
    """Write a model where it is not there yet; another one in its place would be measured under the wrong name."""
    if not folder.exists():
        report(f"writing {folder}")
        return write_widened(model, None, folder, device=torch.device("cpu"), report=lambda line: None)
    if not is_written_from(folder, model):
        raise ConfigError(f"{folder} holds another model than {model.name}: choose another folder with --work")
    return folder


def _build(python: str, target: Path, output: Path, work: Path) -> None:
    """Run the builder that comes with the package, as its documentation says; it needs no network for a folder."""
    command = [python, "-m", "onnxruntime_genai.models.builder", "-m", str(target), "-o", str(output)]
    command += ["-p", "int4", "-e", "cpu", "-c", str(work / "genai-cache"), "--extra_options", *GENAI_OPTIONS]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        done = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
    except OSError as error:
        raise EngineError(f"cannot start {python}: {error.strerror}; give a Python that has the package") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise EngineError(f"onnxruntime-genai's builder failed: {lines[-1][:300] if lines else 'it wrote nothing'}")
