"""The page docs/fidelity.md and its pictures; every number is one that study_fidelity.py measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeprec.cli.chart import Chart, Series, draw_chart
from edgeprec.cli.eval_markdown import (
    draft_table,
    drafts_by_kind_table,
    entropy_table,
    layer_table,
    mode_table,
)
from edgeprec.cli.eval_pictures import draw_pictures

__all__ = ["page", "pictures", "write"]

COMMAND = "python scripts/study_fidelity.py BUNDLE"
FOLDER = "pictures"
TABLES = ("layers", "modes", "drafts")
AS_IS = "bundle-"
NOT_MEASURED = "Not measured yet: run the command above."
SPEEDS = "Every reply is FP16's. Several parts ran at once: of the speeds only the ratios mean something."
Values = Mapping[str, Any]


def write(parts: Values, folder: Path, *, size: str = "") -> None:
    """Write fidelity.md and the pictures into ``folder``; ``parts`` are what the study measured, by name.

    ``size`` are the options the study was made with, so that the page names the command that makes it again.
    """
    results = _gathered(parts)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, svg in pictures(results).items():
        (folder / FOLDER / name).write_text(svg, encoding="utf-8")
    (folder / "fidelity.md").write_text(page(results, size), encoding="utf-8")


def _gathered(parts: Values) -> dict[str, Any]:
    """Return the quantizers as they are, the rows of each collapse together, and the tables of eval as one.

    ``as_is`` are the same tables of the bundle itself, with ``forced`` in the place of ``layers``.
    """
    results: dict[str, Any] = {name: part for name, part in parts.items() if name.startswith("quantizer-")}
    for name, part in parts.items():
        if name.startswith("collapse-"):
            results.setdefault("-".join(name.split("-")[:2]), {"rows": []})["rows"].append(part)
    as_is = {name.removeprefix(AS_IS): part for name, part in parts.items() if name.startswith(AS_IS)}
    return results | {"tables": {name: parts[name] for name in TABLES if name in parts}, "as_is": as_is}


def pictures(results: Values) -> dict[str, str]:
    """Return file name -> SVG; a picture of what was not measured is left out."""
    tables = results["tables"]
    drawn: dict[str, str] = {}
    if len(tables) == len(TABLES):
        found = {**tables["drafts"], **tables["modes"], **tables["layers"]}
        drawn = {f"fidelity-{name}": svg for name, svg in draw_pictures(found).items()}
    if _collapsed(results):
        drawn["fidelity-collapse.svg"] = draw_chart(_collapse_chart(results))
    return drawn


def page(results: Values, size: str) -> str:
    """Return the page."""
    return "\n".join(_lines(results, f"{COMMAND} {size}".rstrip())) + "\n"


def _lines(results: Values, command: str) -> Iterator[str]:
    machines = dict.fromkeys(part["machine"] for part in _all_parts(results))
    yield "# Fidelity"
    yield ""
    yield f"Written by `{command}`, which measured every number here on {' and '.join(machines)}."
    yield ""
    yield (
        "The model is SmolLM2-135M-Instruct. Its file holds 4-bit weights (Q4_1), on whose grid INT4 would be nearly "
        "lossless, so everything here is of a rotated copy: the same function in weights of full precision "
        "(`edgeprec eval --rotate`). FP16 is the FP16 variant of that copy. Replies are greedy, on prompts of four "
        "kinds that neither calibration nor tuning has seen. *Forced* means that the text is given and each next token "
        "is judged in it; *free-running* that the reply is decoded with some layers in INT4, FP16 checking nothing. "
        "All layers are every decoder layer; the head is named apart. Entropy is that of the judged prediction."
    )
    yield ""
    yield from _collapse(results)
    yield from _quantizers(results)
    yield from _cure(results)
    yield from _as_is(results)


def _all_parts(results: Values) -> Iterator[Values]:
    for name, part in results.items():
        if name.startswith("quantizer-"):
            yield part
        if name.startswith("collapse-"):
            yield from part["rows"]
    yield from results["tables"].values()
    yield from results["as_is"].values()


def _size(part: Values, tokens: str) -> str:
    return f"{part['prompts']} prompts, {part[tokens]} tokens of replies"


def _collapse(results: Values) -> Iterator[str]:
    yield "## The collapse"
    yield ""
    for method in _collapsed(results):
        part = results[f"collapse-{method}"]
        first = part["rows"][0]
        yield f"INT4 by `{method}`, {_size(first, 'tokens')}, nothing verified:"
        yield ""
        yield "| order | gated | free-running match | common prefix | predicted prefix | match behind it | flips |"
        yield "|---|---|---|---|---|---|---|"
        for row in part["rows"]:
            own = row["own"]
            yield (
                f"| {row['order']} | {row['gated']} | {_share(own['match'])} | {own['prefix_tokens']:.1f} | "
                f"{own['expected_prefix_tokens']:.1f} | {_share(own['match_after_first_difference'])} | "
                f"{_share(own['flip_rate'])} |"
            )
        yield ""
    if not _collapsed(results):
        yield NOT_MEASURED
        yield ""
        return
    yield f"![free-running match by gated layers]({FOLDER}/fidelity-collapse.svg)"
    yield ""
    yield "## Why"
    yield ""
    yield from _reasons(results)


def _reasons(results: Values) -> Iterator[str]:
    rows = [row for method in _collapsed(results) for row in results[f"collapse-{method}"]["rows"]]
    behind = [row["own"]["match_after_first_difference"] for row in rows]
    known = [share for share in behind if share is not None]
    yield (
        "**One flip is the end of the match, not of the quality.** A flip is a token FP16 would not have chosen after "
        "the same text. After the first one both texts are about something else, and tokens at equal places agree only "
        f"by chance: {_share(min(known))} to {_share(max(known))} of them in the rows above. Were flips independent, "
        "the common prefix would be 1 + (1 - f) + (1 - f)^2 + ... tokens; the table has that prediction beside what "
        "was measured. So the free-running match says how early the first flip came, and little else."
        if known
        else "No reply differed."
    )
    yield ""
    yield "**What stale entries in the cache add.** The same layers choose the token, but FP16 then rewrites its keys"
    yield "and values before the next one:"
    yield ""
    yield "| quantizer | order | gated | flips, INT4's cache | flips, FP16's | match, INT4's cache | match, FP16's |"
    yield "|---|---|---|---|---|---|---|"
    for method in _collapsed(results):
        for row in results[f"collapse-{method}"]["rows"]:
            own, fresh = row["own"], row["fresh"]
            yield (
                f"| {method} | {row['order']} | {row['gated']} | {_share(own['flip_rate'])} | "
                f"{_share(fresh['flip_rate'])} | {_share(own['match'])} | {_share(fresh['match'])} |"
            )
    yield ""


def _quantizers(results: Values) -> Iterator[str]:
    yield "**What the quantizer adds.** Forced, with everything in INT4:"
    yield ""
    named = {name.removeprefix("quantizer-"): part for name, part in results.items() if name.startswith("quantizer-")}
    yield from _forced_table(named)
    yield ""


def _forced_table(named: Values) -> Iterator[str]:
    """Yield the table of forced fidelity with everything in INT4, and on how many tokens it was judged."""
    yield "| quantizer | bits/weight | head | FP16's replies: top-1 | H < 1 bit | KL, bits | prompts: top-1 | KL |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, part in named.items():
        for row in part["rows"]:
            reply, prompt = row["reply"], row["prompt"]
            yield (
                f"| {name} | {part['bits_per_weight']:.2f} | {'INT4' if row['int4_head'] else 'FP16'} | "
                f"{_share(reply['top1'])} | {_share(reply['top1_low_entropy'])} | {reply['kl_bits']:.3f} | "
                f"{_share(prompt['top1'])} | {prompt['kl_bits']:.3f} |"
            )
    yield ""
    for name, part in named.items():
        replies, prompts = (part["rows"][0][text]["tokens"] for text in ("reply", "prompt"))
        yield f"`{name}` was judged on {replies} tokens of replies and {prompts} of prompts.  "


def _cure(results: Values) -> Iterator[str]:
    shown = pictures(results)
    yield "## The cure"
    yield ""
    yield (
        "Mode `exact` lets INT4 draft and FP16 read the drafted tokens again in one pass, which rewrites their keys "
        "and values too. What it emits is FP16's text at any number of layers:"
    )
    yield ""
    tables = results["tables"]
    yield from _section(tables, "layers", layer_table)
    yield from _picture(shown, "agreement-by-layers")
    yield from _section(tables, "modes", mode_table)
    yield (
        "The agreement of `bounded` is that of each token it emitted with FP16's choice after the text so far; the "
        "share of verified tokens counts those FP16 had looked at before they were emitted."
    )
    yield ""
    yield "## Entropy knows"
    yield ""
    yield "All layers and the head in INT4, forced:"
    yield ""
    yield from _section(tables, "layers", entropy_table)
    yield from _picture(shown, "agreement-by-entropy")
    yield from _picture(shown, "acceptance-by-entropy")
    yield "## Drafts"
    yield ""
    yield SPEEDS
    yield ""
    yield from _drafts(tables)


def _as_is(results: Values) -> Iterator[str]:
    """Yield what the bundle itself reaches, which is another question than what INT4 costs."""
    tables = results["as_is"]
    yield "## The bundle as it is"
    yield ""
    yield (
        "Not rotated, with the quantizer it was exported with and its own draft model where it has one. Its weights "
        "come from a file of 4-bit values, so these figures are of this pair and not of INT4 in general."
    )
    yield ""
    yield from _section(tables, "forced", lambda found: _forced_table({found["quantizer"]: found}))
    yield from _section(tables, "modes", mode_table)
    yield SPEEDS
    yield ""
    yield from _drafts(tables)


def _drafts(tables: Values) -> Iterator[str]:
    yield from _section(tables, "drafts", lambda found: draft_table(found["drafts"]))
    yield from _section(tables, "drafts", lambda found: drafts_by_kind_table(found["drafts_by_kind"]))


def _section(tables: Values, name: str, table: Callable[[Values], Iterator[str]]) -> Iterator[str]:
    """Yield a table of one part and its size, or that it was not measured."""
    part = tables.get(name)
    if part is None:
        yield NOT_MEASURED
    else:
        yield from table(part)
        yield ""
        if "reply_tokens" in part:
            yield f"{part['quantizer']}, {part['bits_per_weight']:.2f} bits per weight, {_size(part, 'reply_tokens')}."
    yield ""


def _picture(shown: Values, name: str) -> Iterator[str]:
    if f"fidelity-{name}.svg" in shown:
        yield f"![{name.replace('-', ' ')}]({FOLDER}/fidelity-{name}.svg)"
        yield ""


def _collapse_chart(results: Values) -> Chart:
    rows = {method: _least_first(results[f"collapse-{method}"]["rows"]) for method in _collapsed(results)}
    counts = sorted({row["gated"] for known in rows.values() for row in known})
    exact = results["tables"].get("layers", {}).get("exact_by_layers", [])
    found = {row["gated"]: row["token_match"] for row in exact if not row["int4_head"]}
    series = [Series("exact: token match", [found.get(count) for count in counts])] if found else []
    for method, known in rows.items():
        for words, cache in (("nothing verified", "own"), ("FP16 rewrites the cache", "fresh")):
            match = {row["gated"]: row[cache]["match"] for row in known}
            series.append(Series(f"{method}, {words}", [match.get(count) for count in counts]))
    return Chart(
        title="Token match with FP16 by layers in INT4",
        x_label="gated layers, the least sensitive first",
        y_label="share of tokens at their place",
        places=[str(count) for count in counts],
        series=series,
    )


def _least_first(rows: Sequence[Values]) -> list[Values]:
    return [row for row in rows if row["order"].startswith("least")]


def _collapsed(results: Values) -> list[str]:
    return [name.removeprefix("collapse-") for name in results if name.startswith("collapse-")]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
