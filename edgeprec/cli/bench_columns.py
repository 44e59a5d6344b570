"""The columns of a benchmark's table and of its CSV, each from one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CSV_COLUMNS", "Column", "csv_values", "table_columns"]

Record = Mapping[str, Any]
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A header, the least width of its cells, whether they are numbers, and how one is made."""

    header: str
    width: int
    is_number: bool
    cell: Callable[[Record], str]


def table_columns(*, has_energy: bool) -> list[Column]:
    """Return the columns of the table, those of energy only where it may be measured."""
    return [*_LEADING, *(_ENERGY if has_energy else ()), *_TRAILING]


def _spread(record: Record, *path: str, digits: int) -> str:
    """Return ``mean ± stdev`` of the spread at ``path``."""
    found = _at(record, path)
    if found is None:
        return NOTHING
    deviation = "" if found["stdev"] is None else f" ± {found['stdev']:z.{digits}f}"
    return f"{found['mean']:z.{digits}f}{deviation}"


def _at(record: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if record is None:
            return None
        record = record[name]
    return record


def _shown(value: Any, form: str = "") -> str:
    return NOTHING if value is None else format(value, form)


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return NOTHING
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def _joules(record: Record, name: str) -> str:
    """Return joules a token; those of a part of the device are no total and stand in the JSON only."""
    energy = record["energy"]
    return _spread(record, "energy", name, digits=4) if energy is not None and energy["is_total"] else NOTHING


def _clock(record: Record) -> str:
    clocks = record["clocks"]["after_mhz"]
    fastest = max(clocks.items(), key=lambda item: (item[0] != "cpu", item[1]), default=None)
    return NOTHING if fastest is None else f"{fastest[0].partition(' ')[0]} {fastest[1]:.0f} MHz"


def _hash(record: Record) -> str:
    return NOTHING if record["token_sha256"] is None else str(record["token_sha256"])[:8]


def _peak(record: Record) -> str:
    """Return the GPU's peak where it is known, else the host's."""
    memory = record["memory"]
    return _size(memory["process_peak_bytes"] if memory["gpu_peak_bytes"] is None else memory["gpu_peak_bytes"])


_LEADING = (
    Column("model", 16, False, lambda record: str(record["model"]["name"])),
    Column("size", 10, True, lambda record: _size(record["model"]["size_bytes"])),
    Column("engine", 11, False, lambda record: str(record["engine"])),
    Column("threads", 7, True, lambda record: _shown(record["threads"])),
    Column("mode", 7, False, lambda record: _shown(record["mode"])),
    Column("drafter", 7, False, lambda record: _shown(record["drafter"])),
    Column("K", 8, True, lambda record: _shown(record["draft_length"])),
    Column("test", 14, False, lambda record: str(record["test"]["name"])),
    Column("t/s", 16, True, lambda record: _spread(record, "tokens_per_s", digits=2)),
    Column("accept", 6, True, lambda record: _share(record["acceptance_rate"])),
)
_ENERGY = (
    Column("J/token", 17, True, lambda record: _joules(record, "joules_per_token")),
    Column("above idle", 17, True, lambda record: _joules(record, "joules_per_token_above_idle")),
    Column("W", 14, True, lambda record: _spread(record, "energy", "watts", digits=2)),
    Column("power mode", 10, False, lambda record: _shown(record["device"]["power_mode"])),
)
_TRAILING = (
    Column("clock", 12, True, _clock),
    Column("bits/w", 6, True, lambda record: _shown(record["bits_read_per_weight"], ".2f")),
    Column("tokens", 8, False, _hash),
    Column("peak mem", 10, True, _peak),
)

CSV_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "time": ("time",),
    "device": ("device", "name"),
    "power_mode": ("device", "power_mode"),
    "edgeprec": ("versions", "edgeprec"),
    "model": ("model", "name"),
    "size_bytes": ("model", "size_bytes"),
    "parameters": ("model", "parameters"),
    "server": ("server", "url"),
    "engine": ("engine",),
    "threads": ("threads",),
    "mode": ("mode",),
    "drafter": ("drafter",),
    "draft_length": ("draft_length",),
    "test": ("test", "name"),
    "prompt_tokens": ("test", "prompt_tokens"),
    "new_tokens": ("test", "new_tokens"),
    "depth_tokens": ("test", "depth_tokens"),
    "prefill_rows": ("test", "prefill_rows"),
    "sequences": ("test", "sequences"),
    "repeats": ("repeats",),
    "tokens_per_s": ("tokens_per_s", "mean"),
    "tokens_per_s_stdev": ("tokens_per_s", "stdev"),
    "tokens_per_s_per_sequence": ("batch", "tokens_per_s_per_sequence"),
    "tokens_per_round": ("batch", "tokens_per_round"),
    "acceptance_rate": ("acceptance_rate",),
    "mean_draft_length": ("mean_draft_length",),
    "int4_layer_share": ("int4_layer_share",),
    "bits_read_per_weight": ("bits_read_per_weight",),
    "joules_per_token": ("energy", "joules_per_token", "mean"),
    "joules_per_token_stdev": ("energy", "joules_per_token", "stdev"),
    "joules_per_token_above_idle": ("energy", "joules_per_token_above_idle", "mean"),
    "decode_joules_per_token": ("energy", "decode_joules_per_token", "mean"),
    "watts": ("energy", "watts", "mean"),
    "idle_watts": ("energy", "idle_watts"),
    "energy_is_total": ("energy", "is_total"),
    "energy_rail": ("energy", "rail"),
    "energy_coverage": ("energy", "coverage"),
    "energy_note": ("energy_note",),
    "process_peak_bytes": ("memory", "process_peak_bytes"),
    "gpu_peak_bytes": ("memory", "gpu_peak_bytes"),
    "token_sha256": ("token_sha256",),
}


def csv_values(record: Record) -> list[Any]:
    """Return the cells of a CSV row; what was not measured is empty."""
    return ["" if (value := _at(record, path)) is None else value for path in CSV_COLUMNS.values()]
