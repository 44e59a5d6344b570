"""Translate a Hugging Face ``config.json`` into a ModelConfig, refusing what the graph cannot compute.

Knows the keys of transformers 4 (``rope_scaling`` beside ``rope_theta``) and 5 (``rope_parameters``). Knows no weights.
"""

from __future__ import annotations

from edgeprec.architecture import Llama3RopeScaling, ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.json_object import JsonObject

__all__ = ["ARCHITECTURES", "read_model_config"]

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Supported architectures and their families; SmolLM and SmolLM2 are LlamaForCausalLM."""

_MISTRAL_WINDOW_TOKENS = 4096  # what Mistral's configuration class takes where the key is absent
_QWEN_FULL_LAYERS = 28  # what Qwen2's and Qwen3's take for max_window_layers
_QWEN3_HEAD_DIM = 128  # Qwen3's class does not derive it from the width
_SWITCHES = {
    "mlp_bias": "a bias in its feed-forward layers",
    "attention_bias": "a bias in its attention output",
    "rope_interleaved": "an interleaved rotary embedding",
    "attn_output_gate": "a gate on its attention output",
}


def read_model_config(raw: JsonObject, *, has_head: bool) -> ModelConfig:
    """Return the model's shape and constants; ``max_positions`` is capped to a sliding window.

    ``has_head`` says whether the weights hold an output head; it decides where ``tie_word_embeddings`` is absent.

    Raises:
        ConfigError: a key is missing or of the wrong kind, or the model needs something that is not supported.
    """
    family = _family(raw)
    _refuse_unsupported(raw)
    num_heads = raw.integer("num_attention_heads")
    max_positions = raw.integer("max_position_embeddings")
    return ModelConfig(
        family=family,
        vocab_size=raw.integer("vocab_size"),
        hidden_size=raw.integer("hidden_size"),
        intermediate_size=raw.integer("intermediate_size"),
        num_layers=raw.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=raw.integer("num_key_value_heads", num_heads),
        head_dim=_head_dim(raw, family),
        rms_norm_eps=raw.number("rms_norm_eps", 1e-6),
        rope_theta=_rope(raw).number("rope_theta", raw.number("rope_theta", 10_000.0)),
        max_positions=min(max_positions, _window_tokens(raw) or max_positions),
        tied_embeddings=bool(raw.get("tie_word_embeddings", not has_head)),
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family == "qwen3",
        rope_scaling=_rope_scaling(_rope(raw)),
    )


def _window_tokens(raw: JsonObject) -> int | None:
    """Return the window of the model's windowed layers, or None where every layer sees everything."""
    family = _family(raw)
    if family == "llama":
        return None
    if family == "mistral" and "sliding_window" not in raw.values:
        return _MISTRAL_WINDOW_TOKENS
    has_window = raw.get("sliding_window") is not None and (family == "mistral" or _has_windowed_layers(raw))
    return raw.integer("sliding_window") if has_window else None


def _has_windowed_layers(raw: JsonObject) -> bool:
    if not raw.get("use_sliding_window", False):
        return False
    if raw.get("layer_types") is not None:
        return "sliding_attention" in raw.strings("layer_types")
    return raw.integer("max_window_layers", _QWEN_FULL_LAYERS) < raw.integer("num_hidden_layers")


def _family(raw: JsonObject) -> str:
    named = raw.strings("architectures")
    model_type = str(raw.get("model_type"))
    if named and named[0] in ARCHITECTURES:
        return ARCHITECTURES[named[0]]
    if not named and model_type in ARCHITECTURES.values():
        return model_type
    got, supported = named[0] if named else f"of model_type {model_type}", ", ".join(ARCHITECTURES)
    raise ConfigError(f"{raw.origin}: architecture {got} is not supported, expected one of: {supported}")


def _refuse_unsupported(raw: JsonObject) -> None:
    quantization = raw.child("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "an unnamed method")
        raise ConfigError(
            f"{raw.origin}: the checkpoint is already quantized by {method}, expected bf16, fp16 or fp32 weights: "
            "export the original checkpoint"
        )
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError(f"{raw.origin}: hidden_act {activation!r} is not supported, expected 'silu'")
    for holder in (raw, _rope(raw)):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise ConfigError(f"{holder.origin}: partial_rotary_factor is not supported, expected 1 or none")
    for key, meaning in _SWITCHES.items():
        if raw.get(key, False):
            raise ConfigError(f"{raw.origin}: {key} is true: a model with {meaning} is not supported")


def _head_dim(raw: JsonObject, family: str) -> int:
    if raw.get("head_dim") is not None:
        return raw.integer("head_dim")
    if family == "qwen3":
        return _QWEN3_HEAD_DIM
    hidden_size, num_heads = raw.integer("hidden_size"), raw.integer("num_attention_heads")
    if num_heads < 1 or hidden_size % num_heads:
        raise ConfigError(
            f"{raw.origin}: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, "
            "expected the key head_dim where it is not"
        )
    return hidden_size // num_heads


def _rope(raw: JsonObject) -> JsonObject:
    """Return the rotary parameters, wherever the version that wrote the file put them."""
    found = raw.child("rope_parameters") or raw.child("rope_scaling")
    return found or JsonObject({}, origin=f"{raw.origin}: rope_parameters")


def _rope_scaling(rope: JsonObject) -> Llama3RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"{rope.origin}: rope type {kind!r} is not supported, expected 'default' or 'llama3'")
    return Llama3RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
    )
