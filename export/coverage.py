"""Which ranges of a file were written: a tensor that nobody wrote must not pass for one full of zeros."""

from __future__ import annotations

from collections.abc import Iterable

from edgeprec.tensor_spec import TensorPlacement

__all__ = ["covers", "merge"]


def merge(ranges: Iterable[TensorPlacement]) -> list[TensorPlacement]:
    """Return the same bytes as sorted ranges that neither touch nor overlap."""
    merged: list[TensorPlacement] = []
    for place in sorted(ranges, key=lambda place: place.offset_bytes):
        last = merged[-1] if merged else None
        if last is None or place.offset_bytes > last.offset_bytes + last.length_bytes:
            merged.append(place)
            continue
        end = max(last.offset_bytes + last.length_bytes, place.offset_bytes + place.length_bytes)
        merged[-1] = TensorPlacement(last.offset_bytes, end - last.offset_bytes)
    return merged


def covers(merged: Iterable[TensorPlacement], place: TensorPlacement) -> bool:
    """Return whether one of the merged ranges holds all of ``place``."""
    return any(_holds(outer, place) for outer in merged)


def _holds(outer: TensorPlacement, inner: TensorPlacement) -> bool:
    end = inner.offset_bytes + inner.length_bytes
    return outer.offset_bytes <= inner.offset_bytes and end <= outer.offset_bytes + outer.length_bytes
