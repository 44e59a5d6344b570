"""``edgeprec inspect``: what is inside a bundle, and what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeprec.cli.common import json_option
from edgeprec.errors import ConfigError

if TYPE_CHECKING:
    from edgeprec.bundle import Bundle

__all__ = ["inspect_command"]


@click.command("inspect", short_help="Show what is inside a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--memory", "with_memory", is_flag=True, help="Show what it needs by context, and what fits here.")
@click.option("--context", "context_tokens", type=int, metavar="N", help="With --memory: this context alone.")
@json_option
def inspect_command(bundle: Path, with_memory: bool, context_tokens: int | None, as_json: bool) -> None:
    """Show the models of BUNDLE, their variants and errors, thresholds, files and sources. Reads no weights.

    \b
    Examples:
      edgeprec inspect smollm2.edgeprec
      edgeprec inspect smollm2.edgeprec --memory
      edgeprec inspect smollm2.edgeprec --memory --context 4096
      edgeprec inspect smollm2.edgeprec --json | jq .models.target.variants
    """
    from edgeprec.bundle import Bundle
    from edgeprec.cli.bundle_facts import bundle_facts
    from edgeprec.cli.json_output import print_json

    if context_tokens is not None and not with_memory:
        raise ConfigError("--context says for which context memory is planned: give --memory with it")
    opened = Bundle.open(bundle)
    facts = bundle_facts(opened)
    if with_memory:
        facts |= _memory(opened, context_tokens)
    if as_json:
        print_json(facts)
        return
    _print_tables(facts)


def _memory(bundle: Bundle, context_tokens: int | None) -> dict[str, object]:
    from edgeprec.available_memory import read_available_memory
    from edgeprec.cli.bundle_facts import memory_facts
    from edgeprec.cli.gpu_memory import gpu_memory_facts
    from edgeprec.memory_plan import ONNXRUNTIME_CPU

    entries = [model.entry for model in bundle.models]
    memory = memory_facts(entries, ONNXRUNTIME_CPU, read_available_memory(), context_tokens=context_tokens)
    contexts = [plan["context_tokens"] for plan in memory["contexts"]]
    return {"memory": memory, "gpu_memory": gpu_memory_facts(bundle, contexts)}


def _print_tables(facts: dict[str, object]) -> None:
    from rich.console import Console

    from edgeprec.cli.bundle_tables import bundle_tables, gpu_memory_table, memory_table

    console = Console(highlight=False, soft_wrap=False)
    console.print(bundle_tables(facts))
    memory = facts.get("memory")
    if isinstance(memory, dict):
        console.print(memory_table(memory))
    gpu_memory = facts.get("gpu_memory")
    if isinstance(gpu_memory, dict):
        console.print(gpu_memory_table(gpu_memory))
