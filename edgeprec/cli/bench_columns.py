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


def _prefill_joules(record: Record) -> str:
    joules = _phase_joules(record, "prefill") if record["energy"] is not None and record["energy"]["is_total"] else None
    return _shown(joules, ".4f")


def _phase_joules(record: Record, phase: str) -> float | None:
    """Return a phase's joules by the tokens that all joules are divided by, so that the phases add up to the whole."""
    energy = record["energy"]
    joules = None if energy is None else energy["by_phase"].get(phase)
    return None if joules is None or not energy["tokens"] else float(joules / energy["tokens"])


def _fastest(record: Record) -> tuple[str, float] | None:
    """Return the domain that tells most, the fastest of the GPU's or else the cores', and its MHz."""
    clocks: Mapping[str, float] = record["clocks"]["after_mhz"]
    return max(clocks.items(), key=lambda item: (item[0] != "cpu", item[1]), default=None)


def _clock(record: Record) -> str:
    fastest = _fastest(record)
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
    Column("J/t prefill", 11, True, _prefill_joules),
    Column("J/t decode", 17, True, lambda record: _joules(record, "decode_joules_per_token")),
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


def _field(*path: str) -> Callable[[Record], Any]:
    return lambda record: _at(record, path)


def _phase(name: str) -> Callable[[Record], float | None]:
    return lambda record: _phase_joules(record, name)


def _domain(record: Record) -> str | None:
    return None if (found := _fastest(record)) is None else found[0]


def _mhz(moment: str) -> Callable[[Record], float | None]:
    """Return what gives the clock of one domain, the same at both moments."""
    return lambda record: record["clocks"][moment].get(_domain(record))


CSV_COLUMNS: Mapping[str, Callable[[Record], Any]] = {
    "time": _field("time"),
    "device": _field("device", "name"),
    "power_mode": _field("device", "power_mode"),
    "edgeprec": lambda record: record["versions"].get("edgeprec"),  # a server's are not known
    "model": _field("model", "name"),
    "size_bytes": _field("model", "size_bytes"),
    "parameters": _field("model", "parameters"),
    "server": _field("server", "url"),
    "engine": _field("engine"),
    "engine_device": _field("engine_device"),
    "threads": _field("threads"),
    "mode": _field("mode"),
    "drafter": _field("drafter"),
    "draft_length": _field("draft_length"),
    "temperature": _field("temperature"),
    "test": _field("test", "name"),
    "prompt_tokens": _field("test", "prompt_tokens"),
    "new_tokens": _field("test", "new_tokens"),
    "depth_tokens": _field("test", "depth_tokens"),
    "prefill_rows": _field("test", "prefill_rows"),
    "sequences": _field("test", "sequences"),
    "is_complete": _field("is_complete"),
    "repeats": _field("repeats"),
    "tokens_per_s": _field("tokens_per_s", "mean"),
    "tokens_per_s_stdev": _field("tokens_per_s", "stdev"),
    "tokens_per_s_per_sequence": _field("batch", "tokens_per_s_per_sequence"),
    "tokens_per_round": _field("batch", "tokens_per_round"),
    "acceptance_rate": _field("acceptance_rate"),
    "mean_draft_length": _field("mean_draft_length"),
    "int4_layer_share": _field("int4_layer_share"),
    "bits_read_per_weight": _field("bits_read_per_weight"),
    "joules_per_token": _field("energy", "joules_per_token", "mean"),
    "joules_per_token_stdev": _field("energy", "joules_per_token", "stdev"),
    "joules_per_token_above_idle": _field("energy", "joules_per_token_above_idle", "mean"),
    "prefill_joules_per_token": _phase("prefill"),
    "draft_joules_per_token": _phase("draft"),
    "verify_joules_per_token": _phase("verify"),
    "decode_joules_per_token": _field("energy", "decode_joules_per_token", "mean"),
    "watts": _field("energy", "watts", "mean"),
    "idle_watts": _field("energy", "idle_watts"),
    "energy_is_total": _field("energy", "is_total"),
    "energy_source": _field("energy", "source"),
    "energy_scope": _field("energy", "scope"),
    "energy_rail": _field("energy", "rail"),
    "energy_coverage": _field("energy", "coverage"),
    "energy_note": _field("energy_note"),
    "clock_domain": _domain,
    "clock_before_mhz": _mhz("before_mhz"),
    "clock_after_mhz": _mhz("after_mhz"),
    "clocks_are_locked": _field("clocks", "is_locked"),
    "hottest_before_c": _field("hottest_c", "before"),
    "hottest_after_c": _field("hottest_c", "after"),
    "process_peak_bytes": _field("memory", "process_peak_bytes"),
    "gpu_peak_bytes": _field("memory", "gpu_peak_bytes"),
    "token_sha256": _field("token_sha256"),
}


def csv_values(record: Record) -> list[Any]:
    """Return the cells of a CSV row; what was not measured is empty."""
    return ["" if (value := cell(record)) is None else value for cell in CSV_COLUMNS.values()]
