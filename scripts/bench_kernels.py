"""Time the kernels against cuBLAS, tinygemm and gemlite: python scripts/bench_kernels.py [-o FILE.json] [--no-gemlite]

Projections of Llama-3.1-8B and a head of 128,256 by 4,096, INT4 in blocks of 128, 1..64 rows, fp16 activations (bf16
for tinygemm, which takes no other). CUDA graph replay, weights rotated over 420 MB, medians of 20 with the second
smallest and second largest. GB/s count weights and scales once.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from kernel_timing import GROUP_SIZE, LLAMA_8B, Arena, Timing, measure, read_bandwidth_gb_per_s

from edgeprec.kernels import dispatch
from edgeprec.kernels.repack import DeviceInt4Weight

ROWS = (1, 2, 4, 8, 16, 32, 64)
SHAPES = {**LLAMA_8B, "head": (128256, 4096)}
Launch = Callable[[int], object]


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


def bench_tinygemm(layer: str, n: int, k: int) -> list[Row]:
    """Time torch's own INT4 kernel."""
    copies = max(1, 420 * 2**20 // (n * k // 2))
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
    weights = [torch._convert_weight_to_int4pack(packed, 8) for _ in range(copies)]
    scales = torch.rand(k // GROUP_SIZE, n, 2, dtype=torch.bfloat16, device="cuda")
    found = []
    for m in ROWS:
        x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")

        def launch(i: int, x: torch.Tensor = x) -> object:
            return torch._weight_int4pack_mm(x, weights[i], GROUP_SIZE, scales)

        launch(0)
        timing = measure(launch, copies)
        rate = int4_bytes(n, k) / timing.median_us / 1000.0
        found.append(Row(kernel="tinygemm", layer=layer, n=n, k=k, rows=m, timing=timing, gb_per_s=rate))
    return found


def bench_gemlite(layer: str, n: int, k: int) -> list[Row]:
    """Time gemlite with its own choice of kernel and configuration."""
    from gemlite import DType, GemLiteLinear

    copies = max(1, 420 * 2**20 // (n * k // 2))
    first = GemLiteLinear(
        4, group_size=GROUP_SIZE, in_features=k, out_features=n, input_dtype=DType.FP16, output_dtype=DType.FP16
    )
    levels = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
    scales = (torch.rand(n * k // GROUP_SIZE, 1, device="cuda") * 0.01).half()
    first.pack(levels, scales, torch.full_like(scales, 8.0), None)
    layers = [first]
    for _ in range(copies - 1):
        other = copy.copy(first)
        other.W_q = torch.nn.Parameter(first.W_q.clone(), requires_grad=False)
        layers.append(other)
    found = []
    for m in ROWS:
        x = torch.randn(m, k, dtype=torch.float16, device="cuda")

        def launch(i: int, x: torch.Tensor = x) -> object:
            return layers[i](x)

        launch(0)
        timing = measure(launch, copies)
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
    for package in ("triton", "nvidia-cublas"):
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="also write every number as JSON")
    parser.add_argument("--no-gemlite", action="store_true", help="leave gemlite out")
    options = parser.parse_args()
    started, bandwidth, arena = time.monotonic(), read_bandwidth_gb_per_s(), Arena()
    rows: list[Row] = []
    for layer, (n, k) in SHAPES.items():
        rows += bench_ours(arena, layer, n, k) + bench_peer(bench_tinygemm, layer, n, k)
        torch.cuda.empty_cache()
    epilogues = bench_epilogues(arena)
    report(rows, epilogues, bandwidth, options.output, started)
    if not options.no_gemlite:
        for layer, (n, k) in LLAMA_8B.items():
            rows += bench_peer(bench_gemlite, layer, n, k)
            report(rows, epilogues, bandwidth, options.output, started)


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
