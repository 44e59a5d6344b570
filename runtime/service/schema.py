"""Check a JSON value against a JSON Schema: the few keywords this server's own schemas use, with sentences for people.

The schemas stand in the OpenAPI document as they are, so what is documented is what is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from edgeprec.runtime.service.problem import Problem

__all__ = ["KEYWORDS", "Schema", "check", "nullable"]

Schema = Mapping[str, Any]

_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_IS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def nullable(schema: Schema) -> dict[str, Any]:
    """Return ``schema`` with null allowed: a field that is null counts as not given."""
    changed = dict(schema)
    if "null" in _types(schema) and "anyOf" not in schema:
        return changed
    if "anyOf" in changed:
        changed["anyOf"] = [*changed["anyOf"], {"type": "null"}]
        return changed
    changed["type"] = [*_types(schema), "null"]
    if "enum" in changed:
        changed["enum"] = [*changed["enum"], None]
    return changed


def check(value: Any, schema: Schema, *, name: str = "") -> None:
    """Check ``value``, which the request calls ``name``; the empty name is the body itself.

    Raises:
        Problem: it does not match; 400, with the field's name.
    """
    if "anyOf" in schema:
        _check_any(value, schema, name)
        return
    if not any(_IS[kind](value) for kind in _types(schema)):
        raise _refused(value, schema, name)
    for keyword, test in _TESTS.items():
        if keyword in schema and not test(value, schema[keyword]):
            raise _refused(value, schema, name)
    if isinstance(value, list):
        for index, item in enumerate(value if "items" in schema else ()):
            check(item, schema["items"], name=f"{name}[{index}]")
    elif isinstance(value, dict):
        _check_object(value, schema, name)


def _check_any(value: Any, schema: Schema, name: str) -> None:
    """Take the only branch of the value's type, so that its message is about what was meant."""
    fitting = [branch for branch in schema["anyOf"] if any(_IS[kind](value) for kind in _types(branch))]
    if len(fitting) != 1:
        raise _refused(value, schema, name)
    check(value, fitting[0], name=name)


def _check_object(value: Mapping[str, Any], schema: Schema, name: str) -> None:
    known: Mapping[str, Schema] = schema.get("properties", {})
    for key, item in value.items():
        inner = f"{name}.{key}" if name else key
        if key in known:
            check(item, known[key], name=inner)
        elif schema.get("additionalProperties", True) is False:
            where = f"{name!r}" if name else "a request here"
            raise Problem(
                400,
                f"the field {_shortened(inner)} is unknown or not supported: {where} takes {', '.join(sorted(known))}",
                param=inner,
                code="unknown_field",
            )
    missing = next((key for key in schema.get("required", ()) if key not in value), None)
    if missing is not None:
        inner = f"{name}.{missing}" if name else missing
        raise Problem(
            400, f"the field {inner!r} is missing, expected {_expected(known[missing])}", param=inner, code="missing"
        )


def _refused(value: Any, schema: Schema, name: str) -> Problem:
    subject = f"the field {name!r}" if name else "the body"
    return Problem(
        400,
        f"{subject} is {_shown(value)}, expected {_expected(schema)}",
        param=name or None,
        code="invalid_value",
    )


def _expected(schema: Schema) -> str:
    if "title" in schema:
        return str(schema["title"])
    if "anyOf" in schema:
        return " or ".join(_expected(branch) for branch in schema["anyOf"] if branch.get("type") != "null")
    if "enum" in schema:
        words = [_shown(value) for value in schema["enum"] if value is not None]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    kind = " or ".join(_NAMES[kind] for kind in _types(schema) if kind != "null") or "null"
    limits = [text.format(schema[keyword]) for keyword, text in _LIMITS.items() if keyword in schema]
    items = f" of {_expected(schema['items'])}" if "items" in schema else ""
    return kind + items + (f" {' and '.join(limits)}" if limits else "")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return _shortened(value) if isinstance(value, str) else json.dumps(value)[:60]


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _types(schema: Schema) -> list[str]:
    kind = schema.get("type", list(_IS))
    return [kind] if isinstance(kind, str) else list(kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != math.inf


def _if_number(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, limit: not _is_number(value) or test(value, limit)


def _if_sized(
    kind: type[str] | type[list[Any]] | type[dict[str, Any]], test: Callable[[int, int], bool]
) -> Callable[[Any, Any], bool]:
    return lambda value, limit: not isinstance(value, kind) or test(len(value), limit)


def _is_one_of(value: Any, allowed: Any) -> bool:
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "enum": _is_one_of,
    "minimum": _if_number(lambda value, limit: value >= limit),
    "maximum": _if_number(lambda value, limit: value <= limit),
    "exclusiveMinimum": _if_number(lambda value, limit: value > limit),
    "exclusiveMaximum": _if_number(lambda value, limit: value < limit),
    "minLength": _if_sized(str, lambda size, limit: size >= limit),
    "maxLength": _if_sized(str, lambda size, limit: size <= limit),
    "minItems": _if_sized(list, lambda size, limit: size >= limit),
    "maxItems": _if_sized(list, lambda size, limit: size <= limit),
    "maxProperties": _if_sized(dict, lambda size, limit: size <= limit),
}
_LIMITS = {
    "minimum": "of at least {}",
    "maximum": "of at most {}",
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "minLength": "of at least {} characters",
    "maxLength": "of at most {} characters",
    "minItems": "with at least {} entries",
    "maxItems": "with at most {} entries",
    "maxProperties": "with at most {} entries",
}
KEYWORDS = frozenset(
    {
        "title",
        "anyOf",
        "type",
        "items",
        "properties",
        "required",
        "additionalProperties",
        "description",
        "default",
        *_TESTS,
    }
)
"""What a schema here may say; anything else would be documented and not checked."""
