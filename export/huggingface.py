"""Open a Hugging Face checkpoint: a folder of safetensors, or a hub id that is downloaded into one."""

from __future__ import annotations

import re
from pathlib import Path

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import FileCheckpoint
from edgeprec.export.checkpoint_weights import CheckpointWeights
from edgeprec.export.hf_config import read_model_config
from edgeprec.export.hf_tokenizer import TOKENIZER_FILES, read_hf_tokenizer
from edgeprec.export.json_object import JsonObject, read_json_object
from edgeprec.export.safetensors_file import SafetensorsSource

__all__ = ["HF_ROLE_NAMES", "find_shards", "open_huggingface"]

_INDEX = "model.safetensors.index.json"
_LAYER = "model.layers.{layer}."
HF_ROLE_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "input_norm": _LAYER + "input_layernorm.weight",
    "post_attention_norm": _LAYER + "post_attention_layernorm.weight",
    **{role: f"{_LAYER}self_attn.{role}_proj.weight" for role in ("q", "k", "v", "o")},
    **{f"{role}_bias": f"{_LAYER}self_attn.{role}_proj.bias" for role in ("q", "k", "v")},
    **{f"{role}_norm": f"{_LAYER}self_attn.{role}_norm.weight" for role in ("q", "k")},
    **{role: f"{_LAYER}mlp.{role}_proj.weight" for role in ("gate", "up", "down")},
}
_HARMLESS = re.compile(r"rotary_emb\.inv_freq$|^lm_head\.weight$")  # a table we compute; a head that the tie overrides


def open_huggingface(folder: Path, *, name: str | None = None) -> FileCheckpoint:
    """Open the checkpoint in ``folder``; reads headers and tokenizer, no weights.

    Raises:
        ConfigError: a file is missing, damaged or truncated, a tensor is missing, of another shape or unknown, or the
            architecture is not supported.
    """
    raw = read_json_object(folder / "config.json")
    shards = find_shards(folder)
    source = SafetensorsSource.open(shards, origin=str(folder))
    config = read_model_config(raw, has_head="lm_head.weight" in source.names)
    weights = CheckpointWeights(config, source, HF_ROLE_NAMES)
    weights.refuse_unknown(_HARMLESS)
    beside = [folder / file for file in ("config.json", _INDEX, *TOKENIZER_FILES)]
    return FileCheckpoint(
        name=name or folder.resolve().name,
        config=config,
        weights=weights,
        tokenizer=read_hf_tokenizer(folder, raw, config),
        files=tuple(path for path in [*beside, *shards] if path.exists()),
        notes=_window_notes(raw, config),
    )


def find_shards(folder: Path) -> list[Path]:
    """Return the weight files of a checkpoint's folder.

    Raises:
        ConfigError: there are none, or it is not clear which ones count.
    """
    index = folder / _INDEX
    if index.exists():
        return [folder / file for file in _indexed_files(index)]
    single = folder / "model.safetensors"
    found = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise ConfigError(f"{folder} has {len(found)} safetensors files and no {_INDEX}, which names the ones to read")
    has_pickle = any(folder.glob("*.bin")) or any(folder.glob("*.pth"))
    advice = "save the checkpoint as safetensors" if has_pickle else "fetch the whole checkpoint"
    raise ConfigError(f"{folder} has no weights: expected model.safetensors or {_INDEX}, {advice}")


def _indexed_files(index: Path) -> list[str]:
    where = read_json_object(index).child("weight_map")
    files = list(where.values.values()) if where is not None else []
    if not files or not all(isinstance(file, str) and Path(file).name == file for file in files):
        raise ConfigError(f"{index} has no usable weight_map, expected one of tensor name to file name")
    return sorted(set(files))


def _window_notes(raw: JsonObject, config: ModelConfig) -> tuple[str, ...]:
    full_tokens = raw.integer("max_position_embeddings")
    if config.max_positions == full_tokens:
        return ()
    window = config.max_positions
    return (f"the context is limited to the sliding window of {window} tokens, the model was made for {full_tokens}",)
