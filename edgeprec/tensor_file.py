"""Read a safetensors file through a memory map: views of tensors, and where each one lies.

The header is not trusted: its length, every type, shape and offset are checked, and the tensors must cover the data
without gap or overlap, as the safetensors format demands. Padding between tensors is a tensor named ``_pad.<n>``.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.errors import BundleError
from edgeprec.strict_json import Fields, parse_json
from edgeprec.tensor_spec import TensorPlacement, TensorSpec, TensorType

__all__ = ["HEADER_LIMIT_BYTES", "PAD_PREFIX", "TensorFile"]

HEADER_LIMIT_BYTES = 100_000_000  # the safetensors package's own limit
PAD_PREFIX = "_pad."
_DAMAGED = "the file is truncated or damaged: export it again or run edgeprec verify"


class TensorFile:
    """The tensors of one file. Views stay valid after ``close``: the map lives as long as the last of them.

    Not copied: a view reads from the page cache. Views are read-only.
    """

    def __init__(self, data: memoryview, *, where: str) -> None:
        self._data: memoryview | None = data
        self._where = where
        self._specs, self._placements = _parse_header(data, where)

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        """Map a file and check its header.

        Raises:
            BundleError: the file cannot be read, or its header is not that of a whole safetensors file.
        """
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise BundleError(f"{path} cannot be read as a tensor file: {error}") from error
        return cls(memoryview(mapped), where=str(path))

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Return every tensor by name, in file order, padding left out."""
        return MappingProxyType(self._specs)

    def placement(self, name: str) -> TensorPlacement:
        """Return where a tensor lies, from the beginning of the file."""
        self._spec(name)
        return self._placements[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a read-only view of a tensor in its stored type and shape.

        Raises:
            BundleError: there is no such tensor, or the file was closed.
        """
        spec, place = self._spec(name), self._placements.get(name)
        if self._data is None or place is None:
            raise BundleError(f"{self._where} was closed, tensor {name!r} cannot be read")
        flat = np.frombuffer(self._data, spec.dtype.numpy, count=spec.num_elements, offset=place.offset_bytes)
        return flat.reshape(spec.shape)

    def require(self, expected: Iterable[TensorSpec]) -> None:
        """Check that exactly the expected tensors are here.

        Raises:
            BundleError: a tensor is missing, unexpected or of another type or shape.
        """
        wanted = {spec.name: spec for spec in expected}
        for name, spec in wanted.items():
            found = self._spec(name)
            if found != spec:
                raise BundleError(
                    f"{self._where}: tensor {name!r} is {found.dtype} {list(found.shape)}, expected "
                    f"{spec.dtype} {list(spec.shape)}: the file belongs to another model"
                )
        extra = sorted(set(self._specs) - set(wanted))
        if extra:
            raise BundleError(f"{self._where} holds tensors that do not belong to this model: {', '.join(extra[:5])}")

    def close(self) -> None:
        """Let go of the file; calling it twice is harmless."""
        self._data = None

    def _spec(self, name: str) -> TensorSpec:
        if name not in self._specs:
            raise BundleError(f"{self._where} has no tensor {name!r}: the file is damaged or of another model")
        return self._specs[name]


def _parse_header(data: memoryview, where: str) -> tuple[dict[str, TensorSpec], dict[str, TensorPlacement]]:
    start = _data_start(data, where)
    header = parse_json(bytes(data[8:start]), where=f"{where}: header", error=BundleError)
    if not isinstance(header, dict):
        raise BundleError(f"{where}: the header is no JSON object: {_DAMAGED}")
    header.pop("__metadata__", None)
    entries = sorted(
        (_parse_entry(name, entry, start, where) for name, entry in header.items()),
        key=lambda entry: (entry[1].offset_bytes, entry[1].length_bytes),
    )
    _check_cover([(spec.name, place) for spec, place in entries], start, len(data), where)
    named = [(spec, place) for spec, place in entries if not spec.name.startswith(PAD_PREFIX)]
    return {spec.name: spec for spec, _ in named}, {spec.name: place for spec, place in named}


def _data_start(data: memoryview, where: str) -> int:
    """Return the first byte after the header."""
    if len(data) < 8:
        raise BundleError(f"{where} has {len(data)} bytes, expected at least 8: {_DAMAGED}")
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_LIMIT_BYTES:
        raise BundleError(f"{where}: the header claims {length} bytes, expected at most {HEADER_LIMIT_BYTES}")
    if 8 + length > len(data):
        raise BundleError(f"{where} ends at byte {len(data)}, inside its header of {length} bytes: {_DAMAGED}")
    return 8 + length


def _parse_entry(name: str, entry: Any, start: int, where: str) -> tuple[TensorSpec, TensorPlacement]:
    place = f"{where}: tensor {name!r}"
    fields = Fields(entry, where=place, error=BundleError)
    dtype, shape, offsets = fields.text("dtype"), fields.items("shape"), fields.items("data_offsets")
    fields.end()
    if dtype not in TensorType.__members__:
        raise BundleError(f"{place} is of type {dtype[:40]!r}, expected one of {', '.join(TensorType)}")
    is_shape = len(shape) <= 4 and all(type(size) is int and size > 0 for size in shape)
    if not is_shape or len(offsets) != 2 or not all(type(offset) is int and offset >= 0 for offset in offsets):
        raise BundleError(f"{place} has shape {str(shape)[:60]} at {str(offsets)[:60]}: {_DAMAGED}")
    spec = TensorSpec(name, TensorType(dtype), tuple(shape))
    begin, end = offsets
    if end - begin != spec.num_bytes:
        raise BundleError(f"{place} spans {end - begin} bytes, its shape needs {spec.num_bytes}: {_DAMAGED}")
    return spec, TensorPlacement(start + begin, end - begin)


def _check_cover(places: Iterable[tuple[str, TensorPlacement]], start: int, size: int, where: str) -> None:
    """Refuse a gap, an overlap or an end that is not the file's."""
    position = start
    for name, place in places:
        if place.offset_bytes != position:
            raise BundleError(
                f"{where}: tensor {name!r} begins at byte {place.offset_bytes}, expected {position}: {_DAMAGED}"
            )
        position += place.length_bytes
    if position != size:
        raise BundleError(f"{where} has {size} bytes, its header describes {position}: {_DAMAGED}")
