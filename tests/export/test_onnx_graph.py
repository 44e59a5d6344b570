"""The exported graph against Hugging Face transformers, row by row and gate by gate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from edgeprec.architecture import ModelConfig
from edgeprec.errors import EdgePrecError
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.graph_builder import ExternalTensor
from edgeprec.export.graph_check import check_fused, executed_operators
from edgeprec.export.model_tensors import even_width, layer_tensors, outer_tensors
from edgeprec.export.onnx_graph import COMPUTE_TYPES, GraphWeights, build_graph
from edgeprec.export.tensor_file import TensorFileWriter
from edgeprec.kernels.layout import num_groups, pack_nibbles
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.tensor_names import fp16_tensors, int4_tensors
from edgeprec.tensor_spec import TensorType

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 2e-3  # float32 against float32; weights are rounded to float16 on our side
CASES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "tied": True},
    "llama-untied-odd-vocabulary": {"family": "llama", "tied": False, "vocab_size": 333, "hidden_size": 40},
    "llama3-rope": {
        "family": "llama",
        "head_dim": 16,
        "max_positions": 256,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"family": "mistral", "num_heads": 6, "num_kv_heads": 3, "head_dim": 10, "tied": False},
    "qwen2": {"family": "qwen2", "intermediate_size": 90},
    "qwen3": {"family": "qwen3", "head_dim": 14, "tied": True},
    "qwen3-runtime-attention": {"family": "qwen3", "head_dim": 32, "tied": True},
    "qwen2-runtime-attention": {"family": "qwen2", "hidden_size": 96, "num_heads": 6, "num_kv_heads": 3},
}
ONNX_TYPES = {TensorType.F16: onnx.TensorProto.FLOAT16, TensorType.F32: onnx.TensorProto.FLOAT}


@dataclass(frozen=True)
class Exported:
    """A tiny model in both worlds; ``dequantized`` holds the INT4 values of every linear as float32 [K, N]."""

    config: ModelConfig
    directory: Path
    graph: Path
    reference: Any
    dequantized: dict[str, npt.NDArray[np.float32]]

    def engine(self, context_tokens: int = 64) -> OnnxRuntimeEngine:
        return OnnxRuntimeEngine.open(self.graph, self.config, context_tokens=context_tokens, threads=1)


def round_to_nearest(weight: npt.NDArray[np.float16], group: int, zeros: bool) -> dict[str, npt.NDArray[Any]]:
    """Quantize [K, N] bluntly; the real quantizer has its own tests."""
    k, n = weight.shape
    groups = num_groups(k, group)
    padded = np.zeros((groups * group, n), np.float32)
    padded[:k] = weight
    blocks = padded.reshape(groups, group, n)
    low, high = blocks.min(1), blocks.max(1)
    scales = ((high - low) / 15 if zeros else np.abs(blocks).max(1) / 7).astype(np.float16)
    safe = np.where(scales == 0, np.float16(1), scales).astype(np.float32)
    zero = np.clip(np.rint(-low / safe), 0, 15) if zeros else np.zeros_like(safe)
    limits = (0, 15) if zeros else (-8, 7)
    q = np.clip(np.rint(blocks / safe[:, None]) + zero[:, None], *limits)
    arrays = {"packed": pack_nibbles(q.reshape(-1, n)[:k].astype(np.int8)), "scales": scales}
    if zeros:
        arrays["zeros"] = pack_nibbles(zero.astype(np.uint8))
    arrays["dequantized"] = (((q - zero[:, None]) * scales[:, None]).reshape(-1, n)[:k]).astype(np.float32)
    return arrays


def write_model(source: Path, directory: Path, *, group: int, zeros: bool) -> tuple[ModelConfig, Any]:
    """Write both tensor files and the graph of a checkpoint; return its config and the dequantized linears."""
    checkpoint = open_checkpoint(str(source))
    config = checkpoint.config
    tensors = dict(outer_tensors(checkpoint))
    for layer in range(config.num_layers):
        tensors |= layer_tensors(checkpoint, layer)
    linears = {name: x for name, x in tensors.items() if x.ndim == 2 and name != "embed"}
    linears.setdefault("head", tensors["embed"].T)
    quantized = {name: round_to_nearest(even_width(x), group, zeros) for name, x in linears.items()}
    refs: dict[str, dict[str, ExternalTensor]] = {}
    for file, specs in (
        ("fp16", fp16_tensors(config)),
        ("int4", int4_tensors(config, group_size=group, symmetric=not zeros)),
    ):
        path = directory / f"{file}.safetensors"
        with TensorFileWriter(path, specs) as writer:
            for spec in specs:
                name, _, part = spec.name.rpartition(".")
                writer.write(spec.name, tensors[spec.name] if file == "fp16" else quantized[name][part])
            refs[file] = {spec.name: _external(writer, spec, path.name, zeros) for spec in specs}
    weights = GraphWeights(fp16=refs["fp16"], int4=refs["int4"], group_size=group)
    for compute in COMPUTE_TYPES:
        model = build_graph(config, weights, compute=compute)
        onnx.save(model, directory / f"model.{compute}.onnx")
        onnx.checker.check_model(directory / f"model.{compute}.onnx", full_check=True)
    return config, {name: arrays["dequantized"] for name, arrays in quantized.items()}


def _external(writer: TensorFileWriter, spec: Any, location: str, zeros: bool) -> ExternalTensor:
    place = writer.placement(spec.name)
    packed_type = onnx.TensorProto.UINT4 if zeros else onnx.TensorProto.INT4
    is_packed = spec.dtype is TensorType.U8
    return ExternalTensor(
        location=location,
        offset_bytes=place.offset_bytes,
        length_bytes=place.length_bytes,
        shape=(spec.shape[0], 2 * spec.shape[1]) if is_packed else spec.shape,
        data_type=packed_type if is_packed else ONNX_TYPES[spec.dtype],
    )


def build(checkpoints: ModuleType, tmp_path: Path, *, group: int = 32, zeros: bool = False, **spec: Any) -> Exported:
    """Make a checkpoint, export it, load it with transformers too."""
    source = checkpoints.make_checkpoint(tmp_path / "source", **spec)
    directory = tmp_path / "model"
    directory.mkdir()
    config, dequantized = write_model(source, directory, group=group, zeros=zeros)
    reference = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    return Exported(config, directory, directory / "model.fp32.onnx", reference, dequantized)


def reference_logits(model: Any, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Return transformers' logits [T, V]."""
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(torch.tensor([tokens])).logits[0].numpy()
    return logits


def use_int4_weights(exported: Exported, layers: range, *, head: bool) -> None:
    """Put the dequantized INT4 values into the reference model's linears."""
    config, inner = exported.config, exported.reference.model
    for index in layers:
        attention, mlp = inner.layers[index].self_attn, inner.layers[index].mlp
        name = f"layers.{index}."
        sizes = [config.q_size, config.kv_size, config.kv_size]
        parts = np.split(exported.dequantized[name + "qkv"], np.cumsum(sizes)[:-1], axis=1)
        halves = np.split(exported.dequantized[name + "gate_up"], 2, axis=1)
        targets = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        targets += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        values = [*parts, exported.dequantized[name + "o"], *halves, exported.dequantized[name + "down"]]
        for linear, value in zip(targets, values, strict=True):
            linear.weight.data = torch.from_numpy(np.ascontiguousarray(value.T))
    if head:
        value = exported.dequantized["head"][:, : config.vocab_size]
        exported.reference.lm_head.weight = torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(value.T)))


def random_tokens(config: ModelConfig, count: int, seed: int = 5) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, config.vocab_size, count)]


def assert_close(got: npt.NDArray[np.float32], want: npt.NDArray[np.float32], tolerance: float) -> None:
    difference = np.abs(got - want)
    assert difference.max() < tolerance, f"max difference {difference.max():.3e}, mean {difference.mean():.3e}"


@pytest.mark.parametrize("case", CASES)
def test_fp16_plan_equals_transformers(checkpoints: ModuleType, tmp_path: Path, case: str) -> None:
    """Every supported architecture computes the function its checkpoint means."""
    exported = build(checkpoints, tmp_path, **CASES[case])
    tokens = random_tokens(exported.config, 33)
    plan = Plan.uniform(Precision.FP16, num_layers=exported.config.num_layers)
    got = exported.engine().forward(tokens, position=0, plan=plan).logits
    assert_close(got, reference_logits(exported.reference, tokens), TOLERANCE)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("group", "zeros"), [(32, False), (64, True), (128, False)])
def test_int4_plan_equals_dequantized_weights(
    checkpoints: ModuleType, tmp_path: Path, case: str, group: int, zeros: bool
) -> None:
    """The INT4 branch runs the stored INT4 values, with blocks that do not divide K; int8 activations cost < 5 %."""
    exported = build(checkpoints, tmp_path, group=group, zeros=zeros, **CASES[case])
    tokens = random_tokens(exported.config, 17)
    layers = exported.config.num_layers
    got = exported.engine().forward(tokens, position=0, plan=Plan.uniform(Precision.INT4, num_layers=layers)).logits
    use_int4_weights(exported, range(layers), head=True)
    want = reference_logits(exported.reference, tokens)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error < 0.05, f"relative error {error:.4f}"


@pytest.mark.parametrize("int4_layers", [(0,), (1,), (0, 2)])
def test_gates_choose_each_layer(checkpoints: ModuleType, tmp_path: Path, int4_layers: tuple[int, ...]) -> None:
    """A gate switches its own layer and no other."""
    exported = build(checkpoints, tmp_path, family="llama", num_layers=3)
    tokens = random_tokens(exported.config, 12)
    got = exported.engine().forward(tokens, position=0, plan=Plan.with_int4_layers(int4_layers, num_layers=3)).logits
    plain = reference_logits(exported.reference, tokens)
    for layer in int4_layers:
        use_int4_weights(exported, range(layer, layer + 1), head=False)
    want = reference_logits(exported.reference, tokens)
    error, distance = np.linalg.norm(got - want), np.linalg.norm(got - plain)
    assert error < 0.2 * distance, f"to the gated reference {error:.3e}, to plain FP16 {distance:.3e}"


def test_no_weight_is_dequantized_at_run_time(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Every INT4 linear is fused, biases and odd vocabularies included."""
    exported = build(checkpoints, tmp_path, family="qwen2", vocab_size=333)
    check_fused(exported.graph, exported.config)
    counts = executed_operators(exported.graph, exported.config)
    assert (counts["DequantizeLinear"], counts["MatMulNBits"]) == (0, 4 * exported.config.num_layers + 1)


def test_an_unfused_graph_is_refused(checkpoints: ModuleType, tmp_path: Path) -> None:
    """The check sees a linear that ONNX Runtime cannot fuse: here, an operator stands between weight and MatMul."""
    exported = build(checkpoints, tmp_path, family="qwen2")
    model = onnx.load(exported.graph, load_external_data=False)
    gated = next(node for node in model.graph.node if node.op_type == "If")
    branch = next(attribute for attribute in gated.attribute if attribute.name == "then_branch").g
    product = next(node for node in branch.node if node.op_type == "MatMul")
    between = onnx.helper.make_node("Abs", [product.input[1]], ["between"], name="between")
    product.input[1] = "between"
    branch.node.insert(list(branch.node).index(product), between)
    onnx.save(model, exported.directory / "changed.onnx")
    with pytest.raises(EdgePrecError, match="MatMulNBits ran in one INT4 step, expected"):
        check_fused(exported.directory / "changed.onnx", exported.config)


def operators(graph: Path) -> Counter[str]:
    """Count the operators outside the branches."""
    return Counter(node.op_type for node in onnx.load(graph, load_external_data=False).graph.node)


def test_attention_is_the_runtimes_own_where_it_takes_the_heads(checkpoints: ModuleType, tmp_path: Path) -> None:
    """One operator a layer in the graph for the CPU; the one for other devices, and other heads, stay standard."""
    for head_dim, count in ((16, 2), (12, 0)):
        folder = tmp_path / str(head_dim)
        folder.mkdir()
        exported = build(checkpoints, folder, family="llama", num_layers=2, head_dim=head_dim)
        for compute, fused in (("fp32", count), ("fp16", 0)):
            found = operators(exported.directory / f"model.{compute}.onnx")
            assert (found["GroupQueryAttention"], found["Attention"]) == (fused, 2 - fused)
            assert bool(found["RotaryEmbedding"]) is (not fused)


@pytest.mark.parametrize("head_dim", [12, 16])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 16])
def test_fp16_logits_do_not_depend_on_the_rows_of_a_pass(
    checkpoints: ModuleType, tmp_path: Path, rows: int, head_dim: int
) -> None:
    """Verification gives the very bits of plain decoding: the ground on which `exact` stands."""
    exported = build(checkpoints, tmp_path, family="llama", hidden_size=64, num_heads=4, head_dim=head_dim)
    tokens = random_tokens(exported.config, 48)
    engine, plan = exported.engine(), Plan.uniform(Precision.FP16, num_layers=exported.config.num_layers)
    engine.forward(tokens[:16], position=0, plan=plan)
    whole = engine.forward(tokens[16:], position=16, plan=plan).logits.copy()
    pieces = [
        engine.forward(tokens[start : min(start + rows, 48)], position=start, plan=plan).logits.copy()
        for start in range(16, 48, rows)
    ]
    difference = np.abs(np.concatenate(pieces) - whole).max()
    assert difference == 0.0, f"max difference {difference:.3e}"


@pytest.mark.parametrize("head_dim", [12, 16])
def test_rollback_leaves_no_stale_entry_visible(checkpoints: ModuleType, tmp_path: Path, head_dim: int) -> None:
    """After wrong tokens were written and position went back, logits equal those of a fresh cache."""
    exported = build(checkpoints, tmp_path, family="llama", head_dim=head_dim)
    tokens, wrong = random_tokens(exported.config, 20), random_tokens(exported.config, 12, seed=9)
    layers = exported.config.num_layers
    fp16, int4 = (Plan.uniform(precision, num_layers=layers) for precision in (Precision.FP16, Precision.INT4))
    engine = exported.engine()
    engine.forward(tokens[:10], position=0, plan=fp16)
    engine.forward(wrong, position=10, plan=int4)
    after = engine.forward(tokens[10:], position=10, plan=fp16).logits.copy()
    fresh = exported.engine()
    fresh.forward(tokens[:10], position=0, plan=fp16)
    want = fresh.forward(tokens[10:], position=10, plan=fp16).logits
    assert np.array_equal(after, want), f"max difference {np.abs(after - want).max():.3e}"
