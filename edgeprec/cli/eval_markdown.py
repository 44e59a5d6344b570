"""An evaluation as Markdown: the tables that a terminal, a pull request and the documentation show alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeprec.cli.eval_pictures import bin_label, layer_label

__all__ = ["draft_table", "drafts_by_kind_table", "entropy_table", "evaluation_markdown", "layer_table", "mode_table"]

Values = Mapping[str, Any]
Cells = Sequence[str]


def evaluation_markdown(found: Values, *, pictures: Sequence[str] = ()) -> str:
    """Return the page; ``found`` is what ``eval --json`` prints, ``pictures`` are file names beside it."""
    return "\n".join(_lines(found, pictures)) + "\n"


def _lines(found: Values, pictures: Sequence[str]) -> Iterator[str]:
    yield f"# Fidelity of {found['bundle']}"
    yield ""
    yield _origin(found)
    yield ""
    if not found["complete"]:
        yield "**Not complete**: the run was interrupted or is still going; --resume measures what is missing.  "
    yield from (f"Note: {note}.  " for note in found["notes"])
    for title, key, table in (
        ("By gated layers", "layers", layer_table),
        ("By mode", "modes", mode_table),
        ("By entropy, all layers and the head in INT4", "entropy", entropy_table),
        ("Drafts", "drafts", lambda found: draft_table(found["drafts"])),
        (
            "Drafts by kind of text: speed over FP16",
            "drafts_by_kind",
            lambda found: drafts_by_kind_table(found["drafts_by_kind"]),
        ),
    ):
        yield f"## {title}"
        yield ""
        if key in found:
            yield from table(found)
        else:
            yield "Not measured."
        yield ""
    yield from (f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})" for name in pictures)


def _origin(found: Values) -> str:
    of = (
        "a rotated copy of the bundle (the same function in weights of full precision)"
        if found["rotated"]
        else "the bundle as it is"
    )
    return (
        f"Measured on {of}: INT4 by {found['quantizer']}, blocks of {found['group_size']}, "
        f"{found['bits_per_weight']:.2f} bits per weight; {found['prompts']} prompts of four kinds, "
        f"{found['prompt_tokens']} tokens, with replies of FP16, {found['reply_tokens']} tokens; "
        f"{found['engine']}, {found['seconds']:.0f} s. Forced = the text is given; free-running = the reply is decoded "
        "with these layers in INT4 and nothing verified. Entropy is the judged prediction's."
    )


def layer_table(found: Values) -> Iterator[str]:
    """Yield the table by gated layers; the last row has the head in INT4 too."""
    rows = [*found["layers"], *([found["all_and_head"]] if found["all_and_head"] else [])]
    places = zip(rows, found["exact_by_layers"], found["on_prompts"], strict=True)
    yield from _table(
        ("gated", "forced top-1", "H < 1 bit", "KL, bits", "on the prompts", "prefix", "free-running", "`exact`"),
        (
            (
                layer_label(row["gated"], has_int4_head=exact["int4_head"]),
                _share(row["top1"]),
                _share(row["top1_low_entropy"]),
                _number(row["kl_bits"], 4),
                _share(prompt["top1"]),
                _number(row["common_prefix_tokens"], 1),
                _share(row["free_running_match"]),
                _share(exact["token_match"]),
            )
            for row, exact, prompt in places
        ),
    )


def mode_table(found: Values) -> Iterator[str]:
    """Yield the table by mode."""
    modes = found["modes"]
    bounded = modes["bounded"]
    yield from _table(
        ("mode", "tokens that are FP16's", "verified before they were emitted"),
        (
            ("`exact`", _share(modes["exact"]["token_match"]), "all"),
            (
                f"`bounded`, epsilon {found['epsilon']:g}",
                "not measured" if bounded is None else f"{_share(bounded['agreement'])} (after its own text)",
                "not measured" if bounded is None else _share(bounded["verified_share"]),
            ),
            ("`gated`", _share(modes["gated"]["token_match"]), "none"),
        ),
    )


def entropy_table(found: Values) -> Iterator[str]:
    """Yield the table by entropy of the row with most in INT4."""
    yield from _table(
        ("entropy, bits", "tokens", "forced top-1", "KL, bits"),
        (
            (bin_label(entry), str(entry["tokens"]), _share(entry["top1"]), _number(entry["kl_bits"], 3))
            for entry in found["entropy"][-1]["bins"]
        ),
    )


def draft_table(rows: Sequence[Values]) -> Iterator[str]:
    """Yield the table of drafters, lengths and rules."""
    yield from _table(
        ("drafter", "K", "rule", "acceptance", "tokens/s", "over FP16"),
        (
            (
                row["name"],
                str(row["k"]),
                row["rule"],
                _number(row["acceptance"], 2),
                _number(row["tokens_per_s"], 1),
                _times(row["speedup_over_fp16"]),
            )
            for row in rows
        ),
    )


def drafts_by_kind_table(rows: Sequence[Values]) -> Iterator[str]:
    """Yield speed over FP16 by kind: of each drafter the best fixed length, and the adaptive one."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    names = list(dict.fromkeys(row["name"] for row in rows))
    yield from _table(
        ("drafter", *kinds),
        (
            cells
            for name in names
            for cells in (
                (f"{name}, best fixed K", *(_best_fixed(rows, name, kind) for kind in kinds)),
                (f"{name}, adaptive", *(_adaptive(rows, name, kind) for kind in kinds)),
            )
        ),
    )


def _best_fixed(rows: Sequence[Values], name: str, kind: str) -> str:
    own = [row for row in rows if (row["name"], row["kind"]) == (name, kind)]
    fixed = [row for row in own if row["k"] != "adaptive" and row["speedup_over_fp16"] is not None]
    if not fixed:
        return _times(None)
    best = max(fixed, key=lambda row: float(row["speedup_over_fp16"]))
    return f"{_times(best['speedup_over_fp16'])} (K={best['k']})"


def _adaptive(rows: Sequence[Values], name: str, kind: str) -> str:
    wanted = (name, kind, "adaptive", "entropy")
    found = [row for row in rows if (row["name"], row["kind"], row["k"], row["rule"]) == wanted]
    return _times(found[0]["speedup_over_fp16"]) if found else _times(None)


def _table(head: Cells, rows: Iterator[Cells] | Sequence[Cells]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def _share(value: float | None) -> str:
    """Return a share in percent; what rounds to 100 % and is less must not read as all."""
    if value is None:
        return "-"
    text = f"{100 * value:.1f} %"
    return "> 99.9 %" if text == "100.0 %" and value < 1.0 else text


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
