"""Read the tensors of a GGUF file as floats: dequantized, and with Llama's query and key rows put back in order."""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from edgeprec.errors import ConfigError
from edgeprec.export.gguf_file import GgufFile, GgufTensorInfo
from edgeprec.export.tensor_source import FloatArray

__all__ = ["GgufTensors"]

_PERMUTED = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")


class GgufTensors:
    """The tensors of one file.

    ``rotary_pairs_head_dim`` is the head width where query and key rows are stored with the two halves of each rotary
    pair side by side, as converters do for the Llama architecture; None where rows keep the checkpoint's order.

    Raises:
        ConfigError: a tensor reaches past the end of the file, or is of a type that cannot be dequantized.
    """

    def __init__(self, file: GgufFile, *, rotary_pairs_head_dim: int | None) -> None:
        self._file = file
        self._pairs_head_dim = rotary_pairs_head_dim
        for info in file.tensors.values():
            self._check_extent(info)
        for info in {info.type_id: info for info in file.tensors.values()}.values():
            _check_type(info)

    @property
    def origin(self) -> str:
        """Return the file's path."""
        return str(self._file.path)

    @property
    def names(self) -> Set[str]:
        """Return the names of all tensors."""
        return self._file.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, slowest axis first."""
        return self._file.tensors[name].shape

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start`` to ``stop``: F16 as float16, every other type as float32.

        Query and key rows of the Llama architecture are read in whole heads.
        """
        info = self._file.tensors[name]
        kind = _kind(info)
        if len(info.shape) > 1:
            values = self._read(info, kind, start * _row_bytes(info, kind), (stop - start, _row_bytes(info, kind)))
        else:  # a vector is one row of blocks
            values = self._read(info, kind, 0, (1, _row_bytes(info, kind)))[0, start:stop]
        head_dim = self._pairs_head_dim
        return _unpair(values, head_dim) if head_dim is not None and name.endswith(_PERMUTED) else values

    def _read(
        self, info: GgufTensorInfo, kind: GGMLQuantizationType, skip_bytes: int, shape: tuple[int, int]
    ) -> FloatArray:
        raw = np.empty(shape, np.uint8)
        with self._file.path.open("rb") as file:
            file.seek(info.offset_bytes + skip_bytes)
            if file.readinto(raw.data.cast("B")) != raw.nbytes:
                raise ConfigError(f"{self.origin} ended inside tensor {info.name}: fetch this file again")
        if kind == GGMLQuantizationType.F16:
            return raw.view(np.float16)
        values: npt.NDArray[np.float32] = dequantize(raw, kind)
        return values

    def _check_extent(self, info: GgufTensorInfo) -> None:
        kind = _kind(info)
        rows = math.prod(info.shape[:-1])
        end = info.offset_bytes + rows * _row_bytes(info, kind)
        if end > self._file.size_bytes:
            raise ConfigError(
                f"{self.origin} is truncated: it has {self._file.size_bytes} bytes, "
                f"tensor {info.name} ends at {end}: fetch this file again"
            )


def _kind(info: GgufTensorInfo) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(info.type_id)
    except ValueError as error:
        raise ConfigError(
            f"tensor {info.name} has the GGML type {info.type_id}, which the package gguf does not know: upgrade it"
        ) from error


def _check_type(info: GgufTensorInfo) -> None:
    """Try the package on one block: it has no list of the types it can undo."""
    kind = _kind(info)
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError as error:
        raise ConfigError(
            f"tensor {info.name} is {kind.name}, which the package gguf cannot dequantize: "
            "use a file of another quantization"
        ) from error


def _row_bytes(info: GgufTensorInfo, kind: GGMLQuantizationType) -> int:
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    if not info.shape or info.shape[-1] % block_values:
        raise ConfigError(f"tensor {info.name} has shape {list(info.shape)}, expected rows of {block_values} values")
    return info.shape[-1] // block_values * block_bytes


def _unpair(values: FloatArray, head_dim: int) -> FloatArray:
    """Undo the converter's order of rows (0, d/2, 1, d/2 + 1, ...) within each head: [heads d, ...]."""
    heads = values.reshape(-1, head_dim // 2, 2, *values.shape[1:])
    return heads.swapaxes(1, 2).reshape(values.shape)
