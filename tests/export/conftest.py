"""Fixtures shared by the export tests. The factories lie beside the tests and are loaded by path."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

FACTORIES = Path(__file__).parents[1] / "factories"


def load_factory(name: str) -> ModuleType:
    """Import ``tests/factories/<name>.py``."""
    found = spec_from_file_location(f"edgeprec_factories_{name}", FACTORIES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    sys.modules[module.__name__] = module
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def checkpoints() -> ModuleType:
    """Return the factory of tiny Hugging Face checkpoints: ``checkpoints.make_checkpoint(path, "llama", ...)``."""
    return load_factory("checkpoints")
