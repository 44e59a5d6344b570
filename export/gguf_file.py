"""Parse the container of a GGUF file: its metadata and where each tensor lies. Versions 2 and 3, little endian.

Layout: magic, version u32, tensor count u64, metadata count u64, then metadata (key, type, value), then tensor infos
(name, dimensions fastest first, type, offset), then data aligned to ``general.alignment``. A string is u64 + UTF-8.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeprec.errors import ConfigError

__all__ = ["GgufFile", "GgufTensorInfo", "read_gguf_file"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensorInfo:
    """One tensor: ``shape`` slowest axis first, as numpy has it; ``offset_bytes`` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """The parsed head of a GGUF file. Arrays in ``metadata`` are lists."""

    path: Path
    size_bytes: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensorInfo]


def read_gguf_file(path: Path) -> GgufFile:
    """Read metadata and tensor infos.

    Raises:
        ConfigError: the file cannot be read, is no GGUF file of a known version, or ends before its head does.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _HeadReader(path, mapped).read()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, _PastEndError) as error:
        raise ConfigError(f"{path} is truncated: it ends inside its metadata: fetch this file again") from error
    except ValueError as error:
        raise ConfigError(f"{path} is a damaged GGUF file ({error}): fetch this file again") from error


class _PastEndError(Exception):
    """A length points past the end of the file."""


class _HeadReader:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self.mapped = mapped
        self.size_bytes = len(mapped)
        self.at = len(_MAGIC)

    def read(self) -> GgufFile:
        self._check_magic()
        tensor_count, metadata_count = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        infos = [self._info() for _ in range(tensor_count)]
        return GgufFile(
            path=self.path, size_bytes=self.size_bytes, metadata=metadata, tensors=self._placed(infos, metadata)
        )

    def _check_magic(self) -> None:
        magic = self.mapped[: len(_MAGIC)]
        if magic != _MAGIC:
            raise ConfigError(f"{self.path} is not a GGUF file: it begins with {magic!r}, expected {_MAGIC!r}")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ConfigError(
                f"{self.path} is GGUF version {version}, expected one of {_VERSIONS}, little endian: convert it anew"
            )

    def _placed(self, infos: list[GgufTensorInfo], metadata: dict[str, Any]) -> dict[str, GgufTensorInfo]:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"alignment {alignment!r}")
        data_bytes = -(-self.at // alignment) * alignment
        placed = {
            info.name: GgufTensorInfo(
                name=info.name, shape=info.shape, type_id=info.type_id, offset_bytes=data_bytes + info.offset_bytes
            )
            for info in infos
        }
        if len(placed) != len(infos):
            raise ValueError("two tensors of one name")
        return placed

    def _info(self) -> GgufTensorInfo:
        name, dimensions = self._string(), self._scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))[::-1]
        return GgufTensorInfo(name=name, shape=shape, type_id=self._scalar("I"), offset_bytes=self._scalar("Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"array of type {kind}")
        dtype = np.dtype("<" + _SCALARS[kind])
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.mapped, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        return self._take(self._scalar("Q")).decode("utf-8")

    def _take(self, length_bytes: int) -> bytes:
        end = self.at + length_bytes
        if end > self.size_bytes:
            raise _PastEndError
        data = self.mapped[self.at : end]
        self.at = end
        return data
