"""Tiny random Hugging Face checkpoints: a folder that edgeprec and transformers both load.

Weights depend on (seed, tensor name) only, so dtype and sharding do not change the function beyond rounding. Tensors
are drawn and written one at a time: a checkpoint at real shapes costs the memory of its largest tensor.

Load it by path, as ``tests/export/conftest.py`` does (fixture ``checkpoints``), then
``checkpoints.make_checkpoint(tmp_path / "m", "qwen3", head_dim=16, tied=False, dtype="fp16", shards=2)``.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
Dtype = Literal["bf16", "fp16", "fp32"]
Shape = tuple[int, ...]

__all__ = ["CheckpointSpec", "make_checkpoint", "tensor_shapes", "tensor_values", "write_safetensors"]

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
STORED = {"bf16": ("BF16", 2, "bfloat16"), "fp16": ("F16", 2, "float16"), "fp32": ("F32", 4, "float32")}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """What a checkpoint is made of; ``head_dim`` None is hidden_size / num_heads."""

    family: Family = "llama"
    vocab_size: int = 301
    hidden_size: int = 48
    intermediate_size: int = 88
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int | None = None
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    max_positions: int = 128
    sliding_window: int | None = None
    tied: bool = True
    dtype: Dtype = "bf16"
    seed: int = 0

    @property
    def width(self) -> int:
        """Return the width of one head."""
        return self.head_dim or self.hidden_size // self.num_heads


def make_checkpoint(
    path: Path,
    family: Family = "llama",
    *,
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, npt.NDArray[Any]] | None = None,
    **spec: Any,
) -> Path:
    """Write a checkpoint into the folder ``path`` and return it.

    ``spec`` are fields of ``CheckpointSpec``. ``config`` overrides keys of config.json (None removes one); ``tensors``
    replaces or adds tensors by name.
    """
    made = CheckpointSpec(family=family, **spec)
    path.mkdir(parents=True, exist_ok=True)
    values = _config_json(made) | dict(config or {})
    _write_json(path / "config.json", {key: value for key, value in values.items() if value is not None})
    _write_json(path / "generation_config.json", {"bos_token_id": 0, "eos_token_id": [2, 0]})
    _write_tokenizer(path, made.vocab_size)
    _write_shards(path, made, shards, dict(tensors or {}))
    return path


def tensor_shapes(spec: CheckpointSpec) -> dict[str, Shape]:
    """Return every tensor's name and shape, in the order of a real checkpoint; linears are [out, in]."""
    d, v = spec.hidden_size, spec.vocab_size
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (v, d)}
    for index in range(spec.num_layers):
        for name, shape in _layer_shapes(spec).items():
            shapes[f"model.layers.{index}.{name}"] = shape
    shapes["model.norm.weight"] = (d,)
    if not spec.tied:
        shapes["lm_head.weight"] = (v, d)
    return shapes


def tensor_values(spec: CheckpointSpec, name: str, shape: Shape) -> npt.NDArray[np.float32]:
    """Return the float32 values of one tensor after rounding to ``spec.dtype``."""
    rng = np.random.default_rng([spec.seed, zlib.crc32(name.encode())])
    values = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("norm.weight"):
        values = 1.0 + 0.1 * values
    elif name.endswith("bias"):
        values *= 0.5
    else:
        values /= math.sqrt(shape[1])
    return _decode(_encode(values, spec.dtype), spec.dtype, shape)


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]], *, dtype: Dtype = "fp32") -> None:
    """Write arrays as one safetensors file in ``dtype``."""
    shapes = {name: values.shape for name, values in tensors.items()}
    _write_file(path, shapes, dtype, (np.asarray(values, np.float32) for values in tensors.values()))


def _layer_shapes(spec: CheckpointSpec) -> dict[str, Shape]:
    d, f, head = spec.hidden_size, spec.intermediate_size, spec.width
    q, kv = spec.num_heads * head, spec.num_kv_heads * head
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (d,),
        "mlp.down_proj.weight": (d, f),
        "mlp.gate_proj.weight": (f, d),
        "mlp.up_proj.weight": (f, d),
        "post_attention_layernorm.weight": (d,),
    }
    for name, size in (("q", q), ("k", kv), ("v", kv)):
        shapes[f"self_attn.{name}_proj.weight"] = (size, d)
        if spec.family == "qwen2":
            shapes[f"self_attn.{name}_proj.bias"] = (size,)
    shapes["self_attn.o_proj.weight"] = (d, q)
    if spec.family == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    return shapes


def _config_json(spec: CheckpointSpec) -> dict[str, Any]:
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[spec.family]],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.width if spec.family == "qwen3" else spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": dict(spec.rope_scaling) if spec.rope_scaling else None,
        "max_position_embeddings": spec.max_positions,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": STORED[spec.dtype][2],
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    if spec.family in ("llama", "qwen3"):
        values["attention_bias"] = False
    if spec.sliding_window is not None:
        values["sliding_window"] = spec.sliding_window
    return values


def _write_tokenizer(path: Path, vocab_size: int) -> None:
    tiny = _sibling("tiny_tokenizer")
    tiny.save_tokenizer(path, vocab_size=vocab_size)
    _write_json(path / "tokenizer_config.json", tiny.tokenizer_config())


def _sibling(name: str) -> ModuleType:
    """Import another factory; they lie outside every package, so by path."""
    full_name = f"edgeprec_factories_{name}"
    if full_name not in sys.modules:
        found = spec_from_file_location(full_name, Path(__file__).with_name(f"{name}.py"))
        assert found is not None
        assert found.loader is not None
        sys.modules[full_name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[full_name])
    return sys.modules[full_name]


def _write_shards(path: Path, spec: CheckpointSpec, shards: int, replaced: dict[str, npt.NDArray[Any]]) -> None:
    shapes = tensor_shapes(spec) | {name: values.shape for name, values in replaced.items()}
    names = list(shapes)
    if shards == 1:
        _write_shard(path / "model.safetensors", spec, names, shapes, replaced)
        return
    where: dict[str, str] = {}
    for index, part in enumerate(np.array_split(names, shards)):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        _write_shard(path / file, spec, [str(name) for name in part], shapes, replaced)
        where |= {str(name): file for name in part}
    _write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})


def _write_shard(
    path: Path,
    spec: CheckpointSpec,
    names: Sequence[str],
    shapes: Mapping[str, Shape],
    replaced: Mapping[str, npt.NDArray[Any]],
) -> None:
    values = (
        np.asarray(replaced[name], np.float32) if name in replaced else tensor_values(spec, name, shapes[name])
        for name in names
    )
    _write_file(path, {name: shapes[name] for name in names}, spec.dtype, values)


def _write_file(path: Path, shapes: Mapping[str, Shape], dtype: Dtype, values: Iterator[npt.NDArray[Any]]) -> None:
    code, size, _ = STORED[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + size * math.prod(shape)
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in values:
            file.write(_encode(array, dtype))


def _encode(values: npt.NDArray[np.float32], dtype: Dtype) -> bytes:
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
        return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16).tobytes()
    return values.astype(STORED[dtype][2]).tobytes()


def _decode(data: bytes, dtype: Dtype, shape: Shape) -> npt.NDArray[np.float32]:
    if dtype == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, STORED[dtype][2]).astype(np.float32).reshape(shape)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")
