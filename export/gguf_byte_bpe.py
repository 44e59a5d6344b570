"""Describe a GGUF file's byte-level BPE (``tokenizer.ggml.model`` = gpt2) as parts of a ``tokenizer.json``.

How text is split before merging is not in the file; ``tokenizer.ggml.pre`` only names it, and the table below is what
the named models' own tokenizers do.
"""

from __future__ import annotations

from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.export.gguf_vocab import GgufVocab

__all__ = ["PRE_TOKENIZERS", "byte_bpe_parts"]

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_DIGITS = r"\p{N}{1,3}"
_QWEN2_DIGITS = r"\p{N}"


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


_LLAMA3 = [_split(_WORDS % _LLAMA3_DIGITS)]
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": [_split(_WORDS % _QWEN2_DIGITS)],
    "gpt-2": [],
    "default": [],
}
"""What runs before the byte-level step, by ``tokenizer.ggml.pre``."""

_WITH_WORD_SPLIT = ("smollm", "gpt-2", "default")  # the byte-level step itself splits into GPT-2's words


def byte_bpe_parts(vocab: GgufVocab) -> dict[str, Any]:
    """Return normalizer, pre_tokenizer, decoder and model.

    Raises:
        ConfigError: the way text is split is not known, or the vocabulary is damaged.
    """
    pre = vocab.get("pre", "default")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ConfigError(f"{vocab.origin} splits text as {pre!r}, which is not supported, expected one of: {known}")
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": bool(vocab.get("add_space_prefix", False)),
        "trim_offsets": True,
        "use_regex": pre in _WITH_WORD_SPLIT,
    }
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*PRE_TOKENIZERS[pre], byte_level]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": PRE_TOKENIZERS[pre] is _LLAMA3,
            "vocab": vocab.ids(),
            "merges": vocab.merges(),
        },
    }
