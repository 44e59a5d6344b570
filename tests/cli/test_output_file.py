"""Files beside a command's output: refused early, written whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeprec.cli import output_file
from edgeprec.cli.output_file import check_writable, write_whole
from edgeprec.errors import ConfigError


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    """Nothing else is left in the folder."""
    path = tmp_path / "report.html"
    path.write_text("old")
    check_writable(path, flag="--report")
    write_whole(path, "new ë")
    assert path.read_text(encoding="utf-8") == "new ë"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the new file, not the old one."""
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_file, "_umask", fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "expected"), [("absent/report.html", "does not exist; make it first"), (".", "is a folder")]
)
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    """The flag and the path are in the sentence."""
    with pytest.raises(ConfigError, match=expected) as caught:
        check_writable(tmp_path / name, flag="--report")
    assert str(caught.value).startswith("--report ")


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the work, not after it."""
    monkeypatch.setattr(output_file.os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="permission denied"):
        check_writable(tmp_path / "report.html", flag="--report")
