"""Measure tile sizes on this GPU and write them into kernels/tuning.json.

    python scripts/tune_kernels.py [--shapes NxK,NxK] [--rows 8,16,32,64] [--fp16-rows 32,64,128] [--limit-s 120]

Without shapes: the projections of Llama-3.1-8B, its head, and the projections of Llama-3.2-1B. Sizes are compiled in
parallel first, the most promising ones of all shapes before the others; what is not compiled or timed within the limit
is left out. The present entries are timed too, so a second run goes on from the first. The table is written after
every shape, whole or not at all.

Entries for 8 and for 16 rows have one WK, one S and one way for the activations, which fix the order of a sum: a row
has the same bits in any company of 1..16 (more, where the entry is one of the rows kernel). Hence rows 8 and 16 are
tuned together. For FP16 32 rows decide BK and SPLIT, which fix that order there, and tiles for more rows follow; where
32 is not in the list, they keep the table's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from kernel_candidates import FP16_CANDIDATES, INT4_CANDIDATES, Config, fp16_tiles
from kernel_timing import GROUP_SIZE, HEAD, LLAMA_1B, LLAMA_8B, Arena, Timing, measure
from triton.runtime.errors import TritonError

from edgeprec.kernels.fp16_rows import fp16_rows
from edgeprec.kernels.int4_rows import int4_rows
from edgeprec.kernels.int4_wide import int4_wide
from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, DeviceInt4Weight
from edgeprec.kernels.tuning import Fp16Config, RowsConfig, WideConfig, parse_fp16_configs, parse_int4_config

TABLE = Path(__file__).resolve().parent.parent / "kernels" / "tuning.json"
MEASURED_ROWS = {8: 1, 16: 16, 32: 32, 64: 64}
FP16_ROWS = 16
FP16_MEASURED_ROWS = {32: FP16_ROWS, 64: 64, 128: 128}
COMPILE_SHARE = 0.5  # of the limit
SAME_BITS_MARGIN = 1.03  # what the rows kernel may cost above 16 rows, for the sake of its bits
Case = tuple[int, int, int, Config]  # n, k, rows, sizes
Compiled = set[tuple[object, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One size and what it took."""

    config: Config
    timing: Timing


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


def order(config: Config) -> tuple[int, int, bool] | None:
    """Return what fixes the bits of the rows kernel, None for another kernel."""
    return (config.wk, config.s, config.shared_x) if isinstance(config, RowsConfig) else None


def choose_pair(few: list[Measured], many: list[Measured]) -> tuple[Measured, Measured]:
    """Return entries for 8 and 16 rows of one order: those with the smallest sum of slowdowns against the best."""
    best_few = min(one.timing.median_us for one in few)
    best_many = min(one.timing.median_us for one in many)
    pairs = [pair for pair in itertools.product(few, many) if order(pair[0].config) == order(pair[1].config)]
    return min(pairs, key=lambda pair: pair[0].timing.median_us / best_few + pair[1].timing.median_us / best_many)


def choose_wide(measured: list[Measured]) -> Measured:
    """Return the fastest, or the rows kernel where it costs next to nothing."""
    best = min(measured, key=lambda one: one.timing.median_us)
    close = [
        one
        for one in measured
        if isinstance(one.config, RowsConfig) and one.timing.median_us <= SAME_BITS_MARGIN * best.timing.median_us
    ]
    return min(close, key=lambda one: one.timing.median_us) if close else best


def compile_case(case: Case) -> str | None:
    """Run a case once on whatever lies in memory, which leaves the compiled kernel in Triton's cache."""
    n, k, m, config = case
    x = torch.zeros(m, k, dtype=torch.float16, device="cuda")
    weight: Any = torch.empty(n, k, dtype=torch.float16, device="cuda") if isinstance(config, Fp16Config) else None
    if weight is None:
        tiles = (n // ROWS_PER_TILE, k // TILE_K)
        words = torch.empty(*tiles, 16, 32, dtype=torch.int16, device="cuda")
        scales = torch.empty(*tiles, 8, 2, 1, dtype=torch.float16, device="cuda")
        weight = DeviceInt4Weight(words=words, scales=scales, zeros=None, n=n, k=k, group_size=GROUP_SIZE)
    try:
        run(case, x, weight)
        torch.cuda.synchronize()
    except (TritonError, RuntimeError) as error:  # too much shared memory; a pass of the compiler that fails
        return f"{case}: {error}"
    return None


def compile_numbered(numbered: tuple[int, Case]) -> tuple[int, str | None]:
    """Compile a case and return its number with the outcome, as a pool returns them in any order."""
    number, case = numbered
    return number, compile_case(case)


def compile_cases(cases: list[Case], deadline_s: float | None) -> set[Case]:
    """Compile in parallel, in order, until ``deadline_s`` of the monotonic clock; return what can be run by then.

    The workers are killed at the end: some sizes take the compiler minutes, and nothing else may use the GPU while
    cases are timed.
    """
    done: set[Case] = set()
    refused: list[str] = []
    with multiprocessing.get_context("spawn").Pool(min(16, os.cpu_count() or 1)) as pool:
        outcomes = pool.imap_unordered(compile_numbered, enumerate(cases))
        try:
            for _ in cases:
                number, failure = outcomes.next(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
                if failure is None:
                    done.add(cases[number])
                else:
                    refused.append(failure)
        except multiprocessing.TimeoutError:
            print(f"{len(cases) - len(done) - len(refused)} of {len(cases)} sizes not compiled in time")
        pool.terminate()
    print(f"{len(done)} sizes compiled, {len(refused)} do not fit this GPU")
    for failure in refused[:3]:
        print(failure[:200])
    return done


def compile_key(case: Case) -> tuple[object, ...]:
    """Return what distinguishes compiled kernels: N is no constant in them."""
    _, k, m, config = case
    return (k, min(m, FP16_ROWS), config) if isinstance(config, RowsConfig) else (k, m, config)


def time_cases(cases: Iterable[Case], weights: list[Any], deadline_s: float | None) -> list[Measured]:
    """Time cases in order until the deadline, one at least; those without enough shared memory are left out."""
    found: list[Measured] = []
    for case in cases:
        if found and deadline_s is not None and time.monotonic() > deadline_s:
            break
        x = torch.randn(case[2], case[1], dtype=torch.float16, device="cuda")
        try:
            run(case, x, weights[0])
        except TritonError:
            continue
        found.append(
            Measured(config=case[3], timing=measure(lambda i, c=case, x=x: run(c, x, weights[i]), len(weights)))
        )
    return found


def entry(config: RowsConfig | WideConfig) -> dict[str, Any]:
    """Return what the table holds of a config."""
    return {"kernel": "rows" if isinstance(config, RowsConfig) else "wide", **asdict(config)}


def present(found: dict[str, Any], key: str, limit: int) -> list[Config]:
    """Return the table's entry, if there is one."""
    held = found["int4"].get(key, {}).get(str(limit))
    return [] if held is None else [parse_int4_config(held)]


def candidates_of(found: dict[str, Any], n: int, k: int, limit: int) -> list[Case]:
    """Return the cases for one shape and row limit, the present entry first, by promise."""
    configs = [*present(found, f"{n}x{k}", limit), *INT4_CANDIDATES[limit]]
    return [case for config in dict.fromkeys(configs) if fits(case := (n, k, MEASURED_ROWS[limit], config))]


def write(table: dict[str, Any], path: Path) -> None:
    """Replace the table as a whole."""
    temporary = path.with_suffix(".json.new")
    temporary.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def say(key: str, label: str, chosen: Measured, measured: list[Measured], cublas_us: float) -> None:
    """Print what was chosen, and the fastest of the others."""
    others = sorted((one for one in measured if one is not chosen), key=lambda one: one.timing.median_us)
    texts = [
        f"{one.timing.median_us:.2f} us ({cublas_us / one.timing.median_us:.2f}x) {short(one.config)}"
        for one in [chosen, *others[:1]]
    ]
    print(f"{key:12} {label:>5}: {'; next '.join(texts)}; of {len(measured)}", flush=True)


def short(config: Config) -> str:
    """Return a config's name and values in one word."""
    values = ",".join(str(int(value)) for value in asdict(config).values())
    return f"{type(config).__name__.removesuffix('Config').lower()}({values})"


def cublas_us(n: int, k: int, m: int, weights: list[torch.Tensor]) -> float:
    """Time F.linear in FP16."""
    x = torch.randn(m, k, dtype=torch.float16, device="cuda")
    torch.nn.functional.linear(x, weights[0])
    return measure(lambda i: torch.nn.functional.linear(x, weights[i]), len(weights)).median_us


def part_of(deadline_s: float | None, parts: float) -> float | None:
    """Return when the first of ``parts`` equal parts of the time left is over."""
    now_s = time.monotonic()
    return None if deadline_s is None else now_s + max(0.0, deadline_s - now_s) / parts


def tune_shape(
    found: dict[str, Any],
    n: int,
    k: int,
    limits: list[int],
    compiled: Compiled,
    deadline_s: float | None,
) -> None:
    """Time what is compiled for one shape and put the choice into ``found``."""
    key, arena = f"{n}x{k}", Arena()
    weights, dense = arena.int4(n, k), arena.fp16(n, k)
    base = {limit: cublas_us(n, k, MEASURED_ROWS[limit], dense) for limit in limits}
    measured: dict[int, list[Measured]] = {}
    for index, limit in enumerate(limits):
        if limit <= FP16_ROWS:
            cases = [case for case in candidates_of(found, n, k, limit) if compile_key(case) in compiled]
            measured[limit] = time_cases(cases, weights, part_of(deadline_s, len(limits) - index))
    chosen: dict[int, Measured] = {}
    if measured.get(8) and measured.get(16):
        if {order(one.config) for one in measured[8]} & {order(one.config) for one in measured[16]}:
            chosen[8], chosen[16] = choose_pair(measured[8], measured[16])
        else:
            print(f"{key:12} no two of the sizes timed for 8 and 16 rows have one order: entries left as they are")
    for limit in (limit for limit in limits if limit > FP16_ROWS):
        until_s = part_of(deadline_s, len([other for other in limits if other >= limit]))
        cases = [case for case in candidates_of(found, n, k, limit) if compile_key(case) in compiled]
        few_rows = [chosen[16].config] if 16 in chosen else present(found, key, 16)
        cases += [(n, k, MEASURED_ROWS[limit], config) for config in few_rows if fits((n, k, limit, config))]
        measured[limit] = time_cases(dict.fromkeys(cases), weights, until_s)
        if measured[limit]:
            chosen[limit] = choose_wide(measured[limit])
    for limit, one in chosen.items():
        say(key, str(limit), one, measured[limit], base[limit])
        found["int4"].setdefault(key, {})[str(limit)] = entry(one.config)


def tune_fp16(
    found: dict[str, Any], n: int, k: int, limits: list[int], compiled: Compiled, deadline_s: float | None
) -> None:
    """Do the same for the FP16 kernel: the order of the sums by few rows, then tiles of that order for more."""
    key, dense = f"{n}x{k}", Arena().fp16(n, k)
    for index, limit in enumerate(limits):
        rows = FP16_MEASURED_ROWS[limit]
        cases = [case for case in fp16_cases(found, n, k, limit) if compile_key(case) in compiled]
        measured = time_cases(cases, dense, part_of(deadline_s, len(limits) - index))
        if measured:
            chosen = min(measured, key=lambda one: one.timing.median_us)
            say(key, f"fp16 {limit}", chosen, measured, cublas_us(n, k, rows, dense))
            put_fp16(found, key, limit, chosen.config)


def fp16_cases(found: dict[str, Any], n: int, k: int, limit: int, *, any_order: bool = False) -> list[Case]:
    """Return the cases for one shape and row limit, the present entry first; above 32 rows of the table's order."""
    held = parse_fp16_configs(found["fp16"][f"{n}x{k}"]) if f"{n}x{k}" in found["fp16"] else {}
    configs: list[Config] = [held[limit]] if limit in held else []
    if limit == min(FP16_MEASURED_ROWS):
        configs += FP16_CANDIDATES
    else:
        order_by = list(held.values())[:1] + (FP16_CANDIDATES if any_order else [])
        for bk, split in dict.fromkeys((one.bk, one.split) for one in order_by):
            configs += fp16_tiles(bk, split, limit)
    rows = FP16_MEASURED_ROWS[limit]
    return [case for config in dict.fromkeys(configs) if fits(case := (n, k, rows, config))]


def put_fp16(found: dict[str, Any], key: str, limit: int, config: Fp16Config) -> None:
    """Put tiles into the table; those of another order go."""
    order_of_sums = {"bk": config.bk, "split": config.split}
    held = found["fp16"].get(key)
    if held is None or {name: held[name] for name in order_of_sums} != order_of_sums:
        held = found["fp16"][key] = order_of_sums | {"tiles": {}}
    held["tiles"][str(limit)] = {"bn": config.bn, "stages": config.stages, "warps": config.warps}


def by_promise(lists: list[list[Case]]) -> list[Case]:
    """Return the first of every list, then the second of every list, and so on, each kernel once."""
    mixed = (case for tier in itertools.zip_longest(*lists) for case in tier if case is not None)
    kernels: dict[tuple[object, ...], Case] = {}
    for case in mixed:
        kernels.setdefault(compile_key(case), case)
    return list(kernels.values())


def parse_shape(text: str) -> tuple[int, int]:
    """Read NxK."""
    n, k = text.split("x")
    return int(n), int(k)


def main() -> None:
    """Compile, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="", help="NxK,NxK; all of Llama 8B and 1B by default")
    parser.add_argument("--rows", default="8,16,32,64", help="row limits of INT4; 8 and 16 go together, '' for none")
    parser.add_argument("--fp16-rows", default="32,64,128", help="row limits of FP16 tiles; '' leaves FP16 as it is")
    parser.add_argument("--limit-s", type=float, help="stop after that many seconds with what there is")
    parser.add_argument("-o", "--output", type=Path, default=TABLE, help="another table to go on from and write")
    options = parser.parse_args()
    shapes = [parse_shape(text) for text in options.shapes.split(",") if text]
    shapes = shapes or [*LLAMA_8B.values(), HEAD, *LLAMA_1B.values()]
    limits = sorted({int(limit) for limit in options.rows.split(",") if limit})
    fp16_limits = sorted({int(limit) for limit in options.fp16_rows.split(",") if limit})
    limits = sorted({*limits, 8, 16}) if {8, 16} & set(limits) else limits
    started = time.monotonic()
    deadline_s = None if options.limit_s is None else started + options.limit_s
    source = options.output if options.output.exists() else TABLE
    table = json.loads(source.read_text(encoding="utf-8"))
    found = table["devices"].setdefault(torch.cuda.get_device_name(), {"int4": {}, "fp16": {}})
    lists = [candidates_of(found, n, k, limit) for (n, k), limit in itertools.product(shapes, limits)]
    is_order_open = min(FP16_MEASURED_ROWS) in fp16_limits
    for (n, k), limit in itertools.product(shapes, fp16_limits):
        lists.append(fp16_cases(found, n, k, limit, any_order=is_order_open))
    compile_until_s = None if options.limit_s is None else started + COMPILE_SHARE * options.limit_s
    done = compile_cases(by_promise(lists), compile_until_s)
    compiled = {compile_key(case) for case in done}
    print(f"after {time.monotonic() - started:.0f} s", flush=True)
    for index, (n, k) in enumerate(shapes):
        until_s = part_of(deadline_s, len(shapes) - index)
        if limits:
            tune_shape(found, n, k, limits, compiled, part_of(until_s, 1.2) if fp16_limits else until_s)
        if fp16_limits:
            tune_fp16(found, n, k, fp16_limits, compiled, until_s)
        write(table, options.output)
        torch.cuda.empty_cache()
    print(f"{options.output} written in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
