"""What a model is calibrated on: a text, and the prompts that ship for it, as a user would put them to this model.

The text alone is prose. A chat model spends its life on its template's tokens, whose activations are unlike any other,
so the prompts stand in it where there is one. Nothing here is of the tuning or test prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint
from edgeprec.export.text_codec import TextCodec
from edgeprec.prompts import PromptKind, load_prompts

__all__ = ["CalibrationTexts", "read_texts"]

WINDOW_TOKENS = 256
LEAST_TOKENS = 256

_ASKED = (PromptKind.QUESTION, PromptKind.PASSAGE)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTexts:
    """Token ids. A reply ends at one of ``end_ids``."""

    tokens: tuple[int, ...] = ()
    prompts: tuple[tuple[int, ...], ...] = ()
    end_ids: frozenset[int] = frozenset()

    @property
    def windows(self) -> tuple[tuple[int, ...], ...]:
        """Return texts that do not see each other: the text in pieces of 256 tokens, then the prompts."""
        return tuple(piece for text in (self.tokens, *self.prompts) for piece in _pieces(text))


def read_texts(target: Checkpoint, text: str) -> CalibrationTexts:
    """Return the ids of the calibration text and of the prompts.

    Raises:
        ConfigError: the text is too short to measure anything.
    """
    codec = _codec(target)
    tokens = tuple(codec.tokenizer.encode(text, add_special_tokens=False).ids)
    if len(tokens) < LEAST_TOKENS:
        raise ConfigError(
            f"the calibration text has {len(tokens)} tokens, expected at least {LEAST_TOKENS}: give a longer text"
        )
    prompts = (
        codec.encode_chat(prompt.text) if prompt.kind in _ASKED else codec.encode(prompt.text)
        for prompt in load_prompts("calibration")
    )
    longest = target.config.max_positions // 2  # the rest of the context is for the reply
    return CalibrationTexts(
        tokens=tokens, prompts=tuple(ids[-longest:] for ids in prompts if ids), end_ids=codec.end_ids
    )


def _codec(target: Checkpoint) -> TextCodec:
    """Return the target's codec, without its chat template where that cannot be applied."""
    files = target.tokenizer
    try:
        return TextCodec.of(files)
    except ConfigError as error:
        _LOG.warning("calibration asks its prompts without a chat template: %s", error)
        return TextCodec.of(replace(files, chat_template=None))


def _pieces(text: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(text[start : start + WINDOW_TOKENS]) for start in range(0, len(text), WINDOW_TOKENS)]
