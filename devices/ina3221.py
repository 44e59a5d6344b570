"""Power of a Jetson's rails from its own monitors (INA3221, INA238 on Thor), through sysfs, without root."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from edgeprec.devices.ina_channels import Channel
from edgeprec.devices.ina_rails import FoundRails, find_rails
from edgeprec.devices.sensor import Sample
from edgeprec.devices.sysfs import GONE, Number, Reader, Sysfs, read_file
from edgeprec.errors import DeviceError

__all__ = ["Ina3221Sensor"]

_log = logging.getLogger(__name__)

_PERIOD_MS = 50.0  # a conversion of three channels takes 6.6 ms at least; reading more often costs more than it tells
_REDISCOVERY_NS = 10_000_000_000


class Ina3221Sensor:
    """The connected rails of a board, one value in mW each. One bad rail never hides another.

    When a chip's files vanish, because its driver was bound anew or the hwmon folders were renumbered, the chips are
    looked for once; while they stay away, again every ten seconds.
    """

    source = "ina3221"

    def __init__(self, sysfs: Sysfs, found: FoundRails, clock: Callable[[], int]) -> None:
        self._sysfs = sysfs
        self._clock = clock
        self._channels = {channel.id: channel for channel in found.channels}
        self._next_search_ns: int | None = None
        self._warned: set[str] = set()
        self.rails = found.rails
        self.total = found.total
        self.total_note = found.total_note
        self.lag_ms = found.update_ms
        self.period_ms = max(_PERIOD_MS, found.update_ms or 0.0)

    @classmethod
    def open(
        cls,
        root: Path = Path("/"),
        *,
        reader: Reader = read_file,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> Self:
        """Find the rails of the board whose files lie below ``root``.

        Raises:
            DeviceError: there is no power monitor, or none of its channels is connected.
        """
        sysfs = Sysfs(root, reader=reader)
        found = find_rails(sysfs)
        if not found.rails:
            raise DeviceError(f"no INA3221 or INA238 with a rail under {sysfs.absolute('sys/bus/i2c/devices')}")
        if found.total is None:
            _log.warning("%s", found.total_note)
        return cls(sysfs, found, clock)

    def read(self) -> Sample:
        """Read all rails once; a rail that fails is None with a reason. Never raises."""
        before_ns = self._clock()
        readings = {rail.id: self._read_rail(rail.id) for rail in self.rails}
        gone = [rail_id for rail_id, reading in readings.items() if reading.code in GONE]
        if gone and self._search_again(before_ns):
            readings |= {rail_id: self._read_rail(rail_id) for rail_id in gone}
        elif not gone:
            self._next_search_ns = None
        time_ns = (before_ns + self._clock()) // 2
        return Sample(
            time_ns=time_ns,
            values={rail_id: reading.value for rail_id, reading in readings.items()},
            reasons={rail_id: self._reason(rail_id, r) for rail_id, r in readings.items() if r.value is None},
        )

    def close(self) -> None:
        """Do nothing: no file stays open between two reads."""

    def _read_rail(self, rail_id: str) -> Number:
        return self._channels[rail_id].read_mw(self._sysfs)

    def _search_again(self, now_ns: int) -> bool:
        """Look for the chips again, unless that was done a short while ago, and return whether it was done."""
        if self._next_search_ns is not None and now_ns < self._next_search_ns:
            return False
        self._next_search_ns = now_ns + _REDISCOVERY_NS
        for channel in find_rails(self._sysfs).channels:
            known = self._channels.get(channel.id)
            if known is not None and known.measures_like(channel):
                self._channels[channel.id] = channel
        return True

    def _reason(self, rail_id: str, reading: Number) -> str:
        reason = reading.reason or "it could not be read"
        if rail_id not in self._warned:
            self._warned.add(rail_id)
            _log.warning("rail %s (%s) cannot be read: %s", self._label(rail_id), rail_id, reason)
        return reason

    def _label(self, rail_id: str) -> str:
        channel: Channel = self._channels[rail_id]
        return channel.label
