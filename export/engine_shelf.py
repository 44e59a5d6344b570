"""Put engine files into a finished bundle: whole or not at all, and never beside a manifest that does not know them.

Work goes on in ``.NAME.building/`` beside the bundle. A file is renamed into ``engines/`` when it is whole, then
``bundle.json`` is replaced. A kill between the two leaves a file that the next build overwrites.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from edgeprec.bundle import Bundle
from edgeprec.bundle_schema import MANIFEST_NAME, EngineEntry, FileEntry
from edgeprec.errors import ConfigError
from edgeprec.export import disk
from edgeprec.export.folder_lock import FolderLock
from edgeprec.file_digest import file_sha256

__all__ = ["shelve", "work_folder"]


@contextmanager
def work_folder(bundle: Bundle) -> Iterator[Path]:
    """Give an empty folder on the bundle's file system, for one process at a time; it is deleted afterwards.

    Raises:
        ConfigError: another process builds engines for this bundle, or its folder cannot be written.
    """
    folder = bundle.root.resolve().with_name(f".{bundle.root.resolve().name}.building")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write into {folder.parent}: {error.strerror}; copy the bundle elsewhere") from error
    lock = FolderLock(folder)
    lock.acquire()
    try:
        for path in folder.iterdir():
            if path.name != "lock":
                path.unlink()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def shelve(bundle: Bundle, files: Sequence[tuple[Path, str, Sequence[EngineEntry]]]) -> Bundle:
    """Move built files into the bundle and list them. Each comes with its name there and its entries.

    An entry takes the place of one of the same kind, GPU and model; entries of a damaged file are dropped, for they can
    only be refused; a file that no entry names any more is deleted.
    """
    manifest = bundle.manifest
    listed, engines = dict(manifest.files), [entry for entry in manifest.engines if bundle.is_whole(entry.file)]
    for path, name, entries in files:
        listed[name] = FileEntry(path.stat().st_size, file_sha256(path))
        replaced = {(entry.kind, entry.sm, entry.model) for entry in entries}
        engines = [entry for entry in engines if (entry.kind, entry.sm, entry.model) not in replaced]
        engines += entries
    unused = {entry.file for entry in manifest.engines} - {entry.file for entry in engines}
    for name in unused:
        del listed[name]
    engines.sort(key=lambda entry: (entry.model != "target", entry.kind, int(entry.sm[2:])))
    for path, name, _ in files:
        _publish(path, bundle.root / name)
    data = replace(manifest, files=listed, engines=tuple(engines)).to_bytes()
    disk.write_file(bundle.root / MANIFEST_NAME, data, scratch=files[0][0].with_name("manifest"))
    for name in unused:
        (bundle.root / name).unlink(missing_ok=True)
    return Bundle.open(bundle.root)


def _publish(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(path, place)
    disk.sync_folder(place.parent)
