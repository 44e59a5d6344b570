"""Fixtures shared by the tests of the pure part. The factories lie beside the tests and are loaded by path."""

from __future__ import annotations

import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

FACTORIES = Path(__file__).parents[1] / "factories"


def load_factory(name: str) -> ModuleType:
    """Import ``tests/factories/<name>.py`` once."""
    full_name = f"edgeprec_factories_{name}"
    if full_name not in sys.modules:
        found = spec_from_file_location(full_name, FACTORIES / f"{name}.py")
        assert found is not None
        assert found.loader is not None
        sys.modules[full_name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[full_name])
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def bundles() -> ModuleType:
    """Return the factory of tiny bundles."""
    return load_factory("bundles")


@pytest.fixture(scope="session")
def whole_bundle(bundles: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle whose draft is the target's INT4 variant; tests copy it."""
    path: Path = bundles.make_bundle(tmp_path_factory.mktemp("whole") / "pair.edgeprec")
    return path


@pytest.fixture
def root(whole_bundle: Path, tmp_path: Path) -> Path:
    """Return a copy of the whole bundle that a test may damage."""
    return Path(shutil.copytree(whole_bundle, tmp_path / "pair.edgeprec"))
