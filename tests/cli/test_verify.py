"""``edgeprec verify``: exit 0 and one line for an intact bundle, exit 3 and every fault for another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def root(tmp_path: Path, bundles: ModuleType) -> Path:
    """Return a whole bundle."""
    path: Path = bundles.make_bundle(tmp_path / "pair.edgeprec")
    return path


def flip_byte(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def test_intact_bundle(root: Path, invoke: Callable[..., Any]) -> None:
    """A person reads that all is well, and how much was read."""
    outcome = invoke("verify", str(root))
    assert (outcome.code, outcome.err) == (0, "")
    assert "6 files" in outcome.out
    assert "every one as exported" in outcome.out


def test_hard_links_are_named_because_they_do_not_run(root: Path, tmp_path: Path, invoke: Callable[..., Any]) -> None:
    """What verifies also runs: ONNX Runtime refuses weights that have several names."""
    os.link(root / "target/int4.safetensors", tmp_path / "backup")
    outcome = invoke("verify", str(root))
    assert outcome.code == 3
    assert outcome.out.startswith("unfit    target/int4.safetensors: 2 hard links, onnxruntime reads")
    assert outcome.out.count("\n") == 1


def test_quiet(root: Path, invoke: Callable[..., Any]) -> None:
    """A script reads the exit code alone."""
    outcome = invoke("verify", str(root), "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_damaged_bundle_names_every_fault(root: Path, invoke: Callable[..., Any]) -> None:
    """Each fault is a line, the error is one more, and the exit code says what kind it is."""
    flip_byte(root / "target/int4.safetensors")
    (root / "generation.json").unlink()
    (root / "notes").write_text("x")
    outcome = invoke("verify", str(root))
    assert outcome.code == 3
    starts = [line.split(":")[0].split() for line in outcome.out.splitlines()]
    assert starts == [["missing", "generation.json"], ["damaged", "target/int4.safetensors"], ["extra", "notes"]]
    assert "problems: 3" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("is_damaged", [False, True])
def test_json(root: Path, invoke: Callable[..., Any], is_damaged: bool) -> None:
    """JSON is one object on standard output, whatever was found; the exit code is the same as without."""
    if is_damaged:
        flip_byte(root / "target/fp16.safetensors")
    outcome = invoke("verify", str(root), "--json")
    values = json.loads(outcome.out)
    assert values["ok"] is not is_damaged
    assert [problem["path"] for problem in values["problems"]] == ["target/fp16.safetensors"] * is_damaged
    assert values["files"] == 6
    assert (outcome.code, outcome.err) == (3 if is_damaged else 0, "")


def test_damaged_manifest(root: Path, invoke: Callable[..., Any]) -> None:
    """bundle.json itself is checked first."""
    flip_byte(root / "bundle.json")
    outcome = invoke("verify", str(root))
    assert outcome.code == 3
    assert "bundle.json" in outcome.err
    assert outcome.err.count("\n") == 1


def test_no_bundle(tmp_path: Path, invoke: Callable[..., Any]) -> None:
    """A path without a bundle says how to make one."""
    outcome = invoke("verify", str(tmp_path / "absent"))
    assert outcome.code == 3
    assert "edgeprec export" in outcome.err


def test_names_cannot_steer_the_terminal(root: Path, invoke: Callable[..., Any]) -> None:
    """A file name with control characters is shown without them."""
    (root / "a\x1b[2Jb").write_text("x")
    outcome = invoke("verify", str(root))
    assert "extra    a[2Jb" in outcome.out
    assert "\x1b" not in outcome.out


def test_help_has_an_example(invoke: Callable[..., Any]) -> None:
    """The help text shows a command that can be typed."""
    assert "edgeprec verify smollm2.edgeprec" in invoke("verify", "--help").out
