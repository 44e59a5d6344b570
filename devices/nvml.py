"""Energy of NVIDIA GPUs through NVML: its energy counter where there is one, else power that the meter integrates."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from edgeprec.devices.nvml_gpus import GpuFacts, identify_gpu, reach_gpus, read_gpu_facts
from edgeprec.devices.nvml_library import NvmlLibrary
from edgeprec.devices.nvml_power import GpuPower, Metric, probe_gpu
from edgeprec.devices.sensor import Quantity, Sample, Scope, Total
from edgeprec.devices.visible_gpus import GpuIdentity, Selection, select_gpus
from edgeprec.errors import DeviceError

__all__ = ["NvmlSensor"]

_log = logging.getLogger(__name__)

# Measured on an H200 (driver 580): both values are new every 100 ms; reading the counter takes 5 ms, the power 0.2 ms.
# Faster polling than 50 ms is answered by 0 or "not supported" on some GPUs.
_COUNTER_PERIOD_MS = 100.0
_POWER_PERIOD_MS = 50.0


class NvmlSensor:
    """The GPUs that this process uses, one rail each. Not to be carried over a fork."""

    source = "nvml"

    def __init__(
        self, nvml: NvmlLibrary, gpus: Sequence[GpuPower], selection: Selection, clock: Callable[[], int]
    ) -> None:
        self._nvml = nvml
        self._gpus = tuple(gpus)
        self._clock = clock
        self._pid = os.getpid()
        self.rails = tuple(gpu.rail(_distinction(gpu, gpus)) for gpu in gpus)
        self.total = _total(gpus, selection)
        self.total_note = _total_note(gpus, selection)
        has_counter = any(gpu.metric is Metric.ENERGY_COUNTER for gpu in gpus)
        self.period_ms = _COUNTER_PERIOD_MS if has_counter else _POWER_PERIOD_MS
        self.lag_ms = max((gpu.lag_ms for gpu in gpus if gpu.lag_ms is not None), default=None)

    @classmethod
    def open(
        cls,
        *,
        library: Any = None,
        environ: Mapping[str, str] = os.environ,
        cuda_pci_ids: Sequence[str] | None = None,
        quantity: Quantity | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> Self:
        """Find the GPUs in use and the way each tells its energy.

        ``library`` is the module pynvml unless given. ``cuda_pci_ids`` are the PCI ids of CUDA's devices, where the
        caller knows them. ``quantity`` restricts the metrics, to compare the counter with integrated power.

        Raises:
            DeviceError: no NVML, no GPU in use, or no GPU that tells its power.
        """
        nvml = NvmlLibrary.open(library)
        try:
            gpus, selection = _selected(nvml, environ, cuda_pci_ids, quantity)
        except DeviceError:
            nvml.close()
            raise
        _warn_once(gpus)
        return cls(nvml, gpus, selection, clock)

    @property
    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Return the GPUs in use."""
        return tuple(gpu.identity for gpu in self._gpus)

    def facts(self) -> tuple[GpuFacts, ...]:
        """Return driver, memory, power limit and utilisation of the GPUs in use, now."""
        return tuple(read_gpu_facts(self._nvml, gpu.handle, gpu.identity) for gpu in self._gpus)

    def read(self) -> Sample:
        """Read all GPUs once. One that fails is None with NVML's reason.

        Raises:
            DeviceError: every GPU is gone, or the process has forked since the sensor was opened.
        """
        if os.getpid() != self._pid:
            raise DeviceError("NVML was opened in another process: open the sensor after the fork")
        before_ns = self._clock()
        values = {gpu.id: gpu.read(self._nvml) for gpu in self._gpus}
        time_ns = (before_ns + self._clock()) // 2
        reasons = {gpu.id: gpu.reason for gpu in self._gpus if values[gpu.id] is None and gpu.reason is not None}
        if all(gpu.metric is None for gpu in self._gpus):
            raise DeviceError("every GPU is gone: " + "; ".join(f"{gpu} {reason}" for gpu, reason in reasons.items()))
        return Sample(time_ns=time_ns, values=values, reasons=reasons)

    def close(self) -> None:
        """Shut NVML down; calling it twice is harmless."""
        self._nvml.close()


def _selected(
    nvml: NvmlLibrary, environ: Mapping[str, str], cuda_pci_ids: Sequence[str] | None, quantity: Quantity | None
) -> tuple[list[GpuPower], Selection]:
    handles = reach_gpus(nvml)
    if not handles:
        raise DeviceError("NVML lists no GPU on this machine")
    identities = [identify_gpu(nvml, index, handle) for index, handle in handles.items()]
    selection = select_gpus(identities, environ, cuda_pci_ids)
    if not selection.gpus:
        raise DeviceError(f"NVML is present but no GPU is in use: {selection.note}")
    gpus = [probe_gpu(nvml, gpu, handles[gpu.index], quantity) for gpu in selection.gpus]
    if all(gpu.metric is None for gpu in gpus):
        named = "; ".join(f"{gpu.identity.name}: {gpu.reason}" for gpu in gpus)
        raise DeviceError(f"NVML is present, no power on this board ({named}): use the board's own rails")
    return gpus, selection


def _distinction(gpu: GpuPower, gpus: Sequence[GpuPower]) -> str | None:
    """Return what tells a GPU from others of the same name."""
    namesakes = sum(other.identity.name == gpu.identity.name for other in gpus)
    return gpu.id if namesakes > 1 else None


def _total(gpus: Sequence[GpuPower], selection: Selection) -> Total:
    measured = [gpu for gpu in gpus if gpu.metric is not None]
    metrics = ", ".join(sorted({gpu.metric.value for gpu in measured if gpu.metric is not None}))
    return Total(
        rail_ids=tuple(gpu.id for gpu in measured),
        scope=Scope.GPU,
        evidence=f"NVML {metrics} of {len(measured)} of {len(gpus)} GPUs in use",
        is_partial=len(measured) < len(gpus),
        is_shared=bool(selection.shared),
    )


def _total_note(gpus: Sequence[GpuPower], selection: Selection) -> str | None:
    notes = [selection.note] if selection.note else []
    notes += [f"{gpu.id} {gpu.identity.name} not measured: {gpu.reason}" for gpu in gpus if gpu.metric is None]
    if selection.shared:
        notes.append("a GPU is split by MIG: its energy is that of the whole board, shared by all instances")
    return "; ".join(notes) or None


def _warn_once(gpus: Sequence[GpuPower]) -> None:
    for gpu in gpus:
        if gpu.metric is None:
            _log.warning("%s (%s) is not measured: %s", gpu.id, gpu.identity.name, gpu.reason)
        elif Metric.ENERGY_COUNTER in gpu.refusals:
            refusal = gpu.refusals[Metric.ENERGY_COUNTER]
            _log.warning("%s has no energy counter (%s): its power is integrated instead", gpu.id, refusal)
