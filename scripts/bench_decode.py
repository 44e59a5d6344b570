"""Measure decoding on a GPU at true cost: FP16, INT4, exact with self drafts, and with a draft model, in one run.

    python scripts/bench_decode.py SOURCE [--draft SOURCE] [--shape 8b] [--set short] [--tokens 256] [--configs LIST]
                                   [--limit-s S] [--markdown FILE] [--jsonl FILE]
    python scripts/bench_decode.py SOURCE --shape none --check-identical --set test

SOURCE is a small Llama: a bundle, a GGUF file or a Hugging Face folder. It is widened to the shape (``widen.py``;
``none`` takes it as it is), the draft to a 1B shape; INT4 is rounded to nearest in blocks of 128. Text, entropy and
acceptance are the small models' own; every table says "8B-shaped". Ways of decoding take turns, a few prompts each, so
that a drifting clock meets all of them. GB/s count the linears' weights of every pass, draft and target; idle power is
measured with the weights loaded. ``--check-identical`` measures nothing: it compares exact with fp16 token by token and
ends with exit code 1 where they differ, 3 where time cut the comparison short. Only that asserts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from checkpoint_source import load_tokenizer
from decode_identical import cases, check_identical, print_checks
from decode_pair import SHAPES, LoadedModel, load_pair
from decode_record import Record, Summary, decode_one
from decode_table import drafting_table, speed_table
from kernel_timing import read_bandwidth_gb_per_s

from edgeprec.config import DraftingConfig, GenerationConfig, Mode
from edgeprec.devices.detect import detect
from edgeprec.devices.meter import Meter
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.kernels.layout import GROUP_SIZES
from edgeprec.prompts import PROMPT_SETS, Prompt, load_prompts
from edgeprec.runtime.session import Session
from edgeprec.runtime.torch_device import choose_device, describe_device

IDLE_S = 3.0
WARM_UP_TOKENS = 48


@dataclass(slots=True)
class Run:
    """What is measured and what came of it so far."""

    session: Session
    ways: dict[str, GenerationConfig]
    prompts: Sequence[Prompt]
    about: dict[str, Any]
    has_time: Callable[[], bool]
    records: list[Record] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def summaries(self) -> dict[str, Summary]:
        """Return the ways by name over the prompts that all of them have done, or where there are none over its own."""
        done = {name: {record.prompt for record in self.records if record.way == name} for name in self.ways}
        common = set.intersection(*done.values())
        return {
            name: Summary([r for r in self.records if r.way == name and (r.prompt in common or not common)])
            for name in self.ways
            if done[name]
        }


def main() -> None:
    """Load, warm up, decode, print."""
    started, arguments = time.monotonic(), _arguments()
    device = choose_device(None)
    read_gb_per_s = read_bandwidth_gb_per_s() if device.type == "cuda" and not arguments.check_identical else None
    target, draft = load_pair(
        arguments.source,
        arguments.draft,
        shape=SHAPES[arguments.shape],
        device=device,
        group_size=arguments.group_size,
        context_tokens=arguments.context,
        keeps_draft_grid=arguments.keep_draft_grid,
    )
    is_measured = device.type == "cuda" and not arguments.check_identical
    session = open_session(target, draft, Meter(detect("nvml").sensor) if is_measured else None)

    def has_time() -> bool:
        return arguments.limit_s is None or time.monotonic() - started < arguments.limit_s

    if arguments.check_identical:
        check(session, target, draft, arguments, has_time)
        return
    ways = choose(configurations(arguments.tokens, has_draft=draft is not None), arguments.configs)
    about = _about(target, draft, describe_device(device), read_gb_per_s, session, arguments)
    run = Run(session, ways, load_prompts(arguments.set)[: arguments.prompts], about, has_time)
    if arguments.jsonl is not None:
        arguments.jsonl.write_text(json.dumps({"type": "run"} | about) + "\n")
    warm_up(run)
    decode(run, block=arguments.block, jsonl=arguments.jsonl)
    text = report(run, target, draft)
    print(f"\n{text}")
    if arguments.markdown is not None:
        arguments.markdown.write_text(text + "\n")
    session.close()


def open_session(target: LoadedModel, draft: LoadedModel | None, meter: Meter | None) -> Session:
    """Return a session on both engines."""
    return Session(
        engine=target.engine,
        tokenizer=load_tokenizer(target.checkpoint),
        target_bits=target.bits,
        draft_engine=None if draft is None else draft.engine,
        draft_bits=None if draft is None else draft.bits,
        meter=meter,
    )


def configurations(tokens: int, *, has_draft: bool) -> dict[str, GenerationConfig]:
    """Return the ways of decoding by name."""

    def exact(**drafting: Any) -> GenerationConfig:
        return GenerationConfig(max_new_tokens=tokens, ignore_eos=True, drafting=DraftingConfig(**drafting))

    plain = exact()
    ways = {
        "fp16": replace(plain, mode=Mode.FP16),
        "int4": replace(plain, mode=Mode.INT4),
        "self K=3": exact(drafter="self", draft_length=3),
        "self K=5": exact(drafter="self", draft_length=5),
        "self adaptive": exact(drafter="self"),
        "n-gram": exact(drafter="ngram"),
    }
    if has_draft:
        ways["draft K=5"] = exact(drafter="model", draft_length=5)
        ways["draft adaptive"] = exact(drafter="model")
        ways["three-level K=5"] = exact(drafter="model", three_level=True, draft_length=5)
        ways["three-level K=8"] = exact(drafter="model", three_level=True, draft_length=8)
        ways["three-level adaptive"] = exact(drafter="model", three_level=True, max_draft_length=15)
    return ways


def choose(ways: Mapping[str, GenerationConfig], names: str | None) -> dict[str, GenerationConfig]:
    """Return the ways in a list such as ``int4,draft K=5``, FP16 first.

    Raises:
        ConfigError: there is no way of that name.
    """
    if names is None:
        return dict(ways)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    wrong = next((name for name in wanted if name not in ways), None)
    if wrong is not None:
        raise ConfigError(f"--configs has {wrong!r}, expected some of: {', '.join(ways)}")
    return {name: ways[name] for name in ways if name in wanted or name == "fp16"}


def warm_up(run: Run) -> None:
    """Run every way twice: compile and capture what is still missing. One that cannot run is left out, and said so."""
    for name, config in list(run.ways.items()):
        short = replace(config, max_new_tokens=min(WARM_UP_TOKENS, config.max_new_tokens))
        try:
            record = [decode_one(run.session, name, short, run.prompts[0]) for _ in range(2)][-1]
        except EdgePrecError as error:
            if name == "fp16":
                raise
            run.left_out[name] = str(error)
            del run.ways[name]
            print(f"{name}: left out: {error}", flush=True)
            continue
        rate, accepted = record.tokens_per_s or 0.0, Summary([record]).acceptance()
        note = "" if accepted is None else f", acceptance {accepted:.2f}"
        print(f"{name}: warm, {rate:.0f} tokens/s{note}", flush=True)


def decode(run: Run, *, block: int, jsonl: Path | None) -> None:
    """Run every prompt through every way, ``block`` prompts at a time; stop where time runs out."""
    plain: dict[str, Record] = {}
    for start in range(0, len(run.prompts), block):
        prompts = run.prompts[start : start + block]
        for name, config in run.ways.items():
            for prompt in prompts:
                if not run.has_time():
                    print("time is up: what follows is of the replies so far", flush=True)
                    return
                record = decode_one(run.session, name, config, prompt)
                run.records.append(record)
                if name == "fp16":
                    plain[prompt.id] = record
                if jsonl is not None:
                    with jsonl.open("a") as file:
                        file.write(json.dumps(record.to_json(plain=plain.get(prompt.id))) + "\n")
        _print_progress(run, done=start + len(prompts))


def _print_progress(run: Run, *, done: int) -> None:
    parts = [f"{name} {summary.tokens_per_s:.0f}" for name, summary in run.summaries().items()]
    print(f"{done} of {len(run.prompts)} prompts: {', '.join(parts)} tokens/s", flush=True)


def report(run: Run, target: LoadedModel, draft: LoadedModel | None) -> str:
    """Return what was measured in Markdown: the circumstances, both tables, and what did not go as asked."""
    about, summaries = run.about, run.summaries()
    if not summaries.get("fp16"):
        return "nothing was measured: give --limit-s more time"
    counts = sorted({len(summary.records) for summary in summaries.values()})
    of_read, idle_watts = about["read_gb_per_s"], about["idle_watts"]
    lines = [
        f"{about['device']}, target {about['target']}, draft {about['draft']}, batch 1, greedy, {about['tokens']} "
        f"tokens after each of {'/'.join(map(str, counts))} prompts ({about['set']}, {len(run.prompts)} planned), "
        f"context {about['context_tokens']}",
        f"read bandwidth {'not measured' if of_read is None else f'{of_read:.0f} GB/s'}; "
        f"idle {'not measured' if idle_watts is None else f'{idle_watts:.0f} W'}",
        "",
        speed_table(summaries, read_gb_per_s=of_read),
        "",
        drafting_table(summaries),
        "",
    ]
    lines += [f"left out: {name}: {reason}" for name, reason in run.left_out.items()]
    lines += [f"energy: {note}" for note in _first_notes(run.records)]
    for model in (target, draft):
        if model is not None:
            lines.append(_engine_note(model))
    return "\n".join([*lines, *_fallbacks(run.records)])


def _fallbacks(records: Sequence[Record]) -> list[str]:
    """Return what did not run as asked, and in which ways."""
    ways: dict[str, dict[str, None]] = {}
    for record in records:
        for note in record.fallbacks:
            ways.setdefault(note, {})[record.way] = None
    return [f"fallback in {', '.join(names)}: {note}" for note, names in ways.items()] or ["fallbacks: none"]


def _first_notes(records: Sequence[Record]) -> list[str]:
    """Return why energy is missing, where it is."""
    notes = [record.energy_note for record in records if record.joules is None and record.energy_note is not None]
    return [f"{len(notes)} of {len(records)} replies have none: {notes[0]}"] if notes else []


def _engine_note(model: LoadedModel) -> str:
    graphs, arena = model.engine.graph_report, model.engine.info.memory_bytes / 2**30
    name = f"{model.checkpoint.name}: arena {arena:.2f} GiB"
    if graphs.mean_ms is None:
        return f"{name}, no graphs"
    return (
        f"{name}, {graphs.captured} kinds of passes captured, {graphs.mean_ms:.0f} ms each (largest "
        f"{graphs.largest_ms:.0f}): what a switch to a new plan costs once; {graphs.dropped} dropped"
    )


def check(
    session: Session,
    target: LoadedModel,
    draft: LoadedModel | None,
    arguments: argparse.Namespace,
    has_time: Callable[[], bool],
) -> None:
    """Compare exact with fp16 and end the process with 1 where they differ, 3 where not all was compared."""
    layers = target.config.num_layers
    gated = arguments.gated or sorted({1, min(2, layers), max(1, layers // 2), layers})
    which = cases(gated, has_draft=draft is not None)
    prompts = load_prompts(arguments.set)[: arguments.prompts]
    started = time.monotonic()

    def progress(checks: Mapping[str, Any]) -> None:
        same, all_ = (sum(getattr(c, name) for c in checks.values()) for name in ("identical", "compared"))
        print(f"{time.monotonic() - started:.0f} s: identical: {same} of {all_}", flush=True)

    checks = check_identical(session, prompts, tokens=arguments.tokens, which=which, has_time=has_time, report=progress)
    exit_code = print_checks(checks, planned=len(prompts) * len(which))
    session.close()
    if exit_code:
        raise SystemExit(exit_code)


def _about(
    target: LoadedModel,
    draft: LoadedModel | None,
    device: str,
    read_gb_per_s: float | None,
    session: Session,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Return what every reply of the run has in common; measures the power at rest."""
    idle = None
    if session.meter is not None:
        torch.cuda.synchronize()
        time.sleep(1.0)
        idle = session.meter.measure_idle(IDLE_S).watts
    return {
        "device": device,
        "torch": torch.__version__,
        "target": _shape_note(target, arguments.shape),
        "draft": "none" if draft is None else _shape_note(draft, "1b" if arguments.shape == "8b" else arguments.shape),
        "read_gb_per_s": read_gb_per_s,
        "idle_watts": idle,
        "group_size": arguments.group_size,
        "keeps_draft_grid": arguments.keep_draft_grid,
        "context_tokens": arguments.context,
        "tokens": arguments.tokens,
        "set": arguments.set,
        "block": arguments.block,
    }


def _shape_note(model: LoadedModel, shape: str) -> str:
    name = model.checkpoint.name
    size = f"{model.config.num_layers} layers, width {model.config.hidden_size}, INT4 group {model.group_size}"
    return f"{name} ({size})" if shape == "none" else f"{name} at {shape} shape ({size})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument(
        "--draft", type=Path, help="what drafts, widened to a 1B shape: a checkpoint or distilled draft"
    )
    parser.add_argument("--shape", choices=SHAPES, default="8b", help="tiny = a little larger than the models")
    parser.add_argument("--group-size", type=int, choices=GROUP_SIZES, default=128)
    parser.add_argument(
        "--keep-draft-grid", action="store_true", help="widen the draft along its own axes, INT4 in blocks of 32"
    )
    parser.add_argument("--set", choices=PROMPT_SETS, default="short")
    parser.add_argument("--prompts", type=int, help="only so many of the set")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--configs", metavar="LIST", help="only these ways, separated by commas, and fp16")
    parser.add_argument("--block", type=int, default=3, help="prompts before the next way takes its turn")
    parser.add_argument("--limit-s", type=float, help="stop after so many seconds and print what there is")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables here")
    parser.add_argument("--jsonl", type=Path, metavar="FILE", help="also write one line per reply here, as they come")
    parser.add_argument("--check-identical", action="store_true", help="compare exact with fp16 instead of measuring")
    parser.add_argument("--gated", type=_counts, metavar="LIST", help="numbers of gated layers to check")
    return parser.parse_args()


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
