"""Text to token ids and back, from the files of a bundle: tokenizer.json, chat_template.jinja, generation.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from edgeprec.errors import BundleError, ConfigError

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
        generation = _read_json(directory / "generation.json")
        path = directory / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_buffer(path.read_bytes())
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise BundleError(f"{path} is not a tokenizer ({error}): export the bundle again") from error
        template = directory / "chat_template.jinja"
        return cls(
            tokenizer=tokenizer,
            chat_template=template.read_text(encoding="utf-8") if template.exists() else None,
            eos_token_ids=frozenset(generation.get("eos_token_ids", ())),
            adds_bos=bool(generation.get("add_bos_token", False)),
            bos_token_id=generation.get("bos_token_id"),
            bos_token=generation.get("bos_token") or "",
            eos_token=generation.get("eos_token") or "",
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a raw text, with the begin-of-sequence id where the model wants one."""
        ids = list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        if self.adds_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *ids]
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation, ready for the assistant's turn."""
        return list(self.tokenizer.encode(self.render_chat(messages), add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def render_chat(self, messages: Sequence[Message]) -> str:
        """Apply the chat template.

        Raises:
            ConfigError: the model has no template, or the template refuses the messages.
        """
        if self.chat_template is None:
            raise ConfigError("this model has no chat template: use run without --chat, or another model")
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
            raise ConfigError(f"the chat template refused the messages: {error}") from error


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BundleError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} holds a {type(value).__name__}, expected an object")
    return value
