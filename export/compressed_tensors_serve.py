"""The commands that serve a hand-off folder, with the draft and the draft length that EdgePrec would use."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

__all__ = ["serve_commands"]


def serve_commands(target: Path, draft: Path | None, *, draft_length: int) -> dict[str, str]:
    """Return server -> shell command. ``draft_length`` tokens are drafted a round; 0 or no draft = plain decoding."""
    vllm = ["vllm", "serve", str(target)]
    sglang = ["python", "-m", "sglang.launch_server", "--model-path", str(target)]
    if draft is not None and draft_length > 0:
        speculation = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": draft_length}
        vllm += ["--speculative-config", json.dumps(speculation)]
        sglang += ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(draft)]
        # one chain of drafted tokens, and the token that the target adds to it
        sglang += ["--speculative-num-steps", str(draft_length), "--speculative-eagle-topk", "1"]
        sglang += ["--speculative-num-draft-tokens", str(draft_length + 1)]
    return {"vllm": shlex.join(vllm), "sglang": shlex.join(sglang)}
