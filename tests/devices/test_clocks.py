"""Clocks: locked only when every limit says so, gated GPUs are seen, missing files are None."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeprec.devices.clocks import read_clocks
from edgeprec.devices.tree_builder import TreeBuilder

Plant = Callable[[str], TreeBuilder]


@pytest.mark.parametrize(
    ("gpu", "cores", "is_locked"),
    [
        ((1020, 1020), [(1728, 1728), (1728, 1728)], True),
        ((306, 1020), [(1728, 1728)], False),
        ((1020, 1020), [(1728, 1728), (729, 1728)], False),
        ((1020, None), [(1728, 1728)], None),
        ((None, None), [(729, 1728)], None),
        (None, [(1728, 1728)], None),
        ((1020, 1020), [], None),
        ((1020, 1020), [(1728, None)], None),
    ],
)
def test_locked_needs_every_limit(
    tree: TreeBuilder,
    gpu: tuple[int | None, int | None] | None,
    cores: list[tuple[int, int | None]],
    is_locked: bool | None,
) -> None:
    """jetson_stats#876: without ``jetson_clocks`` the limits tell; an unreadable limit is not known, not unlocked."""
    if gpu is not None:
        names = zip(("min_freq", "max_freq"), gpu, strict=True)
        tree.devfreq("17000000.gpu", {name: value for name, value in names if value is not None})
    for core, (low, high) in enumerate(cores):
        tree.cpu(core, {"min": low, **({} if high is None else {"max": high})})
    clocks = read_clocks(tree.sysfs())
    assert clocks.is_locked is is_locked
    assert bool(clocks.reasons) == (is_locked is None)


@pytest.mark.parametrize(
    "node",
    ["57000000.gpu", "17000000.gp10b", "17000000.gv11b", "17000000.ga10b", "17000000.gpu", "gpu-gpc-0", "gpu-nvd-0"],
)
def test_every_generations_gpu_is_found(tree: TreeBuilder, node: str) -> None:
    """The GPU's node has another name on each generation; other devices are no GPU."""
    tree.devfreq(node, {"cur_freq": 306000000, "min_freq": 306000000, "max_freq": 1300500000, "governor": "x"})
    tree.devfreq("15340000.vic", {"cur_freq": 115200000})
    tree.devfreq("3d00000.nvenc", {"cur_freq": 115200000}, of_node="nvenc")
    (clock,) = read_clocks(tree.sysfs()).gpu
    assert (clock.node, clock.current_hz, clock.maximum_hz, clock.governor) == (node, 306000000, 1300500000, "x")


def test_a_gpu_under_another_name_is_known_by_its_device_tree_node(tree: TreeBuilder) -> None:
    """A node whose device is called gpu in the device tree is the GPU."""
    tree.devfreq("fixture.thing", {"cur_freq": 1}, of_node="ga10b")
    assert [clock.node for clock in read_clocks(tree.sysfs()).gpu] == ["fixture.thing"]


def test_a_gpu_without_frequencies_still_has_its_load(tree: TreeBuilder) -> None:
    """jetson_stats#556: only ``device/load`` is there: 84.2 %, frequencies None."""
    device = tree.devfreq("17000000.gpu", {}, of_node="gpu")
    tree.file(f"{device}/load", 842)
    (clock,) = read_clocks(tree.sysfs()).gpu
    assert clock.load_percent == pytest.approx(84.2)
    assert (clock.current_hz, clock.minimum_hz, clock.maximum_hz, clock.governor) == (None, None, None, None)
    assert clock.is_gated is None


@pytest.mark.parametrize("path", ["sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load"])
def test_the_load_is_in_per_mille(tree: TreeBuilder, path: str) -> None:
    """Both places of the load file are per mille; without one, as on Thor, the load is None and not 0."""
    tree.devfreq("17000000.gpu", {"cur_freq": 1})
    assert read_clocks(tree.sysfs()).gpu[0].load_percent is None
    tree.file(path, 421)
    assert read_clocks(tree.sysfs()).gpu[0].load_percent == pytest.approx(42.1)


def test_a_gated_gpu_has_no_clock(plant: Plant) -> None:
    """Thor's GPU at rest: clock 0 means power-gated, and the report gives no frequency."""
    clocks = read_clocks(plant("thor-r38").sysfs())
    assert clocks.is_gpu_gated is True
    assert "GPU power-gated" in clocks.reasons
    gpus = clocks.to_json()["gpu"]
    assert isinstance(gpus, list)
    assert [gpu["current_hz"] for gpu in gpus] == [None, None]
    assert read_clocks(plant("thor-r38-no-ina238").sysfs()).is_gpu_gated is False


@pytest.mark.parametrize(
    ("online", "cores"),
    [
        ("0-11", 12),
        ("0", 1),
        ("0-3,6,8-9", 7),
        ("garbage", None),
        ("3-1", None),
        ("0-", None),
        ("", None),
        ("-2", None),
    ],
)
def test_online_cores_are_counted(tree: TreeBuilder, online: str, cores: int | None) -> None:
    """The kernel's list of cores is counted; what is no such list is None."""
    tree.file("sys/devices/system/cpu/online", online)
    assert read_clocks(tree.sysfs()).cpu.online == cores


def test_limits_of_all_cores_are_summarised(plant: Plant) -> None:
    """The lowest and the highest limit of the cores, and the clock of each."""
    cpu = read_clocks(plant("agx-orin-r36").sysfs()).cpu
    assert (cpu.online, cpu.minimum_khz, cpu.maximum_khz, len(cpu.current_khz)) == (12, 729600, 2201600, 12)
