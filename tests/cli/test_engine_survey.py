"""What doctor says of TensorRT: absent, able to build, able to run."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from edgeprec import cuda_library
from edgeprec.cli.engine_survey import EngineFinding, survey_engines
from edgeprec.errors import DeviceError


def tensorrt_finding() -> EngineFinding:
    """Return the finding for the tensorrt engine."""
    return next(finding for finding in survey_engines() if finding.name == "tensorrt")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a stand-in for TensorRT-RTX."""
    module = ModuleType("tensorrt_rtx")
    module.__spec__ = SimpleNamespace(name="tensorrt_rtx")  # type: ignore[assignment]
    module.__version__ = "1.7.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", module)


def test_absent_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to get it are told."""
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    finding = tensorrt_finding()
    assert not finding.is_usable
    assert finding.note == "not installed: pip install 'edgeprec[tensorrt]', or the TensorRT of JetPack"


def test_without_a_gpu_it_builds_only(library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU is told that it can build, and why it cannot run."""

    def no_gpu() -> str:
        raise DeviceError("no CUDA-capable device is detected")

    monkeypatch.setattr(cuda_library, "gpu_sm", no_gpu)
    finding = tensorrt_finding()
    assert not finding.is_usable
    assert finding.note == (
        "tensorrt_rtx 1.7.1 builds engines here; cannot run them: no CUDA-capable device is detected"
    )


def test_with_a_gpu_its_generation_is_named(library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is the one that ``edgeprec build --tensorrt`` takes."""
    monkeypatch.setattr(cuda_library, "gpu_sm", lambda: "sm89")
    assert tensorrt_finding() == EngineFinding(name="tensorrt", is_usable=True, note="tensorrt_rtx 1.7.1, GPU of sm89")
