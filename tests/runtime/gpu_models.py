"""Random models at the shapes of an 8B and a 1B model on the GPU, a few layers deep; engines share their weights."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import torch

from edgeprec.architecture import ModelConfig
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.passes import WeightBits
from edgeprec.runtime.session import Session
from edgeprec.runtime.tokenizer import TextTokenizer
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_memory import ModelForm, form_of
from edgeprec.runtime.torch_opening import build_engine, engine_of
from edgeprec.runtime.torch_weights import DecoderWeights

GPU = torch.device("cuda", 0)
LAYERS, DRAFT_LAYERS, VOCABULARY = 4, 2, 32_000


def target_config(synthetic: ModuleType, *, num_layers: int = LAYERS) -> ModelConfig:
    """Return the shapes of an 8B model; ``synthetic`` is ``scripts/synthetic_weights.py``."""
    return replace(synthetic.LLAMA_8B, num_layers=num_layers, vocab_size=VOCABULARY)


def draft_config(synthetic: ModuleType) -> ModelConfig:
    """Return the shapes of a 1B model."""
    return replace(synthetic.LLAMA_1B, num_layers=DRAFT_LAYERS, vocab_size=VOCABULARY)


def form(config: ModelConfig, *, context_tokens: int, sequences: int = 1) -> ModelForm:
    """Return what a model takes on the GPU."""
    return form_of(
        config, device=GPU, group_size=128, has_zeros=False, context_tokens=context_tokens, sequences=sequences
    )


def draw(
    synthetic: ModuleType, config: ModelConfig, *, context_tokens: int, seed: int = 0
) -> tuple[DecoderWeights, TorchEngine]:
    """Draw a model's weights and return them with an engine for one sequence."""
    made = form(config, context_tokens=context_tokens)
    source = synthetic.SyntheticSource(config, GPU, seed=seed)
    return build_engine(source, made, Arena(made.arena_bytes, GPU))


def another(
    weights: DecoderWeights,
    config: ModelConfig,
    *,
    context_tokens: int,
    sequences: int = 1,
    use_graphs: bool = True,
) -> TorchEngine:
    """Return a further engine on weights that are loaded, with a cache of its own."""
    made = form(config, context_tokens=context_tokens, sequences=sequences)
    arena = Arena(made.space.cache_bytes + made.space.buffer_bytes, GPU)
    return engine_of(weights, made, arena, use_graphs=use_graphs)


def session_on(target: TorchEngine, draft: TorchEngine, tokenizer: TextTokenizer) -> Session:
    """Return a session of a pair; all weights count as one."""
    bits = [WeightBits(weights=(1,) * (one.info.num_layers + 1), int4_bits=4.5) for one in (target, draft)]
    return Session(engine=target, tokenizer=tokenizer, target_bits=bits[0], draft_engine=draft, draft_bits=bits[1])
