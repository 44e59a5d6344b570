"""A reading of power as a table for a person."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgeprec.cli.power_reading import PowerReading, RailPower
from edgeprec.cli.render import visible
from edgeprec.devices.display import describe_power

__all__ = ["PowerTable"]

_TOTAL = "total"


class PowerTable:
    """Lays out one reading after the other and remembers the extremes of each rail."""

    def __init__(self, title: str, *, has_extremes: bool) -> None:
        self._title = title
        self._has_extremes = has_extremes
        self._extremes: dict[str, tuple[float, float]] = {}

    def render(self, reading: PowerReading) -> RenderableType:
        """Return the table, with the reason under it where there is no total."""
        table = Table(title=Text(visible(self._title)), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        table.add_column("rail", overflow="fold")
        for heading in ("now", "lowest", "highest") if self._has_extremes else ("now",):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", overflow="fold", style="dim")
        for rail in reading.rails:
            self._add(table, rail.id, rail.label, rail.power_mw, rail.plus_minus_mw, _about(rail))
        table.add_section()
        total = reading.total
        if total is not None:
            about = f"{total.scope}{', shared with others' if total.is_shared else ''}"
            self._add(table, _TOTAL, _TOTAL, total.power_mw, total.plus_minus_mw, about, style="bold")
        elif reading.rails:
            self._add(table, _TOTAL, _TOTAL, None, None, "not measured")
        return Group(*([table] if reading.rails else []), *_remark(reading))

    def _add(
        self,
        table: Table,
        key: str,
        label: str,
        power_mw: float | None,
        step_mw: float | None,
        about: str,
        *,
        style: str = "",
    ) -> None:
        if power_mw is not None:
            low, high = self._extremes.get(key, (power_mw, power_mw))
            self._extremes[key] = min(low, power_mw), max(high, power_mw)
        cells = [label, describe_power(power_mw, step_mw)]
        if self._has_extremes:
            cells += [_watts(value, step_mw) for value in self._extremes.get(key, (None, None))]
        table.add_row(*(Text(visible(cell)) for cell in [*cells, about]), style=style)


def _about(rail: RailPower) -> str:
    inside = f"inside {rail.parent}" if rail.parent is not None else None
    return ", ".join(part for part in (rail.reason, inside, rail.note) if part)


def _watts(power_mw: float | None, step_mw: float | None) -> str:
    """Return a figure without its uncertainty, which stands beside it already."""
    return describe_power(power_mw, step_mw).partition(" ±")[0].removesuffix(" W")


def _remark(reading: PowerReading) -> list[Text]:
    """Return why there is no total, else why it is believed and what to know about it."""
    if reading.total is None:
        lead = "no total: " if reading.rails else "not measured: "
        return [Text(visible(f"{lead}{reading.reason}"), style="yellow")]
    remarks = (reading.total.evidence, reading.reason)
    return [Text(visible(remark), style="dim") for remark in remarks if remark]
