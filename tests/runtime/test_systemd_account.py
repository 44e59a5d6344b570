"""Who the service runs as follows from who may read program and bundle."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.errors import ConfigError
from edgeprec.runtime import systemd_account
from edgeprec.runtime.systemd_account import account_for, known_groups


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bundle of two files everybody may read; the way to the test's folder counts as open."""
    monkeypatch.setattr(
        systemd_account, "_parents", lambda path: [p for p in path.parents if p.is_relative_to(tmp_path)]
    )
    tmp_path.chmod(0o755)
    folder = tmp_path / "data" / "pair.edgeprec"
    (folder / "target").mkdir(parents=True)
    for name in ("manifest.json", "target/int4.safetensors"):
        (folder / name).write_bytes(b"x")
        (folder / name).chmod(0o644)
    for path in (folder.parent, folder, folder / "target"):
        path.chmod(0o755)
    return folder


def test_what_everybody_may_read_runs_as_a_user_of_its_own(bundle: Path) -> None:
    """The least rights where nothing speaks against them."""
    account = account_for(bundle, (Path("/bin/sh"),), ["video"])
    assert (account.user, account.groups) == (None, ("video",))


@pytest.mark.parametrize("closed", ["..", ".", "target", "manifest.json", "target/int4.safetensors"])
def test_what_is_closed_runs_as_its_owner(bundle: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """One closed folder on the way or one closed file is enough."""
    path = (bundle / closed).resolve()
    path.chmod(0o700 if path.is_dir() else 0o600)
    stat = Path.stat

    def owned(self: Path, **more: bool) -> os.stat_result:
        found = stat(self, **more)
        return os.stat_result((found.st_mode, 0, 0, 1, 4711, 4711, 0, 0, 0, 0))

    monkeypatch.setattr(Path, "stat", owned)
    monkeypatch.setattr(systemd_account.pwd, "getpwuid", lambda number: SimpleNamespace(pw_name=f"user{number}"))
    assert account_for(bundle, (), ["video"]).user == "user4711"


def test_what_only_root_may_read_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not run as root; the message names the closed place and the way out."""
    (bundle / "manifest.json").chmod(0o600)
    stat = Path.stat

    def owned(self: Path, **more: bool) -> os.stat_result:
        return os.stat_result((stat(self, **more).st_mode, 0, 0, 1, 0, 0, 0, 0, 0, 0))

    monkeypatch.setattr(Path, "stat", owned)
    with pytest.raises(ConfigError, match=r"only root can read .*manifest\.json.*chmod -R a\+rX"):
        account_for(bundle, (), [])


def test_only_groups_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that names a missing group does not start."""
    groups = [SimpleNamespace(gr_name=name) for name in ("root", "render", "video", "audio")]
    monkeypatch.setattr(grp, "getgrall", lambda: groups)
    assert known_groups() == ("video", "render")
