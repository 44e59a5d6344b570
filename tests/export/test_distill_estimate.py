"""What is said of the time before it is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from edgeprec.export import distill_estimate
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.distill_estimate import Estimate, estimate
from edgeprec.export.distill_model import load_decoder


@pytest.mark.parametrize(
    ("steps", "minutes", "expected"),
    [
        (30, 10.0, "one training step of 8 sequences 6.0 s: 30 steps are done in about 11 minutes"),
        (None, 10.0, "10 minutes hold about 70 steps, a useful draft takes about 26.7 hours; use a GPU"),
        (None, 0.01, "0.01 minutes hold about 1 steps"),
    ],
)
def test_the_sentence_says_what_the_time_is_worth(steps: int | None, minutes: float, expected: str) -> None:
    """480 seconds of text and 6 a step: by steps the whole, by time what fits into 70 % of it."""
    said = Estimate(sampling_s=480.0, step_s=6.0).sentence(steps=steps, minutes=minutes, rows_per_step=8)
    assert said.startswith("on this CPU drawing text from the target takes about 8 minutes, ")
    assert expected in said


def test_timed_steps_are_scaled_to_the_work(
    checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second each: rows, batches and the probe decide the rest."""
    checkpoints.make_checkpoint(tmp_path / "m", dtype="fp16", max_positions=64)
    teacher = load_decoder(open_checkpoint(str(tmp_path / "m")), device=torch.device("cpu"), dtype=torch.float32)

    def one_second(work: Callable[[], object]) -> float:
        work()
        return 1.0

    monkeypatch.setattr(distill_estimate, "_seconds", one_second)
    found = estimate(teacher, layers=1, token_count=1280, length=32, rows=16, rows_per_step=8, group_size=32)
    per_pass = 1.0 / (distill_estimate._TIMED_TOKENS - 1)
    passes = 3 * (16 + 32) + distill_estimate._PROBE_PASSES  # 40 rows in batches of 16, openings and answers
    assert found.sampling_s == pytest.approx(passes * per_pass)
    assert found.step_s == pytest.approx(8.0)
