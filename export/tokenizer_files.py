"""What a bundle needs to turn text into ids and back: tokenizer, chat template and the ids that begin and end a text.

``generation.json`` holds: bos_token_id and bos_token (or null), eos_token_ids (the main one first) and eos_token,
pad_token_id, add_bos_token (prepend it to ids encoded without special tokens), max_positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from edgeprec.errors import ConfigError

__all__ = ["SpecialTokens", "TokenizerFiles", "build_tokenizer_files", "parse_tokenizer"]

_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>")
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The contents of ``tokenizer.json``, ``chat_template.jinja`` (None = no such file) and ``generation.json``."""

    tokenizer_json: bytes
    chat_template: str | None
    generation: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """What a checkpoint says of its special tokens. ``add_bos`` None = the tokenizer's own habit decides."""

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # the main one first
    pad_token_id: int | None
    add_bos: bool | None


def parse_tokenizer(tokenizer_json: bytes, *, origin: str) -> Tokenizer:
    """Return the tokenizer a file describes.

    Raises:
        ConfigError: the bytes are not a tokenizer.
    """
    try:
        return Tokenizer.from_buffer(tokenizer_json)
    except ValueError as error:
        raise ConfigError(f"{origin} is not a tokenizer ({error}): fetch the checkpoint again") from error


def build_tokenizer_files(
    tokenizer_json: bytes,
    *,
    chat_template: str | None,
    special: SpecialTokens,
    vocab_size: int,
    max_positions: int,
    origin: str,
) -> TokenizerFiles:
    """Put the files of a bundle together and complete the ids that end a text.

    Every end-of-text token of the vocabulary ends a reply, and every end-of-turn token that the chat template writes:
    a checkpoint's own list often has only one of them.

    Raises:
        ConfigError: the tokenizer is damaged, or has an id for which the embedding has no row.
    """
    tokenizer = parse_tokenizer(tokenizer_json, origin=origin)
    _check_ids(tokenizer, special, vocab_size=vocab_size, origin=origin)
    eos = _unique([*special.eos_token_ids, *_implied_ends(tokenizer, chat_template)])
    generation = {
        "bos_token_id": special.bos_token_id,
        "bos_token": _text(tokenizer, special.bos_token_id),
        "eos_token_ids": eos,
        "eos_token": _text(tokenizer, eos[0] if eos else None),
        "pad_token_id": special.pad_token_id,
        "add_bos_token": _adds_bos(tokenizer, special),
        "max_positions": max_positions,
    }
    return TokenizerFiles(tokenizer_json=tokenizer_json, chat_template=chat_template, generation=generation)


def _check_ids(tokenizer: Tokenizer, special: SpecialTokens, *, vocab_size: int, origin: str) -> None:
    named = {f"special token {index}": index for index in (special.bos_token_id, *special.eos_token_ids) if index}
    ids = tokenizer.get_vocab() | named
    token, largest = max(ids.items(), key=lambda item: item[1], default=("", -1))
    if largest >= vocab_size:
        raise ConfigError(
            f"{origin} gives token {token!r} the id {largest}, expected less than the embedding's {vocab_size} rows: "
            "tokenizer and weights belong to different models"
        )


def _implied_ends(tokenizer: Tokenizer, chat_template: str | None) -> list[int]:
    ends = [*_END_OF_TEXT, *(token for token in _END_OF_TURN if token in (chat_template or ""))]
    special_ids = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return [index for index in map(tokenizer.token_to_id, ends) if index in special_ids]


def _adds_bos(tokenizer: Tokenizer, special: SpecialTokens) -> bool:
    if special.bos_token_id is None:
        return False
    if special.add_bos is not None:
        return special.add_bos
    return (
        tokenizer.encode("a").ids[:1] == [special.bos_token_id] != tokenizer.encode("a", add_special_tokens=False).ids
    )


def _text(tokenizer: Tokenizer, token_id: int | None) -> str | None:
    return None if token_id is None else tokenizer.id_to_token(token_id)


def _unique(ids: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(ids))
