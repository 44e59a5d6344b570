"""What a target is asked to write so that its draft can learn from it: prompts in four kinds, mostly its own words.

Two rounds. In the first the target finishes openings at a high temperature: questions, tasks, short passages, thousands
of different ones. In the second those are its prompts, in its chat template where it has one, and its answers are the
draft's text. A share of plain text begins from openings, and from windows of given text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from edgeprec.errors import ConfigError
from edgeprec.export.distill_sampling import Row
from edgeprec.export.tokenizer_files import TokenizerFiles

__all__ = ["PromptWriter", "TextCodec"]

_MARK = "\u241f"  # stands for the user's message while the template is cut in two
_TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.3, 0.7)
_HOT = 0.9
_LARGEST_HOT_START_TOKENS = 48
_WINDOW_TOKENS = (8, 96)
_QUESTION_SHARE, _PASSAGE_SHARE, _CODE_SHARE, _GIVEN_SHARE = 0.34, 0.26, 0.16, 0.06  # the rest is prose


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Text to ids and back with a checkpoint's tokenizer; ``chat`` is the template around a message, or None."""

    tokenizer: Tokenizer
    begin: tuple[int, ...]
    end_ids: frozenset[int]
    special_ids: frozenset[int]
    chat: tuple[str, str] | None

    @classmethod
    def of(cls, files: TokenizerFiles) -> TextCodec:
        """Read a checkpoint's tokenizer files."""
        tokenizer = Tokenizer.from_buffer(files.tokenizer_json)
        specials = frozenset(index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        begin = files.generation.get("bos_token_id") if files.generation.get("add_bos_token") else None
        return cls(
            tokenizer=tokenizer,
            begin=() if begin is None else (int(begin),),
            end_ids=frozenset(files.generation["eos_token_ids"]),
            special_ids=specials,
            chat=_split_template(files),
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a plain text, with the begin token where the model wants one."""
        return (*self.begin, *self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, message: str) -> tuple[int, ...]:
        """Return the ids of a message in the chat template, ready for the reply; plain text without a template."""
        if self.chat is None:
            return self.encode(message)
        text = self.chat[0] + message + self.chat[1]
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat_start(self, message: str) -> tuple[int, ...]:
        """Return the ids of a conversation that stands in the middle of the user's message."""
        if self.chat is None:
            return self.encode(message)
        return tuple(self.tokenizer.encode(self.chat[0] + message, add_special_tokens=False).ids)

    def decode_until_special(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` before the first special token."""
        stop = next((place for place, index in enumerate(ids) if index in self.special_ids), len(ids))
        return str(self.tokenizer.decode(list(ids[:stop])))


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


def _split_template(files: TokenizerFiles) -> tuple[str, str] | None:
    """Return what the template writes before and after a user's message."""
    if files.chat_template is None:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    generation = files.generation
    try:
        text = environment.from_string(files.chat_template).render(
            messages=[{"role": "user", "content": _MARK}],
            add_generation_prompt=True,
            bos_token=generation.get("bos_token") or "",
            eos_token=generation.get("eos_token") or "",
        )
    except jinja2.TemplateError as error:
        raise ConfigError(f"the target's chat template cannot be applied ({error}): correct it first") from error
    before, mark, after = text.partition(_MARK)
    if not mark:
        raise ConfigError("the target's chat template leaves out the user's message: correct it first")
    return before, after


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
