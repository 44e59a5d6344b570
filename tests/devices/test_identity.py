"""Which Jetson it is: every release file and device tree gives what can be known, and nothing makes it fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeprec.devices.jetson_identity import Confidence, jetpack_of, parse_release, read_identity
from edgeprec.devices.tree_builder import TreeBuilder

Plant = Callable[[str], TreeBuilder]


def release(major: int, revision: str) -> str:
    """Return line 1 of /etc/nv_tegra_release."""
    return (
        f"# R{major} (release), REVISION: {revision}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: Thu Sep 18 2025\n"
    )


@pytest.mark.parametrize(
    ("text", "l4t"),
    [
        (release(36, "4.7"), "36.4.7"),
        (release(36, "9.9"), "36.9.9"),
        (release(32, "7.4"), "32.7.4"),
        (release(38, "2.0") + "# KERNEL_VARIANT: oot\nTARGET_USERSPACE_LIB_DIR=nvidia\nINSTALL_TYPE=\n", "38.2.0"),
        (release(38, "2.2").replace("\n", "\r\n") + "# YOCTO_BUILD\r\n", "38.2.2"),
        (release(39, "2").replace("generic", "t234ref"), "39.2"),
        ("# R35 (release)\n", "35"),
        ("", None),
        ("\n", None),
        ("not a tegra release file\n", None),
        ("# R (release), REVISION: 1\n", None),
        ("\0\0\0", None),
    ],
)
def test_the_release_file_is_read_by_its_first_line(text: str, l4t: str | None) -> None:
    """Further lines, line ends of Windows and a wrong BOARD do not matter; another file is no release."""
    assert parse_release(text) == l4t


@pytest.mark.parametrize(
    ("l4t", "jetpack"),
    [
        ("32.7.4", "4.x"),
        ("34.1", "5.x"),
        ("35.5.0", "5.x"),
        ("36.4.3", "6.x"),
        ("36.4.4", "6.x"),
        ("36.9.9", "6.x"),
        ("38.2.0", "7.0"),
        ("38.2.2", "7.0"),
        ("38.4.0", "7.1"),
        ("39.2", "7.2"),
        ("39.9", "7.x"),
        ("38", "7.x"),
        ("40.1", None),
    ],
)
def test_a_new_revision_keeps_its_major_jetpack(l4t: str, jetpack: str | None) -> None:
    """jetson_stats#635 and many more: a revision nobody has seen is not a missing JetPack."""
    assert jetpack_of(l4t) == jetpack


def test_an_unknown_revision_warns_of_nothing(plant: Plant) -> None:
    """R36.9.9 is L4T 36.9.9 with JetPack 6.x and no reason for complaint."""
    tree = plant("agx-orin-r36")
    tree.file("etc/nv_tegra_release", release(36, "9.9"))
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert (identity.l4t, identity.jetpack, identity.reasons) == ("36.9.9", "6.x", ())


@pytest.mark.parametrize("content", ["", "not a tegra release file\n", "\r\n", b"\xff\xfe\x00"])
def test_a_damaged_release_file_leaves_the_device_tree(plant: Plant, content: str | bytes) -> None:
    """The board is still known by its device tree; the release is None with a reason."""
    tree = plant("orin-nano-r36")
    tree.file("etc/nv_tegra_release", content)
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert (identity.name, identity.l4t, identity.jetpack) == ("Jetson Orin Nano developer kit", None, None)
    assert dict(identity.reasons).keys() == {"l4t"}


def test_a_container_tells_its_release_by_the_package(tree: TreeBuilder) -> None:
    """Without the release file the version of nvidia-l4t-core counts, up to the dash."""
    tree.file(
        "var/lib/dpkg/status",
        "Package: nvidia-l4t-camera\nStatus: install ok installed\nVersion: 1.0.0-1\n\n"
        "Package: nvidia-l4t-core\nStatus: install ok installed\nPriority: standard\n"
        "Version: 38.4.0-20251230160601\nDescription: core\n\nPackage: zlib1g\nVersion: 9.9.9\n",
    )
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert (identity.l4t, identity.jetpack) == ("38.4.0", "7.1")


def test_another_package_is_not_taken_for_the_core(tree: TreeBuilder) -> None:
    """A package list without nvidia-l4t-core tells no release."""
    tree.file("var/lib/dpkg/status", "Package: nvidia-l4t-core\nStatus: removed\n\nPackage: zlib1g\nVersion: 9.9.9\n")
    assert read_identity(tree.sysfs()) is None


def test_an_unknown_module_is_named_as_unknown(plant: Plant) -> None:
    """jetson_stats#476: a SKU that is not in the list keeps SoC and part number, and nothing is missing."""
    tree = plant("agx-orin-r35")
    tree.file("proc/device-tree/compatible", "nvidia,p3737-0000+p3701-9999\0nvidia,tegra234\0")
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert identity.name == "tegra234, unknown module p3701-9999"
    assert identity.compute_capability == (8, 7)
    assert "p3701-9999" in dict(identity.reasons)["module_name"]


@pytest.mark.parametrize(
    ("soc", "compute"),
    [
        ("tegra124", (3, 2)),
        ("tegra210", (5, 3)),
        ("tegra186", (6, 2)),
        ("tegra194", (7, 2)),
        ("tegra234", (8, 7)),
        ("tegra23x", (8, 7)),
        ("tegra264", (11, 0)),
        ("tegra999", None),
    ],
)
def test_the_soc_tells_the_compute_capability(tree: TreeBuilder, soc: str, compute: tuple[int, int] | None) -> None:
    """The table gives the GPU's generation; an SoC outside of it gives None."""
    tree.file("proc/device-tree/compatible", f"nvidia,something\0nvidia,{soc}\0")
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert (identity.soc, identity.compute_capability) == (soc, compute)


def test_a_carriers_own_name_does_not_hide_the_module(tree: TreeBuilder) -> None:
    """The model may be a code name (lanai-3636 is a TX2 NX): the part number decides."""
    tree.file("proc/device-tree/model", "lanai-3636\0")
    tree.file("proc/device-tree/compatible", "nvidia,p3509-0000+p3636-0001\0nvidia,tegra186\0")
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert (identity.model, identity.name) == ("lanai-3636", "Jetson TX2 NX")


def test_the_firmwares_own_path_serves_as_well(tree: TreeBuilder) -> None:
    """/proc/device-tree is a link to /sys/firmware/devicetree/base; either is enough."""
    tree.file("sys/firmware/devicetree/base/compatible", "nvidia,p3701-0005\0nvidia,tegra234\0")
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert identity.name == "Jetson AGX Orin 64GB"


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("container-orin", "Jetson AGX Orin"),
        ("xavier-nx-r35", "Jetson Orin Nano, Orin NX or Xavier NX"),
        ("thor-r38", "Jetson AGX Thor"),
        ("nano-r32", "Jetson Nano"),
        ("tx2-r32", "Jetson TX2"),
        ("agx-xavier-r32", "Jetson AGX Xavier"),
    ],
)
def test_a_container_is_recognised_by_its_rails(plant: Plant, name: str, board: str) -> None:
    """Where /proc/device-tree is masked, the rails say what the board is, and the answer is marked as inferred."""
    tree = plant(name)
    for path in ("proc/device-tree/compatible", "proc/device-tree/nvidia,boardids", "etc/nv_tegra_release"):
        (tree.root / path).unlink(missing_ok=True)
    identity = read_identity(tree.sysfs())
    assert identity is not None
    assert (identity.name, identity.confidence) == (board, Confidence.INFERRED)
    assert "device tree" in dict(identity.reasons)["soc"]


def test_another_machine_is_no_jetson(plant: Plant) -> None:
    """x86 machines and other ARM boards have no Jetson identity."""
    assert read_identity(plant("x86-nvml").sysfs()) is None
    assert read_identity(plant("x86-none").sysfs()) is None
    tree = plant("x86-none")
    tree.file("proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    tree.file("proc/device-tree/compatible", "raspberrypi,5-model-b\0brcm,bcm2712\0")
    assert read_identity(tree.sysfs()) is None
