"""Names and shapes of stored tensors follow from the architecture alone."""

from __future__ import annotations

from types import ModuleType

import pytest

from edgeprec.tensor_names import fp16_tensors, int4_tensors, linear_names, num_linear_weights
from edgeprec.tensor_spec import TensorType


def test_fp16_file_of_a_tied_llama(bundles: ModuleType) -> None:
    """Embedding first, then layer by layer, so that an export writes forwards."""
    names = [spec.name for spec in fp16_tensors(bundles.make_config(num_layers=1))]
    assert names == [
        "embed",
        "layers.0.input_norm",
        "layers.0.post_attention_norm",
        "layers.0.qkv",
        "layers.0.o",
        "layers.0.gate_up",
        "layers.0.down",
        "final_norm",
    ]


def test_families_add_biases_norms_and_a_head(bundles: ModuleType) -> None:
    """Qwen2 brings biases, Qwen3 head norms, an untied model its own head."""
    config = bundles.make_config(family="qwen3", has_qkv_bias=True, has_qk_norm=True, tied_embeddings=False)
    specs = {spec.name: spec for spec in fp16_tensors(config)}
    assert specs["layers.1.qkv.bias"].shape == (32,)
    assert specs["layers.1.q_norm"].shape == specs["layers.1.k_norm"].shape == (8,)
    assert specs["head"].shape == (16, 21)
    assert {spec.dtype for spec in specs.values() if len(spec.shape) == 1} == {TensorType.F32}


@pytest.mark.parametrize(("symmetric", "kinds"), [(True, 2), (False, 3)])
def test_int4_file_has_every_linear(bundles: ModuleType, symmetric: bool, kinds: int) -> None:
    """Each linear and the head have packed values and scales, and zero points where asked for."""
    config = bundles.make_config()
    specs = int4_tensors(config, group_size=32, symmetric=symmetric)
    assert len(specs) == kinds * len(linear_names(config))
    assert specs[0].name == "layers.0.qkv.packed"


def test_odd_width_and_short_last_block(bundles: ModuleType) -> None:
    """An odd vocabulary is one column wider in INT4, and a short block has scales of its own."""
    specs = {spec.name: spec for spec in int4_tensors(bundles.make_config(), group_size=32, symmetric=False)}
    assert specs["head.packed"].shape == (16, 11)
    assert specs["head.scales"].shape == (1, 22)
    assert specs["head.zeros"].shape == (1, 11)
    assert specs["layers.0.down.scales"].shape == (2, 16)  # K = 40 in blocks of 32


def test_sharing_leaves_tensors_out(bundles: ModuleType) -> None:
    """A draft that shares the target's embedding and head stores neither."""
    entry = bundles.make_entry("draft", shares_embedding=True, shares_head=True)
    names = {spec.name for spec in (*entry.fp16_specs, *entry.int4_specs)}
    assert not {"embed", "head", "head.packed", "head.scales"} & names


def test_linear_weights_are_counted_once(bundles: ModuleType) -> None:
    """Bits per weight are counted over the linears and the head."""
    config = bundles.make_config()
    per_layer = 16 * 32 + 16 * 16 + 16 * 80 + 40 * 16
    assert num_linear_weights(config) == 2 * per_layer + 16 * 21
