"""Which module a Jetson is, from its device tree: the part number, what it is called, and its SoC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs

__all__ = ["JetsonModule", "module_of", "read_module", "soc_of"]

_TREES = ("proc/device-tree", "sys/firmware/devicetree/base")
_PART = re.compile(r"nvidia,(?:.*\+)?(p[0-9]{4})(?:-([0-9]{4}))?(?:-.*)?")
_BOARD_ID = re.compile(r"([0-9]{4}):([0-9]{4})(?::.*)?")
_SOC = re.compile(r"nvidia,(tegra[0-9]{2}[0-9x])")
_NAMES = {
    "p3448": "Jetson Nano",
    "p3310": "Jetson TX2",
    "p3489": "Jetson TX2",
    "p3636": "Jetson TX2 NX",
    "p3668": "Jetson Xavier NX",
    "p2888": "Jetson AGX Xavier",
    "p3767-0000": "Jetson Orin NX 16GB",
    "p3767-0001": "Jetson Orin NX 8GB",
    "p3767-0003": "Jetson Orin Nano 8GB",
    "p3767-0004": "Jetson Orin Nano 4GB",
    "p3767-0005": "Jetson Orin Nano developer kit",
    "p3701-0000": "Jetson AGX Orin developer kit",
    "p3701-0004": "Jetson AGX Orin 32GB",
    "p3701-0005": "Jetson AGX Orin 64GB",
    "p3834": "Jetson AGX Thor",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JetsonModule:
    """What the device tree says. ``name`` is None for a part number that is not in the list."""

    model: str | None  # the carrier's maker chose it; for display only
    compatible: tuple[str, ...]
    soc: str | None  # tegra234
    part: str | None  # p3701-0005
    name: str | None  # Jetson AGX Orin 64GB

    @property
    def label(self) -> str | None:
        """Return how messages call the board."""
        if self.name is not None:
            return self.name
        if self.soc is not None and self.part is not None:
            return f"{self.soc}, unknown module {self.part}"
        return self.model or (self.compatible[0] if self.compatible else None)


def read_module(sysfs: Sysfs) -> JetsonModule:
    """Return what the device tree says; everything None where there is none, as in most containers."""
    tree = next((tree for tree in _TREES if sysfs.names(tree)), _TREES[0])
    compatible = sysfs.strings(f"{tree}/compatible")
    part = module_of(compatible, sysfs.text(f"{tree}/nvidia,boardids").value)
    name = None
    if part is not None:
        name = _NAMES.get(part) or _NAMES.get(part.partition("-")[0])
    return JetsonModule(
        model=sysfs.text(f"{tree}/model").value, compatible=compatible, soc=soc_of(compatible), part=part, name=name
    )


def module_of(compatible: Sequence[str], board_ids: str | None = None) -> str | None:
    """Return the part number of the module: ``carrier+module`` tells it, else ``nvidia,boardids``, else a lone part."""
    joined = [entry for entry in compatible if "+" in entry]
    for entry in joined:
        if found := _PART.fullmatch(entry):
            return _joined(found)
    if board_ids is not None and (found := _BOARD_ID.match(board_ids)):
        return "p" + _joined(found)
    return next((_joined(found) for entry in compatible if (found := _PART.fullmatch(entry))), None)


def soc_of(compatible: Sequence[str]) -> str | None:
    """Return the SoC by the last entry that names one in full; a family (``tegra23x``) for want of better."""
    names = [found[1] for entry in compatible if (found := _SOC.fullmatch(entry))]
    return next((name for name in reversed(names) if not name.endswith("x")), names[-1] if names else None)


def _joined(found: re.Match[str]) -> str:
    return "-".join(part for part in found.groups() if part)
