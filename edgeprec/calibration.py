"""What an export measured about a pair, stored as ``calibration.json``: agreement by entropy, thresholds, layer order.

Agreement is counted on what INT4 answers to the calibration prompts, in a grid of 8 entropy bins by 4 margin bins.
Entropy (bits) and margin (gap of the two largest logits) are the proposing model's, as the controller sees them at run
time: of the target's INT4 variant for ``int4``, of the draft model for ``draft``. What is counted is whether its argmax
equals FP16's, given the same text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.errors import BundleError, ConfigError
from edgeprec.strict_json import Fields

__all__ = [
    "CALIBRATION_SCHEMA",
    "ENTROPY_EDGES_BITS",
    "MARGIN_EDGES",
    "AgreementGrid",
    "Calibration",
    "StepCosts",
    "cell_index",
    "layer_order",
]

CALIBRATION_SCHEMA = 1
ENTROPY_EDGES_BITS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.5)  # between 8 bins; a bin holds its lower edge
MARGIN_EDGES = (0.5, 1.5, 4.0)  # between 4 bins, in units of logits
_ROWS, _COLUMNS = len(ENTROPY_EDGES_BITS) + 1, len(MARGIN_EDGES) + 1


def cell_index(entropy_bits: float, margin: float) -> int:
    """Return the grid cell, 0..31, of a token: entropy bin times 4 plus margin bin."""
    return bisect_right(ENTROPY_EDGES_BITS, entropy_bits) * _COLUMNS + bisect_right(MARGIN_EDGES, margin)


@dataclass(frozen=True, slots=True)
class AgreementGrid:
    """Tokens and how many of them FP16 agreed with, by cell (see ``cell_index``)."""

    trials: tuple[int, ...] = (0,) * (_ROWS * _COLUMNS)
    agreed: tuple[int, ...] = (0,) * (_ROWS * _COLUMNS)

    def __post_init__(self) -> None:
        if len(self.trials) != _ROWS * _COLUMNS or len(self.agreed) != _ROWS * _COLUMNS:
            raise ConfigError(
                f"calibration: grid has {len(self.trials)} and {len(self.agreed)} cells, expected {_ROWS * _COLUMNS}"
            )
        if any(not 0 <= agreed <= trials for agreed, trials in zip(self.agreed, self.trials, strict=True)):
            raise ConfigError("calibration: a cell agreed more often than it was tried, expected 0 <= agreed <= trials")

    @classmethod
    def count(cls, entropy_bits: npt.ArrayLike, margin: npt.ArrayLike, agreed: npt.ArrayLike) -> AgreementGrid:
        """Count tokens: entropy in bits [T], top-two margin [T], whether FP16's argmax was the same [T]."""
        entropy_bin = np.searchsorted(ENTROPY_EDGES_BITS, np.asarray(entropy_bits, np.float64), side="right")
        margin_bin = np.searchsorted(MARGIN_EDGES, np.asarray(margin, np.float64), side="right")
        cells = entropy_bin * _COLUMNS + margin_bin
        size = _ROWS * _COLUMNS
        trials = np.bincount(cells, minlength=size)
        hits = np.bincount(cells[np.asarray(agreed, np.bool_)], minlength=size)
        return cls(tuple(map(int, trials)), tuple(map(int, hits)))

    def __add__(self, other: AgreementGrid) -> AgreementGrid:
        return AgreementGrid(_sums(self.trials, other.trials), _sums(self.agreed, other.agreed))

    @property
    def tokens(self) -> int:
        """Return all tokens counted."""
        return sum(self.trials)

    @property
    def agreement(self) -> float | None:
        """Return the share of tokens FP16 agreed with, None without tokens."""
        return sum(self.agreed) / self.tokens if self.tokens else None

    @property
    def trials_by_entropy(self) -> tuple[int, ...]:
        """Return the tokens of each entropy bin [8]."""
        return _row_sums(self.trials)

    @property
    def agreed_by_entropy(self) -> tuple[int, ...]:
        """Return the agreements of each entropy bin [8]."""
        return _row_sums(self.agreed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Costs of one draft step, of one more row in a verifying pass, and of one plain FP16 step; any common unit.

    The defaults are relative to the plain step, as measured on two CPU cores with a 135M model.
    """

    draft_step: float = 0.33
    verify_row: float = 0.03
    plain_step: float = 1.0

    def __post_init__(self) -> None:
        if self.draft_step < 0.0 or self.verify_row < 0.0 or self.plain_step <= 0.0:
            raise ConfigError(
                f"step costs are {self.draft_step}, {self.verify_row} and {self.plain_step}, "
                "expected 0 or more and a plain step above 0"
            )

    @property
    def break_even_acceptance(self) -> float:
        """Return the acceptance below which a drafted row cannot pay."""
        return min((self.draft_step + self.verify_row) / self.plain_step, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The content of ``calibration.json``. ``sensitivity`` is by layer; ``layer_order`` is most sensitive first.

    ``draft`` is None where the bundle has no draft model, ``step_costs`` where the export did not measure them.
    ``text`` names the calibration text.
    """

    int4: AgreementGrid
    draft: AgreementGrid | None = None
    theta_low_bits: float
    theta_high_bits: float
    layer_order: tuple[int, ...]
    sensitivity: tuple[float, ...]
    step_costs: StepCosts | None = None
    text: str = ""

    def __post_init__(self) -> None:
        if sorted(self.layer_order) != list(range(len(self.sensitivity))):
            raise ConfigError(
                f"calibration: layer_order is {self.layer_order}, expected each of {len(self.sensitivity)} layers once"
            )
        if not 0.0 <= self.theta_low_bits <= self.theta_high_bits:
            raise ConfigError(
                f"calibration: thresholds are {self.theta_low_bits} and {self.theta_high_bits} bits, "
                "expected 0 <= theta_low <= theta_high"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the object stored in the bundle; the entropy bins carry their agreement for the reader's eye."""
        return {
            "schema_version": CALIBRATION_SCHEMA,
            "theta_low_bits": self.theta_low_bits,
            "theta_high_bits": self.theta_high_bits,
            "layer_order": list(self.layer_order),
            "sensitivity": list(self.sensitivity),
            "step_costs": None if self.step_costs is None else asdict(self.step_costs),
            "text": self.text,
            "entropy_edges_bits": list(ENTROPY_EDGES_BITS),
            "margin_edges": list(MARGIN_EDGES),
            "int4": _bins_to_json(self.int4),
            "draft": None if self.draft is None else _bins_to_json(self.draft),
        }

    @classmethod
    def from_json(cls, values: Any, *, where: str = "calibration.json") -> Calibration:
        """Read what ``to_json`` wrote.

        Raises:
            BundleError: another schema, or a damaged file.
        """
        fields = Fields(values, where=where, error=BundleError)
        version = fields.integer("schema_version", minimum=1)
        if version != CALIBRATION_SCHEMA:
            raise BundleError(
                f"{where} has schema {version}, expected {CALIBRATION_SCHEMA}: update edgeprec or re-export"
            )
        _check_edges(fields, where)
        try:
            calibration = cls(
                int4=_bins_from_json(fields.items("int4"), f"{where}: int4"),
                draft=_optional_bins(fields.optional("draft", fields.items), f"{where}: draft"),
                theta_low_bits=fields.number("theta_low_bits"),
                theta_high_bits=fields.number("theta_high_bits"),
                layer_order=_whole_numbers(fields.items("layer_order"), f"{where}: layer_order"),
                sensitivity=_numbers(fields.items("sensitivity"), f"{where}: sensitivity"),
                step_costs=_costs(fields.optional("step_costs", fields.fields)),
                text=fields.text("text"),
            )
        except ConfigError as error:
            raise BundleError(f"{where} is damaged: {error}") from error
        fields.end()
        return calibration


def layer_order(sensitivity: Sequence[float]) -> tuple[int, ...]:
    """Return the layers, most sensitive first; of equals the earlier one."""
    return tuple(sorted(range(len(sensitivity)), key=lambda layer: (-sensitivity[layer], layer)))


def _sums(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _row_sums(cells: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(cells[start : start + _COLUMNS]) for start in range(0, len(cells), _COLUMNS))


def _bins_to_json(grid: AgreementGrid) -> list[dict[str, Any]]:
    lower = (0.0, *ENTROPY_EDGES_BITS)
    upper = (*ENTROPY_EDGES_BITS, None)
    return [
        {
            "low_bits": lower[row],
            "high_bits": upper[row],
            "tokens": tokens,
            "agreement": agreed / tokens if tokens else None,
            "trials_by_margin": list(grid.trials[row * _COLUMNS : (row + 1) * _COLUMNS]),
            "agreed_by_margin": list(grid.agreed[row * _COLUMNS : (row + 1) * _COLUMNS]),
        }
        for row, (tokens, agreed) in enumerate(zip(grid.trials_by_entropy, grid.agreed_by_entropy, strict=True))
    ]


def _bins_from_json(bins: list[Any], where: str) -> AgreementGrid:
    trials: list[int] = []
    agreed: list[int] = []
    for index, values in enumerate(bins):
        fields = Fields(values, where=f"{where}: bin {index}", error=BundleError)
        trials += _whole_numbers(fields.items("trials_by_margin"), f"{where}: bin {index}")
        agreed += _whole_numbers(fields.items("agreed_by_margin"), f"{where}: bin {index}")
    grid = AgreementGrid(tuple(trials), tuple(agreed))
    if _bins_to_json(grid) != bins:
        raise BundleError(f"{where} has bins that do not add up to their counts: it is damaged")
    return grid


def _optional_bins(bins: list[Any] | None, where: str) -> AgreementGrid | None:
    return None if bins is None else _bins_from_json(bins, where)


def _check_edges(fields: Fields, where: str) -> None:
    for key, expected in (("entropy_edges_bits", ENTROPY_EDGES_BITS), ("margin_edges", MARGIN_EDGES)):
        if _numbers(fields.items(key), f"{where}: {key}") != expected:
            raise BundleError(f"{where} has other {key} than {list(expected)}: re-export the bundle")


def _costs(fields: Fields | None) -> StepCosts | None:
    if fields is None:
        return None
    costs = StepCosts(
        draft_step=fields.number("draft_step"),
        verify_row=fields.number("verify_row"),
        plain_step=fields.number("plain_step"),
    )
    fields.end()
    return costs


def _numbers(items: list[Any], where: str) -> tuple[float, ...]:
    if any(isinstance(item, bool) or not isinstance(item, int | float) for item in items):
        raise BundleError(f"{where} holds something that is not a number: it is damaged")
    return tuple(float(item) for item in items)


def _whole_numbers(items: list[Any], where: str) -> tuple[int, ...]:
    if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
        raise BundleError(f"{where} holds something that is not a whole number: it is damaged")
    return tuple(items)
