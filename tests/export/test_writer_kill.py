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

QUICK = [("kill_driver.py", "9", 15), ("kill_pipeline.py", "3", 3)]
THOROUGH = [("kill_driver.py", "1", 134), ("kill_pipeline.py", "12", 12)]
EXPERIMENTS = [*QUICK, *(pytest.param(experiment, marks=pytest.mark.slow) for experiment in THOROUGH)]


@pytest.fixture(scope="module", params=EXPERIMENTS, ids=lambda experiment: "-".join(map(str, experiment[:2])))
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a driver once: a made-up export killed everywhere, or a real one killed here and there."""
    script, amount, least = request.param
    command = [sys.executable, str(Path(__file__).with_name(script)), str(tmp_path_factory.mktemp("kill")), amount]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout)
    return result | {"least": least}


def test_kills_happened_everywhere(outcome: dict[str, Any]) -> None:
    """The experiment is what it claims: the export works alone, and the calls it makes were places to die."""
    assert outcome["status"] == 0
    assert len(outcome["reference"]) == 64
    single = [result for result in outcome["results"] if len(result["kills"]) == 1]
    assert len(single) >= outcome["least"]
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
