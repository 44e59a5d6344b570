"""nvpmodel: the mode from file or tool, in bounded time, whatever is printed around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from edgeprec.devices.power_mode import PowerMode, fastest_mode, parse_query, read_power_modes
from edgeprec.devices.tool import ToolOutput, run_tool
from edgeprec.devices.tree_builder import TreeBuilder

Plant = Callable[[str], TreeBuilder]


def never(arguments: Sequence[str], timeout_s: float) -> ToolOutput:
    """Fail the test: the tool must not be run."""
    raise AssertionError(f"{arguments} was run")


@pytest.mark.parametrize(
    ("text", "number", "name"),
    [
        ("NV Power Mode: 5W\n1\n", 1, "5W"),
        ("NVPM WARN: fan mode is not set!\nNV Power Mode: MODE_15W\n2\n", 2, "MODE_15W"),
        ("NV Power Mode: MAXN\n", None, "MAXN"),
        ("NV Power Mode: Custom fixture 20W\n12\n", 12, "Custom fixture 20W"),
        ("NV Power Mode: MAXN\n0\nNVPM ERROR: optMask is 1, no request for power mode : 13\n", 0, "MAXN"),
        ("NVPM WARN: power mode is not set!\n", None, None),
        ("NV Power Mode: MODE_30W\nNVPM WARN: something\n2\n", 2, "MODE_30W"),
        ("NV Fan Mode:quiet\nNV Power Mode: 25W\r\n1\r\n", 1, "25W"),
        ("NV Power Mode:\n", None, None),
        ("", None, None),
        ("7\n", None, None),
    ],
)
def test_the_tools_answer_is_searched_not_counted(text: str, number: int | None, name: str | None) -> None:
    """jetson_stats#24, #53: lines more or less, names with spaces, errors after the answer change nothing."""
    assert parse_query(text) == (number, name)


@pytest.mark.parametrize(
    ("status", "number", "name"),
    [("pmode:0001\n", 1, "7W"), ("pmode:0000 fmode:quiet\n", 0, "15W"), ("pmode:0009\n", 9, None)],
)
def test_the_state_file_is_enough(plant: Plant, status: str, number: int, name: str | None) -> None:
    """jetson_stats#721: the mode is read from the file and the slow tool is never run; names come from the list."""
    tree = plant("orin-nano-r36")
    tree.file("var/lib/nvpmodel/status", status)
    tree.file("usr/sbin/nvpmodel", "#!/bin/sh\nsleep 10\n")
    modes = read_power_modes(tree.sysfs(), run=never)
    assert (modes.id, modes.name, modes.reason) == (number, name, None)
    assert modes.default_id == 0
    assert [mode.cores for mode in modes.modes] == [6, 4]


@pytest.mark.parametrize("status", [None, "", "garbage\n", "pmode:\n", "pmode:x\n"])
def test_without_a_state_the_tool_is_asked_once(plant: Plant, status: str | None) -> None:
    """A state file that is missing or damaged leads to one call of the tool with a time limit."""
    tree = plant("orin-nano-r36")
    (tree.root / "var/lib/nvpmodel/status").unlink()
    if status is not None:
        tree.file("var/lib/nvpmodel/status", status)
    tree.file("usr/sbin/nvpmodel", "#!/bin/sh\n")
    calls: list[tuple[list[str], float]] = []

    def run(arguments: Sequence[str], timeout_s: float) -> ToolOutput:
        calls.append((list(arguments), timeout_s))
        return ToolOutput("NVPM WARN: fan mode is not set!\nNV Power Mode: 7W\n1\n")

    modes = read_power_modes(tree.sysfs(), run=run)
    assert (modes.id, modes.name, modes.origin) == (1, "7W", "nvpmodel -q")
    assert calls == [([f"{tree.root}/usr/sbin/nvpmodel", "-q"], 2.0)]


def test_without_file_and_tool_the_mode_is_not_known(plant: Plant) -> None:
    """No state and no tool is None with a reason, and the default is not taken for the mode that is set."""
    tree = plant("orin-nano-r36")
    (tree.root / "var/lib/nvpmodel/status").unlink()
    modes = read_power_modes(tree.sysfs(), run=never)
    assert (modes.id, modes.name, modes.default_id) == (None, None, 0)
    assert "not installed" in str(modes.reason)


def test_a_tool_that_prints_no_mode_is_quoted(plant: Plant) -> None:
    """What the tool said instead of a mode stands in the reason."""
    tree = plant("orin-nano-r36")
    (tree.root / "var/lib/nvpmodel/status").unlink()
    tree.file("usr/sbin/nvpmodel", "#!/bin/sh\n")
    modes = read_power_modes(tree.sysfs(), run=lambda arguments, timeout_s: ToolOutput("NVPM ERROR: : 13\n"))
    assert modes.id is None
    assert "NVPM ERROR: : 13" in str(modes.reason)


def test_a_hanging_tool_is_given_up_in_time(tree: TreeBuilder) -> None:
    """A tool whose child sleeps on is killed with its children, and the caller waits no longer than the limit."""
    tree.file("tool", "#!/bin/sh\nsleep 30\n")
    (tree.root / "tool").chmod(0o755)
    before = time.monotonic()
    output = run_tool([str(tree.root / "tool")], 0.2)
    assert time.monotonic() - before < 10
    assert output.text is None
    assert output.reason == "tool did not answer within 0.2 s"


def test_a_tool_is_read_whatever_its_status(tree: TreeBuilder) -> None:
    """A tool that fails after printing is read, one that cannot be started is a reason."""
    tree.file("tool", "#!/bin/sh\necho NV Power Mode: 5W; echo 1; echo broken >&2; exit 1\n")
    (tree.root / "tool").chmod(0o755)
    assert parse_query(run_tool([str(tree.root / "tool")], 10).text or "") == (1, "5W")
    assert "cannot be started" in str(run_tool([str(tree.root / "none")], 1).reason)
    (tree.root / "tool").chmod(0o644)
    assert run_tool([str(tree.root / "tool")], 1).text is None


@pytest.mark.parametrize(
    ("modes", "fastest"),
    [
        ([(0, "15W", 6), (1, "25W", 6), (2, "MAXN_SUPER", 6), (3, "7W", 4)], 2),
        ([(0, "MODE_15W_2CORE", 2), (2, "MODE_15W_6CORE", 6), (6, "MODE_20W_2CORE", 2), (8, "MODE_20W_6CORE", 6)], 8),
        ([(0, "MAXN", 12), (1, "MODE_15W", 4), (3, "MODE_50W", 12)], 0),
        ([(0, "MAXN", 6), (1, "MAXN_SUPER", 6)], 1),
        ([(0, "MAXN", 6), (1, "MAXQ", 4), (3, "MAXP_CORE_ARM", 4)], 0),
        ([(1, "10W", 4), (4, "Custom fixture 20W", 4)], 4),
        ([(1, "quiet", 4)], None),
        ([], None),
    ],
)
def test_the_fastest_mode_is_not_always_zero(modes: list[tuple[int, str, int]], fastest: int | None) -> None:
    """On Orin Nano Super mode 0 is the 15 W mode: names, then watts, then cores decide."""
    found = fastest_mode([PowerMode(id=number, name=name, cores=cores) for number, name, cores in modes])
    assert (None if found is None else found.id) == fastest


def test_the_golden_configurations_name_their_fastest(plant: Plant) -> None:
    """The recommendation holds for the configurations of real boards."""
    expected = {"orin-nano-super-r36": 2, "xavier-nx-r32": 8, "nano-r32": 0, "agx-orin-r36": 0, "thor-r38": 0}
    for name, number in expected.items():
        fastest = read_power_modes(plant(name).sysfs(), run=never).fastest
        assert fastest is not None
        assert fastest.id == number, name


@pytest.mark.parametrize("content", ["", "< POWER_MODEL ID=x NAME=y >\n", "\0\0", "< POWER_MODEL ID=1 NAME= >"])
def test_a_damaged_configuration_lists_no_modes(plant: Plant, content: str) -> None:
    """Without a usable list the number is still told by the state file."""
    tree = plant("agx-orin-r36")
    tree.file("etc/nvpmodel.conf", content)
    modes = read_power_modes(tree.sysfs(), run=never)
    assert (modes.id, modes.name, modes.modes, modes.default_id) == (2, None, (), None)
