"""Lines of the log carry a priority where systemd's journal reads them, and nowhere else."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeprec.cli.journal import is_journal, with_priority

SAYS_A_WARNING = """
import logging
from edgeprec.cli.common import _set_verbosity
_set_verbosity(None, None, 1)
logging.getLogger("edgeprec.x").warning("the sensor died")
logging.getLogger("edgeprec.x").info("GET /ready 200")
"""


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.CRITICAL, "<3>a\n<3>b"),
        (logging.ERROR, "<3>a\n<3>b"),
        (logging.WARNING, "<4>a\n<4>b"),
        (logging.INFO, "<6>a\n<6>b"),
        (logging.DEBUG, "<7>a\n<7>b"),
        (1, "<7>a\n<7>b"),
    ],
)
def test_every_line_has_the_priority(level: int, expected: str) -> None:
    """A traceback stays together with the error it belongs to."""
    assert with_priority("a\nb", level) == expected


def test_the_journal_is_known_by_its_stream(tmp_path: Path) -> None:
    """A stream that was redirected elsewhere is not the journal's, though the variable is inherited."""
    with (tmp_path / "journal").open("w") as journal, (tmp_path / "other").open("w") as other:
        status = os.fstat(journal.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert is_journal(environ, journal.fileno())
        assert not is_journal(environ, other.fileno())
        assert not is_journal({}, journal.fileno())
        assert not is_journal({"JOURNAL_STREAM": "nonsense"}, journal.fileno())
        closed = os.dup(other.fileno())
        os.close(closed)
        assert not is_journal(environ, closed)


@pytest.mark.parametrize("reads", [True, False])
def test_the_commands_log_uses_it(tmp_path: Path, reads: bool) -> None:
    """With the journal behind standard error each line begins with its priority; a person sees none."""
    with (tmp_path / "stderr").open("w+") as stderr:
        status = os.fstat(stderr.fileno())
        environ = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
        if reads:
            environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
        subprocess.run([sys.executable, "-c", SAYS_A_WARNING], check=True, stderr=stderr, env=environ)
        stderr.seek(0)
        lines = stderr.read().splitlines()
    warning, info = ("<4>", "<6>") if reads else ("", "")
    assert lines == [f"{warning}edgeprec: warning: the sensor died", f"{info}edgeprec: info: GET /ready 200"]
