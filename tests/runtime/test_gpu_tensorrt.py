"""Engines built here and run on the GPU at hand, where TensorRT's runtime takes it: the CPU engine's logits."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import edgeprec
from edgeprec.bundle import Bundle
from edgeprec.config import GenerationConfig
from edgeprec.cuda_library import gpu_sm
from edgeprec.errors import DeviceError, EngineError, MissingDependency
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.engine_tensorrt import TensorRtEngine
from edgeprec.tensorrt_library import find_tensorrt

pytestmark = pytest.mark.gpu

CONTEXT, VOCABULARY = 128, 288
TOLERANCE = 0.02  # FP16 activations against float32 ones, on logits of a few units
INT4_TOLERANCE = 0.2  # the CPU engine rounds activations to int8 there
FP16 = Plan.uniform(Precision.FP16, num_layers=3)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, VOCABULARY - 16, CONTEXT)]


@pytest.fixture(scope="module")
def built(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Export a tiny pair and build its engines for this GPU, or skip where TensorRT cannot run here."""
    try:
        library, sm = find_tensorrt(purpose="a test"), gpu_sm()
    except (MissingDependency, EngineError, DeviceError) as error:
        pytest.skip(str(error))
    if not library.runs_on(sm):
        pytest.skip(f"{library.name} does not run on {sm}")
    from edgeprec.export.progress import silent
    from edgeprec.export.tensorrt import EngineSettings, build_engines

    folder = tmp_path_factory.mktemp("trt")
    checkpoint = checkpoints.make_checkpoint(
        folder / "target", "llama", vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_layers=3,
        num_heads=4, num_kv_heads=2, max_positions=256,
    )  # fmt: skip
    bundle = Bundle.open(edgeprec.export_bundle(checkpoint, folder / "tiny.edgeprec"))
    settings = EngineSettings(sms=(sm,), context_tokens=CONTEXT, layers_per_segment=2)
    return build_engines(bundle, settings, progress=silent)


def test_logits_are_the_cpu_engines(built: Bundle) -> None:
    """Prefill, single rows in both precisions, and a rollback follow the float32 engine."""
    model = built.target
    engine = TensorRtEngine.open(model, context_tokens=CONTEXT)
    cpu = OnnxRuntimeEngine.open(model.graph_path("fp32"), model.architecture, context_tokens=CONTEXT)
    passes = [
        (0, 16, FP16),
        (16, 20, FP16),
        (20, 21, INT4),
        (21, 22, INT4),
        (20, 24, FP16),
        (24, 25, FP16),
    ]
    for start, end, plan in passes:
        expected = cpu.forward(TEXT[start:end], position=start, plan=plan).logits
        difference = np.abs(engine.forward(TEXT[start:end], position=start, plan=plan).logits - expected)
        tolerance = TOLERANCE if plan.is_fp16 else INT4_TOLERANCE
        assert difference.max() < tolerance, f"{start}: max {difference.max()}, mean {difference.mean()}"
    cpu.close()
    engine.close()


@pytest.mark.parametrize("mode", ["exact", "fp16", "int4"])
def test_a_session_decodes(built: Bundle, mode: str) -> None:
    """From ``edgeprec.load`` to tokens, and a second reply that starts from what the cache holds is the first."""
    config = GenerationConfig(mode=mode, max_new_tokens=12, ignore_eos=True)  # type: ignore[arg-type]
    with edgeprec.load(built.root, engine="tensorrt", context_tokens=CONTEXT, sensor="none") as session:
        first, second = (session.generate("abcabc", config) for _ in range(2))
    assert len(first.tokens) == 12
    assert first.tokens == second.tokens
