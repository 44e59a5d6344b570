"""Standard streams that are closed, or whose encoding lacks a letter, are no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = ("power", "--sensor", "simulated:agx-orin")


def shell(line: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which ``$E`` is the command line and ``$1`` the first word."""
    line = line.replace("$E", f"{sys.executable} -m edgeprec")
    setting = {"PATH": "/usr/bin:/bin", "EDGEPREC_SENSOR": "none"} | environ
    return subprocess.run(["bash", "-c", line, "bash", *words], capture_output=True, text=True, env=setting)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_one_to_nowhere(pair: Path, closed: str) -> None:
    """What nobody wants to read is not written, and the work is done."""
    done = shell(f'$E run "$1" -p ab -n 4 {closed}', str(pair))
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_a_closed_output_is_not_the_next_file(pair: Path, tmp_path: Path) -> None:
    """The number of a closed stream is free: a trace opened after it must not get what is printed."""
    trace = tmp_path / "trace.jsonl"
    assert shell('$E run "$1" -p ab -n 4 --trace "$2" >&-', str(pair), str(trace)).returncode == 0
    assert all(json.loads(line) for line in trace.read_text().splitlines())


def test_a_prompt_from_a_closed_input_is_none(pair: Path) -> None:
    """It is the same as an empty one."""
    done = shell('$E run "$1" - <&-', str(pair))
    assert (done.returncode, done.stderr) == (2, "edgeprec: the prompt is empty: give at least one character\n")


def test_a_closed_input_ends_a_chat(pair: Path) -> None:
    """There is nothing to answer."""
    done = shell('$E chat "$1" <&-', str(pair))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_table_is_shown_in_ascii() -> None:
    """The sign before an uncertainty is not in it."""
    done = shell(f"$E {' '.join(SHOWN)}", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert " ?" in done.stdout


def test_json_keeps_its_letters_in_ascii() -> None:
    """They are escaped: a question mark would be another text."""
    done = shell('$E run nope -p x; $E doctor --json --sensor "replay:n\u00f6"', PYTHONIOENCODING="ascii")
    assert "n\\u00f6" in done.stdout
    assert "n\u00f6" in str(json.loads(done.stdout))
