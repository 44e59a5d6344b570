"""Device nodes that exist but cannot be opened: why, and the command that helps."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from edgeprec.devices.permissions import Permissions, open_node, read_permissions
from edgeprec.devices.tree_builder import TreeBuilder

NODES = ["nvmap", "nvhost-ctrl", "nvhost-ctrl-gpu", "nvgpu/igpu0/ctrl", "dri/renderD128", "nvidia0", "nvidiactl"]
GROUP_FILE = "root:x:0:\nvideo:x:44:ubuntu\nrender:x:104:\nbroken\njtop:x:999:ubuntu\n:::\nnumber:x:x:\n"


@pytest.fixture
def machine(tree: TreeBuilder) -> TreeBuilder:
    """A machine with the nodes of Jetson and of desktop GPUs, and some that matter to nobody."""
    for node in (*NODES, "dri/card0", "null", "nvidia-modeset", "nvidia-uvm"):
        tree.file(f"dev/{node}", "")
    tree.file("dev/nvidia-caps/nvidia-cap1", "")
    tree.file("etc/group", GROUP_FILE)
    return tree


def check(machine: TreeBuilder, *, shut: dict[str, int], groups: tuple[int, ...] = (44, 104, 999)) -> Permissions:
    """Read the permissions of a machine whose nodes fail as given."""

    def open_path(path: str) -> None:
        code = shut.get(path.removeprefix(f"{machine.root}/dev/"))
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    return read_permissions(machine.sysfs(), open_path=open_path, group_ids=groups)


def test_all_nodes_of_gpus_are_tried(machine: TreeBuilder) -> None:
    """nvmap, nvhost, igpu, render nodes and nvidia nodes are opened; displays and capabilities are not."""
    found = check(machine, shut={})
    assert set(found.open_nodes) == {f"/dev/{node}" for node in (*NODES, "nvidia-uvm")}
    assert (found.shut_nodes, found.notes) == ((), ())


def test_a_device_policy_is_told_from_a_missing_group(machine: TreeBuilder) -> None:
    """nixpkgs#331069: EPERM comes from a unit's device policy; EACCES from a missing group, video or render."""
    shut = {"nvidiactl": errno.EPERM, "nvmap": errno.EACCES, "dri/renderD128": errno.EACCES, "nvidia0": errno.ENODEV}
    found = {node.path: node for node in check(machine, shut=shut, groups=()).shut_nodes}
    assert set(found) == {f"/dev/{node}" for node in shut}
    assert "DeviceAllow=" in found["/dev/nvidiactl"].fix
    assert "sudo usermod -aG video $USER" in found["/dev/nvmap"].fix
    assert "sudo usermod -aG render $USER" in found["/dev/dri/renderD128"].fix
    assert "ENODEV" in found["/dev/nvidia0"].reason


def test_a_member_is_not_told_to_join(machine: TreeBuilder) -> None:
    """Who is in the group already is sent to the node's owner instead."""
    (node,) = check(machine, shut={"nvmap": errno.EACCES}).shut_nodes
    assert node.fix == "look at its owner with ls -l /dev/nvmap"


@pytest.mark.parametrize(
    ("ids", "members"), [((44,), ["video"]), ((104, 999), ["render", "jtop"]), ((), []), ((1000,), [])]
)
def test_groups_are_told(machine: TreeBuilder, ids: tuple[int, ...], members: list[str]) -> None:
    """Each group that opens devices: whether it exists and whether this process is in it."""
    groups = check(machine, shut={}, groups=ids).groups
    assert [group.name for group in groups if group.is_member] == members
    assert all(group.exists for group in groups)


def test_a_group_that_does_not_exist_has_no_members(tree: TreeBuilder) -> None:
    """Without /etc/group no group exists and nobody is in one."""
    found = read_permissions(tree.sysfs(), group_ids=(0, 44))
    assert all(not group.exists and not group.is_member for group in found.groups)
    assert (found.open_nodes, found.shut_nodes, found.notes) == ((), (), ())


def test_the_socket_of_jtop_is_explained(machine: TreeBuilder, plant: Callable[[str], TreeBuilder]) -> None:
    """A socket that is a folder, and one whose group is missing, each have their sentence."""
    notes = read_permissions(plant("container-orin").sysfs()).notes
    assert notes == ("/run/jtop.sock is a directory: the service was down when the container started",)
    machine.file("run/jtop.sock", "")
    assert check(machine, shut={}).notes == ()
    (note,) = check(machine, shut={}, groups=(44,)).notes
    assert "sudo usermod -aG jtop $USER" in note
    assert "id -nG" in note


def test_a_missing_uvm_node_is_noticed(machine: TreeBuilder) -> None:
    """A hardened unit cannot make /dev/nvidia-uvm itself: say that it must exist before."""
    (machine.root / "dev/nvidia-uvm").unlink()
    (note,) = check(machine, shut={}).notes
    assert "nvidia-modprobe" in note


def test_nodes_are_opened_for_reading_and_closed(machine: TreeBuilder) -> None:
    """Trying a node leaves no descriptor open and changes nothing."""
    path = machine.root / "dev/nvmap"
    before = len(os.listdir("/proc/self/fd"))
    open_node(str(path))
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(FileNotFoundError):
        open_node(str(path) + "x")
    assert read_permissions(machine.sysfs()).to_json()["shut_nodes"] == []
