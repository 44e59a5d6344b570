"""What ``edgeprec eval`` measures and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edgeprec.config import DraftingConfig
from edgeprec.errors import ConfigError

__all__ = ["EvaluationSettings", "Table"]


class Table(StrEnum):
    """The parts of an evaluation, in the order in which they are measured."""

    LAYERS = "layers"
    MODES = "modes"
    DRAFTS = "drafts"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """How much is measured. The defaults take under ten minutes for a model of 135M weights on two CPU cores."""

    prompts_per_kind: int = 3
    reply_tokens: int = 48
    draft_prompts_per_kind: int = 2
    draft_lengths: tuple[int, ...] = (1, 2, 4, 6)
    epsilon: float = DraftingConfig().epsilon
    tables: tuple[Table, ...] = tuple(Table)

    def __post_init__(self) -> None:
        for name in ("prompts_per_kind", "reply_tokens", "draft_prompts_per_kind"):
            if getattr(self, name) < 1:
                raise ConfigError(f"evaluation: {name} is {getattr(self, name)}, expected 1 or more")
        if not self.draft_lengths or min(self.draft_lengths) < 1:
            raise ConfigError(f"evaluation: draft_lengths are {self.draft_lengths}, expected one or more, each above 0")

    @classmethod
    def full(cls) -> EvaluationSettings:
        """Return the settings of ``--full``: all short prompts, longer replies, every draft length."""
        return cls(prompts_per_kind=7, reply_tokens=128, draft_prompts_per_kind=7, draft_lengths=tuple(range(1, 9)))
