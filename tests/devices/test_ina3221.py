"""Rails through sysfs: published failures of other tools as inputs, and what every chip and layout must give."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.meter import Meter
from edgeprec.devices.sensor import Scope
from edgeprec.devices.tree_builder import TreeBuilder
from edgeprec.errors import DeviceError

Plant = Callable[[str], TreeBuilder]
Open = Callable[[TreeBuilder], Ina3221Sensor]
S = 1_000_000_000


def watts(sensor: Ina3221Sensor) -> dict[str, float | None]:
    """Return the power of all rails in mW, by label."""
    sample = sensor.read()
    return {rail.label: sample.values[rail.id] for rail in sensor.rails}


def total_mw(sensor: Ina3221Sensor) -> float:
    """Return the sum of the rails of the total."""
    assert sensor.total is not None, sensor.total_note
    values = sensor.read().values
    return sum(value for rail in sensor.total.rail_ids if (value := values[rail]) is not None)


def agx_orin(tree: TreeBuilder, *, first: int = 3, second: int = 4) -> TreeBuilder:
    """Plant the two chips of an AGX Orin at the given hwmon numbers."""
    folder = tree.hwmon_chip(first, "ina3221", "1-0040")
    for index, (label, mv, ma) in enumerate(
        [("VDD_GPU_SOC", 12008, 280), ("VDD_CPU_CV", 12008, 40), ("VIN_SYS_5V0", 4968, 980)], start=1
    ):
        tree.hwmon_channel(folder, index, label, mv, ma)
    tree.files(folder, {"in7_label": "sum of shunt voltages", "in7_input": 760, "curr4_input": 360})
    folder = tree.hwmon_chip(second, "ina3221", "1-0041")
    tree.hwmon_channel(folder, 1, "NC", 0, 0)
    tree.hwmon_channel(folder, 2, "VDDQ_VDD2_1V8AO", 4968, 80)
    return tree


def test_nano_counts_its_input_once(tree: TreeBuilder, open_rails: Open) -> None:
    """jetson_stats#51: the total is POM_5V_IN alone, the other two lie inside it."""
    folder = tree.iio_chip(0, "6-0040")
    for index, (label, *readings) in enumerate(
        [("POM_5V_IN", 5000, 400, 2000), ("POM_5V_GPU", 5000, 20, 100), ("POM_5V_CPU", 5000, 80, 400)]
    ):
        tree.iio_channel(folder, index, label, readings)
    sensor = open_rails(tree)
    assert watts(sensor) == {"POM_5V_IN": 2000, "POM_5V_GPU": 100, "POM_5V_CPU": 400}
    assert total_mw(sensor) == 2000
    assert [rail.parent for rail in sensor.rails] == [None, "6-0040:0", "6-0040:0"]


def test_agx_orin_total_is_three_rails(tree: TreeBuilder, open_rails: Open) -> None:
    """jetson_stats#344: neither the 5 V domain alone (4868.64) nor all four rails (9108.64), but 8711.2 mW."""
    sensor = open_rails(agx_orin(tree))
    assert total_mw(sensor) == pytest.approx(8711.2)
    assert sensor.total is not None
    assert sensor.total.scope is Scope.MODULE_COMPUTED
    assert [rail.label for rail in sensor.rails] == ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]
    assert sensor.rails[3].parent == sensor.rails[2].id
    assert watts(sensor)["VDDQ_VDD2_1V8AO"] == pytest.approx(397.44)


def test_thor_counts_the_input_in_microwatts(tree: TreeBuilder, open_rails: Open) -> None:
    """jetson_stats PR#900: VIN of the INA238 is the total (uW), USB-PD supplies are no rails, negatives stay."""
    folder = tree.hwmon_chip(5, "ina3221", "2-0040")
    tree.hwmon_channel(folder, 1, "VDD_GPU", 19600, -20)
    tree.hwmon_channel(folder, 2, "VDD_CPU_SOC_MSS", 19620, 200)
    tree.hwmon_channel(folder, 3, "VIN_SYS_5V0", 4965, 1020)
    folder = tree.hwmon_chip(4, "ina238", "2-0044")
    tree.files(folder, {"label": "VIN", "power1_input": 15004000, "in1_input": 19875, "curr1_input": 755})
    tree.files(
        "sys/class/power_supply/ucsi-source-psy-1-00081",
        {"type": "USB", "online": 1, "voltage_now": 20000000, "current_now": 3250000},
    )
    sensor = open_rails(tree)
    assert watts(sensor) == {
        "VDD_GPU": pytest.approx(-392),
        "VDD_CPU_SOC_MSS": pytest.approx(3924),
        "VIN_SYS_5V0": pytest.approx(5064.3),
        "VIN": 15004,
    }
    assert sensor.total is not None
    assert (sensor.total.scope, total_mw(sensor)) == (Scope.BOARD_INPUT, 15004)


@pytest.mark.parametrize(
    ("files", "label", "power_mw"),
    [
        ({"label": "VIN", "power1_input": 38017000, "in1_input": 20009, "curr1_input": 1900}, "VIN", 38017),
        ({"in1_label": "VIN", "power1_input": 19555200, "in1_input": 54434, "curr1_input": 360}, "VIN", 19555.2),
        ({"power1_input": 38017000, "in1_input": 20009, "curr1_input": 1900}, "VIN", 38017),
        ({"label": "CARRIER", "power1_input": 1000, "in1_input": 1, "curr1_input": 1}, "CARRIER", 1),
        ({"label": "VIN", "in1_input": 20009, "curr1_input": 1900}, "VIN", 38017.1),
        ({"label": "VIN", "power1_input": "garbage", "in1_input": 20009, "curr1_input": 1900}, "VIN", 38017.1),
        ({"label": "VIN", "in0_input": 1, "in1_input": 20009, "curr1_input": 0, "power1_input": 0}, "VIN", 0),
    ],
)
def test_the_ina238_tells_power_itself(
    tree: TreeBuilder, open_rails: Open, files: dict[str, str | int], label: str, power_mw: float
) -> None:
    """power1_input in uW counts where it can be read, else bus voltage times current; the label has three places."""
    tree.files(tree.hwmon_chip(4, "ina238", "2-0044"), files)
    assert watts(open_rails(tree)) == {label: pytest.approx(power_mw)}


def test_a_negative_current_is_kept_and_its_step_is_known(plant: Plant, open_rails: Open) -> None:
    """Thor's gated GPU rail reads -392 mW, one step of current: data with a stated resolution."""
    sensor = open_rails(plant("thor-r38"))
    gpu = sensor.rails[0]
    assert sensor.read().values[gpu.id] == pytest.approx(-392)
    assert gpu.step == pytest.approx(392)


def test_negative_samples_reach_the_reading(plant: Plant, open_rails: Open) -> None:
    """Negatives are integrated as they are, and the reading counts them."""
    tree = plant("thor-r38-no-ina238")
    for name in ("curr2_input", "curr3_input"):
        (tree.root / f"sys/class/hwmon/hwmon5/{name}").write_text("0\n")
    (tree.root / "sys/class/hwmon/hwmon5/curr1_input").write_text("-20\n")
    clock = iter(range(0, 100 * S, S // 20)).__next__
    sensor = Ina3221Sensor.open(tree.root, reader=tree.read, clock=clock)

    class Still:
        def __init__(self, sample: Callable[[], bool], period_ns: int) -> None:
            self.sample = sample

        def start(self) -> None:
            for _ in range(5):
                self.sample()

        def stop(self) -> None:
            pass

    meter = Meter(sensor, clock=clock, sampler=Still, period_ms=500)
    with meter.window("idle") as window:
        pass
    assert window.reading is not None
    assert window.reading.joules < 0
    assert window.reading.negatives > 0


def test_disabled_channels_are_no_failure(
    tree: TreeBuilder, open_rails: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """alumet#212, meta-tegra#1613: channels without label that answer ENODATA leave one rail and no warning."""
    folder = tree.hwmon_chip(2, "ina3221", "1-0041")
    tree.hwmon_channel(folder, 2, "VDDQ_VDD2_1V8AO", 4968, 80)
    for name in ("in1_input", "in3_input", "curr1_input", "curr3_input"):
        tree.file(f"{folder}/{name}", 0)
        tree.fail(f"{folder}/{name}", errno.ENODATA)
    tree.file(f"{folder}/power/autosuspend_delay_ms", 0)
    tree.fail(f"{folder}/power/autosuspend_delay_ms", errno.EIO)
    with caplog.at_level(logging.WARNING):
        sensor = open_rails(tree)
        for _ in range(10):
            assert watts(sensor) == {"VDDQ_VDD2_1V8AO": pytest.approx(397.44)}
    assert [record for record in caplog.records if "no total" not in record.getMessage()] == []


def test_a_rail_without_its_siblings_is_no_total(tree: TreeBuilder, open_rails: Open) -> None:
    """jetson_stats#381: NC, the shunt sum and curr4 are no rails; one rail of another chip is not the total."""
    folder = tree.hwmon_chip(4, "ina3221", "1-0041")
    tree.hwmon_channel(folder, 1, "NC", 0, 0)
    tree.hwmon_channel(folder, 2, "VDDQ_VDD2_1V8AO", 4968, 80)
    tree.hwmon_channel(folder, 3, "NC", 0, 0)
    tree.files(folder, {"in7_label": "sum of shunt voltages", "in7_input": 160, "curr4_input": 80})
    sensor = open_rails(tree)
    assert watts(sensor) == {"VDDQ_VDD2_1V8AO": pytest.approx(397.44)}
    assert sensor.total is None
    assert "no total known" in str(sensor.total_note)


def test_a_label_that_contains_nc_is_a_rail(tree: TreeBuilder, open_rails: Open) -> None:
    """jetson_stats#381 logs: only the label NC exactly means not connected."""
    folder = agx_orin(tree).root.joinpath("sys/class/hwmon/hwmon4")
    (folder / "in3_label").write_text("VDD_SYNC\n")
    (folder / "in3_input").write_text("4968\n")
    (folder / "curr3_input").write_text("20\n")
    sensor = open_rails(tree)
    assert watts(sensor)["VDD_SYNC"] == pytest.approx(99.36)
    assert total_mw(sensor) == pytest.approx(8711.2)


def test_shunt_voltages_are_never_multiplied(tree: TreeBuilder, open_rails: Open) -> None:
    """in4 to in6 are shunt voltages in uV and curr4 is a sum: they are not one channel, even with a label."""
    folder = str(agx_orin(tree).root / "sys/class/hwmon/hwmon3")
    for name, value in {"in4_input": 560, "in5_input": 80, "in6_input": 1960, "in4_label": "VDD_FAKE"}.items():
        Path(folder, name).write_text(f"{value}\n")
    sensor = open_rails(tree)
    assert len(sensor.rails) == 4
    assert total_mw(sensor) == pytest.approx(8711.2)


def test_no_chip_is_an_error_with_the_place(plant: Plant) -> None:
    """jetson_power#1: without a monitor there is a sentence that says where it was looked for, not 0 mW."""
    tree = plant("x86-none")
    with pytest.raises(DeviceError, match=r"no INA3221 or INA238 .*sys/bus/i2c/devices"):
        Ina3221Sensor.open(tree.root)


def test_xavier_nx_on_jetpack_5_is_read(plant: Plant, open_rails: Open) -> None:
    """jetson_power#1: no ina3221x folder, bus 7, VDD_IN is the total; the shared rail says that it is shared."""
    sensor = open_rails(plant("xavier-nx-r35"))
    assert total_mw(sensor) == pytest.approx(9250.304)
    assert "no figure for the GPU alone" in str(sensor.rails[1].note)


@pytest.mark.parametrize("fault", ["no hwmon", "no current", "empty current", "empty label", "binary label"])
def test_a_partial_chip_never_takes_others_down(
    tree: TreeBuilder, open_rails: Open, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """jetson_stats crashes here: the damaged rail is skipped or None with one warning, the others stay."""
    folder = agx_orin(tree).root / "sys/devices/platform/i2c-1/1-0041/hwmon/hwmon4"
    match fault:
        case "no hwmon":
            shutil.rmtree(folder)
        case "no current":
            (folder / "curr2_input").unlink()
        case "empty current":
            (folder / "curr2_input").write_text("")
        case "empty label":
            (folder / "in2_label").write_text("\n")
        case "binary label":
            (folder / "in2_label").write_bytes(b"\xff\xfe\x01\n")
    with caplog.at_level(logging.WARNING):
        sensor = open_rails(tree)
        for _ in range(5):
            assert total_mw(sensor) == pytest.approx(8711.2)
            assert watts(sensor).get("VDDQ_VDD2_1V8AO") is None
    warnings = [record.getMessage() for record in caplog.records if "inferred" not in record.getMessage()]
    assert len(warnings) == (0 if fault == "no hwmon" else 1), warnings


@pytest.mark.parametrize(
    "code",
    ["ENODATA", "ETIMEDOUT", "EAGAIN", "EIO", "EREMOTEIO", "ENXIO", "EACCES", "EISDIR", "EPERM"],
)
@pytest.mark.parametrize("name", ["in2_input", "curr2_input"])
def test_one_bad_rail_never_hides_another(plant: Plant, open_rails: Open, code: str, name: str) -> None:
    """Any errno on one file makes one rail None with the errno's name; it recovers when the file does."""
    tree = plant("agx-orin-r36")
    sensor = open_rails(tree)
    path = f"sys/class/hwmon/hwmon1/{name}"
    tree.fail(path, code)
    sample = sensor.read()
    assert sample.values["1-0040:2"] is None
    assert code in sample.reasons["1-0040:2"]
    assert set(sample.reasons) == {"1-0040:2"}
    assert sample.values["1-0040:1"] == pytest.approx(3362.24)
    tree.mend(path)
    assert sensor.read().values["1-0040:2"] == pytest.approx(480.32)


def test_jetpack_4_without_a_power_file_multiplies(tree: TreeBuilder, open_rails: Open) -> None:
    """An iio channel without in_power is voltage times current; with it, the chip's own figure counts."""
    folder = tree.iio_chip(0, "6-0040")
    tree.iio_channel(folder, 0, "POM_5V_IN", (5000, 400, 2003))
    tree.iio_channel(folder, 1, "POM_5V_GPU", (5000, 20, 7))
    (tree.root / folder / "in_power1_input").unlink()
    assert watts(open_rails(tree)) == {"POM_5V_IN": 2003, "POM_5V_GPU": 100}


@pytest.mark.parametrize(("update_ms", "period_ms"), [(7, 50), (430, 430), ("garbage", 50), (-5, 50), (0, 50)])
def test_the_chips_own_averaging_is_the_lag(
    tree: TreeBuilder, open_rails: Open, update_ms: int | str, period_ms: float
) -> None:
    """update_interval is published as lag, and no chip is read faster than it renews its values."""
    tree.hwmon_channel(tree.hwmon_chip(1, "ina3221", "1-0040"), 1, "VDD_IN", 4984, 960)
    tree.file("sys/class/hwmon/hwmon1/update_interval", update_ms)
    sensor = open_rails(tree)
    assert sensor.period_ms == period_ms
    assert sensor.lag_ms == (update_ms if isinstance(update_ms, int) and update_ms > 0 else None)


@pytest.mark.parametrize(
    ("shunt_uohm", "step_mw"), [(5000, 39.872), (2000, 99.68), (0, None), ("garbage", None), (None, None)]
)
def test_resolution_follows_the_shunt(
    tree: TreeBuilder, open_rails: Open, shunt_uohm: int | str | None, step_mw: float | None
) -> None:
    """One step of current is 40 uV over the shunt; where the shunt is unknown, so is the resolution."""
    folder = tree.hwmon_chip(1, "ina3221", "1-0040")
    tree.hwmon_channel(folder, 1, "VDD_IN", 4984, 960)
    if shunt_uohm is not None:
        tree.file(f"{folder}/shunt1_resistor", shunt_uohm)
    assert open_rails(tree).rails[0].step == (None if step_mw is None else pytest.approx(step_mw))


def test_nothing_is_ever_written(plant: Plant, open_rails: Open) -> None:
    """Limits, samples and enables protect the hardware: reading leaves every file as it was."""
    tree = plant("agx-orin-r36")
    before = {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}
    for path in before:
        path.chmod(0o444)
    sensor = open_rails(tree)
    sensor.read()
    sensor.close()
    sensor.close()
    assert {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()} == before


def test_the_stamp_is_the_middle_of_the_reading(tree: TreeBuilder) -> None:
    """A sample carries the moment half way between the first and the last file."""
    ticks = iter([1000, 3000])
    tree.hwmon_channel(tree.hwmon_chip(1, "ina3221", "1-0040"), 1, "VDD_IN", 4984, 960)
    assert Ina3221Sensor.open(tree.root, clock=ticks.__next__).read().time_ns == 2000
