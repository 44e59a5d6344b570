"""What doctor says of TensorRT and of ONNX Runtime's CUDA provider."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnxruntime
import pytest

from edgeprec import cuda_library
from edgeprec.cli.demo_model import BUNDLE_NAME
from edgeprec.cli.engine_survey import EngineFinding, survey_engines
from edgeprec.cli.provider_survey import cuda_fallbacks
from edgeprec.errors import DeviceError
from edgeprec.runtime.engine import NEAR_TIES
from edgeprec.runtime.engine_onnxruntime_gpu import PROVIDERS, Provider


def tensorrt_finding() -> EngineFinding:
    """Return the finding for the tensorrt engine."""
    return next(finding for finding in survey_engines() if finding.name == "tensorrt")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a stand-in for TensorRT-RTX."""
    module = ModuleType("tensorrt_rtx")
    module.__spec__ = SimpleNamespace(name="tensorrt_rtx")  # type: ignore[assignment]
    module.__version__ = "1.7.1"  # type: ignore[attr-defined]
    members = dict.fromkeys(("NONE", "SM86", "SM89"))
    module.ComputeCapability = SimpleNamespace(__members__=members)  # type: ignore[attr-defined]
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


def test_a_gpu_the_library_refuses_is_no_usable_engine(library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX builds on an H200 and does not run there."""
    monkeypatch.setattr(cuda_library, "gpu_sm", lambda: "sm90")
    finding = tensorrt_finding()
    assert not finding.is_usable
    assert finding.note == "tensorrt_rtx 1.7.1 builds engines here; this GPU is sm90, they run on sm86, sm89 only"


def test_a_broken_library_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its import error is told, not that it is absent."""
    (tmp_path / "tensorrt_rtx.py").write_text("raise ImportError('no libtensorrt_rtx.so')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorrt_rtx", raising=False)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    finding = tensorrt_finding()
    assert not finding.is_usable
    assert finding.note.startswith("tensorrt_rtx is installed and cannot be imported: no libtensorrt_rtx.so")


CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def fake_cuda(monkeypatch: pytest.MonkeyPatch, cache: Path, name: str, *, has_bitwise_rows: bool = True) -> None:
    """Let ``name`` stand in for the CUDA provider, and ``cache`` for the cache folder."""
    monkeypatch.setenv("EDGEPREC_CACHE", str(cache))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [name])
    monkeypatch.setitem(PROVIDERS, "cuda", Provider(name=name, device="cpu", has_bitwise_rows=has_bitwise_rows))


def test_without_cuda_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An onnxruntime for CPUs has nothing to fall back from."""
    monkeypatch.setenv("EDGEPREC_CACHE", str(tmp_path))
    assert cuda_fallbacks(["CPUExecutionProvider"]) is None


def test_without_the_demo_pair_it_says_where_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Doctor fetches nothing."""
    monkeypatch.setenv("EDGEPREC_CACHE", str(tmp_path))
    assert cuda_fallbacks(CUDA) == (
        "what falls back to the CPU stands in each reply, and here once edgeprec demo has run"
    )


def test_the_demo_pair_shows_what_falls_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_pair: Path) -> None:
    """The graph is loaded for real and its nodes are counted; what went wrong is told in words."""
    (tmp_path / BUNDLE_NAME).symlink_to(tiny_pair)
    fake_cuda(monkeypatch, tmp_path, "CPUExecutionProvider")
    assert cuda_fallbacks(["CPUExecutionProvider"]) == "provider cuda runs every node of the demo pair on the GPU"
    finding = next(finding for finding in survey_engines() if finding.name == "onnxruntime")
    assert finding.note.endswith("providers CPU; provider cuda runs every node of the demo pair on the GPU")
    fake_cuda(monkeypatch, tmp_path, "CUDAExecutionProvider")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["AzureExecutionProvider"])
    assert str(cuda_fallbacks(CUDA)).startswith("provider cuda does not run the demo pair: onnxruntime ")


def test_doctor_says_where_exact_is_not_literal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_pair: Path
) -> None:
    """A provider whose rows were not compared bit by bit is named as one where near ties may differ."""
    (tmp_path / BUNDLE_NAME).symlink_to(tiny_pair)
    fake_cuda(monkeypatch, tmp_path, "CPUExecutionProvider", has_bitwise_rows=False)
    assert cuda_fallbacks(["CPUExecutionProvider"]) == (
        f"provider cuda runs every node of the demo pair on the GPU; {NEAR_TIES}"
    )
