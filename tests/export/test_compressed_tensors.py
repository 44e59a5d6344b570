"""The hand-off in compressed-tensors: what lies in the folder, and what others make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from edgeprec.api import export_bundle, export_compressed_tensors
from edgeprec.architecture import LINEARS
from edgeprec.export import hf_shards
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.compressed_tensors_config import config_files
from edgeprec.export.compressed_tensors_layout import pack_columns
from edgeprec.export.hf_shards import ShardWriter
from edgeprec.export.quantizer import QuantizerSettings, quantize
from edgeprec.export.settings import ExportSettings
from edgeprec.export.tokenizer_files import TokenizerFiles
from edgeprec.kernels.reference import dequantize

WIDTHS = {"hidden_size": 64, "intermediate_size": 96}
RTN = ExportSettings(quantizer=QuantizerSettings(method="rtn"))


def settings(**quantizer: Any) -> ExportSettings:
    """Return settings of a quantizer that needs no calibration unless asked."""
    return ExportSettings(quantizer=QuantizerSettings(**{"method": "rtn", **quantizer}))


def unpack(words: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the values -8..7 of words [R, C / 8] as the format's description has them, word by word."""
    unsigned = words.astype(np.int64) & 0xFFFFFFFF
    return np.stack([(unsigned >> (4 * place)) % 16 for place in range(8)], axis=2).reshape(len(words), -1) - 8


def decode(tensors: dict[str, npt.NDArray[Any]], stem: str) -> npt.NDArray[np.float32]:
    """Return the weight [N, K] that the format's tensors stand for."""
    levels, scales = unpack(tensors[f"{stem}.weight_packed"]), tensors[f"{stem}.weight_scale"]
    n, k = tensors[f"{stem}.weight_shape"]
    assert levels.shape == (n, k)
    group = k // scales.shape[1]
    if f"{stem}.weight_zero_point" in tensors:
        zeros = unpack(np.ascontiguousarray(tensors[f"{stem}.weight_zero_point"].T)).T  # [N, K / G]
        levels = levels - np.repeat(zeros, group, axis=1)
    weight: npt.NDArray[np.float32] = levels.astype(np.float32) * np.repeat(scales, group, axis=1).astype(np.float32)
    return weight


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize(("k", "group_size"), [(64, 32), (128, 64), (256, 128)])
def test_packed_tensors_stand_for_the_same_weight(k: int, group_size: int, is_symmetric: bool) -> None:
    """Level by level: the format's tensors of a slice of outputs decode to our own dequantized values."""
    rng = np.random.default_rng(k)
    quantizer = QuantizerSettings(
        method="rtn", group_size=group_size, is_symmetric=is_symmetric, has_signed_scales=False
    )
    weight = quantize(rng.standard_normal((k, 40)).astype(np.float32), quantizer).weight
    tensors = {f"x.{end}": values for end, values in pack_columns(weight, slice(8, 32)).items()}
    assert tensors["x.weight_packed"].dtype == np.int32
    assert tensors["x.weight_shape"].dtype == np.int64
    np.testing.assert_array_equal(decode(tensors, "x"), dequantize(weight)[:, 8:32].T)


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_the_formats_own_library_reads_and_writes_the_same(is_symmetric: bool) -> None:
    """Its compressor decompresses our tensors to our weight, and compresses that weight to our very tensors."""
    torch = pytest.importorskip("torch")
    base = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    from edgeprec.export.compressed_tensors_config import quantization_config

    quantizer = QuantizerSettings(method="rtn", is_symmetric=is_symmetric, has_signed_scales=False)
    weight = quantize(np.random.default_rng(3).standard_normal((64, 24)).astype(np.float32) + 0.3, quantizer).weight
    tensors = {name: torch.from_numpy(values) for name, values in pack_columns(weight, slice(0, 24)).items()}
    group = quantization_config(quantizer)["config_groups"]["group_0"]
    scheme = quantization.QuantizationScheme(**group)
    compressor = base.PackedQuantizationCompressor
    assert set(compressor.compression_param_names(scheme)) == set(tensors)
    plain = compressor.decompress(tensors, scheme)
    np.testing.assert_array_equal(plain["weight"].numpy(), dequantize(weight).T.astype(np.float16))
    again = compressor.compress(plain, scheme)
    assert again.keys() == tensors.keys()
    for name, values in again.items():
        assert values.dtype == tensors[name].dtype, name
        np.testing.assert_array_equal(values.numpy(), tensors[name].numpy(), err_msg=name)


def our_logits(checkpoint: Any, quantizer: QuantizerSettings, tokens: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return [T, V] of EdgePrec's own decoder in float32, its linears rounded by EdgePrec's quantizer."""
    import torch

    from edgeprec.export.distill_model import load_decoder

    decoder = load_decoder(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    for index, layer in enumerate(decoder.layers):
        for name in LINEARS:
            weight = quantize(checkpoint.linear(index, name).astype(np.float16), quantizer).weight
            layer.linears[name].weight.copy_(torch.from_numpy(dequantize(weight).T.copy()))
    hidden = decoder(torch.from_numpy(tokens)[None])
    logits: npt.NDArray[Any] = decoder.logits(hidden)[0].numpy()
    return logits


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
@pytest.mark.parametrize(
    ("family", "spec", "quantizer"),
    [
        ("llama", {"tied": True}, {}),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}, {}),
        ("mistral", {"tied": False}, {}),
        ("qwen2", {"tied": False}, {}),
        ("qwen3", {"tied": True, "head_dim": 32}, {"group_size": 32}),
        ("qwen3", {"tied": False, "hidden_size": 128, "intermediate_size": 128, "head_dim": 32}, {"group_size": 128}),
    ],
)  # fmt: skip
def test_transformers_computes_our_logits(
    checkpoints: ModuleType, tmp_path: Path, family: str, spec: dict[str, Any], quantizer: dict[str, Any]
) -> None:
    """transformers with compressed-tensors loads the folder as is and gives our INT4 target's logits."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    import torch

    source = checkpoints.make_checkpoint(tmp_path / "source", family, **{**WIDTHS, **spec})
    chosen = settings(**quantizer)
    output = export_compressed_tensors(source, tmp_path / "output", settings=chosen)
    model = transformers.AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    tokens = np.random.default_rng(7).integers(0, 301, 24)
    with torch.no_grad():
        theirs = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    positive = replace(chosen.quantizer, has_signed_scales=False)
    ours = our_logits(open_checkpoint(str(source)), positive, tokens)
    difference = np.abs(theirs - ours)
    assert difference.max() < 5e-4, f"max {difference.max()}, mean {difference.mean()}"  # norms and biases in FP16
    assert np.abs(ours).max() > 1.0


def test_calibrated_weights_are_those_of_a_bundle(checkpoints: ModuleType, tmp_path: Path) -> None:
    """The default quantizer sees the same activations as in an export of a bundle: with zero points, the same INT4."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    chosen = replace(settings(method="clip", is_symmetric=False), is_calibrated=False)
    output = export_compressed_tensors(source, tmp_path / "output", settings=chosen)
    bundle = export_bundle(source, tmp_path / "pair.edgeprec", draft="none", settings=chosen)
    theirs, ours = load_file(output / "model.safetensors"), load_file(bundle / "target/int4.safetensors")
    scales = [theirs[f"model.layers.1.mlp.{part}_proj.weight_scale"] for part in ("gate", "up")]
    np.testing.assert_array_equal(np.concatenate(scales).T, ours["layers.1.gate_up.scales"])


def test_scales_are_positive(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Kernels of servers meet no scale that other writers of the format do not make, whatever the settings say."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    output = export_compressed_tensors(source, tmp_path / "output", settings=settings(has_signed_scales=True))
    tensors = load_file(output / "model.safetensors")
    scales = [values for name, values in tensors.items() if name.endswith("weight_scale")]
    assert len(scales) == 2 * 7
    assert all((values > 0).all() for values in scales)


def test_a_server_of_another_user_can_read_it(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Weights have the rights of the files beside them."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    output = export_compressed_tensors(source, tmp_path / "output", settings=RTN)
    assert {path.stat().st_mode & 0o777 for path in output.iterdir()} == {0o644}


def test_embedding_head_norms_and_biases_stay_fp16(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Only the layers' linears are quantized, and config.json says so."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "qwen2", tied=False, dtype="fp16", **WIDTHS)
    output = export_compressed_tensors(source, tmp_path / "output", settings=RTN)
    tensors, original = load_file(output / "model.safetensors"), load_file(source / "model.safetensors")
    kept = {name for name in original if "_proj.weight" not in name}
    assert kept == {name for name in tensors if "_proj.weight" not in name}
    for name in kept:
        np.testing.assert_array_equal(tensors[name], original[name], err_msg=name)
    quantization = json.loads((output / "config.json").read_text())["quantization_config"]
    assert quantization["ignore"] == ["lm_head"]
    assert quantization["config_groups"]["group_0"]["weights"]["group_size"] == 32


def test_a_gguf_file_and_a_bundle_give_the_same_weights(
    checkpoints: ModuleType, make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    """Every source that export reads can be handed over."""
    spec = checkpoints.CheckpointSpec(family="llama", dtype="fp16", **WIDTHS)
    folder = checkpoints.make_checkpoint(tmp_path / "source", "llama", dtype="fp16", **WIDTHS)
    gguf = make_gguf(tmp_path / "model.gguf", spec)
    bundle = export_bundle(folder, tmp_path / "pair.edgeprec", settings=RTN)
    outputs = [
        export_compressed_tensors(source, tmp_path / f"out{index}", settings=RTN)
        for index, source in enumerate((folder, gguf, bundle))
    ]
    expected, *others = (load_file(output / "model.safetensors") for output in outputs)
    for tensors in others:
        assert tensors.keys() == expected.keys()
        for name, values in tensors.items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.filterwarnings("ignore")
def test_the_tokenizer_and_template_come_along(checkpoints: ModuleType, tmp_path: Path) -> None:
    """transformers finds the tokenizer, its special tokens, the chat template and where a text ends."""
    transformers = pytest.importorskip("transformers")
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    output = export_compressed_tensors(source, tmp_path / "output", settings=RTN)
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (source, output))
    assert after("Hello, hand-off.").input_ids == before("Hello, hand-off.").input_ids
    assert (after.bos_token, after.eos_token, after.pad_token) == (before.bos_token, before.eos_token, before.pad_token)
    turn = [{"role": "user", "content": "Why?"}]
    assert after.apply_chat_template(turn, tokenize=False) == before.apply_chat_template(turn, tokenize=False)
    generation = json.loads((output / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_text_begins_as_edgeprec_begins_it(checkpoints: ModuleType, tmp_path: Path, adds_bos: bool) -> None:
    """Servers know a tokenizer's habit from tokenizer.json alone, so that file gets what settings beside it said."""
    from tokenizers import Tokenizer

    source = open_checkpoint(str(checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)))
    files = source.tokenizer
    told = [
        TokenizerFiles(
            tokenizer_json=files.tokenizer_json,
            chat_template=None,
            generation={**files.generation, "add_bos_token": is_told},
        )
        for is_told in (not adds_bos, adds_bos)
    ]
    first = config_files(source.config, told[0], quantizer=None)["tokenizer.json"]
    turned = config_files(source.config, replace(told[1], tokenizer_json=first), quantizer=None)["tokenizer.json"]
    ids = Tokenizer.from_buffer(turned).encode("abc").ids
    assert ids == [0] * adds_bos + Tokenizer.from_buffer(turned).encode("abc", add_special_tokens=False).ids


def test_large_checkpoints_come_in_shards(
    checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards and their index hold exactly what one file would."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    whole = load_file(export_compressed_tensors(source, tmp_path / "whole", settings=RTN) / "model.safetensors")
    monkeypatch.setattr(ShardWriter.__init__, "__kwdefaults__", {"shard_bytes": 20_000})
    output = export_compressed_tensors(source, tmp_path / "output", settings=RTN)
    index = json.loads((output / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in output.glob("*.safetensors"))
    assert len(files) > 1
    assert files == sorted(set(index["weight_map"].values()))
    parts = {name: load_file(output / file)[name] for name, file in index["weight_map"].items()}
    assert parts.keys() == whole.keys()
    assert all(np.array_equal(values, whole[name]) for name, values in parts.items())
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in whole.values())
    assert hf_shards.SHARD_BYTES == 1 << 29
