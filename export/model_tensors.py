"""A checkpoint's tensors under the names and types of a bundle, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import LINEARS
from edgeprec.export.checkpoint import Checkpoint
from edgeprec.export.checkpoint_weights import NormName

__all__ = ["Tensors", "even_width", "layer_tensors", "outer_tensors"]

_NORMS: dict[str, NormName] = {"input_norm": "input", "post_attention_norm": "post_attention"}
_HEAD_NORMS: dict[str, NormName] = {"q_norm": "q", "k_norm": "k"}

Tensors = dict[str, npt.NDArray[Any]]


def layer_tensors(checkpoint: Checkpoint, layer: int) -> Tensors:
    """Return one layer's part of the FP16 file: linears [K, N] float16, norms and biases float32."""
    prefix = f"layers.{layer}"
    norms = _NORMS | (_HEAD_NORMS if checkpoint.config.has_qk_norm else {})
    tensors: Tensors = {f"{prefix}.{name}": checkpoint.norm(layer, source) for name, source in norms.items()}
    bias = checkpoint.bias(layer)
    if bias is not None:
        tensors[f"{prefix}.qkv.bias"] = bias
    for name in LINEARS:
        tensors[f"{prefix}.{name}"] = checkpoint.linear(layer, name).astype(np.float16, copy=False)
    return tensors


def outer_tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield embedding, last norm and, where it is not tied, the head, one at a time."""
    yield "embed", checkpoint.embedding()
    yield "final_norm", checkpoint.final_norm()
    head = checkpoint.head()
    if head is not None:
        yield "head", head


def even_width(weight: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """Widen an odd number of outputs by a column of zeros: INT4 values are stored in pairs."""
    return np.pad(weight, ((0, 0), (0, weight.shape[1] % 2))) if weight.shape[1] % 2 else weight
