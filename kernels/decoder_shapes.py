"""The tensors that attention and rotary embedding work on, named."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["SPLIT_TOKENS", "AttentionSpace", "KvLayer", "RotaryTables", "Turning"]

SPLIT_TOKENS = 128  # keys one program attends to, whatever the context: part of what fixes a row's bits


class KvLayer(NamedTuple):
    """One layer's cache: [sequences, H_kv, capacity, d] each, finite everywhere."""

    keys: torch.Tensor
    values: torch.Tensor


class RotaryTables(NamedTuple):
    """Cosine and sine of position times frequency, float32 [positions, d / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


class Turning(NamedTuple):
    """What is done to queries and keys before they meet: norms float32 [d] where there are any, then angles."""

    tables: RotaryTables
    norms: tuple[torch.Tensor, torch.Tensor] | None
    eps: float  # of the norms


class AttentionSpace(NamedTuple):
    """Where the splits of a pass are kept until they are joined; sized for the longest context."""

    parts: torch.Tensor  # float32 [M, H, splits, d]
    sums: torch.Tensor  # float32 [M, H, splits, 2]
    arrived: torch.Tensor  # int32 [M, H_kv], 0 between passes: programs of a tile that are done

    @property
    def splits(self) -> int:
        """Splits there is room for."""
        return int(self.sums.shape[2])
