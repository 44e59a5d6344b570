"""What ``inspect`` says of a bundle, as plain values: the manifest, errors by linear, thresholds, memory by context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeprec.available_memory import AvailableMemory
from edgeprec.bundle import Bundle
from edgeprec.bundle_model import LayerError, ModelEntry
from edgeprec.calibration import Calibration
from edgeprec.errors import BundleError
from edgeprec.memory_plan import MemoryProfile, check_context, largest_context, memory_by_context, plan_memory
from edgeprec.strict_json import parse_json

__all__ = ["bundle_facts", "memory_facts", "summarize_errors"]


def bundle_facts(bundle: Bundle) -> dict[str, Any]:
    """Return the manifest with sizes, errors by linear for each model, and the calibration.

    Raises:
        BundleError: ``calibration.json`` is damaged.
    """
    summaries = {model.role: summarize_errors(model.entry.errors) for model in bundle.models}
    return bundle.to_summary() | {"error_summary": summaries, "calibration": _calibration(bundle)}


def summarize_errors(errors: Sequence[LayerError]) -> list[dict[str, Any]]:
    """Return for each kind of linear the mean and largest error over the layers, and the layer of the largest."""
    by_linear: dict[str, list[LayerError]] = {}
    for error in errors:
        by_linear.setdefault(error.linear, []).append(error)
    return [_summarize(linear, group) for linear, group in by_linear.items()]


def memory_facts(
    entries: Sequence[ModelEntry],
    profile: MemoryProfile,
    available: AvailableMemory,
    *,
    context_tokens: int | None = None,
) -> dict[str, Any]:
    """Return what the pair needs at several contexts or at one, what there is, and the longest context that fits.

    Raises:
        ConfigError: the context is longer than the models were made for.
    """
    if context_tokens is None:
        plans = memory_by_context(entries, profile=profile)
    else:
        check_context(entries, context_tokens)
        plans = (plan_memory(entries, profile=profile, context_tokens=context_tokens),)
    return {
        "engine": profile.engine,
        "available_bytes": available.size_bytes,
        "bound": available.bound,
        "largest_context": largest_context(entries, profile=profile, available_bytes=available.size_bytes),
        "contexts": [plan.to_json() | {"fits": plan.total_bytes <= available.size_bytes} for plan in plans],
    }


def _summarize(linear: str, errors: Sequence[LayerError]) -> dict[str, Any]:
    worst = max(errors, key=lambda error: error.relative_error)
    outputs = [error.output_error for error in errors if error.output_error is not None]
    return {
        "linear": linear,
        "layers": len(errors),
        "mean_relative_error": sum(error.relative_error for error in errors) / len(errors),
        "max_relative_error": worst.relative_error,
        "worst_layer": worst.layer,
        "mean_output_error": sum(outputs) / len(outputs) if outputs else None,
        "max_output_error": max(outputs, default=None),
    }


def _calibration(bundle: Bundle) -> dict[str, Any] | None:
    path = bundle.calibration_path
    if path is None:
        return None
    values = parse_json(path.read_bytes(), where=str(path), error=BundleError)
    return Calibration.from_json(values, where=str(path)).to_json()
