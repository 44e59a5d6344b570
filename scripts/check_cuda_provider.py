"""Run one bundle through ONNX Runtime's CPU and a GPU provider: compare greedy tokens, print tokens/s of both.

    python scripts/check_cuda_provider.py BUNDLE [--provider cuda] [-n 128] [--mode fp16 int4 exact] [--json FILE]

Needs edgeprec[cuda] on a machine with a GPU; onnxruntime-gpu has the CPU provider too. Prints, for each mode, how many
replies are the same, how long the shortest agreement is, and what fell back to the CPU. Exits with 1 where the text of
fp16 differs before --least tokens: FP16 arithmetic may flip a near tie, but not at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import edgeprec
from edgeprec.config import GenerationConfig, Mode
from edgeprec.prompts import load_prompts


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--provider", default="cuda", choices=["cuda", "tensorrt", "nvtensorrtrtx"])
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--mode", nargs="+", default=["fp16", "int4", "exact"], choices=[mode.value for mode in Mode])
    parser.add_argument("--least", type=int, default=16, help="tokens of fp16 that must agree")
    parser.add_argument("--json", type=Path, help="where the figures go as JSON")
    flags = parser.parse_args()
    prompts = [prompt.text for prompt in load_prompts("short")][: flags.prompts]
    found = {name: replies(flags, provider, prompts) for name, provider in (("cpu", "cpu"), ("gpu", flags.provider))}
    rows = [compare(mode, found["cpu"][mode], found["gpu"][mode]) for mode in flags.mode]
    for row in rows:
        print(row)
    if flags.json is not None:
        flags.json.write_text(
            json.dumps({"provider": flags.provider, "modes": rows}, indent=1) + "\n", encoding="utf-8"
        )
    return int(any(row["mode"] == "fp16" and row["shortest_agreement"] < flags.least for row in rows))


def replies(flags: Any, provider: str, prompts: list[str]) -> dict[str, list[Any]]:
    """Return the replies of every mode with one provider; the first pass of a mode warms up and is not kept."""
    with edgeprec.load(flags.bundle, engine="onnxruntime", provider=provider, sensor="none") as session:
        for note in session.info.fallbacks:
            print(f"{provider}: {note}")
        found = {}
        for mode in flags.mode:
            config = GenerationConfig(mode=Mode(mode), max_new_tokens=flags.tokens, ignore_eos=True)
            session.generate(prompts[0], config)
            found[mode] = [session.generate(prompt, config) for prompt in prompts]
        return found


def compare(mode: str, cpu: list[Any], gpu: list[Any]) -> dict[str, Any]:
    """Return tokens/s of both and how long their tokens agree."""
    agreed = [agreement(one.tokens, other.tokens) for one, other in zip(cpu, gpu, strict=True)]
    return {
        "mode": mode,
        "cpu_tokens_per_s": round(statistics.median(reply.stats.tokens_per_s for reply in cpu), 1),
        "gpu_tokens_per_s": round(statistics.median(reply.stats.tokens_per_s for reply in gpu), 1),
        "identical_replies": sum(one.tokens == other.tokens for one, other in zip(cpu, gpu, strict=True)),
        "replies": len(cpu),
        "shortest_agreement": min(agreed),
        "fallbacks": list(gpu[0].stats.fallbacks),
    }


def agreement(one: list[int], other: list[int]) -> int:
    """Return how many leading tokens are the same."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


if __name__ == "__main__":
    sys.exit(main())
