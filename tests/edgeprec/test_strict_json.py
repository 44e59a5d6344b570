"""Strict JSON: what is not expected is refused, in the caller's error class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgeprec.errors import BundleError, ConfigError
from edgeprec.strict_json import Fields, parse_json


def fields(**values: Any) -> Fields:
    """Return the fields of an object."""
    return Fields(values, where="x.json", error=BundleError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "'a' twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
    ],
)
def test_damaged_text(text: bytes, message: str) -> None:
    """Text that is no plain JSON names its file and its fault."""
    with pytest.raises(ConfigError, match=f"x.json.*{message}"):
        parse_json(text, where="x.json", error=ConfigError)


@pytest.mark.parametrize(
    ("value", "take"),
    [
        (1, Fields.text),
        ("1", Fields.integer),
        (True, Fields.integer),
        (-1, Fields.integer),
        (1.5, Fields.integer),
        ("1", Fields.number),
        (False, Fields.number),
        (float("inf"), Fields.number),
        (10**400, Fields.number),
        (1, Fields.boolean),
        ({}, Fields.items),
        ([], Fields.mapping),
        ([1], Fields.fields),
        (None, Fields.text),
    ],
)
def test_wrong_type(value: Any, take: Callable[[Fields, str], Any]) -> None:
    """A wrong type is never read as something near it."""
    with pytest.raises(BundleError, match="'k' is"):
        take(fields(k=value), "k")


def test_missing_and_unknown_keys() -> None:
    """Both are named."""
    with pytest.raises(BundleError, match="no 'k'"):
        fields(other=1).text("k")
    with pytest.raises(BundleError, match=r"unknown keys \['more', 'other'\]"):
        fields(other=1, more=2).end()


def test_right_types_pass() -> None:
    """What is as expected comes back, and nothing is left."""
    found = fields(a="x", b=2, c=3, d=False, e=[1], f={"g": 1}, h=None)
    assert (found.text("a"), found.integer("b"), found.number("c"), found.boolean("d")) == ("x", 2, 3.0, False)
    assert (found.items("e"), found.optional("h", found.text), found.optional("absent", found.text)) == (
        [1],
        None,
        None,
    )
    inner = found.fields("f")
    assert inner.integer("g") == 1
    inner.end()
    found.end()
