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
from edgeprec.cli.engine_survey import survey_engines
from edgeprec.cli.sensor_survey import survey_sensors
from edgeprec.cli.setting_survey import survey_settings
from edgeprec.cli.settings import Flags, Origin, SettingsFile, unknown_variables
from edgeprec.errors import DeviceError

__all__ = ["diagnose", "in_words"]

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
    engines, sensors = survey_engines(), survey_sensors(sensor)
    unknown = unknown_variables(environ, flags)
    missing = list(unknown.values())
    if not any(engine.is_usable for engine in engines):
        missing.append("no engine can run: pip install 'edgeprec[cpu]'")
    if sensors.note is not None:
        missing.append(f"energy is not measured: {sensors.note}")
    return {
        "edgeprec": version("edgeprec"),
        "machine": _machine(),
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
    yield "\nengines"
    for engine in found["engines"]:
        yield f"  {_mark(engine['is_usable'])} {engine['name']:<14}{engine['note']}"
    yield "\npower"
    for attempt in found["sensors"]["attempts"]:
        yield f"  {_mark(attempt['is_usable'])} {attempt['name']:<14}{attempt['note']}"
    sensors = found["sensors"]
    if sensors["source"]:
        yield f"  used: {sensors['source']}, rails {', '.join(sensors['rails'])}, total {sensors['total'] or 'unknown'}"
    yield "\npackages"
    yield from (f"  {name:<18}{number or 'not installed'}" for name, number in found["packages"].items())
    yield "\nsettings"
    yield from _setting_lines(found["settings"])
    yield "\nmissing" if found["missing"] else "\nnothing is missing"
    yield from (f"  {sentence}" for sentence in found["missing"])


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
