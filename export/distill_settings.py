"""How a draft is distilled: every value has its default here, and what suits a GPU or a CPU where none is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from edgeprec.errors import ConfigError

__all__ = ["DistillDevice", "DistillSettings"]

DistillDevice = Literal["auto", "cpu", "cuda"]
_COUNTS = (
    "layers",
    "steps",
    "sample_tokens",
    "sample_rows",
    "sequence_tokens",
    "rows_per_step",
    "group_size",
    "draft_length",
    "probe_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings:
    """How a draft is made. ``text`` None = the text that ships with EdgePrec.

    ``minutes`` is the time for everything, of which drawing text takes at most 30 %. With ``steps`` the run counts
    instead: all of ``sample_tokens``, then so many steps, however long they take. None elsewhere = what suits the
    device. ``draft_length`` is the K that acceptance is measured at.

    Raises:
        ConfigError: a value is out of range.
    """

    layers: int = 4
    minutes: float = 10.0
    steps: int | None = None
    sample_tokens: int | None = None
    sample_rows: int | None = None
    sequence_tokens: int = 384
    rows_per_step: int | None = None
    learning_rate: float = 2e-3
    argmax_weight: float = 0.3
    group_size: int = 32
    draft_length: int = 4
    probe_tokens: int = 96
    text: Path | None = None
    device: DistillDevice = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"distill: {name} is {value}, expected 1 or more")
        for name in ("minutes", "learning_rate"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"distill: {name} is {getattr(self, name)}, expected a number above 0")
        if self.sequence_tokens < 8:
            raise ConfigError(f"distill: sequence_tokens is {self.sequence_tokens}, expected 8 or more")
        if not 0.0 <= self.argmax_weight <= 1.0:
            raise ConfigError(f"distill: argmax_weight is {self.argmax_weight}, expected 0 to 1")
        if self.seed < 0:
            raise ConfigError(f"distill: seed is {self.seed}, expected 0 or more")
        if self.device not in get_args(DistillDevice):
            expected = ", ".join(get_args(DistillDevice))
            raise ConfigError(f"distill: device is {self.device!r}, expected one of {expected}")
