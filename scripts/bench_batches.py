"""Measure batches on a GPU: plain FP16, INT4, exact with fixed and adaptive drafts; speed, joules, and where it turns.

    python scripts/bench_batches.py SOURCE [--draft SOURCE] [--shape 8b] [--batches 1,2,4,8,16,32,64] [--configs LIST]
                                    [--seconds 4] [--repeats 3] [--limit-s S] [-o FILE.jsonl] [--markdown FILE]

SOURCE is a small Llama, widened to the shape as in ``bench_decode.py``, the draft to a 1B shape. One engine with slots
for the largest batch runs all of them. Prompts are the product's test set, kinds in turn; a reply ends where the model
ends it, or after --tokens, and the next prompt takes its slot at once, so that batches are measured full. ``loops`` is
the share of tokens that repeat 16 tokens of their own reply: it flatters drafts, so it stands beside acceptance.
Compiling and capturing happens before the clock starts. The most telling rows come first; the file is whole after
every repeat, what it holds already is not measured again, and ``edgeprec project`` reads it. Nothing here asserts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from batch_bench import BatchBench
from batch_plan import MAIN_WAYS, OTHER_WAYS, plan_cases
from batch_prompts import SweepPrompts
from batch_table import batch_table, crossovers, way_of
from checkpoint_source import load_tokenizer
from decode_pair import SHAPES, LoadedModel, load_pair
from results_file import ResultsFile, key_of, model_of
from sweep_arguments import add_sweep_arguments

from edgeprec.config import DrafterKind, GenerationConfig, Mode
from edgeprec.devices.board import read_board
from edgeprec.devices.detect import detect
from edgeprec.devices.meter import Meter
from edgeprec.devices.sysfs import Sysfs
from edgeprec.errors import EdgePrecError
from edgeprec.kernels.layout import GROUP_SIZES
from edgeprec.runtime.batch_generation import BatchGenerator
from edgeprec.runtime.benchmark_case import Case
from edgeprec.runtime.benchmark_machine import device_facts, library_versions, read_state
from edgeprec.runtime.benchmark_record import Circumstances, make_record
from edgeprec.runtime.benchmark_repeat import Repeat
from edgeprec.runtime.energy import NoWindow
from edgeprec.runtime.torch_device import choose_device
from edgeprec.tensor_names import num_linear_weights

IDLE_S = 3.0
SPARE_S = 2.0  # for what a repeat takes beside its window
Record = dict[str, Any]


def main() -> None:
    """Load, measure what is missing case by case, print tables on the way."""
    started, arguments = time.monotonic(), _arguments()
    device = choose_device(None)
    target, draft = load_pair(
        arguments.source,
        arguments.draft,
        shape=SHAPES[arguments.shape],
        sequences=max(2, *arguments.batches),  # an engine for one text takes no list
        device=device,
        group_size=arguments.group_size,
        context_tokens=arguments.prompt_tokens + arguments.tokens + 8,
        keeps_draft_grid=arguments.keep_draft_grid,
    )
    meter = Meter(detect("nvml").sensor) if device.type == "cuda" else None

    def has_time() -> bool:
        left = float("inf") if arguments.limit_s is None else arguments.limit_s - (time.monotonic() - started)
        return left > arguments.seconds + SPARE_S

    sweep(target, draft, meter, arguments, has_time)


def sweep(
    target: LoadedModel,
    draft: LoadedModel | None,
    meter: Meter | None,
    arguments: argparse.Namespace,
    has_time: Callable[[], bool],
) -> None:
    """Measure every case that the file lacks."""
    bench = open_bench(target, draft, meter, arguments)
    about = circumstances(target, draft, meter, arguments)
    results = ResultsFile(arguments.output)

    def report() -> str:
        return write_report(of_models(about, results.records), arguments)

    ways = arguments.configs or default_ways(has_draft=draft is not None)
    try:
        for case in plan_cases(arguments.batches, ways, new_tokens=arguments.tokens, prompts=bench.prompts.of_set):
            if is_measured(about, case, results.records):
                continue
            if not has_time():
                print("time is up: the rest is left out; run the same command again to go on", flush=True)
                break
            measure(bench, about, case, results, has_time, engine=target.engine)
            report()
    finally:
        print(f"\n{report()}\n\n{engine_note(target)}", flush=True)


def default_ways(*, has_draft: bool) -> list[str]:
    """Return all ways of the sweep; without a draft model the target's INT4 variant drafts."""
    ways = [*MAIN_WAYS, *OTHER_WAYS]
    return ways if has_draft else [way.replace("draft", "self") for way in ways]


def open_bench(
    target: LoadedModel, draft: LoadedModel | None, meter: Meter | None, arguments: argparse.Namespace
) -> BatchBench:
    """Put a generator of batches on both engines."""
    tokenizer = load_tokenizer(target.checkpoint)
    engines = [model.engine for model in (target, draft) if model is not None]
    batches = BatchGenerator(
        engines=(target.engine, None if draft is None else draft.engine),
        tokenizer=tokenizer,
        calibration=None,
        bits=(target.bits, target.bits if draft is None else draft.bits),
        shared_tokens=min(engine.info.vocab_size for engine in engines),
        clock=time.monotonic_ns,
        open_window=NoWindow,
        meter_note=None,
        alone=_refuse,
        check=lambda config: None,
        kind_of=lambda config: config.drafting.drafter if config.mode is Mode.EXACT else DrafterKind.NONE,
    )
    return BatchBench(
        batches=batches,
        prompts=SweepPrompts(tokenizer.encode, most_tokens=arguments.prompt_tokens),
        meter=meter,
        seconds=arguments.seconds,
        first_passes=lambda: sum(engine.first_passes for engine in engines),
    )


def circumstances(
    target: LoadedModel, draft: LoadedModel | None, meter: Meter | None, arguments: argparse.Namespace
) -> Circumstances:
    """Return what all rows have in common; measures the power at rest, with the weights loaded."""
    idle: Record = {"watts": None, "seconds": 0.0, "power_mode": None, "note": "no meter: this is no GPU"}
    if meter is not None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            time.sleep(1.0)
        found = meter.measure_idle(IDLE_S)
        idle = {"watts": found.watts, "seconds": found.seconds, "power_mode": found.power_mode, "note": found.note}
    info, small = target.engine.info, target.checkpoint
    return Circumstances(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=("python", *sys.argv),
        device=device_facts(read_board(Sysfs())),
        versions=library_versions("torch", Sysfs()),
        model={
            "name": small.name if arguments.shape == "none" else f"{small.name} at {arguments.shape} shape",
            "size_bytes": info.memory_bytes,
            "parameters": num_linear_weights(target.config),
            "layers": target.config.num_layers,
            "hidden_size": target.config.hidden_size,
            "vocab_size": target.config.vocab_size,
            "group_size": target.group_size,
            "draft": "self" if draft is None else draft.checkpoint.name,
            "draft_group_size": None if draft is None else draft.group_size,
        },
        engine=info.name,
        engine_device=info.device,
        threads=None,
        repeats=arguments.repeats,
        has_warm_up=True,
        idle=idle,
        meter=None if meter is None else {"source": meter.sensor.source, "period_ms": meter.period_ms},
    )


def measure(
    bench: BatchBench,
    about: Circumstances,
    case: Case,
    results: ResultsFile,
    has_time: Callable[[], bool],
    *,
    engine: Any,
) -> None:
    """Warm one case up and measure its repeats, each in the file at once; what cannot run is said and left out."""
    began = time.monotonic()
    repeats: list[Repeat] = []
    record: Record | None = None
    before = read_state(Sysfs())
    try:
        runs = bench.warm_up(case)
        warm_up = f"warm-up {time.monotonic() - began:.1f} s in {runs} runs"
        for number in range(about.repeats):
            if repeats and not has_time():
                break
            repeats.append(bench.repeat(case, number))
            record = make_record(about, case, repeats, before=before, after=read_state(Sysfs()))
            record["graphs"] = asdict(engine.graph_report)
            for run in record["runs"]:
                run["generations"] = []  # hundreds of alike ones: what they add up to is in the record
            results.put(record)
    except (EdgePrecError, RuntimeError) as error:
        print(f"batch {case.sequences}, {_name(case.config)}: left out: {str(error)[:300]}", flush=True)
    if record is not None:
        print(f"{progress_line(record)}, {warm_up}", flush=True)


def progress_line(record: Record) -> str:
    """Return a row in a sentence."""
    energy, batch = record["energy"], record["batch"]
    rate = record["tokens_per_s"]["mean"] if record["tokens_per_s"] else 0.0
    parts = [f"batch {batch['sequences']}, {way_of(record)}: {rate:.1f} tokens/s"]
    parts += [] if energy is None else [f"{energy['joules_per_token']['mean']:.4f} J/token"]
    parts += [] if record["acceptance_rate"] is None else [f"accepted {record['acceptance_rate']:.2f}"]
    parts += [f"loops {record['loop_share'] or 0.0:.2f}", f"{batch['mean_sequences'] or 0.0:.1f} at once"]
    return ", ".join([*parts, f"rounds by cap {batch['rounds_by_cap']}"])


def is_measured(about: Circumstances, case: Case, records: Sequence[Record]) -> bool:
    """Whether a complete record of this case is there."""
    drafting = case.config.drafting
    is_drafting = case.config.mode is Mode.EXACT
    length = "adaptive" if drafting.draft_length is None else drafting.draft_length
    wanted: Record = {
        "engine": about.engine,
        "engine_device": about.engine_device,
        "model": about.model,
        "mode": str(case.config.mode),
        "drafter": str(drafting.drafter) if is_drafting else None,
        "draft_length": length if is_drafting else None,
        "three_level": False if is_drafting else None,
        "test": {
            "kind": case.kind.value,
            "prompt_set": case.prompt_set,
            "new_tokens": case.new_tokens,
            "sequences": case.sequences,
        },
    }
    return any(record["is_complete"] and key_of(record) == key_of(wanted) for record in records)


def of_models(about: Circumstances, records: Sequence[Record]) -> list[Record]:
    """Return the records of these models, and those of other programs; a table of two drafts would mix their rows."""
    own = model_of(about.model)
    return [record for record in records if record["engine"] != about.engine or model_of(record["model"]) == own]


def write_report(records: Sequence[Record], arguments: argparse.Namespace) -> str:
    """Return what was measured so far in Markdown: circumstances, table, where speculation stops paying."""
    swept = [record for record in records if record["batch"] is not None]
    if not swept:
        return "nothing was measured: give --limit-s more time"
    text = "\n".join(report_lines(swept))
    if arguments.markdown is not None:
        arguments.markdown.write_text(text + "\n")
    return text


def report_lines(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of the report."""
    about = records[-1]
    idle = about["idle"]["watts"]
    gpus = ", ".join(about["device"]["gpus"]) or about["device"]["name"]
    versions = ", ".join(
        f"{name} {about['versions'][name]}" for name in ("torch", "triton") if name in about["versions"]
    )
    windows = [f"{energy['seconds'] / energy['repeats']:.1f} s" for r in records if (energy := r["energy"]) is not None]
    yield (
        f"{gpus}, {versions}, {about['model']['name']}, draft {about['model']['draft']}, greedy, test prompts, replies "
        f"of up to {about['test']['new_tokens']} tokens, {about['repeats']} repeats"
        f"{f' of {windows[-1]}' if windows else ''}; idle {'not measured' if idle is None else f'{idle:.0f} W'}"
    )
    yield ""
    yield batch_table(records)
    yield ""
    yield from crossovers(records)


def engine_note(model: LoadedModel) -> str:
    """Return what graphs cost: a kind of round is captured once."""
    graphs = model.engine.graph_report
    if graphs.mean_ms is None:
        return "no graphs"
    return (
        f"{graphs.captured} kinds of passes captured, {graphs.mean_ms:.0f} ms each (largest {graphs.largest_ms:.0f}): "
        f"what a switch to a new plan, batch or cap costs once; {graphs.dropped} dropped"
    )


def _name(config: GenerationConfig) -> str:
    if config.mode is not Mode.EXACT:
        return str(config.mode)
    length = config.drafting.draft_length
    return f"{config.drafting.drafter} {'adaptive' if length is None else f'K={length}'}"


def _refuse(tokens: Sequence[int], config: GenerationConfig) -> Any:
    raise EdgePrecError("this cannot run as a batch: give --draft, or leave draft out of --configs")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--draft", type=Path, help="what drafts, widened to a 1B shape; without it the target does")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--group-size", type=int, choices=GROUP_SIZES, default=128)
    parser.add_argument("--keep-draft-grid", action="store_true", help="INT4 of the draft in the blocks it learned in")
    add_sweep_arguments(parser, ways="such as 'fp16,int4,draft K=5,draft adaptive'", batches=(1, 2, 4, 8, 16, 32, 64))
    return parser.parse_args()


if __name__ == "__main__":
    main()
