"""The tensor file writer: the layout is known beforehand, the bytes are those of the safetensors format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.export.tensor_file import TensorFileWriter, WrittenRange
from edgeprec.export.tensor_layout import ALIGNMENT_BYTES, TensorLayout
from edgeprec.tensor_file import PAD_PREFIX, TensorFile
from edgeprec.tensor_spec import TensorSpec, TensorType

SPECS = (
    TensorSpec("embed", TensorType.F16, (7, 6)),
    TensorSpec("norm", TensorType.F32, (5,)),
    TensorSpec("layers.0.qkv.packed", TensorType.U8, (16, 8)),
    TensorSpec("head", TensorType.F16, (3, 3)),
)
shapes = st.lists(st.integers(1, 9), max_size=3).map(tuple)
spec_lists = st.lists(
    st.builds(TensorSpec, st.text("abc.", min_size=1, max_size=6), st.sampled_from(TensorType), shapes),
    min_size=1,
    max_size=8,
    unique_by=lambda spec: spec.name,
)


def values_of(spec: TensorSpec) -> npt.NDArray[Any]:
    """Return values that tell tensors and positions apart."""
    first = len(spec.name)
    return (np.arange(first, first + spec.num_elements) % 251).astype(spec.dtype.numpy).reshape(spec.shape)


def write_all(path: Path, specs: tuple[TensorSpec, ...]) -> None:
    """Write every tensor, last one first."""
    with TensorFileWriter(path, specs) as file:
        for spec in reversed(specs):
            file.write(spec.name, values_of(spec))


def test_safetensors_package_reads_the_file(tmp_path: Path) -> None:
    """The file is an ordinary safetensors file for whoever else opens it."""
    write_all(tmp_path / "x.safetensors", SPECS)
    loaded = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    for spec in SPECS:
        np.testing.assert_array_equal(loaded[spec.name], values_of(spec), strict=True)
    assert {name for name in loaded if not name.startswith(PAD_PREFIX)} == {spec.name for spec in SPECS}


def test_golden_bytes(tmp_path: Path) -> None:
    """The layout is a contract with the graphs that hold offsets: it does not drift."""
    specs = (TensorSpec("a", TensorType.U8, (3,)), TensorSpec("b", TensorType.F16, (1, 2)))
    with TensorFileWriter(tmp_path / "x", specs) as file:
        file.write("a", np.array([1, 2, 3], np.uint8))
        file.write("b", np.array([[1.0, -2.0]], np.float16))
    header = (
        b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},'
        b'"_pad.0":{"dtype":"U8","shape":[61],"data_offsets":[3,64]},'
        b'"b":{"dtype":"F16","shape":[1,2],"data_offsets":[64,68]}}'
    )
    header += b" " * (184 - len(header))
    expected = (184).to_bytes(8, "little") + header + b"\1\2\3" + bytes(61) + b"\x00\x3c\x00\xc0"
    assert (tmp_path / "x").read_bytes() == expected


@given(specs=spec_lists)
def test_layout_is_aligned_and_without_gaps(specs: list[TensorSpec]) -> None:
    """Whatever the shapes, each tensor begins aligned and the tensors cover the file."""
    layout = TensorLayout.plan(specs)
    assert int.from_bytes(layout.header[:8], "little") == len(layout.header) - 8
    position = len(layout.header)
    for place in layout.placements.values():
        assert place.offset_bytes == position
        position += place.length_bytes
    assert position == layout.size_bytes
    assert all(layout.placements[spec.name].offset_bytes % ALIGNMENT_BYTES == 0 for spec in specs)
    described = json.loads(layout.header[8:])
    assert all(tuple(described[spec.name]["shape"]) == spec.shape for spec in specs)


def test_placement_is_the_readers_placement(tmp_path: Path) -> None:
    """A graph may be written before the values: writer and reader agree on every place."""
    write_all(tmp_path / "x", SPECS)
    with TensorFileWriter(tmp_path / "x", SPECS) as writer, TensorFile.open(tmp_path / "x") as reader:
        assert all(writer.placement(spec.name) == reader.placement(spec.name) for spec in SPECS)
        assert writer.size_bytes == (tmp_path / "x").stat().st_size


def test_order_of_writes_does_not_matter(tmp_path: Path) -> None:
    """Tensors may be written as they become ready, and large ones by rows."""
    write_all(tmp_path / "whole", SPECS)
    with TensorFileWriter(tmp_path / "rows", SPECS) as file:
        for spec in SPECS:
            for row in reversed(range(spec.shape[0])):
                file.write_rows(spec.name, values_of(spec)[row : row + 1], first_row=row)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "rows").read_bytes()


def test_a_view_is_written_as_it_reads(tmp_path: Path) -> None:
    """A transposed weight is stored in its own order, not in that of the memory below it."""
    spec = TensorSpec("w", TensorType.F32, (3, 5))
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    with TensorFileWriter(tmp_path / "x", [spec]) as file:
        file.write("w", values.T)
    with TensorFile.open(tmp_path / "x") as reader:
        np.testing.assert_array_equal(reader.array("w"), values.T)


def test_reopening_keeps_values(tmp_path: Path) -> None:
    """A resumed export opens the file it began and loses nothing in it."""
    write_all(tmp_path / "x", SPECS)
    before = (tmp_path / "x").read_bytes()
    TensorFileWriter(tmp_path / "x", SPECS).close()
    assert (tmp_path / "x").read_bytes() == before


def test_on_write_tells_what_was_written(tmp_path: Path) -> None:
    """The journal learns offset and bytes of every write."""
    told: list[WrittenRange] = []
    with TensorFileWriter(tmp_path / "x", SPECS, on_write=told.append) as file:
        file.write("norm", values_of(SPECS[1]))
        place = file.placement("norm")
    assert [written.offset_bytes for written in told] == [place.offset_bytes]
    data = (tmp_path / "x").read_bytes()
    assert bytes(told[0].data) == data[place.offset_bytes : place.offset_bytes + place.length_bytes]


@pytest.mark.parametrize(
    ("name", "values"),
    [("norm", np.zeros(6, np.float32)), ("norm", np.zeros(5, np.float64)), ("embed", np.zeros((6, 7), np.float16))],
)
def test_values_must_be_as_announced(tmp_path: Path, name: str, values: npt.NDArray[Any]) -> None:
    """A wrong shape or type is caught where it is written, not by whoever reads the bundle."""
    with TensorFileWriter(tmp_path / "x", SPECS) as file, pytest.raises(AssertionError, match=name):
        file.write(name, values)


def test_rows_must_fit(tmp_path: Path) -> None:
    """Rows past the end would run into the next tensor."""
    with TensorFileWriter(tmp_path / "x", SPECS) as file, pytest.raises(AssertionError, match="rows 6"):
        file.write_rows("embed", np.zeros((2, 6), np.float16), first_row=6)


def test_close_twice(tmp_path: Path) -> None:
    """Closing again is harmless."""
    file = TensorFileWriter(tmp_path / "x", SPECS)
    file.close()
    file.close()
