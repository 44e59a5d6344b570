"""From a checkpoint to text through the command line, with a real export and a real engine on a tiny random model."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeprec.export.writer import BundleTransaction

PROMPT = "hello there"


@pytest.fixture
def copy(pair: Path, tmp_path: Path) -> Path:
    """Return a copy of the bundle that a test may damage."""
    return Path(shutil.copytree(pair, tmp_path / "copy.edgeprec"))


def flip_byte(file: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_exact_gives_the_tokens_of_fp16(pair: Path, invoke: Callable[..., Any]) -> None:
    """The product's promise, through every layer of it."""
    outcomes = [
        invoke("run", str(pair), "-p", PROMPT, "-n", "24", "--json", "--ignore-eos", *flags)
        for flags in (("--mode", "fp16"), ("--draft-length", "3"), ("--drafter", "ngram"), ("--drafter", "none"))
    ]
    replies = [json.loads(outcome.out) for outcome in outcomes]
    assert {outcome.code for outcome in outcomes} == {0}
    assert len({reply["token_sha256"] for reply in replies}) == 1
    plain, drafted = replies[:2]
    assert drafted["stats"]["drafted"] > 0
    assert plain["stats"]["drafted"] == 0
    tokens = b"".join(token.to_bytes(4, "little") for token in plain["tokens"])
    assert plain["token_sha256"] == hashlib.sha256(tokens).hexdigest()
    assert plain["stats"]["energy"] is not None or plain["stats"]["energy_note"]


def test_trace_and_report_of_a_real_run(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Both files agree with what was printed."""
    trace, report = tmp_path / "run.jsonl", tmp_path / "run.html"
    flags = ("-n", "16", "--json", "--ignore-eos", "--trace", str(trace), "--report", str(report))
    reply = json.loads(invoke("run", str(pair), "-p", PROMPT, *flags).out)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["token"] for line in lines if line["type"] == "token"] == reply["tokens"]
    assert lines[-1]["token_sha256"] == reply["token_sha256"]
    assert sum(len(line["drafted"]) for line in lines if line["type"] == "round") == reply["stats"]["drafted"]
    assert "<svg" in report.read_text()


def test_certify_passes_on_a_real_bundle(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Greedy and sampled text are the target's own."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello there\nthe end\n")
    for flags in ((), ("--temperature", "0.8", "--seed", "1")):
        outcome = invoke("certify", str(pair), "-f", str(prompts), "-n", "12", "--ignore-eos", *flags)
        assert outcome.code == 0, outcome.out
        assert outcome.out.splitlines()[-1].startswith(("identical", "within tolerance"))


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(pair: Path, invoke: Callable[..., Any]) -> None:
    """Before any pass."""
    outcome = invoke("run", str(pair), "-p", "hello " * 200, "--context", "64")
    assert outcome.code == 2
    assert "tokens, the context holds 64" in outcome.err


def test_a_context_longer_than_the_models_is_refused(pair: Path, invoke: Callable[..., Any]) -> None:
    """Both numbers again."""
    outcome = invoke("run", str(pair), "-p", PROMPT, "--context", "4096")
    assert outcome.code == 2
    assert "4,096" in outcome.err
    assert "128" in outcome.err


def test_a_flipped_byte_is_found_by_verify(copy: Path, invoke: Callable[..., Any]) -> None:
    """The damaged file is named, with exit code 3."""
    flip_byte(copy / "target" / "int4.safetensors")
    outcome = invoke("verify", str(copy))
    assert outcome.code == 3
    assert "target/int4.safetensors" in outcome.out


@pytest.mark.parametrize("name", ["target/model.fp32.onnx", "target/fp16.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(copy: Path, invoke: Callable[..., Any], name: str) -> None:
    """Before anything is loaded, with exit code 3."""
    (copy / name).unlink()
    outcome = invoke("run", str(copy), "-p", PROMPT)
    assert outcome.code == 3
    assert name in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_bundle_of_a_newer_schema_is_refused(copy: Path, invoke: Callable[..., Any]) -> None:
    """The message says to update EdgePrec rather than that the bundle is damaged."""
    manifest = copy / "bundle.json"
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**values, "schema_version": 99}))
    outcome = invoke("run", str(copy), "-p", PROMPT)
    assert outcome.code == 3
    assert "99" in outcome.err


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, invoke: Callable[..., Any]) -> None:
    """Nothing is left behind."""
    (tmp_path / "empty").mkdir()
    outcome = invoke("export", str(tmp_path / "empty"), "-o", str(tmp_path / "out.edgeprec"))
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_an_existing_bundle_is_not_overwritten(
    pair: Path, tmp_path: Path, invoke: Callable[..., Any], make_checkpoint: Callable[..., Path]
) -> None:
    """Hours of export are not lost to a repeated command."""
    before = (pair / "bundle.json").read_bytes()
    checkpoint = make_checkpoint(tmp_path / "other", seed=1)
    outcome = invoke("export", str(checkpoint), "-o", str(pair))
    assert outcome.code == 2
    assert (pair / "bundle.json").read_bytes() == before


def test_two_exports_into_one_folder_are_not_mixed(
    tmp_path: Path, invoke: Callable[..., Any], make_checkpoint: Callable[..., Path]
) -> None:
    """The second command is refused, and the first one's work stays as it is."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    output = tmp_path / "out.edgeprec"
    with BundleTransaction(output, fingerprint="first", resume=False) as first:
        with first.step("begun"):
            first.write_bytes("tokenizer.json", b"{}")
        outcome = invoke("export", str(checkpoint), "-o", str(output))
        assert outcome.code == 2
        assert "is writing" in outcome.err
        assert outcome.err.count("\n") == 1
        assert first.is_done("begun")


def test_a_full_disk_ends_an_export_that_can_be_resumed(
    tmp_path: Path,
    invoke: Callable[..., Any],
    make_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence, exit code 1, nothing that looks like a bundle; with room made, --resume ends the work."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    output = tmp_path / "out.edgeprec"

    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        outcome = invoke("export", str(checkpoint), "-o", str(output), "--quiet")
    assert outcome.code == 1
    assert outcome.err.startswith("edgeprec: the disk is full")
    assert outcome.err.count("\n") == 1
    assert not output.exists()
    assert invoke("export", str(checkpoint), "-o", str(output), "--quiet", "--resume").code == 0
    assert invoke("verify", str(output)).code == 0


def test_a_draft_with_another_vocabulary_is_refused(
    tmp_path: Path, invoke: Callable[..., Any], make_checkpoint: Callable[..., Path]
) -> None:
    """The first id that differs is named, before any work."""
    target = make_checkpoint(tmp_path / "target")
    draft = make_checkpoint(tmp_path / "draft")
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    first, second = sorted(words, key=words.get)[10:12]
    words[first], words[second] = words[second], words[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    outcome = invoke("export", str(target), "--draft", str(draft), "-o", str(tmp_path / "out.edgeprec"))
    assert outcome.code == 2
    assert "10" in outcome.err
    assert not (tmp_path / "out.edgeprec").exists()
