"""The engine file: what was written comes back, and nothing that is cut short or altered is taken for whole."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from edgeprec.bundle import Bundle
from edgeprec.engine_file import EngineFile, EngineHeader, source_digest, write_footer, write_plan
from edgeprec.engine_segment import Segment, SegmentPart
from edgeprec.errors import BundleError
from edgeprec.precision import Precision

EMBED = Segment(part=SegmentPart.EMBED)
LAYERS = Segment(part=SegmentPart.LAYERS, precision=Precision.INT4, first_layer=4, num_layers=3)
HEAD = Segment(part=SegmentPart.HEAD, precision=Precision.FP16)
PLANS = {EMBED: b"embedding", LAYERS: b"L" * 200, HEAD: b"h"}


def whole_file() -> tuple[bytes, EngineHeader]:
    """Return the bytes of a file of three plans, and its header."""
    file = io.BytesIO()
    places = tuple(write_plan(file, segment, memoryview(data), weight_bytes=5) for segment, data in PLANS.items())
    header = EngineHeader(
        kind="tensorrt_rtx", version="1.7.1", sms=("sm86", "sm89"), model="target", context_tokens=2048, max_rows=16,
        source_sha256="a" * 64, plans=places,
    )  # fmt: skip
    write_footer(file, header)
    return file.getvalue(), header


def test_plans_and_header_come_back(tmp_path: Path) -> None:
    """Every plan has its own bytes, at a multiple of 64, and the description is the one written."""
    data, header = whole_file()
    (tmp_path / "e").write_bytes(data)
    file = EngineFile.open(tmp_path / "e")
    assert file.header == header
    assert {segment: bytes(file.plan(segment)) for segment in header.segments} == PLANS
    assert all(place.offset_bytes % 64 == 0 for place in header.plans)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """No prefix of a file passes, the empty one included."""
    data, _ = whole_file()
    path = tmp_path / "e"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(BundleError, match=r"truncated or damaged|cannot be read as an engine file"):
            EngineFile.open(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"context_tokens": 0}, "context_tokens"),
        ({"sms": [89]}, "sms holds 89"),
        ({"surprise": 1}, "surprise"),
        ({"plans": [{"part": "tail"}]}, "'tail' is not a valid|precision"),
    ],
)
def test_a_description_of_another_form_is_refused(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    """A key that is missing, unknown or of a wrong kind is named."""
    _, header = whole_file()
    text = json.dumps(header.to_json() | change).encode()
    path = tmp_path / "e"
    path.write_bytes(b"\0" * 1000 + text + len(text).to_bytes(8, "little") + b"EPENGIN1")
    with pytest.raises(BundleError, match=expected):
        EngineFile.open(path)


def test_a_plan_beyond_the_file_is_refused(tmp_path: Path) -> None:
    """An offset cannot lead into the description or out of the file."""
    _, header = whole_file()
    far = replace(header.plans[0], length_bytes=10_000)
    file = io.BytesIO()
    write_footer(file, replace(header, plans=(far,)))
    (tmp_path / "e").write_bytes(file.getvalue())
    with pytest.raises(BundleError, match="segment embed leaves the file"):
        EngineFile.open(tmp_path / "e")


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    """Asking for a segment the file does not have says which."""
    data, _ = whole_file()
    (tmp_path / "e").write_bytes(data)
    with pytest.raises(BundleError, match=r"no segment head\.int4"):
        EngineFile.open(tmp_path / "e").plan(replace(HEAD, precision=Precision.INT4))


def test_the_digest_follows_weights_and_shape(bundles: ModuleType, tmp_path: Path) -> None:
    """Another byte in either weight file or the graph gives another digest; the rest of the bundle does not."""
    bundle = Bundle.open(bundles.make_bundle(tmp_path / "a.edgeprec"))
    first = source_digest(bundle.target)
    for name, entry in bundle.manifest.files.items():
        files = dict(bundle.manifest.files) | {name: replace(entry, sha256="0" * 64)}
        changed = Bundle(bundle.root, replace(bundle.manifest, files=files))
        assert (source_digest(changed.target) == first) is not name.startswith("target/")
