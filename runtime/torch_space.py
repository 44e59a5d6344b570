"""The memory of a model besides its weights: the static KV cache, and the buffers every pass reuses.

Nothing is allocated while tokens are made, so captured graphs find everything where it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from edgeprec.architecture import ModelConfig
from edgeprec.kernels.decoder_shapes import SPLIT_TOKENS, AttentionSpace, KvLayer, RotaryTables
from edgeprec.kernels.torch_fallback import HeadRow
from edgeprec.rotary import inverse_frequencies
from edgeprec.runtime.torch_arena import Arena, aligned_bytes

__all__ = ["PassBuffers", "SpaceForm", "rotary_tables", "take_buffers", "take_cache"]

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceForm:
    """What decides how much a model needs besides weights. ``sequences`` is the largest batch."""

    config: ModelConfig
    context_tokens: int
    sequences: int
    max_rows: int
    dtype: torch.dtype
    has_splits: bool  # attention runs in splits: a GPU's does

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values of every layer."""
        config = self.config
        part = self.sequences * self.context_tokens * config.kv_size * self.dtype.itemsize
        return aligned_bytes([part] * (2 * config.num_layers))

    @property
    def buffer_bytes(self) -> int:
        """Bytes of everything a pass writes on its way, and of the rotary tables."""
        sizes = [rows * width * dtype.itemsize for rows, width, dtype in self._buffer_shapes()]
        tables = [self.context_tokens * self.config.head_dim // 2 * _FLOAT_BYTES] * 2
        return aligned_bytes([*sizes, *tables])

    @property
    def splits(self) -> int:
        """Attention splits of the longest text."""
        return -(-self.context_tokens // SPLIT_TOKENS)

    def _buffer_shapes(self) -> list[tuple[int, int, torch.dtype]]:
        config, rows, dtype = self.config, self.max_rows, self.dtype
        shapes = [
            (rows, config.hidden_size, torch.float32),
            (rows, config.hidden_size, dtype),
            (rows, config.q_size + 2 * config.kv_size, dtype),
            (rows, config.q_size, dtype),
            (rows, config.q_size, dtype),
            (rows, config.intermediate_size, dtype),
            (rows, config.vocab_size, torch.float32),
            (3, rows, torch.int32),
        ]
        if self.has_splits:
            heads = rows * config.num_heads * self.splits
            shapes += [(heads, config.head_dim, torch.float32), (heads, 2, torch.float32)]
            shapes += [(rows, config.num_kv_heads, torch.int32)]
        return shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBuffers:
    """Where a pass keeps what it computes; a pass of M rows uses the first M."""

    hidden: torch.Tensor  # float32 [max_rows, D], the residual stream
    normed: torch.Tensor  # [max_rows, D]
    qkv: torch.Tensor  # [max_rows, (H + 2 H_kv) d]
    query: torch.Tensor  # [max_rows, H, d]
    attended: torch.Tensor  # [max_rows, H, d]
    inner: torch.Tensor  # [max_rows, I]
    logits: torch.Tensor  # float32 [max_rows, V]
    statistics: torch.Tensor  # int32 [3, max_rows]: argmax, and the bits of margin and entropy in float32
    attention: AttentionSpace | None
    tables: RotaryTables

    def head_rows(self, first: int, rows: int) -> HeadRow:
        """Return where the statistics of rows ``first`` .. go."""
        argmax, margin, entropy = (part[first : first + rows] for part in self.statistics)
        return HeadRow(argmax, margin.view(torch.float32), entropy.view(torch.float32))


def take_cache(form: SpaceForm, arena: Arena) -> tuple[KvLayer, ...]:
    """Cut a cache out of ``arena``, zero everywhere."""
    config = form.config
    shape = (form.sequences, config.num_kv_heads, form.context_tokens, config.head_dim)
    return tuple(
        KvLayer(arena.take(shape, form.dtype), arena.take(shape, form.dtype)) for _ in range(config.num_layers)
    )


def take_buffers(form: SpaceForm, arena: Arena) -> PassBuffers:
    """Cut the buffers out of ``arena`` and fill the rotary tables."""
    config, rows, dtype = form.config, form.max_rows, form.dtype
    heads = (rows, config.num_heads, config.head_dim)
    attention = None
    if form.has_splits:
        space = (rows, config.num_heads, form.splits)
        attention = AttentionSpace(
            arena.take((*space, config.head_dim), torch.float32),
            arena.take((*space, 2), torch.float32),
            arena.take((rows, config.num_kv_heads), torch.int32),
        )
    tables = rotary_tables(config, form.context_tokens)
    return PassBuffers(
        hidden=arena.take((rows, config.hidden_size), torch.float32),
        normed=arena.take((rows, config.hidden_size), dtype),
        qkv=arena.take((rows, config.q_size + 2 * config.kv_size), dtype),
        query=arena.take(heads, dtype),
        attended=arena.take(heads, dtype),
        inner=arena.take((rows, config.intermediate_size), dtype),
        logits=arena.take((rows, config.vocab_size), torch.float32),
        statistics=arena.take((3, rows), torch.int32),
        attention=attention,
        tables=RotaryTables(arena.copy(tables.cos, torch.float32), arena.copy(tables.sin, torch.float32)),
    )


def rotary_tables(config: ModelConfig, positions: int) -> RotaryTables:
    """Return cosine and sine of every position, with angles in float32 as the ONNX graph has them."""
    frequencies = inverse_frequencies(config).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None, :]
    return RotaryTables(torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles)))
