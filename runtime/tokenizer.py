"""Text to token ids and back, from the files of a bundle: tokenizer.json, chat_template.jinja, generation.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from edgeprec.bundle import CHAT_TEMPLATE, GENERATION, TOKENIZER
from edgeprec.errors import BundleError, ConfigError
from edgeprec.strict_json import Fields, parse_json

__all__ = ["Message", "TextTokenizer"]

Message = Mapping[str, str]
"""A chat turn: ``role`` and ``content``."""


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """The target's tokenizer, its chat template and the ids that end a reply."""

    tokenizer: Tokenizer
    chat_template: str | None
    eos_token_ids: frozenset[int]
    adds_bos: bool
    bos_token_id: int | None
    bos_token: str
    eos_token: str

    @classmethod
    def load(cls, directory: Path) -> TextTokenizer:
        """Read the tokenizer files of a bundle.

        Raises:
            BundleError: a file is missing or not readable as what it should be.
        """
        path = directory / TOKENIZER
        try:
            tokenizer = Tokenizer.from_buffer(_read(path))
        except ValueError as error:
            raise BundleError(f"{path} is not a tokenizer ({error}): export the bundle again") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer=tokenizer, chat_template=_read_template(directory), **_read_generation(directory))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a raw text, with the begin-of-sequence id where the model wants one.

        Raises:
            ConfigError: it holds half of a surrogate pair, which is no character.
        """
        ids = self._ids(text)
        if self.adds_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *ids]
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation, ready for the assistant's turn."""
        return self._ids(self.render_chat(messages))

    def _ids(self, text: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the prompt has {text[error.start]!r} at character {error.start}, which is no character: decode it "
                "from UTF-8 first"
            ) from error
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def render_chat(self, messages: Sequence[Message]) -> str:
        """Apply the chat template.

        Raises:
            ConfigError: the model has no template, a message lacks role or content, or the template refuses them.
        """
        if self.chat_template is None:
            raise ConfigError("this model has no chat template: use run without --chat, or another model")
        for index, message in enumerate(messages):
            _check_message(index, message)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            return environment.from_string(self.chat_template).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
            )
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template refused the messages: {_first_line(error)}") from error
        except Exception as error:  # a template is a program of the model's makers, and may raise anything
            raise ConfigError(
                f"the chat template failed with {type(error).__name__} ({_first_line(error)}): use run without --chat, "
                "or export a checkpoint with a chat template that works"
            ) from error


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or "no reason given"


def _check_message(index: int, message: Message) -> None:
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise ConfigError(f"chat message {index} has the {key} {message.get(key)!r}, expected a text")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error


def _read_template(directory: Path) -> str | None:
    path = directory / CHAT_TEMPLATE
    if not path.exists():
        return None
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path} is not UTF-8 at byte {error.start}: export the bundle again") from error


def _read_generation(directory: Path) -> dict[str, Any]:
    """Return what ``generation.json`` says of special tokens, under the names of ``TextTokenizer``'s fields."""
    path = directory / GENERATION
    fields = Fields(parse_json(_read(path), where=str(path), error=BundleError), where=str(path), error=BundleError)
    ends = fields.items("eos_token_ids")
    if not all(isinstance(index, int) for index in ends):
        raise BundleError(f"{path}: 'eos_token_ids' is {ends}, expected whole numbers")
    return {
        "eos_token_ids": frozenset(ends),
        "adds_bos": fields.optional("add_bos_token", fields.boolean) or False,
        "bos_token_id": fields.optional("bos_token_id", fields.integer),
        "bos_token": fields.optional("bos_token", fields.text) or "",
        "eos_token": fields.optional("eos_token", fields.text) or "",
    }
