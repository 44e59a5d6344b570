"""The extra ``export`` brings no torch: nothing on the way to a bundle may want it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

PROGRAM = """
import sys
sys.modules["torch"] = None  # importing it fails, as where it is not installed
from edgeprec.api import export_bundle
export_bundle(sys.argv[1], sys.argv[2], draft="self")
"""


def test_a_bundle_is_made_where_torch_is_not_installed(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Read, fitted, calibrated, checked and written, in a process that cannot import torch."""
    source = checkpoints.make_checkpoint(tmp_path / "model", num_layers=2, dtype="fp16")
    output = tmp_path / "pair.edgeprec"
    command = [sys.executable, "-c", PROGRAM, str(source), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (output / "calibration.json").exists()
