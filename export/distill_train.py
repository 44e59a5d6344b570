"""Train a draft against its target: a loop that can be killed at any moment and goes on where it was.

Batches depend on (seed, step) alone, so a run of a given number of steps ends with the same weights, killed or not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export.distill_loss import LossParts
from edgeprec.export.distill_model import Decoder
from edgeprec.export.distill_pace import Pace, learning_rate_share
from edgeprec.export.distill_probe import Probe
from edgeprec.export.distill_samples import Samples
from edgeprec.export.distill_state import TrainingState, load_state, save_state
from edgeprec.export.distill_step import TrainingStep
from edgeprec.export.progress import Progress, ProgressEvent

__all__ = ["TrainingRun", "choose_rows"]


@dataclass(slots=True, kw_only=True)
class TrainingRun:
    """One run. ``on_better`` is called with each new best state; the state is saved whenever acceptance is measured.

    ``spent_s`` is what the run took before training. ``clock`` gives seconds.
    """

    step: TrainingStep
    samples: Samples
    probe: Probe
    pace: Pace
    rows_per_step: int
    draft_length: int
    seed: int
    state_path: Path
    progress: Progress
    on_better: Callable[[TrainingState], object]
    spent_s: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def run(self) -> TrainingState:
        """Train to the end and return the state with the best weights.

        Raises:
            EdgePrecError: the loss or a gradient was not finite; the last good state stays on disk. Or the disk is
                full.
            ConfigError: the state on disk is damaged, or no time was left to train in.
        """
        state = self._restore() or self._begin()
        sums = _Sums()
        last_s = self.clock()
        while True:
            progress = self.pace.progress(step=state.step, elapsed_s=state.elapsed_s)
            is_known = bool(state.curve) and state.curve[-1]["step"] == state.step
            if not is_known and self.pace.is_due(measured=len(state.curve), progress=progress):
                self._measure(state, sums.take())
            if progress >= 1.0:
                return state
            sums.add(self._take_step(state, share=learning_rate_share(progress)))
            now_s = self.clock()
            state.elapsed_s, last_s = state.elapsed_s + now_s - last_s, now_s
            self._report(state, sums.last_loss)

    def _begin(self) -> TrainingState:
        if self.pace.progress(step=0, elapsed_s=self.spent_s) >= 1.0:
            raise ConfigError(
                f"distill: the time, {self.pace.seconds:.0f} s, was used up before training began: repeat the command "
                "with --resume, which keeps the text drawn so far, or begin again with more --minutes"
            )
        weights = _copied(self.step.draft)
        return TrainingState(
            step=0,
            elapsed_s=self.spent_s,
            weights=weights,
            optimizers=self.step.optimizer.state(),
            best_weights=weights,
        )

    def _restore(self) -> TrainingState | None:
        state = load_state(self.state_path, device=self.step.device)
        if state is not None:
            self.step.draft.load_state_dict(state.weights)
            self.step.optimizer.restore(state.optimizers)
        return state

    def _take_step(self, state: TrainingState, *, share: float) -> LossParts:
        rows = choose_rows(len(self.samples), self.rows_per_step, seed=self.seed, step=state.step)
        parts = self.step.run(self.samples.rows(rows), share=share)
        if parts is None:
            raise EdgePrecError(
                f"the loss or its gradient was not finite at step {state.step + 1}: training stopped, the last good "
                f"state, of step {state.curve[-1]['step']}, is kept in {self.state_path.parent}; delete that folder "
                "and begin again with a smaller --learning-rate"
            )
        state.step += 1
        return parts

    def _measure(self, state: TrainingState, means: dict[str, float]) -> None:
        """Measure acceptance, note it, and save the state and, if it is the best so far, the draft."""
        found = self.probe.measure(self.step.draft, self.step.heads.draft, draft_length=self.draft_length)
        rate = _mean([acceptance.rate for acceptance in found.values()])
        state.curve.append(
            {
                "step": state.step,
                "seconds": round(state.elapsed_s, 1),
                **means,
                "acceptance": round(rate, 4),
                "acceptance_per_token": round(_mean([acceptance.per_token for acceptance in found.values()]), 4),
                "by_kind": {kind: round(acceptance.rate, 4) for kind, acceptance in found.items()},
            }
        )
        state.weights, state.optimizers = _copied(self.step.draft), self.step.optimizer.state()
        is_better = rate > state.best_acceptance
        if is_better:
            state.best_acceptance, state.best_step, state.best_weights = rate, state.step, state.weights
        save_state(self.state_path, state)
        if is_better and state.step:
            self.on_better(state)

    def _report(self, state: TrainingState, loss: float) -> None:
        detail = f"loss {loss:.3f}, acceptance {state.best_acceptance:.3f}"
        if self.pace.steps is None:
            done, total = min(state.elapsed_s, self.pace.seconds), self.pace.seconds
            self.progress(ProgressEvent("train, s", int(done), int(total), f"step {state.step}, {detail}"))
        else:
            self.progress(ProgressEvent("train", state.step, self.pace.steps, detail))


class _Sums:
    """Means of the loss since they were last taken."""

    def __init__(self) -> None:
        self._sums = [0.0, 0.0, 0.0]
        self._count = 0
        self.last_loss = 0.0

    def add(self, parts: LossParts) -> None:
        values = torch.stack((parts.loss, parts.kl_nats, parts.agreement)).tolist()
        self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
        self._count, self.last_loss = self._count + 1, values[0]

    def take(self) -> dict[str, float]:
        if not self._count:
            return {}
        loss, kl_nats, agreement = (total / self._count for total in self._sums)
        self._sums, self._count = [0.0, 0.0, 0.0], 0
        return {
            "loss": round(loss, 4),
            "kl_bits": round(kl_nats / math.log(2.0), 4),
            "agreement": round(agreement, 4),
        }


def choose_rows(count: int, size: int, *, seed: int, step: int) -> npt.NDArray[np.int64]:
    """Return the rows of one step out of ``count``: each epoch is a new order of all rows."""
    size = min(size, count)
    epoch, place = divmod(step, count // size)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return order[place * size : (place + 1) * size].astype(np.int64)


def _copied(draft: Decoder) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in draft.state_dict().items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
