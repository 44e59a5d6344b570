"""The pictures of an evaluation: agreement by gated layers, agreement by entropy, acceptance by the draft's entropy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeprec.cli.chart import Chart, Series, draw_chart

__all__ = ["LEAST_TOKENS", "bin_label", "draw_pictures", "layer_label"]

LEAST_TOKENS = 8  # a bin with fewer says nothing
_DRAFT_LENGTH = 4  # the fixed length whose drafts are shown

Values = Mapping[str, Any]


def draw_pictures(found: Values) -> dict[str, str]:
    """Return file name -> SVG, from what ``eval --json`` prints; pictures without a point are left out."""
    charts = {
        "agreement-by-layers.svg": _by_layers(found) if "layers" in found else None,
        "agreement-by-entropy.svg": _by_entropy(found) if "layers" in found else None,
        "acceptance-by-entropy.svg": _acceptance(found) if "drafts" in found else None,
    }
    return {name: draw_chart(chart) for name, chart in charts.items() if chart is not None}


def bin_label(entry: Values) -> str:
    """Return an entropy bin in words, such as ``0.5-1`` or ``> 4.5``."""
    low, high = entry["low_bits"], entry["high_bits"]
    if high is None:
        return f"> {low:g}"
    return f"{low:g}-{high:g}" if low else f"< {high:g}"


def layer_label(gated: int, *, has_int4_head: bool) -> str:
    """Return a number of gated layers in words."""
    return f"{gated} + head" if has_int4_head else str(gated)


def _by_layers(found: Values) -> Chart:
    rows = [*found["layers"], *([found["all_and_head"]] if found["all_and_head"] else [])]
    exact = [row["token_match"] for row in found["exact_by_layers"]]
    labels = [layer_label(row["gated"], has_int4_head=row["int4_head"]) for row in found["exact_by_layers"]]
    return Chart(
        title="Agreement with FP16 by the number of layers in INT4",
        x_label="gated layers, the least sensitive first",
        y_label="share of tokens",
        places=labels,
        series=[
            Series("exact: token match", exact),
            Series("forced top-1 where entropy < 1 bit", [row["top1_low_entropy"] for row in rows]),
            Series("forced top-1", [row["top1"] for row in rows]),
            Series("free-running match, nothing verified", [row["free_running_match"] for row in rows]),
        ],
    )


def _by_entropy(found: Values) -> Chart:
    rows = found["entropy"]
    bins = rows[-1]["bins"]
    total = sum(entry["tokens"] for entry in bins)
    return Chart(
        title="Forced top-1 agreement by entropy",
        x_label="entropy of the prediction, bits",
        y_label="share of tokens that are FP16's",
        places=[bin_label(entry) for entry in bins],
        series=[_layer_series(row) for row in _spread(rows, 4)],
        columns=[entry["tokens"] / total if total else 0.0 for entry in bins],
        columns_name="share of all tokens",
    )


def _layer_series(row: Values) -> Series:
    label = layer_label(row["gated"], has_int4_head=row["int4_head"])
    return Series(f"{label} in INT4", [_enough(entry, "tokens", "top1") for entry in row["bins"]])


def _acceptance(found: Values) -> Chart | None:
    rows = list(_shown_drafts(found["acceptance"]))
    if not rows:
        return None
    bins = rows[0]["bins"]
    total = sum(entry["judged"] for entry in bins)
    return Chart(
        title="Acceptance of a drafted token by the draft's entropy",
        x_label="entropy of the draft, bits",
        y_label="share accepted by FP16",
        places=[bin_label(entry) for entry in bins],
        series=[
            Series(f"{row['name']}, K = {row['k']}", [_enough(entry, "judged", "acceptance") for entry in row["bins"]])
            for row in rows
        ],
        columns=[entry["judged"] / total if total else 0.0 for entry in bins],
        columns_name=f"share of judged drafts of {rows[0]['name']}",
    )


def _shown_drafts(rows: Sequence[Values]) -> Iterator[Values]:
    """Yield, of each drafter, the fixed length nearest to four."""
    for name in dict.fromkeys(row["name"] for row in rows):
        fixed = [row for row in rows if row["name"] == name and row["k"] != "adaptive"]
        if fixed:
            yield min(fixed, key=lambda row: abs(row["k"] - _DRAFT_LENGTH))


def _enough(entry: Values, count: str, share: str) -> float | None:
    value: float | None = entry[share]
    return value if entry[count] >= LEAST_TOKENS else None


def _spread(rows: Sequence[Values], count: int) -> list[Values]:
    """Return at most ``count`` rows, first and last among them, evenly taken."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]
