"""Prompts for batches, and the comparison of a batch's replies with those its prompts have alone."""

from __future__ import annotations

from typing import Any

from edgeprec.runtime.batch_reply import BatchReply
from edgeprec.runtime.reply import Reply

PROMPTS = [
    "The quick brown fox",
    "a",
    "one two three four five six seven eight nine ten eleven twelve",
    "zz zz",
    "12 34 56 78 90 12",
]
COMMON: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}


def same(batch: BatchReply, alone: list[Reply]) -> None:
    """Compare what a user sees."""
    for index, (ours, theirs) in enumerate(zip(batch, alone, strict=True)):
        assert ours.tokens == theirs.tokens, f"prompt {index}"
        assert ours.text == theirs.text, f"prompt {index}"
        assert ours.finish_reason == theirs.finish_reason, f"prompt {index}"
        assert [event.text for event in ours.events] == [event.text for event in theirs.events]
