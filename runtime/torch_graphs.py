"""CUDA graphs of passes: captured at the second use of a kind of pass, replayed from then on, the oldest dropped.

A pass reads and writes static buffers only, so a graph serves every text. The first run of a kind is an ordinary one:
it compiles what is missing, which must not happen while capturing. When a capture fails, all passes run kernel by
kernel from then on, and ``note`` says so.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["CudaCapture", "GraphCache", "GraphReport"]

logger = logging.getLogger(__name__)

Body = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """What graphs cost so far: a kind of pass, such as another plan, is captured once, which takes ``mean_ms``."""

    captured: int
    dropped: int
    mean_ms: float | None
    largest_ms: float | None


@dataclass(slots=True)
class GraphCache:
    """Runs pass bodies by key. ``capture`` turns a body into something with ``replay``; ``limit`` bounds how many."""

    capture: Callable[[Body], Any] | None
    limit: int = 96
    clock: Callable[[], int] = time.monotonic_ns
    note: str | None = None
    first_passes: int = 0  # that compiled or were captured, and took longer for it
    _graphs: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    _costs_ns: list[int] = field(default_factory=list)
    _seen: set[Hashable] = field(default_factory=set)
    _dropped: int = 0

    def run(self, key: Hashable, body: Body) -> None:
        """Run a pass of this kind: replay it, or run its body and see to it that the next ones are replayed."""
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            graph.replay()
            return
        self.first_passes += not self.is_settled(key)
        if self.capture is None or key not in self._seen:
            self._seen.add(key)
            body()
        elif self._try_capture(key, body):
            self._graphs[key].replay()
        else:
            body()

    def is_settled(self, key: Hashable) -> bool:
        """Whether the next pass of this kind is an ordinary one: replayed, or run once before where graphs are off."""
        return key in self._graphs or (self.capture is None and key in self._seen)

    def clear(self) -> None:
        """Drop every graph."""
        self._graphs.clear()
        self._seen.clear()

    @property
    def report(self) -> GraphReport:
        """Return what was captured and what it took."""
        costs_ms = [cost * 1e-6 for cost in self._costs_ns]
        return GraphReport(
            captured=len(costs_ms),
            dropped=self._dropped,
            mean_ms=sum(costs_ms) / len(costs_ms) if costs_ms else None,
            largest_ms=max(costs_ms, default=None),
        )

    def _try_capture(self, key: Hashable, body: Body) -> bool:
        assert self.capture is not None
        start_ns = self.clock()
        try:
            self._graphs[key] = self.capture(body)
        except RuntimeError as error:
            self.capture = None
            self._graphs.clear()
            reason = str(error).strip().partition("\n")[0]
            self.note = f"CUDA graphs are off, every kernel is launched by itself: a capture failed: {reason}"
            logger.warning(self.note)
            return False
        self._costs_ns.append(self.clock() - start_ns)
        if len(self._graphs) > self.limit:
            self._graphs.popitem(last=False)
            self._dropped += 1
        return True


class CudaCapture:
    """Captures bodies into graphs that share one pool: none keeps anything of its own between replays."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, body: Body) -> torch.cuda.CUDAGraph:
        """Return the graph of ``body``; RuntimeError where it cannot be captured."""
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            body()
        return graph
