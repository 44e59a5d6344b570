"""Counts layer passes: one layer on one row, by precision, for the draft and the target apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeprec.architecture import LINEARS, ModelConfig
from edgeprec.precision import Plan

__all__ = ["PassCounter", "WeightBits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBits:
    """How many weights each gate stands for, and what one of them costs to read in each variant."""

    weights: tuple[int, ...]  # per decoder layer, then the head
    int4_bits: float
    fp16_bits: float = 16.0

    @classmethod
    def of(cls, config: ModelConfig, *, int4_bits: float) -> WeightBits:
        """Count a model's linear weights."""
        per_layer = sum(k * n for k, n in map(config.linear_shape, LINEARS))
        k, n = config.linear_shape("head")
        return cls(weights=(*(per_layer,) * config.num_layers, k * n), int4_bits=int4_bits)


@dataclass(slots=True)
class PassCounter:
    """Sums over passes of one model. Rows count for the share, passes for the bits read."""

    bits: WeightBits
    int4_passes: int = 0
    all_passes: int = 0
    bits_read: float = 0.0
    weights_read: float = 0.0
    _by_plan: dict[Plan, tuple[float, float]] = field(default_factory=dict)

    def add(self, plan: Plan, *, rows: int, times: int = 1) -> None:
        """Count one forward pass, or several alike."""
        self.int4_passes += plan.int4_passes * rows * times
        self.all_passes += len(plan.gates) * rows * times
        read, weights = self._cost(plan)
        self.bits_read += read * times
        self.weights_read += weights * times

    def _cost(self, plan: Plan) -> tuple[float, float]:
        if plan not in self._by_plan:
            bits = self.bits
            read = sum(
                n * (bits.int4_bits if gate else bits.fp16_bits)
                for n, gate in zip(bits.weights, plan.gates, strict=True)
            )
            self._by_plan[plan] = (read, float(sum(bits.weights)))
        return self._by_plan[plan]
