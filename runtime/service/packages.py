"""The packages of the extra ``serve``, looked for before the work."""

from __future__ import annotations

from importlib.util import find_spec

from edgeprec.errors import MissingDependency

__all__ = ["require_service_packages"]

_PACKAGES = {"starlette": "starlette", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}


def require_service_packages() -> None:
    """Check that what the extra ``serve`` installs is there.

    Raises:
        MissingDependency: a package is not installed.
    """
    for module, package in _PACKAGES.items():
        if find_spec(module) is None:
            raise MissingDependency(package=package, purpose="serving a bundle", extra="serve")
