"""TensorRT, under whichever name it is installed, and the GPU generations it builds for.

``tensorrt_rtx`` (PyPI, x86) builds ahead of time for several generations without a GPU; ``tensorrt`` (JetPack, and
PyPI on x86) builds for the GPU at hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from edgeprec.errors import ConfigError, EngineError, MissingDependency

__all__ = ["TENSORRT_KINDS", "TensorRtLibrary", "find_tensorrt", "parse_sms"]

TENSORRT_KINDS = ("tensorrt_rtx", "tensorrt")
_INT4_SMS = ("sm80", "sm86", "sm87", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")
_NO_INT4 = ("sm53", "sm62", "sm70", "sm72", "sm75")


@dataclass(frozen=True, slots=True)
class TensorRtLibrary:
    """An installed library; ``module`` is the imported package."""

    kind: str
    module: Any

    @property
    def version(self) -> str:
        """Return its version, such as ``1.7.1.116``."""
        return str(self.module.__version__)

    @property
    def name(self) -> str:
        """Return kind and version, for messages."""
        return f"{self.kind} {self.version}"

    @property
    def is_ahead_of_time(self) -> bool:
        """Return whether it builds for GPUs that are not there."""
        return self.kind == "tensorrt_rtx"

    @property
    def sms(self) -> tuple[str, ...]:
        """Return the generations it can be told to build for; none where it takes the GPU at hand."""
        if not self.is_ahead_of_time:
            return ()
        known = (name.lower() for name in self.module.ComputeCapability.__members__ if name.startswith("SM"))
        return tuple(sorted((name for name in known if name in _INT4_SMS), key=lambda name: int(name[2:])))

    def runs_on(self, sm: str) -> bool:
        """Return whether its runtime takes a GPU: TensorRT-RTX refuses those it does not build for, such as SM 90."""
        return not self.is_ahead_of_time or sm in self.sms


def find_tensorrt(kinds: Sequence[str] = TENSORRT_KINDS, *, purpose: str) -> TensorRtLibrary:
    """Import the first installed library of ``kinds``.

    Raises:
        MissingDependency: none of them is installed.
        EngineError: one is installed and cannot be imported.
    """
    broken = ""
    for kind in kinds:
        try:
            if find_spec(kind) is None:
                continue
        except ValueError:  # a module set to None in sys.modules
            continue
        try:
            return TensorRtLibrary(kind, import_module(kind))
        except (ImportError, OSError) as error:
            broken = broken or f"{kind} is installed and cannot be imported: {error}; install it again"
    if broken:
        raise EngineError(broken)
    raise MissingDependency(package=" or ".join(kinds), purpose=purpose, extra="tensorrt")


def parse_sms(text: str) -> tuple[str, ...]:
    """Return the GPU generations of ``--tensorrt``: ``"sm86,sm89"`` or ``"86,8.9"``, sorted, each once.

    Raises:
        ConfigError: one is unknown or has no INT4.
    """
    names = [part.strip().lower() for part in text.split(",")]
    found = sorted({_sm(name) for name in names}, key=lambda name: int(name[2:]))
    return tuple(found)


def _sm(name: str) -> str:
    match = re.fullmatch(r"(?:sm_?)?(\d+)(?:\.(\d))?", name)
    sm = "" if match is None else f"sm{match[1]}{match[2] or ''}"
    if sm in _NO_INT4:
        raise ConfigError(
            f"--tensorrt {sm}: GPUs of this generation have no INT4 in TensorRT, use the onnxruntime engine"
        )
    if sm not in _INT4_SMS:
        raise ConfigError(f"--tensorrt {name!r}: no such GPU generation, expected some of {', '.join(_INT4_SMS)}")
    return sm
