"""Do the bits of a row of FP16 logits depend on the rows that run with it, with one of ONNX Runtime's GPU providers?"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgeprec.bundle import Bundle
from edgeprec.precision import Plan, Precision
from edgeprec.prompts import load_prompts
from edgeprec.runtime.engine_onnxruntime_gpu import FP16_ROWS, OnnxRuntimeGpuEngine
from edgeprec.runtime.tokenizer import TextTokenizer

__all__ = ["RowBits", "compare_row_bits"]

SIZES = (1, 2, 3, 5, 6, 8, 16)


class RowBits(NamedTuple):
    """Tokens of a text whose logits are bit for bit those of single rows, by how many rows were run at once."""

    fp16_rows: int  # 1 = passes as short as asked for
    tokens: int
    same_tokens: dict[int, int]
    largest_difference: float
    single_row_ms: float


def compare_row_bits(bundle: Bundle, provider: str, count: int) -> list[RowBits]:
    """Run one text in pieces of several sizes, with passes as long as asked for and as long as the engine makes them.

    Raises:
        EngineError: the provider does not run the bundle.
    """
    text = TextTokenizer.load(bundle.root).encode(" ".join(prompt.text for prompt in load_prompts("short")))[:count]
    return [_compare(bundle, provider, text, fp16_rows) for fp16_rows in (1, FP16_ROWS)]


def _compare(bundle: Bundle, provider: str, text: list[int], fp16_rows: int) -> RowBits:
    engine = OnnxRuntimeGpuEngine.open(
        bundle.target, provider=provider, context_tokens=len(text) + 1, fp16_rows=fp16_rows
    )
    try:
        _run(engine, text[: 2 * FP16_ROWS], 1)
        single, seconds = _run(engine, text, 1)
        same, largest = {}, 0.0
        for size in SIZES:
            rows, _ = _run(engine, text, size)
            same[size] = int((rows == single).all(axis=1).sum())
            largest = max(largest, float(np.abs(rows - single).max()))
    finally:
        engine.close()
    return RowBits(fp16_rows, len(text), same, largest, 1e3 * statistics.median(seconds))


def _run(engine: OnnxRuntimeGpuEngine, text: list[int], size: int) -> tuple[npt.NDArray[np.float32], list[float]]:
    """Return the logits [T, V] of a text run ``size`` rows at a time, and the seconds of each pass."""
    plan = Plan.uniform(Precision.FP16, num_layers=engine.info.num_layers)
    rows, seconds = [], []
    for start in range(0, len(text), size):
        begin = time.perf_counter()
        rows.append(engine.forward(text[start : start + size], position=start, plan=plan).logits)
        seconds.append(time.perf_counter() - begin)
    return np.concatenate(rows), seconds
