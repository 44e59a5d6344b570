"""Controllers of a model of four layers, and whole rounds of them: draft, verification, observation."""

from __future__ import annotations

from typing import Any

from edgeprec.calibration import AgreementGrid, Calibration
from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, Mode
from edgeprec.controller import Controller, Decision, Verification
from edgeprec.governor import PowerBias
from edgeprec.stop_rules import StopReason

LAYERS = 4
_BY_ENTROPY = (0.999, 0.995, 0.985, 0.95, 0.85, 0.6, 0.3, 0.1)
GRID = AgreementGrid((250,) * 32, tuple(int(250 * rate) for rate in _BY_ENTROPY for _ in range(4)))
CALIBRATION = Calibration(
    int4=GRID,
    draft=GRID,
    theta_low_bits=0.25,
    theta_high_bits=3.0,
    layer_order=(2, 0, 3, 1),
    sensitivity=(0.3, 0.1, 0.4, 0.2),
)


def make_controller(mode: Mode = Mode.EXACT, **changes: Any) -> Controller:
    """Return a controller of a calibrated pair whose target drafts for itself."""
    settings: dict[str, Any] = {
        "config": ControllerConfig(),
        "drafting": DraftingConfig(),
        "calibration": CALIBRATION,
        "drafter": DrafterKind.SELF,
        "num_layers": LAYERS,
    }
    return Controller(mode=mode, **{**settings, **changes})


def run_round(
    controller: Controller,
    *,
    entropy_bits: float = 0.05,
    draft_bits: float | None = None,
    margin: float = 5.0,
    agreeing: int = 99,
    room: int = 15,
    bias: PowerBias | None = None,
    energy: bool = False,
) -> tuple[Decision, int, StopReason | None]:
    """Run one verified round: draft steps of 3 ms and 9 mJ, passes of 10 ms and 10 mJ; the first tokens agree."""
    decision = controller.begin_round(room_tokens=room, bias=bias or PowerBias())
    drafted, stop = 0, None
    while decision.draft_cap and stop is None:
        stop = controller.observe_draft(entropy_bits if draft_bits is None else draft_bits, margin).stop
        drafted += 1
    accepted = min(agreeing, drafted)
    controller.observe_verify(
        Verification(
            accepted=accepted,
            entropy_bits=[entropy_bits] * (accepted + 1),
            rows=drafted + 1,
            draft_ns=3_000_000 * drafted,
            verify_ns=10_000_000 + 300_000 * drafted,
            draft_mj=9.0 * drafted if energy else None,
            verify_mj=10.0 if energy else None,
        )
    )
    return decision, drafted, stop


def warmed(controller: Controller, rounds: int = 8, **changes: Any) -> Controller:
    """Run rounds, ``changes`` as for ``run_round``, and return the same controller."""
    for _ in range(rounds):
        run_round(controller, **changes)
    return controller
