"""Describe a GGUF file's SentencePiece BPE (``tokenizer.ggml.model`` = llama) as parts of a ``tokenizer.json``.

SentencePiece merges the neighbours whose union has the highest score. A tokenizer file lists merges by rank instead, so
every way to split a piece into two pieces becomes a merge, ordered by the score of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgeprec.export.gguf_vocab import GgufVocab, TokenKind

__all__ = ["sentencepiece_parts"]

_SPACE = "▁"
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}


def sentencepiece_parts(vocab: GgufVocab) -> dict[str, Any]:
    """Return normalizer, pre_tokenizer, decoder and model.

    Raises:
        ConfigError: the vocabulary is damaged.
    """
    has_prefix = bool(vocab.get("add_space_prefix", True))
    unknown = vocab.token(vocab.token_id("unknown_token_id") or 0)
    normalizers = [{"type": "Prepend", "prepend": _SPACE}, _REPLACE] if has_prefix else [_REPLACE]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab.ids(),
            "merges": _merges(vocab),
        },
    }


def _merges(vocab: GgufVocab) -> list[list[str]]:
    scores = vocab.scores()
    pieces = {token: scores[index] for index, token, kind in vocab.used() if kind == TokenKind.NORMAL}
    ranked = sorted((-pieces[left + right], len(left), left, right) for left, right in _splits(pieces))
    return [[left, right] for _, _, left, right in ranked]


def _splits(pieces: dict[str, float]) -> Iterator[tuple[str, str]]:
    for piece in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                yield left, right
