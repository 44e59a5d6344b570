"""What the fields of a request may be: one table for each rule, and the sentence that names the field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edgeprec.config import DrafterKind, GenerationConfig, Mode, SamplingConfig
from edgeprec.runtime.service.asked import read_chat, read_completion
from edgeprec.runtime.service.problem import Problem
from edgeprec.runtime.service.request_schemas import CHAT_REQUEST, COMPLETION_REQUEST
from edgeprec.runtime.service.schema import KEYWORDS, check, nullable

DEFAULTS = GenerationConfig()
MESSAGES = [{"role": "user", "content": "abc"}]


def refused(body: Any, read: Any = read_completion) -> Problem:
    """Return the problem a body has."""
    with pytest.raises(Problem) as raised:
        read(body, DEFAULTS)
    assert raised.value.status == 400
    return raised.value


@pytest.mark.parametrize(
    ("fields", "param", "expected"),
    [
        ({"temperature": 2.1}, "temperature", "is 2.1, expected a number of at least 0 and of at most 2"),
        ({"temperature": "hot"}, "temperature", "is 'hot', expected a number"),
        ({"temperature": True}, "temperature", "is true, expected a number"),
        ({"top_p": 0}, "top_p", "is 0, expected a number of at most 1 and above 0"),
        ({"max_tokens": 0}, "max_tokens", "is 0, expected a whole number of at least 1"),
        ({"max_tokens": 1.5}, "max_tokens", "is 1.5, expected a whole number"),
        ({"seed": 2**63}, "seed", "expected a whole number"),
        ({"stop": ["a", ""]}, "stop[1]", "expected a text of at least 1 characters"),
        ({"stop": 5}, "stop", "is 5, expected a text"),
        ({"n": 2}, "n", "is 2, expected 1"),
        ({"best_of": 3}, "best_of", "is 3, expected 1"),
        ({"echo": True}, "echo", "is true, expected false"),
        ({"suffix": "x"}, "suffix", "is 'x', expected null"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "an object of 1, expected an object with at most 0 entries"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "is 0.5, expected 0"),
        ({"logprobs": 21}, "logprobs", "of at most 20"),
        ({"edgeprec": {"mode": "fast"}}, "edgeprec.mode", "expected one of 'exact', 'bounded'"),
        ({"edgeprec": {"modes": "exact"}}, "edgeprec.modes", "unknown or not supported"),
        ({"stream": 1}, "stream", "is 1, expected true or false"),
        ({"stream_options": {}}, "stream_options", "needs 'stream' to be true"),
        ({"beams": 4}, "beams", "the field 'beams' is unknown or not supported: a request here takes best_of"),
        ({"tools": []}, "tools", "unknown or not supported"),
        ({"x" * 200: 4}, "x" * 200, "..."),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, expected: str) -> None:
    """What it is, what was expected, and its name for programs."""
    problem = refused({"prompt": "abc", **fields})
    assert problem.param == param
    assert expected in problem.message


@pytest.mark.parametrize(
    ("body", "param", "expected"),
    [
        ({}, "messages", "is missing, expected a list of messages"),
        ({"messages": []}, "messages", "is a list of 0, expected a list of messages"),
        ({"messages": "hi"}, "messages", "is 'hi', expected a list of messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "is 'tool', expected one of 'system'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing, expected a text or a list"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "is null"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages[0].name", "unknown"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
            "messages[0].content[0].type",
            "is 'image_url', expected 'text'",
        ),
        ({"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs", "needs 'logprobs'"),
        ({"messages": MESSAGES, "max_tokens": 2, "max_completion_tokens": 3}, "max_tokens", "differ"),
        ({"messages": MESSAGES, "tools": [{}]}, "tools", "expected a list with at most 0 entries"),
        ({"messages": MESSAGES, "response_format": {"type": "json_object"}}, "response_format.type", "expected 'text'"),
    ],
)
def test_a_wrong_conversation_is_named(body: Any, param: str, expected: str) -> None:
    """Down to the place in the list."""
    problem = refused(body, read_chat)
    assert problem.param == param
    assert expected in problem.message


NOTHING_ASKED = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "user": "ann",
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "store": False,
    "service_tier": "auto",
    "stream": False,
    "logprobs": False,
}


def test_fields_that_ask_for_nothing_are_taken() -> None:
    """Clients send many of OpenAI's fields with their defaults."""
    plain = read_chat({"messages": MESSAGES}, DEFAULTS)
    assert read_chat({"messages": MESSAGES, **NOTHING_ASKED}, DEFAULTS) == plain


@pytest.mark.parametrize("name", sorted(set(CHAT_REQUEST["properties"]) - {"messages"}))
def test_null_counts_as_not_given(name: str) -> None:
    """For every field that may be left out."""
    plain = read_chat({"messages": MESSAGES}, DEFAULTS)
    assert read_chat({"messages": MESSAGES, name: None}, DEFAULTS) == plain


def test_an_earlier_answer_is_taken_back_as_it_came() -> None:
    """Programs dump the message object with its empty fields into the next turn."""
    empty = {"annotations": None, "audio": None, "function_call": None, "refusal": None, "tool_calls": None}
    messages = [*MESSAGES, {"role": "assistant", "content": "b", **empty}, *MESSAGES]
    asked = read_chat({"messages": messages}, DEFAULTS)
    assert asked.prompt[1] == {"role": "assistant", "content": "b"}


def test_fields_reach_the_configuration() -> None:
    """Each under its own name, whole numbers as such even when they come as 3.0."""
    body = {
        "prompt": "abc",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3.0,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "seed": 7.0,
        "stop": "x",
        "ignore_eos": True,
        "edgeprec": {"mode": "bounded", "drafter": "ngram", "draft_length": 4.0, "three_level": False, "epsilon": 0.05},
    }
    asked = read_completion(body, DEFAULTS)
    assert asked.config.sampling == SamplingConfig(
        temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, repetition_penalty=1.2, seed=7
    )
    assert isinstance(asked.config.sampling.top_k, int)
    assert (asked.config.mode, asked.config.stop, asked.config.ignore_eos) == (Mode.BOUNDED, ("x",), True)
    drafting = asked.config.drafting
    assert (drafting.drafter, drafting.draft_length, drafting.epsilon) == (DrafterKind.NGRAM, 4, 0.05)
    assert drafting.three_level is False


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all within it."""
    yield schema
    for inner in [*schema.get("properties", {}).values(), *schema.get("anyOf", []), schema.get("items")]:
        if inner is not None:
            yield from schemas(inner)


def test_schemas_say_nothing_that_is_not_checked() -> None:
    """A keyword the checker does not know would be a promise nobody keeps."""
    for request in (CHAT_REQUEST, COMPLETION_REQUEST):
        for schema in schemas(request):
            assert set(schema) <= KEYWORDS


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 1.0, -5, 10**30], [1.5, True, "1", None, float("inf")]),
        ({"type": "number"}, [1, 1.5, 10**400], [False, "1", float("inf")]),
        ({"type": "boolean"}, [True], [0, 1, "true"]),
        ({"enum": [0], "type": "integer"}, [0, 0.0], [False, 1]),
        ({"enum": [False], "type": "boolean"}, [False], [0, True]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "ab"], ["", "abc", 1]),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [[], [1, 2]], [[1, 2, 3], ["a"], {}]),
        ({"type": "object", "required": ["a"], "properties": {"a": {}}}, [{"a": None, "b": 1}], [{}, []]),
        (nullable({"type": "string", "enum": ["a"]}), ["a", None], ["b", 1]),
        (nullable({"anyOf": [{"type": "string"}, {"type": "array"}]}), ["a", [], None], [1, {}]),
    ],
)
def test_the_checker_knows_json_schema(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    """The keywords used here mean what the standard says."""
    for value in good:
        check(value, schema, name="x")
    for value in bad:
        with pytest.raises(Problem):
            check(value, schema, name="x")
