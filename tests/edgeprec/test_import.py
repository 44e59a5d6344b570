"""``import edgeprec`` is light: what it does not need, it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("jtop", "onnx", "onnxruntime", "pynvml", "tensorrt", "tokenizers", "torch", "transformers", "triton")
PROBE = "import sys, {module}; print(*sorted(sys.modules))"


def modules_after(statement: str) -> set[str]:
    """Return the modules a new interpreter holds after importing ``statement``."""
    command = [sys.executable, "-c", PROBE.format(module=statement)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("module", ["edgeprec", "edgeprec.cli", "edgeprec.config", "edgeprec.gears"])
def test_import_loads_no_heavy_library(module: str) -> None:
    """An embedded application pays for an engine only when it loads a bundle."""
    assert not modules_after(module) & set(HEAVY)


def test_import_of_edgeprec_needs_no_numpy() -> None:
    """The bare import is a name and lazy attributes: it stays far under 100 ms even on a slow board."""
    assert "numpy" not in modules_after("edgeprec")


BLOCKED = ("gguf", "huggingface_hub", "jtop", "ml_dtypes", "onnx", "onnxruntime", "torch", "transformers", "triton")
RUNNING = "edgeprec.api, edgeprec.runtime.session, edgeprec.cli.run, edgeprec.cli.doctor"


def test_running_needs_no_package_of_an_extra() -> None:
    """A device that only runs bundles installs neither the export packages nor another engine."""
    block = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED!r})); import {RUNNING}"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_can_be_listed_without_heavy_libraries() -> None:
    """``--help`` of any command, and checking a settings file, stay fast."""
    loaded = modules_after("edgeprec.cli.common; edgeprec.cli.common.all_flags()")
    assert not loaded & set(HEAVY)
