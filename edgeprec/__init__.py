"""Run language models on edge devices at the lowest joules per token, without changing a single output token.

    import edgeprec

    with edgeprec.load("pair.edgeprec") as session:
        reply = session.generate("The capital of France is", max_new_tokens=64)

Names are loaded when they are first used: ``import edgeprec`` itself imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeprec.api import ExportSettings, export_bundle, load
    from edgeprec.config import GenerationConfig, Mode
    from edgeprec.errors import EdgePrecError
    from edgeprec.runtime.async_session import AsyncSession
    from edgeprec.runtime.reply import Reply, TokenEvent
    from edgeprec.runtime.session import Session

__all__ = [
    "AsyncSession",
    "EdgePrecError",
    "ExportSettings",
    "GenerationConfig",
    "Mode",
    "Reply",
    "Session",
    "TokenEvent",
    "__version__",
    "export_bundle",
    "load",
]

_HOMES = {
    "AsyncSession": "edgeprec.runtime.async_session",
    "EdgePrecError": "edgeprec.errors",
    "ExportSettings": "edgeprec.api",
    "GenerationConfig": "edgeprec.config",
    "Mode": "edgeprec.config",
    "Reply": "edgeprec.runtime.reply",
    "Session": "edgeprec.runtime.session",
    "TokenEvent": "edgeprec.runtime.reply",
    "export_bundle": "edgeprec.api",
    "load": "edgeprec.api",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("edgeprec")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'edgeprec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
