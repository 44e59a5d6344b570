"""How a model is cut into segments for TensorRT: the embedding, groups of layers in each precision, the head in each.

A conditional inside a TensorRT engine runs both of its branches (measured, docs/lab-notes.md), so a plan picks among
whole engines instead: a group of layers runs in INT4 where the plan has all of its layers in INT4, else in FP16.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.precision import Plan, Precision

__all__ = ["Segment", "SegmentPart", "cut_into_segments", "pick_segments"]


class SegmentPart(StrEnum):
    """What a segment computes."""

    EMBED = "embed"  # tokens and positions -> hidden, rotary tables, attention mask
    LAYERS = "layers"  # hidden -> hidden, and the cache of these layers
    HEAD = "head"  # hidden -> logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One engine of a chain. ``precision`` is None for the embedding; ``num_layers`` is 0 for all but layers."""

    part: SegmentPart
    precision: Precision | None = None
    first_layer: int = 0
    num_layers: int = 0

    @property
    def name(self) -> str:
        """Return ``embed``, ``layers-4-7.int4`` or ``head.fp16``."""
        if self.part is SegmentPart.EMBED:
            return "embed"
        which = f"-{self.first_layer}-{self.first_layer + self.num_layers - 1}" if self.num_layers else ""
        return f"{self.part}{which}.{self.precision}"

    @property
    def layers(self) -> range:
        """Return the decoder layers it computes."""
        return range(self.first_layer, self.first_layer + self.num_layers)


def cut_into_segments(config: ModelConfig, *, layers_per_segment: int) -> tuple[Segment, ...]:
    """Return every segment of a model, in the order in which they run, INT4 before FP16.

    Raises:
        ConfigError: there is no such number of layers.
    """
    if layers_per_segment < 1:
        raise ConfigError(f"layers per segment is {layers_per_segment}, expected 1 or more")
    segments = [Segment(part=SegmentPart.EMBED)]
    for first in range(0, config.num_layers, layers_per_segment):
        count = min(layers_per_segment, config.num_layers - first)
        segments += [
            Segment(part=SegmentPart.LAYERS, precision=precision, first_layer=first, num_layers=count)
            for precision in Precision
        ]
    return (*segments, *(Segment(part=SegmentPart.HEAD, precision=precision) for precision in Precision))


def pick_segments(segments: tuple[Segment, ...], plan: Plan) -> tuple[Segment, ...]:
    """Return the chain that runs a plan; where a plan is mixed inside a group, the group runs in FP16."""
    return tuple(segment for segment in segments if segment.precision in (None, _wanted(segment, plan)))


def _wanted(segment: Segment, plan: Plan) -> Precision:
    gates = plan.gates[-1:] if segment.part is SegmentPart.HEAD else [plan.gates[layer] for layer in segment.layers]
    return Precision.INT4 if all(gates) else Precision.FP16
