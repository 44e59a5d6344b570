"""The exceptions a caller can meet, and the exit code each one maps to.

    EdgePrecError               1  failed
    ├── ConfigError             2  a flag, a file or a checkpoint is not usable as given
    ├── BundleError             3  a bundle is damaged, incomplete or of another schema
    ├── MemoryBudgetError       4  the pair does not fit into the memory there is
    ├── KernelError             1  a kernel was called with shapes it does not take
    ├── DeviceError             5  a sensor, board or accelerator cannot be used
    ├── EngineError             5  an inference engine cannot be started or broke
    └── MissingDependency       5  an optional package is not installed

A message is one sentence: what, got, expected, what to do.
"""

from __future__ import annotations

__all__ = [
    "BundleError",
    "ConfigError",
    "DeviceError",
    "EdgePrecError",
    "EngineError",
    "KernelError",
    "MemoryBudgetError",
    "MissingDependency",
]


class EdgePrecError(Exception):
    """Base of every error EdgePrec raises on purpose."""

    exit_code = 1


class ConfigError(EdgePrecError):
    """A setting, an input file or a checkpoint is not usable as given."""

    exit_code = 2


class BundleError(EdgePrecError):
    """A bundle is damaged, incomplete or of another schema."""

    exit_code = 3


class MemoryBudgetError(EdgePrecError):
    """What was asked for does not fit into the memory there is."""

    exit_code = 4


class KernelError(EdgePrecError):
    """A kernel was called with shapes, types or blocks it does not take."""


class DeviceError(EdgePrecError):
    """A sensor, a board or an accelerator cannot be used."""

    exit_code = 5


class EngineError(EdgePrecError):
    """An inference engine cannot be started, or broke while running."""

    exit_code = 5


class MissingDependency(EdgePrecError):
    """An optional package is needed and not installed."""

    exit_code = 5

    def __init__(self, *, package: str, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: run pip install 'edgeprec[{extra}]'"
        )
        self.package = package
        self.extra = extra
