"""From what a caller gives as a prompt to token ids that the model has room for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from numbers import Integral

from edgeprec.errors import ConfigError
from edgeprec.runtime.engine import EngineInfo
from edgeprec.runtime.tokenizer import Message, TextTokenizer

__all__ = ["check_tokens", "common_prefix", "prompt_tokens"]


def prompt_tokens(
    tokenizer: TextTokenizer, prompt: str | Sequence[int] | Sequence[Message], *, chat: bool
) -> list[int]:
    """Return the ids of a text, of token ids or of chat messages; ``chat`` makes a text a user's turn.

    Raises:
        ConfigError: the prompt is empty, or none of these.
    """
    if isinstance(prompt, str):
        if not prompt:
            raise ConfigError("the prompt is empty: give at least one character")
        return tokenizer.encode_chat([{"role": "user", "content": prompt}]) if chat else tokenizer.encode(prompt)
    if not isinstance(prompt, Collection) or isinstance(prompt, bytes | bytearray | Set):
        raise ConfigError(f"the prompt is of type {type(prompt).__name__}, expected a text, token ids or chat messages")
    messages = [item for item in prompt if isinstance(item, Mapping)]
    ids = [int(item) for item in prompt if isinstance(item, Integral) and not isinstance(item, bool)]
    if max(len(messages), len(ids)) < len(prompt):
        raise ConfigError("the prompt is neither a text nor all token ids nor all chat messages: give one of these")
    return tokenizer.encode_chat(messages) if messages else ids


def check_tokens(tokens: Sequence[int], info: EngineInfo, *, room_tokens: int) -> None:
    """Check ids against the model they are for.

    Raises:
        ConfigError: there are none, too many with ``room_tokens`` more, or one that is no token.
    """
    if not tokens:
        raise ConfigError("the prompt is empty: give at least one token")
    context, vocabulary = info.context_tokens, info.vocab_size
    if len(tokens) + room_tokens > context:
        raise ConfigError(
            f"the prompt has {len(tokens)} tokens, the context holds {context} and needs room for {room_tokens} "
            "more: shorten the prompt or raise --context"
        )
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise ConfigError(f"the prompt holds token id {wrong}, expected 0 to {vocabulary - 1}")


def common_prefix(tokens: Sequence[int], cached: Sequence[int]) -> int:
    """Return how many leading tokens are the same."""
    pairs = zip(tokens, cached, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(cached)))
