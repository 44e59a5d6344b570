"""``edgeprec chat``: turns, commands, and an end without fuss."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from edgeprec.config import Mode
from edgeprec.errors import ConfigError

CHAT = ("chat", "pair.edgeprec", "-n", "3", "--quiet")
ANSWER = " The tide comes"


def messages(fake_api: Any, turn: int = -1) -> list[tuple[str, str]]:
    """Return the messages of one call as role and content."""
    return [(message["role"], message["content"]) for message in fake_api.session.asked[turn][0]]


def test_every_turn_carries_the_conversation(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """The model hears what was said before, its own answers too."""
    outcome = invoke(*CHAT, "--system", "Be brief.", stdin=b"Why?\n\nAnd then?\n")
    assert outcome.code == 0
    assert outcome.out == f"{ANSWER}\n{ANSWER}\n"
    assert messages(fake_api) == [
        ("system", "Be brief."),
        ("user", "Why?"),
        ("assistant", ANSWER),
        ("user", "And then?"),
    ]


def test_reset_forgets_all_but_the_system_message(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """A new conversation begins as the first one did."""
    invoke(*CHAT, "--system", "Be brief.", stdin=b"Why?\n/reset\nWhat?\n")
    assert messages(fake_api) == [("system", "Be brief."), ("user", "What?")]


def test_mode_changes_what_runs_next(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Modes can be compared within one conversation."""
    outcome = invoke(*CHAT, stdin=b"/mode\n/mode fp16\nWhy?\n/mode fast\n")
    assert fake_api.session.asked[0][1].mode is Mode.FP16
    assert "exact\n" in outcome.out
    assert "mode is 'fast', expected exact, bounded, gated, fp16, int4" in outcome.out


def test_stats_are_those_of_the_last_reply(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Numbers come when they are asked for."""
    outcome = invoke(*CHAT, stdin=b"/stats\nWhy?\n/stats\n")
    assert outcome.out.startswith("nothing was generated yet\n")
    assert "3 tokens · 78.4 tokens/s" in outcome.out


def test_help_lists_the_commands(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Every command of the contract is there."""
    outcome = invoke(*CHAT, stdin=b"/help\n/nonsense\n")
    for command in ("/stats", "/mode", "/reset", "/help", "/exit"):
        assert command in outcome.out
    assert "there is no command '/nonsense'" in outcome.out


def test_exit_leaves_and_reads_no_further(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """What stands after /exit is not answered."""
    assert invoke(*CHAT, stdin=b"/exit\nWhy?\n").code == 0
    assert fake_api.session.asked == []
    assert fake_api.session.is_closed


def test_ctrl_c_ends_the_reply_and_not_the_conversation(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Half an answer stays in the conversation, and the next turn is taken."""
    fake_api.session.before_token = lambda index: os.kill(os.getpid(), signal.SIGINT) if index == 2 else None
    outcome = invoke(*CHAT, stdin=b"Why?\nGo on\n")
    assert outcome.code == 0
    assert messages(fake_api) == [("user", "Why?"), ("assistant", " The tide"), ("user", "Go on")]


def test_a_turn_that_does_not_fit_is_not_kept(
    fake_api: Any, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation stays usable: the turn is refused with a hint and dropped."""
    fake_api.session.error = ConfigError("the prompt has 600 tokens, the context holds 512")
    outcome = invoke(*CHAT, stdin=b"Why?\nWhat?\n")
    assert outcome.code == 0
    assert "the context holds 512; /reset forgets the conversation" in outcome.err
    assert messages(fake_api) == [("user", "What?")]


def test_a_turn_that_is_not_utf8_is_refused(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """The offset of the wrong byte is named."""
    outcome = invoke(*CHAT, stdin=b"caf\xe9\n")
    assert outcome.code == 2
    assert "standard input is not valid UTF-8: byte 0xe9 at offset 3" in outcome.err


def test_statistics_follow_each_reply_unless_quiet(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """They go to standard error, the conversation to standard output."""
    outcome = invoke("chat", "pair.edgeprec", "-n", "3", stdin=b"Why?\n")
    assert outcome.out == f"{ANSWER}\n"
    assert "3 tokens" in outcome.err
