"""Ranges of written bytes: merging keeps every byte and no other; a tensor is written only when all of it is."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edgeprec.export.coverage import covers, merge
from edgeprec.tensor_spec import TensorPlacement

places = st.builds(TensorPlacement, st.integers(0, 40), st.integers(1, 10))


def bytes_of(ranges: list[TensorPlacement]) -> set[int]:
    """Return every byte of the ranges."""
    return {byte for place in ranges for byte in range(place.offset_bytes, place.offset_bytes + place.length_bytes)}


@given(ranges=st.lists(places, max_size=12))
def test_merge_keeps_the_bytes(ranges: list[TensorPlacement]) -> None:
    """The merged ranges are the same bytes, sorted, with gaps between them."""
    merged = merge(ranges)
    assert bytes_of(merged) == bytes_of(ranges)
    for left, right in pairwise(merged):
        assert left.offset_bytes + left.length_bytes < right.offset_bytes


@given(ranges=st.lists(places, max_size=12), place=places)
def test_covers_means_every_byte(ranges: list[TensorPlacement], place: TensorPlacement) -> None:
    """One missing byte is enough for a tensor not to be written."""
    assert covers(merge(ranges), place) == (bytes_of([place]) <= bytes_of(ranges))
