"""What outlives a generation, and what it must not teach: another way of drafting on the same text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeprec.config import (
    ControllerConfig,
    DrafterKind,
    DraftingConfig,
    DraftRule,
    GenerationConfig,
    Mode,
    SamplingConfig,
)
from edgeprec.controller import Controller
from edgeprec.levels import LevelController, LevelMemory, level_controller
from edgeprec.runtime.learning import Learning
from edgeprec.speculation import Learned

ADAPTIVE = GenerationConfig(mode=Mode.EXACT)
OTHERS = {
    "fixed length": replace(ADAPTIVE, drafting=DraftingConfig(draft_length=5)),
    "another rule": replace(ADAPTIVE, drafting=DraftingConfig(rule=DraftRule.SVIP)),
    "another mode": replace(ADAPTIVE, mode=Mode.BOUNDED),
    "logits that must be read": replace(ADAPTIVE, sampling=SamplingConfig(temperature=0.7)),
}


def controller(config: GenerationConfig, learned: Learned | None = None) -> Controller:
    """Return a controller whose draft model is timed by nobody."""
    return Controller(
        mode=Mode.EXACT,
        config=ControllerConfig(),
        drafting=config.drafting,
        calibration=None,
        drafter=DrafterKind.MODEL,
        num_layers=2,
        draft_layers=1,
        learned=learned,
    )


def levels(config: GenerationConfig) -> LevelController:
    """Return the controllers of three levels."""

    def make(drafter: DrafterKind, mode: Mode, learned: Learned | None, /, *, has_guard: bool = True) -> Controller:
        return controller(config, learned)

    return level_controller(config, LevelMemory(), make)


def test_the_next_generation_starts_from_the_last_one() -> None:
    """The same way of drafting goes on where it stopped; what else differs, such as a length, is no other way."""
    learning, last = Learning(), controller(ADAPTIVE)
    assert learning.pair(ADAPTIVE, DrafterKind.MODEL) is None
    learning.keep(ADAPTIVE, DrafterKind.MODEL, last)
    longer = replace(ADAPTIVE, max_new_tokens=7, drafting=DraftingConfig(max_draft_length=3))
    assert learning.pair(longer, DrafterKind.MODEL) is last.learned


@pytest.mark.parametrize("other", OTHERS)
def test_other_ways_learn_nothing_from_it(other: str) -> None:
    """In a comparison each way begins knowing what it found out itself, in either direction."""
    for taught, asked in ((ADAPTIVE, OTHERS[other]), (OTHERS[other], ADAPTIVE)):
        learning = Learning()
        learning.keep(taught, DrafterKind.MODEL, controller(ADAPTIVE))
        learning.keep(taught, DrafterKind.MODEL, levels(ADAPTIVE))
        assert learning.pair(asked, DrafterKind.MODEL) is None
        assert learning.levels(asked, DrafterKind.MODEL) == LevelMemory()


def test_another_drafter_learns_nothing_from_it() -> None:
    """The INT4 target's tokens say nothing of the draft model's."""
    learning = Learning()
    learning.keep(ADAPTIVE, DrafterKind.SELF, controller(ADAPTIVE))
    assert learning.pair(ADAPTIVE, DrafterKind.MODEL) is None


def test_three_levels_and_two_are_kept_side_by_side() -> None:
    """Whoever asks for three levels finds what three levels learned, and the other way round."""
    learning, two, three = Learning(), controller(ADAPTIVE), levels(ADAPTIVE)
    learning.keep(ADAPTIVE, DrafterKind.MODEL, two)
    learning.keep(ADAPTIVE, DrafterKind.MODEL, three)
    assert learning.pair(ADAPTIVE, DrafterKind.MODEL) is two.learned
    assert learning.levels(ADAPTIVE, DrafterKind.MODEL) == three.memory
