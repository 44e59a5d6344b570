"""The torch decoder computes what Hugging Face computes, and a sampler continues with it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.distill_layers import choose_layers, skip_errors_bits, take_layers
from edgeprec.export.distill_model import Decoder, load_decoder
from edgeprec.export.distill_sampling import Row, Sampler
from edgeprec.export.progress import silent

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_decoder(checkpoints: ModuleType, path: Path, family: str = "llama", **spec: Any) -> Decoder:
    """Return a tiny random model."""
    checkpoints.make_checkpoint(path, family, dtype="fp16", **spec)
    return load_decoder(open_checkpoint(str(path)), device=CPU, dtype=torch.float32)


@pytest.fixture
def decoder(checkpoints: ModuleType, tmp_path: Path) -> Decoder:
    """Return a tiny Llama of three layers."""
    return make_decoder(checkpoints, tmp_path / "m", num_layers=3)


@pytest.mark.parametrize(
    ("family", "spec"),
    [
        ("llama", {"rope_scaling": LLAMA3}),
        ("llama", {"tied": False}),
        ("mistral", {"num_kv_heads": 4}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
    ],
)
def test_logits_are_hugging_faces(checkpoints: ModuleType, tmp_path: Path, family: str, spec: dict[str, Any]) -> None:
    """Every family, with its biases, norms and rotary scaling."""
    from transformers import AutoModelForCausalLM

    decoder = make_decoder(checkpoints, tmp_path / "m", family, **spec)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    tokens = torch.randint(0, 301, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = decoder.logits(decoder(tokens)), reference(tokens).logits
    difference = (found - expected).abs()
    assert difference.max() < 2e-4, f"max {difference.max():.2e}, mean {difference.mean():.2e}"


def test_a_draft_owns_layers_and_shares_ends(decoder: Decoder) -> None:
    """Its state holds no embedding, its layers are copies in float32, and the target keeps its own."""
    draft = take_layers(decoder, (0, 2))
    assert draft.ends.head is decoder.ends.head
    assert not [name for name in draft.state_dict() if "embed" in name or "head" in name]
    torch.testing.assert_close(
        draft.state_dict()["layers.1.linears.o.weight"], decoder.state_dict()["layers.2.linears.o.weight"]
    )
    with torch.no_grad():
        draft.layers[0].linears["o"].weight.zero_()  # type: ignore[union-attr,index]
    assert decoder.state_dict()["layers.0.linears.o.weight"].abs().sum() > 0
    assert all(value.requires_grad for value in draft.parameters())
    assert not any(value.requires_grad for value in decoder.parameters())


def test_sensitive_layers_are_chosen(decoder: Decoder) -> None:
    """A layer that does nothing is left out; the others keep their order."""
    with torch.no_grad():
        for name in ("o", "down"):
            decoder.layers[1].linears[name].weight.zero_()  # type: ignore[union-attr,index]
    tokens = torch.randint(0, 301, (2, 20), generator=torch.Generator().manual_seed(0))
    errors = skip_errors_bits(decoder, tokens, torch.ones_like(tokens, dtype=torch.bool), silent)
    assert errors[1] == pytest.approx(0.0, abs=1e-5)
    assert min(errors[0], errors[2]) > 0.01
    assert choose_layers(errors, 2) == (0, 2)


def test_greedy_rows_are_the_models_own(decoder: Decoder) -> None:
    """Prompts of different lengths stay as they are, and each next token is the argmax of a whole pass."""
    rows = [Row((5, 6, 7)), Row((9,)), Row((11, 12, 13, 14, 15))]
    sampler = Sampler(decoder, rows=4, length=70)  # more rows than prompts, more than one block of cache
    tokens = sampler.run(rows, 70, torch.Generator().manual_seed(0))
    assert tokens.shape == (3, 70)
    with torch.no_grad():
        wanted = decoder.logits(decoder(tokens)).argmax(-1)
    for row, prompt in zip(tokens.tolist(), rows, strict=True):
        assert tuple(row[: len(prompt.prompt)]) == prompt.prompt
    for index, prompt in enumerate(rows):
        start = len(prompt.prompt) - 1
        torch.testing.assert_close(tokens[index, start + 1 :], wanted[index, start:-1])


def test_a_cache_is_used_again(decoder: Decoder) -> None:
    """A second text does not see the first."""
    sampler = Sampler(decoder, rows=1, length=20)
    first = sampler.run([Row((5, 6))], 20, torch.Generator().manual_seed(0))
    sampler.run([Row((200, 100, 50))], 20, torch.Generator().manual_seed(0))
    torch.testing.assert_close(sampler.run([Row((5, 6))], 20, torch.Generator().manual_seed(0)), first)


def test_samples_follow_the_distribution(decoder: Decoder) -> None:
    """At temperature 1 tokens come as often as the softmax says; hot until a position, greedy behind it."""
    count = 3000
    row = Row((5, 6), hot_until=3, hot=1.0, temperature=0.0)
    sampler = Sampler(decoder, rows=count, length=4)
    tokens = sampler.run([row] * count, 4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = decoder.logits(decoder(tokens[:1, :2]))[0, -1].softmax(-1)
        greedy = decoder.logits(decoder(tokens))[:, 2].argmax(-1)
    seen = torch.bincount(tokens[:, 2], minlength=301) / count
    top = expected.topk(5).indices
    assert (seen[top] - expected[top]).abs().max() < 4 * (0.25 / count) ** 0.5
    assert len(tokens[:, 2].unique()) > 20
    torch.testing.assert_close(tokens[:, 3], greedy)
