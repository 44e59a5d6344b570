"""Whole replies: the text FP16 would write, OpenAI's shape, and what each field of a request does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgeprec.runtime.reply import token_sha256

MakeClient = Callable[..., Any]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spelling(text: str, *, after: int) -> dict[str, Any]:
    """Return a model that writes ``text`` behind ``after`` tokens; ``.`` is the end token."""
    return {
        "forced": {after + place: 26 if letter == "." else LETTERS.index(letter) for place, letter in enumerate(text)}
    }


def test_a_completion_is_fp16s_text(make_client: MakeClient) -> None:
    """Drafted or not, the reply is what plain decoding writes, and everything OpenAI's clients read is there."""
    client = make_client()
    answer = client.complete("hello", max_tokens=20)
    assert answer.status_code == 200
    reply = answer.json()
    assert reply["object"] == "text_completion"
    assert reply["model"] == "toy"
    assert reply["id"].startswith("cmpl-")
    (choice,) = reply["choices"]
    assert choice["text"] == client.served.expected("hello", 20)
    assert (choice["index"], choice["logprobs"]) == (0, None)
    assert reply["usage"]["prompt_tokens"] == 5
    assert reply["usage"]["total_tokens"] == 5 + reply["usage"]["completion_tokens"]


def test_a_conversation_goes_through_the_chat_template(make_client: MakeClient) -> None:
    """The assistant's message is the text behind the rendered turns."""
    client = make_client()
    reply = client.chat("hello", max_tokens=9).json()
    assert reply["object"] == "chat.completion"
    message = reply["choices"][0]["message"]
    assert message == {"role": "assistant", "content": client.served.expected_chat("hello", 9), "refusal": None}


def test_a_reply_tells_how_it_was_made(make_client: MakeClient) -> None:
    """Mode, acceptance, INT4 share and joules, or why there are none."""
    reply = make_client().complete("hello", max_tokens=20, ignore_eos=True, edgeprec={"draft_length": 4}).json()
    facts = reply["edgeprec"]
    assert facts["mode"] == "exact"
    assert facts["acceptance_rate"] == facts["accepted"] / facts["drafted"]
    assert 0 < facts["int4_layer_share"] < 1
    assert facts["joules"] is None
    assert facts["energy"] is None
    assert facts["energy_note"] == "no meter was given to this session"
    assert facts["new_tokens"] == 20
    assert facts["queue_s"] >= 0


@pytest.mark.parametrize(
    ("text", "asked", "shown", "reason"),
    [
        ("hello.", {}, "hello", "stop"),
        ("hello.", {"max_tokens": 3}, "hel", "length"),
        ("hello.", {"stop": "lo"}, "hel", "stop"),
        ("hello.", {"stop": ["x", "e"]}, "h", "stop"),
        ("he.lo", {"ignore_eos": True, "max_tokens": 5}, "helo", "length"),
    ],
)
def test_how_a_reply_ends(make_client: MakeClient, text: str, asked: dict[str, Any], shown: str, reason: str) -> None:
    """End token, limit and stop texts each have their word."""
    reply = make_client(model=spelling(text, after=2)).complete("ab", **asked).json()
    assert (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]) == (shown, reason)


def test_a_completion_has_sixteen_tokens_unless_it_says_otherwise(make_client: MakeClient) -> None:
    """As OpenAI's API documents it; a conversation may fill the context."""
    client = make_client(engine={"context_tokens": 40})
    assert client.complete("ab", ignore_eos=True).json()["usage"]["completion_tokens"] == 16
    assert client.chat("ab", ignore_eos=True).json()["usage"]["total_tokens"] == 40


def test_the_servers_limit_is_the_default_and_the_most(make_client: MakeClient) -> None:
    """A request for more is refused with both numbers."""
    client = make_client(max_tokens=7)
    assert client.chat("ab", ignore_eos=True).json()["usage"]["completion_tokens"] == 7
    answer = client.chat("ab", max_tokens=8)
    assert answer.status_code == 400
    assert (
        answer.json()["error"]["message"] == "the field 'max_tokens' is 8, this server gives at most 7 tokens a reply"
    )


@pytest.mark.parametrize("asked", [{"temperature": 1.3}, {"temperature": 0.8, "top_p": 0.7, "top_k": 9, "min_p": 0.01}])
def test_the_same_seed_gives_the_same_reply(make_client: MakeClient, asked: dict[str, Any]) -> None:
    """Whatever ran in between, and in exact mode as in fp16."""
    client = make_client()
    asked |= {"seed": 11, "max_tokens": 30, "ignore_eos": True}
    first = client.complete("abc", **asked).json()
    client.complete("xyz", temperature=2, max_tokens=9)
    again = client.complete("abc", **asked).json()
    plain = client.complete("abc", edgeprec={"mode": "fp16"}, **asked).json()
    other = client.complete("abc", **asked | {"seed": 12}).json()
    texts = [reply["choices"][0]["text"] for reply in (first, again, plain, other)]
    assert texts[0] == texts[1] == texts[2] != texts[3]
    assert first["edgeprec"]["seed"] == 11


def test_a_drawn_seed_is_reported_and_repeats(make_client: MakeClient) -> None:
    """A reply that turned out well can be had again."""
    client = make_client()
    asked = {"temperature": 1.5, "max_tokens": 30, "ignore_eos": True}
    first = client.complete("abc", **asked).json()
    again = client.complete("abc", seed=first["edgeprec"]["seed"], **asked).json()
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


def test_a_negative_seed_is_a_seed(make_client: MakeClient) -> None:
    """OpenAI's seeds are signed: -1 and 2**64 - 1 are the same bits."""
    reply = make_client().complete("abc", temperature=1, seed=-1).json()
    assert reply["edgeprec"]["seed"] == 2**64 - 1


def test_requests_that_say_nothing_get_the_servers_settings(make_client: MakeClient) -> None:
    """Flags of ``serve`` are defaults, a request's fields beat them."""
    from edgeprec.config import GenerationConfig, Mode, SamplingConfig

    config = GenerationConfig(mode=Mode.FP16, sampling=SamplingConfig(temperature=1.0))
    client = make_client(generation=config)
    assert client.complete("ab").json()["edgeprec"]["mode"] == "fp16"
    assert client.complete("ab").json()["edgeprec"]["seed"] is not None
    assert client.complete("ab", temperature=0, edgeprec={"mode": "exact"}).json()["edgeprec"]["mode"] == "exact"
    assert client.complete("ab", temperature=0).json()["edgeprec"]["seed"] is None


def test_a_prompt_may_be_token_ids(make_client: MakeClient) -> None:
    """The ids of a text give the text's reply."""
    client = make_client()
    text, ids = client.complete("abc").json(), client.complete([0, 1, 2.0]).json()
    assert text["choices"] == ids["choices"]


def test_text_parts_and_developer_messages_are_read(make_client: MakeClient) -> None:
    """Newer clients send both: parts are joined, a developer is a system."""
    client = make_client()
    plain = [{"role": "system", "content": "be"}, {"role": "user", "content": "abc"}]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    newer = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]
    answers = [client.post("/v1/chat/completions", json={"messages": form}).json() for form in (plain, newer)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_a_second_turn_starts_from_the_cached_first(make_client: MakeClient) -> None:
    """A conversation is not read again from its beginning."""
    client = make_client(model={"forced": {8: 7, 9: 8, 10: 26}})
    turns = [{"role": "user", "content": "abcde"}]
    first = client.post("/v1/chat/completions", json={"messages": turns}).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    turns += [first["choices"][0]["message"], {"role": "user", "content": "f"}]
    turns[1].pop("refusal")
    second = client.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 2}).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 7


def test_chat_logprobs(make_client: MakeClient) -> None:
    """Every token has its own figure, its bytes and the alternatives asked for, the most probable first."""
    reply = make_client().chat("abc", logprobs=True, top_logprobs=3, max_tokens=5, ignore_eos=True).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
        assert entry["token"] == entry["top_logprobs"][0]["token"]
        assert bytes(entry["bytes"]).decode() == entry["token"]
    shown = "".join(entry["token"] for entry in content).replace("<end>", "")
    assert shown == reply["choices"][0]["message"]["content"]


def test_completion_logprobs(make_client: MakeClient) -> None:
    """The older shape: lists side by side."""
    found = make_client().complete("abc", logprobs=2, max_tokens=4, ignore_eos=True).json()["choices"][0]["logprobs"]
    assert [len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [4] * 4
    assert all(len(entry) == 2 for entry in found["top_logprobs"])
    assert found["top_logprobs"][0][found["tokens"][0]] == found["token_logprobs"][0]
    assert found["text_offset"] == [sum(map(len, found["tokens"][:place])) for place in range(4)]


def test_the_digest_is_that_of_the_tokens(make_client: MakeClient) -> None:
    """Two servers can be compared without their texts."""
    client = make_client(model=spelling("hi.", after=2))
    reply = client.complete("ab").json()
    assert reply["edgeprec"]["token_sha256"] == token_sha256((7, 8, 26))


def test_models_are_listed_and_shown(make_client: MakeClient) -> None:
    """There is one; another name is not found."""
    client = make_client()
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("toy", "model", "edgeprec")
    assert client.get("/v1/models/toy").json() == model
    answer = client.get("/v1/models/other")
    assert answer.status_code == 404
    assert "this server has 'toy'" in answer.json()["error"]["message"]
