"""Read every byte of a bundle and compare it with what ``bundle.json`` promises."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from edgeprec.bundle import Bundle, BundleModel
from edgeprec.bundle_schema import MANIFEST_NAME
from edgeprec.engine_file import EngineFile, source_digest
from edgeprec.errors import BundleError
from edgeprec.file_digest import file_sha256

__all__ = ["Problem", "ProblemKind", "VerifyReport", "verify_bundle"]


class ProblemKind(StrEnum):
    """What can be wrong with a file."""

    MISSING = "missing"
    DAMAGED = "damaged"
    EXTRA = "extra"  # lies in the folder and is not listed
    UNFIT = "unfit"  # whole, but not the tensors this model has


@dataclass(frozen=True, slots=True)
class Problem:
    """One file that is not as listed; ``path`` is relative to the bundle."""

    path: str
    kind: ProblemKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification read and found."""

    root: Path
    num_files: int
    size_bytes: int
    problems: tuple[Problem, ...]

    @property
    def is_ok(self) -> bool:
        """Return whether every byte is as exported."""
        return not self.problems

    def require(self) -> None:
        """Raise BundleError naming every problem, if there is one."""
        if self.problems:
            found = "; ".join(f"{problem.path} is {problem.kind} ({problem.detail})" for problem in self.problems)
            raise BundleError(f"{self.root} is not intact: {found}; copy or export it again")

    def to_json(self) -> dict[str, Any]:
        """Return what ``verify --json`` prints."""
        return {
            "bundle": str(self.root),
            "ok": self.is_ok,
            "files": self.num_files,
            "bytes": self.size_bytes,
            "problems": [asdict(problem) for problem in self.problems],
        }


def verify_bundle(bundle: Bundle, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Digest every listed file, check the tensors and engines of each model, and look for files that are not listed.

    ``progress`` is told bytes read and bytes in all. Take the bundle from ``Bundle.read_manifest``: ``Bundle.open``
    already refuses the first file that is missing or of another size.
    """
    read_bytes = 0

    def on_bytes(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count
        if progress is not None:
            progress(read_bytes, bundle.size_bytes)

    problems = [problem for name in sorted(bundle.manifest.files) for problem in _check_file(bundle, name, on_bytes)]
    damaged = {problem.path for problem in problems}
    for model in bundle.models:
        problems.extend(problem for problem in _check_tensors(model) if problem.path not in damaged)
    problems.extend(problem for problem in _check_engines(bundle) if problem.path not in damaged)
    problems.extend(_find_extra(bundle))
    return VerifyReport(
        root=bundle.root,
        num_files=len(bundle.manifest.files),
        size_bytes=bundle.size_bytes,
        problems=tuple(problems),
    )


def _check_file(bundle: Bundle, name: str, on_bytes: Callable[[int], None]) -> Iterator[Problem]:
    expected = bundle.manifest.files[name]
    try:
        path = bundle.path(name)
        if not path.is_file():
            yield Problem(name, ProblemKind.MISSING, f"expected {expected.size_bytes:,} bytes")
            return
        size = path.stat().st_size
        if size != expected.size_bytes:
            yield Problem(name, ProblemKind.DAMAGED, f"{size:,} bytes, expected {expected.size_bytes:,}")
            return
        digest = file_sha256(path, on_bytes=on_bytes)
    except BundleError as error:  # a link that leads out of the bundle
        yield Problem(name, ProblemKind.DAMAGED, str(error))
        return
    except OSError as error:
        yield Problem(name, ProblemKind.DAMAGED, f"cannot be read: {error.strerror}")
        return
    if digest != expected.sha256:
        yield Problem(name, ProblemKind.DAMAGED, f"sha256 {digest[:12]}..., expected {expected.sha256[:12]}...")


def _check_tensors(model: BundleModel) -> Iterator[Problem]:
    for name, opener in ((model.entry.fp16.file, model.open_fp16), (model.entry.int4.file, model.open_int4)):
        try:
            opener().close()
        except BundleError as error:
            yield Problem(name, ProblemKind.UNFIT, str(error))


def _check_engines(bundle: Bundle) -> Iterator[Problem]:
    for name, role in sorted({(engine.file, engine.model) for engine in bundle.manifest.engines}):
        try:
            engine = EngineFile.open(bundle.path(name))
            if engine.header.source_sha256 != source_digest(bundle.model(role)):
                yield Problem(name, ProblemKind.UNFIT, f"built from another {role}: run edgeprec build again")
        except BundleError as error:
            yield Problem(name, ProblemKind.UNFIT, str(error))


def _find_extra(bundle: Bundle) -> Iterator[Problem]:
    for folder, folders, files in os.walk(bundle.root):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted([*files, *links]):
            relative = Path(folder, name).relative_to(bundle.root).as_posix()
            if relative != MANIFEST_NAME and relative not in bundle.manifest.files:
                yield Problem(relative, ProblemKind.EXTRA, f"not listed in {MANIFEST_NAME}")
