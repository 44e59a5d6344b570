"""RAPL: which zones count, wraparound, and a counter that only root may read."""

from __future__ import annotations

import errno
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.devices.meter import Meter
from edgeprec.devices.rapl import RaplSensor
from edgeprec.devices.sensor import Scope
from edgeprec.devices.wraparound import WrappingCounter
from edgeprec.errors import DeviceError

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
S, MS = fake.S, fake.MS
RANGE = 262_143_328_850


class Machine:
    """A tree of powercap zones: nested under the device folder, linked flat into the class folder, as in the kernel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = root / "sys/class/powercap"
        self.top.mkdir(parents=True)

    def zone(self, number: str, name: str, energy_uj: int | None = 0, range_uj: int | None = RANGE) -> Path:
        """Add a zone such as ``intel-rapl:0:1``."""
        control, *numbers = number.split(":")
        folder = self.root / "sys/devices/virtual/powercap" / control
        for i in range(len(numbers)):
            folder = folder / ":".join([control, *numbers[: i + 1]])
        folder.mkdir(parents=True)
        (folder / "name").write_text(name + "\n")
        if energy_uj is not None:
            (folder / "energy_uj").write_text(f"{energy_uj}\n")
        if range_uj is not None:
            (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
        (folder / "subsystem").symlink_to(self.top)  # a loop, as in the real tree
        (self.top / number).symlink_to(folder)
        return folder

    def set(self, folder: Path, energy_uj: int) -> None:
        """Let a counter move."""
        (folder / "energy_uj").write_text(f"{energy_uj}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without zones."""
    return Machine(tmp_path)


def deny(*denied: str) -> object:
    """Return a reader that refuses the counters whose path contains one of these texts, as the kernel does to users."""

    def read(path: Path) -> str:
        if path.name == "energy_uj" and any(text in str(path) for text in denied):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return path.read_text()

    return read


def measure(machine: Machine, moves_uj: dict[Path, int], seconds: float = 1.0) -> object:
    """Meter a window in which each zone gains so much, evenly."""
    clock = fake.FakeClock(0)
    sensor = RaplSensor.open(root=machine.root, clock=clock)
    starts = {folder: int((folder / "energy_uj").read_text()) for folder in moves_uj}
    samplers: list[object] = []

    def sampler(sample: object, period_ns: int) -> object:
        samplers.append(fake.ManualSampler(sample, period_ns))
        return samplers[-1]

    meter = Meter(sensor, clock=clock, sampler=sampler, cost_clock=clock)
    with meter.window("work") as window:
        for i in range(1, round(seconds * 20) + 1):
            clock.advance(50 * MS)
            for folder, gain in moves_uj.items():
                machine.set(folder, (starts[folder] + round(gain * i / (seconds * 20))) % RANGE)
            samplers[-1].sample()
    return window


def test_platform_and_second_listings_are_not_added(machine: Machine) -> None:
    """psys, core, uncore and the memory-mapped copy of the package stay out of the sum: 3.93 J, not 14.59 or 18.52."""
    moves = {
        machine.zone("intel-rapl:1", "psys"): 9_610_000,
        (package := machine.zone("intel-rapl:0", "package-0")): 3_930_000,
        machine.zone("intel-rapl:0:0", "core"): 840_000,
        machine.zone("intel-rapl:0:1", "uncore"): 210_000,
        machine.zone("intel-rapl-mmio:0", "package-0"): 3_930_000,
    }
    window = measure(machine, moves)
    assert window.reading.joules == pytest.approx(3.93, rel=0.01)
    assert (window.reading.scope, window.reading.source) == (Scope.CPU, "rapl")
    assert window.by_rail["psys"].reading.joules == pytest.approx(9.61, rel=0.01)
    assert window.by_rail["psys"].reading.is_total is False
    assert set(window.by_rail) == {"psys", "package-0", "package-0/core", "package-0/uncore"}
    rails = {rail.id: rail.parent for rail in RaplSensor.open(root=machine.root).rails}
    assert rails["package-0/core"] == "package-0"
    assert package.exists()


@pytest.mark.parametrize("place", ["intel-rapl:0:2", "intel-rapl:3"])
def test_memory_beside_the_package_is_added(machine: Machine, place: str) -> None:
    """dram lies outside the package, as its child or on top: the total is both."""
    moves = {machine.zone("intel-rapl:0", "package-0"): 4_000_000, machine.zone(place, "dram"): 1_000_000}
    assert measure(machine, moves).reading.joules == pytest.approx(5.0, rel=0.01)


def test_two_sockets_are_summed(machine: Machine) -> None:
    """Two packages of an AMD or Intel server are both the total."""
    moves = {machine.zone(f"intel-rapl:{i}", f"package-{i}", i * 10**9): (i + 1) * 10**6 for i in range(2)}
    assert measure(machine, moves).reading.joules == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize(("second_uj", "joules"), [(7_000_000_010, 2.0), (1_000_000_000, 4.0)])
def test_dies_that_mirror_one_counter_count_once(machine: Machine, second_uj: int, joules: float) -> None:
    """Two dies that show the same figure are one counter; two that differ are two."""
    moves = {
        machine.zone("intel-rapl:0", "package-0-die-0", 7_000_000_000): 2_000_000,
        machine.zone("intel-rapl:1", "package-0-die-1", second_uj): 2_000_000,
    }
    assert measure(machine, moves).reading.joules == pytest.approx(joules, rel=0.01)


def test_memory_mapped_zone_alone_is_used(machine: Machine) -> None:
    """Where only the memory-mapped listing exists it is the package."""
    moves = {machine.zone("intel-rapl-mmio:0", "package-0"): 3_000_000}
    assert measure(machine, moves).reading.joules == pytest.approx(3.0, rel=0.01)


def test_platform_alone_is_an_assumed_total(machine: Machine) -> None:
    """Without a package the platform zone is the total of the board, marked as assumed."""
    machine.zone("intel-rapl:0", "psys")
    total = RaplSensor.open(root=machine.root).total
    assert (total.rail_ids, total.scope, total.is_assumed) == (("psys",), Scope.BOARD_INPUT, True)


def test_frozen_platform_does_not_matter(machine: Machine) -> None:
    """Firmware that freezes psys under load leaves the packages' total as it is."""
    moves = {machine.zone("intel-rapl:0", "package-0"): 5_000_000, machine.zone("intel-rapl:1", "psys", 77): 0}
    window = measure(machine, moves)
    assert window.reading.joules == pytest.approx(5.0, rel=0.01)
    assert window.by_rail["psys"].reading is None
    assert "did not move" in window.by_rail["psys"].note


def test_wrap_in_the_middle_of_a_window(machine: Machine) -> None:
    """A counter that wraps while it is metered gives the right joules, without a reset and never negative."""
    package = machine.zone("intel-rapl:0", "package-0", RANGE - 2_000_000)
    reading = measure(machine, {package: 5_000_000}).reading
    assert reading.joules == pytest.approx(5.0, rel=0.01)
    assert (reading.resets, reading.coverage) == (0, 1.0)


def test_two_reads_across_a_wrap(machine: Machine) -> None:
    """262143000000 then 1000000 uJ are 1328850 uJ."""
    package = machine.zone("intel-rapl:0", "package-0", 262_143_000_000)
    clock = fake.FakeClock(0)
    sensor = RaplSensor.open(root=machine.root, clock=clock)
    before = sensor.read().values["package-0"]
    clock.advance(50 * MS)
    machine.set(package, 1_000_000)
    sample = sensor.read()
    assert sample.values["package-0"] - before == pytest.approx(1328.850)
    assert sample.restarts == frozenset()


@pytest.mark.parametrize("range_uj", [None, 1000])
def test_backwards_without_a_usable_range_is_a_restart(machine: Machine, range_uj: int | None) -> None:
    """Without the range, or with one too small, the interval is dropped instead of guessed."""
    package = machine.zone("intel-rapl:0", "package-0", 10_000_000, range_uj)
    clock = fake.FakeClock(0)
    sensor = RaplSensor.open(root=machine.root, clock=clock)
    sensor.read()
    clock.advance(MS if range_uj else 50 * MS)
    machine.set(package, 50)
    assert sensor.read().restarts == frozenset({"package-0"})


def test_root_only_counter_is_explained(machine: Machine) -> None:
    """The normal case for a user: unavailable, why, and a fix that opens it to a group and not to the world."""
    machine.zone("intel-rapl:0", "package-0")
    with pytest.raises(DeviceError, match="energy_uj is readable by root only") as caught:
        RaplSensor.open(root=machine.root, read=deny("intel-rapl"))
    assert "0440 root power" in str(caught.value)
    assert "a+r" not in str(caught.value)


def test_one_unreadable_zone_does_not_hide_the_others(machine: Machine) -> None:
    """A package that can be read is measured; the memory that cannot makes the sum partial and is named."""
    package = machine.zone("intel-rapl:0", "package-0", 5_000_000)
    machine.zone("intel-rapl:0:0", "dram")
    clock = fake.FakeClock(0)
    sensor = RaplSensor.open(root=machine.root, read=deny("intel-rapl:0:0"), clock=clock)
    meter = Meter(sensor, clock=clock, sampler=fake.ManualSampler, cost_clock=clock)
    with meter.window("work") as window:
        for i in range(20):
            clock.advance(50 * MS)
            machine.set(package, 5_000_000 + (i + 1) * 100_000)
            meter.sample()
    assert window.reading.joules == pytest.approx(2.0, rel=0.01)
    assert window.reading.is_total is False
    assert "package-0/dram not measured: energy_uj is readable by root only" in window.note


@pytest.mark.parametrize("text", ["", "abc\n", "\n", "12 34\n"])
def test_garbage_in_a_counter_is_none(machine: Machine, text: str) -> None:
    """A counter that is not a number is None with a reason."""
    machine.zone("intel-rapl:0", "package-0")
    bad = machine.zone("intel-rapl:1", "package-1")
    (bad / "energy_uj").write_text(text)
    sample = RaplSensor.open(root=machine.root).read()
    assert sample.values["package-1"] is None
    assert sample.reasons["package-1"] == "energy_uj is not a number"
    assert sample.values["package-0"] == 0.0


def test_zones_that_vanish_end_the_series(machine: Machine) -> None:
    """Unloading the driver ends the sensor with a reason."""
    package = machine.zone("intel-rapl:0", "package-0")
    sensor = RaplSensor.open(root=machine.root)
    os.remove(package / "energy_uj")
    with pytest.raises(DeviceError, match="RAPL zones are gone"):
        sensor.read()
    sensor.close()
    sensor.close()


@pytest.mark.parametrize("has_folder", [False, True])
def test_no_zones_is_explained(tmp_path: Path, has_folder: bool) -> None:
    """An ARM board, WSL or a virtual machine without powercap: CPU energy is unavailable, and why."""
    if has_folder:
        Machine(tmp_path)
    with pytest.raises(DeviceError, match="no RAPL zones under"):
        RaplSensor.open(root=tmp_path)


def test_a_zone_without_its_name_is_skipped(machine: Machine) -> None:
    """A half-made folder is no zone."""
    machine.zone("intel-rapl:0", "package-0")
    os.remove(machine.zone("intel-rapl:1", "package-1") / "name")
    assert [rail.id for rail in RaplSensor.open(root=machine.root).rails] == ["package-0"]


def test_zones_of_one_name_stay_apart(machine: Machine) -> None:
    """Two zones that call themselves alike have different ids."""
    machine.zone("intel-rapl:0", "dram")
    machine.zone("intel-rapl:1", "dram")
    assert [rail.id for rail in RaplSensor.open(root=machine.root).rails] == ["dram", "dram#1"]


@given(
    st.integers(0, RANGE - 1),
    st.lists(st.tuples(st.integers(1, 60_000), st.floats(0, 900)), min_size=1, max_size=30),
)
def test_any_number_of_wraps_is_unfolded(start_uj: int, steps: list[tuple[int, float]]) -> None:
    """However power and pauses fall, the unfolded counter grows by exactly the energy used."""
    counter = WrappingCounter(RANGE)
    true_uj, time_ns = start_uj, 0
    first = counter.update(true_uj % RANGE, time_ns).total_uj
    for pause_ms, watts in steps:
        time_ns += pause_ms * MS
        true_uj += round(watts * pause_ms * 1000)
        counted = counter.update(true_uj % RANGE, time_ns)
        assert not counted.is_restart
        assert counted.total_uj - first == true_uj - start_uj


@pytest.mark.parametrize(
    ("raw_uj", "pause_s", "is_restart"),
    [
        (5_000, 0.05, True),  # 262 kJ in 50 ms: the counter was reset, it did not wrap
        (RANGE - 50, 400.0, True),  # 400 s unread: at 1 kW it may have wrapped twice
        (RANGE - 50, 1.0, False),
    ],
)
def test_what_cannot_be_known_is_a_restart(raw_uj: int, pause_s: float, is_restart: bool) -> None:
    """An impossible power or a pause too long for one wrap is no energy but a new beginning."""
    counter = WrappingCounter(RANGE)
    counter.update(RANGE - 100 if pause_s != 0.05 else 10_000, 0)
    assert counter.update(raw_uj, round(pause_s * S)).is_restart is is_restart
