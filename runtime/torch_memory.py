"""What a pair takes in the torch engine: the arena to the byte, and an allowance for what torch and CUDA add to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgeprec.architecture import ModelConfig
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.memory_plan import MemoryPlan
from edgeprec.runtime.torch_space import SpaceForm
from edgeprec.runtime.torch_weights import WeightForm

__all__ = ["ModelForm", "bundle_forms", "cuda_allowance_bytes", "form_of", "max_rows", "plan_pair"]

_MIB = 1 << 20
_CUDA_BYTES = 160 * _MIB  # kernels, graphs and the allocator's rounding
_CPU_BYTES = 96 * _MIB  # buffers of the library
_MOST_PARTS = 4  # into which a linear splits its inputs
_PASS_ROWS = ((8192, 128), (16_384, 64))  # up to so many tokens; beyond, attention's splits would outgrow the weights
_SHORT_PASS_ROWS = 16
_BATCH_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForm:
    """The two parts of a model's memory."""

    weights: WeightForm
    space: SpaceForm

    @property
    def arena_bytes(self) -> int:
        """Bytes the model takes of the arena."""
        return self.weights.total_bytes + self.space.cache_bytes + self.space.buffer_bytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes a linear may take while it runs: partial sums in float32."""
        widest = max(self.space.config.linear_shape(name)[1] for name in ("qkv", "o", "gate_up", "down"))
        return _MOST_PARTS * self.space.max_rows * widest * 4


def cuda_allowance_bytes() -> int:
    """Return what kernels, graphs and the allocator's rounding may take on a GPU, besides arena and scratch."""
    return _CUDA_BYTES


def max_rows(*, context_tokens: int, sequences: int) -> int:
    """Return how many rows one pass may have."""
    rows = next((rows for tokens, rows in _PASS_ROWS if context_tokens <= tokens), _SHORT_PASS_ROWS)
    return max(rows, _BATCH_ROWS * sequences if sequences > 1 else 0)


def form_of(
    config: ModelConfig,
    *,
    device: torch.device,
    group_size: int,
    has_zeros: bool,
    context_tokens: int,
    sequences: int = 1,
    owns_embedding: bool = True,
    owns_head: bool = True,
) -> ModelForm:
    """Return what a model takes on ``device``."""
    is_gpu = device.type != "cpu"
    weights = WeightForm(
        config=config,
        group_size=group_size,
        has_zeros=has_zeros,
        is_packed=is_gpu,
        owns_embedding=owns_embedding,
        owns_head=owns_head,
    )
    space = SpaceForm(
        config=config,
        context_tokens=context_tokens,
        sequences=sequences,
        max_rows=max_rows(context_tokens=context_tokens, sequences=sequences),
        dtype=weights.dtype,
        has_splits=is_gpu,
    )
    return ModelForm(weights=weights, space=space)


def bundle_forms(
    bundle: Bundle, *, device: torch.device, context_tokens: int, sequences: int = 1
) -> tuple[ModelForm, ...]:
    """Return what each model of a bundle takes, target first."""
    return tuple(
        _bundle_form(model, device=device, context_tokens=context_tokens, sequences=sequences)
        for model in bundle.models
    )


def plan_pair(bundle: Bundle, *, device: torch.device, context_tokens: int, sequences: int = 1) -> MemoryPlan:
    """Return the parts of what a pair takes; the arena is all of it but the allowance."""
    forms = bundle_forms(bundle, device=device, context_tokens=context_tokens, sequences=sequences)
    allowance = (_CPU_BYTES if device.type == "cpu" else cuda_allowance_bytes()) + max(
        form.scratch_bytes for form in forms
    )
    return MemoryPlan(
        context_tokens=context_tokens,
        fp16_bytes=sum(form.weights.fp16_bytes for form in forms),
        int4_bytes=sum(form.weights.int4_bytes for form in forms),
        embedding_bytes=sum(form.weights.embedding_bytes for form in forms),
        cache_bytes=sum(form.space.cache_bytes for form in forms),
        workspace_bytes=sum(form.space.buffer_bytes for form in forms) + allowance,
    )


def _bundle_form(model: BundleModel, *, device: torch.device, context_tokens: int, sequences: int) -> ModelForm:
    entry = model.entry
    return form_of(
        entry.architecture,
        device=device,
        group_size=entry.int4.group_size,
        has_zeros=not entry.int4.symmetric,
        context_tokens=context_tokens,
        sequences=sequences,
        owns_embedding=not entry.shares_embedding,
        owns_head=not entry.shares_head,
    )
