"""The tile sizes that scripts/tune_kernels.py tries, the most promising ones first."""

from __future__ import annotations

from dataclasses import replace

from edgeprec.kernels.tuning import Fp16Config, RowsConfig, WideConfig

Config = RowsConfig | WideConfig | Fp16Config


def rows(*sizes: int) -> RowsConfig:
    """Return a RowsConfig from its fields in order."""
    wn, wk, r, s, stages, prefetch = (*sizes, 0, 0)[:6]
    return RowsConfig(wn=wn, wk=wk, r=r, s=s, stages=stages, prefetch=prefetch)


def pinned(*sizes: int) -> RowsConfig:
    """Return an unrolled RowsConfig whose loads stay ahead of the arithmetic."""
    return replace(rows(*sizes), pinned=True)


def shared(*sizes: int) -> RowsConfig:
    """Return a pipelined RowsConfig whose activations come through shared memory."""
    return replace(rows(*sizes), shared_x=True)


def wide(bn: int, split: int, stages: int, warps: int) -> WideConfig:
    """Return a WideConfig from its fields in order."""
    return WideConfig(bn=bn, split=split, stages=stages, warps=warps)


def fp16(bn: int, bk: int, split: int, stages: int) -> Fp16Config:
    """Return an Fp16Config of four warps for few rows."""
    return Fp16Config(bn=bn, bm=32, bk=bk, split=split, stages=stages, warps=4 if bn > 32 else 2)


def fp16_tiles(bk: int, split: int, limit: int) -> list[Config]:
    """Return configs of one order of sums for more rows, the most promising first."""
    return [
        Fp16Config(bn=bn, bm=limit, bk=bk, split=split, stages=stages, warps=warps)
        for bn, stages, warps in FP16_TILES[limit]
    ]


# by promise: at 16 rows the bytes of the activations count, which R divides and shared memory hides
INT4_CANDIDATES: dict[int, list[Config]] = {
    8: [
        rows(1, 8, 1, 1),
        pinned(1, 8, 1, 1),
        shared(1, 8, 1, 1, 4),
        rows(1, 4, 1, 4),
        pinned(1, 4, 1, 1),
        rows(1, 2, 2, 2, 3),
        rows(1, 4, 1, 2),
        pinned(1, 4, 1, 2),
        shared(1, 2, 4, 1, 4),
        rows(1, 4, 2, 1, 3),
        shared(1, 8, 1, 1, 4, 64),
        shared(1, 4, 2, 1, 4),
        rows(1, 2, 2, 1, 4, 64),
        pinned(1, 2, 2, 1),
        shared(1, 2, 2, 1, 4),
        shared(1, 8, 2, 1, 4),
        pinned(1, 8, 1, 2),
        rows(1, 8, 1, 2),
        rows(1, 16, 1, 1),
        pinned(2, 4, 1, 1),
        pinned(1, 4, 2, 1),
        rows(1, 8, 2, 2),
        pinned(1, 8, 2, 1),
        rows(1, 8, 1, 4),
        rows(1, 4, 1, 4, 6),
        rows(1, 4, 1, 4, 4, 64),
        rows(1, 8, 1, 2, 3),
    ],
    16: [
        shared(1, 8, 2, 1, 4),
        shared(1, 8, 2, 1, 3),
        shared(1, 4, 2, 1, 4),
        shared(1, 2, 4, 1, 4),
        shared(1, 8, 2, 1, 5),
        shared(1, 2, 4, 1, 3),
        shared(1, 2, 2, 1, 3),
        shared(1, 4, 4, 1, 3),
        shared(1, 4, 2, 2, 3),
        rows(1, 8, 1, 1),
        shared(1, 2, 2, 2, 3),
        rows(1, 8, 2, 1),
        shared(1, 8, 2, 1, 4, 256),
        shared(1, 16, 2, 1, 3),
        shared(2, 4, 2, 1, 3),
        shared(1, 2, 2, 1, 4),
        pinned(1, 8, 1, 1),
        rows(1, 16, 2, 1),
        shared(2, 4, 4, 1, 3),
        shared(1, 8, 1, 1, 4),
        rows(1, 4, 2, 1, 3),
        rows(1, 2, 2, 1, 3),
        shared(1, 4, 2, 1, 6, 64),
        rows(1, 4, 1, 2, 3),
        shared(2, 8, 1, 1, 4),
        shared(1, 8, 2, 2, 2),
        rows(1, 2, 2, 2, 3),
        rows(1, 8, 1, 2),
        pinned(1, 4, 2, 1),
        rows(2, 4, 1, 2),
        pinned(1, 8, 2, 1),
    ],
    32: [wide(*sizes) for sizes in [(128, 4, 3, 4), (128, 1, 3, 4), (64, 8, 3, 4), (128, 2, 3, 4), (128, 8, 3, 4)]],
    64: [
        wide(*sizes)
        for sizes in [(64, 4, 5, 4), (128, 1, 3, 8), (64, 4, 3, 4), (128, 4, 3, 4), (64, 8, 3, 4), (128, 8, 3, 8)]
    ],
}
FP16_CANDIDATES: list[Config] = [
    fp16(*sizes)
    for sizes in [(64, 128, 1, 6), (64, 128, 1, 4), (64, 128, 2, 6), (64, 128, 4, 4), (64, 128, 2, 4), (64, 128, 4, 6)]
] + [fp16(32, 256, 1, 4), fp16(128, 64, 1, 6)]
FP16_TILES = {  # outputs, stages, warps
    64: [(64, 4, 4), (64, 6, 4), (128, 3, 8), (128, 4, 8), (64, 3, 4), (128, 3, 4)],
    128: [(128, 3, 8), (64, 4, 4), (64, 3, 4), (128, 3, 4), (64, 2, 4), (64, 4, 8)],
}
