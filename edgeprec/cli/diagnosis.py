"""What ``edgeprec doctor`` finds, as one JSON object and in words."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgeprec.available_memory import read_available_memory
from edgeprec.cli.board_words import board_lines, board_troubles
from edgeprec.cli.engine_survey import survey_engines
from edgeprec.cli.gpu_survey import GpuSurvey, survey_gpus
from edgeprec.cli.sensor_survey import survey_sensors
from edgeprec.cli.setting_survey import survey_settings
from edgeprec.cli.settings import Flags, Origin, SettingsFile, unknown_variables
from edgeprec.errors import DeviceError

__all__ = ["diagnose", "in_words"]

_OWN_GPUS = ("auto", "nvml")  # with any other sensor it is not this machine's GPUs that are asked about
_PACKAGES = {
    "base": ("numpy", "tokenizers", "safetensors", "jinja2", "nvidia-ml-py"),
    "cpu": ("onnxruntime",),
    "cuda": ("onnxruntime-gpu",),
    "export": ("onnx", "ml-dtypes", "gguf", "huggingface-hub"),
    "torch": ("torch", "triton"),
    "jetson": ("jetson-stats",),
}


def diagnose(*, sensor: str, flags: Flags, environ: Mapping[str, str], file: SettingsFile | None) -> dict[str, Any]:
    """Look at the machine and return what ``doctor --json`` prints.

    ``missing`` says in sentences what keeps the product from doing all it can; ``degraded`` is whether there is any.
    """
    engines = survey_engines()
    sensors, machine = survey_sensors(sensor)
    board = machine.to_json()
    gpus = survey_gpus() if sensor in _OWN_GPUS else GpuSurvey()
    missing = list(unknown_variables(environ, flags).values())
    if not any(engine.is_usable for engine in engines):
        missing.append("no engine can run: pip install 'edgeprec[cpu]'")
    if sensors.total is None:
        what = "energy is not measured" if sensors.source is None else f"no total is known for {sensors.source}"
        missing.append(f"{what}: {sensors.note}")
    if gpus.check is not None and gpus.check.warning is not None:
        missing.append(gpus.check.warning)
    missing += board_troubles(board)
    return {
        "edgeprec": version("edgeprec"),
        "machine": _machine(),
        "board": board,
        **gpus.to_json(),
        "packages": {name: _version(name) for names in _PACKAGES.values() for name in names},
        "engines": [asdict(engine) for engine in engines],
        "sensors": asdict(sensors),
        "settings": [asdict(setting) for setting in survey_settings(flags, environ, file)],
        "degraded": bool(missing),
        "missing": missing,
    }


def in_words(found: Mapping[str, Any]) -> str:
    """Return the same for a person: settings only where they are not the default."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    machine = found["machine"]
    yield f"EdgePrec {found['edgeprec']}, Python {machine['python']}, {machine['system']}"
    yield f"  {machine['cores']} cores ({machine['cpu']}), {_gib(machine['available_bytes'])} available"
    yield "\nboard"
    yield from board_lines(found["board"])
    yield from _gpu_lines(found)
    yield "\nengines"
    for engine in found["engines"]:
        yield f"  {_mark(engine['is_usable'])} {engine['name']:<14}{engine['note']}"
    yield "\npower"
    for attempt in found["sensors"]["attempts"]:
        fix = f" ({attempt['fix']})" if attempt["fix"] else ""
        yield f"  {_mark(attempt['is_usable'])} {attempt['name']:<13} {attempt['note']}{fix}"
    sensors = found["sensors"]
    if sensors["source"]:
        yield f"  used: {sensors['source']}, rails {', '.join(sensors['rails'])}, total {sensors['total'] or 'unknown'}"
        if sensors["evidence"]:
            yield f"  {sensors['evidence']}"
    yield "\npackages"
    yield from (f"  {name:<18}{number or 'not installed'}" for name, number in found["packages"].items())
    yield "\nsettings"
    yield from _setting_lines(found["settings"])
    yield "\nmissing" if found["missing"] else "\nnothing is missing"
    yield from (f"  {sentence}" for sentence in found["missing"])


def _gpu_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for gpu in found["gpus"]:
        memory = "" if gpu["memory_bytes"] is None else f", {gpu['memory_bytes'] / 2**30:.0f} GiB"
        limit = "" if gpu["power_limit_mw"] is None else f", limit {gpu['power_limit_mw'] / 1e3:.0f} W"
        yield f"  {'NVML':<14}{gpu['name']}, driver {gpu['driver'] or 'unknown'}{memory}{limit}"
    check = found["counter_check"]
    if check is not None and check["difference"] is not None:
        yield (
            f"  {'energy':<14}counter {check['counter_watts']:.1f} W, power {check['power_watts']:.1f} W, "
            f"{100 * check['difference']:+.1f} % apart"
        )


def _setting_lines(settings: list[dict[str, Any]]) -> Iterator[str]:
    changed = [setting for setting in settings if setting["origin"] != Origin.DEFAULT]
    if not changed:
        yield "  all defaults"
    seen: dict[tuple[str, str, str], list[str]] = {}
    for setting in changed:
        key = (setting["flag"], str(setting["value"]), setting["where"])
        seen.setdefault(key, []).append(setting["command"])
    for (flag, value, where), commands in seen.items():
        yield f"  --{flag} {value}, from {where}, for {', '.join(commands)}"


def _machine() -> dict[str, Any]:
    try:
        available_bytes, note = read_available_memory().size_bytes, None
    except DeviceError as error:
        available_bytes, note = None, str(error)
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "available_bytes": available_bytes,
        "memory_note": note,
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith(("model name", "Model"))]
    except OSError:  # no Linux, or /proc is hidden
        names = []
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _mark(is_usable: bool) -> str:
    return "+" if is_usable else "-"


def _gib(size_bytes: int | None) -> str:
    return "unknown memory" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"
