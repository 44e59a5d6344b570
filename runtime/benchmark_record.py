"""The record of a benchmark: one JSON object a case, the line of ``bench -o jsonl``. ``docs/bench-format.md`` has it.

"Not measured" is null with a reason beside it, never 0.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeprec.bench_results import SCHEMA, SCHEMA_VERSION
from edgeprec.runtime.batch_totals import BatchTotals
from edgeprec.runtime.benchmark_case import Case, CaseKind
from edgeprec.runtime.benchmark_energy import RepeatEnergy, summed_phases
from edgeprec.runtime.benchmark_machine import MachineState
from edgeprec.runtime.benchmark_repeat import Generated, Repeat, Work, rate
from edgeprec.runtime.loop_share import loop_share

__all__ = ["Circumstances", "Spread", "make_record", "spread"]

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation; the latter is None for a single value."""

    mean: float
    stdev: float | None
    count: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"mean": self.mean, "stdev": self.stdev, "count": self.count}


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return the spread of the values that are known, None where none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What every record of one command has in common. ``server`` is None for the product's own engine."""

    time: str  # when the command began, UTC, ISO 8601
    command: tuple[str, ...]
    device: Mapping[str, Any]
    versions: Mapping[str, str]
    model: Mapping[str, Any]
    engine: str
    engine_device: str | None
    threads: int | None
    repeats: int
    has_warm_up: bool
    idle: Mapping[str, Any]
    meter: Mapping[str, Any] | None
    server: Mapping[str, Any] | None = None


def make_record(
    about: Circumstances,
    case: Case,
    repeats: Sequence[Repeat],
    *,
    before: MachineState,
    after: MachineState,
) -> dict[str, Any]:
    """Return the record of a case from what its repeats measured; there must be one at least."""
    energy, energy_note = _energy(repeats)
    generated = [one for repeat in repeats for one in repeat.generated]
    token_hashes = [repeat.token_sha256 for repeat in repeats]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "time": about.time,
        "command": list(about.command),
        "device": dict(about.device),
        "versions": dict(about.versions),
        "model": dict(about.model),
        "server": None if about.server is None else dict(about.server),
        "engine": about.engine,
        "engine_device": about.engine_device,
        "threads": about.threads,
        **_settings(case, generated, is_server=about.server is not None),
        "test": _test(case),
        "is_complete": len(repeats) == about.repeats,
        "repeats": len(repeats),
        "has_warm_up": about.has_warm_up,
        "tokens_per_s": _json(spread([rate(case.kind, repeat.generated) for repeat in repeats])),
        "prefill_tokens_per_s": _json(spread([rate(CaseKind.PREFILL, repeat.generated) for repeat in repeats])),
        **_work(generated),
        "loop_share": loop_share([one.tokens for one in generated if one.tokens is not None]),
        "batch": _batch(repeats),
        "energy": energy,
        "energy_note": energy_note,
        "idle": dict(about.idle),
        "meter": None if about.meter is None else dict(about.meter),
        "memory": _memory(about, after),
        "clocks": _clocks(before, after),
        "hottest_c": {"before": before.hottest_c, "after": after.hottest_c},
        "token_sha256": _common(token_hashes),
        "text_sha256": _common([repeat.text_sha256 for repeat in repeats]),
        "by_kind": _by_kind(case, repeats),
        "runs": [_run(case, repeat) for repeat in repeats],
        "notes": [*_notes(about, case, repeats, generated)],
    }


def _json(value: Spread | None) -> dict[str, Any] | None:
    return None if value is None else value.to_json()


def _settings(case: Case, generated: Sequence[Generated], *, is_server: bool) -> dict[str, Any]:
    config = case.config
    drafting, sampling = config.drafting, config.sampling
    drafter = next((one.work.drafter for one in generated if one.work is not None), "none")
    is_drafting = drafter != "none"
    length = "adaptive" if drafting.draft_length is None else drafting.draft_length
    return {
        "mode": None if is_server else str(config.mode),
        "drafter": drafter if is_drafting else None,
        "draft_length": length if is_drafting else None,
        "draft_rule": str(drafting.rule) if is_drafting and drafting.draft_length is None else None,
        "objective": str(drafting.objective) if is_drafting else None,
        "three_level": drafting.three_level if is_drafting else None,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "ignores_eos": case.kind is not CaseKind.PROMPTS or config.ignore_eos,
    }


def _test(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "kind": case.kind.value,
        "prompt_tokens": case.prompt_tokens if case.kind in (CaseKind.PREFILL, CaseKind.BOTH) else None,
        "new_tokens": case.new_tokens,
        "depth_tokens": case.depth_tokens,
        "prefill_rows": case.prefill_rows,
        "sequences": case.sequences,
        "prompt_set": case.prompt_set,
        "prompts": len(case.prompts) or None,
    }


def _work(generated: Sequence[Generated]) -> dict[str, Any]:
    """Return what the layers did; null where a server does not tell."""
    works = [one.work for one in generated if one.work is not None]
    drafted = sum(work.drafted for work in works)
    rounds = sum(work.rounds for work in works)
    return {
        "acceptance_rate": _ratio(sum(work.accepted for work in works), drafted),
        "level_acceptance_rate": _ratio(
            sum(work.level_accepted for work in works), sum(work.level_drafted for work in works)
        ),
        "mean_draft_length": _ratio(drafted, rounds) if drafted else None,
        "drafted": drafted if works else None,
        "int4_layer_share": _ratio(sum(work.int4_passes for work in works), sum(work.all_passes for work in works)),
        "bits_read_per_weight": _bits(works),
        "fallbacks": _fallbacks(generated),
    }


def _batch(repeats: Sequence[Repeat]) -> dict[str, Any] | None:
    """Return what the sequences that ran together did, None where one ran at a time."""
    found = [repeat.batch for repeat in repeats if repeat.batch is not None]
    if not found:
        return None
    total = BatchTotals(found[0].sequences)
    for one in found:
        total.merge(one)
    return total.to_json()


def _fallbacks(generated: Sequence[Generated]) -> list[str]:
    """Return what could not run as asked; sentences that differ in their numbers only stand for each other."""
    alike: dict[str, list[str]] = {}
    for one in generated:
        for sentence in one.fallbacks:
            alike.setdefault(_NUMBER.sub("#", sentence), []).append(sentence)
    if len(generated) == 1:
        return [sentence for (sentence,) in alike.values()]
    return [f"in {len(found)} of {len(generated)} generations, such as: {found[0]}" for found in alike.values()]


def _bits(works: Sequence[Work]) -> float | None:
    return _ratio(sum(work.bits_read for work in works), sum(work.weights_read for work in works))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _energy(repeats: Sequence[Repeat]) -> tuple[dict[str, Any] | None, str | None]:
    """Return the energy of all repeats that have one, and the reasons of those that have none."""
    energies = [repeat.energy for repeat in repeats if repeat.energy is not None]
    missing = [repeat.energy_note or "not measured" for repeat in repeats if repeat.energy is None]
    reasons = list(dict.fromkeys(missing))
    if not energies:
        return None, "; ".join(reasons)
    if missing:
        reasons.insert(0, f"measured in {len(energies)} of {len(repeats)} repeats")
    notes = dict.fromkeys(note for repeat in repeats if repeat.energy is not None and (note := repeat.energy_note))
    return _energy_json(energies), "; ".join([*reasons, *notes]) or None


def _energy_json(energies: Sequence[RepeatEnergy]) -> dict[str, Any]:
    readings = [energy.reading for energy in energies]
    first = readings[0]
    return {
        "joules_per_token": _json(spread([energy.joules_per_token for energy in energies])),
        "joules_per_token_above_idle": _json(spread([energy.joules_per_token_above_idle for energy in energies])),
        "decode_joules_per_token": _json(spread([energy.decode_joules_per_token for energy in energies])),
        "watts": _json(spread([reading.watts for reading in readings])),
        "joules": sum(reading.joules for reading in readings),
        "plus_minus_joules": sum(reading.plus_minus_joules for reading in readings),
        "seconds": sum(reading.seconds for reading in readings),
        "tokens": sum(energy.tokens for energy in energies),
        "by_phase": summed_phases(energies),
        "repeats": len(energies),
        "source": first.source,
        "rail": " + ".join(first.rails),
        "scope": None if first.scope is None else first.scope.value,
        "is_total": all(reading.is_total for reading in readings),
        "is_shared": any(reading.is_shared for reading in readings),
        "method": first.method.value,
        "coverage": min(reading.coverage for reading in readings),
        "lag_ms": first.lag_ms,
        "power_mode": first.power_mode,
        "idle_watts": first.idle_watts,
    }


def _memory(about: Circumstances, after: MachineState) -> dict[str, Any]:
    if about.server is not None:
        return {"process_peak_bytes": None, "gpu_peak_bytes": None, "note": "the server's memory is not seen from here"}
    note = "of this process, from its start to the end of this test"
    if after.gpu_peak_bytes is None and about.engine_device != "cpu":
        note += f"; {about.engine} does not tell its peak on {about.engine_device}"
    return {"process_peak_bytes": after.process_peak_bytes, "gpu_peak_bytes": after.gpu_peak_bytes, "note": note}


def _clocks(before: MachineState, after: MachineState) -> dict[str, Any]:
    return {
        "before_mhz": before.clock_mhz,
        "after_mhz": after.clock_mhz,
        "is_locked": after.clocks["is_locked"],
        "reasons": after.clocks["reasons"],
    }


def _common(hashes: Sequence[str | None]) -> str | None:
    """Return the hash all repeats have in common, None where they differ."""
    return hashes[0] if len(set(hashes)) == 1 else None


def _by_kind(case: Case, repeats: Sequence[Repeat]) -> dict[str, Any] | None:
    """Return speed and acceptance by the prompts' task, None for synthetic prompts."""
    if case.kind is not CaseKind.PROMPTS:
        return None
    kinds = dict.fromkeys(prompt.kind for prompt in case.prompts)
    return {kind: _of_kind(case, repeats, kind) for kind in kinds}


def _of_kind(case: Case, repeats: Sequence[Repeat], kind: str) -> dict[str, Any]:
    chosen = [[one for one in repeat.generated if one.kind == kind] for repeat in repeats]
    work = _work([one for ones in chosen for one in ones])
    return {
        "prompts": sum(prompt.kind == kind for prompt in case.prompts),
        "new_tokens": sum(one.new_tokens for ones in chosen for one in ones),
        "tokens_per_s": _json(spread([rate(case.kind, ones) for ones in chosen])),
        "acceptance_rate": work["acceptance_rate"],
        "mean_draft_length": work["mean_draft_length"],
        "bits_read_per_weight": work["bits_read_per_weight"],
    }


def _run(case: Case, repeat: Repeat) -> dict[str, Any]:
    return {
        "tokens_per_s": rate(case.kind, repeat.generated),
        "token_sha256": repeat.token_sha256,
        "text_sha256": repeat.text_sha256,
        "energy": None if repeat.energy is None else repeat.energy.to_json(),
        "energy_note": repeat.energy_note,
        "generations": [one.to_json() for one in repeat.generated],
    }


def _notes(
    about: Circumstances, case: Case, repeats: Sequence[Repeat], generated: Sequence[Generated]
) -> Iterator[str]:
    """Yield what to know of a case. The prompts of a prefill differ from repeat to repeat, so its tokens may."""
    if len(repeats) < about.repeats:
        yield f"broken off after {len(repeats)} of {about.repeats} repeats"
    if case.kind in (CaseKind.DECODE, CaseKind.PROMPTS):
        different = len({repeat.text_sha256 for repeat in repeats})
        if different > 1:
            yield f"the repeats gave {different} different texts"
    if case.kind in (CaseKind.DECODE, CaseKind.BOTH):
        wanted = case.new_tokens + (case.kind is CaseKind.DECODE)
        least = min(one.new_tokens for one in generated)
        if least < wanted:
            yield f"a generation ended after {least} of {wanted} tokens"
