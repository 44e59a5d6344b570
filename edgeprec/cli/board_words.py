"""What ``edgeprec doctor`` says of the board: one line a fact, and sentences for what keeps it from its best.

Both work on the plain values of ``Board.to_json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["board_lines", "board_troubles"]

Facts = Mapping[str, Any]
_SAID = {"memory", "power_mode", "clocks", "temperature"}  # parts that have a line of their own


def board_lines(board: Facts) -> Iterator[str]:
    """Yield the board's facts, what is not known at the end."""
    yield f"  {'board':<14}{_identity(board)}"
    yield from (f"  {'GPU':<14}{gpu['name']}{_bracketed(gpu.get('note'))}" for gpu in board["gpus"])
    yield f"  {'memory':<14}{_memory(board['memory'], is_shared=board['jetson'] is not None)}"
    if board["power_modes"] is not None:
        yield f"  {'power mode':<14}{_power_mode(board)}"
    yield f"  {'clocks':<14}{_clocks(board['clocks'], is_jetson=board['jetson'] is not None)}"
    yield f"  {'temperature':<14}{_temperature(board['thermal'])}"
    yield f"  {'throttling':<14}{_protection(board['protection'])}"
    yield f"  {'permissions':<14}{_permissions(board['permissions'])}"
    unsaid = (entry for entry in board["unknown"] if entry["part"] not in _SAID)
    yield from (f"  {'not known':<14}{entry['part']}: {entry['reason']}" for entry in unsaid)


def board_troubles(board: Facts) -> Iterator[str]:
    """Yield what keeps the board from working as it could, each with what to do."""
    alerts = board["protection"]["alerts"]
    if board["protection"]["is_throttling"]:
        names = ", ".join(name for name, state in alerts.items() if state)
        yield f"the board throttles now ({names}): improve cooling or the power supply, or choose a lower power mode"
    for limit in board["current_limits"]:
        if limit["is_exceeded"]:
            yield f"the current limit of {limit['label']} is exceeded: choose a lower power mode"
    for node in board["permissions"]["shut_nodes"]:
        yield f"{node['path']} cannot be opened, {node['reason']}: {node['fix']}"
    yield from board["permissions"]["notes"]


def _identity(board: Facts) -> str:
    jetson, cpu = board["jetson"], board["cpu"]
    if jetson is None:
        counts = [f"{cpu[name]} {name}" for name in ("cores", "threads") if cpu[name] is not None]
        return ", ".join([board["name"] or "unknown machine", *counts])
    release = [
        f"module {jetson['module']}" if jetson["module"] else None,
        jetson["soc"],
        f"compute capability {jetson['compute_capability']}" if jetson["compute_capability"] else None,
        f"JetPack {jetson['jetpack']}" if jetson["jetpack"] else None,
        f"L4T {jetson['l4t']}" if jetson["l4t"] else None,
        "recognised by its rails only" if jetson["confidence"] == "inferred" else None,
    ]
    return ", ".join([jetson["name"] or "unknown Jetson", *(part for part in release if part)])


def _memory(memory: Facts, *, is_shared: bool) -> str:
    if memory["total_bytes"] is None:
        return f"not known: {memory['reason']}"
    shared = ", shared by CPU and GPU" if is_shared else ""
    available = memory["available_bytes"]
    free = "" if available is None else f", {available / 2**30:.1f} available"
    return f"{memory['total_bytes'] / 2**30:.1f} GiB{free}{shared}"


def _power_mode(board: Facts) -> str:
    modes = board["power_modes"]
    if board["power_mode"] is None:
        return f"not known: {modes['reason']}"
    fastest = modes["fastest"]
    if fastest is None or fastest["id"] == modes["id"]:
        return str(board["power_mode"])
    return f"{board['power_mode']}; {fastest['name']} is faster: sudo nvpmodel -m {fastest['id']}"


def _clocks(clocks: Facts, *, is_jetson: bool) -> str:
    parts = [_gpu_clock(gpu) for gpu in clocks["gpu"]]
    cpu = clocks["cpu"]
    if cpu["current_khz"]:
        limits = _range(cpu["minimum_khz"], cpu["maximum_khz"], 1e3)
        parts.append(f"CPU {max(cpu['current_khz']) / 1e3:.0f} MHz{limits}")
    if not parts:
        return f"not known: {'; '.join(clocks['reasons']) if is_jetson else 'the cores show no frequency'}"
    if not is_jetson:
        return "; ".join(parts)
    locked = {True: "locked", False: "not locked", None: "locked or not is not known"}[clocks["is_locked"]]
    return f"{locked}; {'; '.join(parts)}"


def _gpu_clock(gpu: Facts) -> str:
    now = "powered down" if gpu["current_hz"] is None else f"{gpu['current_hz'] / 1e6:.0f} MHz"
    return f"GPU {gpu['node']} {now}{_range(gpu['minimum_hz'], gpu['maximum_hz'], 1e6)}"


def _range(low: float | None, high: float | None, per_mhz: float) -> str:
    return "" if low is None or high is None else f" of {low / per_mhz:.0f} to {high / per_mhz:.0f}"


def _temperature(thermal: Facts) -> str:
    if thermal["hottest_c"] is None:
        return "not known: no thermal zone can be read"
    readable = sum(zone["celsius"] is not None for zone in thermal["zones"])
    return (
        f"{thermal['hottest_c']:.1f} °C at {thermal['hottest_zone']}, {readable} of {len(thermal['zones'])} zones read"
    )


def _protection(protection: Facts) -> str:
    state = {True: "now", False: "not now", None: "no alert is shown by this machine"}[protection["is_throttling"]]
    events = [f"{name} {'?' if count is None else count}" for name, count in protection["events"].items()]
    return f"{state}; over-current events since boot: {', '.join(events)}" if events else state


def _permissions(permissions: Facts) -> str:
    groups = [
        f"{group['name']} {'yes' if group['is_member'] else 'no'}" for group in permissions["groups"] if group["exists"]
    ]
    nodes, shut = len(permissions["open_nodes"]), len(permissions["shut_nodes"])
    return f"groups: {', '.join(groups) or 'none that opens devices'}; device nodes: {nodes} open, {shut} shut"


def _bracketed(text: str | None) -> str:
    return f" ({text})" if text else ""
