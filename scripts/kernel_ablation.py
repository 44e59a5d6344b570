"""What bounds the INT4 kernel at 16 rows: the same launch with parts of its work taken away.

Of the kernel itself: weights that stay in the L2, one row of activations read as 16 (their bytes / 16), half the
columns (8 rows of the same sizes), one step along K (launch, first loads and the sum over warps are left). And two
kernels with its grid and its addresses: one that only reads, one that reads and takes the nibbles apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import triton
import triton.language as tl
from kernel_timing import Arena, measure
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from edgeprec.kernels.int4_rows import int4_rows
from edgeprec.kernels.repack import DeviceInt4Weight
from edgeprec.kernels.target import target_of
from edgeprec.kernels.tuning import RowsConfig, int4_config

ROWS = 16
REPEATED = ("weights in L2", "both", "one K step", "reads only, weights in L2")  # one weight, so any number of times


@triton.jit
def read_tiles_kernel(
    x_ptr,
    words_ptr,
    y_ptr,
    K_TILES: tl.constexpr,
    WN: tl.constexpr,
    WK: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    DEQUANTIZE: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Read what a program of ``int4_rows_kernel`` reads, and store one number made of it.

    x_ptr int32 [ROWS, 64 K_TILES]; words_ptr int32 [N', K_TILES, 256]; y_ptr int32 [programs].
    """
    program = tl.program_id(0)
    if USE_PDL:
        gdc_launch_dependents()
    w = tl.arange(0, WN * WK)[:, None, None]
    r = tl.arange(0, R)[None, :, None]
    row = tl.arange(0, ROWS)[None, :, None]
    tile = program.to(tl.int64) * (WN * R) + (w // WK) * R + r
    words = words_ptr + tile * (K_TILES * 256) + (w % WK) * 256 + tl.arange(0, 256)[None, None, :]
    x = x_ptr + row * (K_TILES * 64) + (w % WK) * 64 + tl.arange(0, 64)[None, None, :]
    if USE_PDL:
        gdc_wait()
    taken = tl.zeros((WN * WK, R, 256), tl.int32)
    seen = tl.zeros((WN * WK, ROWS, 64), tl.int32)
    for _ in tl.range(0, K_TILES // WK, loop_unroll_factor=2):
        v = tl.load(words, cache_modifier=".cg")
        seen += tl.load(x)
        if DEQUANTIZE:
            upper = v >> 8
            taken += (v & 0x000F000F) + ((v & 0x00F000F0) ^ (upper & 0x000F000F)) + (upper & 0x00F000F0)
        else:
            taken += v
        words += WK * 256
        x += WK * 64
    both = tl.xor_sum(tl.reshape(taken, (WN * WK * R * 256,))) ^ tl.xor_sum(tl.reshape(seen, (WN * WK * ROWS * 64,)))
    tl.store(y_ptr + program, both)


def read_tiles(x: torch.Tensor, weight: DeviceInt4Weight, config: RowsConfig, *, dequantize: bool) -> torch.Tensor:
    """Launch ``read_tiles_kernel`` for x fp16 [M, K] of a power of two rows; return int32 [programs]."""
    target, programs = target_of(x.device), weight.row_tiles // (config.wn * config.r)
    y = torch.empty(programs, dtype=torch.int32, device=x.device)
    launch = {"launch_pdl": True} if target.has_dependent_launch else {}
    read_tiles_kernel[(programs,)](
        x.view(torch.int32),
        weight.words.view(torch.int32),
        y,
        K_TILES=weight.k_tiles,
        WN=config.wn,
        WK=config.wk,
        R=config.r,
        ROWS=x.shape[0],
        DEQUANTIZE=dequantize,
        USE_PDL=target.has_dependent_launch,
        num_warps=config.wn * config.wk,
        **launch,
    )
    return y


def first_step(weight: DeviceInt4Weight, config: RowsConfig) -> DeviceInt4Weight:
    """Return as many outputs of one step along K."""
    tiles = config.wk * config.s
    words, scales = weight.words[:, :tiles].contiguous(), weight.scales[:, :tiles].contiguous()
    return replace(weight, words=words, scales=scales, k=tiles * 128)


def variants(n: int, k: int) -> tuple[dict[str, Callable[[int], object]], int]:
    """Return what is launched at 16 rows, with the number of weights; nothing where the table has another kernel."""
    weights, target = Arena().int4(n, k), target_of(torch.device("cuda", 0))
    sizes = {"group_size": weights[0].group_size, "row_tiles": weights[0].row_tiles, "k_tiles": weights[0].k_tiles}
    config = int4_config(target.name, n=n, k=k, rows=ROWS, multiprocessors=target.multiprocessors, **sizes)
    if not isinstance(config, RowsConfig):
        return {}, 0
    x = torch.randn(ROWS, k, dtype=torch.float16, device="cuda")
    one_row, short = x[:1].expand(ROWS, k), first_step(weights[0], config)
    x_short = x[:, : short.k].contiguous()
    launches: dict[str, Callable[[int], object]] = {
        "full": lambda i: int4_rows(x, weights[i], config),
        "weights in L2": lambda _: int4_rows(x, weights[0], config),
        "one row read as 16": lambda i: int4_rows(one_row, weights[i], config),
        "both": lambda _: int4_rows(one_row, weights[0], config),
        "8 rows": lambda i: int4_rows(x[:8], weights[i], config),
        "one K step": lambda _: int4_rows(x_short, short, config),
        "reads only": lambda i: read_tiles(x, weights[i], config, dequantize=False),
        "reads only, weights in L2": lambda _: read_tiles(x, weights[0], config, dequantize=False),
        "reads and nibbles": lambda i: read_tiles(x, weights[i], config, dequantize=True),
    }
    return launches, len(weights)


def compile_variants(shape: tuple[int, int]) -> None:
    """Launch every variant once, which leaves the compiled kernels in Triton's cache."""
    launches, _ = variants(*shape)
    for launch in launches.values():
        launch(0)
    torch.cuda.synchronize()


def ablate(n: int, k: int) -> dict[str, float]:
    """Return microseconds of every variant for one shape."""
    launches, copies = variants(n, k)
    found = {}
    for name, launch in launches.items():
        launch(0)
        found[name] = measure(launch, max(20, copies) if name in REPEATED else copies).median_us
    return found
