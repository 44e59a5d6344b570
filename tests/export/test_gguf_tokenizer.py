"""tokenizer.json from GGUF metadata: the same ids as the tokenizer the metadata was taken from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.export.gguf_byte_bpe import PRE_TOKENIZERS

SCORES = {
    **{letter: -100.0 - index for index, letter in enumerate("▁abcdehilnorstw")},
    "▁a": -1.0,
    "th": -2.0,
    "▁th": -3.0,
    "the": -3.5,
    "▁the": -4.0,
    "re": -5.0,
    "he": -6.0,
    "er": -7.0,
    "▁▁": -8.0,
    "her": -9.0,
    "and": -10.0,
    "nd": -11.0,
}


@pytest.fixture
def spec(checkpoints: ModuleType) -> Any:
    """Return a small Llama with rows for every token of these tests."""
    return checkpoints.CheckpointSpec(hidden_size=16, num_heads=2, num_kv_heads=1, num_layers=1, intermediate_size=16)


@pytest.fixture
def open_with(make_gguf: Callable[..., Path], tmp_path: Path, spec: Any) -> Callable[..., Checkpoint]:
    """Return ``open_with(pre, **metadata)``: a checkpoint whose file has that tokenizer."""

    def opened(pre: str = "smollm", **options: Any) -> Checkpoint:
        return open_checkpoint(str(make_gguf(tmp_path / "m.gguf", spec, pre=pre, **options)))

    return opened


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """Return the tokenizer a bundle would hold."""
    return Tokenizer.from_buffer(checkpoint.tokenizer.tokenizer_json)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's 2024!  x", ["it", "'s", " 2024", "!", " ", " x"]),
        ("smollm", "it's 2024!  x", ["it", "'s", " ", "2", "0", "2", "4", "!", " ", " x"]),
        ("llama-bpe", "it's 2024!  x", ["it", "'s", " ", "202", "4", "!", " ", " x"]),
        ("qwen2", "it's 2024!  x", ["it", "'s", " ", "2", "0", "2", "4", "!", " ", " x"]),
        ("gpt-2", "WE'LL (go)\n\nnow", ["WE", "'", "LL", " (", "go", ")", "\n", "\n", "now"]),
        ("llama-bpe", "WE'LL (go)\n\nnow", ["WE", "'LL", " (", "go", ")\n\n", "now"]),
        ("qwen2", "WE'LL (go)\n\nnow", ["WE", "'LL", " (", "go", ")\n\n", "now"]),
        ("smollm", "a1b \u0661", ["a", "1", "b", " ", "\u0661"]),
    ],
)
def test_text_is_split_as_the_named_tokenizer_does(
    open_with: Callable[..., Checkpoint], pre: str, text: str, words: list[str]
) -> None:
    """Digits, contractions, punctuation and line ends fall apart as each published tokenizer has it."""
    pre_tokenizer = tokenizer_of(open_with(pre)).pre_tokenizer
    assert pre_tokenizer is not None
    spans = [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]
    assert spans == words


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_any_text_survives(open_with: Callable[..., Checkpoint], pre: str) -> None:
    """Bytes in, the same bytes out, with specials found in the text."""
    tokenizer = tokenizer_of(open_with(pre))
    for text in ("the cat and 12 dogs", "  naïve —\t日本語 🙂\r\n\n", "<|im_start|>user\nthe<|im_end|>\n", "½ x² ١٢"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False).ids == [2]


def test_ids_equal_the_original_tokenizers(
    open_with: Callable[..., Checkpoint], tiny_tokenizer: ModuleType, spec: Any
) -> None:
    """A tokenizer that went through GGUF metadata gives the ids it gave before."""
    original = tiny_tokenizer.build_tokenizer(spec.vocab_size)
    tokenizer = tokenizer_of(open_with("gpt-2"))

    @settings(max_examples=150, deadline=None)
    @given(text=st.text(max_size=40))
    def check(text: str) -> None:
        assert tokenizer.encode(text).ids == original.encode(text).ids

    check()


def test_every_id_keeps_its_token(open_with: Callable[..., Checkpoint], tiny_tokenizer: ModuleType, spec: Any) -> None:
    """Ids are the file's, and control tokens are special while others are not."""
    tokenizer = tokenizer_of(open_with("smollm"))
    assert tokenizer.get_vocab() == tiny_tokenizer.build_tokenizer(spec.vocab_size).get_vocab()
    added = {index: token.special for index, token in tokenizer.get_added_tokens_decoder().items()}
    assert added == {0: True, 1: True, 2: True}


def test_kinds_of_tokens(open_with: Callable[..., Checkpoint], tiny_tokenizer: ModuleType, spec: Any) -> None:
    """User-defined tokens are found whole but stay visible; padding entries are no tokens at all."""
    size = tiny_tokenizer.build_tokenizer(spec.vocab_size).get_vocab_size()
    tokens = [*_tokens(tiny_tokenizer, spec), "<tool>", "[PAD1]"]
    kinds = [3] * 3 + [1] * (size - 3) + [4, 5]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    tokenizer = tokenizer_of(open_with("gpt-2", metadata=metadata))
    assert tokenizer.encode("<tool>").ids == [size]
    assert tokenizer.decode([size], skip_special_tokens=True) == "<tool>"
    assert tokenizer.id_to_token(size + 1) is None


def test_a_token_with_two_ids_is_refused(
    open_with: Callable[..., Checkpoint], tiny_tokenizer: ModuleType, spec: Any
) -> None:
    """A vocabulary that lists a token twice cannot be written faithfully."""
    tokens = _tokens(tiny_tokenizer, spec)
    with pytest.raises(ConfigError, match="has two ids, 40 and 41"):
        open_with("gpt-2", metadata={"tokenizer.ggml.tokens": [*tokens[:41], tokens[40], *tokens[42:]]})


def test_an_unnamed_split_is_noted(open_with: Callable[..., Checkpoint]) -> None:
    """Where the file does not name its way to split text, GPT-2's is used and the user is told."""
    assert any("GPT-2" in note for note in open_with("default").notes)
    assert any("GPT-2" in note for note in open_with(metadata={"tokenizer.ggml.pre": None}).notes)
    assert open_with("smollm").notes == ()


@pytest.mark.parametrize(
    ("pre", "metadata", "expected"),
    [
        ("smollm", {}, False),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, False),
        ("smollm", {"tokenizer.ggml.add_bos_token": True}, True),
        ("llama-bpe", {"tokenizer.ggml.bos_token_id": None}, False),
    ],
)
def test_begin_token(open_with: Callable[..., Checkpoint], pre: str, metadata: dict[str, Any], expected: bool) -> None:
    """The file's flag decides, else the habit of its kind; the tokenizer itself does the same."""
    checkpoint = open_with(pre, metadata=metadata)
    assert checkpoint.tokenizer.generation["add_bos_token"] is expected
    tokenizer = tokenizer_of(checkpoint)
    plain = tokenizer.encode("the", add_special_tokens=False).ids
    assert tokenizer.encode("the").ids == ([0, *plain] if expected else plain)


def test_end_tokens_and_template(open_with: Callable[..., Checkpoint]) -> None:
    """End of turn counts beside end of sequence, and the chat template is carried over."""
    metadata = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": "{{ x }}<|im_end|>"}
    files = open_with(metadata=metadata).tokenizer
    assert files.chat_template == "{{ x }}<|im_end|>"
    assert files.generation["eos_token_ids"] == [0, 2]
    files = open_with(metadata={"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1}).tokenizer
    assert files.generation["eos_token_ids"] == [0, 1]
    assert files.chat_template is None


def test_sentencepiece_merges_like_sentencepiece(
    open_with: Callable[..., Checkpoint], gguf_files: ModuleType, checkpoints: ModuleType
) -> None:
    """Ids equal those of the algorithm itself: join the neighbours with the best score until none is left."""
    tokenizer = tokenizer_of(open_with(tokenizer=gguf_files.sentencepiece_metadata(SCORES)))
    vocab = tokenizer.get_vocab()

    @settings(max_examples=150, deadline=None)
    @given(text=st.text(alphabet="abcdehilnorstw é🙂", max_size=24))
    def check(text: str) -> None:
        expected = [vocab[piece] for piece in _sentencepiece(text, vocab)]
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected
        assert tokenizer.decode(expected) == text

    check()


def test_sentencepiece_specials(open_with: Callable[..., Checkpoint], gguf_files: ModuleType) -> None:
    """Texts begin with the begin token unless the file says no, and control tokens are found in text."""
    metadata = gguf_files.sentencepiece_metadata(SCORES)
    checkpoint = open_with(tokenizer=metadata)
    tokenizer = tokenizer_of(checkpoint)
    assert checkpoint.tokenizer.generation["add_bos_token"] is True
    assert tokenizer.encode("a").ids == [1, tokenizer.token_to_id("▁a")]
    assert tokenizer.encode("</s>", add_special_tokens=False).ids == [2]
    plain = open_with(tokenizer=metadata | {"tokenizer.ggml.add_space_prefix": False})
    assert tokenizer_of(plain).encode("a", add_special_tokens=False).tokens == ["a"]


@pytest.mark.parametrize("key", ["unknown_token_id", "bos_token_id"])
def test_special_ids_beyond_the_vocabulary(
    open_with: Callable[..., Checkpoint], gguf_files: ModuleType, key: str
) -> None:
    """A special id without a token is refused with both numbers."""
    metadata = gguf_files.sentencepiece_metadata(SCORES) | {f"tokenizer.ggml.{key}": 300}
    with pytest.raises(ConfigError, match=r"300, but has 286 tokens"):
        open_with(tokenizer=metadata)


def test_file_is_deterministic(open_with: Callable[..., Checkpoint]) -> None:
    """The same metadata gives the same bytes, valid JSON in UTF-8."""
    first, second = open_with().tokenizer.tokenizer_json, open_with().tokenizer.tokenizer_json
    assert first == second
    assert json.loads(first.decode("utf-8"))["model"]["type"] == "BPE"


def _tokens(tiny_tokenizer: ModuleType, spec: Any) -> list[str]:
    vocab = tiny_tokenizer.build_tokenizer(spec.vocab_size).get_vocab()
    return sorted(vocab, key=lambda token: vocab[token])


def _sentencepiece(text: str, vocab: dict[str, int]) -> list[str]:
    """Split ``text`` by the definition of SentencePiece BPE; unknown characters become bytes."""
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joined = [
            (SCORES[left + right], -i)
            for i, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in SCORES
        ]
        if not joined:
            break
        index = -max(joined)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return [piece for part in parts for piece in ([part] if part in vocab else [f"<0x{b:02X}>" for b in part.encode()])]
