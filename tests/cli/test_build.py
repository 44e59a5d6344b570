"""``edgeprec build`` and ``export --tensorrt``: what is asked of the builder, what is printed, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from edgeprec import extras
from edgeprec.bundle import Bundle
from edgeprec.bundle_schema import EngineEntry
from edgeprec.errors import ConfigError
from edgeprec.export import tensorrt
from edgeprec.export.engine_shelf import shelve, work_folder


@pytest.fixture
def copy(tiny_pair: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny pair that may be changed."""
    return Path(shutil.copytree(tiny_pair, tmp_path / "copy.edgeprec"))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a stand-in where engines are built; ``settings`` lists what each call was given."""
    found = SimpleNamespace(settings=[], checked=[])

    def build(bundle: Bundle, settings: Any, *, progress: Any) -> Bundle:
        found.settings.append(settings)
        with work_folder(bundle) as folder:
            (folder / "target.engine").write_bytes(b"engine")
            entries = [
                EngineEntry(kind="tensorrt_rtx", sm=sm, model="target", file="engines/x/target.engine", version="1.7")
                for sm in settings.sms
            ]
            return shelve(bundle, [(folder / "target.engine", "engines/x/target.engine", entries)])

    monkeypatch.setattr(tensorrt, "build_engines", build)
    monkeypatch.setattr(tensorrt, "check_library", found.checked.append)
    return found


def test_flags_reach_the_builder(invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace) -> None:
    """Generations, context and layers a segment; a line for each file is printed."""
    outcome = invoke("build", str(copy), "--tensorrt", "8.9,sm86", "--context", "128", "--segment-layers", "1")
    (settings,) = builds.settings
    assert (settings.sms, settings.context_tokens, settings.layers_per_segment) == (("sm86", "sm89"), 128, 1)
    assert outcome.code == 0
    assert outcome.out.splitlines() == ["target for sm86, sm89: 0 MB, tensorrt_rtx 1.7, engines/x/target.engine"]


def test_json_lists_the_engines_as_inspect_does(
    invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace
) -> None:
    """Kind, generation, model, bytes and version; the same objects in both commands."""
    built = json.loads(invoke("build", str(copy), "--tensorrt", "sm120", "--json").out)
    inspected = json.loads(invoke("inspect", str(copy), "--json").out)
    expected = {"kind": "tensorrt_rtx", "sm": "sm120", "model": "target", "bytes": 6, "version": "1.7"}
    (engine,) = built["engines"]
    assert expected.items() <= engine.items()
    assert inspected["engines"] == built["engines"]


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_damaged_engine_is_named_with_the_command_that_mends_it(
    invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace, damage: str
) -> None:
    """Nothing opens such a bundle but a build, which replaces the file."""
    assert invoke("build", str(copy), "--tensorrt", "sm86,sm89").code == 0
    engine = copy / "engines/x/target.engine"
    if damage == "truncated":
        engine.write_bytes(b"eng")
    else:
        engine.unlink()
    outcome = invoke("inspect", str(copy))
    assert outcome.code == 3
    assert f"build it again with edgeprec build {copy} --tensorrt sm86,sm89" in outcome.err
    assert invoke("build", str(copy), "--tensorrt", "sm86,sm89").code == 0
    assert invoke("inspect", str(copy)).code == 0


def test_a_damaged_engine_that_is_not_built_again_is_dropped(
    invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace
) -> None:
    """Engines for other GPUs in the damaged file go too: the bundle is whole after every build."""
    assert invoke("build", str(copy), "--tensorrt", "sm86,sm89").code == 0
    with work_folder(Bundle.open(copy)) as folder:
        (folder / "other").write_bytes(b"other")
        entry = EngineEntry(
            kind="tensorrt_rtx", sm="sm120", model="target", file="engines/y/target.engine", version="1"
        )
        shelve(Bundle.open(copy), [(folder / "other", entry.file, [entry])])
    (copy / "engines/y/target.engine").write_bytes(b"o")
    assert invoke("build", str(copy), "--tensorrt", "sm86").code == 0
    assert [engine.sm for engine in Bundle.open(copy).manifest.engines] == ["sm86", "sm89"]
    assert not (copy / "engines/y/target.engine").exists()


def test_build_refuses_other_damage(invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace) -> None:
    """Engines of broken weights would be worse than none."""
    weights = copy / "target/fp16.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    outcome = invoke("build", str(copy), "--tensorrt", "sm86")
    assert (outcome.code, builds.settings) == (3, [])
    assert "copy or export the bundle again" in outcome.err


def test_quiet_says_nothing(invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace) -> None:
    """Only the exit code tells."""
    outcome = invoke("build", str(copy), "--tensorrt", "sm86", "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Missing option '--tensorrt'"),
        (("--tensorrt", "sm77"), "--tensorrt 'sm77': no such GPU generation"),
        (("--tensorrt", "sm86", "--context", "1"), "1 is not in the range x>=2"),
        (("--tensorrt", "sm86", "--segment-layers", "0"), "0 is not in the range x>=1"),
    ],
)
def test_wrong_flags_are_refused(
    invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace, arguments: tuple[str, ...], expected: str
) -> None:
    """Exit code 2, and nothing is built."""
    outcome = invoke("build", str(copy), *arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert builds.settings == []


def test_a_missing_package_is_named_with_what_it_is_for(
    invoke: Callable[..., Any], copy: Path, builds: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that only runs bundles lacks the export extra; building needs it."""
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    outcome = invoke("build", str(copy), "--tensorrt", "sm86")
    assert (outcome.code, builds.settings) == (5, [])
    assert "building TensorRT engines needs the package 'onnx'" in outcome.err
    assert "pip install 'edgeprec[export]'" in outcome.err


def test_what_is_no_bundle_is_refused(invoke: Callable[..., Any], tmp_path: Path, builds: SimpleNamespace) -> None:
    """Exit code 3, as for every command that opens one."""
    outcome = invoke("build", str(tmp_path), "--tensorrt", "sm86")
    assert (outcome.code, builds.settings) == (3, [])
    assert "is not a bundle" in outcome.err


def test_export_builds_engines_after_the_bundle(
    invoke: Callable[..., Any], tiny_pair: Path, tmp_path: Path, builds: SimpleNamespace
) -> None:
    """The library is asked before the long export, and the bundle lists the engines at its end."""
    output = tmp_path / "new.edgeprec"
    outcome = invoke("export", str(tiny_pair), "-o", str(output), "--quantizer", "rtn", "--tensorrt", "sm89")
    assert outcome.code == 0, outcome.err
    assert builds.checked == [("sm89",)]
    assert [engine.sm for engine in Bundle.open(output).manifest.engines] == ["sm89"]
    assert "target for sm89" in outcome.out


def test_export_stops_before_work_where_engines_cannot_be_built(
    invoke: Callable[..., Any], tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that does not build for the GPU is found out first; no bundle is begun."""

    def refuse(sms: Any) -> None:
        raise ConfigError("the library builds for sm86 only")

    monkeypatch.setattr(tensorrt, "check_library", refuse)
    outcome = invoke("export", str(tiny_pair), "-o", str(tmp_path / "new.edgeprec"), "--tensorrt", "sm89")
    assert outcome.code == 2
    assert list(tmp_path.glob("new*")) == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--engine", "tensorrt"), "has no TensorRT engine of its target: build one with edgeprec build"),
        (("--engine", "onnxruntime", "--provider", "cuda"), "has no provider cuda"),
        (("--provider", "nvtensorrtrtx"), "has no provider nvtensorrtrtx"),
    ],
)
def test_running_without_what_is_needed_says_how_to_get_it(
    invoke: Callable[..., Any], tiny_pair: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: str
) -> None:
    """Exit code 5: an engine is missing, and the sentence holds the command."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    outcome = invoke("run", str(tiny_pair), "-p", "a", "--sensor", "none", *flags)
    assert outcome.code == 5
    assert expected in outcome.err
