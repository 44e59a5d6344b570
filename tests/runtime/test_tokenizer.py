"""Text to ids and back from a bundle's files, and one sentence for every way these can be damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgeprec.errors import BundleError, ConfigError
from edgeprec.runtime.tokenizer import TextTokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
GENERATION = {
    "bos_token_id": 1,
    "bos_token": "<s>",
    "eos_token_ids": [2, 3],
    "eos_token": "</s>",
    "pad_token_id": None,
    "add_bos_token": False,
    "max_positions": 128,
}


def byte_tokenizer(**changes: Any) -> Tokenizer:
    """Return a byte-level tokenizer with four specials in front."""
    specials = ["<pad>", "<s>", "</s>", "<end>"]
    vocab = {token: index for index, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    if changes.get("truncated"):
        tokenizer.enable_truncation(max_length=4)
        tokenizer.enable_padding(length=4)
    return tokenizer


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return ``write(template=..., truncated=..., **changes of generation.json)``: a folder with the three files."""

    def make(*, template: str | None = TEMPLATE, truncated: bool = False, **changes: Any) -> Path:
        (tmp_path / "tokenizer.json").write_text(byte_tokenizer(truncated=truncated).to_str(), encoding="utf-8")
        (tmp_path / "generation.json").write_text(json.dumps(GENERATION | changes), encoding="utf-8")
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
        return tmp_path

    return make


Write = Callable[..., Path]
BYTES = TextTokenizer(
    tokenizer=byte_tokenizer(),
    chat_template=None,
    eos_token_ids=frozenset({2}),
    adds_bos=False,
    bos_token_id=None,
    bos_token="",
    eos_token="",
)


def test_load_reads_all_three_files(write: Write) -> None:
    """Special tokens, their texts and the template come from the bundle."""
    tokenizer = TextTokenizer.load(write())
    assert tokenizer.eos_token_ids == {2, 3}
    assert (tokenizer.bos_token_id, tokenizer.bos_token, tokenizer.eos_token) == (1, "<s>", "</s>")
    assert (tokenizer.adds_bos, tokenizer.chat_template) == (False, TEMPLATE)


def test_nulls_mean_there_is_none(write: Write) -> None:
    """A model without begin token, end text or template is a model all the same."""
    changes = {"bos_token_id": None, "bos_token": None, "eos_token": None, "eos_token_ids": []}
    tokenizer = TextTokenizer.load(write(template=None, **changes))
    assert (tokenizer.bos_token_id, tokenizer.bos_token, tokenizer.eos_token) == (None, "", "")
    assert (tokenizer.chat_template, tokenizer.eos_token_ids) == (None, frozenset())


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=50))
def test_any_text_comes_back(text: str) -> None:
    """Encoding and decoding lose no character."""
    assert BYTES.decode(BYTES.encode(text)) == text


def test_begin_token_is_added_once(write: Write) -> None:
    """Models that want one get one, also when the text brings it along."""
    tokenizer = TextTokenizer.load(write(add_bos_token=True))
    plain = TextTokenizer.load(write()).encode("ab")
    assert tokenizer.encode("ab") == [1, *plain]
    assert tokenizer.encode("<s>ab") == [1, *plain]
    assert tokenizer.encode("") == [1]


def test_decode_leaves_specials_out(write: Write) -> None:
    """What ends a text is no part of it."""
    tokenizer = TextTokenizer.load(write())
    assert tokenizer.decode([1, *tokenizer.encode("ab"), 3, 2]) == "ab"


def test_truncation_of_the_file_is_ignored(write: Write) -> None:
    """Some checkpoints ship a tokenizer that cuts or pads texts: a prompt is neither cut nor padded silently."""
    tokenizer = TextTokenizer.load(write(truncated=True))
    assert [len(tokenizer.encode(text)) for text in ("a", "abcdefgh")] == [1, 8]


def test_chat_applies_the_template(write: Write) -> None:
    """Messages become the template's text, ready for the assistant's turn."""
    tokenizer = TextTokenizer.load(write())
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == "[system]be brief[user]hi>"
    assert tokenizer.encode_chat(messages) == tokenizer.encode("[system]be brief[user]hi>")


def test_template_sees_special_tokens_and_writes_ids(write: Write) -> None:
    """Special tokens in a rendered chat become their ids, and no second begin token is put before them."""
    tokenizer = TextTokenizer.load(write(template="{{ bos_token }}x{{ eos_token }}", add_bos_token=True))
    assert tokenizer.encode_chat([{"role": "user", "content": "hi"}]) == [1, *BYTES.encode("x"), 2]


@pytest.mark.parametrize(
    ("template", "match"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "refused the messages: roles must alternate"),
        ("{% for %}", "refused the messages"),
        ("{{ messages.missing.deeper }}", "refused the messages"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages"),
        ("{{ 1 / 0 }}", r"failed with ZeroDivisionError \(division by zero\): use run without --chat"),
        ("{{ 1 + 'x' }}", "failed with TypeError"),
        ("{{ range(10 ** 9) }}", "failed with OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed with RecursionError"),
    ],
)
def test_template_that_refuses(write: Write, template: str | None, match: str) -> None:
    """A template's own refusal, its faults and its attempts to leave the sandbox are one ConfigError."""
    with pytest.raises(ConfigError, match=match):
        TextTokenizer.load(write(template=template)).render_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ({"role": "user"}, "message 1 has the content None"),
        ({"content": "x"}, "message 1 has the role None"),
        ({"role": "user", "content": None}, "content None, expected a text"),
        ({"role": "user", "content": ["x"]}, "expected a text"),
    ],
)
def test_message_without_role_or_content_is_named(write: Write, message: dict[str, Any], match: str) -> None:
    """The number of the message stands in the sentence."""
    with pytest.raises(ConfigError, match=match):
        TextTokenizer.load(write()).render_chat([{"role": "user", "content": "hi"}, message])


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokenizer.json", None, "cannot be read: No such file"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "is not a tokenizer"),
        ("generation.json", None, "cannot be read: No such file"),
        ("generation.json", b"[]", "is a list, expected an object"),
        ("generation.json", b"{", "is not valid JSON"),
        ("generation.json", b"{}", "has no 'eos_token_ids'"),
        ("generation.json", b'{"eos_token_ids": 2}', "expected a list"),
        ("generation.json", b'{"eos_token_ids": ["</s>"]}', "expected whole numbers"),
        ("generation.json", b'{"eos_token_ids": [], "bos_token_id": "1"}', "expected an integer"),
        ("chat_template.jinja", b"caf\xe9", "not UTF-8 at byte 3"),
    ],
)
def test_damaged_file_is_named(write: Write, name: str, content: bytes | None, match: str) -> None:
    """A missing or damaged file is a BundleError that begins with its path."""
    folder = write()
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(BundleError, match=match) as caught:
        TextTokenizer.load(folder)
    assert str(folder / name) in str(caught.value)
