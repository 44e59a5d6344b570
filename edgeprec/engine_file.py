"""The file of a model's TensorRT engines: plans back to back, then what they are.

    plan, plan, ...      each begins at a multiple of 64 bytes
    header               JSON, UTF-8: ``EngineHeader`` with offset and length of every plan
    8 bytes              length of the header, little endian
    8 bytes              ``EPENGIN1``

The description comes last so that a file can be written while it is built, and so that a file cut short has none.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edgeprec.bundle import BundleModel
from edgeprec.engine_segment import Segment, SegmentPart
from edgeprec.errors import BundleError
from edgeprec.precision import Precision
from edgeprec.strict_json import Fields, parse_json

__all__ = ["EngineFile", "EngineHeader", "PlanPlace", "source_digest", "write_footer", "write_plan"]

_MAGIC = b"EPENGIN1"
_ALIGNMENT_BYTES = 64
_DAMAGED = "it is truncated or damaged: build it again with edgeprec build"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPlace:
    """Where the plan of a segment lies in the file, and the bytes of the weights it was built from."""

    segment: Segment
    offset_bytes: int
    length_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHeader:
    """What the plans were built with, for and from. ``source_sha256`` is that of ``source_digest``."""

    kind: str  # "tensorrt", "tensorrt_rtx"
    version: str
    sms: tuple[str, ...]
    model: str  # "target", "draft"
    context_tokens: int
    max_rows: int
    source_sha256: str
    plans: tuple[PlanPlace, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the segments in file order."""
        return tuple(place.segment for place in self.plans)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the file's end."""
        values = {name: getattr(self, name) for name in _NAMES}
        return values | {"sms": list(self.sms), "plans": [_place_to_json(place) for place in self.plans]}


_NAMES = ("kind", "version", "model", "context_tokens", "max_rows", "source_sha256")


class EngineFile:
    """An open engine file; plans are views that stay valid after ``close``."""

    def __init__(self, header: EngineHeader, data: memoryview) -> None:
        self.header = header
        self._data = data

    @classmethod
    def open(cls, path: Path) -> EngineFile:
        """Map a file and read what it holds.

        Raises:
            BundleError: it cannot be read, is cut short, or is no engine file.
        """
        try:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise BundleError(f"{path} cannot be read as an engine file: {error}") from error
        return cls(_read_header(data, str(path)), data)

    def plan(self, segment: Segment) -> memoryview:
        """Return the plan of a segment.

        Raises:
            BundleError: the file has no such segment.
        """
        for place in self.header.plans:
            if place.segment == segment:
                return self._data[place.offset_bytes : place.offset_bytes + place.length_bytes]
        raise BundleError(f"the engine file of the {self.header.model} has no segment {segment.name}: {_DAMAGED}")


def source_digest(model: BundleModel) -> str:
    """Return the digest that ties an engine to what it was built from: the model's weights, graph and group size."""
    entry, files = model.entry, model.bundle.manifest.files
    names = {entry.fp16.file, entry.int4.file, *entry.graphs.values()}
    if entry.shares_embedding or entry.shares_head:
        target = model.bundle.manifest.target
        names |= {target.fp16.file, target.int4.file}
    values = {name: files[name].sha256 for name in names} | {"architecture": entry.architecture.to_json()}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_plan(file: BinaryIO, segment: Segment, data: memoryview, *, weight_bytes: int) -> PlanPlace:
    """Append a plan and return its place."""
    file.write(b"\0" * (-file.tell() % _ALIGNMENT_BYTES))
    offset_bytes = file.tell()
    file.write(data)
    return PlanPlace(segment=segment, offset_bytes=offset_bytes, length_bytes=data.nbytes, weight_bytes=weight_bytes)


def write_footer(file: BinaryIO, header: EngineHeader) -> None:
    """Append the description; the file is whole then."""
    text = json.dumps(header.to_json(), sort_keys=True, separators=(",", ":")).encode()
    file.write(text + len(text).to_bytes(8, "little") + _MAGIC)


def _read_header(data: memoryview, where: str) -> EngineHeader:
    size_bytes = len(data)
    if size_bytes < 16 or bytes(data[-8:]) != _MAGIC:
        raise BundleError(f"{where} does not end as an engine file does: {_DAMAGED}")
    length = int.from_bytes(data[-16:-8], "little")
    start = size_bytes - 16 - length
    if start < 0:
        raise BundleError(f"{where} has {size_bytes:,} bytes, its description claims {length:,}: {_DAMAGED}")
    values = parse_json(bytes(data[start:-16]), where=where, error=BundleError)
    fields = Fields(values, where=where, error=BundleError)
    header = EngineHeader(
        kind=fields.text("kind"),
        version=fields.text("version"),
        model=fields.text("model"),
        context_tokens=fields.integer("context_tokens", minimum=1),
        max_rows=fields.integer("max_rows", minimum=1),
        source_sha256=fields.text("source_sha256"),
        sms=tuple(_text(item, where) for item in fields.items("sms")),
        plans=tuple(_place_from_json(item, where) for item in fields.items("plans")),
    )
    fields.end()
    for place in header.plans:
        if place.offset_bytes + place.length_bytes > start:
            raise BundleError(f"{where}: segment {place.segment.name} leaves the file: {_DAMAGED}")
    return header


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BundleError(f"{where}: sms holds {value!r}, expected names such as 'sm89': {_DAMAGED}")
    return value


def _place_to_json(place: PlanPlace) -> dict[str, Any]:
    segment = place.segment
    return {
        "part": segment.part.value,
        "precision": segment.precision and segment.precision.value,
        "first_layer": segment.first_layer,
        "num_layers": segment.num_layers,
        "offset_bytes": place.offset_bytes,
        "length_bytes": place.length_bytes,
        "weight_bytes": place.weight_bytes,
    }


def _place_from_json(values: Mapping[str, Any], where: str) -> PlanPlace:
    fields = Fields(values, where=f"{where}: plans", error=BundleError)
    precision = fields.optional("precision", fields.text)
    try:
        segment = Segment(
            part=SegmentPart(fields.text("part")),
            precision=None if precision is None else Precision(precision),
            first_layer=fields.integer("first_layer"),
            num_layers=fields.integer("num_layers"),
        )
    except ValueError as error:
        raise BundleError(f"{where}: a segment is not known here, {error}: {_DAMAGED}") from error
    place = PlanPlace(
        segment=segment,
        offset_bytes=fields.integer("offset_bytes"),
        length_bytes=fields.integer("length_bytes"),
        weight_bytes=fields.integer("weight_bytes"),
    )
    fields.end()
    return place
