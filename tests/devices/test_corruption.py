"""Any damage to any golden tree: nothing raises, nothing unread becomes 0, nothing untouched changes."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.devices.board import read_board
from edgeprec.devices.board_trees import plant_tree, tree_names
from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.ina_channels import Channel
from edgeprec.devices.ina_rails import find_rails
from edgeprec.devices.sensor import Sample
from edgeprec.devices.sysfs import Sysfs
from edgeprec.devices.thermal import Thermal
from edgeprec.devices.tool import ToolOutput
from edgeprec.devices.tree_builder import TreeBuilder
from edgeprec.errors import DeviceError

CODES = (
    errno.EAGAIN,
    errno.ENODATA,
    errno.ETIMEDOUT,
    errno.EIO,
    errno.EREMOTEIO,
    errno.ENXIO,
    errno.EACCES,
    errno.ESRCH,
    errno.EISDIR,
)
GARBAGE = (b"", b"\n", b"garbage\n", b"\0\0\0", b"\xff\xfe\xfd", b"nan\n", b"- 5\n", b"1 2 3\n", b"9" * 5000)
FAULTS = st.sampled_from(
    [*[f"E{code}" for code in CODES], *[f"G{index}" for index in range(len(GARBAGE))], "delete", "folder"]
)
JETSONS = [name for name in tree_names() if not name.startswith("x86")]


class Golden(NamedTuple):
    """A planted tree and how it reads while it is whole."""

    tree: TreeBuilder
    paths: tuple[str, ...]  # all files, each once, by its real place
    rails_mw: dict[str, float | None]
    rail_files: dict[str, frozenset[str]]
    products_mw: dict[str, float]  # voltage times current of the rails that have a power file, by that file's place
    zones_c: dict[str, float | None]


class Forest:
    """Golden trees, each planted once; an example damages files and puts them back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trees: dict[str, Golden] = {}

    def __getitem__(self, name: str) -> Golden:
        if name not in self._trees:
            self._trees[name] = self._plant(name)
        return self._trees[name]

    def _plant(self, name: str) -> Golden:
        tree = plant_tree(name, self._folder / name)
        files = [path for path in tree.root.rglob("*") if path.is_file() and not path.is_symlink()]
        found = find_rails(tree.sysfs())
        sensor = Ina3221Sensor.open(tree.root, reader=tree.read) if found.rails else None
        return Golden(
            tree=tree,
            paths=tuple(sorted(str(path.relative_to(tree.root)) for path in files)),
            rails_mw={} if sensor is None else dict(sensor.read().values),
            rail_files={channel.id: _files(tree, channel) for channel in found.channels},
            products_mw=dict(_product(tree, channel) for channel in found.channels if channel.power is not None),
            zones_c={
                f"sys/class/thermal/thermal_zone{number}": zone.celsius
                for number, zone in enumerate(Thermal(tree.sysfs()).read(0).zones)
            },
        )


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Forest:
    """All golden trees."""
    return Forest(tmp_path_factory.mktemp("forest"))


@contextmanager
def damaged(tree: TreeBuilder, faults: Mapping[str, str]) -> Iterator[None]:
    """Break files for the time of one example."""
    contents = {path: (tree.root / path).read_bytes() for path in faults}
    errors = dict(tree.errors)
    try:
        for path, fault in faults.items():
            damage(tree, path, fault)
        yield
    finally:
        tree.errors.clear()
        tree.errors.update(errors)
        for path, content in contents.items():
            target = tree.root / path
            if target.is_dir():
                target.rmdir()
            target.write_bytes(content)


def _files(tree: TreeBuilder, channel: Channel) -> frozenset[str]:
    folder, index = channel.current.rpartition("/")[0], channel.id.rpartition(":")[2]
    names = [f"in{index}_label", f"rail_name_{index}", "label"]
    used = [channel.voltage, channel.current, channel.power, *(f"{folder}/{name}" for name in names)]
    root = Sysfs(tree.root).real("")
    return frozenset(Sysfs(tree.root).real(path).removeprefix(f"{root}/") for path in used if path is not None)


def _product(tree: TreeBuilder, channel: Channel) -> tuple[str, float]:
    voltage, current = (tree.sysfs().number(path).value for path in (channel.voltage, channel.current))
    assert channel.power is not None
    assert voltage is not None
    assert current is not None
    root = Sysfs(tree.root).real("")
    return Sysfs(tree.root).real(channel.power).removeprefix(f"{root}/"), voltage * current / 1000


def damage(tree: TreeBuilder, path: str, fault: str) -> None:
    """Break one file."""
    target = tree.root / path
    if fault.startswith("E"):
        tree.fail(path, int(fault[1:]))
    elif fault.startswith("G"):
        target.write_bytes(GARBAGE[int(fault[1:])])
    else:
        target.unlink()
        if fault == "folder":
            target.mkdir()


def check_sample(
    golden: Golden,
    sensor: Ina3221Sensor,
    sample: Sample,
    touched: Collection[str],
    lost: AbstractSet[str] = frozenset(),
) -> None:
    """Assert that every rail is what it was or None with a reason, and that untouched rails are what they were.

    ``lost`` are files that were damaged before the sensor was opened: a rail without its power file is multiplied.
    """
    for rail_id, value in sample.values.items():
        if rail_id not in golden.rails_mw:
            assert any(path.endswith("_label") for path in lost), f"{rail_id} appeared and no label was damaged"
        elif value is None:
            assert sample.reasons[rail_id], rail_id
            assert golden.rail_files[rail_id] & set(touched), f"{rail_id} is None though none of its files was touched"
        else:
            products = [mw for path, mw in golden.products_mw.items() if path in golden.rail_files[rail_id] & lost]
            assert value in (golden.rails_mw[rail_id], *products), rail_id
    for rail_id, used in golden.rail_files.items():
        if not used & set(touched):
            assert sample.values.get(rail_id) == golden.rails_mw[rail_id], f"{rail_id} was not touched"
    if sensor.total is not None:
        assert set(sensor.total.rail_ids) <= set(golden.rails_mw)
        assert sensor.total.evidence


@given(data=st.data(), name=st.sampled_from(JETSONS))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rails_survive_any_damage(forest: Forest, data: st.DataObject, name: str) -> None:
    """Deleted, emptied, garbled or failing files, before opening: only the rails they belong to are lost."""
    golden = forest[name]
    faults = data.draw(st.dictionaries(st.sampled_from(golden.paths), FAULTS, max_size=6))
    with damaged(golden.tree, faults):
        try:
            sensor = Ina3221Sensor.open(golden.tree.root, reader=golden.tree.read)
        except DeviceError:
            assert all(used & set(faults) for used in golden.rail_files.values())
            return
        check_sample(golden, sensor, sensor.read(), faults, lost=set(faults))


@given(data=st.data(), name=st.sampled_from(JETSONS))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rails_survive_damage_while_running(forest: Forest, data: st.DataObject, name: str) -> None:
    """The same after opening: the sensor goes on in the same way, and its rails and total stay as declared."""
    golden = forest[name]
    rail_files = sorted(set().union(*golden.rail_files.values()) & set(golden.paths))
    faults = data.draw(st.dictionaries(st.sampled_from(rail_files), FAULTS, min_size=1, max_size=6))
    sensor = Ina3221Sensor.open(golden.tree.root, reader=golden.tree.read)
    rails, total = sensor.rails, sensor.total
    with damaged(golden.tree, faults):
        for _ in range(2):
            check_sample(golden, sensor, sensor.read(), faults)
        assert (sensor.rails, sensor.total) == (rails, total)
    assert sensor.read().values == golden.rails_mw


@given(data=st.data(), name=st.sampled_from(tree_names()))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_report_survives_any_damage(forest: Forest, data: st.DataObject, name: str) -> None:
    """The report on the board still comes as plain values, and untouched zones keep their temperature."""
    golden = forest[name]
    faults = data.draw(st.dictionaries(st.sampled_from(golden.paths), FAULTS, max_size=8))
    with damaged(golden.tree, faults):
        board = read_board(golden.tree.sysfs(), run=no_tool)
    json.dumps(board.to_json(), allow_nan=False)
    for zone, (folder, celsius) in zip(board.thermal.zones, golden.zones_c.items(), strict=True):
        assert zone.celsius in (celsius, None)
        assert (zone.celsius is None) == bool(zone.reason)
        if f"{folder}/temp" not in faults:
            assert zone.celsius == celsius
    if board.memory.total_bytes is not None:
        assert board.memory.total_bytes > 0
    if board.jetson is not None and board.jetson.l4t is None:
        assert "l4t" in dict(board.jetson.reasons)


def no_tool(arguments: Sequence[str], timeout_s: float) -> ToolOutput:
    """Answer as a machine without tools."""
    return ToolOutput(None, "there are no tools here")


@pytest.mark.parametrize("name", JETSONS)
def test_every_single_deleted_file_costs_its_own_rail_only(forest: Forest, name: str) -> None:
    """Each file a rail is made of, deleted on its own while running: that rail is None, all others are the same."""
    golden = forest[name]
    now_ns = iter(range(0, 10**15, 20_000_000_000))
    sensor = Ina3221Sensor.open(golden.tree.root, reader=golden.tree.read, clock=now_ns.__next__)
    for path in sorted(set().union(*golden.rail_files.values()) & set(golden.paths)):
        with damaged(golden.tree, {path: "delete"}):
            check_sample(golden, sensor, sensor.read(), {path})
    assert sensor.read().values == golden.rails_mw
