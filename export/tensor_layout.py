"""Where every tensor of a safetensors file will lie, known before there are values.

The header is padded with blanks and the tensors with ``_pad.<n>`` ones, so that each begins at a multiple of
``ALIGNMENT_BYTES``: the format allows no gaps, and readers that map the file want aligned weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edgeprec.tensor_file import PAD_PREFIX
from edgeprec.tensor_spec import TensorPlacement, TensorSpec, TensorType

__all__ = ["ALIGNMENT_BYTES", "TensorLayout"]

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The first bytes of a file and the place of each tensor behind them."""

    header: bytes  # its 8-byte length included
    placements: dict[str, TensorPlacement]
    size_bytes: int

    @classmethod
    def plan(cls, specs: Iterable[TensorSpec]) -> TensorLayout:
        """Lay the tensors out in the order given; equal specs give equal bytes."""
        padded = list(_with_padding(list(specs)))
        relative = dict(_place(padded))
        assert len(relative) == len(padded), "a tensor name occurs twice"
        header = _header(padded, relative)
        placements = {
            name: TensorPlacement(len(header) + place.offset_bytes, place.length_bytes)
            for name, place in relative.items()
        }
        return cls(header, placements, len(header) + sum(spec.num_bytes for spec in padded))

    @property
    def padding(self) -> tuple[TensorPlacement, ...]:
        """Return the places that hold zeros and no tensor."""
        return tuple(place for name, place in self.placements.items() if name.startswith(PAD_PREFIX))


def _with_padding(specs: list[TensorSpec]) -> Iterator[TensorSpec]:
    count = 0
    for spec in specs:
        yield spec
        gap = -spec.num_bytes % ALIGNMENT_BYTES
        if gap and spec is not specs[-1]:
            yield TensorSpec(f"{PAD_PREFIX}{count}", TensorType.U8, (gap,))
            count += 1


def _place(specs: list[TensorSpec]) -> Iterator[tuple[str, TensorPlacement]]:
    offset = 0
    for spec in specs:
        yield spec.name, TensorPlacement(offset, spec.num_bytes)
        offset += spec.num_bytes


def _header(specs: list[TensorSpec], places: dict[str, TensorPlacement]) -> bytes:
    entries = {
        spec.name: {
            "dtype": str(spec.dtype),
            "shape": list(spec.shape),
            "data_offsets": [
                places[spec.name].offset_bytes,
                places[spec.name].offset_bytes + places[spec.name].length_bytes,
            ],
        }
        for spec in specs
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text
