"""A pair without a calibration: theta_high is learned from what FP16 accepts, not taken from a table of defaults."""

from __future__ import annotations

import pytest

from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, Mode
from edgeprec.controller import Controller, Verification
from edgeprec.thresholds import MAX_ENTROPY_BITS

HIGH_BITS = 5.0


def controller(mode: Mode = Mode.EXACT, **config: float) -> Controller:
    """Return a controller that knows nothing."""
    return Controller(
        mode=mode,
        config=ControllerConfig(**config),  # type: ignore[arg-type]
        drafting=DraftingConfig(),
        calibration=None,
        drafter=DrafterKind.SELF,
        num_layers=4,
    )


def run(made: Controller, *, rounds: int, accepts: bool) -> int:
    """Run rounds on text of high entropy, draft steps of 2 ms, passes of 10; return how many tokens were drafted."""
    total = 0
    for _ in range(rounds):
        decision, drafted, stop = made.begin_round(room_tokens=15), 0, None
        while decision.draft_cap and stop is None:
            stop, drafted = made.observe_draft(HIGH_BITS, 0.2).stop, drafted + 1
        accepted = drafted if accepts else 0
        made.observe_verify(
            Verification(
                accepted=accepted,
                entropy_bits=[HIGH_BITS] * (accepted + 1),
                rows=drafted + 1,
                draft_ns=2_000_000 * drafted,
                verify_ns=10_000_000 + 100_000 * drafted,
            )
        )
        total += drafted
    return total


def test_accepted_text_of_high_entropy_is_drafted() -> None:
    """A fixed threshold of a few bits would keep a drafter that is right at high entropy from ever drafting."""
    made = controller()
    assert made.band.theta_high_bits == MAX_ENTROPY_BITS
    assert run(made, rounds=60, accepts=True) > 100
    assert made.band.theta_high_bits > HIGH_BITS
    assert made.setting_notes == ("this bundle has no calibration: the entropy thresholds follow what FP16 accepts",)


def test_rejected_text_of_high_entropy_is_left_to_fp16() -> None:
    """What is never accepted ends in plain decoding."""
    made = controller()
    run(made, rounds=60, accepts=False)
    assert run(made, rounds=60, accepts=False) <= 6


@pytest.mark.parametrize(("mode", "config"), [(Mode.GATED, {}), (Mode.EXACT, {"theta_high_bits": 3.0})])
def test_a_threshold_that_was_set_stays(mode: Mode, config: dict[str, float]) -> None:
    """By hand, or for a mode whose text hangs on it."""
    made = controller(mode, **config)
    before = made.band.theta_high_bits
    assert before < MAX_ENTROPY_BITS
    if mode is Mode.EXACT:
        run(made, rounds=40, accepts=True)
    assert made.band.theta_high_bits == before
    assert str(before) in made.setting_notes[0]
