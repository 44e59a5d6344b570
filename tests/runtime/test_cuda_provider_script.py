"""``scripts/check_cuda_provider.py`` with CPUs in the GPU's place: what it compares, what it prints, when it fails."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.bundle import Bundle
from edgeprec.runtime.engine_onnxruntime_gpu import PROVIDERS, Provider

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")
MODULES = ("check_cuda_provider", "provider_figures", "provider_rows")
FEW = ["-n", "4", "--prompts", "1", "--bit-tokens", "20"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the script as a module that works in this process, with the CPU provider under the name of cuda."""
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name="CPUExecutionProvider", device="cpu"))
    module = import_module("check_cuda_provider")
    monkeypatch.setattr(module, "apart", lambda work, *arguments, lost: work(*arguments))
    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def figures(script: ModuleType) -> ModuleType:
    """Return the module that compares."""
    return sys.modules["provider_figures"]


def torch_on_the_cpu(script: ModuleType) -> Callable[..., Any]:
    """Return what runs the torch engine here, in place of the one that wants a GPU."""
    return lambda *job: script.measure("torch", "cpu", *job)


def run_of(figures: ModuleType, **ways: list[list[int]]) -> Any:
    """Return a run with the given tokens; ``exact`` is the way with self drafts."""
    names = {"exact": "exact, self drafts"}
    samples = {
        names.get(way, way): tuple(
            figures.Sample(tuple(tokens), 10.0 * (index + 1), None) for index, tokens in enumerate(replies)
        )
        for way, replies in ways.items()
    }
    return figures.Run(device="cpu", has_bitwise_rows=True, samples=samples)


def test_agreement_counts_leading_tokens(figures: ModuleType) -> None:
    """The first token that differs ends the agreement; so does the shorter text."""
    assert [figures.agreement([1, 2, 3], other) for other in ([1, 2, 3], [1, 9, 3], [9], [1, 2])] == [3, 1, 0, 2]


def test_all_engines_stand_in_one_table(
    script: ModuleType,
    tiny_pair: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the command line to the table and the file: each engine's speed, and exact against its own fp16."""
    monkeypatch.setattr(script, "measure_torch", torch_on_the_cpu(script))
    out = tmp_path / "figures.json"
    assert script.main([str(tiny_pair), *FEW, "--least", "1", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert (
        "| decoding | CPU, tokens/s | cuda provider, tokens/s | torch engine, tokens/s | cuda provider = CPU | "
        "torch engine = CPU | cuda provider = its own fp16 | torch engine = its own fp16 |\n"
    ) in printed
    rows = [line for line in printed.splitlines() if line.startswith(("| fp16", "| int4", "| exact"))]
    assert [row.split(" | ")[0] for row in rows] == ["| fp16", "| int4", "| exact, self drafts", "| exact, draft model"]
    assert all(row.endswith("| 1 of 1 | 1 of 1 |") for row in rows[2:])
    assert "no problem" in printed
    record = json.loads(out.read_text())
    assert (record["provider"], record["problems"], record["prompts"]) == ("cuda", [], 1)
    assert list(record["engines"]) == ["cpu", "cuda", "torch"]
    assert [row["fp16_rows"] for row in record["row_bits"]] == [1, 16]
    assert "onnxruntime cuda, exact, self drafts: " in printed
    assert len(record["ways"]) == 12
    assert all(way["tokens_per_s"] > 0 and way["same_as_own_fp16"] is not None for way in record["ways"])
    assert {"python", "onnxruntime"} <= set(record["versions"])


def test_what_was_measured_stays_where_time_runs_out(
    script: ModuleType, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the provider's figures and the rows' bits before the torch engine begins."""
    out = tmp_path / "figures.json"

    def stop(*job: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "measure_torch", stop)
    with pytest.raises(KeyboardInterrupt):
        script.main([str(tiny_pair), *FEW, "--mode", "fp16", "exact", "--json", str(out)])
    record = json.loads(out.read_text())
    assert list(record["engines"]) == ["cuda"]
    assert [way["same_as_own_fp16"][0] for way in record["ways"]] == [1, 1, 1]
    assert len(record["row_bits"]) == 2


def test_padded_passes_keep_the_bits_of_rows(script: ModuleType, tiny_pair: Path) -> None:
    """The table of bits compares passes as the engine runs them with passes as short as they are asked for."""
    short, padded = script.measure_bits(tiny_pair, "cuda", 20)
    assert (short.fp16_rows, padded.fp16_rows, short.tokens) == (1, 16, 20)
    assert list(padded.same_tokens) == [1, 2, 3, 5, 6, 8, 16]
    assert set(padded.same_tokens.values()) == {20}
    assert padded.largest_difference == 0.0
    assert short.same_tokens[1] == 20
    assert short.same_tokens[16] < 20  # or the comparison would not see a difference
    assert short.largest_difference > 0.0
    table = sys.modules["provider_figures"].bits_table([short, padded])
    assert "| always 16 | 20 of 20 | 20 of 20 | 20 of 20 |" in table


def test_what_cannot_run_is_a_line_and_a_failure(
    script: ModuleType, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A provider that is not there ends nothing: the CPU's figures are printed, the reason too, the exit code is 1."""
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name="NoExecutionProvider", device="cuda"))
    assert script.main([str(tiny_pair), *FEW, "--mode", "fp16", "--no-torch"]) == 1
    printed = capsys.readouterr().out
    assert "problem: cuda provider did not run: onnxruntime" in printed
    assert "rows not compared: onnxruntime" in printed
    assert "| fp16 | " in printed


def test_torch_without_a_gpu_is_left_out_unless_asked_for(
    script: ModuleType, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default the torch engine runs where there is a CUDA torch; with --torch its absence is a failure."""
    pytest.importorskip("torch")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    few = [str(tiny_pair), "-n", "2", "--prompts", "1", "--bit-tokens", "0", "--mode", "fp16", "--least", "1"]
    assert script.main(few) == 0
    assert "torch engine: not run: torch" in capsys.readouterr().out
    assert script.main([*few, "--torch"]) == 1
    assert "problem: torch engine did not run: torch" in capsys.readouterr().out


def test_a_broken_promise_is_a_failure(figures: ModuleType) -> None:
    """Exact that differs from fp16 fails an engine that promises bits, and is only counted in one that does not."""
    ways = ("fp16", "exact, self drafts")
    cpu = run_of(figures, fp16=[[1, 2, 3]], exact=[[1, 2, 3]])
    gpu = run_of(figures, fp16=[[1, 2, 3]], exact=[[1, 2, 4]])
    found = figures.Figures(provider="cuda", runs={"cpu": cpu, "cuda": gpu}, ways=ways)
    assert figures.failures(found, least=3, needs_torch=False) == [
        "cuda provider: exact, self drafts differs from its own fp16 after 2 tokens"
    ]
    assert "| exact, self drafts | 10.0 | 10.0 | 0 of 1 (from 2) | 0 of 1 (from 2) |" in figures.figures_table(found)
    lenient = replace(found, runs={"cpu": cpu, "cuda": replace(gpu, has_bitwise_rows=False)})
    assert figures.failures(lenient, least=3, needs_torch=False) == []


def test_fp16_that_differs_at_once_is_a_failure(figures: ModuleType) -> None:
    """Too short an agreement of fp16 with the CPU's is no near tie."""
    runs = {"cpu": run_of(figures, fp16=[[1, 2, 3]]), "cuda": run_of(figures, fp16=[[1, 9, 3]])}
    found = figures.Figures(provider="cuda", runs=runs, ways=("fp16",))
    assert figures.failures(found, least=1, needs_torch=False) == []
    assert figures.failures(found, least=16, needs_torch=False) == [
        "cuda provider's fp16 is the CPU's for 1 tokens only, expected 16 at least"
    ]  # the same three tokens, as the CPU has, are no failure: nothing differs in them


def test_medians_and_fallbacks_are_kept(figures: ModuleType) -> None:
    """The speed of a way is the median of its replies; what fell back stands under the table."""
    cpu = run_of(figures, fp16=[[1], [2], [3]])
    gpu = replace(cpu, fallbacks=("3 of 9 nodes run on the CPU",))
    found = figures.Figures(provider="cuda", runs={"cpu": cpu, "cuda": gpu}, ways=("fp16",))
    assert (cpu.tokens_per_s("fp16"), cpu.tokens_per_s("int4")) == (20.0, None)
    assert "\ncuda provider: 3 of 9 nodes run on the CPU" in figures.figures_table(found)


def test_a_bundle_without_draft_model_is_drafted_by_itself(script: ModuleType, tiny_pair: Path) -> None:
    """The draft model is a way of its own only where there is one; a fixed draft length reaches every drafter."""
    pair = Bundle.open(tiny_pair)
    alone = replace(pair, manifest=replace(pair.manifest, draft="self"))
    assert [way.name for way in script.choose_ways(alone, ["exact"], None)] == ["exact, self drafts"]
    ways = script.choose_ways(pair, ["exact"], 5)
    assert [way.config.drafting.draft_length for way in ways] == [5, 5]


def test_engines_run_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that no engine finds libraries another one has loaded; an error comes back in words, as does a crash."""
    monkeypatch.syspath_prepend(SCRIPTS)
    module = import_module("check_cuda_provider")
    assert module.apart(os.getpid, lost=None) != os.getpid()
    assert module.apart(os._exit, 3, lost="died") == "died"
    run = module.apart(module.measure, "onnxruntime", "cpu", tmp_path / "none", (), [], 1, lost=None)
    assert str(tmp_path / "none") in run.note
    for name in MODULES:
        sys.modules.pop(name, None)
