"""The folder of ``edgeprec eval -o``: each table lies there as soon as it is measured, and a later run can go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edgeprec.errors import ConfigError

__all__ = ["known_tables", "output_folder", "write_evaluation"]

_JSON = "eval.json"


@contextmanager
def output_folder(folder: Path | None) -> Iterator[None]:
    """Make the output folder before the long work, and take it away again if nothing came of that; None = no files.

    Raises:
        ConfigError: it cannot be made or written, or lies in a bundle.
    """
    if folder is None:
        yield
        return
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        _make_folder(folder)
        yield
    finally:
        for place in made:
            with suppress(OSError):  # it holds tables
                place.rmdir()


def _make_folder(folder: Path) -> None:
    from edgeprec.cli.output_file import check_writable
    from edgeprec.cli.output_guard import require_outside_bundles

    require_outside_bundles(folder / _JSON, flag="-o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"-o {folder} cannot be made: {error.strerror}") from error
    check_writable(folder / _JSON, flag="-o")


def write_evaluation(folder: Path, found: Mapping[str, Any]) -> None:
    """Write eval.json, eval.md and the pictures of what there is into ``folder``, each whole or not at all."""
    from edgeprec.cli.eval_markdown import evaluation_markdown
    from edgeprec.cli.eval_pictures import draw_pictures
    from edgeprec.cli.output_file import write_whole

    pictures = draw_pictures(found)
    for name, svg in pictures.items():
        write_whole(folder / name, svg)
    write_whole(folder / "eval.md", evaluation_markdown(found, pictures=tuple(pictures)))
    write_whole(folder / _JSON, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def known_tables(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier run left in ``folder``, empty where none did.

    ``facts`` are what both runs must have in common.

    Raises:
        ConfigError: it is no evaluation, or one of something else.
    """
    path = folder / _JSON
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name, value in facts.items() if found.get(name) != value]
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"--resume: {path} is no evaluation: delete it or give another folder") from error
    if differing:
        name = differing[0]
        raise ConfigError(
            f"--resume: {path} was measured with {name} {found.get(name)}, expected {facts[name]}: "
            "leave out --resume or give another folder"
        )
    known: dict[str, Any] = found
    return known
