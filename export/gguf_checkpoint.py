"""Open a GGUF file as a checkpoint: any quantization the package ``gguf`` can undo."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import FileCheckpoint
from edgeprec.export.checkpoint_weights import CheckpointWeights
from edgeprec.export.gguf_config import context_tokens, read_gguf_config
from edgeprec.export.gguf_file import GgufFile, read_gguf_file
from edgeprec.export.gguf_rope import recover_rope_scaling
from edgeprec.export.gguf_tensors import GgufTensors
from edgeprec.export.gguf_tokenizer import read_gguf_tokenizer

__all__ = ["open_gguf"]

_ROPE_FREQS = "rope_freqs.weight"
_LAYER = "blk.{layer}."
_ROLE_NAMES = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "input_norm": _LAYER + "attn_norm.weight",
    "post_attention_norm": _LAYER + "ffn_norm.weight",
    "o": _LAYER + "attn_output.weight",
    **{role: f"{_LAYER}attn_{role}.weight" for role in ("q", "k", "v")},
    **{f"{role}_bias": f"{_LAYER}attn_{role}.bias" for role in ("q", "k", "v")},
    **{f"{role}_norm": f"{_LAYER}attn_{role}_norm.weight" for role in ("q", "k")},
    **{role: f"{_LAYER}ffn_{role}.weight" for role in ("gate", "up", "down")},
}
_HARMLESS = re.compile(rf"^{re.escape(_ROPE_FREQS)}$|\.rope_freqs\.weight$|\.attn_rot_embd\.weight$")


def open_gguf(path: Path) -> FileCheckpoint:
    """Open the GGUF file at ``path``; reads its head, no weights.

    Raises:
        ConfigError: the file is damaged or truncated, a tensor is missing, of another shape or unknown, or the
            architecture, the tokenizer or the rope scaling is not supported.
    """
    file = read_gguf_file(path)
    config = read_gguf_config(file)
    pairs_head_dim = config.head_dim if config.family == "llama" else None
    source = GgufTensors(file, rotary_pairs_head_dim=pairs_head_dim)
    config = _with_rope_scaling(config, source)
    weights = CheckpointWeights(config, source, _ROLE_NAMES)
    weights.refuse_unknown(_HARMLESS)
    tokenizer, tokenizer_notes = read_gguf_tokenizer(file, config)
    return FileCheckpoint(
        name=path.stem,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        files=(path,),
        notes=(*_window_notes(file, config), *tokenizer_notes),
    )


def _with_rope_scaling(config: ModelConfig, source: GgufTensors) -> ModelConfig:
    if _ROPE_FREQS not in source.names:
        return config
    divisors = source.read_rows(_ROPE_FREQS, 0, source.shape(_ROPE_FREQS)[0])
    if len(divisors) != config.head_dim // 2:
        raise ConfigError(f"tensor {_ROPE_FREQS} has {len(divisors)} values, expected {config.head_dim // 2}")
    scaling = recover_rope_scaling(divisors, rope_theta=config.rope_theta, origin=source.origin)
    return replace(config, rope_scaling=scaling)


def _window_notes(file: GgufFile, config: ModelConfig) -> tuple[str, ...]:
    full_tokens = context_tokens(file)
    if config.max_positions == full_tokens:
        return ()
    window = config.max_positions
    return (f"the context is limited to the sliding window of {window} tokens, the model was made for {full_tokens}",)
