"""A widened target and draft in one engine each with slots for a batch: what ``bench_batches.py`` measures."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpoint_source import CheckpointSource
from synthetic_weights import LLAMA_1B, LLAMA_8B
from widen import WidenedSource, widened_config

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.export.draft_reader import is_shared_draft, open_draft
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.passes import WeightBits
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_memory import form_of
from edgeprec.runtime.torch_opening import build_engine
from edgeprec.runtime.torch_weights import WeightSource

__all__ = ["SHAPES", "BatchModel", "load_batch_pair"]

SHAPES: dict[str, tuple[ModelConfig | None, ModelConfig | None]] = {
    "8b": (LLAMA_8B, LLAMA_1B),
    "1b": (LLAMA_1B, LLAMA_1B),
    "none": (None, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchModel:
    """One engine with slots, the checkpoint its function comes from, and the shape it runs at."""

    checkpoint: Checkpoint
    config: ModelConfig
    engine: TorchEngine
    group_size: int

    @property
    def bits(self) -> WeightBits:
        """Return what its weights cost to read: four bits and a share of an FP16 scale."""
        return WeightBits.of(self.config, int4_bits=4.0 + 16 / self.group_size)


def load_batch_pair(
    source: Path, draft: Path | None, *, shape: str, sequences: int, **common: Any
) -> tuple[BatchModel, BatchModel | None]:
    """Load both for so many sequences; ``common`` are ``device``, ``group_size`` and ``context_tokens``.

    Raises:
        ConfigError: a checkpoint cannot be used, or does not fit into the shape or the context.
    """
    small = open_checkpoint(str(source))
    target = _load(small, SHAPES[shape][0], sequences=sequences, **common)
    if draft is None:
        return target, None
    drafter = open_draft(draft.expanduser(), small) if is_shared_draft(str(draft)) else open_checkpoint(str(draft))
    return target, _load(drafter, SHAPES[shape][1], sequences=sequences, **common)


def _load(
    small: Checkpoint,
    shape: ModelConfig | None,
    *,
    sequences: int,
    device: torch.device,
    group_size: int,
    context_tokens: int,
) -> BatchModel:
    config = small.config
    source: WeightSource = CheckpointSource(small, device, group_size=group_size)
    if shape is not None:
        config = widened_config(small.config, shape)
        source = WidenedSource(source, small.config, config, device, group_size=group_size)
    if context_tokens > config.max_positions:
        raise ConfigError(f"context is {context_tokens}, the model was made for {config.max_positions}: lower it")
    form = form_of(
        config,
        device=device,
        group_size=group_size,
        has_zeros=False,
        context_tokens=context_tokens,
        sequences=sequences,
    )
    started = time.monotonic()
    _, engine = build_engine(source, form, Arena(form.arena_bytes, device))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    print(
        f"{small.name}: {config.num_layers} layers, width {config.hidden_size}, {sequences} slots of {context_tokens} "
        f"tokens, {form.arena_bytes / 2**30:.1f} GiB in {time.monotonic() - started:.1f} s",
        flush=True,
    )
    return BatchModel(checkpoint=small, config=config, engine=engine, group_size=group_size)
