"""Shows that the graph runs as meant: every INT4 linear fused, nothing dequantized at every step."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from edgeprec.architecture import LINEARS, ModelConfig
from edgeprec.errors import EdgePrecError, MissingDependency

__all__ = ["check_fused", "executed_operators"]


def check_fused(graph: Path, config: ModelConfig) -> None:
    """Run one INT4 step on the CPU and refuse a graph that dequantizes weights while it runs.

    Raises:
        EdgePrecError: a DequantizeLinear ran, or not every linear became MatMulNBits.
    """
    counts = executed_operators(graph, config)
    expected = len(LINEARS) * config.num_layers + 1
    if counts["DequantizeLinear"] or counts["MatMulNBits"] != expected:
        raise EdgePrecError(
            f"{graph.name}: {counts['DequantizeLinear']} DequantizeLinear and {counts['MatMulNBits']} MatMulNBits "
            f"ran in one INT4 step, expected 0 and {expected}: choose another group size, or report "
            "this model"
        )


def executed_operators(graph: Path, config: ModelConfig) -> Counter[str]:
    """Return how often each operator ran in one INT4 step of one token, from ONNX Runtime's profile."""
    runtime = _import_onnxruntime()
    with tempfile.TemporaryDirectory(prefix="edgeprec-") as directory:
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(directory) / "profile")
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        session = runtime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        tables = [given.name for given in session.get_inputs() if given.name.startswith("rotary_")]
        session.run(["logits"], _one_step(config, tables))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return Counter(
        event["args"]["op_name"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    )


def _one_step(config: ModelConfig, tables: Iterable[str]) -> dict[str, Any]:
    cache = np.zeros((1, config.num_kv_heads, 2, config.head_dim), np.float32)
    caches = {f"past_{part}_{i}": cache for i in range(config.num_layers) for part in ("key", "value")}
    return {
        "tokens": np.zeros((1, 1), np.int64),
        "positions": np.zeros((1, 1), np.int64),
        "kv_length": np.ones(1, np.int64),
        "gate": np.ones(config.num_layers + 1, np.bool_),
        **dict.fromkeys(tables, np.zeros((2, config.head_dim // 2), np.float32)),
        **caches,
    }


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(package="onnxruntime", purpose="checking the exported graph", extra="cpu") from error
    return onnxruntime
