"""``edgeprec eval``: how faithful a pair is by layers, modes and entropy, and which drafts pay, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgeprec.config import DraftingConfig
from edgeprec.errors import ConfigError
from edgeprec.prompts import Prompt
from edgeprec.runtime.evaluation_drafts import DraftComparison, contestants, measure_drafts
from edgeprec.runtime.evaluation_layers import LayerFidelity, measure_layers
from edgeprec.runtime.evaluation_modes import ModeFidelity, measure_modes
from edgeprec.runtime.evaluation_texts import Progress, choose_prompts, fitting_prompts, write_texts
from edgeprec.runtime.session import Session

__all__ = ["Evaluation", "EvaluationSettings", "evaluate", "layers_to_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """How much is measured. The defaults take under ten minutes for a model of 135M weights on two CPU cores."""

    prompts_per_kind: int = 3
    reply_tokens: int = 48
    draft_prompts_per_kind: int = 2
    draft_lengths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    epsilon: float = DraftingConfig().epsilon

    def __post_init__(self) -> None:
        for name in ("prompts_per_kind", "reply_tokens", "draft_prompts_per_kind"):
            if getattr(self, name) < 1:
                raise ConfigError(f"evaluation: {name} is {getattr(self, name)}, expected 1 or more")
        if not self.draft_lengths or min(self.draft_lengths) < 1:
            raise ConfigError(f"evaluation: draft_lengths are {self.draft_lengths}, expected one or more, each above 0")

    @classmethod
    def full(cls) -> EvaluationSettings:
        """Return the settings of ``--full``: all short prompts, longer replies, every draft length."""
        return cls(prompts_per_kind=7, reply_tokens=128, draft_prompts_per_kind=7, draft_lengths=tuple(range(1, 9)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Everything one run found. The last row of ``layers`` has the head in INT4 too."""

    layers: tuple[LayerFidelity, ...]
    modes: ModeFidelity
    drafts: DraftComparison
    prompts: int
    prompt_tokens: int
    reply_tokens: int
    epsilon: float
    skipped_prompts: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Return in words what could not be measured."""
        skipped = f"{self.skipped_prompts} prompts were left out: the context is too short for them and their replies"
        differing = self.drafts.differing_tokens
        unlike = f"{differing} drafted tokens differ from FP16's, where none should: run edgeprec certify"
        found = (
            skipped if self.skipped_prompts else None,
            self.modes.bounded_note,
            unlike if differing else None,
        )
        return tuple(note for note in found if note is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the contract's ``layers``, ``modes`` and ``drafts``, and beside them what they were taken from."""
        return {
            **layers_to_json(self.layers),
            "modes": self.modes.to_json(),
            **self.drafts.to_json(),
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
) -> Evaluation:
    """Measure ``session`` on ``prompts``; speeds are of this machine at this moment.

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
    texts = write_texts(session, chosen, reply_tokens=settings.reply_tokens, progress=progress)
    few = choose_prompts(chosen, per_kind=settings.draft_prompts_per_kind)
    drafting_texts = [text for text, prompt in zip(texts, chosen, strict=True) if prompt in few]
    entrants = contestants(has_model=has_draft_model, lengths=settings.draft_lengths)
    drafts = measure_drafts(session, drafting_texts, entrants, progress=progress)
    layers = measure_layers(session, texts, progress=progress)
    modes = measure_modes(session, texts, epsilon=settings.epsilon, progress=progress)
    return Evaluation(
        layers=layers,
        modes=modes,
        drafts=drafts,
        prompts=len(texts),
        prompt_tokens=sum(len(text.prompt) for text in texts),
        reply_tokens=sum(len(text.reply) for text in texts),
        epsilon=settings.epsilon,
        skipped_prompts=len(prompts) - len(fitting),
    )
