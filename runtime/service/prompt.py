"""The tokens of a request's prompt, checked against the context before it takes a place in the queue."""

from __future__ import annotations

from edgeprec.errors import ConfigError
from edgeprec.runtime.engine import EngineInfo
from edgeprec.runtime.service.asked import Asked
from edgeprec.runtime.service.problem import Problem, without_paths
from edgeprec.runtime.tokenizer import TextTokenizer

__all__ = ["encode_prompt"]


def encode_prompt(tokenizer: TextTokenizer, info: EngineInfo, asked: Asked) -> list[int]:
    """Return the token ids of a text, of messages or of the ids themselves.

    Raises:
        Problem: there are none, too many for the context, or one that is no token; or the chat template refuses.
    """
    field = "messages" if asked.kind == "chat" else "prompt"
    try:
        tokens = _encode(tokenizer, asked)
    except ConfigError as error:
        raise Problem(400, without_paths(str(error)), param=field) from error
    if not tokens:
        raise Problem(400, f"the field {field!r} has no token: give at least one", param=field)
    if len(tokens) >= info.context_tokens:
        raise Problem(
            400,
            f"the prompt has {len(tokens)} tokens, the context holds {info.context_tokens} and needs room for 1 more: "
            "shorten the prompt",
            param=field,
            code="context_length_exceeded",
        )
    wrong = next((token for token in tokens if not 0 <= token < info.vocab_size), None)
    if wrong is not None:
        raise Problem(
            400, f"the field {field!r} holds token id {wrong}, expected 0 to {info.vocab_size - 1}", param=field
        )
    return tokens


def _encode(tokenizer: TextTokenizer, asked: Asked) -> list[int]:
    if isinstance(asked.prompt, str):
        return tokenizer.encode(asked.prompt)
    messages = [item for item in asked.prompt if isinstance(item, dict)]
    if messages:
        return tokenizer.encode_chat(messages)
    return [item for item in asked.prompt if isinstance(item, int)]
