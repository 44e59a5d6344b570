#!/usr/bin/env python3
"""Compare an NVIDIA GPU's energy counter with its integrated instantaneous power: at rest, loaded and in pulses.

    PYTHONPATH=. python3 scripts/check_energy_counter.py [--json] [--idle-seconds 10] [--load-seconds 30]

Needs torch with CUDA. Both are measured at the same time by a meter each; exit code 1 when they differ by more than
``--tolerance`` (3 %) under the steady load.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgeprec.devices.counter_check import CounterCheck, check_counter
from edgeprec.devices.meter import Meter, Overhead
from edgeprec.devices.nvml import NvmlSensor
from edgeprec.devices.recording import RecordingSensor
from edgeprec.devices.sensor import Quantity, Sensor
from edgeprec.errors import EdgePrecError, MissingDependency

COLUMNS = ("segment", "s", "counter J", "counter W", "power J", "power W", "difference %", "samples", "coverage", "± J")


@dataclass(frozen=True)
class Segment:
    """A named piece of work."""

    name: str
    work: Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the three segments on the first CUDA device and print what came out."""
    options = parse(arguments)
    try:
        torch = import_torch()
        pci_ids = torch_pci_ids(torch)
        counter = NvmlSensor.open(cuda_pci_ids=pci_ids, quantity=Quantity.ENERGY)
        power = NvmlSensor.open(cuda_pci_ids=pci_ids, quantity=Quantity.POWER)
        sensors = [recorded(counter, "counter", options.trace), recorded(power, "power", options.trace)]
    except EdgePrecError as error:
        print(f"check_energy_counter: {error}", file=sys.stderr)
        return error.exit_code
    meters = [Meter(sensor, synchronize=torch.cuda.synchronize) for sensor in sensors]
    checks = run(meters[0], meters[1], segments(torch, options))
    fact = counter.facts()[0]
    about = {
        "gpu": fact.identity.name,
        "driver": fact.driver,
        "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "power_metric": power.rails[0].note,
        "power_limit_w": None if fact.power_limit_mw is None else fact.power_limit_mw / 1e3,
    }
    report = as_json(about, checks, {"counter": meters[0].overhead(), "power": meters[1].overhead()})
    print(json.dumps(report, indent=2) if options.json else as_table(report))
    for sensor in sensors:
        sensor.close()
    difference = checks["load"].difference
    return 0 if difference is not None and abs(difference) <= options.tolerance / 100 else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--load-seconds", type=float, default=30.0)
    parser.add_argument("--pulse-seconds", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=8192, help="rows of the square bfloat16 matrices")
    parser.add_argument("--tolerance", type=float, default=3.0, help="per cent")
    parser.add_argument("--trace", type=Path, help="folder for the traces of both sensors, to replay later")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def recorded(sensor: Sensor, name: str, folder: Path | None) -> Sensor:
    """Return the sensor, writing its samples to ``folder`` where one is given."""
    return sensor if folder is None else RecordingSensor(sensor, folder / f"{name}.jsonl")


def import_torch() -> Any:
    """Return torch with a usable CUDA device."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(package="torch", purpose="loading the GPU", extra="torch") from error
    if not torch.cuda.is_available():
        raise EdgePrecError("torch sees no CUDA device: run this on a machine with an NVIDIA GPU")
    return torch


def torch_pci_ids(torch: Any) -> list[str] | None:
    """Return the PCI id of the first CUDA device as NVML writes it, None where this torch does not tell."""
    found = torch.cuda.get_device_properties(0)
    if not hasattr(found, "pci_bus_id"):
        return None
    return [f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"]


def segments(torch: Any, options: argparse.Namespace) -> list[Segment]:
    """Return rest with the CUDA context open, steady matrix products, and products in pulses of 0.3 s."""
    left = torch.randn(options.size, options.size, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    torch.matmul(left, right)
    torch.cuda.synchronize()
    time.sleep(2.0)

    def load(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(10):
                torch.matmul(left, right)
            torch.cuda.synchronize()

    def pulses() -> None:
        end = time.monotonic() + options.pulse_seconds
        while time.monotonic() < end:
            load(0.3)
            time.sleep(0.3)

    return [
        Segment("idle", lambda: time.sleep(options.idle_seconds)),
        Segment("load", lambda: load(options.load_seconds)),
        Segment("pulses", pulses),
    ]


def run(counter: Meter, power: Meter, work: Sequence[Segment]) -> dict[str, CounterCheck]:
    """Measure each segment by both meters at once."""
    with counter, power:
        return {segment.name: check_counter(counter, power, segment.work) for segment in work}


def as_json(
    about: dict[str, object], checks: dict[str, CounterCheck], overheads: dict[str, Overhead | None]
) -> dict[str, Any]:
    """Return everything measured as plain values."""
    return {
        **about,
        "segments": {
            name: {
                "counter": None if check.counter is None else check.counter.to_json(),
                "power": None if check.integral is None else check.integral.to_json(),
                "difference_percent": None if check.difference is None else 100 * check.difference,
                "warning": check.warning,
            }
            for name, check in checks.items()
        },
        "overhead": {
            name: None
            if cost is None
            else {
                "samples": cost.samples,
                "us_per_sample": cost.ns_per_sample / 1e3,
                "worst_us": cost.worst_ns / 1e3,
                "share_percent": 100 * cost.share,
            }
            for name, cost in overheads.items()
        },
    }


def as_table(report: dict[str, Any]) -> str:
    """Return the report as a Markdown table with the facts of the machine above and the cost of measuring below."""
    head = ", ".join(f"{key} {report[key]}" for key in ("gpu", "driver", "torch", "date", "power_metric"))
    lines = [head, "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row(name, found)) + " |" for name, found in report["segments"].items()]
    lines += ["", *(f"{name}: {found['warning']}" for name, found in report["segments"].items() if found["warning"])]
    for name, cost in report["overhead"].items():
        if cost is not None:
            lines.append(
                f"reading the {name}: {cost['us_per_sample']:.0f} us a sample (worst {cost['worst_us']:.0f} us), "
                f"{cost['share_percent']:.2f} % of the period, {cost['samples']} samples"
            )
    return "\n".join(lines)


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Return the cells of one segment; what was not measured is a dash."""
    counter, power = found["counter"], found["power"]
    either = counter or power or {}
    difference = found["difference_percent"]
    return [
        name,
        cell(either.get("seconds"), 2),
        cell(counter and counter["joules"], 1),
        cell(counter and counter["watts"], 2),
        cell(power and power["joules"], 1),
        cell(power and power["watts"], 2),
        cell(difference, 2),
        f"{counter['samples'] if counter else '-'} / {power['samples'] if power else '-'}",
        f"{cell(counter and counter['coverage'], 3)} / {cell(power and power['coverage'], 3)}",
        f"{cell(counter and counter['plus_minus_joules'], 1)} / {cell(power and power['plus_minus_joules'], 1)}",
    ]


def cell(value: float | None, digits: int) -> str:
    """Return a number, or a dash for one that was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
