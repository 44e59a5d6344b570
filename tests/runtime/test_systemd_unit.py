"""The unit's text: what differs by machine, what systemd itself thinks of it, and what would take a GPU away."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgeprec.cli.common import all_flags
from edgeprec.cli.settings import unknown_variables
from edgeprec.errors import ConfigError
from edgeprec.runtime import systemd_unit
from edgeprec.runtime.service.settings import ServiceSettings
from edgeprec.runtime.systemd_unit import Account, UnitFacts, command_line, drain_seconds, unit_text

ANALYZE = shutil.which("systemd-analyze")
DYNAMIC = Account(user=None, groups=("video", "render"))
FOLDER = Path(systemd_unit.__file__).parent
BREAKS_A_JETSON = (
    "PrivateDevices",
    "DevicePolicy",
    "DeviceAllow",
    "ProtectClock",
    "MemoryDenyWriteExecute",
    "ProcSubset",
    "PrivateUsers",
    "RestrictAddressFamilies",
    "SystemCallFilter",
    "RootDirectory",
    "LimitAS",
    "MemoryMax",
)


def make_facts(**changes: Any) -> UnitFacts:
    """Return the facts of a machine; ``changes`` replace some."""
    facts: dict[str, Any] = {
        "program": Path("/opt/edgeprec/bin/edgeprec"),
        "bundle": Path("/srv/pair.edgeprec"),
        "settings": "/etc/default/edgeprec",
        "drain_seconds": 30.0,
        "account": DYNAMIC,
    }
    return UnitFacts(**(facts | changes))


def settings_of(text: str) -> dict[str, list[str]]:
    """Return key -> its values, comments left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("account", [DYNAMIC, None])
def test_what_every_unit_says(account: Account | None) -> None:
    """It is started when the model answers, watched, ended by SIGTERM, and not started again where that is no use."""
    unit = settings_of(unit_text(make_facts(account=account)))
    assert unit["Type"] == ["notify"]
    assert unit["ExecStart"] == ["/opt/edgeprec/bin/edgeprec serve /srv/pair.edgeprec"]
    assert unit["EnvironmentFile"] == ["-/etc/default/edgeprec"]
    assert int(unit["WatchdogSec"][0]) >= 3 * 60  # a third of it passes between feeds, a probe may take a minute
    assert (unit["KillSignal"], unit["Restart"]) == (["SIGTERM"], ["on-failure"])
    assert unit["RestartPreventExitStatus"] == ["2 3 4"]
    assert unit["NoNewPrivileges"] == ["yes"]


@pytest.mark.parametrize("account", [DYNAMIC, None])
def test_nothing_takes_the_gpu_away(account: Account | None) -> None:
    """Lines that are known to break CUDA, or may, stand in no unit."""
    assert not settings_of(unit_text(make_facts(account=account))).keys() & set(BREAKS_A_JETSON)


@pytest.mark.parametrize("account", [DYNAMIC, None])
def test_every_hardening_line_has_its_reason(account: Account | None) -> None:
    """A comment stands right above each, so that an owner can judge it."""
    lines = unit_text(make_facts(account=account)).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("NoNewPrivileges"))
    hardening = [at for at in range(first, lines.index("[Install]")) if "=" in lines[at] and lines[at][0] != "#"]
    assert len(hardening) >= 6
    assert [lines[at] for at in hardening if not lines[at - 1].startswith("# ")] == []


@pytest.mark.parametrize("seconds", [0.0, 1.5, 30.0, 600.0])
def test_systemd_waits_longer_than_the_drain(seconds: float) -> None:
    """Or it would kill replies the server still finishes; ten seconds more go to cancelling the rest."""
    (stop,) = settings_of(unit_text(make_facts(drain_seconds=seconds)))["TimeoutStopSec"]
    assert int(stop) > seconds + 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 30.0),
        ("#EDGEPREC_DRAIN_SECONDS=5\n", 30.0),
        ("EDGEPREC_PORT=1\nEDGEPREC_DRAIN_SECONDS=120\n", 120.0),
        ('EDGEPREC_DRAIN_SECONDS="7.5"', 7.5),
        ("EDGEPREC_DRAIN_SECONDS=1\nEDGEPREC_DRAIN_SECONDS=2", 2.0),
    ],
)
def test_the_drain_time_is_read_from_the_settings(text: str, expected: float) -> None:
    """The last line counts, as for systemd; a comment does not."""
    assert drain_seconds(text, ServiceSettings(model_name="m").drain_seconds) == expected


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_a_drain_time_that_is_none(value: str) -> None:
    """It is refused at installation, not when the machine shuts down."""
    with pytest.raises(ConfigError, match="expected 0 or more seconds"):
        drain_seconds(f"EDGEPREC_DRAIN_SECONDS={value}", math.nan)


def test_who_it_runs_as() -> None:
    """A user of its own, or the owner; groups only where the machine has some, for a missing one stops the start."""
    own = settings_of(unit_text(make_facts()))
    assert (own["DynamicUser"], own["SupplementaryGroups"]) == (["yes"], ["video render"])
    owner = settings_of(unit_text(make_facts(account=Account(user="nvidia", groups=()))))
    assert owner["User"] == ["nvidia"]
    assert not {"DynamicUser", "SupplementaryGroups"} & owner.keys()


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({}, "ProtectHome", ["yes"]),
        ({"bundle": Path("/home/nvidia/pair.edgeprec")}, "ProtectHome", ["read-only"]),
        ({"program": Path("/home/nvidia/.venv/bin/edgeprec")}, "ProtectHome", ["read-only"]),
        ({"reads": (Path("/root/.local/share/uv/python"),)}, "ProtectHome", ["read-only"]),
        ({"bundle": Path("/homework/pair.edgeprec")}, "ProtectHome", ["yes"]),
        ({}, "PrivateTmp", ["yes"]),
        ({"bundle": Path("/tmp/pair.edgeprec")}, "PrivateTmp", None),
    ],
)
def test_what_it_needs_is_not_hidden(change: dict[str, Any], key: str, value: list[str] | None) -> None:
    """Where program, interpreter or bundle lie in a home or in /tmp, that folder stays visible."""
    assert settings_of(unit_text(make_facts(**change))).get(key) == value


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/srv/a b", '"/srv/a b"'),
        ("/srv/100%", "/srv/100%%"),
        ("/srv/$HOME", "/srv/$$HOME"),
        ('/srv/"x"', '"/srv/\\"x\\""'),
        ("/srv/a\\b", '"/srv/a\\\\b"'),
        ("/srv/it's", '"/srv/it\'s"'),
        ("/srv/größe", "/srv/größe"),
    ],
)
def test_odd_paths_reach_the_program_as_they_are(word: str, written: str) -> None:
    """Spaces and quotes are quoted, what systemd expands is doubled; read back by a shell's rules it is the path."""
    assert command_line("x", word) == f"x {written}"
    assert shlex.split(written)[0].replace("%%", "%").replace("$$", "$") == word


@pytest.mark.parametrize("word", ["/srv/a\nExecStartPre=/bin/sh", "/srv/\t", "/srv/\x7f"])
def test_a_path_cannot_add_lines(word: str) -> None:
    """A line break in a name would be a new setting."""
    with pytest.raises(ConfigError, match="no unit file can name"):
        unit_text(make_facts(bundle=Path(word)))


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(
    ("facts", "flags"),
    [
        ({}, ()),
        ({"account": Account(user="root", groups=())}, ()),
        ({"bundle": Path('/home/a "b" $c/100%/it\'s \\ pair.edgeprec')}, ()),
        ({"account": None, "settings": "%E/edgeprec/service.env"}, ("--user",)),
    ],
)
def test_systemd_takes_it(tmp_path: Path, facts: dict[str, Any], flags: tuple[str, ...]) -> None:
    """systemd-analyze finds nothing; it says misspelt keys on standard error only, so that must be empty."""
    file = tmp_path / "edgeprec.service"
    file.write_text(unit_text(make_facts(program=Path("/bin/true"), **facts)))
    done = verify(file, *flags)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
def test_systemd_would_find_a_slip(tmp_path: Path) -> None:
    """The test above can fail."""
    file = tmp_path / "edgeprec.service"
    file.write_text(unit_text(make_facts(program=Path("/bin/true"))).replace("WatchdogSec", "WatchdogSecs"))
    assert "WatchdogSecs" in verify(file).stderr


def verify(file: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze as a user with a runtime folder."""
    assert ANALYZE is not None
    environ = os.environ | {"XDG_RUNTIME_DIR": str(file.parent), "LC_ALL": "C"}
    return subprocess.run([ANALYZE, *flags, "verify", file], capture_output=True, text=True, env=environ)


def test_the_settings_file_names_real_settings() -> None:
    """Every line somebody may uncomment is a variable of ``edgeprec serve``, and every other one is a comment."""
    text = (FOLDER / "edgeprec.default").read_text()
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == []
    names = re.findall(r"^#(EDGEPREC_\w+)=", text, flags=re.MULTILINE)
    assert len(names) >= 6
    assert unknown_variables(dict.fromkeys(names, "1"), {"serve": all_flags()["serve"]}) == {}
