"""What a command writes, kept off everything it reads: a typing slip must not cost a bundle or a prompt file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from edgeprec.bundle import TOKENIZER
from edgeprec.bundle_schema import MANIFEST_NAME
from edgeprec.errors import ConfigError

__all__ = ["require_apart", "require_outside_bundles"]

_MARKS = (MANIFEST_NAME, TOKENIZER)  # what makes a folder a bundle, whatever else is missing from it


def require_outside_bundles(path: Path, *, flag: str) -> None:
    """Check that ``path``, links followed, lies in no bundle: what is not listed there makes the bundle invalid.

    Raises:
        ConfigError: it does.
    """
    for folder in _place(path).parents:
        if all((folder / mark).is_file() for mark in _MARKS):
            raise ConfigError(f"{flag} {path} lies in the bundle {folder}, which it would damage: write it elsewhere")


def require_apart(
    outputs: Mapping[str, Path | None], *, inputs: Mapping[str, Path | None], bundle: Path | None = None
) -> None:
    """Check that no output, links followed, is an input, in the bundle, or another output; None was not given.

    Keys are what the command line calls them. A ``--config`` file is an input without being told.

    Raises:
        ConfigError: one is.
    """
    given = {flag: path for flag, path in outputs.items() if path is not None}
    read = {name: path for name, path in {**inputs, **_settings_file()}.items() if path is not None}
    for flag, path in given.items():
        require_outside_bundles(path, flag=flag)
        for name, other in read.items():
            if _is_same(path, other):
                raise ConfigError(f"{flag} {path} is the file that {name} reads: write it elsewhere")
        if bundle is not None and _place(path).is_relative_to(_place(bundle)):
            raise ConfigError(f"{flag} {path} lies in the bundle {bundle}, which it would damage: write it elsewhere")
        for other in _files(bundle):
            if _is_same(path, other):
                raise ConfigError(f"{flag} {path} is {other} of the bundle, which it would damage: write it elsewhere")
        others = [name for name, other in given.items() if name != flag and _is_same(path, other)]
        if others:
            raise ConfigError(f"{flag} and {others[0]} both write {path}: give each a file of its own")


def _is_same(one: Path, other: Path) -> bool:
    """Return whether both names lead to one file, also by links; a device such as /dev/null may be read and written."""
    if not one.exists() or not other.exists():
        return _place(one) == _place(other)
    return one.is_file() and one.samefile(other)


def _place(path: Path) -> Path:
    """Return the path with its links followed; of links in a circle, which Path.resolve raises at, one of them."""
    return Path(os.path.realpath(path))


def _files(bundle: Path | None) -> Iterator[Path]:
    if bundle is not None and bundle.is_dir():
        yield from (path for path in bundle.rglob("*") if path.is_file())


def _settings_file() -> dict[str, Path | None]:
    context = click.get_current_context(silent=True)
    return {"--config": None if context is None else context.meta.get("edgeprec.settings_file")}
