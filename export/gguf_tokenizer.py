"""Write the ``tokenizer.json`` of a GGUF file out of its metadata, with chat template and special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.gguf_byte_bpe import byte_bpe_parts
from edgeprec.export.gguf_file import GgufFile
from edgeprec.export.gguf_sentencepiece import sentencepiece_parts
from edgeprec.export.gguf_vocab import GgufVocab
from edgeprec.export.tokenizer_files import SpecialTokens, TokenizerFiles, build_tokenizer_files

__all__ = ["read_gguf_tokenizer"]

_MODELS: dict[str, Callable[[GgufVocab], dict[str, Any]]] = {"gpt2": byte_bpe_parts, "llama": sentencepiece_parts}
_UNNAMED_SPLIT_NOTE = (
    "the file does not say how its tokenizer splits text; GPT-2's way is used, and numbers or punctuation may be "
    "split otherwise than in the original"
)


def read_gguf_tokenizer(file: GgufFile, config: ModelConfig) -> tuple[TokenizerFiles, tuple[str, ...]]:
    """Return the tokenizer files and what the user should know of them.

    Raises:
        ConfigError: the tokenizer is of a kind that is not supported, or its lists are damaged.
    """
    vocab = GgufVocab(file)
    kind = vocab.get("model")
    if not isinstance(kind, str) or kind not in _MODELS:
        known = ", ".join(_MODELS)
        raise ConfigError(f"{vocab.origin} is of model {kind!r}, which is not supported, expected one of: {known}")
    special = _special_tokens(vocab)
    template = file.metadata.get("tokenizer.chat_template")
    files = build_tokenizer_files(
        _tokenizer_json(vocab, _MODELS[kind](vocab), special),
        chat_template=template if isinstance(template, str) else None,
        special=special,
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        origin=vocab.origin,
    )
    is_unnamed = kind == "gpt2" and vocab.get("pre", "default") == "default"
    return files, (_UNNAMED_SPLIT_NOTE,) if is_unnamed else ()


def _special_tokens(vocab: GgufVocab) -> SpecialTokens:
    ends = [vocab.token_id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    return SpecialTokens(
        bos_token_id=vocab.token_id("bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(index for index in ends if index is not None)),
        pad_token_id=vocab.token_id("padding_token_id"),
        add_bos=bool(vocab.get("add_bos_token", _adds_bos_by_default(vocab))),
    )


def _adds_bos_by_default(vocab: GgufVocab) -> bool:
    """Return what files mean that leave ``add_bos_token`` out: SentencePiece and Llama 3 begin with it."""
    return vocab.get("model") == "llama" or vocab.get("pre") in ("llama-bpe", "llama3", "llama-v3")


def _tokenizer_json(vocab: GgufVocab, parts: dict[str, Any], special: SpecialTokens) -> bytes:
    values = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocab.added_tokens(),
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": _post_processor(vocab, special),
        "decoder": parts["decoder"],
        "model": parts["model"],
    }
    return json.dumps(values, ensure_ascii=False, indent=1).encode("utf-8")


def _post_processor(vocab: GgufVocab, special: SpecialTokens) -> dict[str, Any] | None:
    if not special.add_bos or special.bos_token_id is None:
        return None
    bos = vocab.token(special.bos_token_id)
    begin = {"SpecialToken": {"id": bos, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, begin, second],
        "special_tokens": {bos: {"id": bos, "ids": [special.bos_token_id], "tokens": [bos]}},
    }
