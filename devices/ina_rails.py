"""From the power monitors of a board to rails with parents, resolution and a total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeprec.devices.ina_channels import Channel, find_channels
from edgeprec.devices.ina_chips import Chip, Layout, find_chips
from edgeprec.devices.jetson_module import read_module
from edgeprec.devices.rail_plans import ChosenPlan, RailPlan, choose_plan
from edgeprec.devices.sensor import Rail, Total
from edgeprec.devices.sysfs import Sysfs

__all__ = ["FoundRails", "find_rails"]

_SHUNT_STEP_UV = 40  # the INA3221's resolution of the voltage across the shunt
_INA238_LAG_MS = 16 * 1.052


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRails:
    """The channels of a board and what they mean."""

    channels: tuple[Channel, ...]
    rails: tuple[Rail, ...]
    total: Total | None
    total_note: str | None
    update_ms: float | None  # the slowest chip's averaging, None where no chip tells it


def find_rails(sysfs: Sysfs) -> FoundRails:
    """Look for all power monitors and decide which rails make the total. Reads only."""
    chips = find_chips(sysfs)
    channels = tuple(channel for chip in chips for channel in find_channels(sysfs, chip))
    module = read_module(sysfs)
    chosen = choose_plan([channel.label for channel in channels], module=module.part, board=module.label)
    ids = {channel.label: channel.id for channel in channels}
    return FoundRails(
        channels=channels,
        rails=tuple(_rail(sysfs, channel, chosen.plan, ids) for channel in channels),
        total=_total(chosen, ids),
        total_note=chosen.note,
        update_ms=_update_ms(sysfs, chips),
    )


def _rail(sysfs: Sysfs, channel: Channel, plan: RailPlan | None, ids: Mapping[str, str]) -> Rail:
    parent = None if plan is None else plan.parents.get(channel.label)
    return Rail(
        id=channel.id,
        label=channel.label,
        parent=None if parent is None else ids.get(parent),
        step=_step_mw(sysfs, channel, None if plan is None else plan.shunt_uohm),
        note=None if plan is None else plan.notes.get(channel.label),
    )


def _step_mw(sysfs: Sysfs, channel: Channel, planned_uohm: int | None) -> float | None:
    """Return the power of one step of current at the present voltage; None where the shunt is not known."""
    if channel.power is not None:
        return None
    shunt_uohm = (sysfs.number(channel.shunt).value if channel.shunt is not None else None) or planned_uohm
    voltage_mv = sysfs.number(channel.voltage).value
    if shunt_uohm is None or shunt_uohm <= 0 or voltage_mv is None:
        return None
    return abs(voltage_mv) * _SHUNT_STEP_UV / shunt_uohm


def _total(chosen: ChosenPlan, ids: Mapping[str, str]) -> Total | None:
    if chosen.total is None or chosen.scope is None or chosen.evidence is None:
        return None
    return Total(
        rail_ids=tuple(ids[label] for label in chosen.total),
        scope=chosen.scope,
        evidence=chosen.evidence,
        is_assumed=chosen.is_assumed,
    )


def _update_ms(sysfs: Sysfs, chips: Sequence[Chip]) -> float | None:
    """Return the time over which the slowest chip averages: ``update_interval`` holds samples and channels already."""
    known = [sysfs.number(f"{chip.folder}/update_interval").value for chip in chips]
    known += [_INA238_LAG_MS for chip in chips if chip.layout is Layout.INA238_HWMON]
    times = [time_ms for time_ms in known if time_ms is not None and time_ms > 0]
    is_complete = all(
        time_ms is not None for time_ms, chip in zip(known, chips, strict=False) if chip.layout is Layout.INA3221_HWMON
    )
    return max(times) if times and is_complete else None
