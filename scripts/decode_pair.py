"""A small target and its draft, widened to a shape and loaded into torch engines: what the benchmarks measure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from edgeprec.runtime.engine_torch import MAX_INT4_ROWS, TorchEngine
from edgeprec.runtime.passes import WeightBits
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_memory import form_of
from edgeprec.runtime.torch_opening import build_engine
from edgeprec.runtime.torch_weights import WeightSource
from edgeprec.vocabulary import Vocabulary, require_same_vocabulary

__all__ = ["SHAPES", "LoadedModel", "PairShape", "load_pair", "open_drafter", "shape_of"]

DRAFT_GROUP_SIZE = 32  # what ``edgeprec distill`` trains for


@dataclass(frozen=True, slots=True)
class PairShape:
    """What target and draft are widened to; ``"tiny"`` = a little larger than the model, None = as it is."""

    target: ModelConfig | str | None
    draft: ModelConfig | str | None


SHAPES: Mapping[str, PairShape] = {
    "8b": PairShape(LLAMA_8B, LLAMA_1B),
    "1b": PairShape(LLAMA_1B, LLAMA_1B),
    "tiny": PairShape("tiny", "tiny"),
    "none": PairShape(None, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """One engine, the checkpoint its function comes from, and the shape it runs at."""

    checkpoint: Checkpoint
    config: ModelConfig
    engine: TorchEngine
    group_size: int

    @property
    def bits(self) -> WeightBits:
        """Return what its weights cost to read: four bits and a share of an FP16 scale."""
        return WeightBits.of(self.config, int4_bits=4.0 + 16 / self.group_size)


def load_pair(
    source: Path,
    draft: Path | None,
    *,
    shape: PairShape,
    device: torch.device,
    group_size: int,
    context_tokens: int,
    sequences: int = 1,
    keeps_draft_grid: bool = False,
) -> tuple[LoadedModel, LoadedModel | None]:
    """Load a target and, where there is one, its draft; a draft may share its target's embedding and head.

    ``sequences`` is how many texts each cache holds; an engine for one text is warmed up, one for a batch captures its
    rounds as they come. ``keeps_draft_grid`` widens the draft along its own axes with INT4 in the blocks it was
    distilled for.

    Raises:
        ConfigError: a checkpoint cannot be used, does not fit into the shape, or was made for another target.
    """
    small = open_checkpoint(str(source))
    drafter = None if draft is None else open_drafter(draft, small)
    common: dict[str, Any] = {"device": device, "context_tokens": context_tokens, "sequences": sequences}
    int4_rows = 1 if drafter is None else MAX_INT4_ROWS
    target = _load(small, shape.target, group_size=group_size, int4_rows=int4_rows, **common)
    if drafter is None:
        return target, None
    draft_size = DRAFT_GROUP_SIZE if keeps_draft_grid else group_size
    return target, _load(drafter, shape.draft, group_size=draft_size, has_own_axes=keeps_draft_grid, **common)


def shape_of(small: ModelConfig, shape: ModelConfig | str | None) -> ModelConfig | None:
    """Return the shape to widen to; ``"tiny"`` is next to the model's own: all parts of widening, for a CPU."""
    if not isinstance(shape, str):
        return shape
    group = small.num_heads // small.num_kv_heads + 1
    heads = small.num_kv_heads + 1
    step = math.lcm(heads * group, 32)  # transformers wants a multiple of the heads
    return replace(
        small,
        hidden_size=-(-(small.hidden_size + 1) // step) * step,
        intermediate_size=-(-small.intermediate_size // 256) * 256 + 256,
        num_layers=small.num_layers + 2,
        num_heads=heads * group,
        num_kv_heads=heads,
        head_dim=2 * small.head_dim,
    )


def open_drafter(draft: Path, target: Checkpoint) -> Checkpoint:
    """Open a draft of ``target``, one that shares parts of it included.

    Raises:
        ConfigError: it cannot be used, or was made for another target.
    """
    if is_shared_draft(str(draft)):
        return open_draft(draft.expanduser(), target)
    drafter = open_checkpoint(str(draft))
    require_same_vocabulary(*(_vocabulary(model) for model in (target, drafter)))
    return drafter


def _vocabulary(model: Checkpoint) -> Vocabulary:
    return Vocabulary.from_tokenizer_json(
        model.tokenizer.tokenizer_json, width=model.config.vocab_size, where=f"the tokenizer of {model.name}"
    )


def _load(
    small: Checkpoint,
    shape: ModelConfig | str | None,
    *,
    device: torch.device,
    group_size: int,
    context_tokens: int,
    sequences: int,
    has_own_axes: bool = False,
    int4_rows: int = 1,
) -> LoadedModel:
    config, wide = small.config, shape_of(small.config, shape)
    source: WeightSource = CheckpointSource(small, device, group_size=group_size)
    if wide is not None:
        config = widened_config(small.config, wide)
        source = WidenedSource(source, small.config, config, device, group_size=group_size, has_own_axes=has_own_axes)
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
    times = f"weights {time.monotonic() - started:.1f} s"
    if device.type == "cuda":
        torch.cuda.empty_cache()
        if sequences == 1:
            loaded = time.monotonic()
            engine.warm_up(int4_rows=int4_rows)
            times += f", warm-up {time.monotonic() - loaded:.1f} s"
    print(
        f"{small.name}: {small.config.num_layers} of {config.num_layers} layers, width {config.hidden_size}, slots "
        f"{sequences} of {context_tokens} tokens, {form.arena_bytes / 2**30:.1f} GiB, {times}",
        flush=True,
    )
    return LoadedModel(checkpoint=small, config=config, engine=engine, group_size=group_size)
