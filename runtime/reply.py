"""What a generation returns: tokens as they come, the reply, its statistics and its energy. The JSON is a contract."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from edgeprec.config import Mode
from edgeprec.gears import Gear
from edgeprec.runtime.logprobs import TokenLogprobs

__all__ = [
    "EnergyStats",
    "FinishReason",
    "Gear",
    "LevelStats",
    "Reply",
    "RoundRecord",
    "Stats",
    "TokenEvent",
    "TokenSource",
    "token_sha256",
]


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"  # a pass failed; the exception went to whoever took the tokens


class TokenSource(StrEnum):
    """What produced an emitted token."""

    DRAFT = "draft"  # proposed by the drafter, accepted by FP16
    TARGET = "target"  # FP16's own: a correction, the bonus token after full acceptance, or plain FP16 decoding
    UNVERIFIED = "unverified"  # emitted without an FP16 check: modes gated, int4, bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One emitted token. ``text`` is what may be shown now; it is empty while a character or a stop string is open."""

    index: int
    token: int
    text: str
    entropy_bits: float
    gear: Gear
    source: TokenSource
    round: int
    int4_layers: int  # decoder layers that ran in INT4 when this token was produced
    time_ns: int  # since the start of the generation
    logprobs: TokenLogprobs | None = None  # where they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One decoding round: what was drafted, how many of it FP16 accepted, what it cost."""

    round: int
    position: int  # tokens in the cache when the round began
    drafted: tuple[int, ...]
    draft_entropy_bits: tuple[float | None, ...]  # None from a drafter without logits
    accepted: int
    emitted: int
    verified_rows: int  # rows of the FP16 pass; 0 = the round was not verified
    draft_cap: int
    stop_reason: str  # why drafting stopped, a value of edgeprec.stop_rules.StopReason
    smoothed_entropy_bits: float | None
    gear: Gear
    draft_plan: tuple[bool, ...]  # True = INT4, per layer and head
    draft_ns: int
    verify_ns: int
    start_ns: int  # since the start of the generation


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyStats:
    """Joules of one generation, as DESIGN's contract names them. None of the numbers is ever 0 for "not measured"."""

    joules: float
    joules_per_token: float | None
    by_phase: dict[str, float | None]
    source: str
    rail: str
    is_total: bool
    coverage: float
    plus_minus_joules: float
    scope: str = ""
    idle_watts: float | None = None
    joules_above_idle: float | None = None
    samples: int = 0
    lag_ms: float | None = None
    power_mode: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStats:
    """Acceptance by level of three-level drafting. ``model`` = the draft model against the INT4 target, ``int4`` = the
    INT4 target against FP16, ``direct`` = the draft model against FP16, where that was chosen or tried instead."""

    rounds: int  # of FP16 in which the INT4 target drafted
    int4_passes: int
    model_drafted: int
    model_accepted: int
    model_acceptance_rate: float | None
    int4_drafted: int
    int4_accepted: int
    int4_acceptance_rate: float | None
    direct_rounds: int
    direct_drafted: int
    direct_accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts and times of one generation. ``tokens_per_s`` = tokens after the first / decode seconds."""

    prompt_tokens: int
    new_tokens: int
    prefill_s: float
    decode_s: float
    tokens_per_s: float | None
    rounds: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_draft_length: float | None
    int4_layer_share: float | None
    draft_int4_layer_share: float | None
    target_int4_layer_share: float | None
    bits_read_per_weight: float | None
    verify_rounds: int
    fallbacks: tuple[str, ...]
    energy: EnergyStats | None
    energy_note: str | None
    seed: int | None = None
    drafter: str = "none"
    engine: str = ""
    three_level: LevelStats | None = None  # None = not asked for
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A finished (or cancelled) generation."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    mode: Mode
    stats: Stats
    events: tuple[TokenEvent, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object ``run --json`` prints."""
        from dataclasses import asdict

        stats = asdict(self.stats)
        stats.update(stats.pop("extra"))
        stats["fallbacks"] = list(self.stats.fallbacks)
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "token_sha256": token_sha256(self.tokens),
            "finish_reason": str(self.finish_reason),
            "mode": str(self.mode),
            "stats": stats,
        }


def token_sha256(tokens: tuple[int, ...]) -> str:
    """Return the SHA-256 of token ids as little-endian uint32."""
    return hashlib.sha256(np.asarray(tokens, "<u4").tobytes()).hexdigest()
