"""What NVML says of the GPUs, and whether its two ways to tell energy agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from edgeprec.devices.counter_check import CounterCheck, check_counter
from edgeprec.devices.meter import Meter
from edgeprec.devices.nvml import NvmlSensor
from edgeprec.devices.nvml_gpus import GpuFacts, list_gpus
from edgeprec.devices.sensor import Quantity
from edgeprec.errors import DeviceError

__all__ = ["GpuSurvey", "survey_gpus"]

_CHECK_S = 2.0  # 20 steps of the counter


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSurvey:
    """``check`` is None where a GPU knows only one of the two ways, which is no fault."""

    gpus: tuple[GpuFacts, ...] = ()
    check: CounterCheck | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain values."""
        return {"gpus": [_facts(gpu) for gpu in self.gpus], "counter_check": _check(self.check)}


def survey_gpus(*, library: Any = None, wait: Callable[[float], object] = time.sleep) -> GpuSurvey:
    """Ask for the facts of every GPU, and meter two seconds with counter and power side by side.

    ``library`` is the module pynvml unless given. A machine without NVML has no GPUs here.
    """
    try:
        gpus = list_gpus(library)
    except DeviceError:  # the sensors' survey says why
        return GpuSurvey()
    return GpuSurvey(gpus=gpus, check=_compare(library, wait))


def _compare(library: Any, wait: Callable[[float], object]) -> CounterCheck | None:
    with ExitStack() as opened:
        try:
            counter = NvmlSensor.open(library=library, quantity=Quantity.ENERGY)
            opened.callback(counter.close)
            power = NvmlSensor.open(library=library, quantity=Quantity.POWER)
            opened.callback(power.close)
        except DeviceError:
            return None
        return check_counter(Meter(counter), Meter(power), lambda: wait(_CHECK_S))


def _facts(gpu: GpuFacts) -> dict[str, Any]:
    return {
        "index": gpu.identity.index,
        "name": gpu.identity.name,
        "uuid": gpu.identity.uuid,
        "is_mig": gpu.identity.is_mig,
        "driver": gpu.driver,
        "memory_bytes": gpu.memory_bytes,
        "power_limit_mw": gpu.power_limit_mw,
        "utilisation_percent": gpu.utilisation_percent,
        "reasons": dict(gpu.reasons),
    }


def _check(check: CounterCheck | None) -> dict[str, Any] | None:
    if check is None:
        return None
    return {
        "counter_watts": None if check.counter is None else check.counter.watts,
        "power_watts": None if check.integral is None else check.integral.watts,
        "difference": check.difference,
        "warning": check.warning,
    }
