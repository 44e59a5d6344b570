"""Which TensorRT is found, and which GPU generations may be named."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from edgeprec.errors import ConfigError, EngineError, MissingDependency
from edgeprec.tensorrt_library import TensorRtLibrary, find_tensorrt, parse_sms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sm89", ("sm89",)),
        ("86,89,120", ("sm86", "sm89", "sm120")),
        ("SM120, sm_86 ,8.9", ("sm86", "sm89", "sm120")),
        ("12.0,sm120", ("sm120",)),
    ],
)
def test_names_of_generations(text: str, expected: tuple[str, ...]) -> None:
    """Every spelling NVIDIA uses is taken; the result is sorted by number and has no doubles."""
    assert parse_sms(text) == expected


@pytest.mark.parametrize("text", ["sm77", "ada", "", "sm89,", "89 86"])
def test_unknown_generations_are_named(text: str) -> None:
    """A misspelt generation is not left out."""
    with pytest.raises(ConfigError, match="no such GPU generation, expected some of sm80, sm86"):
        parse_sms(text)


@pytest.mark.parametrize("text", ["sm75", "7.2", "53"])
def test_generations_without_int4_are_refused(text: str) -> None:
    """Turing, Xavier and older have no INT4 engine; the message names what runs there."""
    with pytest.raises(ConfigError, match=r"have no INT4 in TensorRT, use the onnxruntime engine"):
        parse_sms(text)


def fake(name: str, version: str = "1.2") -> ModuleType:
    """Return a module of this name."""
    module = ModuleType(name)
    module.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
    module.__version__ = version  # type: ignore[attr-defined]
    return module


def test_tensorrt_rtx_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both are installed, the one that builds for absent GPUs is taken, unless another is asked for."""
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, fake(name))
    assert find_tensorrt(purpose="a test").kind == "tensorrt_rtx"
    found = find_tensorrt(["tensorrt"], purpose="a test")
    assert (found.kind, found.version, found.is_ahead_of_time, found.sms) == ("tensorrt", "1.2", False, ())


def test_a_library_that_cannot_be_imported_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Installing it would not help: the reason is told, and the other library is taken where it works."""
    (tmp_path / "tensorrt_rtx.py").write_text("raise ImportError('libtensorrt_rtx.so.1: no such file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorrt_rtx", raising=False)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EngineError, match=r"tensorrt_rtx is installed and cannot be imported: libtensorrt_rtx\.so\.1"):
        find_tensorrt(purpose="a test")
    monkeypatch.setitem(sys.modules, "tensorrt", fake("tensorrt"))
    assert find_tensorrt(purpose="a test").kind == "tensorrt"


def test_runs_where_it_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX refuses other GPUs, such as an H200; TensorRT itself runs where it was installed."""
    rtx = fake("tensorrt_rtx")
    members = dict.fromkeys(("NONE", "SM75", "SM89"))
    rtx.ComputeCapability = SimpleNamespace(__members__=members)  # type: ignore[attr-defined]
    library = TensorRtLibrary("tensorrt_rtx", rtx)
    assert [library.runs_on(sm) for sm in ("sm89", "sm90", "sm75")] == [True, False, False]
    assert TensorRtLibrary("tensorrt", fake("tensorrt")).runs_on("sm90")


def test_without_any_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message holds the command that installs it."""
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=r"a test needs .* run pip install 'edgeprec\[tensorrt\]'"):
        find_tensorrt(purpose="a test")


def test_generations_of_a_library_have_int4() -> None:
    """What the library lists is offered, but for generations whose engines cannot hold INT4."""
    members = dict.fromkeys(("NONE", "CURRENT", "SM75", "SM120", "SM86"))
    module = SimpleNamespace(ComputeCapability=SimpleNamespace(__members__=members))
    assert TensorRtLibrary("tensorrt_rtx", module).sms == ("sm86", "sm120")
