"""What a target is asked to write so that its draft can learn from it: prompts in four kinds, mostly its own words.

Two rounds. In the first the target finishes openings at a high temperature: questions, tasks, short passages, thousands
of different ones. In the second those are its prompts, in its chat template where it has one, and its answers are the
draft's text. A share of plain text begins from openings, and from windows of given text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

from edgeprec.export.distill_sampling import Row
from edgeprec.export.text_codec import TextCodec

__all__ = ["PromptWriter"]

_TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.3, 0.7)
_HOT = 0.9
_LARGEST_HOT_START_TOKENS = 48
_WINDOW_TOKENS = (8, 96)
_QUESTION_SHARE, _PASSAGE_SHARE, _CODE_SHARE, _GIVEN_SHARE = 0.34, 0.26, 0.16, 0.06  # the rest is prose


class PromptWriter:
    """Draws prompts for the two rounds from a seeded random source."""

    def __init__(self, codec: TextCodec, given: Sequence[int], *, length: int, seed: int) -> None:
        self._codec = codec
        self._given = given
        self._length = length
        self._random = random.Random(seed)

    def openings(self, count: int) -> list[Row]:
        """Return rows whose continuations are the next round's messages and passages."""
        return [self._opening() for _ in range(count)]

    def follow_up(self, opening: Row, ids: Sequence[int]) -> Row:
        """Return the second round's row for one finished opening; ``ids`` is the whole sequence of the first round."""
        draw = self._random.random()
        if draw < _GIVEN_SHARE:
            return self._given_row()
        message = self._message(opening, ids)
        if draw < _GIVEN_SHARE + _QUESTION_SHARE:
            return self._reply(message)
        if draw < _GIVEN_SHARE + _QUESTION_SHARE + _PASSAGE_SHARE:
            return self._reply(self._with_task(message), plain_share=0.25)
        if draw < _GIVEN_SHARE + _QUESTION_SHARE + _PASSAGE_SHARE + _CODE_SHARE:
            return self._plain("code")
        return self._plain("prose")

    def _opening(self) -> Row:
        kind = self._random.choices(("question", "prose", "code_request"), (0.5, 0.32, 0.18))[0]
        text = self._random.choice(_seeds()[kind])
        prompt = self._codec.encode(text) if kind == "prose" else self._codec.encode_chat_start(text)
        return Row(self._fitted(prompt), hot_until=self._length, hot=_HOT)

    def _message(self, opening: Row, ids: Sequence[int]) -> str:
        chat = () if self._codec.chat is None else self._codec.encode_chat_start("")
        is_chat = bool(chat) and opening.prompt[: len(chat)] == chat
        skipped = len(chat) if is_chat else len(self._codec.begin)
        return self._codec.decode_until_special(ids[skipped:]) or self._random.choice(_seeds()["prose"])

    def _with_task(self, passage: str) -> str:
        seeds = _seeds()
        if self._random.random() < 0.65:
            return self._random.choice(seeds["passage_task"]) + passage
        return passage + self._random.choice(seeds["passage_question"])

    def _reply(self, message: str, plain_share: float = 0.1) -> Row:
        is_plain = self._random.random() < plain_share
        ids = self._codec.encode(message) if is_plain else self._codec.encode_chat(message)
        return self._continued(ids)

    def _plain(self, kind: str) -> Row:
        start = self._codec.encode(self._random.choice(_seeds()[kind]))
        return self._continued(start, hot_tokens=self._random.randint(4, _LARGEST_HOT_START_TOKENS))

    def _given_row(self) -> Row:
        window = self._random.randint(*_WINDOW_TOKENS)
        start = self._random.randrange(max(1, len(self._given) - window))
        ids = (*self._codec.begin, *self._given[start : start + window])
        return self._continued(ids, hot_tokens=self._random.choice((0, 0, 8)))

    def _continued(self, ids: tuple[int, ...], hot_tokens: int = 0) -> Row:
        prompt = self._fitted(ids)
        hot_until = len(prompt) + hot_tokens
        return Row(prompt, hot_until=hot_until, hot=_HOT, temperature=self._random.choice(_TEMPERATURES))

    def _fitted(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        fallback = self._codec.encode(self._random.choice(_seeds()["prose"]))
        return (ids or fallback)[: self._length // 2]


@lru_cache(maxsize=1)
def _seeds() -> dict[str, list[str]]:
    text = resources.files("edgeprec.export").joinpath("distill_seeds.json").read_text(encoding="utf-8")
    seeds: dict[str, list[str]] = json.loads(text)
    return seeds
