"""What ONNX Runtime's CUDA provider leaves to the CPU, found out with the demo pair where it lies in the cache."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["cuda_fallbacks"]

_CONTEXT_TOKENS = 64


def cuda_fallbacks(available: Sequence[str]) -> str | None:
    """Return what to say of the CUDA provider, near ties included; None where the installed onnxruntime has none.

    Loads the demo pair's target, which takes seconds. Other GPU providers compile for minutes and are not asked.
    """
    from edgeprec.bundle import Bundle
    from edgeprec.cli.cache import cache_folder
    from edgeprec.cli.demo_model import BUNDLE_NAME
    from edgeprec.errors import EdgePrecError
    from edgeprec.runtime.engine import NEAR_TIES
    from edgeprec.runtime.engine_onnxruntime_gpu import PROVIDERS, OnnxRuntimeGpuEngine

    if PROVIDERS["cuda"].name not in available:
        return None
    path = cache_folder() / BUNDLE_NAME
    if not path.exists():
        return "what falls back to the CPU stands in each reply, and here once edgeprec demo has run"
    try:
        engine = OnnxRuntimeGpuEngine.open(Bundle.open(path).target, provider="cuda", context_tokens=_CONTEXT_TOKENS)
    except EdgePrecError as error:
        return f"provider cuda does not run the demo pair: {error}"
    info = engine.info
    engine.close()
    nodes = [note for note in info.fallbacks if note != NEAR_TIES]
    told = nodes or ["provider cuda runs every node of the demo pair on the GPU"]
    return "; ".join([*told, *(() if info.has_bitwise_rows else (NEAR_TIES,))])
