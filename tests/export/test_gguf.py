"""GGUF files: the same model in either format reads the same, quantized types as the package ``gguf`` undoes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.architecture import Llama3RopeScaling
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.gguf_file import read_gguf_file
from edgeprec.export.gguf_rope import recover_rope_scaling, rope_divisors

SHAPE = {"hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 96, "rope_theta": 5000.0}
LINEARS = ("qkv", "o", "gate_up", "down")


def spec_of(checkpoints: ModuleType, family: str, **changes: Any) -> Any:
    """Return a spec whose widths are multiples of a quantization block."""
    width = {"head_dim": 32} if family == "qwen3" else {}
    return checkpoints.CheckpointSpec(family=family, dtype="fp32", **SHAPE | width | changes)


def folder_of(checkpoints: ModuleType, path: Path, family: str, **changes: Any) -> Path:
    """Write the same model as a Hugging Face folder."""
    width = {"head_dim": 32} if family == "qwen3" else {}
    return Path(checkpoints.make_checkpoint(path, family, dtype="fp32", **SHAPE | width | changes))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_both_formats_of_a_model_read_the_same(
    checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path, family: str, is_tied: bool
) -> None:
    """An F32 file equals the folder it was converted from: rows in order, shapes and constants alike."""
    expected = open_checkpoint(str(folder_of(checkpoints, tmp_path / "hf", family, tied=is_tied)))
    got = open_checkpoint(str(make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, family, tied=is_tied))))
    assert got.config == expected.config
    assert got.name == "m"
    for layer in range(got.config.num_layers):
        for name in LINEARS:
            np.testing.assert_array_equal(got.linear(layer, name), expected.linear(layer, name))  # type: ignore[arg-type]
        for norm in ("input", "post_attention", *(("q", "k") if family == "qwen3" else ())):
            np.testing.assert_array_equal(got.norm(layer, norm), expected.norm(layer, norm))  # type: ignore[arg-type]
        bias, expected_bias = got.bias(layer), expected.bias(layer)
        assert (bias is None) is (expected_bias is None)
        if bias is not None and expected_bias is not None:
            np.testing.assert_array_equal(bias, expected_bias)
    np.testing.assert_array_equal(got.embedding(), expected.embedding())
    np.testing.assert_array_equal(got.final_norm(), expected.final_norm())
    head, expected_head = got.head(), expected.head()
    assert (head is None) is (expected_head is None) is is_tied
    if head is not None and expected_head is not None:
        np.testing.assert_array_equal(head, expected_head)


def test_row_order_is_the_one_attention_needs(
    checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    """Rotating stored rows as neighbouring pairs, or ours as two halves, gives the same attention scores."""
    path = make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama", num_kv_heads=4))
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    qkv = open_checkpoint(str(path)).linear(0, "qkv")
    hidden = np.random.default_rng(0).standard_normal((2, 64))  # a query's and a key's input
    scores = []
    for q_rows, k_rows, pair in (
        (stored["blk.0.attn_q.weight"], stored["blk.0.attn_k.weight"], (slice(0, None, 2), slice(1, None, 2))),
        (qkv[:, :64].T, qkv[:, 64:128].T, (slice(0, 8), slice(8, 16))),
    ):
        query = _rotated((q_rows @ hidden[0]).reshape(4, 16), position=5, pair=pair)
        key = _rotated((k_rows @ hidden[1]).reshape(4, 16), position=2, pair=pair)
        scores.append((query * key).sum(axis=1))
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)


def _rotated(heads: Any, *, position: int, pair: tuple[slice, slice]) -> Any:
    """Turn each rotary pair of [heads, d] by its frequency times ``position``."""
    angle = position * 5000.0 ** (-np.arange(8) / 8)
    first, second = heads[:, pair[0]], heads[:, pair[1]]
    turned = np.empty_like(heads)
    turned[:, pair[0]] = first * np.cos(angle) - second * np.sin(angle)
    turned[:, pair[1]] = second * np.cos(angle) + first * np.sin(angle)
    return turned


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_types(
    checkpoints: ModuleType,
    gguf_files: ModuleType,
    weights_of: Callable[[Any], dict[str, Any]],
    make_gguf: Callable[..., Path],
    tmp_path: Path,
    quantization: str,
) -> None:
    """Each type is dequantized before rows are put in order, and stays near the original."""
    spec = spec_of(checkpoints, "llama", tied=False)
    checkpoint = open_checkpoint(str(make_gguf(tmp_path / "m.gguf", spec, quantization=quantization)))
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}

    def undone(name: str) -> Any:
        return np.asarray(gguf.quants.dequantize(stored[name].data, stored[name].tensor_type), np.float32)

    np.testing.assert_array_equal(checkpoint.linear(1, "down"), undone("blk.1.ffn_down.weight").T)
    np.testing.assert_array_equal(checkpoint.embedding(), undone("token_embd.weight").astype(np.float16))
    head = checkpoint.head()
    assert head is not None
    np.testing.assert_array_equal(head, undone("output.weight").astype(np.float16).T)
    q_rows = gguf_files.permute_rows(checkpoint.linear(0, "qkv")[:, :64].T, 4)
    np.testing.assert_array_equal(q_rows, undone("blk.0.attn_q.weight"))
    original = weights_of(spec)["model.layers.1.self_attn.q_proj.weight"].T
    error = np.abs(checkpoint.linear(1, "qkv")[:, :64] - original)
    tolerance = {"F16": 1e-3, "BF16": 5e-3, "Q8_0": 5e-3}.get(quantization, 0.1)
    assert error.max() < tolerance, f"max {error.max():.2e}, mean {error.mean():.2e}"


@pytest.mark.parametrize(("quantization", "scale_bytes"), [("Q4_K", (0, 2)), ("Q6_K", (208,)), ("Q2_K", (80, 82))])
def test_types_with_blocks_of_256(
    checkpoints: ModuleType,
    make_gguf: Callable[..., Path],
    tmp_path: Path,
    quantization: str,
    scale_bytes: tuple[int, ...],
) -> None:
    """The K types, which the package can undo but not make, are read from raw blocks in the order of rows."""
    kind = gguf.GGMLQuantizationType[quantization]
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 256, (64, 512 // block_values, block_bytes), np.uint8)
    for at in scale_bytes:  # a scale of random bits could be infinite
        raw[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    raw = raw.reshape(64, -1)
    spec = spec_of(checkpoints, "llama", intermediate_size=512)
    path = make_gguf(tmp_path / "m.gguf", spec, raw_tensors={"blk.1.ffn_down.weight": (raw, quantization)})
    got = open_checkpoint(str(path)).linear(1, "down")
    assert np.abs(got).max() > 0.0
    np.testing.assert_array_equal(got, gguf.quants.dequantize(raw, kind).T)


def test_type_that_cannot_be_undone(checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """A storage type the package does not dequantize is named with the tensor."""
    raw = np.zeros((64, 96 // 32 * gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_1][1]), np.uint8)
    spec = spec_of(checkpoints, "llama")
    path = make_gguf(tmp_path / "m.gguf", spec, raw_tensors={"blk.1.ffn_down.weight": (raw, "Q8_1")})
    with pytest.raises(ConfigError, match=r"blk\.1\.ffn_down\.weight is Q8_1"):
        open_checkpoint(str(path))


def test_embedding_in_blocks_of_rows(
    checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a quantized table a few rows at a time gives the table."""
    from edgeprec.export import checkpoint_weights

    checkpoint = open_checkpoint(
        str(make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama"), quantization="Q4_1"))
    )
    whole = checkpoint.embedding()
    monkeypatch.setattr(checkpoint_weights, "_BLOCK_VALUES", 64 * 7)
    np.testing.assert_array_equal(checkpoint.embedding(), whole)


def test_head_equals_the_parsers_reading(
    checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    """Metadata and tensor places agree with the package's own parser."""
    path = make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "qwen2"), quantization="Q8_0")
    ours, theirs = read_gguf_file(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert dict(ours.metadata) == fields
    places = {tensor.name: (tuple(tensor.shape[::-1]), int(tensor.data_offset)) for tensor in theirs.tensors}
    assert {name: (info.shape, info.offset_bytes) for name, info in ours.tensors.items()} == places


@pytest.mark.parametrize(
    ("theta", "count", "scaling"),
    [
        (500_000.0, 32, (32.0, 1.0, 4.0, 8192)),
        (500_000.0, 64, (8.0, 1.0, 4.0, 8192)),
        (500_000.0, 6, (8.0, 1.0, 4.0, 8192)),
        (10_000.0, 16, (8.0, 1.0, 4.0, 32)),
        (10_000.0, 32, (4.0, 2.0, 5.0, 64)),
    ],
)
def test_llama3_scaling_is_recovered(theta: float, count: int, scaling: tuple[float, float, float, int]) -> None:
    """The parameters found give the divisors in the file, whichever scale they were written on."""
    factor, low, high, original = scaling
    truth = Llama3RopeScaling(
        factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position_embeddings=original
    )
    divisors = rope_divisors(truth, theta, count).astype(np.float32)
    found = recover_rope_scaling(divisors, rope_theta=theta, origin="m.gguf")
    assert found is not None
    np.testing.assert_allclose(rope_divisors(found, theta, count), divisors, rtol=1e-4)
    if original == 8192:
        assert found == truth


def test_divisors_are_the_reference_implementations() -> None:
    """Unscaled frequencies over our divisors are the frequencies transformers computes."""
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=rope)
    expected, _ = rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    scaling = Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    )
    plain = 10_000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(plain / rope_divisors(scaling, 10_000.0, 32), expected.numpy(), rtol=1e-5)


def test_rope_factors_in_a_file(checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """Factors of 1 mean no scaling, Llama 3's are recovered, others are refused."""
    spec = spec_of(checkpoints, "llama", num_heads=2, num_kv_heads=1, rope_theta=500_000.0)
    truth = Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )

    def read(factors: Any) -> Any:
        tensors = {"rope_freqs.weight": np.asarray(factors, np.float32)}
        return open_checkpoint(str(make_gguf(tmp_path / "m.gguf", spec, tensors=tensors))).config.rope_scaling

    assert read(np.ones(16)) is None
    assert read(rope_divisors(truth, 500_000.0, 16)) == truth
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight holds factors"):
        read(np.linspace(1.0, 3.0, 16))
    with pytest.raises(ConfigError, match="has 7 values, expected 16"):
        read(np.ones(7))


def test_window_and_per_layer_counts(checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """A sliding window caps the context with a note, and counts listed per layer are read where they agree."""
    metadata = {"llama.attention.sliding_window": 40, "llama.attention.head_count_kv": [2, 2]}
    checkpoint = open_checkpoint(str(make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama"), metadata=metadata)))
    assert (checkpoint.config.max_positions, checkpoint.config.num_kv_heads) == (40, 2)
    assert any("40" in note and "128" in note for note in checkpoint.notes)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama.context_length": None}, ["context_length"]),
        ({"llama.expert_count": 8}, ["mixture of experts"]),
        ({"llama.rope.scaling.type": "yarn"}, ["yarn"]),
        ({"llama.rope.dimension_count": 8}, ["rope.dimension_count is 8", "16"]),
        ({"llama.attention.head_count_kv": [1, 2]}, ["head_count_kv", "layer to layer"]),
        ({"llama.attention.head_count_kv": 4}, ["blk.0.attn_k.weight", "[32, 64]", "[64, 64]"]),
        ({"llama.block_count": 3}, ["no tensor blk.2."]),
        ({"split.count": "many"}, ["split.count", "whole number"]),
        ({"llama.embedding_length": "wide"}, ["embedding_length", "whole number"]),
        ({"tokenizer.ggml.tokens": [1, 2]}, ["tokenizer.ggml.tokens", "expected strings"]),
        ({"tokenizer.ggml.token_type": ["a"]}, ["token_type", "expected numbers"]),
        ({"tokenizer.ggml.merges": [1]}, ["merges", "expected strings"]),
        ({"tokenizer.ggml.model": ["gpt2"]}, ["model ['gpt2']"]),
        ({"split.count": 4}, ["one of 4 split files"]),
        ({"tokenizer.ggml.model": None}, ["tokenizer", "None", "gpt2, llama"]),
        ({"tokenizer.ggml.model": "t5"}, ["'t5'", "gpt2, llama"]),
        ({"tokenizer.ggml.pre": "tekken"}, ["tekken", "smollm"]),
        ({"tokenizer.ggml.tokens": None}, ["tokenizer.ggml.tokens"]),
        ({"tokenizer.ggml.token_type": [1, 2]}, ["token_type has 2 entries"]),
        ({"tokenizer.ggml.merges": ["a b c"]}, ["'a b c'", "expected 2"]),
        ({"tokenizer.ggml.merges": ["zz qq"]}, ["not a tokenizer"]),
        ({"tokenizer.ggml.eos_token_id": 9999}, ["9999", "rows"]),
    ],
)
def test_metadata_that_cannot_be_used(
    checkpoints: ModuleType,
    make_gguf: Callable[..., Path],
    tmp_path: Path,
    metadata: dict[str, Any],
    words: list[str],
) -> None:
    """A missing, damaged or unsupported entry is named."""
    path = make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama"), metadata=metadata)
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(str(path))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unsupported_architecture(checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """Another architecture is named beside the supported ones."""
    path = make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama"))
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    with pytest.raises(ConfigError, match=r"'mamba' is not supported.*llama, qwen2, qwen3"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"token_embd.weight": None}, ["token_embd.weight", "not a whole model"]),
        ({"blk.1.ffn_up.weight": None}, ["no tensor blk.1.ffn_up.weight", "[96, 64]"]),
        ({"blk.0.attn_norm.weight": np.ones(32, np.float32)}, ["blk.0.attn_norm.weight", "[32]", "[64]"]),
        ({"blk.0.attn_output.bias": np.ones(64, np.float32)}, ["blk.0.attn_output.bias", "does not use"]),
    ],
)
def test_tensors_that_do_not_fit(
    checkpoints: ModuleType,
    make_gguf: Callable[..., Path],
    tmp_path: Path,
    tensors: dict[str, Any],
    words: list[str],
) -> None:
    """A tensor that is missing, of another shape or unknown is named."""
    path = make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama"), tensors=tensors)
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(str(path))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_nan_is_named_by_the_files_name(
    checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    """A NaN weight is refused under the name the file gives it."""
    values = np.full((64, 96), np.nan, np.float32)
    path = make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama"), tensors={"blk.1.ffn_down.weight": values})
    checkpoint = open_checkpoint(str(path))
    with pytest.raises(ConfigError, match=r"blk\.1\.ffn_down\.weight holds 6144 NaN or infinite values of 6144"):
        checkpoint.linear(1, "down")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data[:-64], ["truncated", "ends at"]),
        (lambda data: data[:3000], ["truncated", "metadata"]),
        (lambda data: data[:4] + (99).to_bytes(4, "little") + data[8:], ["version 99"]),
        (lambda data: data[:4] + data[4:8][::-1] + data[8:], ["little endian"]),
    ],
    ids=["data cut", "metadata cut", "version", "big endian"],
)
def test_damaged_files(
    checkpoints: ModuleType,
    make_gguf: Callable[..., Path],
    tmp_path: Path,
    spoil: Callable[[bytes], bytes],
    words: list[str],
) -> None:
    """A cut or foreign file says what is wrong with it."""
    path = make_gguf(tmp_path / "m.gguf", spec_of(checkpoints, "llama"))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(str(path))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.fixture(scope="module")
def head_bytes(gguf_files: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a small whole GGUF file."""
    path = tmp_path_factory.mktemp("fuzz") / "good.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("words", ["a", "bc"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_float32("x", 0.5)
    writer.add_tensor("t", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return bytes(path.read_bytes())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_heads_never_crash(
    head_bytes: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bytes of a head are changed or cut off, the parser answers with a head or an EdgePrec error."""
    spoiled = bytearray(head_bytes[: data.draw(st.integers(0, len(head_bytes)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if spoiled:
            spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "spoiled.gguf"
    path.write_bytes(bytes(spoiled))
    message = str(path)
    try:
        read_gguf_file(path)
    except EdgePrecError as error:
        message = str(error)
    assert str(path) in message
