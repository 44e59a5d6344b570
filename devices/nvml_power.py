"""Which of NVML's ways to tell a GPU's energy works on one GPU: asked once, remembered, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from edgeprec.devices.nvml_gpus import averages_power
from edgeprec.devices.nvml_library import GONE_CODES, NvmlError, NvmlLibrary
from edgeprec.devices.sensor import Quantity, Rail
from edgeprec.devices.visible_gpus import GpuIdentity

__all__ = ["GpuPower", "Metric", "probe_gpu"]

_FIELD_POWER_INSTANT = 186
_STEP_MS = 100.0
_MEAN_LAG_MS = 500.0  # the mean of the last second trails by half of it


class Metric(Enum):
    """A way to read, with the words that describe it."""

    ENERGY_COUNTER = "energy counter"
    INSTANT_POWER = "instantaneous power, integrated"
    POWER_USAGE = "power, integrated"

    @property
    def quantity(self) -> Quantity:
        """Return what the metric counts."""
        return Quantity.ENERGY if self is Metric.ENERGY_COUNTER else Quantity.POWER


@dataclass(slots=True, kw_only=True)
class GpuPower:
    """One GPU and the metric it answers; ``reason`` says why there is none, or why there is none any more."""

    identity: GpuIdentity
    handle: object
    metric: Metric | None
    reason: str | None = None
    lag_ms: float | None = None
    refusals: dict[Metric, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return the id of its rail."""
        return f"gpu{self.identity.index}"

    def rail(self, note: str | None = None) -> Rail:
        """Return its rail."""
        quantity = Quantity.POWER if self.metric is None else self.metric.quantity
        what = self.reason if self.metric is None else self.metric.value
        return Rail(
            id=self.id,
            label=self.identity.name if note is None else f"{self.identity.name} ({note})",
            quantity=quantity,
            step_ms=_STEP_MS,
            note=what,
        )

    def read(self, nvml: NvmlLibrary) -> float | None:
        """Return mJ or mW by the metric. None leaves ``reason``; a GPU that is gone is not asked again."""
        if self.metric is None:
            return None
        try:
            value = read_metric(nvml, self.handle, self.metric)
        except NvmlError as error:
            self.reason = str(error)
            if error.code in GONE_CODES:
                self.metric = None
            return None
        self.reason = None
        return value


def probe_gpu(nvml: NvmlLibrary, identity: GpuIdentity, handle: object, quantity: Quantity | None = None) -> GpuPower:
    """Ask a GPU for each metric in order of trust and keep the first that answers; ``quantity`` limits the choice."""
    refusals: dict[Metric, str] = {}
    for metric in Metric:
        if quantity is not None and metric.quantity is not quantity:
            continue
        try:
            value = read_metric(nvml, handle, metric)
        except NvmlError as error:
            refusals[metric] = str(error)
            continue
        if value == 0 and metric.quantity is Quantity.POWER:
            refusals[metric] = f"{metric.value} answered 0 mW, which means that it is not supported"
            continue
        is_mean = metric is Metric.POWER_USAGE and averages_power(nvml, handle, identity.name)
        lag_ms = _MEAN_LAG_MS if is_mean else None
        return GpuPower(identity=identity, handle=handle, metric=metric, lag_ms=lag_ms, refusals=refusals)
    reason = "; ".join(dict.fromkeys(refusals.values()))
    return GpuPower(identity=identity, handle=handle, metric=None, reason=reason, refusals=refusals)


def read_metric(nvml: NvmlLibrary, handle: object, metric: Metric) -> float:
    """Return mJ or mW.

    Raises:
        NvmlError: the GPU refused.
    """
    if metric is Metric.ENERGY_COUNTER:
        return float(nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle))
    if metric is Metric.POWER_USAGE:
        return float(nvml.ask("nvmlDeviceGetPowerUsage", handle))
    value: Any = nvml.ask("nvmlDeviceGetFieldValues", handle, [_FIELD_POWER_INSTANT])[0]
    if value.nvmlReturn != 0:  # the call succeeds even where the field does not
        raise NvmlError("nvmlDeviceGetFieldValues(186)", int(value.nvmlReturn))
    return float(value.value.uiVal)
