"""How far an evaluation is and how long it will take still, on standard error: one bar for everything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeprec.runtime.evaluation_texts import Progress

__all__ = ["evaluation_bar"]

_STAGES = {
    "fp16": "FP16's replies",
    "forced": "layers, forced",
    "decode": "layers, decoding",
    "modes": "modes",
    "drafts": "drafts",
    "more drafts": "drafts, other rules",
}
_SPEED_OVER_S = 120.0  # stages differ in speed from what was guessed, so the time left follows the last minutes


@contextmanager
def evaluation_bar(*, is_quiet: bool) -> Iterator[Progress]:
    """Give a function that takes the stage at work and what is done of everything; no terminal, no bar."""
    if is_quiet or not sys.stderr.isatty():
        yield lambda _stage, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<20}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("left", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=_SPEED_OVER_S) as bar:
        task = bar.add_task("", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=_STAGES.get(stage, stage), completed=done, total=total)

        yield show
