"""What a Jetson is: module, SoC, L4T release and JetPack. What cannot be known is None with a reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from edgeprec.devices.ina_channels import find_channels
from edgeprec.devices.ina_chips import find_chips
from edgeprec.devices.jetson_module import JetsonModule, read_module
from edgeprec.devices.rail_plans import rail_plans
from edgeprec.devices.sysfs import Sysfs

__all__ = ["Confidence", "JetsonIdentity", "jetpack_of", "parse_release", "read_identity", "read_l4t"]

_RELEASE_FILE = "etc/nv_tegra_release"
_PACKAGES_FILE = "var/lib/dpkg/status"
_RELEASE = re.compile(r"#\s*R(\d{1,3})\s*\(release\)(?:,\s*REVISION:\s*(\d{1,3}(?:\.\d{1,3})*))?")
_PACKAGE = re.compile(
    r"^Package: nvidia-l4t-core\n(?:(?!Package:).+\n)*?Version: (\d{1,3}(?:\.\d{1,3})*)", re.MULTILINE
)
_MAJORS = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7, 39: 7}
_JETPACKS = {"38.2": "7.0", "38.4": "7.1", "39.2": "7.2"}
_COMPUTE = {
    "tegra124": (3, 2),
    "tegra210": (5, 3),
    "tegra186": (6, 2),
    "tegra194": (7, 2),
    "tegra234": (8, 7),
    "tegra23x": (8, 7),
    "tegra264": (11, 0),
    "tegra26x": (11, 0),
}


class Confidence(StrEnum):
    """How the board was recognised."""

    DECLARED = "declared"  # the device tree says so
    INFERRED = "inferred"  # its rails look like it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class JetsonIdentity:
    """A Jetson. ``compute_capability`` is the GPU's by table: ask CUDA first where it is there."""

    model: str | None
    module: str | None  # part number, p3701-0005
    module_name: str | None
    soc: str | None
    compute_capability: tuple[int, int] | None
    l4t: str | None  # 36.4.7
    jetpack: str | None  # 6.x
    confidence: Confidence
    reasons: tuple[tuple[str, str], ...]  # field, why it is None

    @property
    def name(self) -> str | None:
        """Return what to call the board; a module that is not in the list is called unknown, with its part number."""
        if self.module_name is not None:
            return self.module_name
        if self.soc is not None and self.module is not None:
            return f"{self.soc}, unknown module {self.module}"
        return self.model or self.soc

    def to_json(self) -> dict[str, object]:
        """Return the identity as plain values."""
        compute = self.compute_capability
        return {
            "name": self.name,
            "model": self.model,
            "module": self.module,
            "module_name": self.module_name,
            "soc": self.soc,
            "compute_capability": None if compute is None else f"{compute[0]}.{compute[1]}",
            "l4t": self.l4t,
            "jetpack": self.jetpack,
            "confidence": self.confidence.value,
            "reasons": dict(self.reasons),
        }


def read_identity(sysfs: Sysfs) -> JetsonIdentity | None:
    """Return what the board is; None where nothing hints at a Jetson. Never raises."""
    module = read_module(sysfs)
    l4t = read_l4t(sysfs)
    family = None if module.soc is not None else _family_by_rails(sysfs)
    if module.soc is None and module.part is None and l4t is None and family is None:
        return None
    jetpack = None if l4t is None else jetpack_of(l4t)
    return JetsonIdentity(
        model=module.model,
        module=module.part,
        module_name=module.name or family,
        soc=module.soc,
        compute_capability=_COMPUTE.get(module.soc or ""),
        l4t=l4t,
        jetpack=jetpack,
        confidence=_confidence(module, family),
        reasons=tuple(_reasons(module, family, l4t, jetpack)),
    )


def read_l4t(sysfs: Sysfs) -> str | None:
    """Return the L4T release: from its file, else from the package that containers and images carry."""
    release = parse_release(sysfs.text(_RELEASE_FILE).value or "")
    if release is not None:
        return release
    found = _PACKAGE.search(sysfs.text(_PACKAGES_FILE).value or "")
    return found[1] if found else None


def parse_release(text: str) -> str | None:
    """Return ``36.4.7`` from the first line of ``/etc/nv_tegra_release``; its BOARD is not to be trusted."""
    lines = text.splitlines()
    found = _RELEASE.match(lines[0]) if lines else None
    if found is None:
        return None
    return found[1] if found[2] is None else f"{found[1]}.{found[2]}"


def jetpack_of(l4t: str) -> str | None:
    """Return the JetPack of a release: exactly where it is in the table, ``6.x`` by its major number, else None."""
    major, _, rest = l4t.partition(".")
    exact = _JETPACKS.get(f"{major}.{rest.partition('.')[0]}")
    if exact is not None:
        return exact
    known = _MAJORS.get(int(major))
    return None if known is None else f"{known}.x"


def _family_by_rails(sysfs: Sysfs) -> str | None:
    labels = {channel.label for chip in find_chips(sysfs) for channel in find_channels(sysfs, chip)}
    plans = (plan for plan in rail_plans() if plan.known_by and labels.issuperset(plan.known_by))
    return next((plan.name for plan in plans), None)


def _confidence(module: JetsonModule, family: str | None) -> Confidence:
    if module.soc is not None:
        return Confidence.DECLARED
    return Confidence.UNKNOWN if family is None else Confidence.INFERRED


def _reasons(
    module: JetsonModule, family: str | None, l4t: str | None, jetpack: str | None
) -> Sequence[tuple[str, str]]:
    reasons = []
    if module.soc is None:
        reasons.append(("soc", "the device tree cannot be read, as in most containers"))
    if module.name is None:
        if module.part is not None:
            reasons.append(("module_name", f"{module.part} is not in the list of modules"))
        elif family is None:
            reasons.append(("module_name", "the device tree names no module"))
    if l4t is None:
        reasons.append(("l4t", f"neither /{_RELEASE_FILE} nor the package nvidia-l4t-core tells the release"))
    elif jetpack is None:
        reasons.append(("jetpack", f"L4T {l4t} is not in the table of releases"))
    return reasons
