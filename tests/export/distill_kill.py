"""Distill and die: ``python distill_kill.py TARGET OUTPUT STEP`` sends itself SIGKILL once STEP steps are done."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from edgeprec.export.distill import distill
from edgeprec.export.distill_settings import DistillSettings
from edgeprec.export.progress import ProgressEvent

TOY = DistillSettings(
    layers=1,
    steps=40,
    sample_tokens=600,
    sample_rows=16,
    sequence_tokens=24,
    rows_per_step=8,
    learning_rate=5e-3,
    probe_tokens=16,
    device="cpu",
)


def main(target: str, output: str, step: str) -> None:
    """Run until the kill."""

    def progress(event: ProgressEvent) -> None:
        if event.stage == "train" and event.done == int(step):
            os.kill(os.getpid(), signal.SIGKILL)

    distill(target, Path(output), TOY, progress=progress)


if __name__ == "__main__":
    main(*sys.argv[1:])
