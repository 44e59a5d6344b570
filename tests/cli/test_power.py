"""``edgeprec power``: every rail with its uncertainty, the total or the reason, once and live, also as JSON."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edgeprec.devices import SimulatedBoard, simulated
from edgeprec.devices.detect import Attempt, Detection
from edgeprec.devices.sensor import Quantity, Rail, Sample, Scope, Sensor, Total
from edgeprec.devices.simulated import SIMULATED_BOARDS, SimulatedSensor
from edgeprec.devices.sysfs import Sysfs
from edgeprec.errors import DeviceError

BOARD = ("power", "--sensor", "simulated:agx-orin")
GPU = Rail(id="gpu0", label="GPU", quantity=Quantity.ENERGY, step_ms=100)


class CountingSensor:
    """An energy counter: each read is 2 s after the last and shows the next of ``counts`` (mJ)."""

    source = "nvml"
    rails = (GPU,)
    total: Total | None = Total(rail_ids=("gpu0",), scope=Scope.GPU, evidence="scripted")
    total_note: str | None = None
    period_ms = 100.0
    lag_ms = None

    def __init__(self, *counts: float | None, restarts: int = -1) -> None:
        self._samples = iter(
            Sample(
                time_ns=2_000_000_000 * index,
                values={"gpu0": count},
                reasons={} if count is not None else {"gpu0": "GPU is lost"},
                restarts=frozenset({"gpu0"} if index == restarts else ()),
            )
            for index, count in enumerate(counts)
        )
        self.is_closed = False

    def read(self) -> Sample:
        """Return the next sample; after the last one the sensor is dead."""
        sample = next(self._samples, None)
        if sample is None:
            raise DeviceError("every GPU is gone")
        return sample

    def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sensor], None]:
    """Return ``use(sensor)``: whatever is asked for, this one is found."""

    def use(sensor: Sensor) -> None:
        attempt = Attempt(source="nvml", ok=True, reason=None)
        sysfs = sensor.board.sysfs if isinstance(sensor, SimulatedSensor) else Sysfs()
        found = Detection(sensor=sensor, attempts=(attempt,), sysfs=sysfs)
        monkeypatch.setattr(sys.modules["edgeprec.devices.detect"], "detect", lambda _wanted: found)

    return use


@pytest.fixture
def board(use: Callable[[Sensor], None]) -> Iterator[SimulatedBoard]:
    """Return an AGX Orin that the command finds."""
    with simulated("agx-orin") as board:
        use(board.sensor())
        yield board


def objects(outcome: Any) -> list[dict[str, Any]]:
    """Return the JSON objects of each line."""
    return [json.loads(line) for line in outcome.out.splitlines()]


@pytest.mark.parametrize("name", SIMULATED_BOARDS)
def test_every_board_shows_rails_and_a_total(name: str, invoke: Callable[..., Any]) -> None:
    """The same keys on every generation, and the total is the sum of its rails."""
    outcome = invoke("power", "--json", "--sensor", f"simulated:{name}")
    assert (outcome.code, outcome.err) == (0, "")
    (found,) = objects(outcome)
    assert found["source"] == f"simulated:{name}"
    assert found["board"].startswith("Jetson")
    by_label = {rail["label"]: rail["power_mw"] for rail in found["rails"]}
    assert found["total"]["power_mw"] == pytest.approx(sum(by_label[label] for label in found["total"]["rails"]))
    assert found["total"]["scope"] in {"module", "module_computed", "board_input"}
    assert found["total"]["evidence"]


def test_the_table_names_board_mode_scope_and_evidence(invoke: Callable[..., Any]) -> None:
    """A person sees what the total covers and why it is believed."""
    words = " ".join(invoke(*BOARD).out.split())
    assert "Jetson AGX Orin 64GB, sensor simulated:agx-orin, power mode MODE_30W" in words
    assert "VDDQ_VDD2_1V8AO 0.40 ± 0.10 W inside VIN_SYS_5V0" in words
    assert "total 8.7 ± 0.6 W module_computed" in words
    assert "the board is simulated" in words


def test_a_mode_without_a_name_goes_by_its_number(board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """A configuration of another release names fewer modes than the board has."""
    board.set_power_mode(17)
    assert objects(invoke("power", "--json"))[0]["power_mode"] == "mode 17"


def test_a_figure_below_zero_reads_as_zero_and_stays_data(board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """A gated rail shows one step below zero: people read 0 and its uncertainty, programs the figure."""
    board.set_power("VDD_GPU_SOC", -240.0)
    assert "0 ± 0.2 W" in invoke("power").out
    (found,) = objects(invoke("power", "--json"))
    rail = found["rails"][0]
    assert rail["power_mw"] == pytest.approx(-rail["plus_minus_mw"])


def test_a_rail_that_refuses_takes_the_total_away(board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """The others are shown, and a sum of what is left is never called the total."""
    board.break_rail("VDD_CPU_CV", errno.ETIMEDOUT)
    (found,) = objects(invoke("power", "--json"))
    powers = {rail["label"]: rail["power_mw"] for rail in found["rails"]}
    assert powers.pop("VDD_CPU_CV") is None
    assert None not in powers.values()
    assert found["total"] is None
    assert found["reason"].startswith("VDD_CPU_CV not measured: ETIMEDOUT")
    words = " ".join(invoke("power").out.split())
    assert "total - not measured" in words
    assert "no total: VDD_CPU_CV not measured: ETIMEDOUT" in words


@pytest.mark.parametrize("flags", [(), ("--json",), ("--watch",), ("--watch", "--json")])
def test_no_sensor_is_an_answer(invoke: Callable[..., Any], flags: tuple[str, ...]) -> None:
    """Exit 0 with the reason, and a watch of nothing does not hang."""
    outcome = invoke("power", "--sensor", "none", *flags)
    assert (outcome.code, outcome.err) == (0, "")
    if "--json" in flags:
        (found,) = objects(outcome)
        assert (found["total"], found["rails"]) == (None, [])
        assert "set to none" in found["reason"]
    else:
        assert "not measured: power is not measured: the sensor is set to none" in " ".join(outcome.out.split())


def test_a_sensor_named_that_fails_is_an_error(invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Who asks for one sensor wants no other, and no table without figures."""
    outcome = invoke("power", "--sensor", f"replay:{tmp_path / 'absent.jsonl'}")
    assert (outcome.code, outcome.out) == (5, "")
    assert "absent.jsonl cannot be read" in outcome.err


def test_a_counter_is_read_twice_and_carries_the_width_of_its_step(
    use: Callable[[Sensor], None], invoke: Callable[..., Any]
) -> None:
    """Energy over time is power; a counter that steps every 100 ms leaves 100 ms of doubt over the 2 s."""
    sensor = CountingSensor(1_000.0, 241_000.0)
    use(sensor)
    (found,) = objects(invoke("power", "--json", "--interval", "0.01"))
    assert found["total"]["power_mw"] == pytest.approx(120_000.0)
    assert found["total"]["plus_minus_mw"] == pytest.approx(6_000.0)
    assert sensor.is_closed


@pytest.mark.parametrize(
    ("sensor", "expected"),
    [
        (CountingSensor(5_000.0, 10.0), "GPU not measured: its counter began anew"),
        (CountingSensor(5_000.0, 9_000.0, restarts=1), "GPU not measured: its counter began anew"),
        (CountingSensor(5_000.0, None), "GPU not measured: GPU is lost"),
        (CountingSensor(None, 5_000.0), "GPU not measured: its counter was read once so far"),
    ],
)
def test_a_counter_without_a_difference_gives_a_reason(
    use: Callable[[Sensor], None], invoke: Callable[..., Any], sensor: CountingSensor, expected: str
) -> None:
    """A reset is not negative power, and an unread value is not zero."""
    use(sensor)
    (found,) = objects(invoke("power", "--json", "--interval", "0.01"))
    assert found["total"] is None
    assert found["rails"][0]["power_mw"] is None
    assert found["reason"] == expected


def test_a_partial_total_is_not_shown_as_the_total(use: Callable[[Sensor], None], invoke: Callable[..., Any]) -> None:
    """Of two GPUs one refuses: its neighbour's watts are not the machine's."""
    sensor = CountingSensor(0.0, 1_000.0)
    sensor.total = Total(rail_ids=("gpu0",), scope=Scope.GPU, evidence="scripted", is_partial=True)
    sensor.total_note = "gpu1 not measured: no permission"
    use(sensor)
    (found,) = objects(invoke("power", "--json", "--interval", "0.01"))
    assert found["rails"][0]["power_mw"] == pytest.approx(500.0)
    assert (found["total"], found["reason"]) == (None, "gpu1 not measured: no permission")


def test_a_watch_gives_one_object_a_line(invoke: Callable[..., Any]) -> None:
    """So that it can be piped into a program."""
    outcome = invoke(*BOARD, "--watch", "--json", "--interval", "0.1", "--seconds", "0.3")
    found = objects(outcome)
    assert outcome.code == 0
    assert len(found) >= 2
    times = [reading["unix_time_s"] for reading in found]
    assert times == sorted(times)


def test_a_watched_counter_begins_with_a_figure(use: Callable[[Sensor], None], invoke: Callable[..., Any]) -> None:
    """Its first reading tells no power and is not shown."""
    use(CountingSensor(0.0, 2_000.0, 10_000.0))
    found = objects(invoke("power", "--watch", "--json", "--interval", "0.01"))
    assert [reading["total"]["power_mw"] for reading in found[:2]] == [pytest.approx(1_000.0), pytest.approx(4_000.0)]


def test_a_watch_shows_the_extremes(use: Callable[[Sensor], None], invoke: Callable[..., Any]) -> None:
    """A peak between two looks is not lost."""
    use(CountingSensor(0.0, 2_000.0, 10_000.0, 14_000.0))
    outcome = invoke("power", "--watch", "--interval", "0.01", env={"COLUMNS": "120"})
    last = [line.split() for line in outcome.out.splitlines() if "GPU" in line and "±" in line][-1]
    assert last[:7] == ["GPU", "2.0", "±", "0.1", "W", "1.0", "4.0"]


def test_a_terminal_is_updated_in_place(invoke: Callable[..., Any]) -> None:
    """On a terminal the second table is drawn over the first."""
    flags = ("--watch", "--interval", "0.01", "--seconds", "0.02")
    outcome = invoke(*BOARD, *flags, env={"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"})
    assert outcome.code == 0
    assert "\x1b[1A\x1b[2K" in outcome.out


def test_ctrl_c_ends_a_watch_cleanly(board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """It is the ordinary end of a watch: no message, exit 0."""
    update, calls = board.update, iter(range(1000))

    def interrupting() -> None:
        update()
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    board.update = interrupting  # type: ignore[method-assign]
    outcome = invoke("power", "--watch", "--json", "--interval", "0.01")
    assert (outcome.code, outcome.err) == (0, "")
    assert 2 <= len(objects(outcome)) <= 4


def test_a_sensor_that_dies_ends_the_watch_with_its_last_words(
    use: Callable[[Sensor], None], invoke: Callable[..., Any]
) -> None:
    """The last line says why there is no figure, and a script sees the failure."""
    use(CountingSensor(0.0, 2_000.0))
    outcome = invoke("power", "--watch", "--json", "--interval", "0.01")
    assert outcome.code == 5
    assert outcome.err == "edgeprec: every GPU is gone\n"
    last = objects(outcome)[-1]
    assert (last["total"], last["reason"]) == (None, "the sensor ended: every GPU is gone")
    assert last["rails"][0]["power_mw"] is None


def test_a_recording_can_be_watched_again(invoke: Callable[..., Any], tmp_path: Path) -> None:
    """What was recorded has no gaps between the displays, and the end of a trace is no failure."""
    trace = tmp_path / "trace.jsonl"
    flags = ("--watch", "--interval", "0.25", "--seconds", "0.3", "--json")
    recorded = objects(invoke(*BOARD, *flags, "--record", str(trace)))
    header, *samples = [json.loads(line) for line in trace.read_text().splitlines()]
    assert header["source"] == "simulated:agx-orin"
    steps_ms = [(b["time_ns"] - a["time_ns"]) / 1e6 for a, b in pairwise(samples)]
    assert len(samples) > len(recorded)
    assert sorted(steps_ms)[len(steps_ms) // 2] < 2 * header["period_ms"]
    outcome = invoke("power", "--sensor", f"replay:{trace}", "--watch", "--interval", "0.1", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert objects(outcome)[0]["total"]["power_mw"] == pytest.approx(recorded[0]["total"]["power_mw"])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--seconds", "5"), "--seconds ends --watch, which was not given: add --watch"),
        (("--interval", "0"), "'--interval': 0.0 is not in the range x>=0.01"),
        (("--record", "no/such/folder.jsonl"), "the folder no/such does not exist"),
        (("--sensor", "thermometer"), "the sensor 'thermometer' is not known"),
        (("--sensor", "simulated:orin"), "there is no simulated board 'orin'"),
    ],
)
def test_bad_flags_are_refused(invoke: Callable[..., Any], flags: tuple[str, ...], expected: str) -> None:
    """One sentence, exit 2, nothing printed."""
    outcome = invoke("power", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert expected in outcome.err


@pytest.mark.parametrize("live", [(), ("--watch",)])
def test_nothing_to_record_is_a_failure(invoke: Callable[..., Any], tmp_path: Path, live: tuple[str, ...]) -> None:
    """Who asks for a trace and gets none must not read success."""
    trace = tmp_path / "trace.jsonl"
    outcome = invoke("power", *live, "--sensor", "none", "--record", str(trace))
    assert (outcome.code, outcome.out) == (5, "")
    assert outcome.err.startswith(f"edgeprec: --record {trace} has nothing to record: ")
    assert outcome.err.count("\n") == 1
    assert not trace.exists()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("flag", ["--interval", "--seconds"])
def test_times_are_finite(invoke: Callable[..., Any], flag: str, value: str) -> None:
    """Waiting for NaN seconds is no wait and no error, and for infinitely many no end."""
    outcome = invoke(*BOARD, "--watch", flag, value)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1


def test_a_recording_replaces_no_file(invoke: Callable[..., Any], tmp_path: Path) -> None:
    """An hour of measurements is not overwritten by a second run of the same line."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("kept")
    outcome = invoke(*BOARD, "--record", str(trace))
    assert outcome.code == 2
    assert "exists already: choose another name" in outcome.err
    assert trace.read_text() == "kept"
