"""Run every kernel once on small shapes, for compute-sanitizer: compute-sanitizer python scripts/sanitize_kernels.py"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from edgeprec.kernels import dispatch
from edgeprec.kernels.int4_rows import int4_rows
from edgeprec.kernels.layout import Int4Weight, num_groups, pack_nibbles
from edgeprec.kernels.repack import repack
from edgeprec.kernels.tuning import RowsConfig

SHARED = RowsConfig(wn=1, wk=2, r=2, s=1, stages=3, prefetch=8, shared_x=True)  # what the defaults do not reach


def random_weight(k: int, n: int, *, group_size: int, has_zeros: bool) -> Int4Weight:
    """Return a random weight [K, N]."""
    rng, groups = np.random.default_rng(0), num_groups(k, group_size)
    return Int4Weight(
        packed=pack_nibbles(rng.integers(0, 16, (k, n)).astype(np.uint8)),
        scales=rng.uniform(0.01, 0.02, (groups, n)).astype(np.float16),
        zeros=pack_nibbles(rng.integers(0, 16, (groups, n)).astype(np.uint8)) if has_zeros else None,
        group_size=group_size,
    )


def main() -> None:
    """Tails along M, N and K, both INT4 kernels, FP16, epilogues and the head pass."""
    launches = 0
    for (k, n), rows in itertools.product([(300, 37), (512, 64)], [3, 20]):
        weight = repack(random_weight(k, n, group_size=64, has_zeros=n == 37), "cuda")
        x = torch.randn(rows, k, device="cuda", dtype=torch.float16)
        residual = torch.randn(rows, n, device="cuda", dtype=torch.float16)
        dispatch.int4_linear(x, weight, residual=residual)
        dispatch.fp16_linear(x, torch.randn(n, k, device="cuda", dtype=torch.float16), residual=residual)
        int4_rows(x, weight, SHARED, residual=residual)
        launches += 3
        if n % 2 == 0:
            dispatch.int4_swiglu(x, weight)
            launches += 1
    dispatch.head_statistics(torch.randn(3, 5000, device="cuda"))
    torch.cuda.synchronize()
    print(f"{launches + 1} calls done")


if __name__ == "__main__":
    main()
