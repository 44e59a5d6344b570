"""The facts of a bundle as tables for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgeprec.cli.render import visible

__all__ = ["bundle_tables", "gpu_memory_table", "memory_table"]

_MB = 1e6


def bundle_tables(facts: Mapping[str, Any]) -> RenderableType:
    """Return everything but memory, from ``bundle_facts``."""
    parts: list[RenderableType] = [_title(facts), _models(facts)]
    for role, summary in facts["error_summary"].items():
        if summary:
            parts.append(_errors(role, summary))
    parts.append(_calibration(facts["calibration"]))
    if facts["engines"]:
        parts.append(_engines(facts["engines"]))
    parts += [_files("Files", facts["files"]), _files("Exported from", facts["sources"])]
    return Group(*parts)


def memory_table(memory: Mapping[str, Any]) -> RenderableType:
    """Return memory by context, from ``memory_facts``."""
    table = _table(
        f"Memory by context, engine {memory['engine']}, MB", "context", "FP16", "INT4", "embedding", "cache", "other",
        "total", "fits",
    )  # fmt: skip
    keys = ("fp16_bytes", "int4_bytes", "embedding_bytes", "cache_bytes", "workspace_bytes", "total_bytes")
    for plan in memory["contexts"]:
        sizes = [_mb(plan[key]) for key in keys]
        _add(table, f"{plan['context_tokens']:,}", *sizes, "yes" if plan["fits"] else "no")
    longest = memory["largest_context"]
    fits = f"the longest context that fits is {longest:,} tokens" if longest else "no context fits"
    return Group(table, _text(f"{_mb(memory['available_bytes'])} MB are available ({memory['bound']}): {fits}."))


def gpu_memory_table(memory: Mapping[str, Any]) -> RenderableType:
    """Return the torch engine's memory by context, from ``gpu_memory_facts``; the arena holds all but CUDA's own."""
    if not memory["contexts"]:
        return _text(f"Memory on a GPU, engine torch: {memory['note']}.")
    table = _table(
        "Memory by context on a GPU, engine torch, MB", "context", "FP16", "INT4", "embedding", "cache", "arena",
        "CUDA", "total", "fits",
    )  # fmt: skip
    for plan in memory["contexts"]:
        outside = plan["scratch_bytes"] + plan["cuda_allowance_bytes"]
        keys = ("fp16_bytes", "int4_bytes", "embedding_bytes", "cache_bytes", "arena_bytes")
        sizes = [*(plan[key] for key in keys), outside, plan["total_bytes"]]
        fits = {True: "yes", False: "no", None: "-"}[plan["fits"]]
        _add(table, f"{plan['context_tokens']:,}", *map(_mb, sizes), fits)
    if memory["available_bytes"] is None:
        return Group(table, _text(f"{memory['note']}."))
    return Group(table, _text(f"{_mb(memory['available_bytes'])} MB are available ({memory['bound']})."))


def _title(facts: Mapping[str, Any]) -> Text:
    return _text(
        f"{facts['path']}: {facts['name']}, {_mb(facts['bytes'])} MB, schema {facts['schema_version']}, "
        f"made by EdgePrec {facts['edgeprec_version']}, needs {facts['minimum_runtime_version']} or later"
    )


def _models(facts: Mapping[str, Any]) -> Table:
    models, files = facts["models"], facts["files"]
    is_pair = "architecture" in models.get("draft", {})
    roles = ["target", "draft"] if is_pair else ["target"]
    table = _table("Models", "", *roles)
    for rows in zip(*(_model_rows(models[role], files) for role in roles), strict=True):
        _add(table, rows[0][0], *(value for _, value in rows))
    if not is_pair:
        draft = "the target's INT4 variant (self)" if "draft" in models else "none"
        _add(table, "draft", draft)
    return table


def _model_rows(model: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    shape, variants = model["architecture"], model["variants"]
    fp16, int4 = variants["fp16"], variants["int4"]
    grid = "symmetric" if int4["symmetric"] else "zero points"
    yield "family", shape["family"]
    yield "layers", f"{shape['num_layers']} of width {shape['hidden_size']}"
    yield "heads", f"{shape['num_heads']}, {shape['num_kv_heads']} of keys and values, {shape['head_dim']} wide"
    yield "vocabulary", f"{shape['vocab_size']:,}, {'tied' if shape['tied_embeddings'] else 'untied'} embedding"
    yield "longest context", f"{shape['max_positions']:,} tokens"
    yield "FP16 variant", f"{fp16['bits_per_weight']:.2f} bits/weight, {_mb(files[fp16['file']]['bytes'])} MB"
    yield "INT4 variant", f"{int4['bits_per_weight']:.2f} bits/weight, {_mb(files[int4['file']]['bytes'])} MB"
    yield "quantizer", f"{int4['quantizer']}, blocks of {int4['group_size']}, {grid}"
    yield "shared", ", ".join(f"{part} of the {owner}" for part, owner in model["sharing"].items()) or "nothing"
    yield "graphs", ", ".join(sorted(model["graphs"])) or "none"


def _errors(role: str, summary: Iterable[Mapping[str, Any]]) -> Table:
    table = _table(
        f"Error of INT4 against FP16, {role}", "linear", "layers", "weights, mean", "largest", "in layer",
        "outputs, mean", "largest",
    )  # fmt: skip
    for row in summary:
        _add(
            table,
            row["linear"],
            str(row["layers"]),
            _percent(row["mean_relative_error"]),
            _percent(row["max_relative_error"]),
            "-" if row["worst_layer"] is None else str(row["worst_layer"]),
            _percent(row["mean_output_error"]),
            _percent(row["max_output_error"]),
        )
    return table


def _calibration(calibration: Mapping[str, Any] | None) -> RenderableType:
    if calibration is None:
        return _text("Not calibrated: the controller needs --theta-low and --theta-high.")
    order = ", ".join(str(layer) for layer in calibration["layer_order"][:8])
    text = _text(
        f"Thresholds: LOW below {calibration['theta_low_bits']:.2f} bits, HIGH above "
        f"{calibration['theta_high_bits']:.2f} bits; most sensitive layers first: {order}"
    )
    table = _table("Agreement with FP16 by entropy", "bits", "tokens", "INT4 agrees", "draft agrees")
    drafts = calibration["draft"] or [{"agreement": None}] * len(calibration["int4"])
    for row, draft in zip(calibration["int4"], drafts, strict=True):
        high = "" if row["high_bits"] is None else f"{row['high_bits']:g}"
        agreement = (_percent(row["agreement"]), _percent(draft["agreement"]))
        _add(table, f"{row['low_bits']:g} - {high}", str(row["tokens"]), *agreement)
    return Group(text, table)


def _engines(engines: Iterable[Mapping[str, Any]]) -> Table:
    table = _table("Engines", "kind", "GPU", "model", "MB", "built with")
    for engine in engines:
        _add(table, engine["kind"], engine["sm"], engine["model"], _mb(engine["bytes"]), engine["version"])
    return table


def _files(title: str, files: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table(title, "file", "bytes", "sha256")
    for name, entry in sorted(files.items()):
        _add(table, name, f"{entry['bytes']:,}", f"{entry['sha256'][:16]}...")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(_text(cell) for cell in cells))


def _text(text: str) -> Text:
    """Return text as it is: a name in a manifest is no markup and steers no terminal."""
    return Text(visible(text))


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / _MB:,.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"
