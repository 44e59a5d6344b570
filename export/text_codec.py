"""Text to token ids and back as a checkpoint's own tokenizer and chat template have it. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from edgeprec.errors import ConfigError
from edgeprec.export.tokenizer_files import TokenizerFiles

__all__ = ["TextCodec"]

_MARK = "\u241f"  # stands for the user's message while the template is cut in two


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
