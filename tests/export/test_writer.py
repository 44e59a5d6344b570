"""The bundle transaction: whole or not at all, one writer at a time, and one clear sentence for what goes wrong."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeprec.bundle import Bundle
from edgeprec.bundle_verify import verify_bundle
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export import disk
from edgeprec.export.writer import BundleTransaction, require_free_output
from edgeprec.tensor_spec import TensorSpec, TensorType

SPECS = (TensorSpec("a", TensorType.F32, (4,)), TensorSpec("b", TensorType.F32, (4,)))


def begin(output: Path, *, resume: bool = False, fingerprint: str = "f") -> BundleTransaction:
    """Return a transaction with settings that do not matter."""
    return BundleTransaction(output, resume=resume, fingerprint=fingerprint)


class Crash(Exception):
    """Ends an export the way a fault of the exporter would."""


@contextmanager
def crashing(output: Path, *, resume: bool = False) -> Iterator[BundleTransaction]:
    """Give a transaction that ends with a crash."""
    with suppress(Crash), begin(output, resume=resume) as transaction:
        yield transaction
        raise Crash


def leave_unfinished(output: Path) -> None:
    """Crash an export after its first step."""
    with crashing(output) as transaction:
        file = transaction.tensor_file("x.safetensors", SPECS)
        with transaction.step("a") as step:
            file.write("a", np.ones(4, np.float32))
            step.store({"error": 1 / 3, "shape": (1, 2)})


def write_rest(transaction: BundleTransaction, bundles: ModuleType) -> None:
    """Write everything that a bundle of made-up weights needs before it is finished."""
    bundles.write_model(transaction, bundles.make_entry())
    for name in ("tokenizer.json", "generation.json"):
        transaction.write_bytes(name, b"{}")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return where the bundle is to be."""
    return tmp_path / "x.edgeprec"


@pytest.fixture
def manifest(bundles: ModuleType) -> Any:
    """Return a manifest for a bundle of made-up weights."""
    return bundles.make_manifest()


def test_finished_bundle_verifies(output: Path, bundles: ModuleType) -> None:
    """What is written is what verify expects, and nothing else lies there."""
    bundles.make_bundle(output)
    assert verify_bundle(Bundle.open(output)).is_ok
    assert os.listdir(output.parent) == [output.name]


def test_same_input_gives_the_same_bytes(tmp_path: Path, bundles: ModuleType) -> None:
    """No clock, no host, no order of a directory gets into a bundle."""
    roots = [bundles.make_bundle(tmp_path / name) for name in ("one", "two")]
    files = [{path.relative_to(root): path.read_bytes() for path in root.rglob("*.*")} for root in roots]
    assert files[0] == files[1]


def test_parents_are_made(tmp_path: Path, bundles: ModuleType) -> None:
    """``-o new/folder/x.edgeprec`` works on a fresh machine."""
    bundles.make_bundle(tmp_path / "new/folder/x.edgeprec")
    Bundle.open(tmp_path / "new/folder/x.edgeprec")


def test_resume_keeps_finished_steps(output: Path) -> None:
    """A finished step is not done again, and what it kept comes back in the same types as before."""
    leave_unfinished(output)
    with crashing(output, resume=True) as transaction:
        assert transaction.is_done("a")
        assert not transaction.is_done("b")
        assert transaction.stored("a") == {"error": 1 / 3, "shape": [1, 2]}
        with transaction.step("c") as step:
            step.store({"shape": (1, 2)})
        assert transaction.stored("c") == {"shape": [1, 2]}


def test_a_failed_step_is_not_done(output: Path) -> None:
    """A step that raised is done again."""
    leave_unfinished(output)
    with crashing(output, resume=True) as transaction:
        with pytest.raises(ValueError, match="step"), transaction.step("b"):
            raise ValueError("in the step")
        assert not transaction.is_done("b")


def test_a_step_whose_bytes_changed_is_done_again(output: Path) -> None:
    """The journal is believed only as far as the bytes on the disk agree with it."""
    leave_unfinished(output)
    path = output.with_name("x.edgeprec.partial") / "bundle/x.safetensors"
    data = path.read_bytes()
    path.write_bytes(data.replace(np.float32(1).tobytes(), np.float32(2).tobytes(), 1))
    with crashing(output, resume=True) as transaction:
        assert not transaction.is_done("a")


@pytest.mark.parametrize("tail", [b'{"name": "b", "writes"', b"\0\0\0\n", b'"text"\n', b"{}\n"])
def test_a_torn_journal_line_is_dropped(output: Path, tail: bytes) -> None:
    """What a power cut left of the last line does not hide the lines before it."""
    leave_unfinished(output)
    journal = output.with_name("x.edgeprec.partial") / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + tail)
    with crashing(output, resume=True) as transaction:
        assert transaction.is_done("a")
    assert not journal.read_bytes().endswith(tail)


def test_scratch_survives_and_stays_out_of_the_bundle(output: Path, manifest: Any, bundles: ModuleType) -> None:
    """A step can leave something for later steps that is nobody else's business."""
    with crashing(output) as transaction, transaction.step("a"):
        transaction.write_scratch("hidden/0", b"123")
    with begin(output, resume=True) as transaction:
        assert transaction.is_done("a")
        assert transaction.read_scratch("hidden/0") == b"123"
        write_rest(transaction, bundles)
        transaction.finish(manifest)
    assert verify_bundle(Bundle.open(output)).is_ok


def test_strangers_are_not_published(output: Path, manifest: Any, bundles: ModuleType) -> None:
    """A file that an earlier run left and this one does not write is no part of the bundle."""
    with begin(output) as transaction:
        write_rest(transaction, bundles)
        transaction.path("stranger").write_text("x")
        transaction.finish(manifest)
    assert not (output / "stranger").exists()


def test_a_tensor_nobody_wrote_is_a_bug_that_shows(output: Path, manifest: Any) -> None:
    """Zeros that were never computed do not pass for weights."""
    with begin(output) as transaction:
        transaction.tensor_file("x.safetensors", SPECS).write("a", np.ones(4, np.float32))
        with pytest.raises(AssertionError, match="never written"):
            transaction.finish(manifest)


def test_progress_of_finish(output: Path, manifest: Any, bundles: ModuleType) -> None:
    """Digesting a large bundle shows progress up to the end."""
    told: list[tuple[int, int]] = []
    with begin(output) as transaction:
        write_rest(transaction, bundles)
        transaction.finish(manifest, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == Bundle.open(output).size_bytes


@pytest.mark.parametrize("kind", ["file", "folder", "bundle", "broken link"])
@pytest.mark.parametrize("resume", [False, True])
def test_existing_output_is_never_overwritten(output: Path, bundles: ModuleType, kind: str, resume: bool) -> None:
    """Whatever lies there is somebody's."""
    if kind == "file":
        output.write_text("precious")
    elif kind == "folder":
        output.mkdir()
    elif kind == "bundle":
        bundles.make_bundle(output)
    else:
        output.symlink_to("nowhere")
    with (
        pytest.raises(ConfigError, match="already exists: choose another folder with -o"),
        begin(output, resume=resume),
    ):
        pass
    assert os.path.lexists(output)


def test_output_that_appears_meanwhile(output: Path, manifest: Any, bundles: ModuleType) -> None:
    """Someone else's folder is not replaced at the last moment, and the work stays for --resume."""
    with crashing(output) as transaction:
        write_rest(transaction, bundles)
        output.mkdir()
        with pytest.raises(ConfigError, match="appeared while exporting"):
            transaction.finish(manifest)
    output.rmdir()
    with begin(output, resume=True) as transaction:
        assert transaction.is_done("target/fp16.safetensors")


def test_resume_of_a_finished_export(output: Path, bundles: ModuleType) -> None:
    """Repeating the command that just succeeded is no error: there is nothing left to do."""
    bundles.make_bundle(output)
    with begin(output, resume=True, fingerprint=bundles.FINGERPRINT) as transaction:
        assert transaction.is_complete
    assert verify_bundle(Bundle.open(output)).is_ok


def test_unfinished_export_needs_resume(output: Path) -> None:
    """Finished work is not thrown away without being asked."""
    leave_unfinished(output)
    with pytest.raises(ConfigError, match="continue it with --resume, or delete that folder"), begin(output):
        pass
    with begin(output, resume=True) as transaction:
        assert transaction.is_done("a")


def test_resume_with_other_settings(output: Path) -> None:
    """Layers of two different exports do not get into one bundle."""
    leave_unfinished(output)
    other = begin(output, resume=True, fingerprint="g")
    with pytest.raises(ConfigError, match="other settings"), other:
        pass


def test_resume_without_anything_begins(output: Path) -> None:
    """``--resume`` may always be given."""
    with begin(output, resume=True) as transaction:
        assert not transaction.is_complete
    assert os.listdir(output.parent) == []


def test_nothing_is_left_of_a_refused_checkpoint(output: Path) -> None:
    """A refused checkpoint leaves no folder behind that a next run would trip over."""
    with suppress(ConfigError), begin(output) as transaction:
        with transaction.step("a"):
            transaction.write_bytes("tokenizer.json", b"{}")
        raise ConfigError("tensor x holds NaN")
    assert os.listdir(output.parent) == []


def test_two_exports_into_one_folder(output: Path) -> None:
    """The second one is refused with the first one's process number, and does not disturb it."""
    with begin(output) as first:
        for resume in (False, True):
            with pytest.raises(ConfigError, match=rf"process {os.getpid()}\) is writing"), begin(output, resume=resume):
                pass
        with first.step("still works"):
            first.write_bytes("x", b"1")


def test_lock_is_free_after_the_export(output: Path) -> None:
    """An ended export, however it ended, does not keep others out."""
    leave_unfinished(output)
    leave_partial = begin(output, resume=True)
    with leave_partial as transaction:
        assert transaction.is_done("a")


@pytest.mark.parametrize("parent", ["file/below", "x" * 300])
def test_unwritable_output(tmp_path: Path, parent: str) -> None:
    """A place that cannot be written to is a usage error that says what to do."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"cannot write into .*choose another folder with -o") as caught:
        begin(tmp_path / parent / "x.edgeprec").__enter__()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("output", [Path(), Path("."), Path("/")])
def test_output_without_a_name(output: Path) -> None:
    """The folder one stands in is no place for a new bundle."""
    with pytest.raises(ConfigError, match="cannot become a bundle"):
        begin(output)


def test_a_file_where_the_work_would_lie(output: Path) -> None:
    """A file named like the unfinished folder is not removed."""
    output.with_name("x.edgeprec.partial").write_text("precious")
    with pytest.raises(ConfigError, match="File exists"):
        begin(output).__enter__()


def test_output_can_be_checked_before_any_work(output: Path) -> None:
    """A command that reads its source first can refuse an existing output before that."""
    require_free_output(output)
    output.mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        require_free_output(output)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_unwritable_folder(output: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """No permission and a read-only disk are told the same way."""

    def refuse(*_arguments: Any, **_keywords: Any) -> None:
        raise OSError(number, os.strerror(number), str(output))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(ConfigError, match=f"cannot write into .*{os.strerror(number)}"):
        begin(output).__enter__()


def fail_after(calls: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``original`` with a disk that is full from the ``calls``-th call on."""
    left = calls

    def limited(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments)

    return limited


def make_and_return_error(make: Callable[[], object]) -> EdgePrecError | None:
    """Return the error an export ends with, None if it ends well."""
    try:
        make()
    except EdgePrecError as error:
        return error
    return None


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate"])
@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 8, 20])
def test_full_disk_is_one_sentence_and_resumes(
    output: Path, bundles: ModuleType, monkeypatch: pytest.MonkeyPatch, call: str, calls: int
) -> None:
    """A disk that fills up at any point costs nothing but the step at work."""
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail_after(calls, getattr(os, call)))
        error = make_and_return_error(lambda: bundles.make_bundle(output))
    if error is None:
        assert call == "posix_fallocate"  # there are but two files to reserve
        assert calls >= 2
        return
    assert error.exit_code == 1
    assert re.fullmatch(r"the disk is full: .* needs [\d,]+ more bytes and [\d,]+ are free; .*--resume.*", str(error))
    assert not output.exists()
    with begin(output, resume=True, fingerprint=bundles.FINGERPRINT) as transaction:
        write_rest(transaction, bundles)
        transaction.finish(bundles.make_manifest())
    assert verify_bundle(Bundle.open(output)).is_ok


def test_space_is_checked_up_front(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that cannot fit is refused before the first layer, with what is needed and what is free."""
    monkeypatch.setattr(disk, "free_bytes", lambda _folder: 10**6)
    with begin(output) as transaction:
        transaction.require_space(needed_bytes=10**6)
        with pytest.raises(EdgePrecError, match=r"needs [5-9],\d{3},\d{3} more bytes and 1,000,000 are free"):
            transaction.require_space(needed_bytes=6 * 10**6)


def test_space_already_taken_counts_on_resume(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted export has on the disk need not be free again."""
    leave_unfinished(output)
    taken = disk.allocated_bytes(output.with_name("x.edgeprec.partial"))
    monkeypatch.setattr(disk, "free_bytes", lambda _folder: 100)
    with begin(output, resume=True) as transaction:
        transaction.require_space(needed_bytes=taken + 100)


def test_file_system_that_cannot_reserve(output: Path, bundles: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks cannot be reserved, the file is written all the same."""

    def refuse(*_arguments: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    bundles.make_bundle(output)
    assert verify_bundle(Bundle.open(output)).is_ok


def test_other_disk_errors_are_told(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing card is not a traceback, and the finished steps stay."""
    leave_unfinished(output)

    def refuse(*_arguments: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write() -> None:
        with begin(output, resume=True) as transaction, monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            transaction.write_bytes("x", b"1")

    with pytest.raises(EdgePrecError, match=r"writing into .* failed: .*--resume"):
        write()
    with begin(output, resume=True) as transaction:
        assert transaction.is_done("a")
