"""The state of a training run on disk, so that it goes on after a kill as if nothing had happened."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from edgeprec.errors import ConfigError
from edgeprec.export.disk import disk_error, write_file

__all__ = ["TrainingState", "load_state", "save_state"]


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """Everything the next step depends on, and what was measured so far. ``best_`` is by acceptance."""

    step: int
    elapsed_s: float
    weights: dict[str, Tensor]
    optimizers: list[dict[str, Any]]
    best_weights: dict[str, Tensor]
    best_acceptance: float = -1.0
    best_step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


def save_state(path: Path, state: TrainingState) -> None:
    """Write the state at once: it is whole, or still the one before.

    Raises:
        ConfigError, EdgePrecError: the folder cannot be written, or the disk is full.
    """
    buffer = io.BytesIO()
    values = {name: getattr(state, name) for name in TrainingState.__slots__}
    torch.save(values | {"curve": json.dumps(state.curve)}, buffer)
    try:
        write_file(path, buffer.getvalue(), scratch=path.with_suffix(".part"))
    except OSError as error:
        raise disk_error(error, path.parent, needed_bytes=buffer.tell()) from error


def load_state(path: Path, *, device: torch.device) -> TrainingState | None:
    """Read the state, None where there is none.

    Raises:
        ConfigError: it is damaged.
    """
    if not path.exists():
        return None
    try:
        values = torch.load(path, map_location=device, weights_only=True)
        return TrainingState(**values | {"curve": json.loads(values["curve"])})
    except (RuntimeError, OSError, EOFError, KeyError, TypeError, ValueError, UnpicklingError) as error:
        raise ConfigError(f"{path} is damaged ({error}): delete {path.parent} and begin again") from error
