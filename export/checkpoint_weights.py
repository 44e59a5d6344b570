"""Give the merged [K, N] weights of a model out of the [out, in] tensors of a file, one at a time.

A call holds its result and one part of it. The embedding and the head are converted in blocks of rows, so that a
vocabulary of 128,000 never stands in memory as float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.tensor_roles import LINEAR_PARTS, NORM_ROLES, QKV_BIASES, layer_shapes, model_shapes
from edgeprec.export.tensor_source import FloatArray, TensorSource
from edgeprec.export.weight_check import WeightCheck, to_fp16

__all__ = ["CheckpointWeights", "LinearName", "NormName"]

LinearName = Literal["qkv", "o", "gate_up", "down"]
NormName = Literal["input", "post_attention", "q", "k"]

_BLOCK_VALUES = 4_000_000
_CACHE_LINE_BYTES = 64


class CheckpointWeights:
    """The weights of one model.

    ``role_names`` maps a role to the file's name of it, with ``{layer}`` where the layer's number stands.

    Raises:
        ConfigError: a tensor is missing, has another shape, or holds values FP16 cannot hold; the message names it.
    """

    def __init__(self, config: ModelConfig, source: TensorSource, role_names: Mapping[str, str]) -> None:
        self._config = config
        self._source = source
        self._role_names = role_names
        self._check_shapes()

    def refuse_unknown(self, harmless: re.Pattern[str]) -> None:
        """Refuse a file with tensors that this model does not use and whose names do not match ``harmless``.

        Raises:
            ConfigError: names the first such tensor and says how many there are.
        """
        used = frozenset(name for name, _ in self._expected())
        unknown = sorted(name for name in self._source.names - used if not harmless.search(name))
        if unknown:
            raise ConfigError(
                f"{self._source.origin} holds {len(unknown)} tensors its architecture does not use, "
                f"the first is {unknown[0]}: leaving them out would change the model"
            )

    def linear(self, layer: int, name: LinearName) -> FloatArray:
        """Return a merged linear [K, N]: float16 where all parts are stored so, else float32."""
        merged: FloatArray = np.empty(self._config.linear_shape(name), np.float16)  # [K, N]
        column = 0
        for role in LINEAR_PARTS[name]:
            part = self._read(self._name(role, layer))  # [out, in]
            merged = merged if part.dtype == merged.dtype else _retyped(merged, column)
            _write_columns(merged, column, part)
            column += len(part)
        return merged

    def bias(self, layer: int) -> npt.NDArray[np.float32] | None:
        """Return the bias of qkv [N], or None where the family has none."""
        if not self._config.has_qkv_bias:
            return None
        return np.concatenate([self._vector(self._name(role, layer)) for role in QKV_BIASES])

    def norm(self, layer: int, name: NormName) -> npt.NDArray[np.float32]:
        """Return the scale of a norm: [D], or [head_dim] for ``q`` and ``k``."""
        if name in ("q", "k") and not self._config.has_qk_norm:
            raise ConfigError(f"family {self._config.family!r} has no {name} norm: ask only where has_qk_norm is set")
        return self._vector(self._name(NORM_ROLES[name], layer))

    def embedding(self) -> npt.NDArray[np.float16]:
        """Return the embedding table [V, D]."""
        table = np.empty((self._config.vocab_size, self._config.hidden_size), np.float16)
        for start, block in self._blocks(self._name("embedding")):
            table[start : start + len(block)] = to_fp16(block)
        return table

    def final_norm(self) -> npt.NDArray[np.float32]:
        """Return the scale of the last norm [D]."""
        return self._vector(self._name("final_norm"))

    def head(self) -> npt.NDArray[np.float16] | None:
        """Return the output head [D, V], or None where the embedding serves as head."""
        if self._config.tied_embeddings:
            return None
        head = np.empty((self._config.hidden_size, self._config.vocab_size), np.float16)
        for start, block in self._blocks(self._name("head")):
            _write_columns(head, start, to_fp16(block))
        return head

    def _name(self, role: str, layer: int | None = None) -> str:
        return self._role_names[role].format(layer=layer)

    def _expected(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for role, shape in model_shapes(self._config).items():
            yield self._name(role), shape
        for layer in range(self._config.num_layers):
            for role, shape in layer_shapes(self._config).items():
                yield self._name(role, layer), shape

    def _check_shapes(self) -> None:
        names = self._source.names
        for name, expected in self._expected():
            if name not in names:
                raise ConfigError(
                    f"{self._source.origin} has no tensor {name}, expected one of shape {list(expected)}: "
                    "the checkpoint is incomplete or its configuration belongs to another model"
                )
            got = self._source.shape(name)
            if got != expected:
                raise ConfigError(
                    f"tensor {name} has shape {list(got)}, expected {list(expected)} from the model's configuration"
                )

    def _vector(self, name: str) -> npt.NDArray[np.float32]:
        return self._read(name).astype(np.float32, copy=False)

    def _read(self, name: str) -> FloatArray:
        values = self._source.read_rows(name, 0, self._source.shape(name)[0])
        check = WeightCheck(name)
        check.add(values)
        check.finish()
        return values

    def _blocks(self, name: str) -> Iterator[tuple[int, FloatArray]]:
        """Yield (first row, rows) of a checked matrix; a bad value raises after the last block."""
        rows, width = self._source.shape(name)
        step = max(1, _BLOCK_VALUES // width)
        check = WeightCheck(name)
        for start in range(0, rows, step):
            block = self._source.read_rows(name, start, min(start + step, rows))
            check.add(block)
            if check.is_clean:  # after a bad value the rest is only counted
                yield start, block
        check.finish()


def _write_columns(target: FloatArray, column: int, rows: FloatArray) -> None:
    """Put ``rows`` [R, K] into columns ``column`` and on of ``target`` [K, N], a cache line of columns at a time.

    Transposing 8192 x 2048 float32 values at once takes seven times as long.
    """
    step = _CACHE_LINE_BYTES // target.itemsize
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        target[:, column + start : column + start + len(block)] = block.T


def _retyped(merged: FloatArray, filled_columns: int) -> FloatArray:
    """Return ``merged`` as float32, copying only what is filled; a float16 part still fits into it."""
    if merged.dtype == np.float32:
        return merged
    wide = np.empty(merged.shape, np.float32)
    wide[:, :filled_columns] = merged[:, :filled_columns]
    return wide
