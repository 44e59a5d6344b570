"""Check that the base dependencies and onnxruntime have wheels for 64-bit ARM; nothing is installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_VERSIONS = ("3.11", "3.12")  # 3.12 is JetPack 7's
GLIBC_MINORS = (28, 27, 26, 24, 17)  # Ubuntu 22.04 and 24.04 take every one of these manylinux tags


def requirements() -> list[str]:
    """Return the base dependencies and those of the extra ``cpu``, as pyproject.toml states them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["cpu"]]


def resolve(python_version: str) -> subprocess.CompletedProcess[str]:
    """Let pip resolve the requirements for an ARM machine from wheels alone."""
    tags = [f"manylinux_2_{minor}_aarch64" for minor in GLIBC_MINORS] + ["manylinux2014_aarch64"]
    platforms = [argument for tag in tags for argument in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as target:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--target", target]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python_version, *platforms]
        return subprocess.run([*command, *requirements()], capture_output=True, text=True)


def main() -> int:
    """Resolve for every Python version; print pip's words where it fails."""
    for version in PYTHON_VERSIONS:
        done = resolve(version)
        if done.returncode:
            print(f"error: the dependencies do not resolve for aarch64 with Python {version}:\n{done.stderr}")
            return 1
        print(f"aarch64, Python {version}: {len(requirements())} requirements resolve from wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
