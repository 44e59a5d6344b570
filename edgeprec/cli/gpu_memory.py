"""What a bundle's pair takes of a GPU's memory in the torch engine, as plain values; it takes torch, but no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from edgeprec.bundle import Bundle
from edgeprec.errors import EngineError

__all__ = ["gpu_memory_facts"]


def gpu_memory_facts(bundle: Bundle, contexts: Sequence[int]) -> dict[str, Any]:
    """Return the plan at each context, its parts apart, and whether it fits the GPU there is.

    ``available_bytes`` and ``fits`` are None without a GPU; without torch, or with blocks that its kernels do not
    read, ``contexts`` is empty and ``note`` says why.
    """
    facts: dict[str, Any] = {"engine": "torch", "device": "cuda", "available_bytes": None, "bound": None, "note": None}
    if find_spec("torch") is None:
        return facts | {"contexts": [], "note": "torch is not installed, it plans the memory of a GPU: install torch"}
    import torch

    from edgeprec.runtime.torch_device import available_memory, require_blocks

    try:
        for model in bundle.models:
            require_blocks(model)
        if torch.cuda.is_available():
            there = available_memory(torch.device("cuda", torch.cuda.current_device()))
            facts |= {"available_bytes": there.size_bytes, "bound": there.bound}
        else:
            facts["note"] = "there is no GPU here: the plan is for one with so much memory"
    except EngineError as error:
        return facts | {"contexts": [], "note": str(error)}
    return facts | {"contexts": [_plan(bundle, tokens, facts["available_bytes"]) for tokens in contexts]}


def _plan(bundle: Bundle, context_tokens: int, available_bytes: int | None) -> dict[str, Any]:
    """Return the parts by what they hold, and by how they are allocated: both sum to ``total_bytes``."""
    import torch

    from edgeprec.runtime.torch_memory import bundle_forms, cuda_allowance_bytes, plan_pair

    device = torch.device("cuda")
    plan = plan_pair(bundle, device=device, context_tokens=context_tokens)
    forms = bundle_forms(bundle, device=device, context_tokens=context_tokens)
    return plan.to_json() | {
        "arena_bytes": sum(form.arena_bytes for form in forms),
        "scratch_bytes": max(form.scratch_bytes for form in forms),
        "cuda_allowance_bytes": cuda_allowance_bytes(),
        "fits": None if available_bytes is None else plan.total_bytes <= available_bytes,
    }
