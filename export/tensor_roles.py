"""The tensors a supported model must have, by role, whatever a file calls them.

A role is the part of a name that does not depend on format or layer: ``q``, ``gate``, ``input_norm``, ``embedding``.
Matrices are [out, in], as checkpoints store them.
"""

from __future__ import annotations

from edgeprec.architecture import ModelConfig

__all__ = ["LINEAR_PARTS", "NORM_ROLES", "QKV_BIASES", "layer_shapes", "model_shapes"]

LINEAR_PARTS = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
"""The parts each merged linear is made of, in the order of its columns."""

QKV_BIASES = ("q_bias", "k_bias", "v_bias")
NORM_ROLES = {"input": "input_norm", "post_attention": "post_attention_norm", "q": "q_norm", "k": "k_norm"}


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return role -> shape of every tensor of one decoder layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "q": (config.q_size, hidden),
        "k": (config.kv_size, hidden),
        "v": (config.kv_size, hidden),
        "o": (hidden, config.q_size),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "input_norm": (hidden,),
        "post_attention_norm": (hidden,),
    }
    if config.has_qkv_bias:
        shapes |= {"q_bias": (config.q_size,), "k_bias": (config.kv_size,), "v_bias": (config.kv_size,)}
    if config.has_qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    return shapes


def model_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return role -> shape of the tensors outside the layers; a tied model has no ``head``."""
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {"embedding": table, "final_norm": (config.hidden_size,)}
    return shapes if config.tied_embeddings else shapes | {"head": table}
