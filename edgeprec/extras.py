"""Packages of an extra that some work needs, looked for before it begins."""

from __future__ import annotations

from importlib.util import find_spec

from edgeprec.errors import MissingDependency

__all__ = ["require_export_packages"]

_EXPORT = {"onnx": "onnx", "ml_dtypes": "ml-dtypes", "gguf": "gguf", "huggingface_hub": "huggingface-hub"}


def require_export_packages(*, purpose: str = "exporting a checkpoint") -> None:
    """Check that what the extra ``export`` installs is there; ``purpose`` is what needs it, for the error.

    Raises:
        MissingDependency: a package is not installed.
    """
    for module, package in _EXPORT.items():
        if find_spec(module) is None:
            raise MissingDependency(package=package, purpose=purpose, extra="export")
