"""The promise on the real model: 20 prompts x 128 tokens of mode ``exact`` are plain FP16's, whoever drafts.

Every configuration is compared with one run of plain FP16. Where a token differs the gap between both logits must be
a tie's, below 1e-3; on this engine none has differed so far. Two classes of ten prompts each, so that two workers of
pytest-xdist can share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

import edgeprec
from edgeprec.config import SamplingConfig
from edgeprec.prompts import load_prompts
from edgeprec.runtime.certificate import TOLERANCE, Certificate, compare
from edgeprec.runtime.reply import Reply
from edgeprec.runtime.session import Session

pytestmark = pytest.mark.slow

NEW_TOKENS = 128
PROMPTS = tuple(prompt.text for prompt in load_prompts("test")[::10])
CONFIGURATIONS = [("none", None), *((drafter, length) for drafter in ("self", "ngram") for length in (1, 5, 8, None))]


@pytest.fixture(scope="module")
def session(demo_bundle: Path) -> Iterator[Session]:
    """Load the demo pair."""
    with edgeprec.load(demo_bundle, sensor="none", context_tokens=2048) as loaded:
        yield loaded


def generate(session: Session, prompt: str, **asked: str | int | None) -> Reply:
    """Return 128 tokens, whatever the model thinks of ending earlier."""
    return session.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True, **asked)


@pytest.fixture(scope="class")
def plain(session: Session, request: pytest.FixtureRequest) -> list[Reply]:
    """Decode every prompt of a class in plain FP16, once."""
    return [generate(session, prompt, mode="fp16") for prompt in request.cls.prompts]


def test_classes_share_all_prompts() -> None:
    """There are 20 different prompts, each in one of the classes."""
    assert (*TestFirstTenPrompts.prompts, *TestLastTenPrompts.prompts) == PROMPTS
    assert len(set(PROMPTS)) == 20


class _Promise:
    """The tests of one half of the prompts."""

    prompts: ClassVar[tuple[str, ...]]

    def test_baseline_is_whole(self, plain: list[Reply]) -> None:
        """There are ten different texts of 128 tokens to compare with."""
        assert len({reply.tokens for reply in plain}) == len(self.prompts) == 10
        assert {len(reply.tokens) for reply in plain} == {NEW_TOKENS}

    @pytest.mark.parametrize(("drafter", "draft_length"), CONFIGURATIONS)
    def test_exact_is_fp16(self, session: Session, plain: list[Reply], drafter: str, draft_length: int | None) -> None:
        """No token differs but by a tie, and where somebody drafts, drafts are accepted."""
        replies = [generate(session, prompt, drafter=drafter, draft_length=draft_length) for prompt in self.prompts]
        pairs = zip(self.prompts, replies, plain, strict=True)
        rows = [compare(session, prompt, reply, known, sampling=SamplingConfig()) for prompt, reply, known in pairs]
        certificate = Certificate(mode=replies[0].mode, rows=tuple(rows))
        differing = [row for row in rows if not row.is_identical]
        assert certificate.is_within_tolerance, f"gaps of {TOLERANCE} or more among {differing}"
        accepted = sum(reply.stats.accepted for reply in replies)
        assert (accepted > 0) is (drafter != "none")


class TestFirstTenPrompts(_Promise):
    """The worker that begins here exports the demo pair."""

    prompts = PROMPTS[:10]


class TestLastTenPrompts(_Promise):
    """Whichever worker comes here first."""

    prompts = PROMPTS[10:]
