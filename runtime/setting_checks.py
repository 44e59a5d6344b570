"""Settings that depend on this machine or on what is loaded."""

from __future__ import annotations

import os
from numbers import Integral

from edgeprec.config import DrafterKind, GenerationConfig
from edgeprec.devices.meter import Meter
from edgeprec.errors import ConfigError
from edgeprec.runtime.logprobs import MAX_TOP_LOGPROBS

__all__ = ["check_logprobs", "check_settings", "check_whole", "require_threads"]


def check_settings(config: GenerationConfig, *, has_draft: bool, meter: Meter | None, meter_note: str | None) -> None:
    """Check what needs a draft model or a meter.

    Raises:
        ConfigError: the session has none; the message says what to do.
    """
    drafting = config.drafting
    if drafting.three_level and not has_draft:
        raise ConfigError(
            "three-level drafting needs a draft model and this bundle has none: export it with --draft, or leave out "
            "--three-level"
        )
    if drafting.drafter is DrafterKind.MODEL and not has_draft:
        raise ConfigError("drafter is 'model', this bundle has no draft model: export it with --draft, or use self")
    if config.power_budget_w is not None and (meter is None or meter.sensor.total is None):
        raise ConfigError(
            f"a power budget needs a sensor with a known total, there is none: "
            f"{meter_note or (meter and meter.sensor.total_note)}"
        )


def require_threads(threads: int | None) -> None:
    """Check a number of threads: those of one pool wait for each other, and more than there are CPUs wait for ever.

    Raises:
        ConfigError: there are not as many logical CPUs.
    """
    check_whole("threads", threads)
    cpus = os.cpu_count()
    if threads is not None and cpus is not None and threads > cpus:
        raise ConfigError(
            f"threads is {threads}, expected 1 to {cpus}, the logical CPUs of this machine: leave it out to use every "
            "core"
        )


def check_whole(name: str, value: object) -> None:
    """Check that a setting is a whole number, or None.

    Raises:
        ConfigError: it is not; True and 3.0 are none either.
    """
    if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
        raise ConfigError(f"{name} is {value!r}, expected a whole number")


def check_logprobs(top_logprobs: int | None) -> None:
    """Check how many alternatives of each token are asked for.

    Raises:
        ConfigError: more than are given, or it is no whole number.
    """
    check_whole("top_logprobs", top_logprobs)
    if top_logprobs is not None and not 0 <= top_logprobs <= MAX_TOP_LOGPROBS:
        raise ConfigError(f"top_logprobs is {top_logprobs}, expected 0 to {MAX_TOP_LOGPROBS}")
