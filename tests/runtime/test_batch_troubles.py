"""A batch that breaks off: its error comes out, the texts so far and their times are kept."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeprec.config import GenerationConfig
from edgeprec.errors import DeviceError, EngineError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime import torch_model
from edgeprec.runtime.batch_engine import RoundWork
from edgeprec.runtime.batch_runners import FusedRunner
from edgeprec.runtime.energy import NoWindow
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.reply import FinishReason
from edgeprec.runtime.session import Session
from edgeprec.runtime.torch_batch import TorchRounds

texts = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("batch_texts.py"))))
PROMPTS, COMMON, same = texts.PROMPTS, texts.COMMON, texts.same


def test_logits_of_nan_are_refused(sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken model is an error, not a text, after the prompts too."""
    norm, calls = torch_model.rms_norm, 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return norm(*args, **kwargs).mul_(float("nan") if calls > 60 else 1.0)

    with monkeypatch.context() as patched:
        patched.setattr(torch_model, "rms_norm", broken)
        with pytest.raises(EngineError, match="NaN"):
            sessions[1].generate(PROMPTS, drafter="self", draft_length=2, **COMMON)
    assert calls > 60


@pytest.mark.parametrize("shared", [251, 10_000])
def test_drafts_beyond_the_shared_ids_are_refused(sessions: tuple[Session, Session], shared: int) -> None:
    """A draft model's row of NaN has the id after the last one it may draft, which the target may well have."""
    target, drafter = sessions[1].batches.engines
    assert isinstance(target, TorchEngine)
    assert isinstance(drafter, TorchEngine)
    assert drafter.info.vocab_size < target.info.vocab_size
    rounds = target.open_rounds(drafter, vocabulary=shared)
    assert isinstance(rounds, TorchRounds)
    work = RoundWork(
        first=np.ones((1, 1), np.int32),
        lengths=np.ones(1, np.int32),
        drafts=np.array([2], np.int32),
        cap=2,
        draft_plan=Plan.uniform(Precision.INT4, num_layers=drafter.info.num_layers),
        plan=Plan.uniform(Precision.FP16, num_layers=target.info.num_layers),
    )
    rounds.launch(work)
    rounds.read()
    rounds.launch(work)
    rounds._outputs[0, 1] = min(shared, drafter.info.vocab_size)  # as a GPU writes it, with an entropy of 0
    rounds._outputs[1:, 1] = 0
    with pytest.raises(EngineError, match="a row of the logits of a batch's drafts holds NaN"):
        rounds.read()


def test_gpu_lost_in_the_middle(sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes out, the texts so far are kept, and the session goes on."""
    calls = 0
    norm = torch_model.rms_norm

    def lost(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 60:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return norm(*args, **kwargs)

    with monkeypatch.context() as broken:
        broken.setattr(torch_model, "rms_norm", lost)
        with pytest.raises(EngineError, match="unspecified launch failure"):
            sessions[1].generate(PROMPTS, mode="fp16", **COMMON)
    kept = sessions[1].batches.last
    assert kept is not None
    whole = sessions[1].generate(PROMPTS, mode="fp16", **COMMON)
    for broken_off, reply in zip(kept, whole, strict=True):
        assert broken_off.finish_reason is FinishReason.ERROR
        assert 0 < len(broken_off.tokens) < 30
        assert broken_off.tokens == reply.tokens[: len(broken_off.tokens)]
    assert len(sessions[1].generate(PROMPTS, mode="fp16", **COMMON)) == 5


def test_failed_prompts_have_taken_their_time(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no prompt came through, nothing was decoded, and no time is the clock's own."""
    _, five = sessions

    def lost(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as broken:
        broken.setattr(torch_model, "rms_norm", lost)
        with pytest.raises(EngineError, match="unspecified launch failure"):
            five.generate(PROMPTS, mode="fp16", **COMMON)
    kept = five.batches.last
    assert kept is not None
    assert [reply.tokens for reply in kept] == [()] * 5
    assert 0.0 <= kept.stats.prefill_s < 60.0
    assert kept.stats.decode_s == 0.0


@pytest.mark.parametrize(
    ("error", "reason"), [(EngineError("lost"), FinishReason.ERROR), (KeyboardInterrupt(), FinishReason.CANCELLED)]
)
def test_every_round_that_was_read_is_kept(
    sessions: tuple[Session, Session],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    reason: FinishReason,
) -> None:
    """A launch that fails costs no token of the round before it."""
    _, five = sessions
    launch, launches = FusedRunner.launch, 0

    def failing(runner: FusedRunner, *args: Any) -> None:
        nonlocal launches
        launches += 1
        if launches > 4:
            raise error
        launch(runner, *args)

    with monkeypatch.context() as broken:
        broken.setattr(FusedRunner, "launch", failing)
        with pytest.raises(type(error)):
            five.generate(PROMPTS, mode="fp16", **COMMON)
    kept = five.batches.last
    assert kept is not None
    assert [len(reply.tokens) for reply in kept] == [1 + 4] * 5
    assert {reply.finish_reason for reply in kept} == {reason}


def test_a_window_that_fails_gives_its_own_error(sessions: tuple[Session, Session]) -> None:
    """Before any prompt has begun there is nothing to keep."""

    class Broken(NoWindow):
        def __enter__(self) -> Any:
            raise DeviceError("the meter is gone")

    generator = replace(sessions[1].batches, open_window=Broken)
    with pytest.raises(DeviceError, match="the meter is gone"):
        generator.run([(5, 6)], [GenerationConfig()])
    assert generator.last is not None
    assert len(generator.last) == 0


def test_an_error_between_two_prompts_keeps_the_first(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after another too: the replies that were there are the last batch."""
    one, _ = sessions
    alone = one.batches.alone

    def failing(prompt: Any, config: GenerationConfig) -> Any:
        if len(prompt) == 3:
            raise EngineError("lost")
        return alone(prompt, config)

    monkeypatch.setattr(one.batches, "alone", failing)
    with pytest.raises(EngineError, match="lost"):
        one.generate([[5, 6], [5, 6, 7]], mode="fp16", **COMMON)
    assert one.batches.last is not None
    assert [len(reply.tokens) for reply in one.batches.last] == [30]
