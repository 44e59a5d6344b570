"""Measure other programs on a CPU with the same models: transformers, onnxruntime-genai, llama.cpp; in turns.

    python scripts/bench_peers_cpu.py BUNDLE --draft DRAFT [--gguf FILE] [--genai-python PYTHON] [--llama-python PYTHON]
                                      [--prompts 8] [--tokens 128] [--repeats 3] [--threads 2] [-o FILE.jsonl]

BUNDLE's FP16 weights and the draft are written as Hugging Face folders for transformers (plain, and assisted with five
drafted tokens a round), and onnxruntime-genai's own builder makes its INT4 of the former. Every program runs in a
process of its own (``--genai-python`` and ``--llama-python`` are Pythons that have those packages) and all of them have
the same threads, prompts as token ids and ends of text. Decoding is greedy. A prompt goes round all ways before the
next one, so that a busy machine meets all of them; figures are medians over replies, the middle half beside them.
Energy is not measured: no counter tells these programs apart on a CPU. Nothing here asserts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batch_prompts import SweepPrompts
from checkpoint_source import load_tokenizer
from peer_folders import make_folders
from peer_process import PeerProcess
from results_file import ResultsFile

from edgeprec.bundle import Bundle, BundleModel
from edgeprec.config import DrafterKind, DraftingConfig, GenerationConfig, Mode
from edgeprec.devices.board import read_board
from edgeprec.devices.sysfs import Sysfs
from edgeprec.errors import EngineError
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.runtime.benchmark_case import Case, CaseKind, Job
from edgeprec.runtime.benchmark_machine import device_facts, library_versions, read_state
from edgeprec.runtime.benchmark_record import Circumstances, make_record
from edgeprec.runtime.benchmark_repeat import Generated, Repeat, Work

DRAFT_LENGTH = 5
WARM_UP_TOKENS = 16
Record = dict[str, Any]


@dataclass(slots=True)
class Way:
    """One way of decoding in one program, and what it answered, repeat by repeat."""

    name: str
    process: PeerProcess
    asks: str
    config: GenerationConfig
    repeats: list[list[Generated]] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Return the tokens/s of every reply."""
        replies = [one for repeat in self.repeats for one in repeat]
        return [(one.new_tokens - 1) / one.decode_s for one in replies if one.new_tokens > 1 and one.decode_s > 0]


def main() -> None:
    """Write the models, start the programs, go round, print."""
    arguments = _arguments()
    folders = make_folders(
        arguments.bundle, arguments.draft, arguments.work, genai_python=arguments.genai_python, report=_say
    )
    tokenizer = load_tokenizer(open_checkpoint(str(arguments.bundle)))
    prompts = SweepPrompts(tokenizer.encode, most_tokens=arguments.prompt_tokens)
    common = {"threads": arguments.threads, "ends": sorted(tokenizer.eos_token_ids)}
    with ExitStack() as stack:
        ways: list[Way] = []
        for process, found in programs(arguments, folders, common):
            try:
                stack.enter_context(process)
            except EngineError as error:
                _say(f"left out: {error}")
                continue
            ways += found
        before = read_state(Sysfs())
        jobs = prompts.jobs(arguments.prompts, repeat=0, new_tokens=arguments.tokens)
        for repeat in range(arguments.repeats):
            go_round(ways, jobs, is_first=repeat == 0)
            _say(f"{repeat + 1} of {arguments.repeats} repeats")
            keep(ways, prompts, before, arguments)
    print(table(ways))


def programs(
    arguments: argparse.Namespace, folders: Any, common: Mapping[str, Any]
) -> Iterator[tuple[PeerProcess, list[Way]]]:
    """Yield every program that was asked for, with its ways."""
    plain = GenerationConfig(max_new_tokens=arguments.tokens)
    own = PeerProcess(sys.executable, {"kind": "edgeprec", "model": str(arguments.bundle), **common})
    ways = [
        Way("fp16", own, "fp16", replace(plain, mode=Mode.FP16)),
        Way("int4", own, "int4", replace(plain, mode=Mode.INT4)),
    ]
    drafters = [DrafterKind.SELF, *([DrafterKind.MODEL] if _has_draft(arguments.bundle) else [])]
    ways += [
        Way(
            f"exact, {drafter} drafts, adaptive",
            own,
            str(drafter),
            replace(plain, drafting=DraftingConfig(drafter=drafter)),
        )
        for drafter in drafters
    ]
    yield own, ways
    assisted = replace(plain, drafting=DraftingConfig(drafter=DrafterKind.MODEL, draft_length=DRAFT_LENGTH))
    for dtype in arguments.dtypes:
        settings = {"kind": "transformers", "model": str(folders.target), "dtype": dtype, **common}
        if folders.draft is not None:
            settings |= {"draft": str(folders.draft), "draft_length": DRAFT_LENGTH}
        process = PeerProcess(sys.executable, settings)
        ways = [Way(f"transformers {dtype}", process, "plain", replace(plain, mode=Mode.FP16))]
        if folders.draft is not None:
            ways.append(Way(f"transformers {dtype}, assisted K={DRAFT_LENGTH}", process, "assisted", assisted))
        yield process, ways
    if folders.genai is not None:
        process = PeerProcess(arguments.genai_python, {"kind": "genai", "model": str(folders.genai), **common})
        yield process, [Way("onnxruntime-genai int4", process, "int4", replace(plain, mode=Mode.INT4))]
    if arguments.gguf is not None:
        process = PeerProcess(arguments.llama_python, {"kind": "llama", "model": str(arguments.gguf), **common})
        yield process, [Way(f"llama.cpp {arguments.gguf.stem}", process, "gguf", replace(plain, mode=Mode.INT4))]


def _has_draft(bundle: Path) -> bool:
    return isinstance(Bundle.open(bundle).draft, BundleModel)


def go_round(ways: Sequence[Way], jobs: Sequence[Job], *, is_first: bool) -> None:
    """Let every way answer every prompt, one prompt after the other; before the first, each warms up."""
    for way in ways:
        if is_first:
            way.process.ask(way.asks, jobs[0].tokens, WARM_UP_TOKENS)
        way.repeats.append([])
    for job in jobs:
        for way in ways:
            way.repeats[-1].append(_generated(way, job, way.process.ask(way.asks, job.tokens, job.max_new_tokens)))


def _generated(way: Way, job: Job, answer: Mapping[str, Any]) -> Generated:
    drafting = way.config.mode is Mode.EXACT
    work = Work(
        drafter=str(way.config.drafting.drafter) if drafting else "none",
        rounds=answer.get("rounds", 0),
        drafted=answer.get("drafted", 0),
        accepted=answer.get("accepted", 0),
        int4_passes=0,
        all_passes=0,
        bits_read=0.0,
        weights_read=0.0,
    )
    tokens = tuple(answer["tokens"])
    return Generated(
        id=job.id,
        kind=job.kind,
        prompt_tokens=len(job.tokens),
        cached_tokens=answer.get("cached_tokens", 0),
        new_tokens=len(tokens),
        prefill_s=answer["prefill_s"],
        decode_s=answer["decode_s"],
        finish_reason="length" if len(tokens) >= job.max_new_tokens else "stop",
        text="",
        tokens=tokens,
        work=work,
    )


def keep(ways: Sequence[Way], prompts: SweepPrompts, before: Any, arguments: argparse.Namespace) -> None:
    """Write the records of all ways, with the repeats so far."""
    if arguments.output is None:
        return
    results = ResultsFile(arguments.output)
    for way in ways:
        case = Case(
            kind=CaseKind.PROMPTS,
            config=way.config,
            new_tokens=arguments.tokens,
            prompt_set=f"test ({arguments.prompts})",
            prompts=prompts.of_set,
        )
        repeats = [
            Repeat(generated=tuple(one), energy=None, energy_note="not measured: nothing tells programs apart")
            for one in way.repeats
        ]
        record = make_record(_about(way, arguments), case, repeats, before=before, after=read_state(Sysfs()))
        same, count = identical(ways, way)
        results.put(record | {"identical_to_fp16": same, "replies": count})


def _about(way: Way, arguments: argparse.Namespace) -> Circumstances:
    is_own = way.process.kind == "edgeprec"
    return Circumstances(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=("python", *sys.argv),
        device=device_facts(read_board(Sysfs())),
        versions=library_versions("", Sysfs()) | way.process.versions,
        model={"name": arguments.bundle.name, "draft": None if arguments.draft is None else arguments.draft.name},
        engine="onnxruntime" if is_own else way.name.partition(",")[0],
        engine_device="cpu",
        threads=arguments.threads,
        repeats=arguments.repeats,
        has_warm_up=True,
        idle={"watts": None, "seconds": 0.0, "power_mode": None, "note": "not measured"},
        meter=None,
    )


def identical(ways: Sequence[Way], way: Way) -> tuple[int, int]:
    """Return how many of the first repeat's replies are the tokens of our FP16, and of how many."""
    plain = next((each for each in ways if each.asks == "fp16"), None)
    ours = [] if plain is None else plain.repeats[0]
    pairs = list(zip(ours, way.repeats[0], strict=False))
    return sum(one.tokens == other.tokens for one, other in pairs), len(pairs)


def table(ways: Sequence[Way]) -> str:
    """Return one line a way: median tokens/s, its ratio to our FP16, to assisted transformers and to genai's INT4."""
    bases = [_base(ways, name) for name in ("fp16", "assisted", "genai")]
    lines = [
        "| program | tokens/s (middle half) | over our fp16 | over assisted | over genai INT4 | accepted | as fp16 |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in ways:
        if not way.rates:
            continue
        low, middle, high = _quartiles(way.rates)
        drafted = sum(one.work.drafted for each in way.repeats for one in each if one.work is not None)
        accepted = sum(one.work.accepted for each in way.repeats for one in each if one.work is not None)
        same, count = identical(ways, way)
        cells = [way.name, f"{middle:.1f} ({low:.1f}-{high:.1f})"]
        cells += ["-" if base is None else f"{middle / base:.2f}x" for base in bases]
        cells += [f"{accepted / drafted:.2f}" if drafted else "-", f"{same} of {count}"]
        lines.append(f"| {' | '.join(cells)} |")
    versions = dict.fromkeys(f"{name} {found}" for way in ways for name, found in way.process.versions.items())
    return "\n".join([*lines, "", ", ".join(versions)])


def _base(ways: Sequence[Way], name: str) -> float | None:
    """Return the median of the fastest way of a name."""
    found = [
        statistics.median(way.rates)
        for way in ways
        if way.rates and (way.name == name or (name != "fp16" and name in way.name))
    ]
    return max(found, default=None)


def _quartiles(rates: Sequence[float]) -> tuple[float, float, float]:
    if len(rates) < 2:
        return rates[0], rates[0], rates[0]
    low, middle, high = statistics.quantiles(rates, n=4, method="inclusive")
    return low, middle, high


def _say(text: str) -> None:
    print(text, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--draft", type=Path, help="the draft model of transformers: a checkpoint or a distilled draft")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp")
    parser.add_argument(
        "--genai-python", metavar="PYTHON", help="one that has onnxruntime-genai and what it builds with"
    )
    parser.add_argument(
        "--llama-python", metavar="PYTHON", default=sys.executable, help="one that has llama-cpp-python"
    )
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["float32"], metavar="LIST")
    parser.add_argument("--prompts", type=int, default=8, help="of the test set, its four kinds in turn")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="longer prompts of the set are left out")
    parser.add_argument("--tokens", type=int, default=128, help="of a reply at most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("peer-models"), help="where models of other forms are kept")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
