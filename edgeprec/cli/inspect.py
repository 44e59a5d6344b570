"""``edgeprec inspect``: what is inside a bundle, and what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgeprec.cli.common import json_option

__all__ = ["inspect_command"]


@click.command("inspect", short_help="Show what is inside a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--memory", "with_memory", is_flag=True, help="Show what it needs by context, and what fits here.")
@json_option
def inspect_command(bundle: Path, with_memory: bool, as_json: bool) -> None:
    """Show the models of BUNDLE, their variants and errors, thresholds, files and sources. Reads no weights.

    \b
    Examples:
      edgeprec inspect smollm2.edgeprec
      edgeprec inspect smollm2.edgeprec --memory
      edgeprec inspect smollm2.edgeprec --json | jq .models.target.variants
    """
    from edgeprec.bundle import Bundle
    from edgeprec.cli.bundle_facts import bundle_facts, memory_facts

    opened = Bundle.open(bundle)
    facts = bundle_facts(opened)
    if with_memory:
        from edgeprec.available_memory import read_available_memory
        from edgeprec.memory_plan import ONNXRUNTIME_CPU

        entries = [model.entry for model in opened.models]
        facts["memory"] = memory_facts(entries, ONNXRUNTIME_CPU, read_available_memory())
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    _print_tables(facts)


def _print_tables(facts: dict[str, object]) -> None:
    from rich.console import Console

    from edgeprec.cli.bundle_tables import bundle_tables, memory_table

    console = Console(highlight=False, soft_wrap=False)
    console.print(bundle_tables(facts))
    memory = facts.get("memory")
    if isinstance(memory, dict):
        console.print(memory_table(memory))
