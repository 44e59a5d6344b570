"""Read safetensors files row by row: bf16, fp16 and fp32, one file or many shards.

Rows are read, not mapped: mapped pages would count as resident memory until the kernel takes them back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.errors import ConfigError
from edgeprec.export.tensor_source import FloatArray

__all__ = ["SafetensorsSource", "StoredTensor", "read_header"]

_STORED_TYPES: dict[str, npt.DTypeLike] = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies. ``offset_bytes`` counts from the start of the file."""

    path: Path
    dtype: str  # the format's own code: BF16, F16, F32, ...
    shape: tuple[int, ...]
    offset_bytes: int


class SafetensorsSource:
    """The tensors of a checkpoint's safetensors files.

    Raises:
        ConfigError: a file is not safetensors, is truncated, or lacks a tensor that the index places in it.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], *, origin: str) -> None:
        self._tensors = tensors
        self._origin = origin

    @classmethod
    def open(cls, shards: Collection[Path], *, origin: str) -> SafetensorsSource:
        """Read the headers of ``shards``."""
        tensors: dict[str, StoredTensor] = {}
        for path in shards:
            tensors |= read_header(path)
        return cls(tensors, origin=origin)

    @property
    def origin(self) -> str:
        """Return the checkpoint's folder."""
        return self._origin

    @property
    def names(self) -> Set[str]:
        """Return the names of all tensors."""
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._tensors[name].shape

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start`` to ``stop``; bf16 becomes float32 without loss."""
        tensor = self._tensors[name]
        if tensor.dtype not in _STORED_TYPES:
            supported = ", ".join(_STORED_TYPES)
            raise ConfigError(
                f"tensor {name} is stored as {tensor.dtype}, expected one of {supported}: use an unquantized checkpoint"
            )
        stored = np.dtype(_STORED_TYPES[tensor.dtype])
        row_values = math.prod(tensor.shape[1:])
        raw = np.empty((stop - start) * row_values, stored)
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset_bytes + start * row_values * stored.itemsize)
            got = file.readinto(raw.data.cast("B"))
        if got != raw.nbytes:
            raise ConfigError(f"{tensor.path} ended inside tensor {name}: fetch this file again")
        return _widen(raw, tensor.dtype).reshape(stop - start, *tensor.shape[1:])


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name, after checking that the file holds all their bytes.

    Raises:
        ConfigError: the file is missing, is not safetensors, or is shorter than its header says.
    """
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            text = file.read(min(header_bytes, _MAX_HEADER_BYTES))
    except OSError as error:
        raise ConfigError(f"weight file {path} cannot be read: {error.strerror}") from error
    data_bytes = _LENGTH_BYTES + header_bytes
    if not text.startswith(b"{"):
        raise ConfigError(f"{path} is not a safetensors file: its header does not begin with '{{'")
    if size_bytes < data_bytes:
        raise ConfigError(f"{path} is truncated: it has {size_bytes} bytes, its header alone needs {data_bytes}")
    return _parse_header(path, text, data_bytes=data_bytes, size_bytes=size_bytes)


def _parse_header(path: Path, text: bytes, *, data_bytes: int, size_bytes: int) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    needed_bytes = data_bytes
    try:
        for name, entry in json.loads(text).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            tensors[name] = _stored(path, name, entry, offset_bytes=data_bytes + begin, length_bytes=end - begin)
            needed_bytes = max(needed_bytes, data_bytes + end)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} has a damaged safetensors header ({error}): fetch this file again") from error
    if size_bytes < needed_bytes:
        raise ConfigError(
            f"{path} is truncated: it has {size_bytes} bytes, expected {needed_bytes}: fetch this file again"
        )
    return tensors


def _stored(path: Path, name: str, entry: dict[str, Any], *, offset_bytes: int, length_bytes: int) -> StoredTensor:
    shape = tuple(int(size) for size in entry["shape"])
    dtype = str(entry["dtype"])
    if dtype in _STORED_TYPES:
        expected_bytes = math.prod(shape) * np.dtype(_STORED_TYPES[dtype]).itemsize
        if length_bytes != expected_bytes or offset_bytes < 0:
            raise ValueError(f"tensor {name} takes {length_bytes} bytes, its shape needs {expected_bytes}")
    return StoredTensor(path=path, dtype=dtype, shape=shape, offset_bytes=offset_bytes)


def _widen(raw: npt.NDArray[Any], dtype: str) -> FloatArray:
    if dtype == "BF16":
        bits = raw.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    native: FloatArray = raw.astype(raw.dtype.newbyteorder("="), copy=False)
    return native
