"""How the kernel scripts measure: CUDA graph replay over weights that rotate through more than the L2 holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, DeviceInt4Weight

ROTATED_BYTES = 420 * 2**20
REPLAYS = 20
LLAMA_8B = {"o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336), "qkv": (6144, 4096)}
LLAMA_1B = {"o": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192), "qkv": (3072, 2048)}
HEAD = (128256, 4096)
GROUP_SIZE = 128


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one launch: median, second smallest and second largest of the replays."""

    median_us: float
    low_us: float
    high_us: float


def measure(launch: Callable[[int], object], copies: int) -> Timing:
    """Time ``launch(i)`` for i in 0..copies-1, captured into one graph. Everything must be compiled before."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for index in range(copies):
            launch(index)
        graph.capture_end()
    for _ in range(3):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) * 1000.0 / copies for start, end in itertools.pairwise(events))
    return Timing(times[REPLAYS // 2], times[1], times[-2])


def read_bandwidth_gb_per_s() -> float:
    """Return the bandwidth of summing 4 GB, the ceiling that shares are given of."""
    values = torch.ones(2**30, device="cuda")
    values.sum()
    return values.numel() * 4 / measure(lambda _: values.sum(), 2).median_us / 1000.0


class Arena:
    """Random bytes on the GPU, from which weights are cut without filling each one anew."""

    def __init__(self) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        self._bytes = torch.randint(0, 256, (ROTATED_BYTES,), dtype=torch.uint8, device="cuda", generator=generator)

    def int4(self, n: int, k: int) -> list[DeviceInt4Weight]:
        """Return as many symmetric weights [K, N] as the arena holds."""
        row_tiles, k_tiles = n // ROWS_PER_TILE, k // TILE_K
        scales = (torch.rand(row_tiles, k_tiles, 8, 2, 1, device="cuda") + 0.5).mul_(0.01).half()
        return [
            DeviceInt4Weight(
                words=cut.view(torch.int16).view(row_tiles, k_tiles, 16, 32),
                scales=scales.clone(),
                zeros=None,
                n=n,
                k=k,
                group_size=GROUP_SIZE,
            )
            for cut in self._cuts(n * k // 2)
        ]

    def fp16(self, n: int, k: int) -> list[torch.Tensor]:
        """Return as many weights [N, K] as rotate, at least two; finite values."""
        count = max(2, -(-ROTATED_BYTES // (n * k * 2)))
        return [torch.empty(n, k, dtype=torch.float16, device="cuda").normal_(0.0, 0.02) for _ in range(count)]

    def _cuts(self, size: int) -> Iterator[torch.Tensor]:
        count = max(1, self._bytes.numel() // size)
        return (self._bytes[index * size : (index + 1) * size] for index in range(count))
