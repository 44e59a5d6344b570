"""``edgeprec doctor``: always an answer, and every setting with its origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeprec.cli import diagnosis, engine_survey
from edgeprec.cli.engine_survey import EngineFinding

ENGINES = (EngineFinding(name="onnxruntime", is_usable=True, note="1.32.0, providers CPU"),)


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep heavy libraries out of these tests."""
    monkeypatch.setattr(diagnosis, "survey_engines", lambda: ENGINES)


def settings_of(outcome: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Return (command, flag) -> finding."""
    return {(entry["command"], entry["flag"]): entry for entry in json.loads(outcome.out)["settings"]}


def test_json_has_every_part(invoke: Callable[..., Any]) -> None:
    """Programs and bug reports rely on these keys."""
    outcome = invoke("doctor", "--json", "--sensor", "none")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert set(found) >= {"edgeprec", "machine", "packages", "engines", "sensors", "settings", "degraded", "missing"}
    assert found["packages"]["numpy"]
    assert found["machine"]["cores"] >= 1


def test_a_machine_without_a_sensor_is_degraded_and_says_why(invoke: Callable[..., Any]) -> None:
    """Exit 0 all the same: doctor answers a question."""
    found = json.loads(invoke("doctor", "--json", "--sensor", "none").out)
    assert found["degraded"] is True
    assert any("energy is not measured" in sentence for sentence in found["missing"])
    assert found["sensors"]["source"] is None


def test_a_simulated_board_measures(invoke: Callable[..., Any]) -> None:
    """With a sensor and an engine nothing is missing."""
    found = json.loads(invoke("doctor", "--json", "--sensor", "simulated:agx-orin").out)
    assert found["sensors"]["rails"]
    assert (found["degraded"], found["missing"]) == (False, [])


def test_no_engine_is_said_with_the_remedy(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The install command is in the answer."""
    missing = (EngineFinding(name="onnxruntime", is_usable=False, note="not installed"),)
    monkeypatch.setattr(diagnosis, "survey_engines", lambda: missing)
    outcome = invoke("doctor", "--sensor", "none")
    assert outcome.code == 0
    assert "no engine can run: pip install 'edgeprec[cpu]'" in outcome.out


def test_settings_show_where_they_come_from(invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Environment beats file beats default, and each is named."""
    file = tmp_path / "edgeprec.toml"
    file.write_text("temperature = 0.5\n[run]\ntop-k = 40\n")
    found = settings_of(invoke("doctor", "--json", "--config", str(file), env={"EDGEPREC_TOP_K": "7"}))
    assert found["chat", "temperature"]["value"] == 0.5
    assert found["chat", "temperature"]["origin"] == "file"
    assert found["chat", "temperature"]["where"] == str(file)
    assert (found["run", "top-k"]["value"], found["run", "top-k"]["origin"]) == ("7", "environment")
    assert found["run", "top-k"]["where"] == "EDGEPREC_TOP_K"
    assert (found["run", "mode"]["value"], found["run", "mode"]["origin"]) == ("exact", "default")


def test_words_name_what_is_not_default(invoke: Callable[..., Any]) -> None:
    """A person sees the few settings that differ, once each."""
    outcome = invoke("doctor", "--sensor", "none", env={"EDGEPREC_THREADS": "2"})
    told = [line for line in outcome.out.splitlines() if "--threads 2, from EDGEPREC_THREADS, for " in line]
    assert len(told) == 1
    assert {"demo", "run", "chat", "certify"} <= set(told[0].partition(", for ")[2].split(", "))
    assert outcome.out.count("--threads") == 1


def test_an_unknown_variable_is_reported_and_not_refused(invoke: Callable[..., Any]) -> None:
    """Doctor is where one looks when other commands refuse."""
    outcome = invoke("doctor", "--sensor", "none", env={"EDGEPREC_TREADS": "2"})
    assert outcome.code == 0
    assert "EDGEPREC_TREADS, which is no setting of EdgePrec: did you mean EDGEPREC_THREADS?" in outcome.out


def test_an_unknown_sensor_is_refused(invoke: Callable[..., Any]) -> None:
    """A slip in the flag is not a missing sensor."""
    outcome = invoke("doctor", "--sensor", "thermometer")
    assert outcome.code == 2
    assert "thermometer" in outcome.err


def test_an_unknown_sensor_in_the_environment_is_a_finding(invoke: Callable[..., Any]) -> None:
    """Doctor is where one looks when other commands refuse."""
    outcome = invoke("doctor", "--json", env={"EDGEPREC_SENSOR": "thermometer"})
    found = json.loads(outcome.out)
    assert (outcome.code, found["degraded"]) == (0, True)
    assert found["missing"][0].startswith("the setting --sensor cannot be used: ")
    assert "thermometer" in found["missing"][0]


def test_engines_that_are_not_installed_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for an engine loads nothing that is not there."""
    monkeypatch.setattr(engine_survey, "find_spec", lambda name: None)
    found = {engine.name: engine for engine in engine_survey.survey_engines()}
    assert not any(engine.is_usable for engine in found.values())
    assert "edgeprec[cpu]" in found["onnxruntime"].note


def test_an_engine_that_breaks_on_import_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for another machine is reported, not raised."""

    def fail(name: str) -> None:
        raise ImportError(f"{name}.so: wrong architecture")

    monkeypatch.setattr(engine_survey, "import_module", fail)
    monkeypatch.setattr(engine_survey, "find_spec", lambda name: object())
    found = engine_survey.survey_engines()[0]
    assert (found.is_usable, found.note) == (False, "not importable: onnxruntime.so: wrong architecture")
