"""The decoding benchmark runs from end to end on a CPU with models of toy size, and counts what it says it counts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from edgeprec.errors import ConfigError, EngineError
from edgeprec.precision import Plan, Precision
from edgeprec.prompts import PromptKind, load_prompts

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    """Import ``scripts/bench_decode.py``."""
    return load_script("bench_decode")


@pytest.fixture(scope="module")
def pair(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target and a draft of it that shares embedding and head, as ``edgeprec distill`` writes one."""
    from edgeprec.export.checkpoint import open_checkpoint
    from edgeprec.export.draft_facts import DraftFacts
    from edgeprec.export.draft_writer import write_draft

    root = tmp_path_factory.mktemp("pair")
    target = checkpoints.make_checkpoint(
        root / "target", "llama", vocab_size=288, num_layers=4, max_positions=512, dtype="fp16"
    )
    opened = open_checkpoint(str(target))
    config = replace(opened.config, num_layers=2)
    weights = {"final_norm.scale": opened.final_norm()}
    for layer, source in enumerate((0, 3)):
        for linear in ("qkv", "o", "gate_up", "down"):
            weights[f"layers.{layer}.linears.{linear}.weight"] = np.float32(opened.linear(source, linear).T)
        for norm in ("input", "post_attention"):
            weights[f"layers.{layer}.norms.{norm}.scale"] = opened.norm(source, norm)
    facts = DraftFacts.of(opened, layers=(0, 3))
    (root / "draft").mkdir()
    write_draft(root / "draft", config, weights, facts, {}, group_size=32)
    return target, root / "draft"


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run the script as from a shell."""
    monkeypatch.setattr(sys, "argv", ["bench_decode.py", *map(str, arguments)])
    script.main()


def test_tables_of_a_pair(
    script: ModuleType,
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every way of decoding has a row and a line per reply; exact is FP16's text in all of them."""
    target, draft = pair
    lines, page = tmp_path / "replies.jsonl", tmp_path / "tables.md"
    flags = ["--draft", draft, "--shape", "tiny", "--group-size", 32, "--prompts", 2, "--tokens", 6, "--context", 512]
    run(script, monkeypatch, target, *flags, "--jsonl", lines, "--markdown", page)
    about, *replies = map(json.loads, lines.read_text().splitlines())
    ways = list(script.configurations(6, has_draft=True))
    assert about["type"] == "run"
    assert about["draft"].startswith("draft at tiny shape (4 layers, width 288")
    left_out = [way for way in ways if f"left out: {way}" in page.read_text()]
    assert all("three" in way for way in left_out)
    assert [reply["way"] for reply in replies[::2]] == [way for way in ways if way not in left_out]
    assert all(reply["is_identical"] for reply in replies if reply["way"] != "int4")
    assert all(reply["tokens"] == 6 for reply in replies)
    by_way = {reply["way"]: reply for reply in replies}
    assert by_way["fp16"]["drafted"] == 0
    assert by_way["draft K=5"]["drafted"] > 0
    printed = capsys.readouterr().out
    assert page.read_text() in printed
    assert "| draft adaptive |" in printed
    assert "2 of 2 prompts: fp16 " in printed
    assert "three-level adaptive: this bundle has no calibration: the entropy thresholds" in printed


def test_chosen_ways(
    script: ModuleType, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what was asked for runs, and what everything is compared with."""
    flags = ["--shape", "none", "--group-size", 32, "--prompts", 1, "--tokens", 4, "--context", 512]
    run(script, monkeypatch, pair[0], *flags, "--configs", "self K=3")
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows == ["| decoding", "| fp16", "| self K=3", "| decoding", "| self K=3"]


def test_unknown_way(script: ModuleType) -> None:
    """A way that does not exist is refused with the names of those that do."""
    with pytest.raises(ConfigError, match="--configs has 'int8', expected some of: fp16, int4, self K=3"):
        script.choose(script.configurations(6, has_draft=False), "int4,int8")


def test_time_runs_out(script: ModuleType, load_script: Callable[[str], ModuleType]) -> None:
    """The table is of the prompts every way has done: a way that was stopped early is not compared on others."""
    record = record_of(load_script)
    ways = script.configurations(6, has_draft=False)
    ways = {name: ways[name] for name in ("fp16", "int4")}
    halted = script.Run(None, ways, load_prompts("short"), {}, lambda: True)
    halted.records += [record(way="fp16", prompt=name) for name in ("a", "b", "c")]
    halted.records.append(record(way="int4", prompt="b"))
    counts = {name: [r.prompt for r in summary.records] for name, summary in halted.summaries().items()}
    assert counts == {"fp16": ["b"], "int4": ["b"]}


def test_no_time_at_all(
    script: ModuleType, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that loading alone exceeds says so instead of printing a table of nothing."""
    flags = ["--shape", "none", "--group-size", 32, "--prompts", 1, "--tokens", 4, "--context", 512]
    run(script, monkeypatch, pair[0], *flags, "--configs", "int4", "--limit-s", 0)
    assert "nothing was measured: give --limit-s more time" in capsys.readouterr().out


def test_a_way_that_cannot_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left out with its reason, and the others go on."""

    def decode_one(_: object, way: str, *__: object) -> Any:
        if way == "int4":
            raise EngineError("no kernel takes this")
        return script.Record(**dict.fromkeys(script.Record.__slots__) | {"tokens": (1,), "decode_s": 0.0, "drafted": 0})

    monkeypatch.setattr(script, "decode_one", decode_one)
    ways = script.configurations(6, has_draft=False)
    halted = script.Run(None, ways, load_prompts("short"), {}, lambda: True)
    script.warm_up(halted)
    assert "int4" not in halted.ways
    assert halted.left_out == {"int4": "no kernel takes this"}
    assert "int4: left out: no kernel takes this" in capsys.readouterr().out


def test_levels_in_the_table(load_script: Callable[[str], ModuleType]) -> None:
    """Three levels show what INT4 accepted of the draft model beside what FP16 accepted; other ways have a dash."""
    record, summary = record_of(load_script), load_script("decode_record").Summary
    three = summary([record(drafted=10, accepted=9, model_drafted=8, model_accepted=6) for _ in range(2)])
    two = summary([record(drafted=10, accepted=5)])
    assert (three.level_acceptance, two.level_acceptance) == (pytest.approx(0.75), None)
    lines = load_script("decode_table").drafting_table({"three-level": three, "draft": two}).splitlines()
    column = [cell.strip() for cell in lines[0].split("|")].index("INT4 accepts")
    assert [line.split("|")[column].strip() for line in lines[2:]] == ["0.75", "-"]


def test_summary_of_replies(load_script: Callable[[str], ModuleType]) -> None:
    """Rates and joules are totals over totals, acceptance is by kind of text, missing energy is not zero."""
    record = record_of(load_script)
    prose = record(prompt="a", kind=PromptKind.PROSE, drafted=8, accepted=6, rounds=2, joules=4.0)
    code = record(prompt="b", kind=PromptKind.CODE, drafted=2, accepted=1, rounds=2, decode_s=3.0, joules=None)
    summary = load_script("decode_record").Summary([prose, code])
    assert summary.tokens_per_s == pytest.approx(8 / 4)
    assert summary.joules_per_token == pytest.approx(4 / 5)
    assert summary.joules_above_idle_per_token is None
    assert summary.acceptance() == pytest.approx(0.7)
    assert summary.acceptance(PromptKind.PROSE) == pytest.approx(0.75)
    assert summary.acceptance(PromptKind.QUESTION) is None
    assert summary.tokens_a_round == pytest.approx(1 + 7 / 4)
    assert summary.gb_per_s == pytest.approx(2 * 8.0 / 4)
    assert summary.identical_to([replace(prose, tokens=(9,)), code]) == 1


@pytest.mark.parametrize("keeps_grid", [False, True])
def test_widened_draft_is_the_narrow_one(
    load_script: Callable[[str], ModuleType], pair: tuple[Path, Path], keeps_grid: bool
) -> None:
    """A draft that shares its target's embedding gives its logits at a larger shape; layers on top add nothing."""
    decode_pair = load_script("decode_pair")
    text = [int(token) for token in np.random.default_rng(5).integers(0, 288, 40)]
    logits = {}
    for shape in ("none", "tiny"):
        _, draft = decode_pair.load_pair(
            *pair,
            shape=decode_pair.SHAPES[shape],
            device=CPU,
            group_size=32,
            context_tokens=64,
            keeps_draft_grid=keeps_grid,
        )
        layers = draft.config.num_layers
        for kind in Precision:
            plan = Plan.uniform(kind, num_layers=layers)
            logits[shape, kind] = draft.engine.forward(text, position=0, plan=plan).logits.copy()
        logits[shape, "layers"] = layers
    assert (logits["none", "layers"], logits["tiny", "layers"]) == (2, 4)
    np.testing.assert_allclose(logits["tiny", Precision.FP16], logits["none", Precision.FP16], atol=0.02)
    assert np.abs(logits["tiny", Precision.INT4] - logits["tiny", Precision.FP16]).max() > 0.02


def test_draft_of_another_target(
    load_script: Callable[[str], ModuleType], pair: tuple[Path, Path], checkpoints: ModuleType, tmp_path: Path
) -> None:
    """A distilled draft belongs to one target: another one is refused before anything is loaded."""
    decode_pair = load_script("decode_pair")
    other = checkpoints.make_checkpoint(tmp_path / "other", "llama", vocab_size=301, dtype="fp16")
    with pytest.raises(ConfigError):
        decode_pair.load_pair(
            other, pair[1], shape=decode_pair.SHAPES["none"], device=CPU, group_size=32, context_tokens=64
        )


def test_exact_is_fp16(
    script: ModuleType, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check meets every case with every prompt, drafts are made and refused, and the tokens are FP16's."""
    flags = ["--shape", "none", "--group-size", 32, "--prompts", 3, "--tokens", 8, "--context", 512]
    run(script, monkeypatch, pair[0], "--draft", pair[1], *flags, "--check-identical", "--gated", "1,4")
    printed = capsys.readouterr().out.splitlines()
    names = [line.split(": ")[0] for line in printed[-7:-1]]
    assert names[:3] == ["1 gated layers", "4 gated layers", "all layers and the head"]
    assert names[-1] == "draft model, temperature 0.8, seeded"
    assert all("identical: 3 of 3 (24 tokens; " in line and "acceptance" in line for line in printed[-7:-1])
    assert printed[-1] == "identical: 18 of 18 replies, 144 tokens; 18 were planned"


def test_a_difference_is_found(
    script: ModuleType,
    load_script: Callable[[str], ModuleType],
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One wrong token anywhere ends the check with exit code 1 and says where."""
    identical = load_script("decode_identical")
    real = identical.decode_one

    def wrong(session: Any, way: str, config: Any, prompt: Any) -> Any:
        record = real(session, way, config, prompt)
        return record if way == "fp16" else replace(record, tokens=(*record.tokens[:5], -1, *record.tokens[6:]))

    monkeypatch.setattr(identical, "decode_one", wrong)
    flags = ["--shape", "none", "--group-size", 32, "--prompts", 1, "--tokens", 8, "--context", 512]
    with pytest.raises(SystemExit) as ended:
        run(script, monkeypatch, pair[0], *flags, "--check-identical", "--gated", "1")
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "identical: 0 of 3 replies" in printed
    assert "differs at test-prose-01, seed 0: token 5" in printed


@pytest.mark.parametrize("compared", [0, 4])
def test_check_that_time_cuts_short(
    script: ModuleType,
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    compared: int,
) -> None:
    """Part of a comparison, or nothing compared, is no success: exit code 3, and how many of the planned there were."""
    real, asked = script.check_identical, iter(range(100))

    def stopped(*arguments: Any, **options: Any) -> Any:
        return real(*arguments, **options | {"has_time": lambda: next(asked) < compared})

    monkeypatch.setattr(script, "check_identical", stopped)
    flags = ["--shape", "none", "--group-size", 32, "--prompts", 2, "--tokens", 8, "--context", 512]
    with pytest.raises(SystemExit) as ended:
        run(script, monkeypatch, pair[0], *flags, "--check-identical", "--gated", "1")
    assert ended.value.code == 3
    assert f"cut short: {compared} of 6 planned replies were compared" in capsys.readouterr().out


def test_a_difference_counts_before_what_is_missing(load_script: Callable[[str], ModuleType]) -> None:
    """A comparison that was cut short and found a wrong token ends with the code of the wrong token."""
    identical = load_script("decode_identical")
    checks = {"a": identical.Check(compared=3, identical=2), "b": identical.Check()}
    assert identical.print_checks(checks, planned=9) == 1
    checks["a"].identical = 3
    assert identical.print_checks(checks, planned=9) == 3
    assert identical.print_checks(checks, planned=3) == 0


def record_of(load_script: Callable[[str], ModuleType]) -> Callable[..., Any]:
    """Return a maker of records of five tokens in one second."""
    plain = {
        "way": "x",
        "prompt": "a",
        "kind": PromptKind.PROSE,
        "tokens": (1, 2, 3, 4, 5),
        "decode_s": 1.0,
        "prefill_s": 0.5,
        "draft_s": 0.0,
        "verify_s": 0.0,
        "rounds": 4,
        "drafted": 0,
        "accepted": 0,
        "read_bytes": 8e9,
        "joules": None,
        "joules_above_idle": None,
        "joules_by_phase": {},
        "energy_note": None,
        "fallbacks": (),
    }
    return lambda **changes: load_script("decode_record").Record(**plain | changes)
