"""The texts fidelity is measured on: prompts, each with the reply of plain FP16 decoding.

Questions and passages go through the chat template where the model has one; prose and code are continued as they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeprec.config import Mode
from edgeprec.prompts import Prompt, PromptKind
from edgeprec.runtime.session import Session

__all__ = ["EvaluationText", "Progress", "choose_prompts", "fitting_prompts", "write_texts"]

Progress = Callable[[str, int, int], None]
"""Told the stage, how much of it is done and how much there is."""

_ASKED = (PromptKind.QUESTION, PromptKind.PASSAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationText:
    """One prompt and FP16's reply, as token ids."""

    kind: PromptKind
    prompt: tuple[int, ...]
    reply: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the whole text."""
        return (*self.prompt, *self.reply)


def fitting_prompts(session: Session, prompts: Sequence[Prompt], *, reply_tokens: int) -> tuple[Prompt, ...]:
    """Return the prompts that the context holds together with their reply."""
    context = session.info.context_tokens
    return tuple(prompt for prompt in prompts if len(_encode(session, prompt)) + reply_tokens <= context)


def choose_prompts(prompts: Sequence[Prompt], *, per_kind: int) -> tuple[Prompt, ...]:
    """Return the first ``per_kind`` prompts of each kind, in their order."""
    taken = dict.fromkeys(PromptKind, 0)
    chosen = []
    for prompt in prompts:
        if taken[prompt.kind] < per_kind:
            taken[prompt.kind] += 1
            chosen.append(prompt)
    return tuple(chosen)


def write_texts(
    session: Session, prompts: Sequence[Prompt], *, reply_tokens: int, progress: Progress
) -> tuple[EvaluationText, ...]:
    """Let FP16 answer every prompt with ``reply_tokens`` tokens at most, fewer where it ends by itself.

    Raises:
        ConfigError: a prompt and its reply do not fit into the context.
    """
    texts = []
    for done, prompt in enumerate(prompts):
        progress("fp16", done, len(prompts))
        tokens = tuple(_encode(session, prompt))
        reply = session.generate(tokens, mode=Mode.FP16, max_new_tokens=reply_tokens)
        texts.append(EvaluationText(kind=prompt.kind, prompt=tokens, reply=reply.tokens))
    progress("fp16", len(prompts), len(prompts))
    return tuple(texts)


def _encode(session: Session, prompt: Prompt) -> list[int]:
    if prompt.kind in _ASKED and session.tokenizer.chat_template is not None:
        return session.tokenizer.encode_chat([{"role": "user", "content": prompt.text}])
    return session.tokenizer.encode(prompt.text)
