"""Fixtures shared by all tests: a tiny exported pair, and the demo pair that the slow tests run.

The repository root is kept off ``sys.path``: ``import export`` from there would load a second copy of a package.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

LONGEST = "TestFirstTenPrompts"  # of tests/runtime/test_demo_exact.py
TINY_TARGET_WIDTH, TINY_DRAFT_WIDTH = 288, 280  # both padded: the tokenizer has 272 ids


def keep_to_own_cores(worker: str | None = os.environ.get("PYTEST_XDIST_WORKER")) -> None:
    """Give every pytest-xdist worker its own cores, and with them as many threads.

    Threads of two workers that wait for each other on the same cores spin instead of computing: five times slower.
    """
    if worker is not None:
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        cores = sorted(os.sched_getaffinity(0))
        own = cores[int(worker.removeprefix("gw")) % workers :: workers]
        os.sched_setaffinity(0, own or cores)  # before any library counts cores; processes inherit it


keep_to_own_cores()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest class first where workers share the tests, so that none is alone with it at the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: LONGEST not in item.nodeid)


def load_checkpoints() -> ModuleType:
    """Import ``tests/factories/checkpoints.py`` once."""
    full_name = "edgeprec_factories_checkpoints"
    if full_name not in sys.modules:
        found = spec_from_file_location(full_name, ROOT / "tests" / "factories" / "checkpoints.py")
        assert found is not None
        assert found.loader is not None
        sys.modules[full_name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[full_name])
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """Return what imports a file of ``scripts/`` by name, once; scripts find each other as they do when run."""

    def load(name: str) -> ModuleType:
        folder = str(ROOT / "scripts")
        sys.path.append(folder)
        try:
            return import_module(name)
        finally:
            sys.path.remove(folder)

    return load


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real exported pair of random models: three layers, and a draft model of one."""
    import edgeprec

    make, folder = load_checkpoints().make_checkpoint, tmp_path_factory.mktemp("tiny")
    target = make(folder / "target", "llama", vocab_size=TINY_TARGET_WIDTH, num_layers=3, max_positions=256)
    draft = make(folder / "draft", "qwen3", vocab_size=TINY_DRAFT_WIDTH, num_layers=1, max_positions=200, seed=5)
    return edgeprec.export_bundle(target, folder / "tiny.edgeprec", draft=str(draft))


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that ``make`` filled: once for all of pytest-xdist's workers, who wait for each other.

    What a worker that failed or died left there is removed by the next one.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tmp_path_factory.mktemp(name)
        make(folder)
        return folder
    folder = tmp_path_factory.getbasetemp().parent / f"shared-{name}"
    whole = folder.with_suffix(".whole")
    with folder.with_suffix(".lock").open("w") as lock:  # closing it lets go
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


@pytest.fixture(scope="session")
def demo_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo pair, exported by this code; its checkpoint is downloaded unless ``EDGEPREC_CACHE`` has it."""
    import edgeprec
    from edgeprec.cli.demo_model import BUNDLE_NAME, fetch_checkpoint

    def export(folder: Path) -> None:
        cache = Path(os.environ.get("EDGEPREC_CACHE") or folder)
        cache.mkdir(parents=True, exist_ok=True)
        edgeprec.export_bundle(fetch_checkpoint(cache), folder / BUNDLE_NAME)

    return made_once(tmp_path_factory, "demo", export) / BUNDLE_NAME


@pytest.fixture(autouse=True)
def _own_signals_and_logs() -> Iterator[None]:
    """Give every test the usual Ctrl-C, which a shell's background job ignores, and loggers as a program finds them."""
    logger = logging.getLogger("edgeprec")
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
