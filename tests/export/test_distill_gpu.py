"""Distilling on CUDA: captured sampling steps, FP16 target, BF16 draft."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.distill import distill
from edgeprec.export.distill_model import load_decoder
from edgeprec.export.distill_sampling import Row, Sampler
from edgeprec.export.distill_settings import DistillSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


def test_captured_steps_continue_as_whole_passes_do(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Across two lengths of cache and a second text in the same cache."""
    checkpoints.make_checkpoint(tmp_path / "m", dtype="fp16", max_positions=128)
    device = torch.device("cuda")
    decoder = load_decoder(open_checkpoint(str(tmp_path / "m")), device=device, dtype=torch.float32)
    sampler, generator = Sampler(decoder, rows=4, length=100), torch.Generator(device).manual_seed(0)
    sampler.run([Row((200, 100))] * 4, 100, generator)
    rows = [Row((5, 6, 7)), Row((9,)), Row((11, 12, 13, 14, 15))]
    tokens = sampler.run(rows, 100, generator)
    with torch.no_grad():
        logits = decoder.logits(decoder(tokens))
    best = logits.max(-1).values
    for index, row in enumerate(rows):
        start = len(row.prompt) - 1
        taken = logits[index].gather(-1, tokens[index].roll(-1)[:, None])[:, 0]
        lead = (best[index] - taken)[start:-1]
        assert lead.max() < 1e-3, f"max {lead.max():.2e}, mean {lead.mean():.2e}"
        assert tuple(tokens[index, : start + 1].tolist()) == row.prompt


def test_a_toy_is_distilled(checkpoints: ModuleType, tmp_path: Path) -> None:
    """KL falls, the record names the GPU, and a second run gives a whole draft too."""
    target = checkpoints.make_checkpoint(tmp_path / "t", dtype="fp16", hidden_size=64, num_heads=2, max_positions=96)
    settings = DistillSettings(
        layers=1,
        steps=60,
        sample_tokens=4000,
        sample_rows=64,
        sequence_tokens=48,
        rows_per_step=32,
        learning_rate=5e-3,
        probe_tokens=16,
        device="cuda",
    )
    record = distill(str(target), tmp_path / "draft", settings).record
    assert record["curve"][-1]["kl_bits"] < record["curve"][1]["kl_bits"]
    assert record["device"] == torch.cuda.get_device_name()
    by_time = DistillSettings(
        layers=1, minutes=0.3, sample_rows=64, sequence_tokens=48, rows_per_step=32, probe_tokens=16
    )
    assert distill(str(target), tmp_path / "timed", by_time).record["steps"] > 10
