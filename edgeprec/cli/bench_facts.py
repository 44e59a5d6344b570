"""What all results of one ``bench`` have in common: machine, model, versions, idle power."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edgeprec.bundle import Bundle, BundleModel
from edgeprec.devices.board import read_board
from edgeprec.devices.sysfs import Sysfs
from edgeprec.runtime.benchmark_machine import device_facts, library_versions
from edgeprec.runtime.benchmark_record import Circumstances

if TYPE_CHECKING:
    from edgeprec.runtime.session import Session

__all__ = ["circumstances", "graph_facts", "machine_files", "measure_idle", "model_facts", "why_no_total"]


def circumstances(
    session: Session, bundle: Bundle, values: Mapping[str, Any], *, command: tuple[str, ...], idle: Mapping[str, Any]
) -> Circumstances:
    """Gather them once, before the first test."""
    info, meter = session.info, session.meter
    files = machine_files(session)
    is_cpu = info.device == "cpu"
    return Circumstances(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        device=device_facts(read_board(files)),
        versions=library_versions(info.name, files),
        model=model_facts(bundle),
        engine=info.name,
        engine_device=info.device,
        threads=values["threads"] or (len(os.sched_getaffinity(0)) if is_cpu else None),
        repeats=values["repeats"],
        has_warm_up=not values["no_warmup"],
        idle=idle,
        meter=None if meter is None else {"source": meter.sensor.source, "period_ms": meter.period_ms},
    )


def model_facts(bundle: Bundle) -> dict[str, Any]:
    """Return what the table and the record say of a bundle."""
    entry, draft = bundle.target.entry, bundle.draft
    return {
        "name": bundle.manifest.name,
        "size_bytes": bundle.size_bytes,
        "parameters": sum(spec.num_elements for spec in entry.fp16_specs),
        "family": entry.architecture.family,
        "layers": entry.architecture.num_layers,
        "hidden_size": entry.architecture.hidden_size,
        "vocab_size": entry.architecture.vocab_size,
        "quantizer": entry.int4.quantizer,
        "group_size": entry.int4.group_size,
        "int4_bits_per_weight": entry.int4.bits_per_weight,
        "draft": "model" if isinstance(draft, BundleModel) else draft,
    }


def machine_files(session: Session) -> Sysfs:
    """Return the files of the machine whose power is measured: this one, or a simulated board."""
    from edgeprec.devices.simulated import SimulatedSensor

    sensor = None if session.meter is None else session.meter.sensor
    return sensor.board.sysfs if isinstance(sensor, SimulatedSensor) else Sysfs()


def why_no_total(session: Session) -> str | None:
    """Return why no total can be measured here, None where one may be."""
    meter = session.meter
    if meter is None:
        return session.meter_note or "there is no power sensor"
    total = meter.sensor.total
    if total is None:
        return meter.sensor.total_note or f"no total is known for the rails of {meter.sensor.source}"
    if total.is_partial:
        return meter.sensor.total_note or "a part of the total cannot be measured"
    return None


def graph_facts(session: Session) -> dict[str, Any] | None:
    """Return what CUDA graphs cost so far, None for an engine that has none."""
    report = getattr(session.batches.engine, "graph_report", None)
    return None if report is None else asdict(report)


def measure_idle(session: Session, seconds: float) -> dict[str, Any]:
    """Measure the power at rest, with the model loaded; the meter subtracts it from then on."""
    reason = why_no_total(session)
    if seconds == 0:
        reason = "left out (--idle-seconds 0)"
    if reason is not None or session.meter is None:
        return {"watts": None, "seconds": 0.0, "power_mode": None, "note": reason}
    idle = session.meter.measure_idle(seconds)
    return {"watts": idle.watts, "seconds": idle.seconds, "power_mode": idle.power_mode, "note": idle.note}
