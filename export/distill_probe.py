"""Acceptance while training, on the target's greedy text behind prompts that training does not see.

The prompts are the set ``tuning``, so nothing that is measured later was looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgeprec.export.distill_acceptance import Acceptance, count_acceptance
from edgeprec.export.distill_data import continue_greedily
from edgeprec.export.distill_model import Decoder
from edgeprec.export.distill_samples import Samples
from edgeprec.export.text_codec import TextCodec
from edgeprec.prompts import PromptKind, load_prompts

__all__ = ["Probe"]

_CHAT_KINDS = (PromptKind.QUESTION, PromptKind.PASSAGE)
_ROWS = 16
_HEAD_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """Greedy text of the target by kind of task."""

    by_kind: Mapping[str, Samples]

    @classmethod
    def of(cls, teacher: Decoder, codec: TextCodec, *, new_tokens: int) -> Probe:
        """Let the target continue each prompt by ``new_tokens``, or by half of what it has room for if that is less.

        Of a prompt that would not fit beside them, the end is kept.
        """
        new_tokens = min(new_tokens, teacher.config.max_positions // 2)
        room = teacher.config.max_positions - new_tokens
        found = {}
        for kind in PromptKind:
            encode = codec.encode_chat if kind in _CHAT_KINDS else codec.encode
            prompts = [encode(prompt.text)[-room:] for prompt in load_prompts("tuning", kind)]
            found[kind.value] = continue_greedily(teacher, codec, prompts, new_tokens=new_tokens)
        return cls(found)

    @torch.no_grad()
    def measure(self, draft: Decoder, head: Tensor, *, draft_length: int) -> dict[str, Acceptance]:
        """Return what the target accepts of the draft's greedy tokens, by kind; ``head`` [V, D] is the draft's."""
        found = {}
        for kind, samples in self.by_kind.items():
            agreements: list[list[bool]] = []
            for start in range(0, len(samples), _ROWS):
                agreements += _agreements(draft, head, samples.rows(slice(start, start + _ROWS)))
            found[kind] = count_acceptance(agreements, draft_length=draft_length)
        return found


def _agreements(draft: Decoder, head: Tensor, samples: Samples) -> list[list[bool]]:
    """Return for each row where the draft's most likely token is the text's own."""
    tokens = torch.from_numpy(samples.tokens).long().to(head.device)
    mask = torch.from_numpy(samples.mask()).to(head.device)
    hidden = draft(tokens)[mask]
    chosen = torch.cat([(block.to(head.dtype) @ head.T).argmax(-1) for block in hidden.split(_HEAD_ROWS)])
    is_equal = (chosen == tokens.roll(-1, dims=1)[mask]).tolist()
    ends = np.cumsum(samples.mask().sum(1)).tolist()
    return [is_equal[start:end] for start, end in zip([0, *ends], ends, strict=False)]
