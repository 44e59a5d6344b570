"""The batch sweep runs from end to end on a CPU with a pair of toy size; its file is one that ``project`` reads."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.bench_results import read_sweeps
from edgeprec.devices import simulated
from edgeprec.devices.meter import Meter
from edgeprec.errors import ConfigError
from edgeprec.projection import Load, project
from edgeprec.runtime.batch_caps import CapPolicy


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    """Import ``scripts/bench_batches.py``."""
    return load_script("bench_batches")


@pytest.fixture
def sweep(
    script: ModuleType, checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Return ``sweep(*flags)``, which runs the script on a toy pair and returns the file of results."""
    common = {"vocab_size": 288, "max_positions": 512}
    made = checkpoints.make_checkpoint(tmp_path / "toy", "llama", **common)
    draft = checkpoints.make_checkpoint(tmp_path / "draft", "llama", **common, num_layers=1, seed=3)
    saved = tmp_path / "sweep.jsonl"
    words = ["--shape", "none", "--group-size", "32", "--prompt-tokens", "90", "--tokens", "8", "--seconds", "0.05"]
    words += ["--draft", str(draft), "--repeats", "1", "-o", str(saved)]

    def run(*flags: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["bench_batches.py", str(made), *words, *flags])
        script.main()
        return saved

    return run


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def ways(path: Path) -> list[tuple[int, str]]:
    """Return batch and way of every line."""
    found = []
    for record in read(path):
        drafts = f"{record['drafter']} {record['draft_length']}".replace("model", "draft")
        found.append((record["test"]["sequences"], record["mode"] if record["drafter"] is None else drafts))
    return found


def test_sweep_of_a_toy(sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Every batch and way has a line, the main ones first; each counts what it says, and is not measured twice."""
    flags = ("--batches", "1,3", "--configs", "draft K=1,fp16,int4,draft K=3", "--repeats", "2")
    saved = sweep(*flags)
    main = ("fp16", "int4", "draft 3")
    assert ways(saved) == [*((batch, way) for batch in (1, 3) for way in main), (1, "draft 1"), (3, "draft 1")]
    records = read(saved)
    for record in records:
        assert record["tokens_per_s"]["count"] == 2
        assert (record["energy"], record["energy_note"]) == (None, "no meter: this is no GPU")
        assert record["batch"]["mean_sequences"] == pytest.approx(record["test"]["sequences"])
        assert record["is_complete"]
        assert (record["test"]["prompt_set"], record["ignores_eos"]) == ("test", False)
        assert 0.0 <= record["loop_share"] <= 1.0
        assert record["by_kind"]["question"]["new_tokens"] > 0
        assert record["graphs"]["captured"] == 0
    fixed = records[2]
    assert (fixed["drafter"], fixed["draft_length"], fixed["model"]["draft"]) == ("model", 3, "draft")
    assert fixed["drafted"] > 0
    assert 1.0 <= fixed["batch"]["tokens_per_round"] <= 4.0
    assert set(fixed["batch"]["rounds_by_cap"]) >= {"3"}
    printed = capsys.readouterr().out
    assert "| 3 | draft K=1 |" in printed
    assert "draft K=3: " in printed
    sweep(*flags)
    assert len(read(saved)) == len(records)
    assert capsys.readouterr().out.count("warm-up") == 0


def test_other_blocks_are_another_model(sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """INT4 in blocks of another size is measured anew beside the older row, and the table has the asked one alone."""
    flags = ("--batches", "1", "--configs", "fp16,int4")
    sweep(*flags)
    capsys.readouterr()
    records = read(sweep(*flags, "--group-size", "64"))
    assert [(r["mode"], r["model"]["group_size"]) for r in records] == [
        ("fp16", 32),
        ("int4", 32),
        ("fp16", 64),
        ("int4", 64),
    ]
    printed = capsys.readouterr().out
    assert printed.count("| 1 | int4 |") == 1
    assert printed.count("warm-up") == 2


def test_ends_of_text_end_replies(sweep: Callable[..., Path], script: ModuleType) -> None:
    """A reply is as long as its limit or shorter, and the next prompt takes its slot: more replies than slots."""
    seen: list[Any] = []
    repeat = script.BatchBench.repeat

    def watched(bench: Any, case: Any, number: int) -> Any:
        seen.append(repeat(bench, case, number))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patched:
        rounds = iter(range(30))
        patched.setattr(script.BatchBench, "repeat", watched)
        patched.setattr(script.BatchBench, "_is_over", lambda bench: next(rounds) == 20)
        sweep("--batches", "2", "--configs", "fp16", "--prompt-tokens", "300")
    generated = seen[0].generated
    assert len(generated) > 4
    assert len({one.id for one in generated}) == len(generated)
    assert [one.kind for one in generated[:4]] == ["prose", "question", "code", "passage"]
    assert max(one.new_tokens for one in generated) == 8
    assert generated[0].new_tokens == 4  # the first replies end at even distances


def test_adaptive_drafts_capture_nothing_on_the_clock(
    script: ModuleType, sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it may choose has run before, whatever is accepted: no pass of a repeat is the first of its kind."""
    first: list[int] = []
    repeat = script.BatchBench.repeat
    caps = itertools.cycle([1, 1, 0, 0, 0, 2, 3, 0, 0, 4, 5, 1, 6, 7])
    monkeypatch.setattr(CapPolicy, "cap", lambda *args, **facts: next(caps))

    def watched(bench: Any, case: Any, number: int) -> Any:
        before = bench.first_passes()
        found = repeat(bench, case, number)
        first.append(bench.first_passes() - before)
        return found

    asked = itertools.count(1)
    monkeypatch.setattr(script.BatchBench, "_is_over", lambda bench: next(asked) % 40 == 0)
    monkeypatch.setattr(script.BatchBench, "repeat", watched)
    records = read(sweep("--batches", "1,2", "--configs", "draft adaptive", "--tokens", "24"))
    assert first == [0, 0]
    assert [record["draft_length"] for record in records] == ["adaptive"] * 2
    assert all(len(record["batch"]["rounds_by_cap"]) > 4 for record in records)


def test_draft_that_is_the_target(sweep: Callable[..., Path]) -> None:
    """Self drafts have rows of their own."""
    assert ways(sweep("--batches", "2", "--configs", "self K=2")) == [(2, "self 2")]


def test_unknown_way_is_refused(sweep: Callable[..., Path]) -> None:
    """Before anything is measured, with what there is."""
    with pytest.raises(ConfigError, match="--configs has 'draft K=9', expected some of fp16, int4"):
        sweep("--batches", "1", "--configs", "fp16,draft K=9")


def test_unknown_block_size_is_refused(sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks that no kernel takes are refused with those that are taken, before anything is loaded."""
    with pytest.raises(SystemExit):
        sweep("--batches", "1", "--group-size", "16")
    assert "argument --group-size: invalid choice: 16 (choose from 32, 64, 128)" in capsys.readouterr().err


def test_no_time_at_all(sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A limit that is over before anything was measured says so; a later run goes on."""
    assert not sweep("--batches", "1", "--limit-s", "0").exists()
    printed = capsys.readouterr().out
    assert "time is up" in printed
    assert "nothing was measured" in printed
    assert len(read(sweep("--batches", "1", "--configs", "fp16"))) == 1


def test_killed_in_the_middle(
    script: ModuleType, sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The repeats until then are in the file and in the table, and the row is measured again as a whole."""
    repeat = script.BatchBench.repeat

    def killed(bench: Any, case: Any, number: int) -> Any:
        if number == 2:
            raise KeyboardInterrupt
        return repeat(bench, case, number)

    flags = ("--batches", "2", "--configs", "fp16", "--repeats", "3", "--markdown", str(tmp_path / "table.md"))
    with monkeypatch.context() as patched:
        patched.setattr(script.BatchBench, "repeat", killed)
        with pytest.raises(KeyboardInterrupt):
            sweep(*flags)
    (record,) = read(tmp_path / "sweep.jsonl")
    assert (record["repeats"], record["is_complete"]) == (2, False)
    assert "| 2 | fp16 |" in (tmp_path / "table.md").read_text()
    (record,) = read(sweep(*flags))
    assert (record["repeats"], record["is_complete"]) == (3, True)


def test_damaged_lines_are_measured_again(sweep: Callable[..., Path]) -> None:
    """A line that was cut off does not stop the sweep, and does not stay."""
    saved = sweep("--batches", "1", "--configs", "fp16,int4")
    whole, cut = saved.read_text().splitlines()
    saved.write_text(f"{whole}\n{cut[:-40]}\n")
    assert ways(sweep("--batches", "1", "--configs", "fp16,int4")) == [(1, "fp16"), (1, "int4")]
    assert json.loads(whole) == read(saved)[0]


def test_batch_that_runs_dry_is_no_row(
    script: ModuleType, sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the prompts end before the time does, slots stand empty: that is no measure of a full batch."""
    monkeypatch.setattr(script.BatchBench, "_is_over", lambda bench: False)
    assert not sweep("--batches", "2", "--configs", "fp16", "--seconds", "0.001").exists()
    assert "left out: all 15 prompts had begun before 0.001 s were over" in capsys.readouterr().out


def test_way_that_cannot_run_is_left_out(
    script: ModuleType, sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are measured all the same."""
    repeat = script.BatchBench.repeat

    def broken(bench: Any, case: Any, number: int) -> Any:
        if case.config.mode == "int4":
            raise RuntimeError("CUDA out of memory")
        return repeat(bench, case, number)

    monkeypatch.setattr(script.BatchBench, "repeat", broken)
    assert ways(sweep("--batches", "2", "--configs", "fp16,int4")) == [(2, "fp16")]
    assert "batch 2, int4: left out: CUDA out of memory" in capsys.readouterr().out


def test_joules_of_a_sweep(
    script: ModuleType, sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A meter's total over each window, prefill and decoding apart, idle subtracted, in the file and in the table."""
    measured = script.sweep
    monkeypatch.setattr(script, "IDLE_S", 0.4)
    with simulated("agx-orin") as board:

        def with_meter(target: Any, draft: Any, meter: Any, *rest: Any) -> None:
            measured(target, draft, Meter(board.sensor(), period_ms=20), *rest)

        monkeypatch.setattr(script, "sweep", with_meter)
        (record,) = read(sweep("--batches", "2", "--configs", "fp16", "--seconds", "0.6"))
    energy = record["energy"]
    assert energy["tokens"] > 2 * 8
    assert 0.0 < energy["decode_joules_per_token"]["mean"] < energy["joules_per_token"]["mean"]
    assert energy["joules_per_token_above_idle"]["mean"] < energy["joules_per_token"]["mean"]
    assert {"prefill", "decode"} <= set(energy["by_phase"])
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
    records = read(sweep("--batches", "1,2,4", "--configs", "fp16"))
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
        ({1: 2.0, 4: 1.01}, "stops paying in speed between batch 1 and 4; stops paying in joules between batch 1 and"),
        ({1: 2.0, 4: 1.02}, "pays in speed at every batch measured, 1 to 4; stops paying in joules between batch 1"),
    ],
)
def test_where_speculation_stops_paying(
    load_script: Callable[[str], ModuleType], sweep: Callable[..., Path], gains: dict[int, float], expected: str
) -> None:
    """From ratios to FP16 of the same batch; 1 % of speed and 2 % of joules are within the spread of 1 % and 2 %."""
    table = load_script("batch_table")
    (plain,) = read(sweep("--batches", "1", "--configs", "fp16"))
    records = []
    for batch, gain in gains.items():
        test = {"test": plain["test"] | {"sequences": batch}}
        records.append(with_energy(plain | test, 100.0, 1.0))
        drafted = {"mode": "exact", "drafter": "model", "draft_length": 5, "acceptance_rate": 0.5}
        records.append(with_energy(plain | test | drafted, 100.0 * gain, 1.0 / gain))
    (line,) = table.crossovers(records)
    assert line.startswith(f"draft K=5: {expected}")
    assert line.endswith(f"lowest speed {min(gains.values()):.2f}x, at batch {min(gains, key=gains.__getitem__)}")
    assert f"| {next(iter(gains))} | draft K=5 | {100.0 * next(iter(gains.values())):.1f}" in table.batch_table(records)
