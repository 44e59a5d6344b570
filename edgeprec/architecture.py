"""What a decoder-only transformer of the supported families looks like; no weights, no files.

Linear layers are stored merged, so that every engine reads each activation once. All are [K, N] = [in, out]:

    layers.<i>.qkv      K = hidden_size               N = (num_heads + 2 num_kv_heads) head_dim, rows q | k | v
    layers.<i>.o        K = num_heads head_dim        N = hidden_size
    layers.<i>.gate_up  K = hidden_size               N = 2 intermediate_size, gate | up
    layers.<i>.down     K = intermediate_size         N = hidden_size
    head                K = hidden_size               N = vocab_size (absent in FP16 when tied: the embedding serves)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from edgeprec.errors import ConfigError

__all__ = ["LINEARS", "SUPPORTED_FAMILIES", "LinearName", "Llama3RopeScaling", "ModelConfig"]

LinearName = Literal["qkv", "o", "gate_up", "down"]
LINEARS: Final[tuple[LinearName, ...]] = ("qkv", "o", "gate_up", "down")
SUPPORTED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3RopeScaling:
    """The frequency-dependent rotary scaling of Llama 3.1 and later (``rope_type: llama3``)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and constants of one model. ``max_positions`` is the longest context it was made for."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    tied_embeddings: bool
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    rope_scaling: Llama3RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.family not in SUPPORTED_FAMILIES:
            supported = ", ".join(SUPPORTED_FAMILIES)
            raise ConfigError(f"model family {self.family!r} is not supported, expected one of: {supported}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ConfigError(f"model config: {field.name} is {value}, expected a positive integer")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model config: num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"model config: head_dim {self.head_dim} is odd, rotary embedding needs an even one")

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    def linear_shape(self, name: str) -> tuple[int, int]:
        """Return (K, N) of a linear of ``LINEARS`` or ``"head"``."""
        return {
            "qkv": (self.hidden_size, self.q_size + 2 * self.kv_size),
            "o": (self.q_size, self.hidden_size),
            "gate_up": (self.hidden_size, 2 * self.intermediate_size),
            "down": (self.intermediate_size, self.hidden_size),
            "head": (self.hidden_size, self.vocab_size),
        }[name]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``bundle.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ModelConfig:
        """Read what ``to_json`` wrote; unknown or missing keys raise ConfigError."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"model config has unknown keys {unknown}, expected only {sorted(known)}")
        scaling = values.get("rope_scaling")
        try:
            return cls(**{**values, "rope_scaling": Llama3RopeScaling(**scaling) if scaling else None})
        except TypeError as error:
            raise ConfigError(f"model config is incomplete: {error}") from error
