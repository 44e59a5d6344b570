"""Build the wheel in a clean copy of the tree and check it.

It must hold ``edgeprec`` and nothing else at top level, every file of the package folders, and be importable where
only the base dependencies are installed: quickly, and without a heavy library being loaded. With the extra ``cpu``
alone it must run a bundle that was exported elsewhere, to the same tokens.
"""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_SOURCE = ("*.edgeprec", "*.egg-info", "__pycache__", "*.pyc", "build", "dist", ".*")
HEAVY = ("onnx", "onnxruntime", "torch", "jtop", "pynvml", "triton", "transformers")
IMPORT_LIMIT_MS = 100.0
PROBE = """
import sys, time
start = time.perf_counter()
import edgeprec
print((time.perf_counter() - start) * 1e3, edgeprec.__file__, *sorted(sys.modules))
"""
RUN_ONLY = "import edgeprec.api, edgeprec.runtime.session, edgeprec.cli.run"


def package_folders(tree: Path) -> dict[str, Path]:
    """Return dotted package name -> folder, by the map in pyproject.toml."""
    setuptools = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = setuptools["package-dir"]
    return {name: tree / folders.get(name, name.replace(".", "/")) for name in setuptools["packages"]}


def expected_files(tree: Path) -> set[str]:
    """Return the paths the wheel must have: every file directly in a package folder or in a data folder below it."""
    data = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    return {
        f"{name.replace('.', '/')}/{file.relative_to(folder).as_posix()}"
        for name, folder in package_folders(tree).items()
        for pattern in ("*", *(pattern for pattern in data.get(name, ()) if "/" in pattern))
        for file in folder.glob(pattern)
        if file.is_file() and file.suffix != ".pyc" and not file.name.startswith(".")
    }


def build(tree: Path, work: Path) -> Path:
    """Build source archive and wheel; return the wheel. What the build says is shown when it fails."""
    command = [sys.executable, "-m", "build", "--outdir", work / "dist", tree]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nerror: the wheel cannot be built")
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel


def content_faults(wheel: Path, expected: set[str]) -> list[str]:
    """Return what the wheel lacks and what it should not hold."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    faults = [f"the wheel lacks {name}" for name in sorted(expected - names)]
    return faults + [f"the wheel should not hold {name}" for name in sorted(names - expected)]


def import_faults(environment: Path, work: Path) -> list[str]:
    """Import the installed wheel three times."""
    python = environment / "bin" / "python"
    probes = [
        subprocess.run([python, "-c", PROBE], check=True, cwd=work, capture_output=True, text=True).stdout.split()
        for _ in range(3)
    ]
    subprocess.run([environment / "bin" / "edgeprec", "--version"], check=True, cwd=work)
    subprocess.run([python, "-c", RUN_ONLY], check=True, cwd=work)
    fastest_ms = min(float(probe[0]) for probe in probes)
    print(f"import edgeprec: {fastest_ms:.1f} ms")
    faults = [f"import edgeprec loads {name}" for name in HEAVY if name in probes[0][2:]]
    if not Path(probes[0][1]).is_relative_to(environment):
        faults.append(f"edgeprec was imported from {probes[0][1]}, not from the wheel")
    if fastest_ms > IMPORT_LIMIT_MS:
        faults.append(f"import edgeprec takes {fastest_ms:.0f} ms, at most {IMPORT_LIMIT_MS:.0f} are allowed")
    return faults


def install(environment: Path, requirement: str) -> None:
    """Install the wheel, with extras where ``requirement`` names some."""
    subprocess.run([environment / "bin" / "python", "-m", "pip", "install", "-qq", requirement], check=True)


def run_faults(environment: Path, wheel: Path, work: Path) -> list[str]:
    """Export a tiny bundle here, and run it here and in the new environment, which has no export packages."""
    bundle = export_tiny_bundle(work)
    install(environment, f"{wheel}[cpu]")
    here, there = (token_digest(python, bundle, work) for python in (sys.executable, environment / "bin" / "python"))
    return [] if here == there else [f"a copied bundle gives other tokens in the new environment: {there} for {here}"]


def export_tiny_bundle(work: Path) -> Path:
    """Make a random checkpoint and export it with this environment's packages."""
    factory = runpy.run_path(str(ROOT / "tests" / "factories" / "checkpoints.py"), run_name="factory_of_checkpoints")
    factory["make_checkpoint"](work / "checkpoint", "llama")
    command = [sys.executable, "-m", "edgeprec", "export", work / "checkpoint", "-o", work / "tiny.edgeprec"]
    subprocess.run([*command, "--quiet"], check=True, cwd=work)
    return work / "tiny.edgeprec"


def token_digest(python: str | Path, bundle: Path, work: Path) -> str:
    """Run the bundle and return the digest of its tokens."""
    command = [python, "-m", "edgeprec", "run", bundle, "-p", "hello there", "-n", "16", "--ignore-eos", "--json"]
    done = subprocess.run(command, check=True, cwd=work, capture_output=True, text=True)
    return str(json.loads(done.stdout)["token_sha256"])


def main() -> int:
    """Build, look inside, install and import."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tree = Path(shutil.copytree(ROOT, work / "tree", symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCE)))
        expected = expected_files(tree)
        wheel = build(tree, work)
        environment = work / "venv"
        venv.create(environment, with_pip=True)
        install(environment, str(wheel))
        faults = (
            content_faults(wheel, expected) + import_faults(environment, work) + run_faults(environment, wheel, work)
        )
        print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB, {len(expected)} files")
    for fault in faults:
        print(f"error: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
