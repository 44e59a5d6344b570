"""A draft's linears in four bits: it was trained on an INT4 grid and runs in INT4, so nothing else need be stored.

A linear ``X.weight`` [out, in] whose values lie on a grid of signed FP16 scales, one to ``group_size`` inputs, is two
tensors:

    X.weight.int4      uint8 [out, in / 2]    two neighbours along the inputs in a byte, the first in the low four bits,
                                              each a level -8..7 in two's complement
    X.weight.scales    float16 [out, in / group_size]

Anything else stays FP16 under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from edgeprec.architecture import LINEARS
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint
from edgeprec.export.quantize_grid import GridKind, range_grid, round_to_levels
from edgeprec.export.quantizer import QuantizerSettings, quantize
from edgeprec.export.tensor_source import FloatArray, TensorSource
from edgeprec.kernels.reference import dequantize

__all__ = ["Int4GridSource", "lies_on_grid", "pack_on_grid"]

_LEVELS, _SCALES = ".int4", ".scales"
_SCALE_ERROR = 1e-3  # half of a scale's last bit, in FP16


def pack_on_grid(values: npt.NDArray[np.float32], *, group_size: int) -> Mapping[str, npt.NDArray[Any]] | None:
    """Return a linear [out, in] as levels and scales, by the ends of their names; None = it does not lie on a grid.

    What is read back is exactly ``values`` in FP16.
    """
    outputs, inputs = values.shape
    if inputs % group_size or group_size % 2:
        return None
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, group_size, 1)  # [B, G, 1]
    grid = range_grid(blocks, GridKind.SIGNED)
    levels = round_to_levels(blocks, grid)
    scales = grid.scales.reshape(outputs, -1).astype(np.float16)
    packed = _pack(levels.reshape(outputs, inputs).astype(np.int8))
    if not np.array_equal(_unpack(packed, scales), values.astype(np.float16)):
        return None
    return {_LEVELS: packed, _SCALES: scales}


def lies_on_grid(checkpoint: Checkpoint, settings: QuantizerSettings) -> bool:
    """Whether rounding to nearest in this form of INT4 gives every linear back, but for the last bit of a scale."""
    rounding = replace(settings, method="rtn")
    return all(
        _error(checkpoint.linear(layer, name), rounding) <= _SCALE_ERROR
        for layer in range(checkpoint.config.num_layers)
        for name in LINEARS
    )


def _error(weight: npt.NDArray[Any], settings: QuantizerSettings) -> float:
    """Return the norm of what rounding a linear [K, N] changes, over its own."""
    values = weight.astype(np.float32)
    change = dequantize(quantize(values.astype(np.float16), settings, None).weight) - values
    size = float(np.linalg.norm(values))
    return float(np.linalg.norm(change)) / size if size else 0.0


class Int4GridSource:
    """The tensors of ``own``, with every linear stored in four bits read back as FP16 under its own name."""

    def __init__(self, own: TensorSource, shards: tuple[Path, ...]) -> None:
        self._own = own
        self._packed = {name.removesuffix(_LEVELS) for name in own.names if name.endswith(_LEVELS)}
        self._shards = shards

    @property
    def origin(self) -> str:
        """Return the draft's folder."""
        return self._own.origin

    @property
    def names(self) -> Set[str]:
        """Return the names of all tensors as a checkpoint has them."""
        stored = {name + end for name in self._packed for end in (_LEVELS, _SCALES)}
        return (self._own.names - stored) | self._packed

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            ConfigError: a linear's levels are no matrix.
        """
        if name not in self._packed:
            return self._own.shape(name)
        stored = self._own.shape(name + _LEVELS)
        if len(stored) != 2:
            raise ConfigError(f"{self.origin}: {name}{_LEVELS} is {list(stored)}, expected a matrix: distill it again")
        return (stored[0], 2 * stored[1])

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start`` to ``stop``.

        Raises:
            ConfigError: a linear's levels and scales do not belong together.
        """
        if name not in self._packed:
            return self._own.read_rows(name, start, stop)
        levels, scales = (self._read(name + end, start, stop) for end in (_LEVELS, _SCALES))
        fits = levels.dtype == np.uint8 and scales.dtype == np.float16 and levels.ndim == scales.ndim == 2
        if not fits or not scales.shape[1] or (2 * levels.shape[1]) % scales.shape[1]:
            raise ConfigError(
                f"{self.origin}: {name}{_LEVELS} is {levels.dtype} {list(levels.shape)} and {name}{_SCALES} "
                f"{scales.dtype} {list(scales.shape)}, expected uint8 and float16 of one linear: distill it again"
            )
        return _unpack(levels, scales)

    def _read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        for path in self._shards:
            try:
                with safe_open(path, framework="numpy") as file:
                    if name in file.keys():  # noqa: SIM118, the handle is no mapping
                        rows: npt.NDArray[Any] = file.get_slice(name)[start:stop]
                        return rows
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{path} cannot be read ({error}): distill the draft again") from error
        raise ConfigError(f"{self.origin} has no tensor {name}: distill the draft again")


def _pack(levels: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Pack levels [out, in] of -8..7 into bytes [out, in / 2]."""
    nibbles = levels.view(np.uint8) & 15
    return np.ascontiguousarray(nibbles[:, 0::2] | (nibbles[:, 1::2] << 4))


def _unpack(packed: npt.NDArray[np.uint8], scales: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """Return levels * scales [out, in] in FP16."""
    levels = np.stack((packed << 4, packed), axis=-1).view(np.int8) >> 4  # the shift extends the sign
    grouped = levels.reshape(*scales.shape, -1).astype(np.float32) * scales.astype(np.float32)[:, :, None]
    with np.errstate(over="ignore"):
        values: npt.NDArray[np.float16] = grouped.reshape(len(packed), -1).astype(np.float16)
    return values
