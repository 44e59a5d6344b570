"""Joules from the sensor to the reply, through the whole command line, on a tiny model and boards in folders."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.cli.stats import energy_details, energy_in_words, stats_line
from edgeprec.devices import SimulatedBoard, simulated
from edgeprec.devices.detect import Attempt, Detection
from edgeprec.devices.meter import Meter
from edgeprec.devices.sensor import Sensor
from edgeprec.runtime.engine import StepResult
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.reply import EnergyStats

CONTRACT = {
    "joules", "joules_per_token", "by_phase", "source", "rail", "is_total", "coverage", "plus_minus_joules",
}  # fmt: skip
PERIOD_MS = 500.0  # passes of a tiny model are closer than that: no time between two of them is unseen
RUN = ("-p", "hello there", "-n", "40", "--ignore-eos", "--draft-length", "3")


class NoSampler:
    """Stands in for the meter's thread: here every pass of the model is a moment to sample."""

    def __init__(self, _sample: Callable[[], bool], _period_ns: int) -> None:
        pass

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Stop nothing."""


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedBoard]:
    """Return an Orin Nano that every command finds, read once after every pass of the model."""
    meters: list[Meter] = []

    def make_meter(sensor: Sensor, **settings: Any) -> Meter:
        meters.append(Meter(sensor, sampler=NoSampler, **settings))
        return meters[-1]

    def forward(engine: OnnxRuntimeEngine, *arguments: Any, **settings: Any) -> StepResult:
        result = run_pass(engine, *arguments, **settings)
        for meter in meters:
            meter.sample()
        return result

    run_pass = OnnxRuntimeEngine.forward
    monkeypatch.setattr(OnnxRuntimeEngine, "forward", forward)
    monkeypatch.setattr(sys.modules["edgeprec.devices.meter"], "Meter", make_meter)
    with simulated("orin-nano") as board:
        sensor = board.sensor()
        sensor.period_ms = PERIOD_MS
        found = Detection(sensor=sensor, attempts=(Attempt(source="jetson", ok=True, reason=None),), sysfs=board.sysfs)
        monkeypatch.setattr(sys.modules["edgeprec.devices.detect"], "detect", lambda _wanted: found)
        yield board


def at_read(board: SimulatedBoard, number: int, action: Callable[[], object]) -> None:
    """Do something to a board before its rails are read for the so-manieth time."""
    update, count = board.update, iter(range(1, 1_000_000))

    def acting() -> None:
        update()
        if next(count) == number:
            action()

    board.update = acting  # type: ignore[method-assign]


def reply_of(outcome: Any) -> dict[str, Any]:
    """Return the object of ``run --json``."""
    assert outcome.code == 0, outcome.err
    return dict(json.loads(outcome.out))


def test_a_reply_carries_the_contracts_keys(pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """Constant power makes joules checkable: watts times the time, and the phases add up to the whole."""
    board.set_power("VDD_IN", 8_000.0)
    stats = reply_of(invoke("run", str(pair), *RUN, "--json"))["stats"]
    energy = stats["energy"]
    assert set(energy) >= CONTRACT
    assert energy["joules"] == pytest.approx(8.0 * (stats["prefill_s"] + stats["decode_s"]), rel=0.2)
    assert energy["joules_per_token"] == pytest.approx(energy["joules"] / 40)
    assert {"prefill", "draft", "verify"} <= set(energy["by_phase"])
    phases = [joules for joules in energy["by_phase"].values() if joules is not None]
    assert sum(phases) == pytest.approx(energy["joules"], rel=0.05)
    assert (energy["source"], energy["rail"], energy["is_total"]) == ("simulated:orin-nano", "VDD_IN", True)
    assert energy["power_mode"] == "15W"
    assert energy["coverage"] > 0.99
    assert energy["plus_minus_joules"] > 0


def test_an_idle_baseline_is_subtracted_where_it_was_asked_for(
    pair: Path, board: SimulatedBoard, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power at rest is measured before the reply, for the time asked; without the flag both figures are null."""
    waits: list[float] = []
    measure = Meter.measure_idle

    def measure_idle(meter: Meter, seconds: float) -> Any:
        waits.append(seconds)
        return measure(meter, 0.05)

    monkeypatch.setattr(Meter, "measure_idle", measure_idle)
    board.set_power("VDD_IN", 8_000.0)
    energy = reply_of(invoke("run", str(pair), *RUN, "--json"))["stats"]["energy"]
    assert (energy["idle_watts"], energy["joules_above_idle"], waits) == (None, None, [])
    energy = reply_of(invoke("run", str(pair), *RUN, "--json", "--idle-baseline", "10"))["stats"]["energy"]
    assert waits == [10.0]
    assert energy["idle_watts"] == pytest.approx(8.0, rel=0.02)
    assert energy["joules_above_idle"] == pytest.approx(0.0, abs=0.02 * energy["joules"])
    assert "W at rest" in invoke("run", str(pair), *RUN, "--idle-baseline", "10").err


def test_a_simulated_board_by_its_flag(pair: Path, invoke: Callable[..., Any]) -> None:
    """The flag for app authors gives energy, or says that the run was too short for the sensor."""
    stats = reply_of(invoke("run", str(pair), *RUN, "--json", "--sensor", "simulated:orin-nano"))["stats"]
    assert stats["energy"] is not None or "too short" in stats["energy_note"]


def test_no_sensor_is_null_and_the_reason(pair: Path, invoke: Callable[..., Any]) -> None:
    """Never 0, never without a reason."""
    stats = reply_of(invoke("run", str(pair), *RUN, "--json", "--sensor", "none"))["stats"]
    assert stats["energy"] is None
    assert "the sensor is set to none" in stats["energy_note"]


def test_a_board_that_vanishes_mid_run_leaves_the_text_whole(
    pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]
) -> None:
    """The tokens are those of an unmeasured run; joules end where the sensor did, and the note has its last words."""
    plain = reply_of(invoke("run", str(pair), *RUN, "--json"))
    at_read(board, 6, board.close)
    reply = reply_of(invoke("run", str(pair), *RUN, "--json"))
    assert (reply["text"], reply["token_sha256"]) == (plain["text"], plain["token_sha256"])
    energy, note = reply["stats"]["energy"], reply["stats"]["energy_note"]
    assert energy["joules"] < plain["stats"]["energy"]["joules"] + energy["plus_minus_joules"]
    assert "the sensor ended" in note
    assert "the simulated board orin-nano was closed" in note
    assert energy["plus_minus_joules"] > 0


def test_a_rail_that_refuses_mid_run_ends_as_a_note(
    pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]
) -> None:
    """The bus hangs: the text goes on, and the failed reads are counted."""
    at_read(board, 6, lambda: board.break_rail("VDD_IN", errno.ETIMEDOUT))
    outcome = invoke("run", str(pair), *RUN)
    assert outcome.code == 0
    assert outcome.out.strip()
    assert "VDD_IN failed" in outcome.err
    assert "ETIMEDOUT" in outcome.err


def test_a_trace_has_the_power_of_every_rail(
    pair: Path, board: SimulatedBoard, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """Milliwatts by rail on the time axis of the tokens, from the start of the generation to its end."""
    path = tmp_path / "run.jsonl"
    board.set_power("VDD_IN", 8_000.0)
    reply_of(invoke("run", str(pair), *RUN, "--json", "--trace", str(path)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    powers = [line for line in lines if line["type"] == "power"]
    last_token_ns = max(line["time_ns"] for line in lines if line["type"] == "token")
    times_ns = [line["time_ns"] for line in powers]
    assert len(powers) >= 3
    assert times_ns == sorted(times_ns)
    assert times_ns[0] < last_token_ns <= times_ns[-1]
    assert set(powers[0]["milliwatts"]) == set(board.labels)
    assert powers[1]["milliwatts"]["VDD_IN"] == pytest.approx(8_000.0, abs=40)
    assert powers[1]["total_mw"] == powers[1]["milliwatts"]["VDD_IN"]
    assert lines[-1]["type"] == "end"


def test_a_trace_without_a_sensor_has_no_power(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """No line at all rather than lines of nothing; its last line has the reason."""
    path = tmp_path / "run.jsonl"
    reply_of(invoke("run", str(pair), *RUN, "--json", "--sensor", "none", "--trace", str(path)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert not [line for line in lines if line["type"] == "power"]
    assert "set to none" in lines[-1]["stats"]["energy_note"]


def test_a_rail_lost_on_the_way_is_null_in_the_trace(
    pair: Path, board: SimulatedBoard, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """Its neighbours go on, and a total without it is no total."""
    path = tmp_path / "run.jsonl"
    at_read(board, 6, lambda: board.break_rail("VDD_IN", errno.EIO))
    reply_of(invoke("run", str(pair), *RUN, "--json", "--trace", str(path)))
    last = [line for line in map(json.loads, path.read_text().splitlines()) if line["type"] == "power"][-1]
    assert (last["milliwatts"]["VDD_IN"], last["total_mw"]) == (None, None)
    assert last["milliwatts"]["VDD_SOC"] is not None


def test_a_power_budget_without_a_sensor_says_so(pair: Path, invoke: Callable[..., Any]) -> None:
    """A budget nobody can measure is not silently ignored."""
    outcome = invoke("run", str(pair), *RUN, "--sensor", "none", "--power-budget", "5")
    assert outcome.code == 2
    assert "a power budget needs a sensor with a known total, there is none" in outcome.err


def test_a_power_budget_keeps_the_tokens(pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """The budget moves gears, cap and pauses, never the text of mode exact."""
    board.set_power("VDD_IN", 6_000.0)
    plain = reply_of(invoke("run", str(pair), *RUN, "--json"))
    limited = reply_of(invoke("run", str(pair), *RUN, "--json", "--power-budget", "50"))
    assert limited["token_sha256"] == plain["token_sha256"]


def test_mode_bounded_asks_for_its_calibration(pair: Path, invoke: Callable[..., Any]) -> None:
    """It runs where the bundle has one and refuses in one sentence where not."""
    outcome = invoke("run", str(pair), "-p", "hello there", "-n", "8", "--ignore-eos", "--mode", "bounded", "--json")
    has_calibration = (pair / "calibration.json").exists()
    assert outcome.code == (0 if has_calibration else 2)
    assert has_calibration or "needs a calibration" in outcome.err


def test_chat_tells_the_energy_of_its_last_reply(pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """Joules, joules a token, phases, source and power mode, where a person asks for them."""
    outcome = invoke("chat", str(pair), "-n", "20", "--ignore-eos", "--quiet", stdin=b"hello\n/stats\n")
    assert outcome.code == 0, outcome.err
    for text in (" J/token", "± ", "energy: prefill ", "verify ", "simulated:orin-nano VDD_IN", "power mode 15W"):
        assert text in outcome.out, text


def make_energy(**changes: Any) -> EnergyStats:
    """Return the energy of a scripted reply; ``changes`` replace fields."""
    values: dict[str, Any] = {
        "joules": 4.2,
        "joules_per_token": 0.35,
        "by_phase": {"prefill": 0.5, "draft": 1.2, "verify": 2.5, "idle": None},
        "source": "ina3221",
        "rail": "VDD_IN",
        "is_total": True,
        "coverage": 1.0,
        "plus_minus_joules": 0.1,
    }
    return EnergyStats(**values | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "energy: prefill 0.5 J, draft 1.2 J, verify 2.5 J; ina3221 VDD_IN"),
        ({"is_total": False}, "ina3221 VDD_IN, part of the device only"),
        ({"coverage": 0.62, "note": "the sensor ended"}, "62% of the time seen; the sensor ended"),
        ({"power_mode": "MAXN"}, "power mode MAXN"),
        ({"idle_watts": 1.5, "joules_above_idle": 3.1}, "VDD_IN; 3.1 J above 1.5 W at rest"),
        ({"by_phase": {}}, "energy: no phase is known"),
        ({"by_phase": {"verify": 4.2, "idle": 1e-5}}, "energy: verify 4.2 J; ina3221"),
    ],
)
def test_details_say_how_far_to_trust_the_joules(
    script: SimpleNamespace, changes: dict[str, Any], expected: str
) -> None:
    """A part, a gap and a mode change what the number means."""
    assert expected in (energy_details(script.stats(12, energy=make_energy(**changes))) or "")


def test_the_line_is_short_and_the_details_are_whole(script: SimpleNamespace) -> None:
    """Every line of a chat has room for a beginning; the exact reason is one command away."""
    reason = "no power sensor can be read (jetson: no INA3221; rapl: no zones)"
    stats = script.stats(3, energy_note=reason)
    assert energy_in_words(stats) == "energy not measured: no power sensor can be read"
    assert energy_details(stats) == f"energy not measured: {reason}"
    assert energy_details(script.stats(3, energy_note="the sensor is set to none")) is None
    reply = script.reply([script.event(0)], stats=script.stats(1, energy=make_energy(), energy_note=None))
    assert "4.2 J ± 0.1, 0.35 J/token" in stats_line(reply)
