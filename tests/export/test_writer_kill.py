"""A kill at any moment, then --resume: the same bytes as an export that nobody disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("kill_driver.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the driver once: every single kill, and some pairs of kills."""
    folder = tmp_path_factory.mktemp("kill")
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(folder)], check=True, capture_output=True, text=True, env=environment
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_kills_happened_everywhere(outcome: dict[str, Any]) -> None:
    """The experiment is what it claims: the export works alone, and each of its calls was a place to die."""
    assert outcome["status"] == 0
    assert len(outcome["reference"]) == 64
    single = [result for result in outcome["results"] if len(result["kills"]) == 1]
    assert len(single) > len(outcome["calls"]) > 100
    assert all(result["seen"][0]["status"] == signal.SIGKILL for result in single)


def test_resume_gives_the_bytes_of_an_uninterrupted_export(outcome: dict[str, Any]) -> None:
    """After one kill or two, the next run ends well and the bundle is the same to the byte."""
    ends = Counter((result["status"], result["digest"] == outcome["reference"]) for result in outcome["results"])
    assert ends == {(0, True): len(outcome["results"])}


def test_output_is_whole_or_absent(outcome: dict[str, Any]) -> None:
    """At no moment does a half-written bundle lie under the output's name."""
    seen = {moment["digest"] for result in outcome["results"] for moment in result["seen"]}
    assert seen <= {"absent", outcome["reference"]}


def test_nothing_is_left_beside_the_bundle(outcome: dict[str, Any]) -> None:
    """Journal, lock and scratch are gone once the bundle is whole."""
    assert {tuple(result["left"]) for result in outcome["results"]} == {("x.edgeprec",)}
