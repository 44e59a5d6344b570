"""The same model in other numbers: its residual stream rotated by a random orthonormal matrix.

With a residual h [1, D] replaced by h Q, Q^T Q = I, the model computes the same function when

    embedding       E -> E Q
    o, down         W -> W Q                       they write the residual
    qkv, gate_up    W -> Q^T diag(g) W             read through a norm of scale g, whose own scale becomes 1
    head            W -> Q^T diag(g) W             with the last norm's g, so it is no longer tied to the embedding

because a norm divides by the length of h, which Q does not change. Every weight becomes a sum over many others: what
grid the source lay on, such as that of a file of 4-bit weights, is gone, and rounding to INT4 errs as it does on
weights of full precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig
from edgeprec.export.checkpoint import Checkpoint, SourceDigest
from edgeprec.export.checkpoint_weights import LinearName, NormName
from edgeprec.export.tensor_source import FloatArray
from edgeprec.export.tokenizer_files import TokenizerFiles
from edgeprec.export.weight_check import WeightCheck, to_fp16

__all__ = ["RotatedCheckpoint", "random_rotation", "rotate"]

_BLOCK_ROWS = 4096
_READERS: Mapping[LinearName, NormName] = {"qkv": "input", "gate_up": "post_attention"}


def random_rotation(size: int, *, seed: int) -> npt.NDArray[np.float32]:
    """Return an orthonormal matrix [size, size], drawn evenly from all of them."""
    drawn = np.random.default_rng(seed).standard_normal((size, size))
    q, r = np.linalg.qr(drawn)
    turned: npt.NDArray[np.float32] = (q * np.sign(r.diagonal())).astype(np.float32)
    return turned


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedCheckpoint:
    """``source`` with its residual stream rotated by ``rotation`` [D, D], which ``seed`` drew."""

    source: Checkpoint
    rotation: npt.NDArray[np.float32]
    seed: int

    @property
    def name(self) -> str:
        """Return a short name."""
        return f"{self.source.name}-rotated"

    @property
    def config(self) -> ModelConfig:
        """Return the model's shape: the source's, with a head of its own."""
        return replace(self.source.config, tied_embeddings=False)

    @property
    def tokenizer(self) -> TokenizerFiles:
        """Return the source's tokenizer."""
        return self.source.tokenizer

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know of this model."""
        return (*self.source.notes, f"the residual stream is rotated (seed {self.seed}); the function is the same")

    @property
    def source_bytes(self) -> int:
        """Return the size of all source files together."""
        return self.source.source_bytes

    def digest_sources(self, progress: Callable[[int], None] | None = None) -> dict[str, SourceDigest]:
        """Read every source file; the names say that and how they were rotated."""
        digests = self.source.digest_sources(progress)
        return {f"rotated-{self.seed}/{name}": digest for name, digest in digests.items()}

    def linear(self, layer: int, name: LinearName) -> FloatArray:
        """Return a merged linear [K, N] as float16."""
        weight = self.source.linear(layer, name).astype(np.float32)
        if name in _READERS:
            weight *= self.source.norm(layer, _READERS[name])[:, None]
            turned = self.rotation.T @ weight
        else:
            turned = weight @ self.rotation
        return _checked(turned, f"layers.{layer}.{name}")

    def bias(self, layer: int) -> npt.NDArray[np.float32] | None:
        """Return the bias of qkv [N], or None: it lies behind the readers and stays."""
        return self.source.bias(layer)

    def norm(self, layer: int, name: NormName) -> npt.NDArray[np.float32]:
        """Return the scale of a norm: 1 on the residual stream, the source's inside a head."""
        scale = self.source.norm(layer, name)
        return scale if name in ("q", "k") else np.ones_like(scale)

    def embedding(self) -> npt.NDArray[np.float16]:
        """Return the embedding table [V, D]."""
        table = self.source.embedding()
        turned = np.empty(table.shape, np.float16)
        for start in range(0, len(table), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            turned[rows] = _checked(table[rows].astype(np.float32) @ self.rotation, "embed")
        return turned

    def final_norm(self) -> npt.NDArray[np.float32]:
        """Return the scale of the last norm [D], which the head has taken in."""
        return np.ones_like(self.source.final_norm())

    def head(self) -> npt.NDArray[np.float16]:
        """Return the output head [D, V]."""
        head = self.source.head()
        by_token = self.source.embedding() if head is None else head.T  # [V, D]
        reader = self.source.final_norm()[:, None] * self.rotation  # [D, D]; h reads W through it
        turned = np.empty((self.config.hidden_size, self.config.vocab_size), np.float16)
        for start in range(0, len(by_token), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            turned[:, rows] = _checked(by_token[rows].astype(np.float32) @ reader, "head").T
        return turned


def rotate(source: Checkpoint, *, seed: int = 0) -> RotatedCheckpoint:
    """Return ``source`` in the basis that ``seed`` draws: the same function, other weights."""
    return RotatedCheckpoint(source=source, rotation=random_rotation(source.config.hidden_size, seed=seed), seed=seed)


def _checked(values: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float16]:
    check = WeightCheck(f"{name} (rotated)")
    check.add(values)
    check.finish()
    return to_fp16(values)
