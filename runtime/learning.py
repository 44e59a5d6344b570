"""What a session's generations teach the next ones: costs of this device, acceptance of this pair, routes that paid.

It is kept apart by mode, by who drafts, by the rule that ends drafts, by whether their length is adaptive and by
whether logits must be read to choose tokens, which makes rounds dearer. So ways of drafting that take turns in one
session, as in a comparison, do not learn from each other on the same text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeprec.config import DrafterKind, DraftRule, GenerationConfig, Mode
from edgeprec.controller import Controller
from edgeprec.levels import LevelController, LevelMemory
from edgeprec.speculation import Learned

__all__ = ["Learning"]

_Key = tuple[Mode, DrafterKind, DraftRule, bool, bool]


@dataclass(slots=True)
class Learning:
    """What was learned so far; empty at first."""

    _pairs: dict[_Key, Learned] = field(default_factory=dict)
    _levels: dict[_Key, LevelMemory] = field(default_factory=dict)

    def pair(self, config: GenerationConfig, kind: DrafterKind) -> Learned | None:
        """Return what a controller of two levels starts from, None = nothing learned yet."""
        return self._pairs.get(_key(config, kind))

    def levels(self, config: GenerationConfig, kind: DrafterKind) -> LevelMemory:
        """Return what the controllers of three levels start from."""
        return self._levels.get(_key(config, kind), LevelMemory())

    def keep(self, config: GenerationConfig, kind: DrafterKind, controller: Controller | LevelController) -> None:
        """Keep what a generation that has ended taught."""
        if isinstance(controller, LevelController):
            self._levels[_key(config, kind)] = controller.memory
        else:
            self._pairs[_key(config, kind)] = controller.learned


def _key(config: GenerationConfig, kind: DrafterKind) -> _Key:
    drafting = config.drafting
    return config.mode, kind, drafting.rule, drafting.draft_length is None, config.sampling.takes_argmax
