"""The ``edgeprec`` object of a reply and of a streamed chunk: how tokens were made, and what that took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgeprec.runtime.async_generation import AsyncGeneration
from edgeprec.runtime.reply import Reply, RoundRecord, TokenEvent, token_sha256
from edgeprec.runtime.service.problem import without_paths

__all__ = ["Acceptance", "live_facts", "reply_facts", "usage"]


class Acceptance:
    """Drafted and accepted tokens of a generation so far, looked at round by round."""

    def __init__(self) -> None:
        self._seen = 0
        self._drafted = 0
        self._accepted = 0

    def rate(self, rounds: Sequence[RoundRecord], *, until_round: int) -> float | None:
        """Return accepted / drafted of the rounds up to that number, None before anything was drafted."""
        for record in rounds[self._seen :]:
            if record.round > until_round:
                break
            self._seen += 1
            self._drafted += len(record.drafted)
            self._accepted += record.accepted
        return self._accepted / self._drafted if self._drafted else None


def live_facts(events: Sequence[TokenEvent], *, acceptance_rate: float | None, watts: float | None) -> dict[str, Any]:
    """Return what a chunk says of its tokens, of the acceptance so far and of the power now."""
    return {
        "tokens": [_token(event) for event in events],
        "acceptance_rate": acceptance_rate,
        "watts": watts,
    }


def reply_facts(reply: Reply, job: AsyncGeneration) -> dict[str, Any]:
    """Return what a whole reply took: the statistics ``run --json`` prints, and what only a server knows."""
    summary = reply.to_json()
    energy = reply.stats.energy
    begun_ns = job.created_ns if job.begun_ns is None else job.begun_ns
    facts: dict[str, Any] = {
        "mode": str(reply.mode),
        "joules": None if energy is None else energy.joules,
        "token_sha256": token_sha256(reply.tokens),
        "queue_s": (begun_ns - job.created_ns) * 1e-9,
        "is_time_limit": job.is_expired,
        **summary["stats"],
    }
    return {name: _shown(value) for name, value in facts.items()}


def usage(reply: Reply, job: AsyncGeneration) -> dict[str, Any]:
    """Return the token counts as OpenAI's API names them; cached tokens were not computed again."""
    prompt, new = reply.stats.prompt_tokens, len(reply.tokens)
    cached = 0 if job.generation is None else min(job.generation.prompt.cached, prompt)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _token(event: TokenEvent) -> dict[str, Any]:
    return {
        "index": event.index,
        "token": event.token,
        "text": event.text,
        "entropy_bits": event.entropy_bits if math.isfinite(event.entropy_bits) else None,
        "gear": str(event.gear),
        "source": str(event.source),
        "round": event.round,
        "int4_layers": event.int4_layers,
    }


def _shown(value: Any) -> Any:
    """Return ``value`` without numbers that JSON cannot hold and without paths of this machine."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value
