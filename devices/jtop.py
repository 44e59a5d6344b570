"""Jetson power through jetson-stats (jtop), where its service runs: optional, the board's own rails need it not.

The only file that imports jetson-stats, which is AGPL-3.0 licensed and never required.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from edgeprec.devices.jtop_power import JtopPower, read_power
from edgeprec.devices.sensor import Rail, Sample, Scope, Total
from edgeprec.errors import DeviceError

__all__ = ["JtopPlan", "JtopSensor", "explain_refusal"]

_log = logging.getLogger(__name__)

JtopPlan = Callable[[Sequence[str]], Total | None]  # rail names, which are the ids here, -> the total they make up

_SUM_ID = "tot"
_USEFUL_INTERVAL_S = 1.0  # each tick of the service runs nvpmodel and scans processes: faster disturbs what it measures
_CLOSE_TIMEOUT_S = 1.0
_CLIENT_FAULTS = (KeyError, ValueError, TypeError, AttributeError, EOFError, OSError)

_REFUSALS = (
    ("mismatch version", "its service and this package differ in version: install the same major.minor in both places"),
    ("python version", "its service runs another Python: install jetson-stats for the Python of this process as well"),
    ("access", "the user is not in the group jtop (see id -nG): sudo usermod -aG jtop $USER, then log in again"),
    ("permission", "the user is not in the group jtop (see id -nG): sudo usermod -aG jtop $USER, then log in again"),
    ("not active", "its service is not running: sudo systemctl restart jtop.service"),
    ("authentication", "its service does not know this package: install the same version in both places"),
    ("error connection", "its service gives no data: sudo systemctl restart jtop.service"),
    ("lost connection", "its service went away: sudo systemctl restart jtop.service"),
)


class JtopSensor:
    """The rails that jtop's service publishes once a second."""

    source = "jtop"

    def __init__(
        self,
        client: Any,
        faults: tuple[type[BaseException], ...],
        first: JtopPower,
        plan: JtopPlan | None,
        clock: Callable[[], int],
    ) -> None:
        self._client = client
        self._faults = faults
        self._clock = clock
        self._is_open = True
        interval_s = _interval_s(client)
        self.period_ms = interval_s * 1e3
        self.lag_ms = interval_s * 1e3
        names = list(first.rails_mw)
        self.total, self.total_note = _total(first, names, plan)
        self.rails = _rails(first, self.total)

    @classmethod
    def open(
        cls,
        *,
        module: Any = None,
        socket: Path = Path("/run/jtop.sock"),
        timeout_s: float = 5.0,
        plan: JtopPlan | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> Self:
        """Connect to the service.

        ``module`` is the package jtop unless given. ``plan`` tells the total from the names of the rails where the
        board is known; without it the total is jtop's own, with the scope ``jtop_sum``.

        Raises:
            DeviceError: the package or its service is missing, refuses, does not answer in time, or sees no sensor.
        """
        if socket.is_dir():
            raise DeviceError(
                f"{socket} is a directory: the service was down when the container started, start it first"
            )
        module = _import_jtop() if module is None else module
        faults: tuple[type[BaseException], ...] = (*_CLIENT_FAULTS, *_own_error(module))
        client = module.jtop(interval=_USEFUL_INTERVAL_S)
        try:
            _start(client, faults, timeout_s)
            first = read_power(client.power)
        except DeviceError:
            _stop(client, faults)
            raise
        except faults as error:
            _stop(client, faults)
            raise DeviceError(explain_refusal(error)) from error
        return cls(client, faults, first, plan, clock)

    def read(self) -> Sample:
        """Return the newest figures of the service.

        Raises:
            DeviceError: the service went silent or broke.
        """
        try:
            is_alive = self._client.ok(spin=True)
            power = read_power(self._client.power) if is_alive else None
        except self._faults as error:
            raise DeviceError(explain_refusal(error)) from error
        if power is None:
            raise DeviceError("jtop went silent: sudo systemctl restart jtop.service")
        values: dict[str, float | None] = {rail.id: power.rails_mw.get(rail.id) for rail in self.rails}
        if _SUM_ID in values:
            values[_SUM_ID] = power.sum_mw
        reasons = {rail_id: "jtop gives no figure for it" for rail_id, value in values.items() if value is None}
        return Sample(time_ns=self._clock(), values=values, reasons=reasons)

    def close(self) -> None:
        """Leave the service; calling it twice is harmless."""
        if self._is_open:
            self._is_open = False
            _stop(self._client, self._faults)


def explain_refusal(error: BaseException) -> str:
    """Return what jetson-stats said, and what to do about it."""
    said = " ".join(str(error).split())
    if isinstance(error, KeyError):
        return (
            f"jtop's service and this package do not fit ({said} is missing): install the same version in both places"
        )
    lowered = said.lower()
    fix = next((fix for words, fix in _REFUSALS if words in lowered), None)
    return f"jtop refused ({type(error).__name__}: {said})" + ("" if fix is None else f": {fix}")


def _import_jtop() -> Any:
    try:
        return importlib.import_module("jtop")
    except ImportError as error:
        raise DeviceError("jetson-stats is not installed: run pip install 'edgeprec[jetson]'") from error


def _own_error(module: Any) -> tuple[type[BaseException], ...]:
    found = getattr(module, "JtopException", None)
    return (found,) if isinstance(found, type) and issubclass(found, BaseException) else ()


def _start(client: Any, faults: tuple[type[BaseException], ...], timeout_s: float) -> None:
    try:
        _within(client.start, faults, timeout_s)
    except TimeoutError:
        raise DeviceError(
            f"jtop's service did not answer within {timeout_s:g} s: sudo systemctl restart jtop.service"
        ) from None
    except faults as error:
        raise DeviceError(explain_refusal(error)) from error


def _stop(client: Any, faults: tuple[type[BaseException], ...]) -> None:
    try:
        _within(client.close, faults, _CLOSE_TIMEOUT_S)
    except faults as error:
        _log.debug("closing jtop failed: %s", error)


def _within(call: Callable[[], object], faults: tuple[type[BaseException], ...], timeout_s: float) -> None:
    """Make a call in a thread of its own, because a stuck service would hold it for ever.

    Raises:
        TimeoutError: the call has not returned in time; its thread is left behind.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except faults as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="edgeprec-jtop", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if failures:
        raise failures[0]


def _interval_s(client: Any) -> float:
    """Return the interval the service really has: the first client's wish counts for all."""
    interval = getattr(client, "interval", None)
    return float(interval) if isinstance(interval, int | float) and interval > 0 else _USEFUL_INTERVAL_S


def _rails(power: JtopPower, total: Total | None) -> tuple[Rail, ...]:
    whole = total.rail_ids[0] if total is not None and len(total.rail_ids) == 1 else None
    rails = [Rail(id=name, label=name, parent=None if name == whole else whole) for name in power.rails_mw]
    if whole == _SUM_ID:
        rails.append(Rail(id=_SUM_ID, label="sum by jtop", note="jtop adds its rails, which may hold one another"))
    return tuple(rails)


def _total(power: JtopPower, names: Sequence[str], plan: JtopPlan | None) -> tuple[Total | None, str | None]:
    planned = None if plan is None else plan(names)
    if planned is not None:
        return planned, None
    if power.total_name is not None:
        evidence = f"jtop names {power.total_name} as the total"
        return Total(rail_ids=(power.total_name,), scope=Scope.JTOP_SUM, evidence=evidence), None
    if power.has_supplies:
        return None, "jtop's sum counts USB-C supplies, which are limits and no consumption: upgrade jetson-stats"
    if power.sum_mw is None:
        return None, "jtop gives no total"
    evidence = "jtop's own sum of its rails"
    return Total(rail_ids=(_SUM_ID,), scope=Scope.JTOP_SUM, evidence=evidence, is_assumed=True), None
