"""Write a safetensors file of known shapes tensor by tensor, in any order; places are known from the beginning."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.export.disk import allocate, write_at
from edgeprec.export.tensor_layout import TensorLayout
from edgeprec.tensor_spec import TensorPlacement, TensorSpec

__all__ = ["TensorFileWriter", "WrittenRange"]


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Bytes that were just written to a file."""

    offset_bytes: int
    data: memoryview


class TensorFileWriter:
    """Writes into a file of its final size. Opening an existing one keeps the values it holds.

    ``on_write`` is told of every range of values after it was written. Errors of the disk are OSError.
    """

    def __init__(
        self,
        path: Path,
        specs: Iterable[TensorSpec],
        *,
        on_write: Callable[[WrittenRange], None] | None = None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._layout = TensorLayout.plan(self._specs.values())
        self._on_write = on_write or (lambda _: None)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            self._prepare()
        except OSError:
            self.close()
            raise

    def _prepare(self) -> None:
        allocate(self._descriptor, size_bytes=self._layout.size_bytes)
        write_at(self._descriptor, memoryview(self._layout.header), offset_bytes=0)
        for place in self._layout.padding:
            write_at(self._descriptor, memoryview(bytes(place.length_bytes)), offset_bytes=place.offset_bytes)

    def __enter__(self) -> TensorFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Return what the file will hold, by name."""
        return MappingProxyType(self._specs)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return self._layout.size_bytes

    def placement(self, name: str) -> TensorPlacement:
        """Return where a tensor lies, from the beginning of the file."""
        return self._layout.placements[name]

    def write(self, name: str, values: npt.NDArray[Any]) -> None:
        """Write a whole tensor; its type and shape must be the ones announced."""
        spec = self._specs[name]
        assert values.shape == spec.shape, f"tensor {name} has shape {values.shape}, announced {spec.shape}"
        self._write(spec, values, offset_bytes=self.placement(name).offset_bytes)

    def write_rows(self, name: str, values: npt.NDArray[Any], *, first_row: int) -> None:
        """Write some rows (along the first axis) of a tensor that is too large to hold at once."""
        spec = self._specs[name]
        fits = values.shape[1:] == spec.shape[1:] and 0 <= first_row <= spec.shape[0] - len(values)
        assert fits, f"tensor {name}: rows {first_row}.. of shape {values.shape} leave {spec.shape}"
        row_bytes = spec.num_bytes // spec.shape[0]
        self._write(spec, values, offset_bytes=self.placement(name).offset_bytes + first_row * row_bytes)

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, spec: TensorSpec, values: npt.NDArray[Any], *, offset_bytes: int) -> None:
        assert values.dtype == spec.dtype.numpy, f"tensor {spec.name} is {values.dtype}, announced {spec.dtype}"
        data = np.ascontiguousarray(values).data.cast("B")
        write_at(self._descriptor, data, offset_bytes=offset_bytes)
        self._on_write(WrittenRange(offset_bytes, data))
