"""``edgeprec export --format compressed-tensors``: write the checkpoint and say how to serve it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from edgeprec.errors import ConfigError

if TYPE_CHECKING:
    from edgeprec.export.settings import ExportSettings

__all__ = ["hand_off"]

_SERVERS = {"vllm": "vLLM", "sglang": "SGLang"}


def hand_off(values: Mapping[str, Any], settings: ExportSettings) -> None:
    """Do what the flags ``values`` of ``edgeprec export`` ask for.

    Raises:
        ConfigError: a flag belongs to bundles, or the export cannot be done as asked.
    """
    _refuse_bundle_flags(values)
    draft_length = _draft_length(values["draft_length"])
    from edgeprec.api import export_compressed_tensors
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.progress import progress_bars
    from edgeprec.export.compressed_tensors_serve import serve_commands

    is_silent = values["quiet"] or values["as_json"]
    with progress_bars(is_quiet=is_silent) as progress:
        path = export_compressed_tensors(
            values["source"], values["output"], draft=values["draft"], settings=settings, progress=progress
        )
    draft = path / "draft" if (path / "draft").is_dir() else None
    commands = serve_commands(path, draft, draft_length=draft_length)
    size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if values["as_json"]:
        print_json(
            {
                "path": str(path),
                "bytes": size_bytes,
                "draft": None if draft is None else str(draft),
                "draft_length": None if draft is None else draft_length,
                "commands": commands,
            }
        )
    elif not is_silent:
        click.echo(f"{path}: {size_bytes / 1e6:.0f} MB; serve it with one of")
        for server, command in commands.items():
            click.echo(f"  {command}   # {_SERVERS[server]}")


def _refuse_bundle_flags(values: Mapping[str, Any]) -> None:
    for name in ("resume", "tensorrt"):
        if values[name]:
            raise ConfigError(f"--{name} is for bundles: leave it out with --format compressed-tensors")


def _draft_length(asked: int | None) -> int:
    """Return the fixed length that stands for ``asked``: servers know no adaptive one.

    Raises:
        ConfigError: it is out of range.
    """
    from edgeprec.config import DraftingConfig

    config = DraftingConfig(draft_length=asked)
    return config.max_draft_length if config.draft_length is None else config.draft_length
