"""Whole boards as trees of kernel files, from published dumps: what the tests call golden and the simulation scripts.

``board_trees.json`` holds one description for each board and release. ``like`` takes everything from another one that
the description does not state itself; ``files`` are merged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from edgeprec.devices.tree_builder import TreeBuilder
from edgeprec.errors import ConfigError

__all__ = ["describe_tree", "plant_tree", "tree_names"]

_FILE = Path(__file__).with_name("board_trees.json")
_GPU_FREQUENCIES = ("cur_freq", "min_freq", "max_freq")


@cache
def _descriptions() -> Mapping[str, Mapping[str, Any]]:
    text = _FILE.read_text(encoding="utf-8")
    plain: dict[str, dict[str, Any]] = json.loads(text)
    return plain


def tree_names() -> tuple[str, ...]:
    """Return the names of all trees, ``agx-orin-r36`` for example."""
    return tuple(_descriptions())


def describe_tree(name: str) -> Mapping[str, Any]:
    """Return the description of a tree with everything it takes from others.

    Raises:
        ConfigError: there is no tree of that name.
    """
    if name not in _descriptions():
        raise ConfigError(f"there is no board tree {name!r}: expected one of {', '.join(tree_names())}")
    own = _descriptions()[name]
    if "like" not in own:
        return own
    model = describe_tree(own["like"])
    merged = {**model, **own}
    merged["files"] = {**model.get("files", {}), **own.get("files", {})}
    return merged


def plant_tree(name: str, root: Path) -> TreeBuilder:
    """Build the files of a board below an empty folder.

    Raises:
        ConfigError: there is no tree of that name.
    """
    description = describe_tree(name)
    tree = TreeBuilder(root)
    _plant_identity(tree, description)
    for chip in description.get("chips", ()):
        _plant_chip(tree, chip)
    for number, (kind, reading) in enumerate(description.get("zones", ())):
        tree.zone(number, kind, reading)
    for gpu in description.get("gpu", ()):
        _plant_gpu(tree, gpu)
    _plant_cores(tree, description.get("cpu"))
    _plant_modes(tree, description.get("modes"))
    for path, content in description.get("files", {}).items():
        if content is not None:
            tree.file(path, content)
    for folder in description.get("folders", ()):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path, code in description.get("errors", {}).items():
        tree.fail(path, code)
    return tree


def _plant_identity(tree: TreeBuilder, description: Mapping[str, Any]) -> None:
    if "model" in description:
        tree.file("proc/device-tree/model", description["model"] + "\0")
    if "compatible" in description:
        tree.file("proc/device-tree/compatible", "".join(entry + "\0" for entry in description["compatible"]))
    if "memory_kb" in description:
        total, available = description["memory_kb"]
        tree.file("proc/meminfo", f"MemTotal: {total:>14} kB\nMemFree: 100000 kB\nMemAvailable: {available:>10} kB\n")


def _plant_chip(tree: TreeBuilder, chip: Mapping[str, Any]) -> None:
    if "iio" in chip:
        folder = tree.iio_chip(chip["iio"], chip["address"])
        for index, (label, *readings) in chip["channels"].items():
            tree.iio_channel(folder, int(index), label, readings)
    else:
        folder = tree.hwmon_chip(chip["hwmon"], chip["driver"], chip["address"])
        for index, (label, mv, ma) in chip.get("channels", {}).items():
            tree.hwmon_channel(folder, int(index), label, mv, ma)
    tree.files(folder, chip.get("files", {}))
    for name, code in chip.get("errors", {}).items():
        if not (tree.root / folder / name).exists():
            tree.file(f"{folder}/{name}", 0)
        tree.fail(f"{folder}/{name}", code)


def _plant_gpu(tree: TreeBuilder, gpu: Mapping[str, Any]) -> None:
    frequencies = dict(zip(_GPU_FREQUENCIES, gpu.get("hz", ()), strict=False))
    attributes = {**frequencies, **({"governor": gpu["governor"]} if "governor" in gpu else {})}
    tree.devfreq(gpu["node"], attributes, of_node=gpu.get("of_node"))
    if "load" in gpu:
        path, permille = gpu["load"]
        tree.file(path, permille)


def _plant_cores(tree: TreeBuilder, cpu: Mapping[str, Any] | None) -> None:
    if cpu is None:
        return
    tree.file("sys/devices/system/cpu/online", f"0-{cpu['cores'] - 1}")
    for core in range(cpu["cores"]):
        tree.cpu(core, dict(zip(("cur", "min", "max"), cpu["khz"], strict=True)))


def _plant_modes(tree: TreeBuilder, modes: Mapping[str, Any] | None) -> None:
    if modes is None:
        return
    lines = ["< PARAM TYPE=FILE NAME=CPU_ONLINE >", "CORE_0 /sys/devices/system/cpu/cpu0/online", ""]
    for number, name, cores in modes["list"]:
        lines.append(f"< POWER_MODEL ID={number} NAME={name} >")
        lines += [f"CPU_ONLINE CORE_{core} {int(core < cores)}" for core in range(modes["cores"])]
        lines.append("")
    lines.append(f"< PM_CONFIG DEFAULT={modes['default']} >")
    tree.file("etc/nvpmodel.conf", "\n".join(lines))
    if "current" in modes:
        tree.file("var/lib/nvpmodel/status", f"pmode:{modes['current']:04d}")
