"""JSON objects answer with typed values or say which key of which file is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeprec.errors import ConfigError
from edgeprec.export.json_object import JsonObject, read_json_object


def made(**values: Any) -> JsonObject:
    """Return an object called f.json."""
    return JsonObject(values, origin="f.json")


def test_values_and_defaults() -> None:
    """A present key wins over the default; null and absence take it."""
    raw = made(a=3, b=None, c=[1], d=["x", "y"])
    assert raw.integer("a", 5) == 3
    assert raw.number("a") == 3.0
    assert isinstance(raw.number("a"), float)
    assert raw.integer("b", 5) == raw.integer("z", 5) == 5
    assert raw.get("c") == [1]
    assert raw.strings("d") == ("x", "y")
    assert raw.strings("z") == ()
    assert raw.child("z") is None


def test_a_child_is_named_with_its_parent() -> None:
    """An error inside a nested object tells the way to it."""
    child = made(inner={"a": "x"}).child("inner")
    assert child is not None
    with pytest.raises(ConfigError, match=r"f\.json: inner: a is 'x', expected a whole number"):
        child.integer("a")


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("integer", 1.5, "whole number"),
        ("integer", True, "whole number"),
        ("integer", "1", "whole number"),
        ("integer", None, "has no key 'k'"),
        ("number", "1", "a number"),
        ("number", False, "a number"),
        ("number", None, "has no key 'k'"),
        ("strings", "abc", "list of strings"),
        ("strings", [1], "list of strings"),
        ("child", 3, "an object"),
    ],
)
def test_wrong_kinds_are_named(method: str, value: Any, expected: str) -> None:
    """The message has the file, the key and what was expected."""
    with pytest.raises(ConfigError, match=rf"f\.json.*k.*{expected}|f\.json {expected}"):
        getattr(made(k=value), method)("k")


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "not JSON"), (b"[1]", "list"), (b"3", "int"), (b"\xff", "not UTF-8"), (b'{"a": ', "not JSON")],
)
def test_files_that_hold_no_object(tmp_path: Path, data: bytes, words: str) -> None:
    """A file that is empty, damaged or of another kind is named."""
    path = tmp_path / "f.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=rf"f\.json.*{words}"):
        read_json_object(path)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, or a folder in its place, is named with the system's reason."""
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read: No such file"):
        read_json_object(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_json_object(tmp_path)
