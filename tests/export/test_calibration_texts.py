"""What a model is calibrated on: the text in windows, and the shipped prompts as this model is asked them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from edgeprec.errors import ConfigError
from edgeprec.export.calibration_texts import WINDOW_TOKENS, CalibrationTexts, read_texts
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.prompts import PromptKind, load_prompts

TEXT = "the sea and the shore and the ring of the hand " * 60


@pytest.fixture
def target(checkpoints: ModuleType, tmp_path: Path) -> Checkpoint:
    """Return a tiny checkpoint with a chat template and a roomy context."""
    return open_checkpoint(str(checkpoints.make_checkpoint(tmp_path / "target", max_positions=4096)))


def decoded(target: Checkpoint, ids: tuple[int, ...]) -> str:
    """Return the text of ids, special tokens included."""
    from tokenizers import Tokenizer

    text: str = Tokenizer.from_buffer(target.tokenizer.tokenizer_json).decode(list(ids), skip_special_tokens=False)
    return text


def test_prompts_are_asked_as_a_user_would(target: Checkpoint) -> None:
    """Questions and passages stand in the chat template, prose and code as they are; it is the calibration set."""
    texts = read_texts(target, TEXT)
    shipped = load_prompts("calibration")
    assert len(texts.prompts) == len(shipped)
    for ids, prompt in zip(texts.prompts, shipped, strict=True):
        is_asked = prompt.kind in (PromptKind.QUESTION, PromptKind.PASSAGE)
        assert decoded(target, ids).startswith("<|im_start|>") == is_asked
        assert prompt.text in decoded(target, ids)
    assert texts.end_ids


def test_windows_hold_everything_once() -> None:
    """The text is cut into pieces of 256 tokens, a long prompt too; nothing is lost or repeated."""
    texts = CalibrationTexts(tokens=tuple(range(600)), prompts=((7,) * 300, (8, 9)))
    windows = texts.windows
    assert [len(window) for window in windows] == [256, 256, 88, 256, 44, 2]
    assert sum(windows[:3], ()) == texts.tokens
    assert max(map(len, windows)) == WINDOW_TOKENS
    assert CalibrationTexts().windows == ()


def test_a_prompt_leaves_room_for_a_reply(checkpoints: ModuleType, tmp_path: Path) -> None:
    """In a short context the end of a prompt is kept, at most half of the context."""
    small = open_checkpoint(str(checkpoints.make_checkpoint(tmp_path / "small", max_positions=64)))
    assert {len(ids) for ids in read_texts(small, TEXT).prompts} == {32}


def test_a_template_that_cannot_be_applied_is_said(
    target: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The export goes on with plain prompts and a warning."""
    broken = replace(target.tokenizer, chat_template="{{ raise_exception('no') }}")
    monkeypatch.setattr(type(target), "tokenizer", property(lambda _: broken))
    with caplog.at_level(logging.WARNING):
        texts = read_texts(target, TEXT)
    assert "without a chat template" in caplog.text
    assert not any(decoded(target, ids).startswith("<|im_start|>") for ids in texts.prompts)


def test_a_short_text_is_refused(target: Checkpoint) -> None:
    """Too little measures nothing."""
    with pytest.raises(ConfigError, match="expected at least 256: give a longer text"):
        read_texts(target, "the sea")
