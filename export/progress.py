"""What a long export tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Progress", "ProgressEvent", "silent"]


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """``done`` of ``total`` units of a stage; ``detail`` names the one at work."""

    stage: str
    done: int
    total: int
    detail: str = ""


Progress = Callable[[ProgressEvent], None]


def silent(_: ProgressEvent) -> None:
    """Tell nobody."""
