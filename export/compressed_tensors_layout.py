"""INT4 as the format compressed-tensors stores it, ``pack-quantized``: a linear [N, K] = [out, in] in groups along K.

    weight_packed       int32 [N, K / 8]    eight neighbours along K in a word, the first in the lowest four bits
    weight_scale        float16 [N, K / G]
    weight_zero_point   int32 [N / 8, K / G]    with zero points only; eight neighbours along N in a word
    weight_shape        int64 [2]    N, K

w = (q - z) scale, with q and z in -8..7 and z = 0 where there is none. Nibbles hold q + 8 and z + 8; levels
and zero points of 0..15, as ``edgeprec.kernels.layout`` has them, are those nibbles already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import LINEARS, ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.quantizer import QuantizerSettings
from edgeprec.export.tensor_roles import LINEAR_PARTS, layer_shapes
from edgeprec.kernels.layout import GROUP_SIZES, Int4Weight, unpack_nibbles

__all__ = ["pack_columns", "require_packable"]

_NIBBLES_PER_WORD = 8
_OFFSET = 8


def pack_columns(weight: Int4Weight, columns: slice) -> dict[str, npt.NDArray[Any]]:
    """Return some outputs of ``weight`` as the format's tensors, by the end of their names.

    K must be a multiple of the group, and with zero points the number of outputs one of 8: ``require_packable``.
    """
    is_symmetric = weight.zeros is None
    levels = unpack_nibbles(weight.packed, n=weight.n, signed=is_symmetric)[:, columns]  # [K, N']
    tensors: dict[str, npt.NDArray[Any]] = {
        "weight_packed": _pack_rows(levels.T + np.int8(_OFFSET if is_symmetric else 0)),
        "weight_scale": np.ascontiguousarray(weight.scales[:, columns].T),
        "weight_shape": np.array(levels.T.shape, np.int64),
    }
    if weight.zeros is not None:
        zeros = unpack_nibbles(weight.zeros, n=weight.n, signed=False)[:, columns]  # [K / G, N']
        tensors["weight_zero_point"] = np.ascontiguousarray(_pack_rows(zeros).T)
    return tensors


def require_packable(config: ModelConfig, settings: QuantizerSettings) -> None:
    """Refuse a model whose linears the format, or those who serve it, cannot hold in groups of this size.

    Raises:
        ConfigError: names the first such linear.
    """
    for linear in LINEARS:
        k = config.linear_shape(linear)[0]
        if k % settings.group_size:
            raise ConfigError(
                f"linear {linear} has {k} inputs, which is no multiple of the group of {settings.group_size}, and "
                f"compressed-tensors has no shorter last group: {_advice(config)}"
            )
    if settings.is_symmetric:
        return
    for role in (role for parts in LINEAR_PARTS.values() for role in parts):
        n = layer_shapes(config)[role][0]
        if n % _NIBBLES_PER_WORD:
            raise ConfigError(
                f"linear {role} has {n} outputs, which is no multiple of {_NIBBLES_PER_WORD}, and compressed-tensors "
                "packs as many zero points into a word: use --symmetric"
            )


def _pack_rows(nibbles: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    """Pack [R, C] values of 0..15 into int32 [R, C / 8], the first in the lowest bits."""
    values = np.ascontiguousarray(nibbles).view(np.uint8)
    pairs = np.ascontiguousarray(values[:, 0::2] | (values[:, 1::2] << 4))
    return pairs.view("<i4").astype(np.int32, copy=False)


def _advice(config: ModelConfig) -> str:
    inputs = [config.linear_shape(linear)[0] for linear in LINEARS]
    fitting = [size for size in GROUP_SIZES if not any(k % size for k in inputs)]
    if fitting:
        return f"use --group-size {fitting[-1]}"
    return "leave --format out, a bundle takes any width"
