"""Write a bundle whole or not at all, and take an interrupted export up where it stopped.

Everything lies in ``OUTPUT.partial/`` until ``finish`` renames its ``bundle/`` to OUTPUT:

    lock            names the process that writes; a second one is refused
    journal.jsonl   the finished steps, with a digest of what each wrote
    scratch/        what steps leave for later steps; not part of the bundle
    bundle/         the bundle to be

A kill at any moment loses the step at work and nothing else: a step counts once its bytes and then its journal line
are on the disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from edgeprec.bundle import Bundle
from edgeprec.bundle_schema import MANIFEST_NAME, BundleManifest, FileEntry
from edgeprec.errors import BundleError, ConfigError
from edgeprec.export import disk
from edgeprec.export.coverage import covers, merge
from edgeprec.export.folder_lock import FolderLock
from edgeprec.export.journal import Journal, StepEntry, WriteEntry
from edgeprec.export.tensor_file import TensorFileWriter, WrittenRange
from edgeprec.file_digest import file_sha256
from edgeprec.tensor_spec import TensorPlacement, TensorSpec

__all__ = ["BundleTransaction", "Step", "require_free_output"]

_logger = logging.getLogger(__name__)


def require_free_output(output: Path) -> None:
    """Refuse an output that exists; call it before long work that comes before the transaction.

    Raises:
        ConfigError: something lies there.
    """
    if os.path.lexists(output):
        raise ConfigError(f"{output} already exists: choose another folder with -o, or delete it")


@dataclass(slots=True)
class Step:
    """A step at work. What ``store`` keeps comes back from ``BundleTransaction.stored``, now and after a resume."""

    name: str
    writes: list[WriteEntry] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def store(self, values: dict[str, Any]) -> None:
        """Keep small JSON values with the step, such as a layer's errors."""
        self.values |= values


class BundleTransaction:
    """One export into the folder ``output``; a context manager. For one thread.

    ``fingerprint`` stands for everything that decides the bytes: digests of the sources, settings, version. After
    ``with`` an unfinished export stays for ``--resume`` if it finished a step, unless a ConfigError ended it, which
    the same command would only meet again.

    Raises:
        ConfigError: the output exists, cannot be written, another process writes it, or an unfinished export lies
            there and ``resume`` is false or its fingerprint is another.
        EdgePrecError: the disk is full.
    """

    def __init__(self, output: Path, *, resume: bool, fingerprint: str) -> None:
        if not output.name:
            raise ConfigError(f"{output} cannot become a bundle: choose a new folder with -o")
        self._output = output
        self._resume = resume
        self._fingerprint = fingerprint
        self._partial = output.with_name(f"{output.name}.partial")
        self._lock = FolderLock(self._partial)
        self._journal = Journal(self._partial / "journal.jsonl", fingerprint=fingerprint)
        self._done: dict[str, StepEntry] = {}
        self._step: Step | None = None
        self._files: dict[str, TensorFileWriter] = {}
        self._unsynced: set[str] = set()
        self._written: dict[str, list[TensorPlacement]] = {}  # by bundle-relative name
        self._announced_bytes = 0
        self._is_whole = False  # bundle.json is written, only the renaming is left
        self._is_complete = False

    def __enter__(self) -> BundleTransaction:
        try:
            self._begin()
        except OSError as error:
            self._close()
            raise disk.disk_error(error, self._output.parent, needed_bytes=1) from error
        except ConfigError:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step = None
        self._close_files()
        is_hopeless = not self._done or (isinstance(error, ConfigError) and not self._is_whole)
        if self._is_complete or is_hopeless:
            shutil.rmtree(self._partial, ignore_errors=True)
        else:
            _logger.warning("the unfinished export stays in %s: continue it with --resume", self._partial)
        self._close()
        if isinstance(error, OSError) and error.errno in disk.WRITE_ERRORS:
            raise disk.disk_error(error, self._output.parent, needed_bytes=self._missing_bytes()) from error

    @property
    def is_complete(self) -> bool:
        """Return whether the output is there and whole; a resumed export may find it so from the beginning."""
        return self._is_complete

    def is_done(self, step: str) -> bool:
        """Return whether this step was finished and its bytes are still there."""
        return step in self._done

    def stored(self, step: str) -> dict[str, Any]:
        """Return what a finished step kept."""
        return self._done[step].stored

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Do one step; it is finished, for good, when the block ends without an error."""
        assert self._step is None, f"step {name} begins inside step {self._step.name}"
        self._step = Step(name)
        try:
            yield self._step
            self._finish_step(self._step)
        finally:
            self._step = None

    def path(self, name: str) -> Path:
        """Return where a file of the unfinished bundle lies; ``name`` is relative to the bundle, with slashes."""
        return self._partial / "bundle" / name

    def tensor_file(self, name: str, specs: Iterable[TensorSpec]) -> TensorFileWriter:
        """Open a tensor file of the bundle, keeping what finished steps wrote into it. The transaction closes it."""
        if name not in self._files:
            self._files[name] = self._open_tensor_file(name, tuple(specs))
        return self._files[name]

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a whole file of the bundle; inside a step it belongs to the step."""
        self._write_file(self.path(name), data)
        self._note_write(name, offset_bytes=0, data=memoryview(data))

    def write_scratch(self, name: str, data: bytes) -> None:
        """Keep bytes for a later step, outside the bundle; inside a step they belong to the step."""
        self._write_file(self._scratch(name), data)
        self._journal_write(f"scratch/{name}.bin", offset_bytes=0, data=memoryview(data))

    def read_scratch(self, name: str) -> bytes:
        """Return what ``write_scratch`` kept."""
        return self._scratch(name).read_bytes()

    def require_space(self, *, needed_bytes: int) -> None:
        """Refuse an export whose files will not fit; what an interrupted one already takes up is counted.

        Raises:
            EdgePrecError: fewer bytes are free than needed.
        """
        self._announced_bytes = max(self._announced_bytes, needed_bytes)
        disk.require_space(self._output.parent, needed_bytes=self._missing_bytes())

    def finish(self, manifest: BundleManifest, *, progress: Callable[[int, int], None] | None = None) -> Path:
        """Digest every file, write ``bundle.json``, put the bundle in place and return its path.

        ``manifest.files`` and ``manifest.export_fingerprint`` are filled in here. ``progress`` is told bytes digested
        and bytes in all.
        """
        self._check_tensors()
        self._sync_files()
        self._close_files()
        self._remove_strangers()
        files = self._digest_files(progress or (lambda done, total: None))
        whole = replace(manifest, files=files, export_fingerprint=self._fingerprint)
        self._write_file(self.path(MANIFEST_NAME), whole.to_bytes())
        self._is_whole = True
        self._publish()
        return self._output

    def _begin(self) -> None:
        if os.path.lexists(self._output):
            self._accept_output()
        found_partial = self._partial.exists()
        if self._is_complete and not found_partial:
            return
        self._partial.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        if self._is_complete:
            return
        if found_partial and not self._resume and self._journal.exists():
            raise ConfigError(
                f"an unfinished export lies in {self._partial}: continue it with --resume, or delete that folder"
            )
        steps = self._journal.open()
        for folder in ("bundle", "scratch"):
            (self._partial / folder).mkdir(exist_ok=True)
        for entry in steps:
            self._adopt(entry)

    def _accept_output(self) -> None:
        """Take an existing output for this export's own result, or refuse it."""
        if self._resume:
            try:
                manifest = Bundle.open(self._output).manifest
            except BundleError:
                manifest = None
            if manifest is not None and manifest.export_fingerprint == self._fingerprint:
                self._is_complete = True
                return
        require_free_output(self._output)

    def _adopt(self, entry: StepEntry) -> None:
        """Count a step of an earlier run as done if its bytes are still there."""
        if not all(write.is_intact(self._partial) for write in entry.writes):
            self._done.pop(entry.name, None)
            return
        self._done[entry.name] = entry
        for write in entry.writes:
            root, _, name = write.path.partition("/")
            if root == "bundle":
                place = TensorPlacement(write.offset_bytes, write.length_bytes)
                self._written.setdefault(name, []).append(place)

    def _finish_step(self, step: Step) -> None:
        self._sync_files()
        stored = json.loads(json.dumps(step.values, allow_nan=False))  # the same types now as after a resume
        entry = StepEntry(step.name, tuple(step.writes), stored)
        self._journal.append(entry)
        self._done[step.name] = entry

    def _open_tensor_file(self, name: str, specs: tuple[TensorSpec, ...]) -> TensorFileWriter:
        def on_write(written: WrittenRange) -> None:
            self._unsynced.add(name)
            self._note_write(name, offset_bytes=written.offset_bytes, data=written.data)

        self._announce(self.path(name), sum(spec.num_bytes for spec in specs))
        self._unsynced.add(name)
        return TensorFileWriter(self.path(name), specs, on_write=on_write)

    def _write_file(self, path: Path, data: bytes) -> None:
        self._announce(path, len(data))
        disk.write_file(path, data, scratch=self._partial / "scratch" / "writing")

    def _note_write(self, name: str, *, offset_bytes: int, data: memoryview) -> None:
        self._written.setdefault(name, []).append(TensorPlacement(offset_bytes, len(data)))
        self._journal_write(f"bundle/{name}", offset_bytes=offset_bytes, data=data)

    def _journal_write(self, path: str, *, offset_bytes: int, data: memoryview) -> None:
        if self._step is not None:
            digest = hashlib.sha256(data).hexdigest()
            self._step.writes.append(WriteEntry(path, offset_bytes, len(data), digest))

    def _scratch(self, name: str) -> Path:
        return self._partial / "scratch" / f"{name}.bin"

    def _announce(self, path: Path, size_bytes: int) -> None:
        """Count a file that is about to be written, so that a full disk can say how much is missing."""
        others = disk.allocated_bytes(self._partial) - disk.allocated_bytes(path)
        self._announced_bytes = max(self._announced_bytes, others + size_bytes)

    def _missing_bytes(self) -> int:
        return max(self._announced_bytes - disk.allocated_bytes(self._partial), 1)

    def _check_tensors(self) -> None:
        for name, file in self._files.items():
            written = merge(self._written.get(name, ()))
            missing = [tensor for tensor in file.specs if not covers(written, file.placement(tensor))]
            assert not missing, f"{name}: tensors were never written: {missing[:5]}"

    def _sync_files(self) -> None:
        for name in sorted(self._unsynced):
            self._files[name].sync()
        self._unsynced.clear()

    def _remove_strangers(self) -> None:
        """Delete what an earlier run left in the bundle and this one did not claim."""
        known = set(self._written) | set(self._files)
        for path in self._bundle_files():
            if path.relative_to(self._partial / "bundle").as_posix() not in known:
                path.unlink()

    def _digest_files(self, progress: Callable[[int, int], None]) -> dict[str, FileEntry]:
        paths = self._bundle_files()
        total_bytes = sum(path.stat().st_size for path in paths)
        done_bytes = 0

        def on_bytes(count: int) -> None:
            nonlocal done_bytes
            done_bytes += count
            progress(done_bytes, total_bytes)

        return {
            path.relative_to(self._partial / "bundle").as_posix(): FileEntry(
                path.stat().st_size, file_sha256(path, on_bytes=on_bytes)
            )
            for path in paths
        }

    def _bundle_files(self) -> list[Path]:
        return sorted(path for path in (self._partial / "bundle").rglob("*") if path.is_file())

    def _publish(self) -> None:
        root = self._partial / "bundle"
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            disk.sync_folder(folder)
        if os.path.lexists(self._output):
            raise ConfigError(f"{self._output} appeared while exporting: choose another folder with -o, or delete it")
        os.rename(root, self._output)
        disk.sync_folder(self._output.parent)
        self._is_complete = True

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()

    def _close(self) -> None:
        self._close_files()
        self._journal.close()
        self._lock.release()
