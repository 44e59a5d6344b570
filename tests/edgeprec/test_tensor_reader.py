"""The tensor file reader trusts nothing in a header: every damage is a BundleError, never another exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeprec.errors import BundleError
from edgeprec.tensor_file import HEADER_LIMIT_BYTES, TensorFile
from edgeprec.tensor_spec import TensorSpec, TensorType

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(8, dtype=np.uint8)}
GOOD = safetensors.numpy.save(ARRAYS)


def encode(header: Any, data: bytes = b"") -> bytes:
    """Return the bytes of a file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "U8", shape: Any = (2,), offsets: Any = (0, 2), **more: Any) -> dict[str, Any]:
    """Return one tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets} | more


def open_bytes(data: bytes) -> TensorFile:
    """Read a file that lies in memory."""
    return TensorFile(memoryview(data), where="x.safetensors")


BAD = {
    "empty": (b"", "0 bytes"),
    "no header length": (b"\1\0\0", "3 bytes"),
    "header longer than the file": ((50).to_bytes(8, "little") + b"{}", "inside its header"),
    "header over the limit": ((HEADER_LIMIT_BYTES + 1).to_bytes(8, "little") + b"{}", "at most"),
    "header is no text": (encode(b"\xff\xfe{}"), "not valid JSON"),
    "header is no JSON": (encode(b"{nonsense"), "not valid JSON"),
    "header nests without end": (encode(b"[" * 100_000), "not valid JSON"),
    "header is a list": (encode([]), "no JSON object"),
    "tensor is a number": (encode({"a": 3}), "expected an object"),
    "tensor twice": (encode(b'{"a":1,"a":2}'), "twice"),
    "type unknown": (encode({"a": entry("BF16", offsets=[0, 4])}, bytes(4)), "type 'BF16'"),
    "type missing": (encode({"a": {"shape": [2], "data_offsets": [0, 2]}}, bytes(2)), "no 'dtype'"),
    "key unknown": (encode({"a": entry(stride=1)}, bytes(2)), "unknown keys"),
    "shape negative": (encode({"a": entry(shape=[-2])}, bytes(2)), "shape"),
    "shape of zero": (encode({"a": entry(shape=[0], offsets=[0, 0])}), "shape"),
    "shape of booleans": (encode({"a": entry(shape=[True], offsets=[0, 1])}, bytes(1)), "shape"),
    "shape of fractions": (encode({"a": entry(shape=[2.0])}, bytes(2)), "shape"),
    "shape huge": (encode({"a": entry(shape=[2**70, 2**70])}, bytes(2)), "its shape needs"),
    "shape too deep": (encode({"a": entry(shape=[1] * 9, offsets=[0, 1])}, bytes(1)), "shape"),
    "three offsets": (encode({"a": entry(offsets=[0, 1, 2])}, bytes(2)), "shape"),
    "offsets negative": (encode({"a": entry(offsets=[-2, 0])}, bytes(2)), "shape"),
    "offsets reversed": (encode({"a": entry(offsets=[2, 0])}, bytes(2)), "its shape needs 2"),
    "offsets of another size": (encode({"a": entry(offsets=[0, 3])}, bytes(3)), "its shape needs 2"),
    "offsets past the end": (encode({"a": entry(offsets=[0, 2])}, bytes(1)), "describes"),
    "data truncated": (GOOD[:-1], "describes"),
    "data too long": (GOOD + b"\0", "describes"),
    "overlap": (encode({"a": entry(), "b": entry(offsets=[1, 3])}, bytes(3)), "begins at"),
    "gap": (encode({"a": entry(), "b": entry(offsets=[3, 5])}, bytes(5)), "begins at"),
    "gap at the beginning": (encode({"a": entry(offsets=[1, 3])}, bytes(3)), "begins at"),
}


@pytest.mark.parametrize(("data", "message"), BAD.values(), ids=BAD.keys())
def test_damage_is_named(data: bytes, message: str) -> None:
    """Each way a header can lie has its own sentence, which names the file."""
    with pytest.raises(BundleError, match=message) as caught:
        open_bytes(data)
    assert "x.safetensors" in str(caught.value)


def test_reads_what_the_safetensors_package_wrote() -> None:
    """The format is the public one, metadata included."""
    file = open_bytes(safetensors.numpy.save(ARRAYS, metadata={"format": "np"}))
    assert set(file.specs) == set(ARRAYS)
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(file.array(name), values, strict=True)


def test_views_are_read_only_and_outlive_the_file(tmp_path: Path) -> None:
    """Weights cannot be changed by accident, and closing the file does not pull them away."""
    (tmp_path / "x").write_bytes(GOOD)
    with TensorFile.open(tmp_path / "x") as file:
        view = file.array("a")
    file.close()
    np.testing.assert_array_equal(view, ARRAYS["a"])
    assert not view.flags.writeable
    with pytest.raises(BundleError, match="closed"):
        file.array("a")


def test_placement_points_at_the_values() -> None:
    """Placement counts from the beginning of the file, as ONNX external data does."""
    place = open_bytes(GOOD).placement("a")
    assert GOOD[place.offset_bytes :][: place.length_bytes] == ARRAYS["a"].tobytes()


@pytest.mark.parametrize("content", [None, b""])
def test_unreadable_file(tmp_path: Path, content: bytes | None) -> None:
    """A missing or empty file is a damaged bundle."""
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(BundleError, match="cannot be read"):
        TensorFile.open(tmp_path / "x")


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([TensorSpec("a", TensorType.F32, (2, 3))], "do not belong to this model: b"),
        ([TensorSpec("c", TensorType.F32, (2, 3))], "no tensor 'c'"),
        ([TensorSpec("a", TensorType.F32, (3, 2))], r"F32 \[2, 3\], expected F32 \[3, 2\]"),
        ([TensorSpec("a", TensorType.F16, (2, 3))], "expected F16"),
    ],
)
def test_require_refuses_another_models_file(specs: list[TensorSpec], message: str) -> None:
    """A whole file of another model is found out before it is computed with."""
    with pytest.raises(BundleError, match=message):
        open_bytes(GOOD).require(specs)


def test_unknown_tensor() -> None:
    """Asking for a tensor that is not there says so."""
    with pytest.raises(BundleError, match="no tensor 'q'"):
        open_bytes(GOOD).array("q")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(position=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_a_changed_byte_never_crashes(position: int, value: int) -> None:
    """Any one byte may be wrong: the reader gives tensors inside the file or a BundleError."""
    check_reads_or_refuses(GOOD[:position] + bytes([value]) + GOOD[position + 1 :])


@given(length=st.integers(0, len(GOOD)))
def test_a_cut_file_is_refused(length: int) -> None:
    """A truncated file never opens."""
    if length < len(GOOD):
        with pytest.raises(BundleError):
            open_bytes(GOOD[:length])


@given(data=st.binary(max_size=200))
def test_noise_never_crashes(data: bytes) -> None:
    """Neither does a file of another kind."""
    check_reads_or_refuses(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=8,
)
tensor_like = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["U8", "F16", "F32", "BF16", ""]) | json_values,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 20), max_size=3) | json_values,
    },
)


@given(header=st.dictionaries(st.text(max_size=3), tensor_like | json_values, max_size=4), data=st.binary(max_size=24))
def test_a_made_up_header_never_crashes(header: dict[str, Any], data: bytes) -> None:
    """Well-formed JSON of any other content is refused, or describes the data exactly."""
    check_reads_or_refuses(encode(header, data))


def check_reads_or_refuses(data: bytes) -> None:
    """Open the bytes; if that works, every tensor must be readable."""
    try:
        file = open_bytes(data)
    except BundleError:
        return
    for name, spec in file.specs.items():
        assert file.array(name).nbytes == spec.num_bytes
