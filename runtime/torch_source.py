"""Reads a bundle's safetensors as a torch model wants them: linears [N, K], INT4 in the kernels' layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edgeprec.bundle import BundleModel
from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.repack import DeviceInt4Weight, repack
from edgeprec.tensor_file import TensorFile
from edgeprec.tensor_sharing import find_tensor

__all__ = ["BundleSource"]


class BundleSource:
    """One model of a bundle; what it shares is read from the target's files. Work is done on ``device``.

    Raises:
        BundleError: a file does not hold what the bundle says.
    """

    def __init__(self, model: BundleModel, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._files: dict[Path, TensorFile] = {model.fp16_path: model.open_fp16(), model.int4_path: model.open_int4()}

    def vector(self, name: str) -> torch.Tensor:
        """Return a norm or bias, float32."""
        return self._tensor(name).float()

    def matrix(self, name: str) -> torch.Tensor:
        """Return a linear as FP16 [N, K], or the embedding [V, D]; both may be views."""
        stored = self._tensor(name)
        return stored if name == "embed" else stored.t()

    def int4(self, name: str) -> DeviceInt4Weight:
        """Return an INT4 linear in the kernels' layout, without the column that pads an odd one."""
        columns = self._model.architecture.linear_shape(name.rpartition(".")[2])[1]
        symmetric = self._model.entry.int4.symmetric
        weight = Int4Weight(
            packed=self._array(f"{name}.packed"),
            scales=np.ascontiguousarray(self._array(f"{name}.scales")[:, :columns]),
            zeros=None if symmetric else self._array(f"{name}.zeros"),
            group_size=self._model.entry.int4.group_size,
        )
        return repack(weight, self._device)

    def _tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._array(name)).to(self._device)

    def _array(self, name: str) -> npt.NDArray[Any]:
        """Return a copy: torch does not take arrays that may not be written, such as mapped files."""
        home = find_tensor(self._model, name)
        if home.path not in self._files:
            self._files[home.path] = TensorFile.open(home.path)
        return self._files[home.path].array(name).copy()
