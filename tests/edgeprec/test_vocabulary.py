"""Two vocabularies are compared id by id; padding is no difference, everything else is, and the first one is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.errors import ConfigError
from edgeprec.vocabulary import Difference, Vocabulary, first_difference, require_same_vocabulary

TOKENS = ("a", "b", "ab", "</s>")


def vocabulary(*tokens: str | None, specials: tuple[int, ...] = (3,), width: int = 8) -> Vocabulary:
    """Return a vocabulary; without tokens, the usual one."""
    return Vocabulary(tokens=tokens or TOKENS, specials=frozenset(specials), width=width)


def test_same_vocabulary() -> None:
    """Equal tokens and special marks are the same vocabulary."""
    assert require_same_vocabulary(vocabulary(), vocabulary()) == 4


def test_padded_widths_are_no_difference() -> None:
    """Models of one family pad their logits differently: ids with a token are what counts."""
    assert require_same_vocabulary(vocabulary(width=4), vocabulary(width=128)) == 4


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (vocabulary("a", "c", "ab", "</s>"), Difference(1, "'b'", "'c'")),
        (vocabulary("b", "a", "ab", "</s>"), Difference(0, "'a'", "'b'")),
        (vocabulary(specials=()), Difference(3, "the special token '</s>'", "'</s>'")),
        (vocabulary(specials=(2, 3)), Difference(2, "'ab'", "the special token 'ab'")),
        (vocabulary(*TOKENS[:3], specials=()), Difference(3, "the special token '</s>'", "absent")),
        (vocabulary(*TOKENS, "<pad>"), Difference(4, "absent", "'<pad>'")),
        (vocabulary("a", None, "ab", "</s>"), Difference(1, "'b'", "absent")),
    ],
)
def test_first_difference(draft: Vocabulary, expected: Difference) -> None:
    """The lowest id that differs is named with what each model has there."""
    assert first_difference(vocabulary(), draft) == expected
    with pytest.raises(ConfigError, match=f"id {expected.id} is") as caught:
        require_same_vocabulary(vocabulary(), draft)
    assert caught.value.exit_code == 2


@given(tokens=st.lists(st.text(max_size=3) | st.none(), min_size=1, max_size=20), data=st.data())
def test_one_change_is_found_where_it_is(tokens: list[str | None], data: st.DataObject) -> None:
    """Wherever one token changes, that id is the one named, from either side."""
    place = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:place], "changed token", *tokens[place + 1 :]]
    ours, theirs = (Vocabulary(tokens=tuple(t), specials=frozenset(), width=20) for t in (tokens, changed))
    for pair in ((ours, theirs), (theirs, ours)):
        difference = first_difference(*pair)
        assert difference is not None
        assert difference.id == place
    assert first_difference(ours, ours) is None


def test_more_ids_than_logits() -> None:
    """A tokenizer that reaches past the logits belongs to another model."""
    with pytest.raises(ConfigError, match="4 ids and the model 3 logits"):
        vocabulary(width=3)


def tokenizer(vocab: Any, added: Any = ()) -> bytes:
    """Return the text of a tokenizer.json."""
    return json.dumps({"model": {"vocab": vocab}, "added_tokens": list(added)}).encode()


ADDED = [
    {"id": 3, "content": "</s>", "special": True},
    {"id": 5, "content": "<tool>", "special": False},
]


@pytest.mark.parametrize("vocab", [{"a": 0, "b": 1, "ab": 2}, [["a", 0.0], ["b", -1.5], ["ab", -2.0]]])
def test_read_tokenizer_json(vocab: Any) -> None:
    """BPE, WordPiece and Unigram files give tokens, gaps and special marks."""
    read = Vocabulary.from_tokenizer_json(tokenizer(vocab, ADDED), width=8)
    assert read.tokens == ("a", "b", "ab", "</s>", None, "<tool>")
    assert read.specials == {3}
    assert read.width == 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model": {}}',
        b'{"model": 3}',
        tokenizer(3),
        tokenizer({"a": "x"}),
        tokenizer({"a": None}),
        tokenizer([3]),
        tokenizer({"a": 0}, [{"id": 1}]),
        tokenizer({"a": 0}, [3]),
        tokenizer({"a": -1}),
        tokenizer({"a": 2**60}),
    ],
)
def test_not_a_tokenizer(data: bytes) -> None:
    """Any other content is one clear error, never a crash or a huge table."""
    with pytest.raises(ConfigError, match=r"draft/tokenizer\.json"):
        Vocabulary.from_tokenizer_json(data, width=8, where="draft/tokenizer.json")
