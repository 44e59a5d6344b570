"""The batch sweep runs from end to end on a CPU with a model of toy size; its file is one that ``project`` reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.bench_results import read_sweeps
from edgeprec.devices import simulated
from edgeprec.devices.meter import Meter
from edgeprec.projection import Load, project


def load_script(name: str) -> ModuleType:
    """Import a file of ``scripts``, which imports its neighbours."""
    folder = str(Path(__file__).parents[2] / "scripts")
    sys.path.append(folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Import ``scripts/bench_batches.py``."""
    return load_script("bench_batches")


@pytest.fixture
def sweep(
    script: ModuleType, checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Return ``sweep(*flags)``, which runs the script on a toy and returns the file of results."""
    made = checkpoints.make_checkpoint(tmp_path / "toy", "llama", vocab_size=288, max_positions=512)
    saved = tmp_path / "sweep.jsonl"
    common = ["--shape", "none", "--group-size", "32", "--prompt-tokens", "9", "--tokens", "8", "--seconds", "0.01"]

    def run(*flags: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["bench_batches.py", str(made), *common, "--save", str(saved), *flags])
        script.main()
        return saved

    return run


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sweep_of_a_toy(sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Every batch and way has a line, counts what it says, and is not measured twice."""
    flags = ("--batches", "1,3", "--lengths", "2", "--repeats", "2")
    records = read(sweep(*flags))
    assert [(r["test"]["sequences"], r["mode"], r["draft_length"]) for r in records] == [
        (batch, mode, length)
        for batch in (1, 3)
        for mode, length in (("fp16", None), ("int4", None), ("exact", 2), ("exact", "adaptive"))
    ]
    for record in records:
        assert record["tokens_per_s"]["count"] == 2
        assert record["energy"] is None
        assert record["energy_note"] == "no meter: this is no GPU"
        assert record["batch"]["mean_sequences"] == record["test"]["sequences"]
        assert record["is_complete"]
    fixed = records[2]
    assert fixed["drafted"] > 0
    assert 1.0 <= fixed["batch"]["tokens_per_round"] <= 3.0
    assert set(fixed["batch"]["rounds_by_cap"]) >= {"2"}
    printed = capsys.readouterr().out
    assert "| 3 | self adaptive |" in printed
    assert "self K=2: " in printed
    sweep(*flags)
    assert len(read(sweep(*flags))) == len(records)
    assert capsys.readouterr().out.count("warm-up") == 0


def test_no_time_at_all(sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A limit that is over before anything was measured says so; a later run goes on."""
    assert not sweep("--batches", "1", "--limit-s", "0").exists()
    assert "time is up" in capsys.readouterr().out
    assert len(read(sweep("--batches", "1", "--only", "fp16"))) == 1


def test_damaged_lines_are_measured_again(sweep: Callable[..., Path]) -> None:
    """A line that was cut off does not stop the sweep."""
    saved = sweep("--batches", "1", "--only", "fp16")
    saved.write_text(saved.read_text()[:-40] + "\n")
    assert len(sweep("--batches", "1", "--only", "fp16").read_text().splitlines()) == 2


def test_way_that_cannot_run_is_left_out(
    script: ModuleType, sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are measured all the same."""
    run = script.Bench.run

    def broken(bench: Any, case: Any, *args: Any, **kwargs: Any) -> Any:
        if case.config.mode == "int4":
            raise RuntimeError("CUDA out of memory")
        return run(bench, case, *args, **kwargs)

    monkeypatch.setattr(script.Bench, "run", broken)
    assert [record["mode"] for record in read(sweep("--batches", "2", "--only", "fp16,int4"))] == ["fp16"]
    assert "left out: CUDA out of memory" in capsys.readouterr().out


def test_joules_of_a_sweep(
    script: ModuleType, sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A meter's total over each window, prefill and decoding apart, idle subtracted, in the file and in the table."""
    open_bench = script.open_bench
    monkeypatch.setattr(script, "IDLE_S", 0.4)
    with simulated("agx-orin") as board:

        def with_meter(target: Any, draft: Any, meter: Any, *rest: Any) -> Any:
            return open_bench(target, draft, Meter(board.sensor(), period_ms=20), *rest)

        monkeypatch.setattr(script, "open_bench", with_meter)
        (record,) = read(sweep("--batches", "2", "--only", "fp16", "--seconds", "0.6"))
    energy = record["energy"]
    assert energy["tokens"] > 2 * 8
    assert 0.0 < energy["decode_joules_per_token"]["mean"] < energy["joules_per_token"]["mean"]
    assert energy["joules_per_token_above_idle"]["mean"] < energy["joules_per_token"]["mean"]
    assert {"prefill", "decode", "between"} <= set(energy["by_phase"])
    assert f"| {energy['joules_per_token']['mean']:.4f} |" in capsys.readouterr().out
    (found,), _ = read_sweeps(json.dumps(record), where="sweep.jsonl")
    assert found.points[2].joules_per_token.value == energy["joules_per_token"]["mean"]


def with_energy(record: dict[str, Any], rate: float, joules: float) -> dict[str, Any]:
    """Return a record with another speed, and with energy."""
    spread = {"mean": joules, "stdev": joules / 50, "count": 2}
    energy = {
        "joules_per_token": spread,
        "joules_per_token_above_idle": spread,
        "decode_joules_per_token": spread,
        "watts": {"mean": 500.0, "stdev": 1.0, "count": 2},
        "plus_minus_joules": 1.0,
        "tokens": 1000,
        "is_total": True,
        "rail": "gpu 0",
        "scope": "gpu",
    }
    return record | {"tokens_per_s": {"mean": rate, "stdev": 1.0, "count": 2}, "energy": energy}


def test_project_reads_the_file(sweep: Callable[..., Path], tmp_path: Path) -> None:
    """The sweep of one way is one of its sweeps, by batch."""
    records = read(sweep("--batches", "1,2,4", "--only", "fp16"))
    measured = [with_energy(record, 100.0 * 2**at, 1.0 / 2**at) for at, record in enumerate(records)]
    sweeps, remarks = read_sweeps("\n".join(map(json.dumps, measured)), where="sweep.jsonl")
    assert remarks == []
    assert sorted(sweeps[0].points) == [1, 2, 4]
    load = Load(requests_per_s=1.0, tokens_per_request=100.0, batches={2: 1.0})
    assert project(sweeps[0].measured, load).joules_per_token.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ({1: 2.0, 4: 1.5, 16: 0.8}, "stops paying in speed between batch 4 and 16; stops paying in joules between"),
        ({1: 2.0, 4: 1.1}, "pays in speed at every batch measured, 1 to 4; "),
        ({1: 0.9, 4: 0.5}, "pays in speed at no batch measured; "),
        ({1: 0.9, 4: 1.2, 16: 0.5}, "pays in speed at batch 4, not at 1, 16; "),
    ],
)
def test_where_speculation_stops_paying(sweep: Callable[..., Path], gains: dict[int, float], expected: str) -> None:
    """From ratios to FP16 of the same batch."""
    table = load_script("batch_table")
    (plain,) = read(sweep("--batches", "1", "--only", "fp16"))
    records = []
    for batch, gain in gains.items():
        test = {"test": plain["test"] | {"sequences": batch}}
        records.append(with_energy(plain | test, 100.0, 1.0))
        drafted = {"mode": "exact", "drafter": "model", "draft_length": 5, "acceptance_rate": 0.5}
        records.append(with_energy(plain | test | drafted, 100.0 * gain, 1.0 / gain))
    (line,) = table.crossovers(records)
    assert line.startswith(f"model K=5: {expected}")
    assert f"| {next(iter(gains))} | model K=5 | {100.0 * next(iter(gains.values())):.1f}" in table.batch_table(records)
