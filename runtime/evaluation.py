"""``edgeprec eval``: how faithful a pair is by layers, modes and entropy, and which drafts pay, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.prompts import Prompt
from edgeprec.runtime.evaluation_drafts import Contestant, DraftComparison, contestant_groups, measure_drafts
from edgeprec.runtime.evaluation_effort import DRAFT_STAGES, overall, stage_efforts
from edgeprec.runtime.evaluation_layers import LayerFidelity, layer_counts, measure_layers
from edgeprec.runtime.evaluation_modes import ModeFidelity, measure_modes
from edgeprec.runtime.evaluation_settings import EvaluationSettings, Table
from edgeprec.runtime.evaluation_texts import (
    EvaluationText,
    Progress,
    choose_prompts,
    fitting_prompts,
    write_texts,
)
from edgeprec.runtime.session import Session

__all__ = ["Evaluation", "evaluate", "layers_to_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one run has found so far; a table that is not measured is None. ``layers`` end with the head in INT4 too.

    ``finished`` names the tables that will not change any more: ``drafts`` come in two parts.
    """

    layers: tuple[LayerFidelity, ...] | None = None
    modes: ModeFidelity | None = None
    drafts: DraftComparison | None = None
    finished: tuple[Table, ...] = ()
    prompts: int
    prompt_tokens: int
    reply_tokens: int
    epsilon: float
    skipped_prompts: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Return in words what could not be measured."""
        skipped = f"{self.skipped_prompts} prompts were left out: the context is too short for them and their replies"
        differing = 0 if self.drafts is None else self.drafts.differing_tokens
        unlike = f"{differing} drafted tokens differ from FP16's, where none should: run edgeprec certify"
        found = (
            skipped if self.skipped_prompts else None,
            None if self.modes is None else self.modes.bounded_note,
            unlike if differing else None,
        )
        return tuple(note for note in found if note is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the contract's ``layers``, ``modes`` and ``drafts``, and beside them what they were taken from.

        The keys of a table that is not measured are absent.
        """
        return {
            **({} if self.layers is None else layers_to_json(self.layers)),
            **({} if self.modes is None else {"modes": self.modes.to_json()}),
            **({} if self.drafts is None else self.drafts.to_json()),
            "tables": [str(table) for table in self.finished],
            "prompts": self.prompts,
            "prompt_tokens": self.prompt_tokens,
            "reply_tokens": self.reply_tokens,
            "epsilon": self.epsilon,
            "notes": list(self.notes),
        }


def layers_to_json(layers: Sequence[LayerFidelity]) -> dict[str, Any]:
    """Return the tables by gated layers; the one with the head in INT4 stands apart."""
    with_head = [row for row in layers if row.has_int4_head]
    return {
        "layers": [row.to_json() for row in layers if not row.has_int4_head],
        "all_and_head": with_head[0].to_json() if with_head else None,
        "exact_by_layers": [
            {"gated": row.gated_layers, "int4_head": row.has_int4_head, "token_match": row.exact.share}
            for row in layers
        ],
        "on_prompts": [
            {
                "gated": row.gated_layers,
                "int4_head": row.has_int4_head,
                "top1": row.on_prompt.top1,
                "top1_low_entropy": row.on_prompt.top1_low_entropy,
                "kl_bits": row.on_prompt.kl_bits,
            }
            for row in layers
        ],
        "entropy": [
            {"gated": row.gated_layers, "int4_head": row.has_int4_head, "bins": row.on_reply.bins()} for row in layers
        ],
    }


def evaluate(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    settings: EvaluationSettings,
    has_draft_model: bool,
    progress: Progress = lambda stage, done, total: None,
    on_table: Callable[[Evaluation], None] = lambda found: None,
) -> Evaluation:
    """Measure ``session`` on ``prompts``; speeds are of this machine at this moment.

    ``progress`` is told the stage and what is done of everything; ``on_table`` what is known, after each table and
    between the two parts of ``drafts``.

    Raises:
        ConfigError: no prompt fits into the context with its reply.
    """
    fitting = fitting_prompts(session, prompts, reply_tokens=settings.reply_tokens)
    chosen = choose_prompts(fitting, per_kind=settings.prompts_per_kind)
    if not chosen:
        raise ConfigError(
            f"none of {len(prompts)} prompts fits into a context of {session.info.context_tokens} tokens with a reply "
            f"of {settings.reply_tokens}: raise --context"
        )
    few = choose_prompts(chosen, per_kind=settings.draft_prompts_per_kind)
    groups = contestant_groups(has_model=has_draft_model, lengths=settings.draft_lengths)
    efforts = stage_efforts(
        settings.tables,
        texts=len(chosen),
        layer_rows=len(layer_counts(session.info.num_layers)) + 1,
        drafting_texts=len(few),
        entrants=[len(group) for group in groups],
    )
    progress = overall(efforts, progress)
    texts = write_texts(session, chosen, reply_tokens=settings.reply_tokens, progress=progress)
    begun = found = Evaluation(
        prompts=len(texts),
        prompt_tokens=sum(len(text.prompt) for text in texts),
        reply_tokens=sum(len(text.reply) for text in texts),
        epsilon=settings.epsilon,
        skipped_prompts=len(prompts) - len(fitting),
    )
    drafting_texts = [text for text, prompt in zip(texts, chosen, strict=True) if prompt in few]
    for found in _tables(session, texts, drafting_texts, groups, settings=settings, begun=begun, progress=progress):
        on_table(found)
    return found


def _tables(
    session: Session,
    texts: Sequence[EvaluationText],
    drafting_texts: Sequence[EvaluationText],
    groups: Sequence[Sequence[Contestant]],
    *,
    settings: EvaluationSettings,
    begun: Evaluation,
    progress: Progress,
) -> Iterator[Evaluation]:
    """Yield ``begun`` with each table that was asked for, as it comes."""
    found = begun
    if Table.LAYERS in settings.tables:
        layers = measure_layers(session, texts, progress=progress)
        found = replace(found, layers=layers, finished=(*found.finished, Table.LAYERS))
        yield found
    if Table.MODES in settings.tables:
        modes = measure_modes(session, texts, epsilon=settings.epsilon, progress=progress)
        found = replace(found, modes=modes, finished=(*found.finished, Table.MODES))
        yield found
    if Table.DRAFTS in settings.tables:
        drafts = DraftComparison({}, {})
        for stage, entrants in zip(DRAFT_STAGES, groups, strict=True):
            drafts += measure_drafts(session, drafting_texts, entrants, progress=progress, stage=stage)
            is_last = stage == DRAFT_STAGES[-1]
            found = replace(found, drafts=drafts, finished=(*found.finished, *((Table.DRAFTS,) if is_last else ())))
            yield found
