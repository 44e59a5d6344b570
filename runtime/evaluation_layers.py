"""Fidelity by the number of layers in INT4: 1, 2, 4, ... of the least sensitive ones, all, and all with the head.

forced    the whole text is given; each position's prediction is compared with FP16's, its own INT4 keys and values
          in the cache
free      the reply is decoded with the layers in INT4 throughout and compared with FP16's, token by token
exact     the same layers draft, FP16 verifies: mode ``exact``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeprec.config import Mode
from edgeprec.gears import ladder
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.evaluation_texts import EvaluationText, Progress
from edgeprec.runtime.fidelity import Fidelity, Logits, RowComparison, compare_rows, count_rows
from edgeprec.runtime.session import Session
from edgeprec.runtime.token_match import TokenMatch, match_tokens

__all__ = ["LayerFidelity", "force_texts", "gated_plan", "layer_counts", "measure_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFidelity:
    """What so many gated layers cost. ``on_reply`` counts FP16's reply, ``on_prompt`` the text a person wrote."""

    gated_layers: int
    has_int4_head: bool
    on_reply: Fidelity
    on_prompt: Fidelity
    free: TokenMatch
    exact: TokenMatch

    def to_json(self) -> dict[str, Any]:
        """Return the row of the contract."""
        return {
            "gated": self.gated_layers,
            "top1": self.on_reply.top1,
            "top1_low_entropy": self.on_reply.top1_low_entropy,
            "kl_bits": self.on_reply.kl_bits,
            "common_prefix_tokens": self.free.mean_prefix_tokens,
            "free_running_match": self.free.share,
        }


def layer_counts(num_layers: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the number of all layers."""
    powers = (1 << power for power in range(num_layers.bit_length()))
    return (*(count for count in powers if count < num_layers), num_layers)


def gated_plan(session: Session, gated_layers: int | None) -> Plan:
    """Return the plan that runs so many layers in INT4; None = all and the head."""
    order = None if session.calibration is None else session.calibration.layer_order
    plans = ladder(num_layers=session.info.num_layers, middle_gears=0, order=order, gated_layers=gated_layers)
    return plans[0]


def measure_layers(
    session: Session, texts: Sequence[EvaluationText], *, progress: Progress
) -> tuple[LayerFidelity, ...]:
    """Measure every number of gated layers on every text; the last row has the head in INT4 too."""
    counts = (*layer_counts(session.info.num_layers), None)
    forced = force_texts(session, texts, counts, progress=progress)
    rows = []
    for index, count in enumerate(counts):
        free, exact = TokenMatch(), TokenMatch()
        for done, text in enumerate(texts):
            progress("decode", index * len(texts) + done, len(counts) * len(texts))
            free += _decode(session, text, count, mode=Mode.INT4)
            exact += _decode(session, text, count, mode=Mode.EXACT)
        on_prompt, on_reply = forced[index]
        rows.append(
            LayerFidelity(
                gated_layers=session.info.num_layers if count is None else count,
                has_int4_head=count is None,
                on_reply=on_reply,
                on_prompt=on_prompt,
                free=free,
                exact=exact,
            )
        )
    progress("decode", len(counts), len(counts))
    return tuple(rows)


def force_texts(
    session: Session, texts: Sequence[EvaluationText], counts: Sequence[int | None], *, progress: Progress
) -> list[tuple[Fidelity, Fidelity]]:
    """Return, for each number of gated layers, the fidelity on prompts and on replies."""
    sums = [(Fidelity(), Fidelity())] * len(counts)
    fp16 = Plan.uniform(Precision.FP16, num_layers=session.info.num_layers)
    for done, text in enumerate(texts):
        progress("forced", done, len(texts))
        known = text.tokens[:-1]  # nothing in the text says what follows its last token
        if not known:
            continue
        reference = np.concatenate([piece.copy() for piece in session.forced_logits(known, fp16)])
        for index, count in enumerate(counts):
            rows = _force(session, known, gated_plan(session, count), reference)
            split = len(text.prompt) - 1  # the last token of the prompt predicts the first of the reply
            on_prompt, on_reply = count_rows(_part(rows, slice(0, split))), count_rows(_part(rows, slice(split, None)))
            sums[index] = (sums[index][0] + on_prompt, sums[index][1] + on_reply)
    progress("forced", len(texts), len(texts))
    return sums


def _force(session: Session, tokens: Sequence[int], plan: Plan, reference: Logits) -> RowComparison:
    parts, start = [], 0
    for logits in session.forced_logits(tokens, plan):
        parts.append(compare_rows(reference[start : start + len(logits)], logits))
        start += len(logits)
    return RowComparison(
        np.concatenate([part.agrees for part in parts]),
        np.concatenate([part.kl_bits for part in parts]),
        np.concatenate([part.entropy_bits for part in parts]),
    )


def _part(rows: RowComparison, where: slice) -> RowComparison:
    return RowComparison(rows.agrees[where], rows.kl_bits[where], rows.entropy_bits[where])


def _decode(session: Session, text: EvaluationText, gated_layers: int | None, *, mode: Mode) -> TokenMatch:
    count = max(len(text.reply), 1)
    reply = session.generate(text.prompt, mode=mode, drafter="self", gated_layers=gated_layers, max_new_tokens=count)
    return match_tokens(reply.tokens, text.reply)
