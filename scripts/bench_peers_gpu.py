"""Measure other programs on the same GPU, prompts and meter as ``bench_batches.py``: transformers and vLLM.

    python scripts/widen.py SOURCE -o wide-8b --shape 8b
    python scripts/widen.py DRAFT --target SOURCE -o wide-1b --shape 1b
    edgeprec export wide-8b --format compressed-tensors -o wide-8b-int4 --group-size 128 --quantizer rtn
    python scripts/bench_peers_gpu.py wide-8b --draft wide-1b [--int4 wide-8b-int4] [--vllm] [--batches 1,8]
                                      [--seconds 4] [--repeats 3] [--limit-s S] [-o FILE.jsonl] [--markdown FILE]

transformers runs eager, compiled with a static cache, and assisted by the draft (five tokens a round, one sequence: it
takes no more); its batches are as long as their longest answer. vLLM (--vllm, which alone imports it) refills the slots
of the largest batch by itself, those of smaller ones when all have ended; its prefill lies inside its decoding time, so
compare its J/token first. Ways that share no engine run in a process each. Rows go into the file after every repeat,
what it holds is not measured again, and the file of the sweep may be the same. Nothing here asserts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from batch_prompts import SweepPrompts
from batch_table import batch_table, way_of
from checkpoint_source import load_tokenizer
from peer_bench import Peer, PeerBench, measure
from peer_transformers import TransformersPeer, load_model
from peer_vllm import VllmPeer, open_engine
from results_file import ResultsFile, key_of
from sweep_arguments import add_sweep_arguments

from edgeprec.config import Mode
from edgeprec.devices.board import read_board
from edgeprec.devices.detect import detect
from edgeprec.devices.meter import Meter
from edgeprec.devices.sysfs import Sysfs
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.runtime.benchmark_machine import device_facts, library_versions
from edgeprec.runtime.benchmark_record import Circumstances
from edgeprec.runtime.tokenizer import TextTokenizer
from edgeprec.runtime.torch_device import choose_device

IDLE_S = 3.0
SPARE_S = 2.0
DRAFT_LENGTH = 5
HF_WAYS = ("eager", "compiled", "assisted")
VLLM_WAYS = ("vllm fp16", "vllm int4", "vllm draft", "vllm int4 draft")
VLLM_NOTE = "prefill lies inside the decoding time"
Record = dict[str, Any]


def main() -> None:
    """Run what was asked for, each engine's ways in a process of their own where there are several."""
    started, arguments = time.monotonic(), _arguments()
    groups = list(grouped(chosen(arguments)))
    for ways in groups:
        left = None if arguments.limit_s is None else arguments.limit_s - (time.monotonic() - started)
        if left is not None and left <= arguments.seconds + SPARE_S:
            print(f"time is up: left out: {', '.join(ways)}", flush=True)
        elif len(groups) > 1:
            limit = [] if left is None else ["--limit-s", f"{left:.0f}"]
            subprocess.run([sys.executable, *sys.argv, "--configs", ",".join(ways), *limit], check=False)
        else:
            run(ways, arguments, left)


def chosen(arguments: argparse.Namespace) -> list[str]:
    """Return the ways to measure; those that lack a checkpoint are left out, unless they are asked for by name.

    Raises:
        ConfigError: there is no way of that name, or its checkpoint is not given.
    """
    known = [*HF_WAYS, *VLLM_WAYS]
    needs = {"assisted": "draft", "vllm int4": "int4", "vllm draft": "draft", "vllm int4 draft": "draft int4"}
    lacks = {way: [n for n in needs.get(way, "").split() if getattr(arguments, n) is None] for way in known}
    if arguments.configs is None:
        return [way for way in known if not lacks[way] and (arguments.vllm or way in HF_WAYS)]
    for way in arguments.configs:
        if way not in known:
            raise ConfigError(f"--configs has {way!r}, expected some of {', '.join(known)}")
        if lacks[way]:
            raise ConfigError(f"--configs has {way!r}, which needs --{' and --'.join(lacks[way])}: give the folder")
    return list(arguments.configs)


def grouped(ways: Sequence[str]) -> Iterator[list[str]]:
    """Yield the ways that share an engine: transformers' own, and each of vLLM's by itself."""
    own = [way for way in ways if way in HF_WAYS]
    yield from [own] if own else []
    yield from ([way] for way in ways if way in VLLM_WAYS)


def run(ways: Sequence[str], arguments: argparse.Namespace, limit_s: float | None) -> None:
    """Measure the ways of one engine, batch by batch."""
    started = time.monotonic()

    def has_time() -> bool:
        left = float("inf") if limit_s is None else limit_s - (time.monotonic() - started)
        return left > arguments.seconds + SPARE_S

    device = choose_device(None)
    tokenizer = load_tokenizer(open_checkpoint(str(arguments.target)))
    meter = Meter(detect("nvml").sensor) if device.type == "cuda" else None
    bench = PeerBench(
        prompts=SweepPrompts(tokenizer.encode, most_tokens=arguments.prompt_tokens),
        new_tokens=arguments.tokens,
        seconds=arguments.seconds,
        meter=meter,
        meter_note=None if meter is not None else "no meter: this is no GPU",
        has_time=has_time,
    )
    results = ResultsFile(arguments.output)
    try:
        for name, sequences, peer in peers(ways, arguments, device, tokenizer):
            if not has_time():
                print("time is up: run the same command again to go on", flush=True)
                return
            _measure(name, sequences, peer, bench, arguments, device, results)
    finally:
        _report(results, arguments)


def peers(
    ways: Sequence[str], arguments: argparse.Namespace, device: torch.device, tokenizer: TextTokenizer
) -> Iterator[tuple[str, int, Callable[[], Peer]]]:
    """Yield the program's name, the batch, and what makes the peer; models are loaded when first needed."""
    if ways[0] in VLLM_WAYS:
        way = ways[0]
        engine = open_engine(
            arguments.int4 if "int4" in way else arguments.target,
            sequences=max(arguments.batches),
            context_tokens=arguments.prompt_tokens + arguments.tokens + 8,
            draft=arguments.draft if way.endswith("draft") else None,
            draft_length=DRAFT_LENGTH,
        )
        for sequences in arguments.batches:

            def open_vllm(sequences: int = sequences) -> Peer:
                return VllmPeer(
                    engine=engine,
                    mode=Mode.INT4 if "int4" in way else Mode.FP16,
                    sequences=sequences,
                    is_continuous=1 < sequences == max(arguments.batches),
                    eos_token_ids=tokenizer.eos_token_ids,
                    draft_length=DRAFT_LENGTH if way.endswith("draft") else 0,
                )

            yield f"vllm {_version('vllm')}", sequences, open_vllm
        return
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = load_model(arguments.target, device, dtype)
    assistant = load_model(arguments.draft, device, dtype) if "assisted" in ways else None
    for way in ways:
        for sequences in arguments.batches if way != "assisted" else [1] * (1 in arguments.batches):

            def open_transformers(way: str = way) -> Peer:
                is_assisted = way == "assisted"
                return TransformersPeer(
                    model=model,
                    eos_token_ids=tokenizer.eos_token_ids,
                    assistant=assistant if is_assisted else None,
                    draft_length=DRAFT_LENGTH if is_assisted else 0,
                    is_compiled=way == "compiled",
                )

            yield f"transformers {version('transformers')} {way}", sequences, open_transformers


def _measure(
    name: str,
    sequences: int,
    open_peer: Callable[[], Peer],
    bench: PeerBench,
    arguments: argparse.Namespace,
    device: torch.device,
    results: ResultsFile,
) -> None:
    """Measure one row; what cannot run is said and left out."""
    began = time.monotonic()
    try:
        peer = open_peer()
        about = circumstances(name, arguments, device, bench.meter)
        if _is_measured(about, peer, bench, sequences, results.records):
            return
        notes = [VLLM_NOTE] if name.startswith("vllm") else []
        for record in measure(peer, bench, about, sequences=sequences, notes=notes):
            results.put(record)
    except (RuntimeError, ValueError, ImportError) as error:
        print(f"batch {sequences}, {name}: left out: {str(error)[:300]}", flush=True)
        return
    rate, energy = record["tokens_per_s"], record["energy"]
    speed = 0.0 if rate is None else rate["mean"]
    joules = "" if energy is None else f", {energy['joules_per_token']['mean']:.4f} J/token"
    print(
        f"batch {sequences}, {way_of(record)}: {speed:.1f} tokens/s{joules}, in {time.monotonic() - began:.0f} s",
        flush=True,
    )


def _is_measured(about: Circumstances, peer: Peer, bench: PeerBench, sequences: int, records: Sequence[Record]) -> bool:
    is_drafting = peer.way.draft_length > 0
    wanted: Record = {
        "engine": about.engine,
        "engine_device": about.engine_device,
        "model": about.model,
        "mode": str(peer.way.mode),
        "drafter": "model" if is_drafting else None,
        "draft_length": peer.way.draft_length if is_drafting else None,
        "three_level": False if is_drafting else None,
        "test": {"kind": "prompts", "prompt_set": "test", "new_tokens": bench.new_tokens, "sequences": sequences},
    }
    return any(record["is_complete"] and key_of(record) == key_of(wanted) for record in records)


def circumstances(
    engine: str, arguments: argparse.Namespace, device: torch.device, meter: Meter | None
) -> Circumstances:
    """Return what the rows of one peer have in common."""
    config = json.loads((arguments.target / "config.json").read_text(encoding="utf-8"))
    versions = {name: _version(name) for name in ("transformers", "vllm", "compressed-tensors")}
    return Circumstances(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=("python", *sys.argv),
        device=device_facts(read_board(Sysfs())),
        versions=library_versions("torch", Sysfs()) | {name: found for name, found in versions.items() if found},
        model={
            "name": arguments.target.name,
            "size_bytes": sum(file.stat().st_size for file in arguments.target.glob("*.safetensors")),
            "layers": config["num_hidden_layers"],
            "hidden_size": config["hidden_size"],
            "vocab_size": config["vocab_size"],
            "draft": None if arguments.draft is None else arguments.draft.name,
        },
        engine=engine,
        engine_device=str(device),
        threads=None,
        repeats=arguments.repeats,
        has_warm_up=True,
        idle=_idle(meter),
        meter=None if meter is None else {"source": meter.sensor.source, "period_ms": meter.period_ms},
    )


@cache
def _idle(meter: Meter | None) -> Record:
    """Measure the power at rest once, with the first engine's weights loaded."""
    if meter is None:
        return {"watts": None, "seconds": 0.0, "power_mode": None, "note": "no meter: this is no GPU"}
    time.sleep(1.0)
    found = meter.measure_idle(IDLE_S)
    return {"watts": found.watts, "seconds": found.seconds, "power_mode": found.power_mode, "note": found.note}


def _report(results: ResultsFile, arguments: argparse.Namespace) -> None:
    records = [record for record in results.records if record["batch"] is not None]
    if not records:
        return
    text = batch_table(records)
    print(f"\n{text}\n", flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text(text + "\n", encoding="utf-8")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="a folder that widen.py wrote")
    parser.add_argument("--draft", type=Path, metavar="FOLDER", help="the draft, written by widen.py too")
    parser.add_argument("--int4", type=Path, metavar="FOLDER", help="the target in compressed-tensors")
    parser.add_argument("--vllm", action="store_true", help="measure vLLM too")
    add_sweep_arguments(parser, ways=f"of {', '.join((*HF_WAYS, *VLLM_WAYS))}", batches=(1, 8))
    return parser.parse_args()


if __name__ == "__main__":
    main()
