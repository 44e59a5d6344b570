"""Tiny GGUF files with the weights of a tiny checkpoint, written as llama.cpp's converter writes them.

``make_gguf(path, checkpoints.CheckpointSpec(...), quantization="Q4_1")``: rows of query and key are reordered for the
Llama architecture; vectors stay F32. Widths must be multiples of 32 for the quantized types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

__all__ = ["BYTE_TOKENS", "bpe_metadata", "gguf_name", "make_gguf", "permute_rows", "sentencepiece_metadata"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTE_TOKENS = tuple(f"<0x{value:02X}>" for value in range(256))
_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    **{f"self_attn.{role}_proj.{kind}": f"attn_{role}.{kind}" for role in "qkv" for kind in ("weight", "bias")},
    **{f"mlp.{role}_proj.weight": f"ffn_{role}.weight" for role in ("gate", "up", "down")},
}
_MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def make_gguf(
    path: Path,
    spec: Any,
    weights: Mapping[str, npt.NDArray[np.float32]],
    *,
    quantization: str = "F32",
    tokenizer: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, npt.NDArray[Any] | None] | None = None,
    raw_tensors: Mapping[str, tuple[npt.NDArray[np.uint8], str]] | None = None,
) -> Path:
    """Write a file and return its path.

    ``spec`` is a CheckpointSpec and ``weights`` its tensors by Hugging Face name. ``tokenizer`` and ``metadata`` are
    metadata keys; a value None drops the key. ``tensors`` replaces, adds or (None) drops tensors by GGUF name.
    ``raw_tensors`` replaces some by stored bytes [rows, row_bytes] of a type.
    """
    arch = "llama" if spec.family == "mistral" else spec.family
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**_model_metadata(spec, arch), **tokenizer, **(metadata or {})}.items():
        _add(writer, key, value)
    values = {gguf_name(name): _converted(name, array, spec, arch) for name, array in weights.items()} | dict(
        tensors or {}
    )
    for name, (raw, kind) in (raw_tensors or {}).items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        values[name] = None
    for name, array in values.items():
        if array is not None:
            _add_tensor(writer, name, array, quantization if array.ndim > 1 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[rest]}"


def permute_rows(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Put the two halves of every rotary pair side by side, head by head: what a converter does for Llama."""
    half = len(values) // heads // 2
    order = [head * 2 * half + part * half + row for head in range(heads) for row in range(half) for part in range(2)]
    return values[order]


def bpe_metadata(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], *, pre: str, specials: int
) -> dict[str, Any]:
    """Return the metadata of a byte-level BPE whose first ``specials`` tokens are control tokens."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [CONTROL] * specials + [NORMAL] * (len(tokens) - specials),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }


def sentencepiece_metadata(scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the metadata of a SentencePiece BPE: unknown, begin, end, the bytes, then ``scores``' pieces."""
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *scores]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(scores.values()),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(scores),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _model_metadata(spec: Any, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.block_count": spec.num_layers,
        f"{arch}.context_length": spec.max_positions,
        f"{arch}.embedding_length": spec.hidden_size,
        f"{arch}.feed_forward_length": spec.intermediate_size,
        f"{arch}.attention.head_count": spec.num_heads,
        f"{arch}.attention.head_count_kv": spec.num_kv_heads,
        f"{arch}.attention.key_length": spec.width,
        f"{arch}.attention.value_length": spec.width,
        f"{arch}.attention.layer_norm_rms_epsilon": spec.rms_norm_eps,
        f"{arch}.rope.freq_base": spec.rope_theta,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _converted(name: str, values: npt.NDArray[np.float32], spec: Any, arch: str) -> npt.NDArray[np.float32]:
    if arch != "llama" or not any(f"self_attn.{role}_proj." in name for role in "qk"):
        return values
    return permute_rows(values, spec.num_heads if ".q_proj." in name else spec.num_kv_heads)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: npt.NDArray[np.float32], quantization: str) -> None:
    kind = gguf.GGMLQuantizationType[quantization]
    if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        writer.add_tensor(name, values.astype({"F32": np.float32, "F16": np.float16}[quantization]))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
