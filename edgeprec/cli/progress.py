"""Progress of long work on standard error: bars for a person, nothing for a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeprec.export.progress import ProgressEvent

__all__ = ["progress_bars", "working"]


@contextmanager
def progress_bars(*, is_quiet: bool) -> Iterator[Callable[[ProgressEvent], None]]:
    """Give a function that takes events and shows one bar for each stage."""
    if is_quiet or not sys.stderr.isatty():
        yield lambda _event: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", style="dim", markup=False),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def show(event: ProgressEvent) -> None:
            if event.stage not in tasks:
                tasks[event.stage] = progress.add_task(event.stage, total=event.total, detail="")
            progress.update(tasks[event.stage], completed=event.done, total=event.total, detail=event.detail)

        yield show


@contextmanager
def working(what: str, *, is_quiet: bool) -> Iterator[None]:
    """Show that something of unknown length goes on."""
    if is_quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(what):
        yield
