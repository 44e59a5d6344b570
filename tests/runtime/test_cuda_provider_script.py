"""``scripts/check_cuda_provider.py`` with the CPU provider in the GPU's place: what it compares and when it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from edgeprec.runtime.engine_onnxruntime_gpu import PROVIDERS, Provider

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(SCRIPTS)
    yield import_module("check_cuda_provider")
    sys.modules.pop("check_cuda_provider", None)


def test_agreement_counts_leading_tokens(script: ModuleType) -> None:
    """The first token that differs ends the agreement; so does the shorter text."""
    assert [script.agreement([1, 2, 3], other) for other in ([1, 2, 3], [1, 9, 3], [9], [1, 2])] == [3, 1, 0, 2]


def test_rows_carry_speeds_agreement_and_fallbacks(script: ModuleType) -> None:
    """Medians of both, how many replies are the same, and what fell back."""

    def reply(tokens: list[int], speed: float, fallbacks: tuple[str, ...] = ()) -> SimpleNamespace:
        return SimpleNamespace(tokens=tokens, stats=SimpleNamespace(tokens_per_s=speed, fallbacks=fallbacks))

    cpu, gpu = [reply([1, 2], 10.0), reply([3, 4], 30.0)], [reply([1, 2], 90.0, ("a note",)), reply([3, 5], 110.0)]
    assert script.compare("fp16", cpu, gpu) == {
        "mode": "fp16",
        "cpu_tokens_per_s": 20.0,
        "gpu_tokens_per_s": 100.0,
        "identical_replies": 1,
        "replies": 2,
        "shortest_agreement": 1,
        "fallbacks": ["a note"],
    }


@pytest.mark.parametrize(("least", "code"), [("1", 0), ("99", 1)])
def test_it_runs_both_providers(
    script: ModuleType, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: str, code: int
) -> None:
    """From the command line to the file of figures; too short an agreement of fp16 is a failure."""
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name="CPUExecutionProvider", device="cpu"))
    out = tmp_path / "figures.json"
    flags = ["-n", "4", "--prompts", "1", "--mode", "fp16", "exact", "--least", least, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["check_cuda_provider.py", str(tiny_pair), *flags])
    assert script.main() == code
    figures = json.loads(out.read_text())
    assert figures["provider"] == "cuda"
    assert [row["mode"] for row in figures["modes"]] == ["fp16", "exact"]
    assert all(row["gpu_tokens_per_s"] > 0 for row in figures["modes"])
