"""Every published board: its rails, total, scope, evidence, identity, mode and zones, read from its tree of files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from edgeprec.devices.board import read_board
from edgeprec.devices.board_trees import tree_names
from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.sensor import Scope
from edgeprec.devices.tree_builder import TreeBuilder
from edgeprec.errors import DeviceError

Plant = Callable[[str], TreeBuilder]


class Golden(NamedTuple):
    """What a tree must be read as. Rails are label -> mW; ``inside`` is child -> parent by label."""

    rails: dict[str, float]
    inside: dict[str, str]
    total_mw: float
    scope: Scope
    evidence: str
    name: str
    l4t: str | None
    jetpack: str | None
    mode: str | None
    hottest_c: float
    offline: int = 0
    constants: int = 0
    is_assumed: bool = False


VDD_IN_CHILDREN = {"VDD_CPU_GPU_CV": "VDD_IN", "VDD_SOC": "VDD_IN"}
AGX_ORIN = {"VDD_GPU_SOC": 3362.24, "VDD_CPU_CV": 480.32, "VIN_SYS_5V0": 4868.64, "VDDQ_VDD2_1V8AO": 397.44}
AGX_ORIN_CHILDREN = {"VDDQ_VDD2_1V8AO": "VIN_SYS_5V0"}

GOLDEN = {
    "nano-r32": Golden(
        {"POM_5V_IN": 2000, "POM_5V_GPU": 100, "POM_5V_CPU": 400},
        {"POM_5V_GPU": "POM_5V_IN", "POM_5V_CPU": "POM_5V_IN"},
        2000,
        Scope.MODULE,
        "Jetson Nano (p3448-0000)",
        "Jetson Nano",
        "32.7.1",
        "4.x",
        "MAXN",
        39.5,
        constants=1,
    ),
    "tx2-r32": Golden(
        {
            "VDD_SYS_GPU": 182,
            "VDD_SYS_SOC": 730,
            "VDD_4V0_WIFI": 0,
            "VDD_IN": 5297,
            "VDD_SYS_CPU": 1917,
            "VDD_SYS_DDR": 1241,
        },
        dict.fromkeys(("VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_4V0_WIFI", "VDD_SYS_CPU", "VDD_SYS_DDR"), "VDD_IN"),
        5297,
        Scope.MODULE,
        "Jetson TX2 (p3310-1000)",
        "Jetson TX2",
        "32.4.4",
        "4.x",
        "MAXP_CORE_ARM",
        42.5,
        constants=1,
    ),
    "agx-xavier-r32": Golden(
        {"GPU": 464, "CPU": 774, "SOC": 1238, "CV": 0, "VDDRQ": 309, "SYS5V": 1851},
        {},
        4636,
        Scope.MODULE_COMPUTED,
        "Jetson AGX Xavier (p2888-0001)",
        "Jetson AGX Xavier",
        "32.7.4",
        "4.x",
        "MODE_15W",
        41.0,
        constants=1,
    ),
    "xavier-nx-r32": Golden(
        {"VDD_IN": 3260, "VDD_CPU_GPU_CV": 603, "VDD_SOC": 964},
        VDD_IN_CHILDREN,
        3260,
        Scope.MODULE,
        "Jetson Xavier NX (p3668-0000)",
        "Jetson Xavier NX",
        "32.7.1",
        "4.x",
        "MODE_15W_6CORE",
        43.0,
        constants=1,
    ),
    "xavier-nx-r35": Golden(
        {"VDD_IN": 9250.304, "VDD_CPU_GPU_CV": 1993.6, "VDD_SOC": 1246},
        VDD_IN_CHILDREN,
        9250.304,
        Scope.MODULE,
        "Jetson Xavier NX (p3668-0000)",
        "Jetson Xavier NX",
        "35.5.0",
        "5.x",
        "MODE_15W_6CORE",
        43.0,
    ),
    "orin-nano-r36": Golden(
        {"VDD_IN": 2182.4, "VDD_CPU_GPU_CV": 357.12, "VDD_SOC": 952.32},
        VDD_IN_CHILDREN,
        2182.4,
        Scope.MODULE,
        "(p3767-0005)",
        "Jetson Orin Nano developer kit",
        "36.3.0",
        "6.x",
        "15W",
        51.187,
        offline=3,
    ),
    "orin-nano-super-r36": Golden(
        {"VDD_IN": 9250.304, "VDD_CPU_GPU_CV": 1993.6, "VDD_SOC": 1246},
        VDD_IN_CHILDREN,
        9250.304,
        Scope.MODULE,
        "(p3767-0005)",
        "Jetson Orin Nano developer kit",
        "36.4.7",
        "6.x",
        "MAXN_SUPER",
        51.187,
        offline=3,
    ),
    "orin-nx-r35": Golden(
        {"VDD_IN": 4784.64, "VDD_CPU_GPU_CV": 597.12, "VDD_SOC": 1512.704},
        VDD_IN_CHILDREN,
        4784.64,
        Scope.MODULE,
        "(p3767-0000)",
        "Jetson Orin NX 16GB",
        "35.3.1",
        "5.x",
        "15W",
        47.312,
        offline=3,
    ),
    "agx-orin-r35": Golden(
        AGX_ORIN,
        AGX_ORIN_CHILDREN,
        8711.2,
        Scope.MODULE_COMPUTED,
        "Jetson AGX Orin (p3701-0000)",
        "Jetson AGX Orin developer kit",
        "35.4.1",
        "5.x",
        "MODE_30W",
        53.75,
    ),
    "agx-orin-r36": Golden(
        AGX_ORIN,
        AGX_ORIN_CHILDREN,
        8711.2,
        Scope.MODULE_COMPUTED,
        "Jetson AGX Orin (p3701-0005)",
        "Jetson AGX Orin 64GB",
        "36.4.4",
        "6.x",
        "MODE_30W",
        53.75,
    ),
    "thor-r38": Golden(
        {"VDD_GPU": -392, "VDD_CPU_SOC_MSS": 3924, "VIN_SYS_5V0": 5064.3, "VIN": 15004},
        {"VDD_GPU": "VIN", "VDD_CPU_SOC_MSS": "VIN", "VIN_SYS_5V0": "VIN"},
        15004,
        Scope.BOARD_INPUT,
        "VIN is the input of module and carrier",
        "Jetson AGX Thor",
        "38.2.0",
        "7.0",
        "120W",
        45.312,
        offline=1,
    ),
    "thor-r38-no-ina238": Golden(
        {"VDD_GPU": 7705.6, "VDD_CPU_SOC_MSS": 11558.4, "VIN_SYS_5V0": 8853.12},
        {},
        28117.12,
        Scope.MODULE_COMPUTED,
        "there is no INA238",
        "Jetson AGX Thor",
        "38.4.0",
        "7.1",
        "120W",
        51.218,
    ),
    "container-orin": Golden(
        AGX_ORIN,
        AGX_ORIN_CHILDREN,
        8711.2,
        Scope.MODULE_COMPUTED,
        "inferred from the rails' labels",
        "Jetson AGX Orin",
        None,
        None,
        None,
        53.75,
        is_assumed=True,
    ),
}
WITHOUT_RAILS = ("x86-nvml", "x86-none")


def test_every_tree_is_checked() -> None:
    """No golden tree is left out of this table."""
    assert set(GOLDEN) | set(WITHOUT_RAILS) == set(tree_names())


@pytest.mark.parametrize("name", GOLDEN)
def test_rails_and_total(plant: Plant, name: str) -> None:
    """The rails of each board with their parents, and the total with scope and evidence."""
    golden, tree = GOLDEN[name], plant(name)
    sensor = Ina3221Sensor.open(tree.root, reader=tree.read)
    sample = sensor.read()
    labels = {rail.id: rail.label for rail in sensor.rails}
    assert {labels[key]: value for key, value in sample.values.items()} == {
        label: pytest.approx(mw) for label, mw in golden.rails.items()
    }
    assert sample.reasons == {}
    assert {rail.label: labels[rail.parent] for rail in sensor.rails if rail.parent is not None} == golden.inside
    assert sensor.total is not None
    values = [sample.values[rail_id] for rail_id in sensor.total.rail_ids]
    assert sum(value for value in values if value is not None) == pytest.approx(golden.total_mw)
    assert (sensor.total.scope, sensor.total.is_assumed) == (golden.scope, golden.is_assumed)
    assert golden.evidence in sensor.total.evidence
    assert sensor.total.is_partial is False


@pytest.mark.parametrize("name", GOLDEN)
def test_identity_mode_and_zones(plant: Plant, name: str) -> None:
    """What each board is, its power mode, and its temperatures with offline and constant zones told apart."""
    golden = GOLDEN[name]
    board = read_board(plant(name).sysfs())
    assert board.jetson is not None
    assert (board.name, board.jetson.l4t, board.jetson.jetpack) == (golden.name, golden.l4t, golden.jetpack)
    assert board.power_mode == golden.mode
    assert board.thermal.hottest_c == golden.hottest_c
    assert sum(zone.celsius is None for zone in board.thermal.zones) == golden.offline
    assert sum(zone.is_constant for zone in board.thermal.zones) == golden.constants
    assert all(zone.reason for zone in board.thermal.zones if zone.celsius is None)
    assert board.jetson.confidence.value == ("inferred" if golden.is_assumed else "declared")


@pytest.mark.parametrize("name", WITHOUT_RAILS)
def test_machines_without_rails_say_so(plant: Plant, name: str) -> None:
    """A machine that is no Jetson has no rails, and its CPU and GPUs by name."""
    tree = plant(name)
    with pytest.raises(DeviceError, match="no INA3221 or INA238"):
        Ina3221Sensor.open(tree.root)
    board = read_board(tree.sysfs())
    assert board.jetson is None
    assert [gpu.name for gpu in board.gpus] == (["NVIDIA GeForce RTX 4090"] if name == "x86-nvml" else [])
    assert board.thermal.hottest_c == (51.0 if name == "x86-nvml" else None)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_container_without_identity_keeps_the_figures(plant: Plant, name: str) -> None:
    """Without device tree and release file the rails and the total stay the same; only the evidence is weaker."""
    golden, tree = GOLDEN[name], plant(name)
    for path in ("proc/device-tree/compatible", "proc/device-tree/nvidia,boardids", "etc/nv_tegra_release"):
        (tree.root / path).unlink(missing_ok=True)
    sensor = Ina3221Sensor.open(tree.root, reader=tree.read)
    values = sensor.read().values
    assert sensor.total is not None
    total_mw = sum(value for rail_id in sensor.total.rail_ids if (value := values[rail_id]) is not None)
    assert total_mw == pytest.approx(golden.total_mw)
    assert (sensor.total.scope, sensor.total.is_assumed) == (golden.scope, True)
    assert "inferred" in str(sensor.total_note)
