"""What crosses between host and device in a pass: token ids and positions in, three numbers a row out.

Logits stay on the device until somebody asks for them. On a GPU one copy goes each way, from and to pinned memory, and
the host waits once, when it reads the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from edgeprec.errors import EngineError
from edgeprec.runtime.engine import RowFacts, StepResult

__all__ = ["DeviceStep", "GpuIo", "HostIo", "PassIo", "checked", "row_facts"]


class PassIo(Protocol):
    """Inputs and outputs of passes."""

    tokens: torch.Tensor  # int32 [slots], on the device
    positions: torch.Tensor  # int32 [slots], on the device
    has_statistics: bool  # argmax, margin and entropy are computed on the device

    def put(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Bring a pass's inputs to the device."""
        ...

    def publish(self, statistics: torch.Tensor, rows: int) -> None:
        """Bring the first ``rows`` columns of int32 [3, max_rows] to the host."""
        ...

    def facts(self) -> tuple[RowFacts, ...]:
        """Wait for what was published and return it."""
        ...


class HostIo:
    """A CPU: nothing has to be moved, and the host computes statistics from the logits as with every CPU engine."""

    def __init__(self, slots: int) -> None:
        inputs = torch.zeros((2, slots), dtype=torch.int32)
        self.tokens, self.positions = inputs[0], inputs[1]
        self.has_statistics = False

    def put(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Write the inputs."""
        self.tokens[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.positions[: len(positions)] = torch.tensor(positions, dtype=torch.int32)

    def publish(self, statistics: torch.Tensor, rows: int) -> None:
        """Nothing is on its way."""

    def facts(self) -> tuple[RowFacts, ...]:
        """Nothing was published."""
        return ()


class GpuIo:
    """A GPU: pinned buffers and an event. Inputs of a pass may be overwritten only when it has read them."""

    def __init__(self, slots: int, max_rows: int, device: torch.device) -> None:
        self._host_inputs = torch.zeros((2, slots), dtype=torch.int32, pin_memory=True)
        self._inputs = torch.zeros((2, slots), dtype=torch.int32, device=device)
        self._host_statistics = torch.zeros((3, max_rows), dtype=torch.int32, pin_memory=True)
        self.tokens, self.positions = self._inputs[0], self._inputs[1]
        self.has_statistics = True
        make_event: Any = torch.cuda.Event
        self._is_done = make_event()
        self._is_done.record()
        self._rows = 0

    def put(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Copy the inputs to the device, after the pass before has ended."""
        self._is_done.synchronize()
        inputs = self._host_inputs.numpy()
        inputs[0, : len(tokens)] = tokens
        inputs[1, : len(positions)] = positions
        self._inputs.copy_(self._host_inputs, non_blocking=True)

    def publish(self, statistics: torch.Tensor, rows: int) -> None:
        """Begin to copy every row's numbers to the host."""
        self._host_statistics.copy_(statistics, non_blocking=True)
        self._is_done.record()
        self._rows = rows

    def facts(self) -> tuple[RowFacts, ...]:
        """Wait for the device and return the rows of the last pass."""
        self._is_done.synchronize()
        return row_facts(self._host_statistics.numpy()[:, : self._rows])


def row_facts(statistics: npt.NDArray[np.int32]) -> tuple[RowFacts, ...]:
    """Read int32 [3, T]: argmax, and margin and entropy as the bits of float32."""
    margins, entropies = (part.view(np.float32).tolist() for part in statistics[1:])
    return tuple(map(RowFacts, statistics[0].tolist(), entropies, margins))


class DeviceStep:
    """A pass whose logits lie on a device. ``is_current`` tells whether no other pass has run since."""

    def __init__(self, io: PassIo, logits: torch.Tensor, is_current: Callable[[], bool]) -> None:
        self._io = io
        self._logits = logits  # [T, V]
        self._is_current = is_current
        self._facts: tuple[RowFacts, ...] | None = None
        self._host: StepResult | None = None

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """Return the logits [T, V], fetched at the first call.

        Raises:
            EngineError: another pass has run since.
        """
        return self._fetched().logits

    def facts(self, row: int) -> RowFacts:
        """Return argmax, entropy and margin of one row; see the protocol ``Step``."""
        if not self._io.has_statistics:
            return self._fetched().facts(row)
        if self._facts is None:
            self._require_current()
            self._facts = self._io.facts()[: self._logits.shape[0]]
        return checked(self._facts[row], row, vocabulary=self._logits.shape[1])

    def first(self, rows: int) -> DeviceStep:
        """Return the same pass without the rows beyond: they filled it up and mean nothing."""
        return DeviceStep(self._io, self._logits[:rows], self._is_current)

    def narrowed(self, vocabulary: int) -> StepResult:
        """Return the logits of the first ``vocabulary`` ids alone."""
        return StepResult(self._fetched().logits[:, :vocabulary])

    def _fetched(self) -> StepResult:
        if self._host is None:
            self._require_current()
            self._host = StepResult(self._logits.cpu().numpy())
        return self._host

    def _require_current(self) -> None:
        if not self._is_current():
            raise EngineError("a pass was read after the next one had begun: read it before, or copy it")


def checked(facts: RowFacts, row: int, *, vocabulary: int) -> RowFacts:
    """Return the facts of a row of numbers. A row of NaN has no largest id, which the kernel writes as one too many.

    Raises:
        EngineError: the row holds NaN.
    """
    if facts.argmax >= vocabulary or not math.isfinite(facts.entropy_bits) or math.isnan(facts.margin):
        raise EngineError(
            f"row {row} of the logits holds NaN, expected numbers: the engine or the weights are broken, run edgeprec "
            "verify on the bundle"
        )
    return facts
