"""Which of its two variants each layer runs: INT4 or FP16.

A plan holds one gate per decoder layer and a last one for the output head. A gate that is true means INT4, as in the
graph's ``gate`` input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from edgeprec.errors import ConfigError

__all__ = ["Plan", "Precision"]


class Precision(StrEnum):
    """The variants of a linear layer that a bundle stores."""

    INT4 = "int4"
    FP16 = "fp16"


@dataclass(frozen=True, slots=True)
class Plan:
    """The precision of every layer in one forward pass.

    ``gates`` has length L+1: decoder layers 0..L-1, then the head. True = INT4, False = FP16.
    """

    gates: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.gates) < 2:
            raise ConfigError(f"a plan needs a gate per layer and one for the head, got {len(self.gates)} gates")

    @classmethod
    def uniform(cls, precision: Precision, *, num_layers: int) -> Plan:
        """Run every layer and the head in one precision."""
        return cls((precision is Precision.INT4,) * (num_layers + 1))

    @classmethod
    def with_int4_layers(cls, layers: Iterable[int], *, num_layers: int, int4_head: bool = False) -> Plan:
        """Run the named decoder layers in INT4 and the others in FP16."""
        chosen = frozenset(layers)
        return cls((*(index in chosen for index in range(num_layers)), int4_head))

    @classmethod
    def graded(cls, order: Sequence[int], *, fp16_layers: int, int4_head: bool) -> Plan:
        """Run the ``fp16_layers`` first layers of ``order`` (most sensitive first) in FP16, the rest in INT4."""
        return cls.with_int4_layers(order[fp16_layers:], num_layers=len(order), int4_head=int4_head)

    @property
    def num_layers(self) -> int:
        """Decoder layers, the head not counted."""
        return len(self.gates) - 1

    @property
    def int4_passes(self) -> int:
        """Gates set to INT4, head included."""
        return sum(self.gates)

    @property
    def is_fp16(self) -> bool:
        """Whether nothing runs in INT4."""
        return not any(self.gates)
