"""The attention kernels go through the compiler for the GPUs they are made for; the interpreter would not notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compile_attention.py"


@pytest.mark.parametrize("capability", [80, 87, 90])
def test_attention_compiles_and_keeps_its_values_in_registers(capability: int, tmp_path: Path) -> None:
    """In a process of its own, where Triton's interpreter is off, with an empty cache: every kernel is ok."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--sm", str(capability)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(lines) == 18
    assert all(line.endswith(": ok") for line in lines), done.stdout
