"""Choose which layers of a target its draft begins with: those the target can do without least.

A layer's sensitivity is the mean KL divergence, in bits, between the target and the target without that layer, on text.
The layers with the largest are taken, in their order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from edgeprec.errors import ConfigError
from edgeprec.export.distill_model import Decoder, Ends
from edgeprec.export.progress import Progress, ProgressEvent

__all__ = ["choose_layers", "skip_errors_bits", "take_layers"]

_BLOCK_POSITIONS = 1024


@torch.no_grad()
def skip_errors_bits(teacher: Decoder, tokens: Tensor, mask: Tensor, progress: Progress) -> list[float]:
    """Return each layer's sensitivity on ``tokens`` [R, T] where ``mask`` is True."""
    count = len(teacher.layers)
    whole = teacher(tokens)[mask]  # [N, D]
    errors = []
    for layer in range(count):
        without = teacher(tokens, skipped=layer)[mask]
        errors.append(_mean_kl_bits(teacher, whole, without))
        progress(ProgressEvent("layers", layer + 1, count))
    return errors


def choose_layers(errors_bits: Sequence[float], count: int) -> tuple[int, ...]:
    """Return the ``count`` layers with the largest error, ascending.

    Raises:
        ConfigError: the target has no more layers than that.
    """
    if count >= len(errors_bits):
        raise ConfigError(
            f"a draft of {count} layers is asked for, expected fewer than the target's {len(errors_bits)}"
        )
    ranked = sorted(range(len(errors_bits)), key=lambda layer: (-errors_bits[layer], layer))
    return tuple(sorted(ranked[:count]))


def take_layers(teacher: Decoder, layers: Sequence[int]) -> Decoder:
    """Return a draft that begins as copies of some layers, in float32, over the teacher's own embedding and head.

    Its activations are bfloat16 where the teacher's are 16 bits wide: gradients need the range.
    """
    copies = [copy.deepcopy(teacher.layers[index]) for index in layers]
    embedding = teacher.ends.embedding
    ends = Ends(embedding if embedding.dtype == torch.float32 else embedding.bfloat16(), teacher.ends.head)
    draft = Decoder(teacher.config, copies, copy.deepcopy(teacher.final_norm), ends)  # type: ignore[arg-type]
    return draft.float().requires_grad_(True)


def _mean_kl_bits(teacher: Decoder, whole: Tensor, without: Tensor) -> float:
    total = 0.0
    for start in range(0, len(whole), _BLOCK_POSITIONS):
        rows = slice(start, start + _BLOCK_POSITIONS)
        p = teacher.logits(whole[rows]).float().log_softmax(-1)
        q = teacher.logits(without[rows]).float().log_softmax(-1)
        total += float(functional.kl_div(q, p, reduction="sum", log_target=True))
    return total / max(1, len(whole)) / math.log(2.0)
