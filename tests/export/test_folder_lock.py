"""One process at a time in a folder, whatever way the one before ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeprec.errors import ConfigError
from edgeprec.export.folder_lock import FolderLock

HOLD = """
import sys
from pathlib import Path
from edgeprec.export.folder_lock import FolderLock
FolderLock(Path(sys.argv[1])).acquire()
sys.stdout.write("held\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def start_holder(folder: Path) -> subprocess.Popen[str]:
    """Start another process that holds the lock until it is killed, and wait until it does."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_another_process_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    """The message holds the number to look for, and a killed export keeps nobody out."""
    with start_holder(tmp_path) as holder:
        try:
            with pytest.raises(ConfigError, match=rf"process {holder.pid}\) is writing into"):
                FolderLock(tmp_path).acquire()
        finally:
            holder.kill()
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_release_frees_and_may_be_repeated(tmp_path: Path) -> None:
    """A released lock can be taken again, and releasing twice is harmless."""
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    with pytest.raises(ConfigError):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_a_longer_old_number_leaves_no_digits_behind(tmp_path: Path) -> None:
    """The number of an earlier holder does not run into the present one's."""
    (tmp_path / "lock").write_text("123456789012345\n")
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our open and our lock the holder may finish and remove the file: then two would hold different ones."""
    original = os.stat

    def replaced(path: Path, **keywords: bool) -> os.stat_result:
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").write_text("77\n")
        return original(path, **keywords)

    monkeypatch.setattr(os, "stat", replaced)
    with pytest.raises(ConfigError, match="is writing into"):
        FolderLock(tmp_path).acquire()
