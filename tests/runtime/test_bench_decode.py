"""The decoding benchmark runs from end to end on a CPU with a model of toy size, and counts what it says it counts."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Import ``scripts/bench_decode.py``, which imports its neighbours."""
    folder = str(Path(__file__).parents[2] / "scripts")
    sys.path.append(folder)
    try:
        return import_module("bench_decode")
    finally:
        sys.path.remove(folder)


def test_table_of_a_toy(
    script: ModuleType,
    checkpoints: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every way of decoding has a row; exact is FP16's text in all of them."""
    made = checkpoints.make_checkpoint(tmp_path / "toy", "llama", vocab_size=288, max_positions=512)
    output = tmp_path / "rows.json"
    flags = ["--shape", "none", "--prompts", "1", "--tokens", "6", "--context", "512", "--json", str(output)]
    monkeypatch.setattr(sys, "argv", ["bench_decode.py", str(made), *flags])
    script.main()
    rows = json.loads(output.read_text())
    assert list(rows) == list(script.configurations(6, has_draft=False))
    assert all(row["identical"] == 1 for name, row in rows.items() if name != "int4")
    assert rows["fp16"]["drafted"] == 0
    assert rows["exact, self, K=3"]["drafted"] > 0
    printed = capsys.readouterr().out
    assert "| exact, self, K=5 |" in printed
    assert "fallbacks: none" in printed


def test_ways_with_a_draft_model(script: ModuleType) -> None:
    """A draft adds the research's fixed five tokens, and the adaptive length."""
    added = set(script.configurations(6, has_draft=True)) - set(script.configurations(6, has_draft=False))
    assert added == {"exact, 1B-shaped INT4 draft, K=5", "exact, 1B-shaped INT4 draft, adaptive"}
