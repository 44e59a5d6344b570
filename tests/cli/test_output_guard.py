"""Output files are kept off the bundle, off what a command reads, and off each other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeprec.cli.output_guard import require_apart, require_outside_bundles
from edgeprec.errors import ConfigError

Invoke = Callable[..., Any]


@pytest.fixture
def bundle(tmp_path: Path, pair: Path) -> Path:
    """Return a bundle of the test's own."""
    return Path(shutil.copytree(pair, tmp_path / "own.edgeprec"))


def _targets(bundle: Path, folder: Path) -> dict[str, Path]:
    """Return outputs that all reach into the bundle."""
    link, hard, door = folder / "link.html", folder / "hard.html", folder / "door"
    link.symlink_to(bundle / "bundle.json")
    os.link(bundle / "tokenizer.json", hard)
    door.symlink_to(bundle)
    return {
        "manifest": bundle / "bundle.json",
        "new": bundle / "target" / "new.html",
        "link": link,
        "hard": hard,
        "door": door / "x.html",
    }


@pytest.mark.parametrize("flag", ["--trace", "--report"])
@pytest.mark.parametrize("name", ["manifest", "new", "link", "hard", "door"])
def test_run_writes_nothing_into_the_bundle(
    bundle: Path, invoke: Invoke, tmp_path: Path, fake_api: Any, flag: str, name: str
) -> None:
    """One slip of the hand must not cost the bundle, by whatever name its file is reached."""
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    outcome = invoke("run", str(bundle), "-p", "x", flag, str(_targets(bundle, tmp_path)[name]))
    assert outcome.code == 2
    assert outcome.err.startswith(f"edgeprec: {flag} ")
    assert "the bundle, which it would damage" in outcome.err or "lies in the bundle" in outcome.err
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before
    assert not fake_api.loads


@pytest.mark.parametrize("flag", ["--trace", "--report"])
def test_run_keeps_its_prompt_file(invoke: Invoke, tmp_path: Path, fake_api: Any, flag: str) -> None:
    """What is read is not written over, not by a link either."""
    prompt, link = tmp_path / "prompt.txt", tmp_path / "link"
    prompt.write_text("Once")
    link.symlink_to(prompt)
    for path in (prompt, link):
        outcome = invoke("run", "pair.edgeprec", "-f", str(prompt), flag, str(path))
        assert outcome.code == 2
        assert f"{flag} {path} is the file that -f reads: write it elsewhere" in outcome.err
    assert prompt.read_text() == "Once"


def test_settings_and_a_replayed_trace_are_inputs_too(invoke: Invoke, tmp_path: Path, fake_api: Any) -> None:
    """They are read as well."""
    settings, trace = tmp_path / "edgeprec.toml", tmp_path / "trace.jsonl"
    settings.write_text("temperature = 0.5\n")
    trace.write_text("{}\n")
    run = ("run", "pair.edgeprec", "-p", "x")
    assert "--config reads" in invoke(*run, "--config", str(settings), "--trace", str(settings)).err
    assert "--sensor reads" in invoke(*run, "--sensor", f"replay:{trace}", "--trace", str(trace)).err
    assert (settings.read_text(), trace.read_text()) == ("temperature = 0.5\n", "{}\n")


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    """The second would replace the first."""
    with pytest.raises(ConfigError, match="--trace and --report both write"):
        require_apart({"--trace": tmp_path / "x", "--report": tmp_path / "." / "x"}, inputs={})


def test_other_outputs_are_free(bundle: Path, tmp_path: Path) -> None:
    """Beside a bundle is not in it, and a device may be both read and written."""
    null = Path("/dev/null")
    require_apart({"--trace": null, "--report": tmp_path / "x"}, inputs={"-f": null, "--sensor": None}, bundle=bundle)
    require_outside_bundles(bundle, flag="-o")


@pytest.mark.parametrize("flag", ["--trace", "--report"])
def test_links_in_a_circle_are_no_traceback(tmp_path: Path, invoke: Invoke, fake_api: Any, flag: str) -> None:
    """They lead to no file, and the writer says so or replaces them."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    outcome = invoke("run", "pair.edgeprec", "-p", "x", "-n", "2", flag, str(loop))
    assert outcome.code in (0, 1, 2)


def test_an_evaluation_stays_out_of_bundles(bundle: Path, invoke: Invoke) -> None:
    """A folder made there would be no part of the bundle."""
    for folder in (bundle, bundle / "fidelity"):
        outcome = invoke("eval", str(bundle), "-o", str(folder))
        assert outcome.code == 2
        assert "lies in the bundle" in outcome.err
    assert not (bundle / "fidelity").exists()


def test_an_export_stays_out_of_bundles(bundle: Path, invoke: Invoke) -> None:
    """Its source may be the very bundle."""
    outcome = invoke("export", str(bundle), "-o", str(bundle / "again.edgeprec"))
    assert outcome.code == 2
    assert "lies in the bundle" in outcome.err


def test_a_server_stays_out_of_its_bundle_and_keys(bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    """It adds to its trace as long as it runs."""
    keys = tmp_path / "keys.txt"
    keys.write_text("secret\n")
    outcome = invoke("serve", str(bundle), "--trace", str(bundle / "bundle.json"))
    assert outcome.code == 2
    assert "lies in the bundle" in outcome.err
    outcome = invoke("serve", str(bundle), "--api-key-file", str(keys), "--trace", str(keys))
    assert outcome.code == 2
    assert "--api-key-file reads" in outcome.err
    assert keys.read_text() == "secret\n"


def test_recorded_power_stays_out_of_bundles(bundle: Path, invoke: Invoke) -> None:
    """Verification would find a file that is not listed."""
    outcome = invoke("power", "--sensor", "simulated:agx-orin", "--record", str(bundle / "trace.jsonl"))
    assert outcome.code == 2
    assert "lies in the bundle" in outcome.err
