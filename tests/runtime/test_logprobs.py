"""Log probabilities of emitted tokens: of the model's own distribution, largest first, with every kind of decoding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgeprec.errors import ConfigError
from edgeprec.runtime.logprobs import token_logprobs

MakeRig = Callable[..., Any]


def log_softmax(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the definition, in float64."""
    wide = row.astype(np.float64)
    return wide - math.log(sum(math.exp(value) for value in wide))


@pytest.mark.parametrize("top", [0, 1, 3, 27, 40])
def test_probabilities_are_those_of_softmax(top: int) -> None:
    """The token's own figure and the largest ones, in order; more than there are is all of them."""
    row = np.random.default_rng(5).standard_normal(27).astype(np.float32)
    expected = log_softmax(row)
    found = token_logprobs(row, 4, top=top)
    assert found.logprob == pytest.approx(expected[4], abs=1e-9)
    order = sorted(range(27), key=lambda index: (-expected[index], index))[:top]
    assert [index for index, _ in found.top] == order
    assert [value for _, value in found.top] == pytest.approx([expected[index] for index in order], abs=1e-9)


def test_ties_go_to_the_lower_id() -> None:
    """The order of equals does not depend on the sort."""
    row = np.array([1, 3, 3, 3, 0], np.float32)
    assert [index for index, _ in token_logprobs(row, 0, top=2).top] == [1, 2]


def test_tokens_without_mass_have_minus_infinity() -> None:
    """A masked token is impossible, and the others share everything."""
    found = token_logprobs(np.array([0, -np.inf, 0], np.float32), 1, top=3)
    assert found.logprob == -math.inf
    assert [value for _, value in found.top] == pytest.approx([-math.log(2), -math.log(2), -math.inf])


@pytest.mark.parametrize("asked", [{"mode": "fp16"}, {"draft_length": 4}, {"draft_length": 4, "temperature": 0.9}])
@pytest.mark.parametrize("agreement", ["always", "never", "sometimes"])
def test_a_tokens_logprob_does_not_depend_on_who_drafted_it(
    make_rig: MakeRig, agreement: str, asked: dict[str, Any]
) -> None:
    """Every event's figures are those of FP16's row at its place, temperature and drafts or not."""
    rig = make_rig(agreement)
    reply = rig.session.generate("abc", ignore_eos=True, max_new_tokens=20, seed=3, top_logprobs=2, **asked)
    text = [0, 1, 2]
    for event in reply.events:
        row = rig.model.row(rig.model.identity(text), len(text))
        assert event.logprobs == token_logprobs(row, event.token, top=2)
        text.append(event.token)


def test_nothing_is_computed_unless_asked(make_rig: MakeRig) -> None:
    """Events are light by default."""
    assert all(event.logprobs is None for event in make_rig().session.generate("abc", max_new_tokens=4).events)


@pytest.mark.parametrize("wrong", [-1, 21])
def test_too_many_alternatives_are_refused(make_rig: MakeRig, wrong: int) -> None:
    """The message names the range."""
    with pytest.raises(ConfigError, match=f"top_logprobs is {wrong}, expected 0 to 20"):
        make_rig().session.generate("abc", top_logprobs=wrong)
