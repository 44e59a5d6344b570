"""What the torch engine refuses before it loads anything: devices, Triton, blocks, memory; and errors while running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edgeprec.available_memory import AvailableMemory
from edgeprec.bundle import Bundle
from edgeprec.errors import BundleError, ConfigError, EngineError, MemoryBudgetError
from edgeprec.kernels import dispatch
from edgeprec.kernels.dispatch import KernelBackend, kernel_backend
from edgeprec.precision import Plan, Precision
from edgeprec.runtime import torch_device, torch_model, torch_opening
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_device import available_memory, choose_device, require_blocks
from edgeprec.runtime.torch_io import checked, row_facts
from edgeprec.runtime.torch_memory import bundle_forms, max_rows, plan_pair
from edgeprec.runtime.torch_opening import open_torch_pair, plan_torch_pair

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def bundle(tiny_pair: Path) -> Bundle:
    """Open the tiny pair."""
    return Bundle.open(tiny_pair)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch believe in a GPU called Fake, of SM 75."""
    kernel_backend.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fake")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    yield
    kernel_backend.cache_clear()


def test_without_a_gpu_the_cpu_computes() -> None:
    """No wish and no GPU is the CPU; a GPU that was asked for and is not there is named."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert choose_device(None) == choose_device("cpu") == CPU
    with pytest.raises(EngineError, match="finds no CUDA device: install a torch with CUDA"):
        choose_device("cuda")


def test_unknown_provider() -> None:
    """The message lists what there is."""
    with pytest.raises(ConfigError, match="provider is 'rocm', the torch engine has cpu and cuda"):
        choose_device("rocm")


def test_gpu_that_is_too_old(fake_gpu: None) -> None:
    """SM 75 is refused in one sentence with what to use instead, not run slowly."""
    with pytest.raises(EngineError, match=r"the GPU is SM 75, SM 80 or later is needed; use --engine onnxruntime"):
        choose_device(None)
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize(
    ("found", "version", "match"),
    [(None, "", "Triton is not installed, 3.4 or later"), (object(), "3.1.0", "Triton is 3.1.0, 3.4 or later")],
)
def test_triton_absent_or_too_old(
    fake_gpu: None, monkeypatch: pytest.MonkeyPatch, found: object, version: str, match: str
) -> None:
    """Both are one sentence."""
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(dispatch.metadata, "version", lambda name: version)
    with pytest.raises(EngineError, match=match):
        choose_device(None)


def test_good_gpu_is_chosen(fake_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels that run there, no wish is the GPU, and its free memory is what counts."""
    monkeypatch.setattr(torch_device, "kernel_backend", lambda device: KernelBackend("triton"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (123, 456))
    assert choose_device(None) == choose_device("cuda") == GPU
    assert available_memory(GPU) == AvailableMemory(123, "free on cuda:0 Fake")


def test_gpu_that_does_not_answer(fake_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU lost before loading is an engine error."""

    def lost(device: Any) -> None:
        raise RuntimeError("CUDA error: device lost\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lost)
    with pytest.raises(EngineError, match=r"cuda:0 does not say how much memory is free: CUDA error: device lost$"):
        available_memory(GPU)


def test_blocks_no_kernel_takes(bundle: Bundle) -> None:
    """A bundle quantized in blocks of 16 is refused with the flag that helps."""
    require_blocks(bundle.target)
    entry = bundle.target.entry
    odd = replace(bundle.target, entry=replace(entry, int4=replace(entry.int4, group_size=16)))
    with pytest.raises(EngineError, match=r"target's INT4 blocks have 16 weights, .* take 32, 64, 128: .*--group-size"):
        require_blocks(odd)


def test_plan_is_the_arena_and_an_allowance(bundle: Bundle) -> None:
    """Both models and caches; the arena is used to the last byte, on a CPU and with a GPU's layout."""
    for device in (CPU, GPU):
        plan = plan_pair(bundle, device=device, context_tokens=100)
        arena = sum(form.arena_bytes for form in bundle_forms(bundle, device=device, context_tokens=100))
        buffers = plan.total_bytes - plan.workspace_bytes
        assert buffers < arena < plan.total_bytes
    engines = open_torch_pair(bundle, context_tokens=100, provider="cpu")
    forms = bundle_forms(bundle, device=CPU, context_tokens=100)
    assert [engine.info.memory_bytes for engine in engines] == [form.arena_bytes for form in forms]


def test_arena_is_used_up(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned is what is taken; one byte less is an error that names both."""
    arenas: list[Arena] = []

    def kept(size: int, device: Any) -> Arena:
        arenas.append(Arena(size, device))
        return arenas[-1]

    monkeypatch.setattr(torch_opening, "Arena", kept)
    open_torch_pair(bundle, context_tokens=64, provider="cpu")
    assert arenas[0].used_bytes == arenas[0].size_bytes
    monkeypatch.setattr(torch_opening, "Arena", lambda size, device: Arena(size - 256, device))
    with pytest.raises(EngineError, match="the memory plan has"):
        open_torch_pair(bundle, context_tokens=64, provider="cpu")


def test_what_does_not_fit_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest context that fits is named, before anything is loaded; the refusal names the device."""
    fits = plan_pair(bundle, device=CPU, context_tokens=60).total_bytes
    monkeypatch.setattr(torch_opening, "available_memory", lambda device: AvailableMemory(fits, "free on cuda:0 Fake"))
    monkeypatch.setattr(torch_opening, "Arena", None)
    with pytest.raises(MemoryBudgetError, match=r"engine torch, .*\(free on cuda:0 Fake\): use --context 6\d or less"):
        open_torch_pair(bundle, context_tokens=200, provider="cpu")
    with pytest.raises(ConfigError, match="context is 300 tokens, expected 1 to 200"):
        plan_torch_pair(bundle, context_tokens=300, provider="cpu")


def test_memory_that_another_process_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation that fails although it was planned is the exit code of memory."""

    def none_left(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", none_left)
    with pytest.raises(MemoryBudgetError, match="cpu has no 1 MiB in one piece"):
        Arena(2**20, CPU)


def test_device_lost_while_running(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch raises in the middle of a pass arrives as an engine error of one line."""
    engine = open_torch_pair(bundle, context_tokens=64, provider="cpu")[0]

    def lost(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUDA error: an illegal instruction was encountered\nCUDA kernel errors might be ...")

    monkeypatch.setattr(torch_model, "embed", lost)
    with pytest.raises(EngineError, match="torch failed at position 3: CUDA error: an illegal instruction") as caught:
        engine.forward([1], position=3, plan=Plan.uniform(Precision.FP16, num_layers=3))
    assert "\n" not in str(caught.value)


def test_kernel_that_does_not_fit_the_gpu(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's errors are no RuntimeErrors: they arrive as ours all the same."""
    errors = pytest.importorskip("triton.runtime.errors")
    engine = open_torch_pair(bundle, context_tokens=64, provider="cpu")[0]

    def too_large(*args: Any, **kwargs: Any) -> None:
        raise errors.OutOfResources(131072, 101376, "shared memory")

    monkeypatch.setattr(torch_model, "rms_norm", too_large)
    with pytest.raises(EngineError, match="torch failed at position 0: out of resource: shared memory"):
        engine.forward([1], position=0, plan=Plan.uniform(Precision.FP16, num_layers=3))


def test_closed_engine_says_so(bundle: Bundle) -> None:
    """Closing twice is harmless, running afterwards is not."""
    engine = open_torch_pair(bundle, context_tokens=64, provider="cpu")[0]
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed: open the bundle again"):
        engine.forward([1], position=0, plan=Plan.uniform(Precision.FP16, num_layers=3))


def test_damaged_file_is_a_bundle_error(tiny_pair: Path, tmp_path: Path) -> None:
    """A truncated safetensors file is named."""
    import shutil

    copy = Bundle.open(Path(shutil.copytree(tiny_pair, tmp_path / "copy.edgeprec")))
    data = copy.target.int4_path.read_bytes()
    copy.target.int4_path.write_bytes(data[: len(data) // 2])
    with pytest.raises(BundleError, match=r"int4\.safetensors"):
        open_torch_pair(copy, context_tokens=64, provider="cpu")


def test_facts_of_a_broken_row_are_refused() -> None:
    """A row of NaN has an id beyond the vocabulary or no entropy; both are errors, never a token."""
    statistics = torch.zeros(3, 3, dtype=torch.int32)
    statistics[0] = torch.tensor([4, 7, 2])
    statistics[1:].view(torch.float32)[:] = torch.tensor([[1.5, 0.0, 2.0], [0.25, 0.0, float("nan")]])
    good, no_id, no_entropy = row_facts(statistics.numpy())
    assert checked(good, 0, vocabulary=7) == (4, 0.25, 1.5)
    for row, broken in ((1, no_id), (2, no_entropy)):
        with pytest.raises(EngineError, match=f"row {row} of the logits holds NaN"):
            checked(broken, row, vocabulary=7)


def test_rows_of_a_pass() -> None:
    """Long contexts run shorter passes, batches longer ones."""
    assert max_rows(context_tokens=4096, sequences=1) == 128
    assert max_rows(context_tokens=16_384, sequences=1) == 64
    assert max_rows(context_tokens=100_000, sequences=1) == 16
    assert max_rows(context_tokens=4096, sequences=64) == 512
