"""A checkpoint's weights and tokenizer for the torch engine, without exporting a bundle first.

INT4 is rounded to nearest on the device: good enough for timing, and what ``widen.py`` does too.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt
import torch
from synthetic_weights import quantize_rtn

from edgeprec.bundle import CHAT_TEMPLATE, GENERATION, TOKENIZER
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint
from edgeprec.kernels.repack import DeviceInt4Weight
from edgeprec.runtime.tokenizer import TextTokenizer

__all__ = ["CheckpointSource", "load_tokenizer"]

_NORMS = {
    "input_norm": "input",
    "post_attention_norm": "post_attention",
    "q_norm": "q",
    "k_norm": "k",
}


class CheckpointSource:
    """Reads ``checkpoint`` tensor by tensor, as ``BundleSource`` reads a bundle."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, *, group_size: int = 128) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._group_size = group_size

    def vector(self, name: str) -> torch.Tensor:
        """Return a norm or bias, float32."""
        if name == "final_norm":
            return _tensor(self._checkpoint.final_norm()).float()
        _, layer, part = name.split(".", 2)
        if part == "qkv.bias":
            bias = self._checkpoint.bias(int(layer))
            if bias is None:
                raise ConfigError(f"the checkpoint has no {name}")
            return _tensor(bias).float()
        return _tensor(self._checkpoint.norm(int(layer), _NORMS[part])).float()  # type: ignore[arg-type]

    def matrix(self, name: str) -> torch.Tensor:
        """Return a linear as FP16 [N, K], or the embedding [V, D]."""
        if name == "embed":
            return _tensor(self._checkpoint.embedding()).to(self._device)
        if name == "head":
            head = self._checkpoint.head()
            return self.matrix("embed") if head is None else _tensor(head).to(self._device).t()
        _, layer, linear = name.split(".")
        stored = self._checkpoint.linear(int(layer), linear)  # type: ignore[arg-type]
        return _tensor(stored).to(self._device).half().t()

    def int4(self, name: str) -> DeviceInt4Weight:
        """Return the same linear in INT4."""
        return quantize_rtn(self.matrix(name), self._group_size)


def _tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor; one that lies in a mapped file is copied, since torch takes writable ones."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def load_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    """Return the checkpoint's tokenizer as a bundle would carry it."""
    files = checkpoint.tokenizer
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / TOKENIZER).write_bytes(files.tokenizer_json)
        (root / GENERATION).write_text(json.dumps(dict(files.generation)))
        if files.chat_template is not None:
            (root / CHAT_TEMPLATE).write_text(files.chat_template)
        return TextTokenizer.load(root)
