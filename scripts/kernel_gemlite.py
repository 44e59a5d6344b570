"""gemlite as a peer of the INT4 kernel, with the schedules it ships.

gemlite picks its schedules by the GPU's name and measures them itself for a GPU it has no file for, which takes minutes
a shape. An H200 has an H100's multiprocessors, so that file serves both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from kernel_timing import GROUP_SIZE, ROTATED_BYTES

__all__ = ["gemlite_launch", "gemlite_layers", "has_gemlite"]

_HOPPER = (9, 0)
_HOPPER_FILE = "h100.json"


@cache
def has_gemlite() -> bool:
    """Whether gemlite can be imported; its schedules for this GPU are loaded then."""
    try:
        import gemlite
    except ImportError:
        return False
    if torch.cuda.get_device_capability() == _HOPPER:
        gemlite.load_config(str(Path(gemlite.__file__).parent / "configs" / _HOPPER_FILE))
    return True


def gemlite_layers(n: int, k: int) -> list[Any]:
    """Return as many layers [N, K] of random weights as rotate, symmetric INT4 with fp16 activations."""
    from gemlite import DType, GemLiteLinear

    first = GemLiteLinear(
        4, group_size=GROUP_SIZE, in_features=k, out_features=n, input_dtype=DType.FP16, output_dtype=DType.FP16
    )
    levels = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
    scales = (torch.rand(n * k // GROUP_SIZE, 1, device="cuda") * 0.01).half()
    first.pack(levels, scales, torch.full_like(scales, 8.0), None)
    layers = [first]
    for _ in range(max(1, ROTATED_BYTES // (n * k // 2)) - 1):
        other = copy.copy(first)
        other.W_q = torch.nn.Parameter(first.W_q.clone(), requires_grad=False)
        layers.append(other)
    return layers


def gemlite_launch(layers: list[Any], x: torch.Tensor) -> Callable[[int], object]:
    """Return what runs layer i on x fp16 [M, K]; gemlite chooses kernel and schedule for its rows."""
    return lambda i: layers[i](x)
