"""A session on the torch engine: onnxruntime's FP16 tokens whoever drafts, and the text kept when a GPU is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgeprec
from edgeprec.errors import EngineError
from edgeprec.runtime import torch_model
from edgeprec.runtime.reply import FinishReason
from edgeprec.runtime.session import Session

PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def sessions(tiny_pair: Path) -> Iterator[tuple[Session, Session]]:
    """Load the tiny pair with torch and with onnxruntime, both on the CPU."""
    common: dict[str, Any] = {"provider": "cpu", "sensor": "none", "context_tokens": 160, "threads": 1}
    with (
        edgeprec.load(tiny_pair, engine="torch", **common) as torch_session,
        edgeprec.load(tiny_pair, engine="onnxruntime", **common) as onnx_session,
    ):
        yield torch_session, onnx_session


@pytest.mark.parametrize("drafter", ["self", "model", "ngram"])
@pytest.mark.parametrize("length", [2, 5, None])
def test_exact_gives_onnxruntimes_fp16_tokens(
    sessions: tuple[Session, Session], drafter: str, length: int | None
) -> None:
    """Two engines, any drafter, any draft length: one text."""
    torch_session, onnx_session = sessions
    expected = onnx_session.generate(PROMPT, mode="fp16", max_new_tokens=60, ignore_eos=True)
    reply = torch_session.generate(
        PROMPT, mode="exact", drafter=drafter, draft_length=length, max_new_tokens=60, ignore_eos=True
    )
    assert reply.tokens == expected.tokens
    assert reply.stats.engine == "torch"
    notes = [note for note in reply.stats.fallbacks if "switched itself off" not in note]  # a tiny pair's times vary
    assert tuple(notes) == torch_session.info.fallbacks


def test_seeded_sampling_gives_onnxruntimes_tokens(sessions: tuple[Session, Session]) -> None:
    """The noise is the position's, so the same seed gives the same text here too."""
    settings: dict[str, Any] = {"temperature": 0.9, "seed": 11, "max_new_tokens": 40, "ignore_eos": True}
    torch_session, onnx_session = sessions
    expected = onnx_session.generate(PROMPT, mode="fp16", **settings)
    assert torch_session.generate(PROMPT, mode="exact", **settings).tokens == expected.tokens


def test_log_probabilities_are_fetched_when_asked_for(sessions: tuple[Session, Session]) -> None:
    """They are onnxruntime's to rounding."""
    replies = [session.generate(PROMPT, max_new_tokens=8, ignore_eos=True, top_logprobs=2) for session in sessions]
    for ours, theirs in zip(replies[0].events, replies[1].events, strict=True):
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-3)


def test_gpu_lost_in_the_middle_keeps_the_text(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes out of the loop, and the reply holds what there was until then."""
    session = sessions[0]
    generation = session.stream(PROMPT, mode="fp16", max_new_tokens=20, ignore_eos=True)
    for _ in range(5):
        next(generation)

    def lost(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as broken:
        broken.setattr(torch_model, "rms_norm", lost)
        with pytest.raises(EngineError, match="unspecified launch failure"):
            next(generation)
    assert generation.reply.finish_reason is FinishReason.ERROR
    assert len(generation.reply.tokens) == 5
    assert len(session.generate(PROMPT, max_new_tokens=3, ignore_eos=True).tokens) == 3
