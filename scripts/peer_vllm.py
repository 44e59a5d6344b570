"""vLLM as a peer: its engine in a process of its own, as many prompts as keep it busy, at most so many at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_bench import Mark, PeerRun, PeerWay

from edgeprec.config import Mode

__all__ = ["VllmPeer", "open_engine"]

_GPU_SHARE = 0.6


def open_engine(folder: Path, *, sequences: int, context_tokens: int, draft: Path | None, draft_length: int) -> Any:
    """Return vLLM's engine on a checkpoint, in FP16 or as its quantization says; ``draft`` None = nobody drafts."""
    import vllm

    extra: dict[str, Any] = {}
    if draft is not None:
        drafting = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": draft_length}
        extra |= {"speculative_config": drafting, "async_scheduling": True}  # by itself it is off with a draft model
    return vllm.LLM(
        model=str(folder),
        dtype="float16",
        max_model_len=context_tokens,
        max_num_seqs=sequences,
        gpu_memory_utilization=_GPU_SHARE,
        enable_prefix_caching=False,
        disable_log_stats=False,  # without them it counts no drafts
        **extra,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPeer:
    """Prompts for an engine of vLLM, so many at once. Prefill lies inside its decoding time: it mixes both.

    ``mode`` is FP16, or INT4 for a checkpoint in compressed-tensors; drafts make ``exact`` of FP16.
    """

    engine: Any
    mode: Mode
    sequences: int
    is_continuous: bool
    eos_token_ids: frozenset[int]
    draft_length: int = 0

    @property
    def way(self) -> PeerWay:
        """Return what it computes."""
        is_exact = self.draft_length > 0 and self.mode is Mode.FP16
        return PeerWay(Mode.EXACT if is_exact else self.mode, self.draft_length)

    def run(self, prompts: Sequence[tuple[int, ...]], *, new_tokens: int, mark: Mark) -> PeerRun:
        """Answer all prompts; see the protocol."""
        import vllm

        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=new_tokens, stop_token_ids=sorted(self.eos_token_ids)
        )
        before = self._counters()
        mark("decode")
        started = time.monotonic()
        outputs = self.engine.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], sampling, use_tqdm=False
        )
        seconds = time.monotonic() - started
        found = {name: count - before.get(name, 0) for name, count in self._counters().items()}
        replies = [list(output.outputs[0].token_ids) for output in outputs]
        drafted, accepted = found.get("num_draft_tokens"), found.get("num_accepted_tokens")
        emitted = sum(max(len(reply) - 1, 0) for reply in replies)
        turns = emitted - (accepted or 0)
        return PeerRun(
            replies=replies,
            prefill_s=0.0,
            decode_s=seconds,
            rounds=-(-turns // min(self.sequences, len(prompts))),
            drafted=drafted,
            accepted=accepted,
        )

    def _counters(self) -> dict[str, int]:
        """Return the counters of drafting so far, by the last part of their name."""
        if not self.draft_length:
            return {}
        prefix = "vllm:spec_decode_"
        return {
            metric.name.removeprefix(prefix): int(metric.value)
            for metric in self.engine.get_metrics()
            if metric.name.startswith(prefix) and hasattr(metric, "value")
        }
