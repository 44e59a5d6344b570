"""How long a distillation will take here: one sampling step and one small training step are timed, the rest follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from edgeprec.export.distill_data import OPENING_TOKENS
from edgeprec.export.distill_layers import take_layers
from edgeprec.export.distill_model import Decoder
from edgeprec.export.distill_samples import Samples
from edgeprec.export.distill_sampling import Row, Sampler
from edgeprec.export.distill_step import TrainingStep

__all__ = ["Estimate", "estimate"]

_PROBE_PASSES = 1000  # the target's greedy text on four kinds of prompts
_TIMED_TOKENS = 6
_TIMED_ROWS = 1
USEFUL_STEPS = 2000  # of 64 rows: what the demo's draft took to be worth its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds to draw all text, and of one training step."""

    sampling_s: float
    step_s: float

    def sentence(self, *, steps: int | None, minutes: float, rows_per_step: int) -> str:
        """Return what to tell the user before the work begins."""
        each = f"one training step of {rows_per_step} sequences {self.step_s:.1f} s"
        costs = f"drawing text from the target takes about {_duration(self.sampling_s)}, {each}"
        if steps is not None:
            total = self.sampling_s + steps * self.step_s
            return f"on this CPU {costs}: {steps} steps are done in about {_duration(total)}"
        left_s = 60.0 * minutes - min(self.sampling_s, 0.3 * 60.0 * minutes)
        useful = _duration(USEFUL_STEPS * 64 / rows_per_step * self.step_s)
        return (
            f"on this CPU {costs}: {minutes:g} minutes hold about {max(1, int(left_s / self.step_s))} steps, a useful "
            f"draft takes about {useful}; use a GPU, or give it that time with --minutes"
        )


def estimate(
    teacher: Decoder, *, layers: int, token_count: int, length: int, rows: int, rows_per_step: int, group_size: int
) -> Estimate:
    """Time both kinds of steps on this device with the shapes they will have, training on fewer rows."""
    sampler = Sampler(teacher, rows=rows, length=_TIMED_TOKENS)
    prompts, generator = [Row((0,))] * rows, torch.Generator(teacher.ends.head.device).manual_seed(0)
    sampling_s = _seconds(lambda: sampler.run(prompts, _TIMED_TOKENS, generator)) / (_TIMED_TOKENS - 1)
    batches = -(-max(rows, token_count // length) // rows)
    step = TrainingStep(
        take_layers(teacher, range(layers)), teacher, group_size=group_size, learning_rate=1e-9, argmax_weight=0.0
    )
    ids = np.zeros((_TIMED_ROWS, length), np.int32)
    batch = Samples(ids, np.zeros(_TIMED_ROWS, np.int32), np.full(_TIMED_ROWS, length - 1, np.int32))
    step_s = _seconds(lambda: step.run(batch, share=1.0)) * rows_per_step / _TIMED_ROWS
    passes = batches * (min(OPENING_TOKENS, length // 2) + length) + _PROBE_PASSES
    return Estimate(sampling_s=passes * sampling_s, step_s=step_s)


def _seconds(work: Callable[[], object]) -> float:
    work()  # the first time also loads and allocates
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _duration(seconds: float) -> str:
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} minutes" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} hours"
