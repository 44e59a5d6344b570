"""config.json -> ModelConfig: what is translated, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from edgeprec.architecture import Llama3RopeScaling, ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.hf_config import read_model_config
from edgeprec.export.json_object import JsonObject

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA3_SCALING = Llama3RopeScaling(
    factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)


def read(changes: dict[str, Any] | None = None, *, drop: str = "", has_head: bool = False) -> ModelConfig:
    """Read SmolLM2's configuration with some keys changed or one dropped."""
    values = {key: value for key, value in {**SMOLLM2, **(changes or {})}.items() if key != drop}
    return read_model_config(JsonObject(values, origin="config.json"), has_head=has_head)


def test_smollm2_is_read_whole() -> None:
    """A published configuration gives exactly these shapes and constants."""
    assert read() == ModelConfig(
        family="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        max_positions=8192,
        tied_embeddings=True,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, {"family": "qwen2", "has_qkv_bias": True}),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": 128}, {"has_qk_norm": True, "head_dim": 128}),
        ({"architectures": ["Qwen3ForCausalLM"]}, {"head_dim": 128}),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, {"family": "mistral"}),
        ({"architectures": None, "model_type": "qwen2"}, {"family": "qwen2"}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 9}),
        ({"head_dim": 32}, {"head_dim": 32}),
        ({"rope_theta": None}, {"rope_theta": 10_000.0}),
        ({"tie_word_embeddings": False}, {"tied_embeddings": False}),
    ],
)
def test_families_and_optional_keys(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each family switches its own features on, and absent keys take the values the model's class takes."""
    config = read(changes)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(("has_head", "is_tied"), [(True, False), (False, True)])
def test_an_unsaid_tie_is_read_off_the_weights(has_head: bool, is_tied: bool) -> None:
    """Without tie_word_embeddings, a stored head means untied."""
    assert read(drop="tie_word_embeddings", has_head=has_head).tied_embeddings is is_tied


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_scaling": LLAMA3_ROPE, "rope_theta": 500000.0}, 500000.0, LLAMA3_SCALING),
        ({"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500000.0}, "rope_theta": None}, 500000.0, LLAMA3_SCALING),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_theta": None}, 7.0, None),
        ({"rope_scaling": {"type": "default"}}, 100000.0, None),
    ],
    ids=["transformers 4", "transformers 5", "transformers 5 default", "old key"],
)
def test_rope_parameters_of_both_generations(
    changes: dict[str, Any], theta: float, scaling: Llama3RopeScaling | None
) -> None:
    """Theta and llama3 scaling are found where either generation of transformers writes them."""
    config = read(changes)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 1024}, 1024),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 16384}, 8192),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 8192),
        ({"architectures": ["MistralForCausalLM"]}, 4096),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": False}, 8192),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": True}, 64),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 30,
            },
            8192,
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 64,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            64,
        ),
        ({"sliding_window": 64}, 8192),
    ],
)
def test_a_sliding_window_caps_the_context(changes: dict[str, Any], positions: int) -> None:
    """Inside the window a windowed model equals a full one, so the context ends there, and only if a layer has it."""
    assert read(changes).max_positions == positions


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, ["GemmaForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"]),
        ({"architectures": None, "model_type": "bert"}, ["bert", "LlamaForCausalLM"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["yarn", "llama3"]),
        ({"rope_scaling": {**LLAMA3_ROPE, "factor": None}}, ["factor"]),
        ({"rope_scaling": [1]}, ["rope_scaling", "object"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["awq", "original checkpoint"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"rope_interleaved": True}, ["rope_interleaved", "interleaved rotary"]),
        ({"architectures": "LlamaForCausalLM"}, ["architectures", "list of strings"]),
        ({"architectures": [["Llama"]]}, ["architectures", "list of strings"]),
        ({"mlp_bias": True}, ["mlp_bias", "feed-forward"]),
        ({"attention_bias": True}, ["attention_bias", "attention output"]),
        ({"vocab_size": None}, ["vocab_size"]),
        ({"hidden_size": "576"}, ["hidden_size", "'576'", "whole number"]),
        ({"hidden_size": True}, ["hidden_size", "whole number"]),
        ({"rms_norm_eps": "small"}, ["rms_norm_eps", "number"]),
        ({"num_attention_heads": 7}, ["hidden_size 576", "7"]),
        ({"num_attention_heads": 0}, ["num_attention_heads 0"]),
        ({"num_hidden_layers": 0}, ["num_layers", "0"]),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    """An unsupported or damaged configuration names the key or kind, and what is expected instead."""
    with pytest.raises(ConfigError) as caught:
        read(changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    """Shapes are never guessed."""
    with pytest.raises(ConfigError, match=key):
        read(drop=key)
