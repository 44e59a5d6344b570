"""Write the weights of a Hugging Face checkpoint as they come: one safetensors file, or numbered ones and an index."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

__all__ = ["ShardWriter"]

SHARD_BYTES = 1 << 29


class ShardWriter:
    """Takes tensors into ``folder``; holds at most ``shard_bytes`` and what one call adds.

    Files have their last names after ``finish``: only then is their number known.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._held: dict[str, npt.NDArray[Any]] = {}
        self._written: list[tuple[str, ...]] = []  # the names in each file
        self._total_bytes = 0

    def add(self, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take tensors over; they may be written later, so do not change them."""
        self._held |= {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        if sum(values.nbytes for values in self._held.values()) >= self._shard_bytes:
            self._flush()

    def finish(self) -> None:
        """Write what is held, give the files their names and write the index where there are several."""
        if self._held:
            self._flush()
        count = len(self._written)
        if count == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        places: dict[str, str] = {}
        for index, names in enumerate(self._written):
            file = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
            self._part(index).rename(self._folder / file)
            places |= dict.fromkeys(names, file)
        content = {"metadata": {"total_size": self._total_bytes}, "weight_map": dict(sorted(places.items()))}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=1) + "\n")

    def _flush(self) -> None:
        path = self._part(len(self._written))
        save_file(self._held, path, metadata={"format": "pt"})
        path.chmod(0o644)  # like the files beside it: newer versions of safetensors let the owner alone read
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._written.append(tuple(self._held))
        self._total_bytes += sum(values.nbytes for values in self._held.values())
        self._held = {}

    def _part(self, index: int) -> Path:
        return self._folder / f".part-{index:05d}"
