"""The rows of one prefill pass can be limited; the tokens stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROMPT = "abcdefghij"


@pytest.mark.parametrize(("rows", "expected"), [(None, [10]), (16, [10]), (4, [4, 4, 2]), (1, [1] * 10)])
def test_prefill_runs_in_passes_of_so_many_rows(
    make_rig: Callable[..., Any], rows: int | None, expected: list[int]
) -> None:
    """A limit cuts the prompt into passes of that size; without one the engine's own holds."""
    rig = make_rig(max_rows=16)
    rig.session.prefill_rows = rows
    reply = rig.session.generate(PROMPT, max_new_tokens=1, ignore_eos=True)
    assert [len(asked.tokens) for asked in rig.target.passes] == expected
    assert list(reply.tokens) == rig.expected(PROMPT, 1)
