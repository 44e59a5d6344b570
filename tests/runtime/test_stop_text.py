"""Text from a stream of tokens: whole characters, leading spaces, stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from edgeprec.runtime.stop_text import TextStream

Decode = Callable[[Sequence[int]], str]


def _byte_decode(ids: Sequence[int]) -> str:
    """A byte-level tokenizer: id = byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def _piece_decode(pieces: Sequence[bytes]) -> Decode:
    return lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", errors="replace")


def _sentencepiece(pieces: Sequence[str]) -> Decode:
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[0]))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _run(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [*(stream.push(i) for i in ids), stream.flush()]


@given(st.text(max_size=60))
def test_bytes_of_any_text_come_back_whole(text: str) -> None:
    """The pieces join to the text, and no piece ends within a character."""
    ids = text.encode("utf-8", errors="replace")
    text = ids.decode()
    stream = TextStream(_byte_decode)
    pieces = _run(stream, ids)
    assert "".join(pieces) == text == stream.text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.binary(max_size=80))
def test_invalid_bytes_lose_nothing(data: bytes) -> None:
    """Broken UTF-8 ends as the decoder shows it, never as an exception or a gap in the valid part."""
    stream = TextStream(_byte_decode)
    joined = "".join(_run(stream, data))
    whole = data.decode("utf-8", errors="replace")
    assert joined.replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_a_character_split_over_tokens_is_shown_when_complete() -> None:
    """An emoji of four byte tokens appears with its last one."""
    assert _run(TextStream(_byte_decode), "é🙂".encode()) == ["", "é", "", "", "", "🙂", ""]


def test_endless_invalid_bytes_are_shown_after_a_while() -> None:
    """A model stuck on broken bytes does not hold the stream back for ever."""
    stream = TextStream(_byte_decode)
    for _ in range(100):
        stream.push(0xF0)
    assert len(stream.text) > 50


def test_sentencepiece_spaces_survive_the_window() -> None:
    """A decoder that strips the first space does so once, at the very start only."""
    decode = _sentencepiece(["▁a", "▁b", "c", "▁d"])
    ids = [0, 1, 2, 3, 1, 1, 0, 2, 3, 3, 1]
    assert "".join(_run(TextStream(decode), ids)) == decode(ids)


def test_context_keeps_the_first_space() -> None:
    """With the prompt's tail as context, the first generated word keeps its space."""
    decode = _sentencepiece(["▁a", "▁b", "c"])
    assert TextStream(decode).push(1) == "b"
    assert TextStream(decode, context=[0, 2]).push(1) == " b"


def test_byte_fallback_characters_are_completed() -> None:
    """SentencePiece's byte tokens, one replacement sign each, are held until the character is whole."""
    decode = _sentencepiece(["▁a", *(f"<0x{b:02X}>" for b in "🙂".encode()), "b"])
    assert _run(TextStream(decode, context=[0]), [1, 2, 3, 4, 5]) == ["", "", "", "🙂", "b", ""]


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "kept"),
    [
        (["one", " two", " three"], ["two"], "one ", 2),  # the space belongs to the token that begins before the stop
        (["one", " ", "two", " three"], ["two"], "one ", 2),
        (["a", "b", "c", "d"], ["bc"], "a", 1),
        (["ab", "cd", "ef"], ["bcde"], "a", 1),
        (["ab", "x", "cd"], ["bcd"], "abxcd", 3),  # begins, then turns out otherwise
        (["aXb", "c"], ["X"], "a", 1),
        (["X", "b"], ["X"], "", 0),
        (["a", "ab", "b"], ["aab"], "", 0),
        (["a", "a", "b"], ["ab", "aab"], "", 0),  # the earlier beginning wins
        (["xabc"], ["c", "b"], "xa", 1),
        (["a", "", "", "S"], ["S"], "a", 1),  # tokens without text lie where the stop begins
        (["a", "b"], ["ba"], "ab", 2),  # an open stop string at the end is text
        (["\n", "\n"], ["\n\n"], "", 0),
    ],
)
def test_stop_strings_cut_text_and_ids(pieces: list[str], stop: list[str], text: str, kept: int) -> None:
    """Text ends where the stop begins; ids are kept while their text begins before it."""
    stream = TextStream(_piece_decode([p.encode() for p in pieces]), stop=stop)
    shown = _run(stream, range(len(pieces)))
    assert "".join(shown) == text == stream.text
    assert stream.kept_tokens == kept
    assert stream.is_stopped == any(s in "".join(pieces) for s in stop)


def test_nothing_of_a_stop_string_is_ever_shown() -> None:
    """While a stop string may be beginning, its characters are held back."""
    stream = TextStream(_byte_decode, stop=["STOP"])
    assert [stream.push(b) for b in b"aSTaSTOP!"] == ["a", "", "", "STa", "", "", "", "", ""]


def test_a_token_that_only_finishes_a_character_begins_with_it() -> None:
    """Byte tokens of a character inside the stop string are all cut; those before it all stay."""
    stream = TextStream(_byte_decode, stop=["é"])
    _run(stream, "üé".encode())
    assert stream.text == "ü"
    assert stream.kept_tokens == 2


def test_after_a_stop_nothing_is_taken() -> None:
    """Tokens pushed after the stop change neither text nor ids."""
    stream = TextStream(_byte_decode, stop=["b"])
    _run(stream, b"abcd")
    assert (stream.text, stream.kept_tokens, stream.push(97), stream.flush()) == ("a", 1, "", "")


@given(st.text("ab\n é", max_size=30), st.lists(st.text("ab\n é", min_size=1, max_size=3), max_size=3))
def test_text_is_cut_at_the_stop_that_completes_first(text: str, stop: list[str]) -> None:
    """Against the definition, a character at a time: the first text that holds a stop string ends where that begins."""
    stream = TextStream(_byte_decode, stop=stop)
    "".join(_run(stream, text.encode()))
    expected = text
    for end in range(1, len(text) + 1):
        places = [text[:end].find(s) for s in stop if s in text[:end]]
        if places:
            expected = text[: min(places)]
            break
    assert stream.text == expected
    assert stream.kept_tokens == len(expected.encode())
