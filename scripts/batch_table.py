"""The table of a batch sweep, and the batch from which on speculation stops paying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from typing import Any

__all__ = ["batch_table", "crossovers", "way_of"]

Record = Mapping[str, Any]


OWN_ENGINE = "torch"


def way_of(record: Record) -> str:
    """Return what a record's decoding is called in the table; a peer's is led by its program."""
    peer = "" if record["engine"] == OWN_ENGINE else f"{record['engine']}: "
    if record["drafter"] is None:
        return f"{peer}{record['mode']}"
    length, drafter = record["draft_length"], str(record["drafter"]).replace("model", "draft")
    mode = f"{record['mode']} " if peer and record["mode"] != "exact" else ""
    return f"{peer}{mode}{drafter} {'adaptive' if length == 'adaptive' else f'K={length}'}"


def batch_table(records: Sequence[Record]) -> str:
    """Return a Markdown table, batch by batch, with ratios to our FP16 of the same batch; J/token holds prefill too."""
    lines = [
        "| batch | decoding | tokens/s | over fp16 | a sequence | J/token | decoding alone | over fp16 | above idle | "
        "accepted | tokens a round | loops | W |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for batch in sorted({record["test"]["sequences"] for record in records}):
        found = [record for record in records if record["test"]["sequences"] == batch]
        base = next((record for record in found if way_of(record) == "fp16"), None)
        lines += [_row(record, base) for record in sorted(found, key=_place)]
    return "\n".join(lines)


def _place(record: Record) -> tuple[bool, str, bool, str]:
    """Order the ways: one's own before peers, plain decoding before drafts."""
    is_drafting = record["drafter"] is not None
    return (record["engine"] != OWN_ENGINE, record["engine"], is_drafting, way_of(record))


def _row(record: Record, base: Record | None) -> str:
    batch, energy = record["batch"], record["energy"]
    cells = [
        str(record["test"]["sequences"]),
        way_of(record),
        _spread(record["tokens_per_s"], 1),
        _number(_ratio(_rate(record), _rate(base)), ".2f", "x"),
        _number(batch["tokens_per_s_per_sequence"], ".1f"),
        _spread(None if energy is None else energy["joules_per_token"], 4),
        _spread(None if energy is None else energy["decode_joules_per_token"], 4),
        _number(_ratio(_joules(record), _joules(base)), ".2f", "x"),
        _spread(None if energy is None else energy["joules_per_token_above_idle"], 4),
        _number(record["acceptance_rate"], ".2f"),
        _number(batch["tokens_per_round"], ".2f"),
        _number(record.get("loop_share"), ".2f"),
        _spread(None if energy is None else energy["watts"], 0),
    ]
    return f"| {' | '.join(cells)} |"


def crossovers(records: Sequence[Record]) -> Iterator[str]:
    """Yield, for every way of drafting, up to which batch it is faster than FP16, and takes fewer joules, prefill too.

    What does not exceed the spread of both is no gain.
    """
    plain = {record["test"]["sequences"]: record for record in records if way_of(record) == "fp16"}
    ways = sorted((record for record in records if record["engine"] == OWN_ENGINE and record["drafter"]), key=_place)
    for way in dict.fromkeys(map(way_of, ways)):
        own = {record["test"]["sequences"]: record for record in records if way_of(record) == way}
        common = [batch for batch in sorted(own) if batch in plain]
        speed = {batch: _ratio(_rate(own[batch]), _rate(plain[batch])) for batch in common}
        sure = {batch: _sure_gain(own[batch]["tokens_per_s"], plain[batch]["tokens_per_s"]) for batch in common}
        saved = {batch: _sure_gain(_all_joules(plain[batch]), _all_joules(own[batch])) for batch in common}
        yield f"{way}: {_crossing('speed', sure)}; {_crossing('joules', saved)}{_lowest(speed)}"


def _crossing(what: str, gains: Mapping[int, float | None]) -> str:
    known = {batch: gain for batch, gain in gains.items() if gain is not None}
    if not known:
        return f"{what} not measured"
    loses = [batch for batch, gain in known.items() if gain <= 1.0]
    pays = [batch for batch, gain in known.items() if gain > 1.0]
    if not loses:
        return f"pays in {what} at every batch measured, {min(known)} to {max(known)}"
    if not pays:
        return f"pays in {what} at no batch measured"
    if max(pays) < min(loses):
        return f"stops paying in {what} between batch {max(pays)} and {min(loses)}"
    return f"pays in {what} at batch {', '.join(map(str, pays))}, not at {', '.join(map(str, loses))}"


def _lowest(gains: Mapping[int, float | None]) -> str:
    known = {batch: gain for batch, gain in gains.items() if gain is not None}
    if not known:
        return ""
    batch = min(known, key=known.__getitem__)
    return f"; lowest speed {known[batch]:.2f}x, at batch {batch}"


def _rate(record: Record | None) -> float | None:
    return None if record is None or record["tokens_per_s"] is None else float(record["tokens_per_s"]["mean"])


def _joules(record: Record | None) -> float | None:
    """Return the joules a token of decoding, like the speed; those of everything where the phases are not known."""
    energy = None if record is None else record["energy"]
    if energy is None:
        return None
    found = energy["decode_joules_per_token"] or energy["joules_per_token"]
    return None if found is None else float(found["mean"])


def _all_joules(record: Record) -> Mapping[str, Any] | None:
    energy = record["energy"]
    return None if energy is None else energy["joules_per_token"]


def _sure_gain(more: Mapping[str, Any] | None, less: Mapping[str, Any] | None) -> float | None:
    """Return the ratio of two means less the spread of both, None where one is not known."""
    if more is None or less is None or not less["mean"]:
        return None
    spread = hypot(*((found["stdev"] or 0.0) / found["mean"] for found in (more, less)))
    return float(more["mean"] / less["mean"] * (1.0 - spread))


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _spread(found: Mapping[str, Any] | None, digits: int) -> str:
    if found is None:
        return "-"
    deviation = "" if found["stdev"] is None else f" ± {found['stdev']:.{digits}f}"
    return f"{found['mean']:.{digits}f}{deviation}"
