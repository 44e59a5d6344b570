"""Hugging Face transformers as a peer: eager, compiled with a static cache, or assisted by a draft model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from peer_bench import Mark, PeerRun, PeerWay

from edgeprec.config import Mode

__all__ = ["TransformersPeer", "load_model"]


def load_model(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a causal model in evaluation mode on its device."""
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return model.to(device).eval()


@dataclass(slots=True, kw_only=True)
class TransformersPeer:
    """``model`` answers a batch of prompts, padded on the left, all to the end of the longest answer.

    ``assistant`` drafts ``draft_length`` tokens a round, whatever its confidence; the library takes one sequence then.
    ``is_compiled`` takes a static cache, with which the library compiles and captures decoding on a GPU.
    """

    model: Any
    eos_token_ids: frozenset[int]
    assistant: Any = None
    draft_length: int = 0
    is_compiled: bool = False
    is_continuous: bool = False

    def __post_init__(self) -> None:
        if self.assistant is not None:
            config = self.assistant.generation_config
            config.num_assistant_tokens = self.draft_length
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0

    @property
    def way(self) -> PeerWay:
        """Return what it computes: with an assistant the target's own tokens."""
        return PeerWay(Mode.EXACT, self.draft_length) if self.assistant is not None else PeerWay(Mode.FP16)

    def run(self, prompts: Sequence[tuple[int, ...]], *, new_tokens: int, mark: Mark) -> PeerRun:
        """Answer a batch; see the protocol."""
        widest, device = max(map(len, prompts)), self.model.device
        rows = [[0] * (widest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (widest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        clock = _Clock(len(prompts), widest, device, mark)
        extra: dict[str, Any] = {"cache_implementation": "static"} if self.is_compiled else {}
        if self.assistant is not None:
            extra["assistant_model"] = self.assistant
        mark("prefill")
        started = time.monotonic()
        with torch.inference_mode():
            output = self.model.generate(
                torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                do_sample=False,
                max_new_tokens=new_tokens,
                eos_token_id=sorted(self.eos_token_ids),
                pad_token_id=min(self.eos_token_ids),
                stopping_criteria=transformers.StoppingCriteriaList([clock]),
                **extra,
            )
        _wait(device)
        ended = time.monotonic()
        replies = [self._reply(row[widest:], new_tokens) for row in output.tolist()]
        emitted = sum(max(len(reply) - 1, 0) for reply in replies)
        seen = len(prompts) * clock.first_tokens
        later = sum(map(len, replies)) - seen
        share = emitted / later if later > 0 else 1.0  # an assisted first round gives more than the first token
        accepted = sum(map(len, replies)) - clock.calls if self.assistant is not None else None
        return PeerRun(
            replies=replies,
            prefill_s=clock.first - started,
            decode_s=(ended - clock.first) * share,
            rounds=clock.calls - (self.assistant is None),
            drafted=None if accepted is None else self.draft_length * clock.calls,
            accepted=accepted,
        )

    def _reply(self, tokens: list[int], new_tokens: int) -> list[int]:
        """Return a row up to its end of text; what follows is padding."""
        ends = [at for at, token in enumerate(tokens) if token in self.eos_token_ids]
        return tokens[: ends[0] + 1] if ends else tokens[:new_tokens]


class _Clock(transformers.StoppingCriteria):  # type: ignore[misc]
    """Takes the time of the first tokens and counts the calls, one a round; it stops nothing."""

    def __init__(self, sequences: int, prompt_tokens: int, device: torch.device, mark: Mark) -> None:
        self.calls, self.first, self.first_tokens = 0, 0.0, 0
        self._prompt_tokens, self._mark = prompt_tokens, mark
        self._goes_on = torch.zeros(sequences, dtype=torch.bool, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if self.calls == 0:
            _wait(input_ids.device)
            self.first, self.first_tokens = time.monotonic(), input_ids.shape[1] - self._prompt_tokens
            self._mark("decode")
        self.calls += 1
        return self._goes_on


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
