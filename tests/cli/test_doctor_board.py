"""The board part of ``edgeprec doctor``: what the machine is, how it runs, what may be opened, and what is wrong."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.cli import diagnosis
from edgeprec.cli.board_words import board_lines, board_troubles
from edgeprec.cli.engine_survey import EngineFinding
from edgeprec.cli.gpu_survey import GpuSurvey, survey_gpus
from edgeprec.devices import simulated
from edgeprec.devices.board import read_board
from edgeprec.devices.counter_check import CounterCheck
from edgeprec.devices.simulated import SIMULATED_BOARDS

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "devices" / "fake_nvml.py")))
ENGINES = (EngineFinding(name="onnxruntime", is_usable=True, note="1.32.0, providers CPU"),)


@pytest.fixture(autouse=True)
def _only_what_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep heavy libraries and this machine's GPUs out of these tests."""
    monkeypatch.setattr(diagnosis, "survey_engines", lambda: ENGINES)
    monkeypatch.setattr(diagnosis, "survey_gpus", GpuSurvey)


def doctor(invoke: Callable[..., Any], board: str) -> dict[str, Any]:
    """Return what ``doctor --json`` says of a simulated board."""
    outcome = invoke("doctor", "--json", "--sensor", f"simulated:{board}")
    assert outcome.code == 0, outcome.err
    return dict(json.loads(outcome.out))


@cache
def report_of(name: str) -> dict[str, Any]:
    """Return a board's report as plain values."""
    with simulated(name) as board:
        return read_board(board.sysfs).to_json()


def facts(name: str = "agx-orin", **changes: Any) -> dict[str, Any]:
    """Return a board's report; ``changes`` replace parts of it."""
    return report_of(name) | changes


def words(board: dict[str, Any]) -> str:
    """Return the board's lines as one text."""
    return "\n".join(board_lines(board))


@pytest.mark.parametrize("name", SIMULATED_BOARDS)
def test_every_board_is_recognised_and_measures(name: str, invoke: Callable[..., Any]) -> None:
    """Identity, memory, mode, heat, a sensor with a total, and nothing missing."""
    found = doctor(invoke, name)
    board = found["board"]
    assert board["kind"] == "jetson"
    assert board["name"].startswith("Jetson")
    assert board["memory"]["total_bytes"] > 3 * 2**30
    assert board["power_mode"]
    assert board["thermal"]["hottest_c"] > 0
    assert found["sensors"]["source"] == f"simulated:{name}"
    assert found["sensors"]["total"]
    assert found["sensors"]["evidence"]
    assert (found["degraded"], found["missing"]) == (False, [])


def test_the_words_of_an_agx_orin(invoke: Callable[..., Any]) -> None:
    """A person reads what the board is and how it runs, in a line each."""
    out = invoke("doctor", "--sensor", "simulated:agx-orin").out
    for text in (
        "Jetson AGX Orin 64GB, module p3701-0005, tegra234, compute capability 8.7, JetPack 6.x, L4T 36.4.4",
        "61.4 GiB, 57.2 available, shared by CPU and GPU",
        "MODE_30W; MAXN is faster: sudo nvpmodel -m 0",
        "not locked; GPU 17000000.gpu 306 MHz of 306 to 1300; CPU 730 MHz of 730 to 2202",
        "over-current events since boot: oc1 0, oc2 0, oc3 1",
        "total module_computed",
        "no rail measures the input, so the total is the sum of three",
        "nothing is missing",
    ):
        assert text in out, text


def test_this_machine_is_described_without_a_sensor(invoke: Callable[..., Any]) -> None:
    """On a laptop or in a container: the CPU, each sensor with its reason, and an exit of 0."""
    found = json.loads(invoke("doctor", "--json", "--sensor", "none").out)
    assert found["board"]["memory"]["total_bytes"]
    assert {attempt["name"] for attempt in found["sensors"]["attempts"]} == {"jetson", "jtop", "nvml", "rapl"}
    assert all(attempt["note"] for attempt in found["sensors"]["attempts"])
    assert found["degraded"] is True


def test_a_sensor_named_that_fails_is_still_diagnosed(invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Doctor is where one looks when other commands refuse."""
    outcome = invoke("doctor", "--json", "--sensor", f"replay:{tmp_path / 'absent.jsonl'}")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert found["board"]["kind"] in {"host", "jetson"}
    assert any("absent.jsonl cannot be read" in sentence for sentence in found["missing"])


def test_a_gated_gpu_is_powered_down_and_not_at_zero_hertz() -> None:
    """A clock of 0 is no clock."""
    assert "GPU gpu-gpc-0 powered down of 0 to 1575" in words(facts("thor"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"memory": {"total_bytes": None, "available_bytes": None, "reason": "EACCES"}}, "not known: EACCES"),
        ({"power_mode": None, "power_modes": {"reason": "nvpmodel is not installed"}}, "nvpmodel is not installed"),
        ({"thermal": {"hottest_c": None, "zones": []}}, "not known: no thermal zone can be read"),
        ({"unknown": [{"part": "l4t", "reason": "no release file"}]}, "not known     l4t: no release file"),
        ({"gpus": [{"name": "NVIDIA H200", "note": "its driver is not loaded"}]}, "H200 (its driver is not loaded)"),
    ],
)
def test_what_is_not_known_says_why(changes: dict[str, Any], expected: str) -> None:
    """No part is left out in silence, and none is made up."""
    assert expected in words(facts(**changes))


def test_an_unknown_module_is_named_by_its_part(invoke: Callable[..., Any]) -> None:
    """A new board works with what is readable."""
    jetson = facts()["jetson"] | {"name": "tegra234, unknown module p3999-0001", "confidence": "inferred"}
    text = words(facts(jetson=jetson))
    assert "unknown module p3999-0001" in text
    assert "recognised by its rails only" in text


def troubles() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield name, changed part of the report, and what must be said."""
    protection = {"events": {}, "alerts": {"gpu-throttle-alert": 1, "cpu-throttle-alert": 0}, "is_throttling": True}
    yield "throttling", {"protection": protection}, "the board throttles now (gpu-throttle-alert): improve cooling"
    limit = {"label": "VDD_IN", "is_exceeded": True}
    yield "limit", {"current_limits": [limit]}, "the current limit of VDD_IN is exceeded"
    node = {"path": "/dev/nvmap", "reason": "EACCES: this user may not open it", "fix": "sudo usermod -aG video $USER"}
    permissions = {"groups": [], "open_nodes": [], "shut_nodes": [node], "notes": ["not in the group jtop: add it"]}
    yield "node", {"permissions": permissions}, "/dev/nvmap cannot be opened, EACCES: this user may not open it: sudo"
    yield "group", {"permissions": permissions}, "not in the group jtop: add it"


@pytest.mark.parametrize(
    ("changes", "expected"), [case[1:] for case in troubles()], ids=[case[0] for case in troubles()]
)
def test_a_trouble_is_said_with_its_fix(changes: dict[str, Any], expected: str) -> None:
    """Each makes the machine "degraded" in JSON."""
    assert any(expected in sentence for sentence in board_troubles(facts(**changes)))


def test_a_healthy_board_has_no_trouble() -> None:
    """Nothing is cried over."""
    assert list(board_troubles(facts())) == []


COUNTER, POWER = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"


def compared(difference: float | None, warning: str | None = None) -> CounterCheck:
    """Return a comparison of counter and power as the meters give it."""
    reading: Any = SimpleNamespace(watts=120.0)
    return CounterCheck(counter=reading, integral=reading, difference=difference, warning=warning)


def test_a_gpu_with_both_ways_is_metered_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """One meter on the counter, one on the power, two seconds, and NVML is closed as often as it was opened."""
    nvml = fake.FakeNvml(fake.FakeGpu(**{COUNTER: 5_000, POWER: 120_000, "nvmlDeviceGetPowerManagementLimit": 700_000}))
    seen, waited = [], []

    def check(counter: Any, power: Any, work: Callable[[], object]) -> CounterCheck:
        seen.extend(meter.sensor.rails[0].quantity.value for meter in (counter, power))
        work()
        return compared(0.01)

    monkeypatch.setattr("edgeprec.cli.gpu_survey.check_counter", check)
    found = survey_gpus(library=nvml, wait=waited.append).to_json()
    assert (seen, waited) == (["energy", "power"], [2.0])
    assert nvml.open_count == 0
    assert found["counter_check"] == {
        "counter_watts": 120.0, "power_watts": 120.0, "difference": 0.01, "warning": None,
    }  # fmt: skip
    (gpu,) = found["gpus"]
    assert (gpu["name"], gpu["driver"], gpu["power_limit_mw"]) == ("NVIDIA H200", "580.95.05", 700_000)
    assert gpu["memory_bytes"] is None
    assert "not supported" in gpu["reasons"]["memory_bytes"]


@pytest.mark.parametrize("answers", [{COUNTER: 5_000}, {POWER: 120_000}, {}])
def test_a_gpu_with_one_way_is_no_trouble(answers: dict[str, object]) -> None:
    """There is nothing to compare, and no time is spent."""
    waited: list[float] = []
    nvml = fake.FakeNvml(fake.FakeGpu(**answers))
    assert survey_gpus(library=nvml, wait=waited.append).check is None
    assert (waited, nvml.open_count) == ([], 0)


def test_a_machine_without_nvml_has_no_gpus_here() -> None:
    """The sensors' list says why; a second message would be noise."""
    assert survey_gpus(library=fake.FakeNvml(init=fake.Err(12))) == GpuSurvey()


def test_two_energies_that_disagree_are_a_trouble(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Joules of a GPU that contradicts itself are not to be compared with anybody's."""
    warning = "the energy counter says 120.0 W and the integrated power 90.0 W: one of them is wrong on this GPU"
    monkeypatch.setattr(diagnosis, "survey_gpus", lambda: GpuSurvey(check=compared(0.33, warning)))
    outcome = invoke("doctor", "--sensor", "auto")
    assert outcome.code == 0
    assert "counter 120.0 W, power 120.0 W, +33.0 % apart" in outcome.out
    assert warning in outcome.out.partition("\nmissing")[2]


def test_the_gpus_of_this_machine_are_not_asked_about_another(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated board is looked at as if it were the machine."""

    def fail() -> GpuSurvey:
        raise AssertionError("the GPUs were asked")

    monkeypatch.setattr(diagnosis, "survey_gpus", fail)
    assert doctor(invoke, "thor")["gpus"] == []
