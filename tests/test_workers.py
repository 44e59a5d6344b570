"""What ``tests/conftest.py`` does where processes of pytest-xdist share the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xdist", reason="needs pytest-xdist: the dev extra")

MODULE = """
import json, os, time
import pytest

@pytest.fixture(scope="session")
def made(request, tmp_path_factory):
    (plugin,) = [p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "made_once")]
    return plugin.made_once(tmp_path_factory, "thing", lambda folder: (folder / str(os.getpid())).touch())

class {name}:
    def test_facts(self, made):
        facts = {{"cores": sorted(os.sched_getaffinity(0)), "makers": [path.name for path in made.iterdir()]}}
        facts["ns"] = time.monotonic_ns()
        facts["worker"] = os.environ.get("PYTEST_XDIST_WORKER")
        with open({out!r}, "w") as file:
            json.dump(facts, file)
"""
NAMES = ("TestOther", "TestAnother", "TestFirstTenPrompts")


def run(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return what each of three classes of a small suite under our conftest saw."""
    tests = folder / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_bytes(Path(__file__).with_name("conftest.py").read_bytes())
    for index, name in enumerate(NAMES):
        (tests / f"test_{index}.py").write_text(MODULE.format(name=name, out=str(folder / f"{name}.json")))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "base")]
    done = subprocess.run(
        [*words, *arguments, str(tests)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{name}.json").read_text()) for name in NAMES]


def test_workers_share_cores_and_what_was_made(tmp_path: Path) -> None:
    """Each has cores of its own, as far as there are enough; one makes what all use; the longest class is first."""
    other, another, longest = run(tmp_path, "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder")
    assert all(longest["ns"] < facts["ns"] for facts in (other, another) if facts["worker"] == longest["worker"])
    cores = {facts["worker"]: set(facts["cores"]) for facts in (other, another, longest)}
    assert set(cores) == {"gw0", "gw1"}
    if len(os.sched_getaffinity(0)) >= 2:
        assert not cores["gw0"] & cores["gw1"]
    makers = {maker for facts in (other, another, longest) for maker in facts["makers"]}
    assert len(makers) == 1


def test_alone_all_cores_are_used(tmp_path: Path) -> None:
    """Without workers nothing is taken away, and what is made lies with the other folders of the run."""
    for facts in run(tmp_path, "-p", "no:xdist"):
        assert facts["cores"] == sorted(os.sched_getaffinity(0))
        assert facts["worker"] is None
        assert len(facts["makers"]) == 1
