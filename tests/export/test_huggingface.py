"""Hugging Face folders: weights equal the stored ones bit by bit, whatever the dtype, sharding or family."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeprec.export.checkpoint import open_checkpoint

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ODD = {"hidden_size": 36, "num_heads": 6, "num_kv_heads": 3, "head_dim": 10, "intermediate_size": 53, "vocab_size": 277}


def layer_tensor(weights: dict[str, Any], layer: int, name: str) -> Any:
    """Return a tensor of one layer."""
    return weights[f"model.layers.{layer}.{name}"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "shards"), [("bf16", 1), ("fp16", 3), ("fp32", 2)])
def test_merged_linears_are_the_stored_ones_transposed(
    checkpoints: ModuleType,
    weights_of: Callable[[Any], dict[str, Any]],
    tmp_path: Path,
    family: str,
    dtype: str,
    shards: int,
) -> None:
    """[K, N] linears hold q | k | v and gate | up as columns, without losing a bit of any dtype."""
    spec = checkpoints.CheckpointSpec(family=family, dtype=dtype, seed=3, **ODD)
    checkpoint = open_checkpoint(
        str(checkpoints.make_checkpoint(tmp_path, family, shards=shards, dtype=dtype, seed=3, **ODD))
    )
    weights = weights_of(spec)
    for layer in range(2):
        parts = {role: layer_tensor(weights, layer, f"self_attn.{role}_proj.weight") for role in "qkvo"}
        mlp = {role: layer_tensor(weights, layer, f"mlp.{role}_proj.weight") for role in ("gate", "up", "down")}
        expected = {
            "qkv": np.concatenate([parts["q"], parts["k"], parts["v"]]).T,
            "o": parts["o"].T,
            "gate_up": np.concatenate([mlp["gate"], mlp["up"]]).T,
            "down": mlp["down"].T,
        }
        for name, values in expected.items():
            got = checkpoint.linear(layer, name)  # type: ignore[arg-type]
            assert got.dtype == (np.float16 if dtype == "fp16" else np.float32)
            assert got.shape == checkpoint.config.linear_shape(name)
            np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_vectors_embedding_and_head(
    checkpoints: ModuleType, weights_of: Callable[[Any], dict[str, Any]], tmp_path: Path, family: str, is_tied: bool
) -> None:
    """Norms and biases are float32, tables FP16, and a tied model has no head."""
    spec = checkpoints.CheckpointSpec(family=family, tied=is_tied, **ODD)
    checkpoint = open_checkpoint(str(checkpoints.make_checkpoint(tmp_path, family, tied=is_tied, **ODD)))
    weights = weights_of(spec)
    np.testing.assert_array_equal(checkpoint.embedding(), weights["model.embed_tokens.weight"].astype(np.float16))
    np.testing.assert_array_equal(checkpoint.final_norm(), weights["model.norm.weight"])
    np.testing.assert_array_equal(checkpoint.norm(1, "input"), layer_tensor(weights, 1, "input_layernorm.weight"))
    np.testing.assert_array_equal(
        checkpoint.norm(0, "post_attention"), layer_tensor(weights, 0, "post_attention_layernorm.weight")
    )
    if family == "qwen3":
        np.testing.assert_array_equal(checkpoint.norm(1, "q"), layer_tensor(weights, 1, "self_attn.q_norm.weight"))
        np.testing.assert_array_equal(checkpoint.norm(1, "k"), layer_tensor(weights, 1, "self_attn.k_norm.weight"))
    bias, head = checkpoint.bias(1), checkpoint.head()
    assert (bias is None) is (family != "qwen2")
    if bias is not None:
        parts = [layer_tensor(weights, 1, f"self_attn.{role}_proj.bias") for role in "qkv"]
        np.testing.assert_array_equal(bias, np.concatenate(parts))
    assert (head is None) is is_tied
    if head is not None:
        np.testing.assert_array_equal(head, weights["lm_head.weight"].astype(np.float16).T)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_same_model(checkpoints: ModuleType, tmp_path: Path, family: str) -> None:
    """The reference implementation, loading the same folder, has our shapes, constants and weights."""
    transformers = pytest.importorskip("transformers")
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    folder = checkpoints.make_checkpoint(tmp_path, family, head_dim=16, rope_scaling=rope)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    checkpoint = open_checkpoint(str(folder))
    attention = model.model.layers[1].self_attn
    parts = [getattr(attention, f"{role}_proj").weight.detach().numpy() for role in "qkv"]
    np.testing.assert_array_equal(checkpoint.linear(1, "qkv"), np.concatenate(parts).T)
    assert checkpoint.config.head_dim == attention.head_dim
    assert checkpoint.config.rope_scaling is not None
    assert checkpoint.config.rope_scaling.factor == model.config.rope_parameters["factor"]


def test_transformers_5_folders_are_read(checkpoints: ModuleType, tmp_path: Path) -> None:
    """A folder that the current transformers saves again gives the same configuration and weights."""
    transformers = pytest.importorskip("transformers")
    folder = checkpoints.make_checkpoint(tmp_path / "made", "llama", tied=False, rope_theta=5000.0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    model.save_pretrained(tmp_path / "saved")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    made, saved = open_checkpoint(str(folder)), open_checkpoint(str(tmp_path / "saved"))
    assert saved.config == made.config
    assert saved.tokenizer.generation == made.tokenizer.generation
    assert saved.tokenizer.chat_template == made.tokenizer.chat_template
    np.testing.assert_array_equal(saved.linear(0, "down"), made.linear(0, "down"))


def test_sources_are_digested_with_progress(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Every file that was read has its size and SHA-256, and progress adds up to the whole."""
    folder = checkpoints.make_checkpoint(tmp_path, "llama", shards=2)
    checkpoint = open_checkpoint(str(folder))
    steps: list[int] = []
    digests = checkpoint.digest_sources(steps.append)
    assert set(digests) == {path.name for path in folder.iterdir()}
    assert sum(steps) == checkpoint.source_bytes == sum(digest.bytes for digest in digests.values())
    for name, digest in digests.items():
        assert digest.sha256 == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_name_is_the_folders(checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is named after its folder, also when that is the current one."""
    folder = checkpoints.make_checkpoint(tmp_path / "tiny-model", "llama")
    monkeypatch.chdir(folder)
    assert open_checkpoint(".").name == "tiny-model"


def test_a_capped_context_is_noted(checkpoints: ModuleType, tmp_path: Path) -> None:
    """A sliding window shorter than the context is said in one sentence with both numbers."""
    folder = checkpoints.make_checkpoint(tmp_path, "mistral", sliding_window=48)
    (note,) = open_checkpoint(str(folder)).notes
    assert "48" in note
    assert "128" in note


def test_harmless_tensors_are_left_alone(checkpoints: ModuleType, tmp_path: Path) -> None:
    """A rotary table and the head of a tied model are ignored, as the reference implementation does."""
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(6, np.float32),
        "lm_head.weight": np.ones((301, 48), np.float32),
    }
    checkpoint = open_checkpoint(str(checkpoints.make_checkpoint(tmp_path, "llama", tensors=extra)))
    assert checkpoint.head() is None


def test_a_large_vocabulary_is_never_held_in_float32(
    checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a table takes its FP16 size and one block, not twice as much."""
    import tracemalloc

    from edgeprec.export import checkpoint_weights

    monkeypatch.setattr(checkpoint_weights, "_BLOCK_VALUES", 20_000)
    folder = checkpoints.make_checkpoint(tmp_path, "llama", vocab_size=12_000, hidden_size=64, tied=False, num_layers=1)
    checkpoint = open_checkpoint(str(folder))
    table_bytes = 12_000 * 64 * 2
    for read in (checkpoint.embedding, checkpoint.head):
        tracemalloc.start()
        table = read()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert table is not None
        assert peak_bytes < table_bytes + 12 * 20_000
