"""Measure the CPU path on one bundle, and llama.cpp on the same GGUF where llama-cpp-python is installed.

    python scripts/bench_cpu.py BUNDLE [--kinds prose] [--gguf FILE] [--llama-python PYTHON] [--threads 2] [--json FILE]

Every figure is a ratio of two medians taken in the same run, in turns; the spread beside it is the middle half. Nothing
here asserts: docs/benchmarks.md keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import edgeprec
from edgeprec.bundle import Bundle
from edgeprec.config import DrafterKind, DraftingConfig, GenerationConfig, Mode
from edgeprec.entropy import row_statistics
from edgeprec.precision import Plan, Precision
from edgeprec.prompts import load_prompts
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.session import Session

PROSE = (
    "The history of bread is long, and it begins",
    "On the first morning of spring the old lighthouse keeper walked down to the harbour and",
    "A river is more than water. It carries",
    "When the train stopped in the middle of the fields, the passengers looked out and saw",
)
NEW_TOKENS = 128
LLAMA = """
import sys, time, json
from llama_cpp import Llama
path, threads, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = Llama(path, n_threads=threads, n_threads_batch=threads, n_ctx=1024, verbose=False)
prompt = model.tokenize(b"The history of bread is long, and it begins")
rates = []
for _ in range(5):
    model.reset(); model.eval(prompt); token = model.sample(temp=0)
    start = time.perf_counter()
    for _ in range(count):
        model.eval([token]); token = model.sample(temp=0)
    rates.append(count / (time.perf_counter() - start))
import llama_cpp
print(json.dumps({"rates": rates, "version": llama_cpp.__version__}))
"""


def main() -> None:
    """Run everything and print tables."""
    arguments = _arguments()
    results: dict[str, Any] = {"machine": _machine(), "bundle": str(arguments.bundle.name)}
    print(f"machine: {results['machine']}\n")
    results["steps"] = measure_steps(arguments.bundle, arguments.threads)
    print_steps(results["steps"])
    results["decoding"] = measure_decoding(arguments.bundle, arguments.threads, arguments.kinds)
    if arguments.gguf is not None:
        results["llama_cpp"] = measure_llama(arguments.llama_python, arguments.gguf, arguments.threads)
        print_llama(results["llama_cpp"], results["decoding"]["prose"]["int4"]["tokens_per_s"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def measure_steps(path: Path, threads: int) -> dict[str, Any]:
    """Time passes by plan, rows and position, in turns; and what is done around an INT4 step."""
    model = Bundle.open(path).target
    layers = model.architecture.num_layers
    engine = OnnxRuntimeEngine.open(model.graph_path("fp32"), model.architecture, context_tokens=2048, threads=threads)
    plans = {p.value: Plan.uniform(p, num_layers=layers) for p in (Precision.FP16, Precision.INT4)}
    cases: dict[str, Callable[[], Any]] = {}
    for name, plan in plans.items():
        for rows in (1, 2, 3, 4, 5, 8):
            cases[f"{name} rows {rows}"] = _step(engine, [11] * rows, 64, plan)
        for position in (50, 1500):
            cases[f"{name} position {position}"] = _step(engine, [11], position, plan)
    row = engine.forward([11], position=64, plan=plans["int4"]).logits.copy()
    cases["entropy, margin and argmax of a row"] = lambda: row_statistics(row)
    times = _in_turns(cases, repeats=40)
    engine.close()
    return {name: _summary(values) for name, values in times.items()}


def measure_decoding(path: Path, threads: int, wanted: str) -> dict[str, Any]:
    """Decode prompts in several configurations, one prompt through all of them before the next."""
    kinds: dict[str, tuple[str, ...]] = {"prose": PROSE}
    for prompt in load_prompts("tuning"):
        kinds.setdefault(f"tuning {prompt.kind}", ())
        if len(kinds[f"tuning {prompt.kind}"]) < 2:
            kinds[f"tuning {prompt.kind}"] += (prompt.text,)
    results: dict[str, Any] = {}
    with edgeprec.load(path, threads=threads, sensor="none", context_tokens=2048) as session:
        session.generate(PROSE[0], max_new_tokens=16, ignore_eos=True)
        for kind, prompts in kinds.items():
            if wanted not in ("all", kind):
                continue
            results[kind] = _decode_all(session, prompts)
            print_decoding(kind, results[kind])
    return results


def _configurations() -> dict[str, GenerationConfig]:
    def exact(**drafting: Any) -> GenerationConfig:
        return GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True, drafting=DraftingConfig(**drafting))

    modes = {mode.value: GenerationConfig(mode=mode, max_new_tokens=NEW_TOKENS, ignore_eos=True) for mode in _MODES}
    drafts = {f"exact K={k}": exact(drafter=DrafterKind.SELF, draft_length=k) for k in (1, 2, 3, 5)}
    return modes | drafts | {"exact adaptive": exact(), "exact n-gram": exact(drafter=DrafterKind.NGRAM)}


_MODES = (Mode.FP16, Mode.INT4)


def _decode_all(session: Session, prompts: Sequence[str]) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for prompt in prompts:
        plain: tuple[int, ...] = ()
        for name, config in _configurations().items():
            reply = session.generate(prompt, config)
            plain = reply.tokens if name == "fp16" else plain
            stats = reply.stats
            rows.setdefault(name, []).append(
                {
                    "tokens_per_s": stats.tokens_per_s,
                    "acceptance": stats.acceptance_rate,
                    "drafted": stats.drafted,
                    "accepted": stats.accepted,
                    "is_identical": reply.tokens == plain,
                }
            )
    return {name: _decoding_row(row, rows["fp16"]) for name, row in rows.items()}


def _decoding_row(rows: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(rows, plain, strict=True)]
    drafted = sum(row["drafted"] for row in rows)
    return {
        "tokens_per_s": statistics.median(row["tokens_per_s"] for row in rows),
        "over_fp16": statistics.median(ratios),
        "lowest_over_fp16": min(ratios),
        "acceptance": sum(row["accepted"] for row in rows) / drafted if drafted else None,
        "identical": sum(row["is_identical"] for row in rows),
        "prompts": len(rows),
    }


def measure_llama(python: str, gguf: Path, threads: int) -> dict[str, Any]:
    """Let another interpreter decode with llama.cpp."""
    command = [python, "-c", LLAMA, str(gguf), str(threads), str(NEW_TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"note": f"llama-cpp-python did not run: {done.stderr.strip().splitlines()[-1:]}"}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {"tokens_per_s": statistics.median(found["rates"]), **found}


def print_steps(steps: dict[str, Any]) -> None:
    """Print the table of passes and the ratios that matter."""
    print("| pass | median ms | middle half |\n|---|---|---|")
    for name, row in steps.items():
        print(f"| {name} | {row['median_ms']:.3f} | {row['low_ms']:.3f}-{row['high_ms']:.3f} |")
    fp16, int4 = steps["fp16 rows 1"]["median_ms"], steps["int4 rows 1"]["median_ms"]
    around = steps["entropy, margin and argmax of a row"]["median_ms"]
    print(f"\nINT4 over FP16, one row: {fp16 / int4:.2f}x")
    print(f"five rows over one, FP16: {steps['fp16 rows 5']['median_ms'] / fp16:.2f}x")
    print(f"statistics of a row over an INT4 step: {100 * around / int4:.1f} %")
    for name in ("fp16", "int4"):
        late, early = (steps[f"{name} position {p}"]["median_ms"] for p in (1500, 50))
        print(f"{name} at position 1500 over 50: {late / early:.2f}x", flush=True)


def print_decoding(kind: str, rows: dict[str, Any]) -> None:
    """Print the table of one kind of prompts."""
    print(f"\n{kind}\n| configuration | tokens/s | over FP16 | lowest | acceptance | same tokens |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        acceptance = "" if row["acceptance"] is None else f"{row['acceptance']:.2f}"
        print(
            f"| {name} | {row['tokens_per_s']:.1f} | {row['over_fp16']:.2f}x | {row['lowest_over_fp16']:.2f}x "
            f"| {acceptance} | {row['identical']}/{row['prompts']} |",
            flush=True,
        )


def print_llama(peer: dict[str, Any], int4_tokens_per_s: float) -> None:
    """Print llama.cpp's speed and ours over it."""
    if "note" in peer:
        print(f"\n{peer['note']}")
        return
    rate = peer["tokens_per_s"]
    print(f"\nllama.cpp {peer['version']}: {rate:.1f} tokens/s; INT4 here {int4_tokens_per_s / rate:.2f}x")


def _step(engine: OnnxRuntimeEngine, tokens: list[int], position: int, plan: Plan) -> Callable[[], Any]:
    return lambda: engine.forward(tokens, position=position, plan=plan)


def _in_turns(cases: dict[str, Callable[[], Any]], *, repeats: int) -> dict[str, list[float]]:
    """Time every case once, then all again, so that a slow moment of the machine hits all alike.

    Each runs twice and the second time counts: after a case at another position the first one moves the cache.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 3):
        for name, work in cases.items():
            work()
            start = time.perf_counter()
            work()
            if turn >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def _summary(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median_ms": median, "low_ms": low, "high_ms": high}


def _machine() -> str:
    import onnxruntime

    return f"{platform.machine()}, Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--kinds", choices=("all", "prose"), default="all", help="which prompts are decoded")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--llama-python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
