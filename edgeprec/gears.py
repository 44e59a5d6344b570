"""The gear: which rung of precision entropy asks for, with a dead band and a hold so that it does not flap.

Rungs go from 0 (every layer in INT4) to ``top`` (every layer in FP16); rungs between keep the most sensitive layers
in FP16. Above ``theta_high`` the gear goes one rung up, below ``theta_low`` one rung down, in between it stays; two
changes lie at least ``hold_tokens`` emitted tokens apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from edgeprec.errors import ConfigError
from edgeprec.precision import Plan, Precision

__all__ = ["Band", "Gear", "GearState", "ladder"]


class Gear(StrEnum):
    """Where smoothed entropy stands against the thresholds; MIDDLE = an intermediate per-layer plan."""

    LOW = "low"
    MIDDLE = "middle"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The thresholds in bits and the number of tokens between two changes of gear."""

    theta_low_bits: float
    theta_high_bits: float
    hold_tokens: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.theta_low_bits <= self.theta_high_bits:
            raise ConfigError(
                f"controller: theta_low_bits is {self.theta_low_bits}, expected 0 to theta_high_bits "
                f"{self.theta_high_bits}"
            )

    def direction(self, smoothed_bits: float) -> int:
        """Return +1 above the band, -1 below it, 0 inside, its edges included."""
        return (smoothed_bits > self.theta_high_bits) - (smoothed_bits < self.theta_low_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class GearState:
    """The rung in use. ``tokens_since_change`` counts emitted tokens."""

    rung: int
    top: int
    tokens_since_change: int

    @classmethod
    def start(cls, *, top: int, band: Band, first_bits: float | None) -> GearState:
        """Return the gear before the first token: LOW when the prompt's last row was below the band, else HIGH."""
        is_low = first_bits is not None and band.direction(first_bits) < 0
        return cls(rung=0 if is_low else top, top=top, tokens_since_change=0)

    @property
    def gear(self) -> Gear:
        """Return the rung's name."""
        if self.rung == 0:
            return Gear.LOW
        return Gear.HIGH if self.rung == self.top else Gear.MIDDLE

    def emitted(self, smoothed_bits: float | None, band: Band, *, tokens: int = 1) -> GearState:
        """Return the gear after ``tokens`` more emitted tokens, smoothed entropy now being ``smoothed_bits``."""
        since = self.tokens_since_change + tokens
        step = 0 if smoothed_bits is None or since < band.hold_tokens else band.direction(smoothed_bits)
        rung = min(max(self.rung + step, 0), self.top)
        return replace(self, rung=rung, tokens_since_change=since if rung == self.rung else 0)


def ladder(
    *, num_layers: int, middle_gears: int, order: Sequence[int] | None, gated_layers: int | None = None
) -> tuple[Plan, ...]:
    """Return one plan per rung: the lowest gear, then ``middle_gears`` plans with ever more FP16 layers, then all FP16.

    The lowest gear runs ``gated_layers`` layers in INT4, the least sensitive ones; None = all of them and the head.
    ``order`` names the layers, most sensitive first; None takes them from the first to the last.

    Raises:
        ConfigError: the order is not the model's, or there are not so many layers to gate.
    """
    order = range(num_layers) if order is None else order
    if sorted(order) != list(range(num_layers)):
        raise ConfigError(
            f"layer order names {len(order)} layers {tuple(order)}, expected each of the model's {num_layers} once"
        )
    if gated_layers is not None and not 1 <= gated_layers <= num_layers:
        raise ConfigError(f"controller: gated_layers is {gated_layers}, expected 1 to the model's {num_layers} layers")
    has_int4_head = gated_layers is None
    kept = 0 if gated_layers is None else num_layers - gated_layers
    steps = (kept + round((num_layers - kept) * i / (middle_gears + 1)) for i in range(1, middle_gears + 1))
    counts = (kept, *sorted(set(steps) - {kept, num_layers}))
    lower = (Plan.graded(order, fp16_layers=count, int4_head=has_int4_head) for count in counts)
    return (*lower, Plan.uniform(Precision.FP16, num_layers=num_layers))
