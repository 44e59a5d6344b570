"""The report on a machine: plain values, no part takes another down, unknown is None with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from edgeprec.devices.board import BoardKind, read_board
from edgeprec.devices.board_trees import tree_names
from edgeprec.devices.sysfs import Sysfs
from edgeprec.devices.tool import ToolOutput
from edgeprec.devices.tree_builder import TreeBuilder

Plant = Callable[[str], TreeBuilder]


@pytest.mark.parametrize("name", tree_names())
def test_every_golden_tree_is_reported_in_plain_values(plant: Plant, name: str) -> None:
    """The report of each board is JSON without NaN, and says which kind of machine it is."""
    board = read_board(plant(name).sysfs())
    plain = json.loads(json.dumps(board.to_json(), allow_nan=False))
    assert plain["kind"] == ("host" if name.startswith("x86") else "jetson")
    assert plain["name"]
    assert plain["memory"]["total_bytes"] > 1 << 30
    assert (plain["jetson"] is None) == name.startswith("x86")
    assert (plain["power_modes"] is None) == name.startswith("x86")


def test_a_machine_without_any_file_is_reported(tree: TreeBuilder) -> None:
    """Nothing can be read: everything is None, every part says why, and nothing raises."""
    board = read_board(tree.sysfs())
    assert (board.kind, board.name, board.power_mode) == (BoardKind.HOST, None, None)
    assert board.memory.total_bytes is None
    assert {entry.part for entry in board.unknown} == {"cpu", "memory", "temperature"}
    assert all(entry.reason for entry in board.unknown)


@pytest.mark.parametrize("code", [5, 11, 13, 61, 110])
def test_a_machine_that_refuses_everything_is_reported(plant: Plant, code: int) -> None:
    """Every read fails with the same errno: the report still comes."""
    root = plant("agx-orin-r36").root

    def reader(path: str) -> bytes:
        raise OSError(code, "refused", path)

    board = read_board(Sysfs(root, reader=reader))
    assert board.memory.total_bytes is None
    assert all(zone.celsius is None and zone.reason for zone in board.thermal.zones)
    json.dumps(board.to_json(), allow_nan=False)


def test_a_hanging_tool_costs_one_part(plant: Plant) -> None:
    """jetson_stats#721: when nvpmodel does not answer the mode is None with the reason, the rest stands."""
    tree = plant("thor-r38")
    (tree.root / "var/lib/nvpmodel/status").unlink()
    tree.file("usr/sbin/nvpmodel", "")

    def run(arguments: Sequence[str], timeout_s: float) -> ToolOutput:
        return ToolOutput(None, "nvpmodel did not answer within 2 s")

    board = read_board(tree.sysfs(), run=run)
    assert board.power_mode is None
    assert [(entry.part, entry.reason) for entry in board.unknown] == [
        ("power_mode", "nvpmodel did not answer within 2 s")
    ]
    assert board.name == "Jetson AGX Thor"


def test_a_mode_without_a_name_has_its_number(plant: Plant) -> None:
    """A mode that the configuration does not list is called by its number."""
    tree = plant("orin-nano-r36")
    tree.file("var/lib/nvpmodel/status", "pmode:0007")
    assert read_board(tree.sysfs()).power_mode == "mode 7"


def test_this_machine_is_reported() -> None:
    """The machine the tests run on has a report, whatever it is."""
    board = read_board()
    assert board.memory.total_bytes is not None
    json.dumps(board.to_json(), allow_nan=False)
