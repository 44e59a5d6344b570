"""The page docs/fidelity.md and its pictures; every number is one that study_fidelity.py measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
Values = Mapping[str, Any]


def write(parts: Values, folder: Path) -> None:
    """Write fidelity.md and the pictures into ``folder``; ``parts`` are what the study measured, by name."""
    results = _gathered(parts)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, svg in pictures(results).items():
        (folder / FOLDER / name).write_text(svg, encoding="utf-8")
    (folder / "fidelity.md").write_text(page(results), encoding="utf-8")


def _gathered(parts: Values) -> dict[str, Any]:
    """Return the quantizers as they are, the rows of each collapse together, and the tables of eval as one."""
    results: dict[str, Any] = {name: part for name, part in parts.items() if name.startswith("quantizer-")}
    for name, part in parts.items():
        if name.startswith("collapse-"):
            results.setdefault("-".join(name.split("-")[:2]), {"rows": []})["rows"].append(part)
    return results | {"evaluation": {**parts["drafts"], **parts["modes"], **parts["layers"]}}


def pictures(results: Values) -> dict[str, str]:
    """Return file name -> SVG."""
    drawn = {f"fidelity-{name}": svg for name, svg in draw_pictures(results["evaluation"]).items()}
    return drawn | {"fidelity-collapse.svg": draw_chart(_collapse_chart(results))}


def page(results: Values) -> str:
    """Return the page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Values) -> Iterator[str]:
    found = results["evaluation"]
    yield "# Fidelity"
    yield ""
    yield f"Written by `{COMMAND}`, which measured every number here on {found['machine']}."
    yield ""
    yield (
        "The model is SmolLM2-135M-Instruct. Its file holds 4-bit weights (Q4_1), on whose grid INT4 would be nearly "
        "lossless, so everything here is of a rotated copy: the same function in weights of full precision "
        "(`edgeprec eval --rotate`). FP16 is the FP16 variant of that copy. Replies are greedy, "
        f"{found['reply_tokens']} tokens on {found['prompts']} prompts of four kinds that neither calibration nor "
        "tuning has seen. *Forced* means that the text is given and each next token is judged in it; *free-running* "
        "that the reply is decoded with some layers in INT4, FP16 checking nothing. All layers are every decoder "
        "layer; the head is named apart. Entropy is that of the judged prediction."
    )
    yield ""
    yield from _collapse(results)
    yield from _quantizers(results)
    yield from _cure(found)


def _collapse(results: Values) -> Iterator[str]:
    yield "## The collapse"
    yield ""
    for method in _collapsed(results):
        part = results[f"collapse-{method}"]
        first = part["rows"][0]
        yield f"INT4 by `{method}`, {first['prompts']} prompts, {first['tokens']} tokens, nothing verified:"
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
    yield "| quantizer | bits/weight | head | FP16's replies: top-1 | H < 1 bit | KL, bits | prompts: top-1 | KL |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, part in results.items():
        if not name.startswith("quantizer-"):
            continue
        for row in part["rows"]:
            reply, prompt = row["reply"], row["prompt"]
            yield (
                f"| {name.removeprefix('quantizer-')} | {part['bits_per_weight']:.2f} | "
                f"{'INT4' if row['int4_head'] else 'FP16'} | {_share(reply['top1'])} | "
                f"{_share(reply['top1_low_entropy'])} | {reply['kl_bits']:.3f} | {_share(prompt['top1'])} | "
                f"{prompt['kl_bits']:.3f} |"
            )
    yield ""
    counted = next(part["rows"][0] for name, part in results.items() if name.startswith("quantizer-"))
    yield f"{counted['reply']['tokens']} tokens of replies and {counted['prompt']['tokens']} of prompts were judged."
    yield ""


def _cure(found: Values) -> Iterator[str]:
    yield "## The cure"
    yield ""
    yield (
        "Mode `exact` lets INT4 draft and FP16 read the drafted tokens again in one pass, which rewrites their keys "
        "and values too. What it emits is FP16's text at any number of layers:"
    )
    yield ""
    yield from layer_table(found)
    yield ""
    yield f"![agreement by layers]({FOLDER}/fidelity-agreement-by-layers.svg)"
    yield ""
    yield from mode_table(found)
    yield ""
    yield (
        "The agreement of `bounded` is that of each token it emitted with FP16's choice after the text so far; the "
        "share of verified tokens counts those FP16 had looked at before they were emitted."
    )
    yield ""
    yield "## Entropy knows"
    yield ""
    yield "All layers and the head in INT4, forced:"
    yield ""
    yield from entropy_table(found)
    yield ""
    yield f"![agreement by entropy]({FOLDER}/fidelity-agreement-by-entropy.svg)"
    yield ""
    if "acceptance-by-entropy.svg" in draw_pictures(found):
        yield f"![acceptance by entropy]({FOLDER}/fidelity-acceptance-by-entropy.svg)"
        yield ""
    yield "## Drafts"
    yield ""
    yield "Every reply is FP16's. Speeds are of one run on a shared machine; only their ratios mean something."
    yield ""
    yield from draft_table(found["drafts"])
    yield ""
    yield from drafts_by_kind_table(found["drafts_by_kind"])


def _collapse_chart(results: Values) -> Chart:
    methods = _collapsed(results)
    rows = {method: _least_first(results[f"collapse-{method}"]["rows"]) for method in methods}
    places = [str(row["gated"]) for row in rows[methods[0]]]
    series = [Series("exact: token match", [row["token_match"] for row in _exact(results, places)])]
    for method in methods:
        series.append(Series(f"{method}, nothing verified", [row["own"]["match"] for row in rows[method]]))
        series.append(Series(f"{method}, FP16 rewrites the cache", [row["fresh"]["match"] for row in rows[method]]))
    return Chart(
        title="Token match with FP16 by layers in INT4",
        x_label="gated layers, the least sensitive first",
        y_label="share of tokens at their place",
        places=places,
        series=series,
    )


def _exact(results: Values, places: Sequence[str]) -> list[Values]:
    rows = [row for row in results["evaluation"]["exact_by_layers"] if not row["int4_head"]]
    return [row for row in rows if str(row["gated"]) in places]


def _least_first(rows: Sequence[Values]) -> list[Values]:
    return [row for row in rows if row["order"].startswith("least")]


def _collapsed(results: Values) -> list[str]:
    return [name.removeprefix("collapse-") for name in results if name.startswith("collapse-")]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
