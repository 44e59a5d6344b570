"""Run one bundle through ONNX Runtime's CPU, one of its GPU providers and the torch engine: same tokens? how fast?

    python scripts/check_cuda_provider.py BUNDLE [--provider cuda] [--torch | --no-torch] [-n 128] [--json FILE]

Needs edgeprec[cuda] on a machine with a GPU; onnxruntime-gpu has the CPU provider too. Prints one table: tokens/s of
each engine for fp16, int4 and exact (drafted by the target's INT4, and by the bundle's draft model where it has one),
how far the provider's tokens are the CPU's, and whether exact gave the tokens that the same engine's fp16 gave. A
second table says whether the provider's FP16 logits depend on how many rows run at once, as the engine runs them and
with passes left as short as they are asked for. Each engine runs in a process of its own, so that none finds another's
libraries loaded.

Exits with 1 where the provider's fp16 differs from the CPU's before --least tokens (FP16 arithmetic may flip a near
tie, but not at once), or where exact differs from fp16 in an engine that promises the same bits for any number of rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from provider_figures import Figures, Run, Way, bits_table, failures, figures_table
from provider_rows import RowBits, compare_row_bits

import edgeprec
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.config import DrafterKind, DraftingConfig, GenerationConfig, Mode, with_overrides
from edgeprec.errors import EdgePrecError
from edgeprec.prompts import load_prompts

PACKAGES = ("edgeprec", "onnxruntime-gpu", "onnxruntime", "torch", "triton")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit code; the file of figures grows with every engine."""
    flags = _arguments(arguments)
    prompts = [prompt.text for prompt in load_prompts("short")][: flags.prompts]
    ways = choose_ways(Bundle.open(flags.bundle), flags.mode, flags.draft_length)
    job = (flags.bundle, ways, prompts, flags.tokens)
    figures = Figures(provider=flags.provider, ways=tuple(way.name for way in ways))
    for step in _steps(flags, job):
        figures = step(figures)
        if flags.json is not None:
            about = {"bundle": flags.bundle.name, "new_tokens": flags.tokens, "prompts": len(prompts)}
            record = about | {"versions": _versions()} | figures.to_json(least=flags.least)
            flags.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(figures_table(figures))
    print(bits_table(figures.row_bits))
    problems = failures(figures, least=flags.least, needs_torch=flags.torch is True)
    print("\n".join(["", *(f"problem: {problem}" for problem in problems)]) if problems else "\nno problem")
    return int(bool(problems))


def _steps(flags: argparse.Namespace, job: tuple[Any, ...]) -> Iterator[Callable[[Figures], Figures]]:
    """Yield what is measured, the provider first and the CPU, which takes longest, last."""
    lost = Run(note="its process died")
    yield lambda figures: figures.with_run(
        flags.provider, apart(measure, "onnxruntime", flags.provider, *job, lost=lost)
    )
    if flags.bit_tokens:
        dead = "its process died"
        yield lambda figures: replace(
            figures, row_bits=apart(measure_bits, flags.bundle, flags.provider, flags.bit_tokens, lost=dead)
        )
    if flags.torch is not False:
        yield lambda figures: figures.with_run("torch", apart(measure_torch, *job, lost=lost))
    yield lambda figures: figures.with_run("cpu", apart(measure, "onnxruntime", "cpu", *job, lost=lost))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--provider", default="cuda", choices=["cuda", "tensorrt", "nvtensorrtrtx"])
    parser.add_argument(
        "--torch",
        action=argparse.BooleanOptionalAction,
        help="run the torch engine too, and fail without a CUDA torch; default: where there is one",
    )
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--mode", nargs="+", default=["fp16", "int4", "exact"], choices=["fp16", "int4", "exact"])
    parser.add_argument("--draft-length", type=int, metavar="K", help="of exact; default: adaptive")
    parser.add_argument("--least", type=int, default=16, help="tokens of fp16 that must agree")
    parser.add_argument(
        "--bit-tokens", type=int, default=150, help="tokens whose rows are compared bit by bit, 0 = none"
    )
    parser.add_argument("--json", type=Path, help="where the figures go as JSON")
    return parser.parse_args(arguments)


def choose_ways(bundle: Bundle, modes: Sequence[str], draft_length: int | None) -> tuple[Way, ...]:
    """Return the ways to decode: each mode, and exact once for each drafter that the bundle has."""
    drafters = [DrafterKind.SELF, *([DrafterKind.MODEL] if isinstance(bundle.draft, BundleModel) else [])]
    ways = []
    for mode in modes:
        if mode != "exact":
            ways.append(Way(mode, GenerationConfig(mode=Mode(mode))))
            continue
        for drafter in drafters:
            drafting = DraftingConfig(drafter=drafter, draft_length=draft_length)
            name = "exact, self drafts" if drafter is DrafterKind.SELF else "exact, draft model"
            ways.append(Way(name, GenerationConfig(mode=Mode.EXACT, drafting=drafting)))
    return tuple(ways)


def apart(work: Callable[..., Any], *arguments: Any, lost: Any) -> Any:
    """Run ``work`` in a fresh process and return what it returns, or ``lost`` where the process dies."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except BrokenProcessPool:
            return lost


def measure(
    engine: str, provider: str, bundle: Path, ways: Sequence[Way], prompts: Sequence[str], new_tokens: int
) -> Run:
    """Decode every prompt in every way; the first reply of a way warms up and is not kept."""
    try:
        with edgeprec.load(bundle, engine=engine, provider=provider, sensor="none") as session:
            replies = {}
            for way in ways:
                config = with_overrides(way.config, max_new_tokens=new_tokens, ignore_eos=True)
                session.generate(prompts[0], config)
                replies[way.name] = [session.generate(prompt, config) for prompt in prompts]
                rate = statistics.median(reply.stats.tokens_per_s or 0.0 for reply in replies[way.name])
                print(f"{engine} {provider}, {way.name}: {rate:.1f} tokens/s", flush=True)
            run = Run.of(session.info, replies)
    except EdgePrecError as error:
        run = Run(note=str(error))
    return run


def measure_torch(bundle: Path, ways: Sequence[Way], prompts: Sequence[str], new_tokens: int) -> Run:
    """Do the same with the torch engine on the GPU; without a CUDA torch the run says so."""
    if find_spec("torch") is None:
        return Run(note="torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return Run(note=f"torch {torch.__version__} finds no CUDA device")
    return measure("torch", "cuda", bundle, ways, prompts, new_tokens)


def measure_bits(bundle: Path, provider: str, tokens: int) -> list[RowBits] | str:
    """Return what ``compare_row_bits`` found, or why it could not."""
    try:
        return compare_row_bits(Bundle.open(bundle), provider, tokens)
    except EdgePrecError as error:
        return str(error)


def _versions() -> dict[str, str]:
    found = {"python": sys.version.partition(" ")[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
