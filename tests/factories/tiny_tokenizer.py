"""A byte-level BPE tokenizer small enough to read, with ChatML specials; the vocabulary is cut to any width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["CHAT_TEMPLATE", "MERGES", "SPECIALS", "build_tokenizer", "byte_alphabet", "tokenizer_config"]

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("Ġ", "a"),
    ("in", "g"),
    ("an", "d"),
    ("Ġ", "and"),
    ("o", "n"),
    ("1", "2"),
    ("'", "s"),
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """Return the 256 byte characters, the printable ASCII ones first."""
    return sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda char: (ord(char) > 126 and char != "Ġ", ord(char)))


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer of at most ``vocab_size`` ids: specials, then bytes, then merges; the tail is cut away."""
    tokens = [*SPECIALS, *byte_alphabet(), *(left + right for left, right in MERGES)][:vocab_size]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [pair for pair in MERGES if {pair[0], pair[1], pair[0] + pair[1]} <= vocab.keys()]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    """Return what stands in ``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }


def save_tokenizer(path: Path, *, vocab_size: int) -> None:
    """Write ``tokenizer.json`` into the folder ``path``."""
    build_tokenizer(vocab_size).save(str(path / "tokenizer.json"))
