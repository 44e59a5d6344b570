"""Time the kernels against cuBLAS, tinygemm and gemlite.

    python scripts/bench_kernels.py [-o FILE.json] [--no-gemlite]        the whole table
    python scripts/bench_kernels.py --must [--limit-s 60] [-o FILE.jsonl] [--no-gemlite]
                                                                         the figures to reach, met or missed by how much
    python scripts/bench_kernels.py --ablate [-o FILE.jsonl]             what bounds 16 rows (kernel_ablation.py)

Projections of Llama-3.1-8B and a head of 128,256 by 4,096, INT4 in blocks of 128, 1..64 rows, fp16 activations (bf16
for tinygemm, which takes no other). CUDA graph replay, weights rotated over 420 MB, medians of 20 with the second
smallest and second largest. GB/s count weights and scales once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from kernel_gemlite import gemlite_launch, gemlite_layers, has_gemlite
from kernel_musts import FP16_ROWS, Times, judge, summarize
from kernel_timing import GROUP_SIZE, HEAD, LLAMA_8B, ROTATED_BYTES, Arena, Timing, measure, read_bandwidth_gb_per_s

from edgeprec.kernels import dispatch
from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, DeviceInt4Weight

ROWS = (1, 2, 4, 8, 16, 32, 64)
SHAPES = {**LLAMA_8B, "head": HEAD}
MUST_ROWS = (1, 16, 2, 4, 8, 32, 64)  # those with most figures first
Launch = Callable[[int], object]
TinygemmWeights = tuple[list[torch.Tensor], torch.Tensor]  # packed ones that rotate, scales and zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement of the table."""

    kernel: str
    layer: str
    n: int
    k: int
    rows: int
    timing: Timing
    gb_per_s: float
    cached_us: float | None = None  # the same with one weight that stays in the L2


def int4_bytes(n: int, k: int) -> int:
    """Return the bytes of an INT4 weight with its scales."""
    return n * k // 2 + n * (k // GROUP_SIZE) * 2


def bench_ours(arena: Arena, layer: str, n: int, k: int) -> list[Row]:
    """Time the INT4 and FP16 kernels, and cuBLAS on the same FP16 weights."""
    int4, fp16, found = arena.int4(n, k), arena.fp16(n, k), []
    for m in ROWS:
        x = torch.randn(m, k, dtype=torch.float16, device="cuda")
        launches: list[tuple[str, Launch, int, int]] = [
            ("cublas fp16", lambda i, x=x: torch.nn.functional.linear(x, fp16[i]), len(fp16), n * k * 2),
            ("edgeprec fp16", lambda i, x=x: dispatch.fp16_linear(x, fp16[i]), len(fp16), n * k * 2),
            ("edgeprec int4", lambda i, x=x: dispatch.int4_linear(x, int4[i]), len(int4), int4_bytes(n, k)),
        ]
        for kernel, launch, copies, size in launches:
            launch(0)
            timing = measure(launch, copies)
            cached = measure(lambda _, launch=launch: launch(0), 20).median_us if "int4" in kernel else None
            rate = size / timing.median_us / 1000.0
            row = Row(kernel=kernel, layer=layer, n=n, k=k, rows=m, timing=timing, gb_per_s=rate, cached_us=cached)
            found.append(row)
    return found


def tinygemm_weights(n: int, k: int) -> TinygemmWeights:
    """Return weights in torch's own INT4 layout, as many as rotate, and their scales and zeros."""
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
    copies = max(1, ROTATED_BYTES // (n * k // 2))
    weights = [torch._convert_weight_to_int4pack(packed, 8) for _ in range(copies)]
    return weights, torch.rand(k // GROUP_SIZE, n, 2, dtype=torch.bfloat16, device="cuda")


def bench_tinygemm(layer: str, n: int, k: int) -> list[Row]:
    """Time torch's own INT4 kernel."""
    weights, scales = tinygemm_weights(n, k)
    copies, found = len(weights), []
    for m in ROWS:
        x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")

        def launch(i: int, x: torch.Tensor = x) -> object:
            return torch._weight_int4pack_mm(x, weights[i], GROUP_SIZE, scales)

        launch(0)
        timing = measure(launch, copies)
        rate = int4_bytes(n, k) / timing.median_us / 1000.0
        found.append(Row(kernel="tinygemm", layer=layer, n=n, k=k, rows=m, timing=timing, gb_per_s=rate))
    return found


def compile_ours(case: tuple[int, int, int]) -> None:
    """Run both kernels once for rows, N, K on whatever lies in memory: the compiled code stays in Triton's cache."""
    m, n, k = case
    x = torch.zeros(m, k, dtype=torch.float16, device="cuda")
    tiles = (n // ROWS_PER_TILE, k // TILE_K)
    words = torch.empty(*tiles, 16, 32, dtype=torch.int16, device="cuda")
    scales = torch.empty(*tiles, 8, 2, 1, dtype=torch.float16, device="cuda")
    weight = DeviceInt4Weight(words=words, scales=scales, zeros=None, n=n, k=k, group_size=GROUP_SIZE)
    dispatch.int4_linear(x, weight)
    if m <= FP16_ROWS:
        dispatch.fp16_linear(x, torch.empty(n, k, dtype=torch.float16, device="cuda"))
    torch.cuda.synchronize()


def bench_musts(limit_s: float, output: Path | None, *, uses_gemlite: bool) -> None:
    """Measure the figures to reach, one shape after the other, and print verdicts."""
    started, times = time.monotonic(), Times()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), mp_context=context) as pool:
        list(pool.map(compile_ours, [(m, n, k) for m in MUST_ROWS for n, k in SHAPES.values()]))
    print(f"{environment()}\ncompiled in {time.monotonic() - started:.0f} s", flush=True)
    lines = [{"kind": "environment", **environment(), "read_gb_per_s": read_bandwidth_gb_per_s()}]
    for index, (n, k) in enumerate(SHAPES.values()):
        until_s = time.monotonic() + max(1.0, started + limit_s - time.monotonic()) / (len(SHAPES) - index)
        arena = Arena()
        dense, int4, tiny = arena.fp16(n, k), arena.int4(n, k), tinygemm_weights(n, k)
        gemlite = gemlite_layers(n, k) if uses_gemlite and (n, k) != HEAD else []  # it ships no schedule for a head
        for m in MUST_ROWS:
            if time.monotonic() > until_s:
                print(f"{n}x{k}: {m} rows and what follows left out, the time is up")
                break
            for kernel, (launch, copies) in must_launches(m, k, dense, int4, tiny, gemlite).items():
                launch(0)
                timing = measure(launch, copies)
                times[kernel, m, n, k] = timing
                lines.append({"kind": "timing", "kernel": kernel, "rows": m, "n": n, "k": k, **asdict(timing)})
        del dense, int4, tiny, gemlite, arena
        torch.cuda.empty_cache()
    verdicts = judge(times)
    for line in [must_table(times), *summarize(verdicts), f"{time.monotonic() - started:.0f} s"]:
        print(line)
    write_lines(output, [*lines, *({"kind": "verdict", **asdict(verdict)} for verdict in verdicts)])


def must_launches(
    m: int,
    k: int,
    dense: list[torch.Tensor],
    int4: list[DeviceInt4Weight],
    tiny: tuple[list[torch.Tensor], torch.Tensor],
    gemlite: list[Any],
) -> dict[str, tuple[Launch, int]]:
    """Return what is timed for M rows, with the number of weights it rotates through."""
    x = torch.randn(m, k, dtype=torch.float16, device="cuda")
    brain, (packed, scales) = x.bfloat16(), tiny
    launches: dict[str, tuple[Launch, int]] = {
        "cublas fp16": (lambda i: torch.nn.functional.linear(x, dense[i]), len(dense)),
        "edgeprec int4": (lambda i: dispatch.int4_linear(x, int4[i]), len(int4)),
        "tinygemm": (lambda i: torch._weight_int4pack_mm(brain, packed[i], GROUP_SIZE, scales), len(packed)),
    }
    if gemlite:
        launches["gemlite"] = (gemlite_launch(gemlite, x), len(gemlite))
    if m <= FP16_ROWS:
        launches["edgeprec fp16"] = (lambda i: dispatch.fp16_linear(x, dense[i]), len(dense))
    return launches


def must_table(times: Times) -> str:
    """Return Markdown: microseconds of every kernel, our ratios over cuBLAS in brackets."""
    kernels = ("edgeprec int4", "tinygemm", "gemlite", "edgeprec fp16")
    lines = [f"| N x K | rows | cuBLAS FP16 | {' | '.join(kernels)} |", "|---" * (len(kernels) + 3) + "|"]
    for n, k in SHAPES.values():
        for m in ROWS:
            base = times.get(("cublas fp16", m, n, k))
            if base is None:
                continue
            cells = [f"{n}x{k}", str(m), f"{base.median_us:.1f}"]
            for kernel in kernels:
                one = times.get((kernel, m, n, k))
                cells.append("-" if one is None else f"{one.median_us:.2f} ({base.median_us / one.median_us:.2f}x)")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bench_ablation(output: Path | None) -> None:
    """Print what is left of each shape's time at 16 rows when parts of the work are taken away."""
    from kernel_ablation import ablate, compile_variants

    with ProcessPoolExecutor(len(LLAMA_8B), mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_variants, LLAMA_8B.values()))
    lines: list[dict[str, Any]] = [{"kind": "environment", **environment()}]
    for n, k in LLAMA_8B.values():
        found = ablate(n, k)
        lines.append({"kind": "ablation", "n": n, "k": k, "rows": 16, "us": found})
        print(f"{n}x{k}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
    write_lines(output, lines)


def write_lines(output: Path | None, lines: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    if output is not None:
        output.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def bench_gemlite(layer: str, n: int, k: int) -> list[Row]:
    """Time gemlite with its own choice of kernel and configuration."""
    layers, found = gemlite_layers(n, k), []
    for m in ROWS:
        launch = gemlite_launch(layers, torch.randn(m, k, dtype=torch.float16, device="cuda"))
        launch(0)
        timing = measure(launch, len(layers))
        rate = int4_bytes(n, k) / timing.median_us / 1000.0
        found.append(Row(kernel="gemlite", layer=layer, n=n, k=k, rows=m, timing=timing, gb_per_s=rate))
    return found


def bench_epilogues(arena: Arena) -> dict[str, float]:
    """Time what is fused beside its parts, and the head pass, in microseconds."""
    found = {}
    gate_up, down = arena.int4(28672, 4096), arena.int4(4096, 14336)
    for m in (1, 16):
        x = torch.randn(m, 4096, dtype=torch.float16, device="cuda")
        wide = torch.randn(m, 14336, dtype=torch.float16, device="cuda")
        logits = torch.randn(m, 128256, dtype=torch.float16, device="cuda")
        jobs: dict[str, tuple[Launch, list[DeviceInt4Weight]]] = {
            "gate_up": (lambda i, x=x: dispatch.int4_linear(x, gate_up[i]), gate_up),
            "gate_up + SwiGLU fused": (lambda i, x=x: dispatch.int4_swiglu(x, gate_up[i]), gate_up),
            "down": (lambda i, x=wide: dispatch.int4_linear(x, down[i]), down),
            "down + residual fused": (lambda i, x=wide, r=x: dispatch.int4_linear(x, down[i], residual=r), down),
            "head statistics": (lambda i, x=logits: dispatch.head_statistics(x), down),
        }
        for name, (launch, weights) in jobs.items():
            launch(0)
            found[f"{name}, {m} rows"] = measure(launch, len(weights)).median_us
    return found


def table(rows: list[Row], bandwidth: float) -> str:
    """Return Markdown: one line per layer and row count, speed-up over cuBLAS FP16 per kernel."""
    times = {(row.kernel, row.layer, row.rows): row for row in rows}
    peers = ["edgeprec int4", "tinygemm", "gemlite", "edgeprec fp16"]
    lines = [
        "| N x K | rows | cuBLAS FP16 us | " + " | ".join(peers) + " | int4 GB/s | share of read | int4 in L2 us |",
        "|---" * (len(peers) + 6) + "|",
    ]
    for layer, (n, k) in SHAPES.items():
        for m in ROWS:
            base = times.get(("cublas fp16", layer, m))
            ours = times.get(("edgeprec int4", layer, m))
            if base is None or ours is None:
                continue
            cells = [f"{n}x{k}", str(m), f"{base.timing.median_us:.1f}"]
            for peer in peers:
                row = times.get((peer, layer, m))
                cells.append("-" if row is None else _cell(row.timing, base.timing.median_us))
            cells += [f"{ours.gb_per_s:.0f}", f"{ours.gb_per_s / bandwidth:.2f}", f"{ours.cached_us or 0:.1f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(timing: Timing, base_us: float) -> str:
    spread = max(timing.high_us - timing.median_us, timing.median_us - timing.low_us)
    return f"{timing.median_us:.2f} ±{spread:.2f} ({base_us / timing.median_us:.2f}x)"


def environment() -> dict[str, Any]:
    """Return device, driver and versions."""
    properties = torch.cuda.get_device_properties(0)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    for package in ("triton", "nvidia-cublas", "gemlite"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {"device": properties.name, "sms": properties.multi_processor_count, **versions}


def bench_peer(bench: Callable[[str, int, int], list[Row]], layer: str, n: int, k: int) -> list[Row]:
    """Return a peer's rows; none where it is not installed or refuses the shape, which is said."""
    try:
        return bench(layer, n, k)
    except (ImportError, RuntimeError, ValueError) as error:
        print(f"{bench.__name__} on {n}x{k}: {error}")
        return []


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write every number as JSON, or JSON lines")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--must", action="store_true", help="only the figures to reach, with verdicts")
    mode.add_argument("--ablate", action="store_true", help="only what bounds 16 rows")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of --must; what is late is left out and named")
    parser.add_argument("--no-gemlite", action="store_true", help="leave gemlite out")
    options = parser.parse_args()
    if options.must:
        bench_musts(options.limit_s, options.output, uses_gemlite=takes_gemlite(is_wanted=not options.no_gemlite))
    elif options.ablate:
        bench_ablation(options.output)
    else:
        bench_all(options.output, uses_gemlite=takes_gemlite(is_wanted=not options.no_gemlite))


def takes_gemlite(*, is_wanted: bool) -> bool:
    """Whether gemlite is measured; where it was wanted and is not installed, that is said: its figures are missing."""
    if not is_wanted or has_gemlite():
        return is_wanted
    print("gemlite is not installed, its figures are left out: pip install gemlite, or give --no-gemlite", flush=True)
    return False


def bench_all(output: Path | None, *, uses_gemlite: bool) -> None:
    """Measure and print everything."""
    started, bandwidth, arena = time.monotonic(), read_bandwidth_gb_per_s(), Arena()
    rows: list[Row] = []
    for layer, (n, k) in SHAPES.items():
        rows += bench_ours(arena, layer, n, k) + bench_peer(bench_tinygemm, layer, n, k)
        torch.cuda.empty_cache()
    epilogues = bench_epilogues(arena)
    report(rows, epilogues, bandwidth, output, started)
    if uses_gemlite:
        for layer, (n, k) in LLAMA_8B.items():
            rows += bench_peer(bench_gemlite, layer, n, k)
            report(rows, epilogues, bandwidth, output, started)


def report(rows: list[Row], epilogues: dict[str, float], bandwidth: float, output: Path | None, started: float) -> None:
    """Print the table so far, and write it."""
    about = environment()
    print(f"\n{about}\nread bandwidth {bandwidth:.0f} GB/s, {time.monotonic() - started:.0f} s so far\n")
    print(table(rows, bandwidth))
    for name, time_us in epilogues.items():
        print(f"{name:32} {time_us:.2f} us")
    if output is not None:
        content = {
            "environment": about,
            "read_gb_per_s": bandwidth,
            "rows": [asdict(row) for row in rows],
            "epilogues_us": epilogues,
        }
        output.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
