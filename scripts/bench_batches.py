"""Measure batches on a GPU: plain FP16, INT4, exact with fixed and adaptive drafts; speed, joules, and where it turns.

    python scripts/bench_batches.py SOURCE [--draft SOURCE] [--shape 8b] [--batches 1,4,8,16,64] [--seconds 10]
                                    [--repeats 1] [--limit-s S] [--save FILE.jsonl] [--markdown FILE]

SOURCE is a small Llama, widened to the shape as in ``bench_decode.py``, the draft to a 1B shape; without a draft the
target's INT4 variant drafts. One engine with slots for the largest batch runs all of them. Every sequence has a prompt
of its own, cut from the shipped texts; a batch ends when its first sequence does, so that all of it is measured full.
Each line of --save is a result as ``edgeprec bench -o jsonl`` writes it, there as soon as it is measured: what it holds
already is not measured again, and ``edgeprec project`` reads it. Nothing here asserts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from batch_table import batch_table, crossovers, way_of
from checkpoint_source import load_tokenizer
from decode_pair import SHAPES, LoadedModel, load_pair

from edgeprec.bench_results import SCHEMA, SCHEMA_VERSION
from edgeprec.config import DrafterKind, DraftingConfig, GenerationConfig, Mode
from edgeprec.devices.board import read_board
from edgeprec.devices.detect import detect
from edgeprec.devices.meter import Meter
from edgeprec.devices.sysfs import Sysfs
from edgeprec.errors import EdgePrecError
from edgeprec.runtime.batch_benchmark import batch_generated
from edgeprec.runtime.batch_generation import BatchGenerator
from edgeprec.runtime.batch_reply import BatchReply
from edgeprec.runtime.batch_totals import BatchTotals
from edgeprec.runtime.benchmark_case import Case, CaseKind, Corpus, Job
from edgeprec.runtime.benchmark_energy import BETWEEN, repeat_energy
from edgeprec.runtime.benchmark_machine import device_facts, library_versions, read_state
from edgeprec.runtime.benchmark_record import Circumstances, make_record
from edgeprec.runtime.benchmark_repeat import Generated, Repeat
from edgeprec.runtime.energy import NoWindow
from edgeprec.runtime.torch_device import choose_device
from edgeprec.tensor_names import num_linear_weights

IDLE_S = 3.0
WARM_UP_TOKENS = 40
PROMPT_STRIDE = 37


@dataclass(slots=True)
class Bench:
    """What is measured with, and how long."""

    batches: BatchGenerator
    corpus: Corpus
    about: Circumstances
    meter: Meter | None
    prompt_tokens: int
    seconds: float
    has_time: Callable[[], bool]
    window: Any = None

    def jobs(self, case: Case, number: int) -> list[Job]:
        """Return one job a sequence, each with a prompt of its own; another number has others."""
        tokens = self.corpus.tokens
        jobs = []
        for index in range(case.sequences):
            start = (number * case.sequences + index) * PROMPT_STRIDE
            prompt = tuple(tokens[(start + at) % len(tokens)] for at in range(self.prompt_tokens))
            jobs.append(Job(f"cut-{start}", "", prompt, "", case.new_tokens))
        return jobs

    def run(self, case: Case, jobs: list[Job], *, tokens: int) -> BatchReply:
        """Decode one batch until its first sequence has ended."""
        config = replace(case.config, max_new_tokens=tokens)
        return self.batches.run([job.tokens for job in jobs], [config] * len(jobs))

    def repeat(self, case: Case, number: int) -> Repeat:
        """Decode batches for so many seconds inside one window of the meter."""
        totals = BatchTotals(case.sequences)
        generated: list[Generated] = []
        outer: Any = NoWindow() if self.meter is None else self.meter.window("repeat")
        started = time.monotonic()
        with outer:
            turn = 0
            while not turn or (time.monotonic() - started < self.seconds and self.has_time()):
                jobs = self.jobs(case, 1 + number * 1000 + turn)
                batch = self.run(case, jobs, tokens=case.new_tokens)
                if self.window is not None and self.meter is not None:
                    outer.adopt(self.window, after=BETWEEN)
                totals.add(batch)
                generated += batch_generated(batch, jobs)
                turn += 1
        energy, note = repeat_energy(
            outer, tokens=sum(one.new_tokens for one in generated), note="no meter: this is no GPU"
        )
        return Repeat(generated=tuple(generated), energy=energy, energy_note=note, batch=totals)

    def open_window(self) -> Any:
        """Return the window of one batch, whose phases the repeat's takes over."""
        self.window = NoWindow() if self.meter is None else self.meter.window("batch")
        return self.window


def main() -> None:
    """Load, measure what is missing batch by batch, print tables on the way."""
    started, arguments = time.monotonic(), _arguments()
    device = choose_device(None)

    def has_time() -> bool:
        return arguments.limit_s is None or time.monotonic() - started < arguments.limit_s

    target, draft = load_pair(
        arguments.source,
        arguments.draft,
        shape=SHAPES[arguments.shape],
        sequences=max(arguments.batches),
        device=device,
        group_size=arguments.group_size,
        context_tokens=arguments.prompt_tokens + arguments.tokens + 8,
    )
    meter = Meter(detect("nvml").sensor) if device.type == "cuda" else None
    bench = open_bench(target, draft, meter, arguments, has_time)
    records = read_records(arguments.save)
    try:
        for batch in arguments.batches:
            cases = [case for case in ways(batch, arguments, has_draft=draft is not None) if wanted(case, records)]
            for case in cases:
                if not has_time():
                    print("time is up: the rest is left out; run the same command again to go on", flush=True)
                    return
                measure(bench, case, records, arguments)
            report(records, arguments)
    finally:
        report(records, arguments, is_last=True)
        print(engine_note(target), flush=True)


def open_bench(
    target: LoadedModel,
    draft: LoadedModel | None,
    meter: Meter | None,
    arguments: argparse.Namespace,
    has_time: Callable[[], bool],
) -> Bench:
    """Put a generator of batches on both engines; measures the power at rest."""
    tokenizer = load_tokenizer(target.checkpoint)
    widths = [model.engine.info.vocab_size for model in (target, draft) if model is not None]
    batches = BatchGenerator(
        engines=(target.engine, None if draft is None else draft.engine),
        tokenizer=tokenizer,
        calibration=None,
        bits=(target.bits, target.bits if draft is None else draft.bits),
        shared_tokens=min(widths),
        clock=time.monotonic_ns,
        open_window=NoWindow,
        meter_note=None,
        alone=_refuse,
        check=lambda config: None,
        kind_of=lambda config: config.drafting.drafter if config.mode is Mode.EXACT else DrafterKind.NONE,
        is_over=lambda sequences: any(sequence.is_ended for sequence in sequences),
    )
    idle: dict[str, Any] = {"watts": None, "seconds": 0.0, "power_mode": None, "note": "no meter: this is no GPU"}
    if meter is not None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            time.sleep(1.0)
        found = meter.measure_idle(IDLE_S)
        idle = {"watts": found.watts, "seconds": found.seconds, "power_mode": found.power_mode, "note": found.note}
    info, small = target.engine.info, target.checkpoint
    about = Circumstances(
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
        },
        engine=info.name,
        engine_device=info.device,
        threads=None,
        repeats=arguments.repeats,
        has_warm_up=True,
        idle=idle,
        meter=None if meter is None else {"source": meter.sensor.source, "period_ms": meter.period_ms},
    )
    corpus = Corpus(tokenizer.encode, tokenizer.decode)
    bench = Bench(batches, corpus, about, meter, arguments.prompt_tokens, arguments.seconds, has_time)
    batches.open_window = bench.open_window
    return bench


def ways(batch: int, arguments: argparse.Namespace, *, has_draft: bool) -> Iterator[Case]:
    """Yield what is measured at one batch."""
    drafter = DrafterKind.MODEL if has_draft else DrafterKind.SELF
    plain = GenerationConfig(max_new_tokens=arguments.tokens, ignore_eos=True)
    configs = [replace(plain, mode=Mode.FP16), replace(plain, mode=Mode.INT4)]
    drafts = [DraftingConfig(drafter=drafter, draft_length=length) for length in (*arguments.lengths, None)]
    configs += [replace(plain, drafting=drafting) for drafting in drafts]
    for config in configs:
        name = str(config.mode) if config.mode is not Mode.EXACT else _length_name(config)
        if arguments.only is None or name in arguments.only:
            yield Case(
                kind=CaseKind.DECODE,
                config=config,
                new_tokens=arguments.tokens,
                depth_tokens=arguments.prompt_tokens,
                sequences=batch,
            )


def measure(bench: Bench, case: Case, records: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Warm one case up, measure its repeats, and write its line; what cannot run is said and left out."""
    name = f"batch {case.sequences}, {case.config.mode}, {_length_name(case.config)}"
    began = time.monotonic()
    repeats: list[Repeat] = []
    before = read_state(Sysfs())
    try:
        for turn in range(3):  # compile, capture, replay
            bench.run(case, bench.jobs(case, turn), tokens=min(WARM_UP_TOKENS, case.new_tokens))
        warm_s = time.monotonic() - began
        for number in range(arguments.repeats):
            if repeats and not bench.has_time():
                break
            repeats.append(bench.repeat(case, number))
    except (EdgePrecError, RuntimeError) as error:
        print(f"{name}: left out: {str(error)[:300]}", flush=True)
    if not repeats:
        return
    record = make_record(bench.about, case, repeats, before=before, after=read_state(Sysfs()))
    for run in record["runs"]:
        run["generations"] = []  # hundreds of alike ones: what they add up to is in the record
    records.append(record)
    if arguments.save is not None:
        with arguments.save.open("a") as file:
            file.write(json.dumps(record) + "\n")
    energy = record["energy"]
    joules = "" if energy is None else f", {energy['joules_per_token']['mean']:.4f} J/token"
    rate = record["tokens_per_s"]["mean"] if record["tokens_per_s"] else 0.0
    print(
        f"{name}: {rate:.1f} tokens/s{joules}, caps {record['batch']['rounds_by_cap']}, warm-up {warm_s:.1f} s",
        flush=True,
    )


def wanted(case: Case, records: Sequence[dict[str, Any]]) -> bool:
    """Whether no complete record of this case is there."""
    length = "adaptive" if case.config.drafting.draft_length is None else case.config.drafting.draft_length
    key = (case.sequences, str(case.config.mode), length if case.config.mode is Mode.EXACT else None, case.new_tokens)
    done = {
        (r["test"]["sequences"], r["mode"], r["draft_length"], r["test"]["new_tokens"])
        for r in records
        if r["is_complete"]
    }
    return key not in done


def read_records(path: Path | None) -> list[dict[str, Any]]:
    """Return the results a file holds already; a line that was cut off is left out, and so are those of other files."""
    if path is None or not path.exists():
        return []
    records: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        is_ours = isinstance(record, dict) and record.get("schema") == SCHEMA and record.get("batch") is not None
        if is_ours and record.get("schema_version") == SCHEMA_VERSION:
            records[record["test"]["sequences"], way_of(record)] = record
    return list(records.values())


def report(records: Sequence[dict[str, Any]], arguments: argparse.Namespace, *, is_last: bool = False) -> None:
    """Print the table so far, and at the end where speculation stops paying; write both to --markdown."""
    if not records:
        print("nothing was measured: give --limit-s more time", flush=True)
        return
    about = records[-1]
    idle = about["idle"]["watts"]
    gpus = ", ".join(about["device"]["gpus"]) or about["device"]["name"]
    text = "\n".join(
        [
            f"{gpus}, {about['model']['name']}, draft {about['model']['draft']}, greedy, prompts of "
            f"{arguments.prompt_tokens} tokens, up to {arguments.tokens} new ones, {arguments.repeats} repeats of "
            f"{arguments.seconds:g} s; idle {'not measured' if idle is None else f'{idle:.0f} W'}",
            "",
            batch_table(records),
            "",
            *(crossovers(records) if is_last else ()),
        ]
    )
    print(f"\n{text}\n", flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text(text + "\n")


def engine_note(model: LoadedModel) -> str:
    """Return what graphs cost: a kind of round is captured once."""
    graphs = model.engine.graph_report
    if graphs.mean_ms is None:
        return "no graphs"
    return (
        f"{graphs.captured} kinds of passes captured, {graphs.mean_ms:.0f} ms each (largest {graphs.largest_ms:.0f}): "
        f"what a switch to a new plan, batch or cap costs once; {graphs.dropped} dropped"
    )


def _length_name(config: GenerationConfig) -> str:
    if config.mode is not Mode.EXACT:
        return str(config.mode)
    return "adaptive" if config.drafting.draft_length is None else f"K={config.drafting.draft_length}"


def _refuse(tokens: Sequence[int], config: GenerationConfig) -> Any:
    raise EdgePrecError("this cannot run as a batch")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--draft", type=Path, help="what drafts, widened to a 1B shape; without it the target does")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--batches", type=_counts, default=[1, 4, 8, 16, 64], metavar="LIST")
    parser.add_argument("--lengths", type=_counts, default=[1, 3, 5], metavar="LIST", help="fixed draft lengths")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="LIST", help="such as fp16,K=5,adaptive")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring a repeat")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--limit-s", type=float, help="stop after so many seconds and print what there is")
    parser.add_argument("--save", type=Path, metavar="FILE.jsonl", help="append results here, and go on from it")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table here")
    return parser.parse_args()


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


if __name__ == "__main__":
    main()
