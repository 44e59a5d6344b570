"""Measure tile sizes on this GPU and write them into kernels/tuning.json: python scripts/tune_kernels.py [NxK ...]

Without arguments: the projections of Llama-3.1-8B and Llama-3.2-1B. Sizes are compiled in parallel first.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from kernel_timing import GROUP_SIZE, LLAMA_1B, LLAMA_8B, Arena, Timing, measure
from triton.runtime.errors import TritonError

from edgeprec.kernels.fp16_rows import fp16_rows
from edgeprec.kernels.int4_rows import int4_rows
from edgeprec.kernels.int4_wide import int4_wide
from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, DeviceInt4Weight
from edgeprec.kernels.tuning import Fp16Config, RowsConfig, WideConfig

TABLE = Path(__file__).resolve().parent.parent / "kernels" / "tuning.json"
Config = RowsConfig | WideConfig | Fp16Config
Case = tuple[int, int, int, Config]  # n, k, rows, sizes


def rows(*sizes: int) -> RowsConfig:
    """Return a RowsConfig from its fields in order."""
    wn, wk, r, s, stages, prefetch = (*sizes, 0, 0)[:6]
    return RowsConfig(wn=wn, wk=wk, r=r, s=s, stages=stages, prefetch=prefetch)


def pinned(*sizes: int) -> RowsConfig:
    """Return an unrolled RowsConfig whose loads stay ahead of the arithmetic."""
    return replace(rows(*sizes), pinned=True)


def wide(bn: int, split: int, stages: int, warps: int) -> WideConfig:
    """Return a WideConfig from its fields in order."""
    return WideConfig(bn=bn, split=split, stages=stages, warps=warps)


def fp16(bn: int, bk: int, split: int, stages: int) -> Fp16Config:
    """Return an Fp16Config of four warps."""
    return Fp16Config(bn=bn, bk=bk, split=split, stages=stages, warps=4 if bn > 32 else 2)


INT4_CANDIDATES: dict[int, list[Config]] = {
    8: [
        *(rows(*sizes) for sizes in [(1, 4, 1, 4), (1, 4, 1, 2), (1, 8, 1, 2), (1, 8, 2, 2), (1, 8, 1, 4)]),
        *(pinned(*sizes) for sizes in [(1, 4, 1, 2), (1, 4, 1, 1), (2, 4, 1, 1), (1, 8, 1, 2), (1, 8, 2, 1)]),
        *(pinned(*sizes) for sizes in [(1, 2, 1, 2), (1, 4, 2, 1), (1, 4, 2, 2), (1, 2, 2, 1), (1, 8, 1, 1)]),
        *(rows(*sizes) for sizes in [(1, 2, 2, 2, 3), (1, 4, 4, 1, 3), (1, 8, 1, 2, 3), (1, 4, 1, 4, 6)]),
        *(rows(*sizes, 64) for sizes in [(1, 8, 1, 4, 4), (1, 4, 1, 4, 4), (1, 2, 2, 1, 4)]),
    ],
    16: [
        *(rows(*sizes) for sizes in [(2, 4, 1, 2), (1, 8, 1, 1), (1, 8, 2, 1), (1, 8, 1, 2)]),
        *(pinned(*sizes) for sizes in [(2, 4, 1, 1), (1, 4, 1, 1), (1, 8, 1, 1), (1, 8, 2, 1), (2, 8, 1, 1)]),
        *(pinned(*sizes) for sizes in [(1, 4, 2, 1), (2, 4, 2, 1), (1, 2, 2, 1), (4, 4, 1, 1), (1, 4, 1, 2)]),
        *(rows(*sizes) for sizes in [(1, 4, 2, 1, 3), (1, 4, 1, 2, 3), (1, 2, 2, 1, 3)]),
        *(rows(*sizes, 64) for sizes in [(2, 4, 1, 2, 4), (1, 8, 1, 2, 4)]),
        *(wide(*sizes) for sizes in [(128, 2, 3, 4), (128, 4, 3, 4), (64, 8, 3, 4)]),
    ],
    32: [wide(*sizes) for sizes in [(128, 1, 3, 4), (128, 2, 3, 4), (128, 4, 3, 4), (128, 8, 3, 4), (64, 8, 3, 4)]],
    64: [
        *(wide(*sizes) for sizes in [(128, 1, 3, 8), (128, 2, 3, 4), (128, 4, 3, 4), (128, 8, 3, 4)]),
        *(wide(*sizes) for sizes in [(128, 8, 3, 8), (64, 4, 5, 4), (64, 4, 3, 4), (64, 8, 3, 4)]),
    ],
}
MEASURED_ROWS = {8: 1, 16: 16, 32: 32, 64: 64}
FP16_CANDIDATES: list[Config] = [
    fp16(*sizes)
    for sizes in [(64, 128, 1, 4), (64, 128, 1, 6), (64, 128, 2, 4), (64, 128, 2, 6), (64, 128, 4, 4), (64, 128, 4, 6)]
] + [fp16(32, 256, 1, 4), fp16(128, 64, 1, 6)]


def run(case: Case, x: torch.Tensor, weight: Any) -> torch.Tensor:
    """Launch one case."""
    config = case[3]
    if isinstance(config, RowsConfig):
        return int4_rows(x, weight, config)
    return int4_wide(x, weight, config) if isinstance(config, WideConfig) else fp16_rows(x, weight, config)


def fits(case: Case) -> bool:
    """Tell whether a case is what it says: sizes that have to be changed to fit are another case."""
    n, k, _, config = case
    if isinstance(config, RowsConfig):
        return config.fit(row_tiles=n // ROWS_PER_TILE, k_tiles=k // TILE_K) == config
    if isinstance(config, WideConfig):
        return config.fit(k_tiles=k // TILE_K) == config and config.split * n // config.bn >= 64
    return k % (config.bk * config.split) == 0


def compile_case(case: Case) -> str | None:
    """Run a case once on whatever lies in memory, which leaves the compiled kernel in Triton's cache."""
    n, k, m, config = case
    x = torch.zeros(m, k, dtype=torch.float16, device="cuda")
    weight: Any = torch.empty(n, k, dtype=torch.float16, device="cuda")
    if not isinstance(config, Fp16Config):
        tiles = (n // ROWS_PER_TILE, k // TILE_K)
        words = torch.empty(*tiles, 16, 32, dtype=torch.int16, device="cuda")
        scales = torch.empty(*tiles, 8, 2, 1, dtype=torch.float16, device="cuda")
        weight = DeviceInt4Weight(words=words, scales=scales, zeros=None, n=n, k=k, group_size=GROUP_SIZE)
    try:
        run(case, x, weight)
        torch.cuda.synchronize()
    except TritonError as error:
        return f"{case}: {error}"
    return None


def time_case(case: Case, weights: list[Any]) -> Timing | None:
    """Time a case, or return None where the GPU has not the shared memory for it."""
    _, k, m, _ = case
    x = torch.randn(m, k, dtype=torch.float16, device="cuda")
    try:
        run(case, x, weights[0])
    except TritonError:
        return None
    return measure(lambda index: run(case, x, weights[index]), len(weights))


def best(n: int, k: int, m: int, candidates: list[Config], weights: list[Any]) -> tuple[Config, Timing]:
    """Return the fastest candidate for one shape and row count."""
    cases = [case for case in ((n, k, m, config) for config in candidates) if fits(case)]
    timed = [(case[3], timing) for case in cases if (timing := time_case(case, weights)) is not None]
    return min(timed, key=lambda pair: pair[1].median_us)


def entry(config: Config) -> dict[str, Any]:
    """Return what the table holds of a config."""
    if isinstance(config, Fp16Config):
        return asdict(config)
    return {"kernel": "rows" if isinstance(config, RowsConfig) else "wide", **asdict(config)}


def main() -> None:
    """Compile, measure, write."""
    shapes = [tuple(map(int, shape.split("x"))) for shape in sys.argv[1:]] or [*LLAMA_8B.values(), *LLAMA_1B.values()]
    started = time.monotonic()
    cases: list[Case] = [
        (n, k, MEASURED_ROWS[limit], config)
        for (n, k), (limit, configs) in itertools.product(shapes, INT4_CANDIDATES.items())
        for config in configs
    ]
    cases += [(n, k, 16, config) for (n, k), config in itertools.product(shapes, FP16_CANDIDATES)]
    unique = {(case[1], case[2], case[3]): case for case in cases if fits(case)}
    workers = min(16, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        failures = [failure for failure in pool.map(compile_case, unique.values(), chunksize=2) if failure]
    print(f"{len(unique)} kernels compiled in {time.monotonic() - started:.0f} s, {len(failures)} do not fit this GPU")
    for failure in failures[:3]:
        print(failure[:300])
    device = torch.cuda.get_device_name()
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    found = table["devices"].setdefault(device, {"int4": {}, "fp16": {}})
    arena = Arena()
    for n, k in shapes:
        key, line = f"{n}x{k}", []
        int4_weights: list[Any] = arena.int4(n, k)
        for limit, candidates in INT4_CANDIDATES.items():
            config, timing = best(n, k, MEASURED_ROWS[limit], candidates, int4_weights)
            found["int4"].setdefault(key, {})[str(limit)] = entry(config)
            line.append(f"{limit}: {timing.median_us:.2f} us")
        config, timing = best(n, k, 16, FP16_CANDIDATES, arena.fp16(n, k))
        found["fp16"][key] = entry(config)
        print(f"{key:12} {'  '.join(line)}  fp16: {timing.median_us:.2f} us")
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{TABLE} written in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
