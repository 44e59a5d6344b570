"""What a benchmark measures: one case is one row of its table, and says which prompts each repeat of it runs.

    pp512               512 prompt tokens, prefill alone
    tg128 @ d4096       128 tokens decoded after 4096 that lie in the cache already
    pp512 b16           512 prompt tokens, at most 16 rows in a pass
    pp512+tg128         both together
    small tg128         up to 128 new tokens for every prompt of a set

Synthetic prompts are cut from the texts that ship with the product, not drawn at random: what a draft is accepted
for depends on the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from edgeprec.config import GenerationConfig
from edgeprec.errors import ConfigError
from edgeprec.prompts import load_prompts

__all__ = ["Case", "CaseKind", "Corpus", "Job", "SetPrompt", "require_room"]

_STRIDE_TOKENS = 61


class CaseKind(StrEnum):
    """Which tokens count."""

    PREFILL = "pp"  # the prompt's
    DECODE = "tg"  # those after the first new one
    BOTH = "pp+tg"  # the prompt's and the new ones
    PROMPTS = "prompts"  # as tg, over a set of prompts


@dataclass(frozen=True, slots=True)
class SetPrompt:
    """One prompt of a set. ``kind`` names the task, such as ``code``."""

    id: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row. ``new_tokens`` of ``tg`` are decoded after the first one, which prefill gives."""

    kind: CaseKind
    config: GenerationConfig
    prompt_tokens: int = 0
    new_tokens: int = 0
    depth_tokens: int = 0
    prefill_rows: int | None = None  # of one pass at most, None = as many as the engine takes
    sequences: int = 1
    prompt_set: str | None = None
    prompts: tuple[SetPrompt, ...] = ()

    @property
    def name(self) -> str:
        """Return how a table calls it."""
        parts = {
            CaseKind.PREFILL: f"pp{self.prompt_tokens}",
            CaseKind.DECODE: f"tg{self.new_tokens}",
            CaseKind.BOTH: f"pp{self.prompt_tokens}+tg{self.new_tokens}",
            CaseKind.PROMPTS: f"{self.prompt_set} tg{self.new_tokens}",
        }
        rows = f" b{self.prefill_rows}" if self.prefill_rows is not None else ""
        sequences = f" x{self.sequences}" if self.sequences > 1 else ""
        depth = f" @ d{self.depth_tokens}" if self.depth_tokens else ""
        return f"{parts[self.kind]}{rows}{sequences}{depth}"

    @property
    def context_tokens(self) -> int:
        """Return the room a synthetic case takes; a set's prompts are measured when they are encoded."""
        return self.depth_tokens + max(self.prompt_tokens, 1) + self.new_tokens + 1


@dataclass(frozen=True, slots=True)
class Job:
    """One generation: its prompt as token ids and as text, and how many new tokens it may have."""

    id: str
    kind: str
    tokens: tuple[int, ...]
    text: str
    max_new_tokens: int


class Corpus:
    """The texts of the product's test set as one long row of tokens that begins anew where it ends."""

    def __init__(self, encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str]) -> None:
        self._encode = encode
        self._decode = decode
        self._tokens: tuple[int, ...] | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the tokens; they are encoded when first needed."""
        if self._tokens is None:
            self._tokens = tuple(self._encode("\n\n".join(prompt.text for prompt in load_prompts("test"))))
        return self._tokens

    def context(self, case: Case) -> tuple[int, ...]:
        """Return what lies in the cache before a case of some depth."""
        return self._cut(0, case.depth_tokens)

    def jobs(self, case: Case, repeat: int) -> list[Job]:
        """Return the generations of one repeat.

        A prefill that was seen before would be answered from the cache, so each repeat begins with another token.
        Decoding starts from the same prompts every time: all repeats must give the same tokens.
        """
        if case.kind is CaseKind.PROMPTS:
            return [self._job(prompt, case.new_tokens) for prompt in case.prompts]
        return [self._synthetic(case, repeat, index) for index in range(case.sequences)]

    def warm_up(self, case: Case) -> list[Job]:
        """Return what runs once before the first repeat: a whole repeat, or the first prompt of each task of a set."""
        if case.kind is not CaseKind.PROMPTS:
            return self.jobs(case, 0)
        first = {prompt.kind: prompt for prompt in reversed(case.prompts)}
        return [self._job(prompt, case.new_tokens) for prompt in reversed(first.values())]

    def _synthetic(self, case: Case, repeat: int, index: int) -> Job:
        """Return the job of one sequence; each begins at another place of the texts."""
        name, shift = "synthetic" if case.sequences == 1 else f"synthetic-{index}", index * _STRIDE_TOKENS
        context = self._cut(shift, case.depth_tokens)
        if case.kind is CaseKind.DECODE:
            tokens = context or self._cut(shift, 1)
            return Job(name, "", tokens, self._decode(tokens), case.new_tokens + 1)
        tokens = context + self._cut(self._start(case.depth_tokens, repeat) + shift, case.prompt_tokens)
        return Job(name, "", tokens, self._decode(tokens), max(case.new_tokens, 1))

    def _job(self, prompt: SetPrompt, new_tokens: int) -> Job:
        return Job(prompt.id, prompt.kind, tuple(self._encode(prompt.text)), prompt.text, new_tokens)

    def _cut(self, start: int, count: int) -> tuple[int, ...]:
        tokens = self.tokens
        return tuple(tokens[(start + index) % len(tokens)] for index in range(count))

    def _start(self, start: int, repeat: int) -> int:
        """Return where a repeat's prompt begins: always at another token than the repeat before."""
        tokens = self.tokens
        for _ in range(repeat):
            before = tokens[start % len(tokens)]
            start += _STRIDE_TOKENS
            start += next((i for i in range(len(tokens)) if tokens[(start + i) % len(tokens)] != before), 0)
        return start


def require_room(cases: Sequence[Case], corpus: Corpus, *, context_tokens: int) -> None:
    """Check that every case fits into the context.

    Raises:
        ConfigError: one does not; the message names it and the room it takes.
    """
    for case in cases:
        jobs = corpus.jobs(case, 0) if case.kind is CaseKind.PROMPTS else []
        longest = max((len(job.tokens) + job.max_new_tokens for job in jobs), default=case.context_tokens)
        if longest > context_tokens:
            raise ConfigError(
                f"{case.name} takes {longest} tokens, the context holds {context_tokens}: shorten it or raise --context"
            )
