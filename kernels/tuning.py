"""Which tile sizes a kernel runs with: a measured table by device and shape, and a default for what is not in it.

``tuning.json`` is written by ``scripts/tune_kernels.py``:

    {"schema_version": 2, "devices": {NAME: {
        "int4": {"NxK": {"8" | "16" | "32" | "64": {"kernel": "rows" | "wide", ...}}},   up to that many rows
        "fp16": {"NxK": {"bk": ..., "split": ..., "tiles": {"32" | "64" | "128": {...}}}}}}}

An FP16 shape has one BK and one SPLIT, whatever the rows: they fix the order of its sums, and with it its bits. Tiles
for up to 128 rows serve more of them too; without them blocks of 64 rows do. WK, S and SHARED_X fix the order in the
rows kernel for INT4: entries for 8 and 16 rows share them, so that 1..16 rows have the same bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from edgeprec.errors import KernelError

__all__ = [
    "FP16_ROW_LIMITS",
    "INT4_ROW_LIMITS",
    "Fp16Config",
    "RowsConfig",
    "WideConfig",
    "fp16_config",
    "int4_config",
    "parse_fp16_configs",
    "parse_int4_config",
]

INT4_ROW_LIMITS = (8, 16, 32, 64)
FP16_ROW_LIMITS = (32, 64, 128)
_SCHEMA_VERSION = 2
_MEASURED_GROUP_SIZE = 128
_MANY_TILES_PER_MULTIPROCESSOR = 8
_MOST_UNMEASURED_ROWS = 64  # taller tiles are used where the table has them, so where they were tried


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsConfig:
    """Tile sizes of ``int4_rows``; ``stages`` 0 keeps the next step in registers."""

    wn: int  # warps side by side along the outputs
    wk: int  # warps that share outputs and split the inputs
    r: int  # tiles of 16 outputs a warp
    s: int  # tiles of 128 inputs a step
    stages: int = 0
    prefetch: int = 0  # lines of 128 bytes an output tile
    pinned: bool = False  # keep unrolled loads ahead of the arithmetic, at the price of registers
    shared_x: bool = False  # with stages: the activations through shared memory too

    def fit(self, *, row_tiles: int, k_tiles: int) -> RowsConfig:
        """Return the nearest sizes that divide a weight of these tiles."""
        fitted = self
        while k_tiles % (fitted.wk * fitted.s):
            fitted = replace(fitted, s=fitted.s // 2) if fitted.s > 1 else replace(fitted, wk=fitted.wk // 2)
        while row_tiles % (fitted.wn * fitted.r):
            fitted = replace(fitted, r=fitted.r // 2) if fitted.r > 1 else replace(fitted, wn=fitted.wn // 2)
        lines = min(fitted.prefetch, 8 * k_tiles)
        return replace(fitted, prefetch=1 << lines.bit_length() - 1 if lines else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WideConfig:
    """Tile sizes of ``int4_wide``."""

    bn: int  # outputs a program
    split: int  # parts of K
    stages: int
    warps: int

    def fit(self, *, k_tiles: int) -> WideConfig:
        """Return the nearest split that divides ``k_tiles``."""
        split = self.split
        while k_tiles % split:
            split //= 2
        return replace(self, split=split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp16Config:
    """Tile sizes of ``fp16_rows``; ``bk`` and ``split`` fix the order of the sums."""

    bn: int  # outputs a program
    bm: int  # rows a program, at most
    bk: int
    split: int
    stages: int
    warps: int


def int4_config(
    device_name: str,
    *,
    n: int,
    k: int,
    rows: int,
    group_size: int,
    row_tiles: int,
    k_tiles: int,
    multiprocessors: int,
) -> RowsConfig | WideConfig:
    """Return the tile sizes for ``rows`` of activations, measured ones where there are.

    They are measured in blocks of 128. Smaller blocks hold two or four times the sums, which leave the registers where
    more than 8 rows meet unrolled steps of several tiles: those steps are streamed, in the same order of a sum.
    """
    limit = next((limit for limit in INT4_ROW_LIMITS if rows <= limit), INT4_ROW_LIMITS[-1])
    entry = _table().get(device_name, {}).get("int4", {}).get(f"{n}x{k}", {}).get(str(limit))
    is_large = row_tiles >= _MANY_TILES_PER_MULTIPROCESSOR * multiprocessors
    config = _default_int4(limit, is_large=is_large) if entry is None else parse_int4_config(entry)
    if isinstance(config, RowsConfig) and rows > INT4_ROW_LIMITS[-1]:  # it would read the weights once for every 16
        config = _default_int4(limit, is_large=is_large)
    if isinstance(config, WideConfig):
        return config.fit(k_tiles=k_tiles)
    if (
        group_size < _MEASURED_GROUP_SIZE
        and limit > INT4_ROW_LIMITS[0]
        and not config.stages
        and config.r * config.s > 1
    ):
        config = replace(config, stages=3, pinned=False)
    return config.fit(row_tiles=row_tiles, k_tiles=k_tiles)


def fp16_config(device_name: str, *, n: int, k: int, rows: int, multiprocessors: int, shared_bytes: int) -> Fp16Config:
    """Return the tile sizes of an FP16 linear; BK and SPLIT are the same for any number of rows."""
    limit = next((limit for limit in FP16_ROW_LIMITS if rows <= limit), FP16_ROW_LIMITS[-1])
    entry = _table().get(device_name, {}).get("fp16", {}).get(f"{n}x{k}")
    measured = {} if entry is None else parse_fp16_configs(entry)
    if limit not in measured:
        limit = min(limit, _MOST_UNMEASURED_ROWS)
    if limit in measured:
        return measured[limit]
    if entry is not None:
        return _default_fp16(limit, bk=entry["bk"], split=entry["split"], shared_bytes=shared_bytes)
    programs = -(-n // 64)
    split = 1 if 2 * programs >= multiprocessors else 2 if 4 * programs >= multiprocessors else 4
    return _default_fp16(limit, bk=128, split=split, shared_bytes=shared_bytes)


def parse_fp16_configs(entry: dict[str, Any]) -> dict[int, Fp16Config]:
    """Read one entry of the table: sizes by row limit.

    Raises:
        KernelError: the entry has other sizes or limits than the kernel.
    """
    try:
        found = {
            int(limit): Fp16Config(bk=entry["bk"], split=entry["split"], bm=int(limit), **tiles)
            for limit, tiles in entry["tiles"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KernelError(
            f"the tuning table has an entry {entry}, expected bk, split and tiles by row limit"
        ) from error
    if not set(found) <= set(FP16_ROW_LIMITS):
        raise KernelError(f"the tuning table has FP16 tiles for {sorted(found)} rows, expected {FP16_ROW_LIMITS}")
    return found


def parse_int4_config(entry: dict[str, Any]) -> RowsConfig | WideConfig:
    """Read one entry of the table.

    Raises:
        KernelError: the entry names no kernel there is, or other sizes than the kernel has.
    """
    values = dict(entry)
    kernel = values.pop("kernel", None)
    kinds: dict[object, type[RowsConfig] | type[WideConfig]] = {"rows": RowsConfig, "wide": WideConfig}
    try:
        return kinds[kernel](**values)
    except (KeyError, TypeError) as error:
        raise KernelError(
            f"the tuning table has an entry {entry}, expected kernel rows or wide and its sizes"
        ) from error


def _default_fp16(limit: int, *, bk: int, split: int, shared_bytes: int) -> Fp16Config:
    """Return tiles whose pipeline fits into the shared memory."""
    bn = 64
    step_bytes = 2 * (bn + limit) * bk
    return Fp16Config(bn=bn, bm=limit, bk=bk, split=split, stages=max(1, min(4, shared_bytes // step_bytes)), warps=4)


def _default_int4(limit: int, *, is_large: bool) -> RowsConfig | WideConfig:
    if limit > 16:
        return WideConfig(bn=64, split=1 if is_large else 4, stages=3, warps=4)
    if not is_large:
        return RowsConfig(wn=1, wk=4, r=1, s=2)
    # one order of the sums for 8 and for 16 rows, so the same bits
    return RowsConfig(wn=1, wk=2, r=2, s=1, stages=3) if limit > 8 else RowsConfig(wn=1, wk=2, r=2, s=1, pinned=True)


@lru_cache
def _table() -> dict[str, Any]:
    text = resources.files("edgeprec.kernels").joinpath("tuning.json").read_text(encoding="utf-8")
    content = json.loads(text)
    if content["schema_version"] != _SCHEMA_VERSION:
        found = content["schema_version"]
        raise KernelError(f"tuning.json has schema version {found}, expected {_SCHEMA_VERSION}: write it anew")
    devices: dict[str, Any] = content["devices"]
    return devices
