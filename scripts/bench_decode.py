"""Measure decoding on a GPU at true cost: FP16, INT4, exact with self drafts, and with a draft model, in one run.

    python scripts/bench_decode.py SOURCE [--draft SOURCE] [--shape 8b] [--set short] [--tokens 256] [--json FILE]

SOURCE is a small Llama: a bundle, a GGUF file or a Hugging Face folder. It is widened to the shape (``widen.py``;
``none`` takes it as it is), the draft to a 1B shape; INT4 is rounded to nearest in blocks of 128. Text, entropy and
acceptance are the small models' own; every table says "8B-shaped". All ways of decoding take turns on each prompt.
GB/s count the FP16 linears once per FP16 token. Nothing here asserts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from checkpoint_source import CheckpointSource, load_tokenizer
from synthetic_weights import LLAMA_1B, LLAMA_8B
from widen import WidenedSource, widened_config

from edgeprec.config import DraftingConfig, GenerationConfig, Mode
from edgeprec.devices.detect import detect
from edgeprec.devices.meter import Meter
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.prompts import PROMPT_SETS, load_prompts
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.passes import WeightBits
from edgeprec.runtime.reply import Reply
from edgeprec.runtime.session import Session
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_device import choose_device, describe_device
from edgeprec.runtime.torch_memory import form_of
from edgeprec.runtime.torch_opening import build_engine
from edgeprec.runtime.torch_weights import WeightSource
from edgeprec.tensor_names import num_linear_weights

GROUP_SIZE = 128
SHAPES = {"8b": LLAMA_8B, "1b": LLAMA_1B, "none": None}


@dataclass
class Row:
    """What one way of decoding gave, prompt by prompt."""

    rates: list[float] = field(default_factory=list)  # tokens/s
    joules: list[float] = field(default_factory=list)  # per token
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    identical: int = 0

    def add(self, reply: Reply, plain: Reply) -> None:
        """Take a reply in; ``plain`` is FP16's."""
        stats = reply.stats
        if stats.tokens_per_s is not None:
            self.rates.append(stats.tokens_per_s)
        if stats.energy is not None and stats.energy.joules_per_token is not None:
            self.joules.append(stats.energy.joules_per_token)
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.rounds += stats.rounds
        self.identical += reply.tokens == plain.tokens


def main() -> None:
    """Load, warm up, decode, print."""
    arguments = _arguments()
    device = choose_device(None)
    target, small = _engine(arguments.source, SHAPES[arguments.shape], device, arguments)
    draft = None if arguments.draft is None else _engine(arguments.draft, LLAMA_1B, device, arguments)[0]
    meter = Meter(detect("nvml").sensor) if device.type == "cuda" else None
    session = Session(
        engine=target,
        tokenizer=load_tokenizer(small),
        target_bits=WeightBits(weights=(1,) * (target.info.num_layers + 1), int4_bits=4.0 + 16 / GROUP_SIZE),
        draft_engine=draft,
        draft_bits=None
        if draft is None
        else WeightBits(weights=(1,) * (draft.info.num_layers + 1), int4_bits=4.0 + 16 / GROUP_SIZE),
        meter=meter,
    )
    rows = decode(session, arguments)
    print_table(rows, target, describe_device(device), arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({name: vars(row) for name, row in rows.items()}, indent=1) + "\n")
    session.close()


def decode(session: Session, arguments: argparse.Namespace) -> dict[str, Row]:
    """Run every prompt through every way of decoding, FP16 first."""
    ways = configurations(arguments.tokens, has_draft=arguments.draft is not None)
    rows = {name: Row() for name in ways}
    prompts = load_prompts(arguments.set)[: arguments.prompts]
    for config in ways.values():  # compile and capture what is still missing
        for _ in range(2):
            session.generate(prompts[0].text, replace(config, max_new_tokens=32))
    for prompt in prompts:
        plain = session.generate(prompt.text, ways["fp16"])
        rows["fp16"].add(plain, plain)
        for name, config in ways.items():
            if name != "fp16":
                rows[name].add(session.generate(prompt.text, config), plain)
    return rows


def configurations(tokens: int, *, has_draft: bool) -> dict[str, GenerationConfig]:
    """Return the ways of decoding by name."""

    def exact(**drafting: Any) -> GenerationConfig:
        return GenerationConfig(max_new_tokens=tokens, ignore_eos=True, drafting=DraftingConfig(**drafting))

    plain = exact()
    ways = {
        "fp16": replace(plain, mode=Mode.FP16),
        "int4": replace(plain, mode=Mode.INT4),
        "exact, self, K=3": exact(drafter="self", draft_length=3),
        "exact, self, K=5": exact(drafter="self", draft_length=5),
        "exact, self, adaptive": exact(drafter="self"),
        "exact, n-gram": exact(drafter="ngram"),
    }
    if has_draft:
        ways["exact, 1B-shaped INT4 draft, K=5"] = exact(drafter="model", draft_length=5)
        ways["exact, 1B-shaped INT4 draft, adaptive"] = exact(drafter="model")
    return ways


def print_table(rows: dict[str, Row], target: TorchEngine, device: str, arguments: argparse.Namespace) -> None:
    """Print medians, the middle half, ratios to FP16, and what graphs cost."""
    print(
        f"{device}, {arguments.shape}-shaped, {target.info.num_layers} layers, batch 1, greedy, "
        f"{arguments.tokens} tokens"
    )
    print("| decoding | tokens/s | over fp16 | J/token | over fp16 | acceptance | tokens a round | identical |")
    print("|---|---|---|---|---|---|---|---|")
    base = rows["fp16"]
    for name, row in rows.items():
        rate, energy = statistics.median(row.rates), statistics.median(row.joules) if row.joules else None
        spread = statistics.quantiles(row.rates, n=4) if len(row.rates) > 1 else [rate] * 3
        base_energy = statistics.median(base.joules) if base.joules else None
        saved = "-" if energy is None or base_energy is None else f"{energy / base_energy - 1.0:+.0%}"
        accepted = f"{row.accepted / row.drafted:.2f}" if row.drafted else "-"
        print(
            f"| {name} | {rate:.1f} ({spread[0]:.1f}-{spread[2]:.1f}) | {rate / statistics.median(base.rates):.2f}x | "
            f"{'-' if energy is None else f'{energy:.3f}'} | {saved} | {accepted} | "
            f"{(row.accepted + row.rounds) / row.rounds:.2f} | {row.identical} of {len(row.rates)} |"
        )
    read_gb = 2e-9 * arguments.linear_weights
    print(f"\nFP16 reads {read_gb:.2f} GB a token: {read_gb * statistics.median(base.rates):.0f} GB/s")
    report = target.graph_report
    if report.mean_ms is not None:
        print(
            f"{report.captured} kinds of passes captured, {report.mean_ms:.0f} ms each (largest "
            f"{report.largest_ms:.0f}): what a switch to a new plan costs once; {report.dropped} dropped"
        )
    print(f"fallbacks: {', '.join(target.info.fallbacks) or 'none'}; arena {target.info.memory_bytes / 2**30:.2f} GiB")


def _engine(
    path: Path, shape: Any, device: torch.device, arguments: argparse.Namespace
) -> tuple[TorchEngine, Checkpoint]:
    """Widen a model to ``shape``, None = as it is, and capture what decoding uses."""
    small = open_checkpoint(str(path))
    config = small.config
    source: WeightSource = CheckpointSource(small, device, group_size=GROUP_SIZE)
    if shape is not None:
        config = widened_config(small.config, shape)
        source = WidenedSource(source, small.config, config, device, group_size=GROUP_SIZE)
    if arguments.context > config.max_positions:
        raise ConfigError(f"context is {arguments.context}, the model was made for {config.max_positions}: lower it")
    form = form_of(config, device=device, group_size=GROUP_SIZE, has_zeros=False, context_tokens=arguments.context)
    started = time.monotonic()
    _, engine = build_engine(source, form, Arena(form.arena_bytes, device))
    loaded = time.monotonic()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        engine.warm_up()
    print(f"{path.name}: weights {loaded - started:.1f} s, warm-up {time.monotonic() - loaded:.1f} s", flush=True)
    if not hasattr(arguments, "linear_weights"):
        arguments.linear_weights = num_linear_weights(config)
    return engine, small


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--draft", type=Path, help="what drafts, widened to a 1B shape")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--set", choices=PROMPT_SETS, default="short")
    parser.add_argument("--prompts", type=int, help="only so many of the set")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
