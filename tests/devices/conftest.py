"""Trees of kernel files for the tests of sensors and boards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeprec.devices.board_trees import plant_tree
from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.tree_builder import TreeBuilder


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    """An empty machine."""
    return TreeBuilder(tmp_path)


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[str], TreeBuilder]:
    """Plants a golden tree by name."""

    def build(name: str) -> TreeBuilder:
        return plant_tree(name, tmp_path / name)

    return build


@pytest.fixture
def open_rails() -> Callable[[TreeBuilder], Ina3221Sensor]:
    """Opens the sensor of the rails over a tree, with the errors planted in it."""

    def build(tree: TreeBuilder) -> Ina3221Sensor:
        return Ina3221Sensor.open(tree.root, reader=tree.read)

    return build
