"""The probe: the target's greedy text by kind, and a draft held against it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.distill_layers import take_layers
from edgeprec.export.distill_model import Decoder, load_decoder
from edgeprec.export.distill_probe import Probe
from edgeprec.export.text_codec import TextCodec
from edgeprec.prompts import PromptKind, load_prompts

POSITIONS, NEW_TOKENS = 40, 12


@pytest.fixture(scope="module")
def target(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, TextCodec]:
    """Return a toy target and its codec."""
    path: Path = checkpoints.make_checkpoint(
        tmp_path_factory.mktemp("toy") / "target", dtype="fp16", max_positions=POSITIONS
    )
    checkpoint = open_checkpoint(str(path))
    decoder = load_decoder(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    return decoder, TextCodec.of(checkpoint.tokenizer)


def test_every_kind_of_prompt_is_continued(target: tuple[Decoder, TextCodec]) -> None:
    """Ten prompts a kind, of each the new tokens alone are learned, up to an end token."""
    probe = Probe.of(*target, new_tokens=NEW_TOKENS)
    assert set(probe.by_kind) == {kind.value for kind in PromptKind}
    for kind, samples in probe.by_kind.items():
        assert len(samples) == len(load_prompts("tuning", kind))
        counts = samples.mask().sum(1)
        assert counts.max() == NEW_TOKENS
        assert counts.min() >= 1


def test_a_target_agrees_with_itself_and_noise_does_not(target: tuple[Decoder, TextCodec]) -> None:
    """All layers are accepted always; another head hardly ever."""
    probe = Probe.of(*target, new_tokens=NEW_TOKENS)
    itself = take_layers(target[0], range(2))
    found = probe.measure(itself, target[0].ends.head, draft_length=4)
    assert {kind: acceptance.rate for kind, acceptance in found.items()} == dict.fromkeys(probe.by_kind, 1.0)
    noise = torch.randn(target[0].ends.head.shape, generator=torch.Generator().manual_seed(0))
    assert max(acceptance.rate for acceptance in probe.measure(itself, noise, draft_length=4).values()) < 0.1


def test_a_short_context_is_shared_between_prompt_and_text(target: tuple[Decoder, TextCodec]) -> None:
    """More new tokens than the target has room for: half of the room is prompt."""
    probe = Probe.of(*target, new_tokens=500)
    for samples in probe.by_kind.values():
        assert samples.tokens.shape[1] <= POSITIONS
        assert samples.mask().sum(1).max() == POSITIONS // 2
