"""The raw numbers of a benchmark: each generation, each repeat, and the rates that follow from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgeprec.runtime.batch_totals import BatchTotals
from edgeprec.runtime.benchmark_case import CaseKind
from edgeprec.runtime.benchmark_energy import RepeatEnergy
from edgeprec.runtime.reply import token_sha256

__all__ = ["Generated", "Repeat", "Work", "counted_tokens", "rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the layers did; a server does not tell."""

    drafter: str
    rounds: int
    drafted: int
    accepted: int
    int4_passes: int
    all_passes: int
    bits_read: float
    weights_read: float
    level_drafted: int = 0  # of three levels: by the draft model for the INT4 target
    level_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One generation. ``cached_tokens`` of the prompt were not computed again; ``tokens`` is None from a server."""

    id: str
    kind: str
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    prefill_s: float
    decode_s: float
    finish_reason: str
    text: str
    tokens: tuple[int, ...] | None = None
    work: Work | None = None
    fallbacks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the raw numbers as plain values, without the text."""
        work = self.work
        return {
            "id": self.id,
            "kind": self.kind or None,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "new_tokens": self.new_tokens,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "rounds": None if work is None else work.rounds,
            "drafted": None if work is None else work.drafted,
            "accepted": None if work is None else work.accepted,
            "finish_reason": self.finish_reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """All generations of one repeat, and the energy of the whole of it, None where ``energy_note`` says why."""

    generated: tuple[Generated, ...]
    energy: RepeatEnergy | None
    energy_note: str | None
    batch: BatchTotals | None = None  # where several sequences ran together

    @property
    def token_sha256(self) -> str | None:
        """Return the hash of all new token ids in order, None where they are not known."""
        tokens: list[int] = []
        for one in self.generated:
            if one.tokens is None:
                return None
            tokens += one.tokens
        return token_sha256(tuple(tokens))

    @property
    def text_sha256(self) -> str:
        """Return the hash of all new texts in order, each ended by a zero byte; a server may send lone surrogates."""
        text = "".join(f"{one.text}\0" for one in self.generated)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def rate(kind: CaseKind, generated: Sequence[Generated]) -> float | None:
    """Return the tokens/s of a case, None where nothing that counts was computed in any time.

    ``pp``: prompt tokens over prefill. ``tg`` and prompts: new tokens after the first over decoding. Both together:
    all of them over all the time.
    """
    prefill_s = sum(one.prefill_s for one in generated)
    decode_s = sum(one.decode_s for one in generated)
    prompt = sum(one.prompt_tokens - one.cached_tokens for one in generated)
    if kind is CaseKind.PREFILL:
        return _ratio(prompt, prefill_s)
    if kind is CaseKind.BOTH:
        return _ratio(prompt + sum(one.new_tokens for one in generated), prefill_s + decode_s)
    return _ratio(sum(max(one.new_tokens - 1, 0) for one in generated), decode_s)


def counted_tokens(kind: CaseKind, generated: Sequence[Generated]) -> int:
    """Return the tokens that joules are divided by: the prompt's of ``pp``, the new ones of ``tg``, else both."""
    prompt = sum(one.prompt_tokens - one.cached_tokens for one in generated)
    new = sum(one.new_tokens for one in generated)
    return {CaseKind.PREFILL: prompt, CaseKind.BOTH: prompt + new}.get(kind, new)


def _ratio(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None
