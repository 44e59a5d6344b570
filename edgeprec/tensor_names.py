"""Which tensors the two safetensors files of a model hold: names, types and shapes as functions of the architecture.

    fp16.safetensors   embed [V, D] F16; per layer the norms and biases F32, the linears [K, N] F16; final_norm [D] F32;
                       head [D, V] F16 unless the embedding serves
    int4.safetensors   per linear and for the head: .packed U8 [K, ceil(N / 2)], .scales F16 [ceil(K / G), N'],
                       .zeros U8 [ceil(K / G), ceil(N / 2)] unless symmetric

N' is N rounded up to an even number, because an ONNX INT4 tensor has no gap at the end of a row: the graph reads an odd
linear one column wider, and that column's nibble and scale are 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgeprec.architecture import LINEARS, ModelConfig
from edgeprec.tensor_spec import TensorSpec, TensorType

__all__ = [
    "HOIST_BYTES",
    "fp16_layer_tensors",
    "fp16_tensors",
    "int4_linear_tensors",
    "int4_tensors",
    "linear_name",
    "linear_names",
    "num_linear_weights",
    "shares_fp16_constants",
]

HOIST_BYTES = 1 << 30


def linear_name(layer: int, linear: str) -> str:
    """Return the name of a decoder layer's linear, ``layers.3.qkv``."""
    return f"layers.{layer}.{linear}"


def linear_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of every quantized linear, the head last."""
    return (*(linear_name(layer, linear) for layer in range(config.num_layers) for linear in LINEARS), "head")


def num_linear_weights(config: ModelConfig) -> int:
    """Return how many weights the linears have, head included: what bits per weight are counted over."""
    shapes = [config.linear_shape(linear) for linear in LINEARS]
    head_k, head_n = config.linear_shape("head")
    return config.num_layers * sum(k * n for k, n in shapes) + head_k * head_n


def shares_fp16_constants(config: ModelConfig) -> bool:
    """Return whether the graph keeps FP16 weights outside its If branches.

    Inside a branch ONNX Runtime keeps a weight twice once it is packed; outside it does not, and each If then takes
    some 20 us more (measured, docs/lab-notes.md). So models whose float32 weights pass 1 GiB keep them outside.
    """
    return 4 * num_linear_weights(config) > HOIST_BYTES


def fp16_tensors(
    config: ModelConfig, *, has_embedding: bool = True, has_head: bool | None = None
) -> tuple[TensorSpec, ...]:
    """Return what ``fp16.safetensors`` holds, in file order.

    A draft that shares the target's embedding or head leaves them out. ``has_head`` None = untied.
    """
    wants_head = not config.tied_embeddings if has_head is None else has_head
    vocabulary, width = config.vocab_size, config.hidden_size
    specs: list[TensorSpec] = []
    if has_embedding:
        specs.append(TensorSpec("embed", TensorType.F16, (vocabulary, width)))
    for layer in range(config.num_layers):
        specs.extend(fp16_layer_tensors(config, layer))
    specs.append(TensorSpec("final_norm", TensorType.F32, (width,)))
    if wants_head:
        specs.append(TensorSpec("head", TensorType.F16, (width, vocabulary)))
    return tuple(specs)


def fp16_layer_tensors(config: ModelConfig, layer: int) -> tuple[TensorSpec, ...]:
    """Return one decoder layer's part of ``fp16.safetensors``, in file order."""
    width, prefix = config.hidden_size, f"layers.{layer}"
    vectors = {"input_norm": width, "post_attention_norm": width}
    if config.has_qkv_bias:
        vectors["qkv.bias"] = config.linear_shape("qkv")[1]
    if config.has_qk_norm:
        vectors |= {"q_norm": config.head_dim, "k_norm": config.head_dim}
    return (
        *(TensorSpec(f"{prefix}.{name}", TensorType.F32, (size,)) for name, size in vectors.items()),
        *(TensorSpec(linear_name(layer, name), TensorType.F16, config.linear_shape(name)) for name in LINEARS),
    )


def int4_tensors(
    config: ModelConfig, *, group_size: int, symmetric: bool, has_head: bool = True
) -> tuple[TensorSpec, ...]:
    """Return what ``int4.safetensors`` holds, in file order. A draft that shares the target's head leaves it out."""
    names = linear_names(config) if has_head else linear_names(config)[:-1]
    return tuple(
        spec for name in names for spec in int4_linear_tensors(config, name, group_size=group_size, symmetric=symmetric)
    )


def int4_linear_tensors(config: ModelConfig, name: str, *, group_size: int, symmetric: bool) -> Iterator[TensorSpec]:
    """Yield the tensors of one linear, ``layers.3.qkv`` or ``head``."""
    k, n = config.linear_shape(name.rpartition(".")[2])
    groups, half = -(-k // group_size), (n + 1) // 2
    yield TensorSpec(f"{name}.packed", TensorType.U8, (k, half))
    yield TensorSpec(f"{name}.scales", TensorType.F16, (groups, 2 * half))
    if not symmetric:
        yield TensorSpec(f"{name}.zeros", TensorType.U8, (groups, half))
