"""What ``bundle.json`` says of one model: its architecture, its two variants, its errors, what it shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgeprec.architecture import ModelConfig
from edgeprec.errors import BundleError, ConfigError
from edgeprec.strict_json import Fields
from edgeprec.tensor_names import fp16_tensors, int4_tensors
from edgeprec.tensor_spec import TensorSpec

__all__ = ["Fp16Variant", "Int4Variant", "LayerError", "ModelEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp16Variant:
    """The variant every output is measured against. It also holds embedding, norms and biases."""

    file: str
    bits_per_weight: float = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Variant:
    """The fast variant; ``bits_per_weight`` counts scales and zero points in."""

    file: str
    bits_per_weight: float
    group_size: int
    symmetric: bool
    quantizer: str  # "rtn", "clip", "gptq"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerError:
    """How far the INT4 variant of one linear is from the FP16 one; ``layer`` None = the head.

    ``relative_error`` = norm of the weight difference / norm of the weight. ``output_error`` = the same of the linear's
    outputs on calibration text, None where none was run.
    """

    layer: int | None
    linear: str
    relative_error: float
    output_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model of a bundle. File names are relative to the bundle; ``graphs`` maps "fp32" and "fp16" to ONNX files."""

    architecture: ModelConfig
    fp16: Fp16Variant
    int4: Int4Variant
    graphs: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[LayerError, ...] = ()
    shares_embedding: bool = False  # the target's embedding serves this draft
    shares_head: bool = False  # so does its head, in both variants

    @property
    def fp16_specs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of the FP16 file."""
        return fp16_tensors(
            self.architecture,
            has_embedding=not self.shares_embedding,
            has_head=not (self.shares_head or self.architecture.tied_embeddings),
        )

    @property
    def int4_specs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of the INT4 file."""
        int4 = self.int4
        return int4_tensors(
            self.architecture, group_size=int4.group_size, symmetric=int4.symmetric, has_head=not self.shares_head
        )

    @property
    def file_names(self) -> tuple[str, ...]:
        """Return every file this model consists of."""
        return (self.fp16.file, self.int4.file, *self.graphs.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``bundle.json``."""
        shared = {"embedding": self.shares_embedding, "head": self.shares_head}
        return {
            "architecture": self.architecture.to_json(),
            "variants": {"fp16": asdict(self.fp16), "int4": asdict(self.int4)},
            "graphs": dict(self.graphs),
            "errors": [asdict(error) for error in self.errors],
            "sharing": {part: "target" for part, is_shared in shared.items() if is_shared},
        }

    @classmethod
    def from_json(cls, values: Any, *, where: str) -> ModelEntry:
        """Read what ``to_json`` wrote.

        Raises:
            BundleError: something is missing, unknown or of a wrong type.
        """
        fields = Fields(values, where=where, error=BundleError)
        variants, sharing = fields.fields("variants"), fields.fields("sharing")
        entry = cls(
            architecture=_architecture(fields.mapping("architecture"), where),
            fp16=_fp16_variant(variants.fields("fp16")),
            int4=_int4_variant(variants.fields("int4")),
            graphs=_texts(fields.mapping("graphs"), f"{where}: graphs"),
            errors=tuple(_layer_error(item, f"{where}: errors") for item in fields.items("errors")),
            shares_embedding=_is_targets(sharing, "embedding", where),
            shares_head=_is_targets(sharing, "head", where),
        )
        for taken in (fields, variants, sharing):
            taken.end()
        return entry


def _is_targets(sharing: Fields, part: str, where: str) -> bool:
    owner = sharing.optional(part, sharing.text)
    if owner not in (None, "target"):
        raise BundleError(f"{where}: the {part} is shared with {owner[:40]!r}, expected 'target': it is damaged")
    return owner is not None


def _architecture(values: dict[str, Any], where: str) -> ModelConfig:
    try:
        return ModelConfig.from_json(values)
    except (ConfigError, TypeError) as error:
        raise BundleError(f"{where}: architecture is not usable: {error}") from error


def _fp16_variant(fields: Fields) -> Fp16Variant:
    variant = Fp16Variant(file=fields.text("file"), bits_per_weight=fields.number("bits_per_weight"))
    fields.end()
    return variant


def _int4_variant(fields: Fields) -> Int4Variant:
    variant = Int4Variant(
        file=fields.text("file"),
        bits_per_weight=fields.number("bits_per_weight"),
        group_size=fields.integer("group_size", minimum=1),
        symmetric=fields.boolean("symmetric"),
        quantizer=fields.text("quantizer"),
    )
    fields.end()
    return variant


def _layer_error(values: Any, where: str) -> LayerError:
    fields = Fields(values, where=where, error=BundleError)
    error = LayerError(
        layer=fields.optional("layer", fields.integer),
        linear=fields.text("linear"),
        relative_error=fields.number("relative_error"),
        output_error=fields.optional("output_error", fields.number),
    )
    fields.end()
    return error


def _texts(values: dict[str, Any], where: str) -> dict[str, str]:
    fields = Fields(values, where=where, error=BundleError)
    return {key: fields.text(key) for key in values}
