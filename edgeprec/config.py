"""The settings of a generation: one frozen dataclass per owner, composed in ``GenerationConfig``.

A default is written here once; the command line and the server take theirs from these fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

from edgeprec.errors import ConfigError

__all__ = [
    "ControllerConfig",
    "DraftRule",
    "DrafterKind",
    "DraftingConfig",
    "GenerationConfig",
    "Mode",
    "Objective",
    "SamplingConfig",
    "with_overrides",
]


class Mode(StrEnum):
    """What runs, and what is promised about the tokens."""

    EXACT = "exact"
    BOUNDED = "bounded"
    GATED = "gated"
    FP16 = "fp16"
    INT4 = "int4"


class Objective(StrEnum):
    """What the draft cap maximises: tokens per second or tokens per joule."""

    SPEED = "speed"
    ENERGY = "energy"


class DrafterKind(StrEnum):
    """Who proposes tokens. ``auto`` = the bundle's draft model where it has one, else the target's INT4 variant."""

    AUTO = "auto"
    SELF = "self"
    MODEL = "model"
    NGRAM = "ngram"
    NONE = "none"


class DraftRule(StrEnum):
    """When drafting stops before the cap. ``fixed`` = never."""

    ENTROPY = "entropy"
    SVIP = "svip"
    ADAEDL = "adaedl"
    FIXED = "fixed"


_LEAST_TEMPERATURE = 1e-4  # below it float32 quotients of logits overflow
_KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
}


def _check(ok: bool, owner: str, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{owner}: {name} is {value!r}, expected {expected}")


def _check_kinds(config: Any, owner: str) -> None:
    """Refuse what cannot be compared with a range: numbers as text, or True where a number is meant."""
    for entry in fields(config):
        kind, _, other = str(entry.type).partition(" | ")
        value = getattr(config, entry.name)
        if kind not in _KINDS or (other == "None" and value is None):
            continue
        wanted, expected = _KINDS[kind]
        is_right = isinstance(value, wanted) and isinstance(value, bool) == (kind == "bool")
        _check(is_right, owner, entry.name, value, expected)


def _settle_choice(config: object, owner: str, name: str, kind: type[StrEnum]) -> None:
    """Turn a plain text, as Python callers write it, into the member it names."""
    value = getattr(config, name)
    names = [str(member) for member in kind]
    _check(value in names, owner, name, value, f"one of {', '.join(names)}")
    object.__setattr__(config, name, kind(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How a token is chosen from logits. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_kinds(self, "sampling")
        _check(0.0 <= self.temperature <= 10.0, "sampling", "temperature", self.temperature, "0 to 10")
        can_divide = self.temperature == 0.0 or self.temperature >= _LEAST_TEMPERATURE
        _check(can_divide, "sampling", "temperature", self.temperature, f"0 or at least {_LEAST_TEMPERATURE}")
        _check(0.0 < self.top_p <= 1.0, "sampling", "top_p", self.top_p, "above 0, at most 1")
        _check(self.top_k >= 0, "sampling", "top_k", self.top_k, "0 (off) or more")
        _check(0.0 <= self.min_p < 1.0, "sampling", "min_p", self.min_p, "0 to below 1")
        _check(
            0.01 <= self.repetition_penalty <= 10.0,
            "sampling",
            "repetition_penalty",
            self.repetition_penalty,
            "0.01 to 10",
        )
        _check(self.seed is None or 0 <= self.seed < 2**64, "sampling", "seed", self.seed, "0 to 2**64 - 1")

    @property
    def takes_argmax(self) -> bool:
        """Whether a token is the largest logit as it is, so that no logits need to be read."""
        return self.temperature == 0.0 and self.repetition_penalty == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The entropy controller. Thresholds in bits; None takes the bundle's calibrated value.

    A theta_high of None also follows the costs measured on the device while drafting. ``middle_gears`` plans lie
    between the lowest gear and all FP16. ``gated_layers`` is how many decoder layers the lowest gear runs in INT4, the
    least sensitive first, with the head in FP16; None = all of them and the head.
    """

    window: int = 3
    hold_tokens: int = 4
    middle_gears: int = 0
    gated_layers: int | None = None
    theta_low_bits: float | None = None
    theta_high_bits: float | None = None

    def __post_init__(self) -> None:
        _check_kinds(self, "controller")
        _check(self.window >= 1, "controller", "window", self.window, "1 or more tokens")
        _check(self.hold_tokens >= 0, "controller", "hold", self.hold_tokens, "0 or more tokens")
        _check(0 <= self.middle_gears <= 16, "controller", "middle_gears", self.middle_gears, "0 to 16")
        gated = self.gated_layers
        _check(gated is None or gated >= 1, "controller", "gated_layers", gated, "1 or more layers")
        for name in ("theta_low_bits", "theta_high_bits"):
            value = getattr(self, name)
            _check(value is None or value >= 0.0, "controller", name, value, "0 or more bits")
        if self.theta_low_bits is not None and self.theta_high_bits is not None:
            _check(
                self.theta_low_bits <= self.theta_high_bits,
                "controller",
                "theta_low_bits",
                self.theta_low_bits,
                f"at most theta_high_bits {self.theta_high_bits}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingConfig:
    """Who drafts and how far. ``draft_length`` None is adaptive; a number switches every stop but itself off.

    ``three_level`` has the draft model draft for the INT4 target and FP16 read what that makes of it; with the adaptive
    length it is one more choice, and FP16 reads the draft model's tokens directly where that gives more for the cost.
    """

    drafter: DrafterKind = DrafterKind.AUTO
    draft_length: int | None = None
    max_draft_length: int = 8
    rule: DraftRule = DraftRule.ENTROPY
    objective: Objective = Objective.SPEED
    three_level: bool = False
    epsilon: float = 0.01

    def __post_init__(self) -> None:
        _check_kinds(self, "drafting")
        _settle_choice(self, "drafting", "drafter", DrafterKind)
        _settle_choice(self, "drafting", "rule", DraftRule)
        _settle_choice(self, "drafting", "objective", Objective)
        _check(
            self.draft_length is None or 0 <= self.draft_length <= 15,
            "drafting",
            "draft_length",
            self.draft_length,
            "adaptive or 0 to 15",
        )
        _check(1 <= self.max_draft_length <= 15, "drafting", "max_draft_length", self.max_draft_length, "1 to 15")
        can_stack = not self.three_level or self.drafter in (DrafterKind.AUTO, DrafterKind.MODEL)
        expected = "auto or model with three_level: the draft model drafts for the INT4 target"
        _check(can_stack, "drafting", "drafter", str(self.drafter), expected)
        _check(0.0 < self.epsilon < 1.0, "drafting", "epsilon", self.epsilon, "above 0, below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """Everything one call of ``generate`` or ``stream`` can set; a mode may be plain text, ``stop`` a single one."""

    mode: Mode = Mode.EXACT
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    power_budget_w: float | None = None
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    drafting: DraftingConfig = field(default_factory=DraftingConfig)

    def __post_init__(self) -> None:
        _check_kinds(self, "generation")
        for name, kind in _PARTS.items():
            _check(isinstance(getattr(self, name), kind), "generation", name, getattr(self, name), f"a {kind.__name__}")
        _settle_choice(self, "generation", "mode", Mode)
        is_list = isinstance(self.stop, Iterable) and not isinstance(self.stop, str)
        object.__setattr__(self, "stop", tuple(self.stop) if is_list else (self.stop,))
        _check(all(isinstance(text, str) for text in self.stop), "generation", "stop", self.stop, "a text, or texts")
        _check(self.max_new_tokens >= 1, "generation", "max_new_tokens", self.max_new_tokens, "1 or more")
        _check(all(self.stop), "generation", "stop", self.stop, "no empty stop string")
        _check(
            self.power_budget_w is None or self.power_budget_w > 0.0,
            "generation",
            "power_budget_w",
            self.power_budget_w,
            "more than 0 watts",
        )


_PARTS = {"sampling": SamplingConfig, "controller": ControllerConfig, "drafting": DraftingConfig}


def with_overrides(config: GenerationConfig, **values: Any) -> GenerationConfig:
    """Return ``config`` with some fields changed, those of its parts too, each by its plain name.

    Raises:
        ConfigError: there is no field of that name, or a value is of another type or out of range.
    """
    if not isinstance(config, GenerationConfig):
        raise ConfigError(f"the configuration is {config!r}, expected a GenerationConfig")
    config = replace(config, **{part: values.pop(part) for part in _PARTS if part in values})
    owners = {part: getattr(config, part) for part in _PARTS}
    known = {name: part for part, owner in owners.items() for name in (entry.name for entry in fields(owner))}
    own = {entry.name for entry in fields(config)}
    for name in values:
        if name not in known and name not in own:
            raise ConfigError(f"there is no setting {name!r}, expected one of {', '.join(sorted(own | set(known)))}")
    parts = {
        part: replace(owner, **{name: value for name, value in values.items() if known.get(name) == part})
        for part, owner in owners.items()
    }
    return replace(config, **parts, **{name: value for name, value in values.items() if name in own})
