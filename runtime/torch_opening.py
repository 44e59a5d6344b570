"""Opens a pair in the torch engine: the device is chosen, the memory planned, the arena filled, the graphs prepared."""

from __future__ import annotations

import torch

from edgeprec.bundle import Bundle
from edgeprec.errors import EdgePrecError, EngineError
from edgeprec.memory_plan import MemoryPlan, check_context
from edgeprec.runtime.batch_memory import require_batch
from edgeprec.runtime.engine import EngineInfo
from edgeprec.runtime.engine_torch import MAX_DRAFT_TOKENS, MAX_INT4_ROWS, TorchEngine
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_device import (
    available_memory,
    choose_device,
    describe_device,
    device_errors,
    require_blocks,
)
from edgeprec.runtime.torch_graphs import CudaCapture, GraphCache
from edgeprec.runtime.torch_io import GpuIo, HostIo
from edgeprec.runtime.torch_memory import ModelForm, bundle_forms, plan_pair
from edgeprec.runtime.torch_model import TorchModel
from edgeprec.runtime.torch_source import BundleSource
from edgeprec.runtime.torch_space import take_buffers, take_cache
from edgeprec.runtime.torch_weights import DecoderWeights, WeightSource, load_weights

__all__ = ["build_engine", "engine_of", "open_torch_pair", "plan_torch_pair"]


def plan_torch_pair(
    bundle: Bundle, *, context_tokens: int, provider: str | None = None, sequences: int = 1
) -> MemoryPlan:
    """Return what the pair takes, before anything is loaded.

    Raises:
        ConfigError: the context is longer than the models were made for, or there is no such provider.
        EngineError: the device cannot be used, or the kernels do not read the bundle's INT4 blocks.
        MemoryBudgetError: it does not fit; the message names the longest context that does, or the largest batch.
    """
    for model in bundle.models:
        require_blocks(model)
    check_context([model.entry for model in bundle.models], context_tokens)
    device = choose_device(provider)
    return require_batch(
        lambda tokens, count: plan_pair(bundle, device=device, context_tokens=tokens, sequences=count),
        engine="torch",
        context_tokens=context_tokens,
        sequences=sequences,
        available=available_memory(device),
    )


def open_torch_pair(
    bundle: Bundle,
    *,
    context_tokens: int,
    provider: str | None = None,
    threads: int | None = None,
    sequences: int = 1,
    use_graphs: bool = True,
) -> tuple[TorchEngine, ...]:
    """Load a bundle's models, the target first, into one arena; on a GPU compile and capture what decoding uses.

    ``threads`` limits torch on a CPU, for this whole process. Errors are those of ``plan_torch_pair``, and
    BundleError where a file is damaged.
    """
    plan_torch_pair(bundle, context_tokens=context_tokens, provider=provider, sequences=sequences)
    device = choose_device(provider)
    if threads is not None and device.type == "cpu":
        torch.set_num_threads(threads)
    forms = bundle_forms(bundle, device=device, context_tokens=context_tokens, sequences=sequences)
    engines: list[TorchEngine] = []
    try:
        arena = Arena(sum(form.arena_bytes for form in forms), device)
        target: DecoderWeights | None = None
        for model, form in zip(bundle.models, forms, strict=True):
            weights, engine = build_engine(
                BundleSource(model, device), form, arena, target=target, use_graphs=use_graphs
            )
            engines.append(engine)
            target = target or weights
        if device.type == "cuda":
            torch.cuda.empty_cache()
            for engine in engines:
                engine.warm_up(int4_rows=MAX_INT4_ROWS if len(engines) > 1 and engine is engines[0] else 1)
    except device_errors() as error:
        reason = str(error).strip().partition("\n")[0]
        raise EngineError(f"torch cannot load {bundle.root} on {describe_device(device)}: {reason[:300]}") from error
    except EdgePrecError:
        for engine in engines:
            engine.close()
        raise
    return tuple(engines)


def build_engine(
    source: WeightSource,
    form: ModelForm,
    arena: Arena,
    *,
    target: DecoderWeights | None = None,
    use_graphs: bool = True,
) -> tuple[DecoderWeights, TorchEngine]:
    """Load one model into ``arena`` and return its weights and its engine; ``target`` lends what a draft shares.

    Raises:
        BundleError: the source lacks a tensor.
        EngineError: the arena is smaller than ``form.arena_bytes``.
    """
    weights = load_weights(source, form.weights, arena, target=target)
    return weights, engine_of(weights, form, arena, use_graphs=use_graphs)


def engine_of(weights: DecoderWeights, form: ModelForm, arena: Arena, *, use_graphs: bool = True) -> TorchEngine:
    """Return an engine on loaded weights, with a cache and buffers of its own from ``arena``.

    Raises:
        EngineError: the arena is too small.
    """
    device, space = arena.device, form.space
    model = TorchModel(
        config=space.config, weights=weights, cache=take_cache(space, arena), buffers=take_buffers(space, arena)
    )
    slots = space.max_rows + MAX_DRAFT_TOKENS
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.synchronize(device)  # kernels read weights before the work in front of them has ended
    info = EngineInfo(
        name="torch",
        device=describe_device(device),
        num_layers=space.config.num_layers,
        vocab_size=space.config.vocab_size,
        context_tokens=space.context_tokens,
        max_rows=space.max_rows,
        memory_bytes=form.arena_bytes,
        has_bitwise_rows=True,
    )
    io = GpuIo(slots, space.max_rows, device) if is_gpu else HostIo(slots)
    graphs = GraphCache(CudaCapture(device) if is_gpu and use_graphs else None)
    return TorchEngine(model, io, graphs, info)
