"""The lines of a recorded power trace: one JSON object a line, the first describes the sensor, each other is a sample.

    {"format": "edgeprec-power-trace", "version": 1, "source": "ina3221", "period_ms": 50, "lag_ms": null,
     "rails": [{"id": "1-0040:1", "label": "VDD_IN", "quantity": "power", "parent": null, "step": 40, ...}],
     "total": {"rail_ids": ["1-0040:1"], "scope": "module", "evidence": "...", ...}, "total_note": null}
    {"time_ns": 0, "values": {"1-0040:1": 4784.64}}
    {"time_ns": 50000000, "values": {"1-0040:1": null}, "reasons": {"1-0040:1": "EIO"}}

Power is in mW, energy in mJ, time in nanoseconds since the first sample.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgeprec.devices.sensor import Quantity, Rail, Sample, Scope, Sensor, Total
from edgeprec.errors import DeviceError

__all__ = ["FORMAT", "VERSION", "TraceHeader", "header_line", "parse_header", "parse_sample", "sample_line"]

FORMAT = "edgeprec-power-trace"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """What a trace says about the sensor it was recorded from."""

    source: str
    period_ms: float
    lag_ms: float | None
    rails: tuple[Rail, ...]
    total: Total | None
    total_note: str | None


def header_line(sensor: Sensor) -> str:
    """Return the first line of a trace, without a line end."""
    return json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "source": sensor.source,
            "period_ms": sensor.period_ms,
            "lag_ms": sensor.lag_ms,
            "rails": [asdict(rail) for rail in sensor.rails],
            "total": None if sensor.total is None else asdict(sensor.total),
            "total_note": sensor.total_note,
        }
    )


def sample_line(sample: Sample, *, start_ns: int) -> str:
    """Return the line of one sample, its time counted from ``start_ns``."""
    plain: dict[str, object] = {"time_ns": sample.time_ns - start_ns, "values": dict(sample.values)}
    if sample.reasons:
        plain["reasons"] = dict(sample.reasons)
    if sample.restarts:
        plain["restarts"] = sorted(sample.restarts)
    return json.dumps(plain)


def parse_header(line: str) -> TraceHeader:
    """Read the first line.

    Raises:
        DeviceError: the line is not the header of a trace this version reads.
    """
    plain = _object(line, "line 1")
    if plain.get("format") != FORMAT:
        raise DeviceError(f"line 1 has the format {plain.get('format')!r}, expected {FORMAT!r}: record a trace anew")
    if plain.get("version") != VERSION:
        raise DeviceError(
            f"the trace has version {plain.get('version')!r}, this release reads {VERSION}: record it anew"
        )
    try:
        return TraceHeader(
            source=str(plain["source"]),
            period_ms=float(plain["period_ms"]),
            lag_ms=None if plain["lag_ms"] is None else float(plain["lag_ms"]),
            rails=tuple(_rail(rail) for rail in plain["rails"]),
            total=None if plain["total"] is None else _total(plain["total"]),
            total_note=plain["total_note"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DeviceError(f"line 1 of the trace is damaged ({error!r}): record it anew") from error


def parse_sample(line: str, number: int) -> Sample:
    """Read the line of one sample; ``number`` is its place in the file.

    Raises:
        DeviceError: the line is not a sample.
    """
    plain = _object(line, f"line {number}")
    try:
        return Sample(
            time_ns=int(plain["time_ns"]),
            values={str(k): None if v is None else _finite(v) for k, v in plain["values"].items()},
            reasons={str(k): str(v) for k, v in plain.get("reasons", {}).items()},
            restarts=frozenset(plain.get("restarts", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DeviceError(f"line {number} of the trace is no sample ({error!r}): delete it or record anew") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        plain = json.loads(line)
    except ValueError as error:
        raise DeviceError(f"{where} of the trace is not JSON ({error}): record it anew") from error
    if not isinstance(plain, dict):
        raise DeviceError(f"{where} of the trace is not a JSON object: record it anew")
    return plain


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no measured value")
    return number


def _rail(plain: Mapping[str, Any]) -> Rail:
    return Rail(**{**plain, "quantity": Quantity(plain["quantity"])})


def _total(plain: Mapping[str, Any]) -> Total:
    return Total(**{**plain, "rail_ids": tuple(plain["rail_ids"]), "scope": Scope(plain["scope"])})
