"""Settings that hypothesis draws for a session: what may move speed only, and what chooses the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from edgeprec.calibration import Calibration
from edgeprec.config import DraftRule, Objective

DRAFT_LENGTHS = (None, None, 0, 1, 2, 5, 8, 15)


def of_rig(draw: Callable[..., Any], calibration: Callable[..., Calibration]) -> dict[str, Any]:
    """Draw arguments of ``make_rig`` besides the agreements."""
    layers = draw(st.integers(1, 6), label="layers")
    return {
        "model": {"seed": draw(st.integers(0, 50), label="toy"), "vocab_size": draw(st.sampled_from((4, 27)))},
        "num_layers": layers,
        "context_tokens": draw(st.integers(12, 60), label="context"),
        "max_rows": draw(st.integers(1, 16), label="rows"),
        "session": {"calibration": draw(st.sampled_from((None, calibration(layers=layers))))},
    }


def of_drafting(draw: Callable[..., Any], *, layers: int) -> dict[str, Any]:
    """Draw what decides who drafts how far."""
    return {
        "draft_length": draw(st.sampled_from(DRAFT_LENGTHS), label="draft_length"),
        "max_draft_length": draw(st.integers(1, 15)),
        "rule": draw(st.sampled_from(DraftRule)),
        "objective": draw(st.sampled_from(Objective)),
        "middle_gears": draw(st.integers(0, 3)),
        "gated_layers": draw(st.none() | st.integers(1, layers)),
        "window": draw(st.integers(1, 4)),
        "hold_tokens": draw(st.integers(0, 6)),
        "theta_high_bits": draw(st.sampled_from((None, 0.0, 1.0, 9.0))),
    }


def require_fp16s_text(rig: Any, draw: Callable[..., Any], asked: dict[str, Any]) -> None:
    """Draw a prompt and what chooses its text, and compare mode exact, as ``asked``, with FP16."""
    common = {
        "temperature": draw(st.sampled_from((0.0, 0.0, 0.7, 1.5)), label="temperature"),
        "top_p": draw(st.sampled_from((1.0, 0.8))),
        "top_k": draw(st.sampled_from((0, 3))),
        "repetition_penalty": draw(st.sampled_from((1.0, 1.3))),
        "seed": 7,
        "max_new_tokens": draw(st.integers(1, 70), label="max_new_tokens"),
        "ignore_eos": draw(st.booleans()),
        "stop": draw(st.sampled_from(((), ("b",), ("ab", "ca")))),
    }
    prompt = draw(st.text("abc", min_size=1, max_size=11), label="prompt")
    exact = rig.session.generate(prompt, **asked, **common)
    plain = rig.session.generate(prompt, mode="fp16", **common)
    assert exact.tokens == plain.tokens
    assert exact.text == plain.text
    assert exact.finish_reason == plain.finish_reason
