"""Where each tensor of a model lies: in its own files, or in the target's where a draft shares embedding or head.

``embed`` and ``head`` lie in the FP16 file, ``head.packed``, ``head.scales`` and ``head.zeros`` in the INT4 file, as
``edgeprec.tensor_names`` lists them. A draft that shares the head shares both variants of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeprec.bundle import BundleModel
from edgeprec.errors import BundleError
from edgeprec.tensor_spec import TensorSpec

__all__ = ["TensorHome", "find_tensor", "shared_tensors"]


@dataclass(frozen=True, slots=True)
class TensorHome:
    """A tensor and the file it lies in: ``TensorFile.open(home.path).array(home.spec.name)`` reads it."""

    path: Path
    spec: TensorSpec
    is_shared: bool  # the file is the target's, the model asked for is its draft


def find_tensor(model: BundleModel, name: str) -> TensorHome:
    """Return where ``model`` finds its tensor ``name``, such as ``layers.3.qkv``, ``embed`` or ``head.packed``.

    A tied model has no tensor ``head``: its FP16 head is ``embed`` transposed.

    Raises:
        BundleError: neither the model nor what it shares has such a tensor.
    """
    own = _home(model, name, is_shared=False)
    if own is not None:
        return own
    target = model.bundle.target
    shared = _home(target, name, is_shared=True) if name in {spec.name for spec in shared_tensors(model)} else None
    if shared is None:
        raise BundleError(f"{model.bundle.root}: the {model.role} has no tensor {name!r}")
    return shared


def shared_tensors(model: BundleModel) -> tuple[TensorSpec, ...]:
    """Return the target's tensors that a draft uses as its own, FP16 first; none for a model that shares nothing."""
    entry, target = model.entry, model.bundle.target.entry
    embedding = {"embed"} if entry.shares_embedding else set()
    head = {"head", "head.packed", "head.scales", "head.zeros"} if entry.shares_head else set()
    return tuple(spec for spec in (*target.fp16_specs, *target.int4_specs) if spec.name in embedding | head)


def _home(model: BundleModel, name: str, *, is_shared: bool) -> TensorHome | None:
    for path, specs in ((model.fp16_path, model.entry.fp16_specs), (model.int4_path, model.entry.int4_specs)):
        for spec in specs:
            if spec.name == name:
                return TensorHome(path, spec, is_shared)
    return None
