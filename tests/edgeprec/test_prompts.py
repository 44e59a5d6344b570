"""The shipped prompts: sets that share nothing, balanced kinds, ids that keep their text."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import combinations

import pytest

from edgeprec.errors import ConfigError
from edgeprec.prompts import PROMPT_SETS, Prompt, PromptKind, load_prompts

FULL_SETS = ("calibration", "tuning", "test")
TEST_SHA256 = "d38b7208202d3d6567b3ec7ee64db18f44dd40c78e75f1399bf7efa98cc88db9"


def words(prompt: Prompt) -> frozenset[str]:
    """Return the different words of a prompt, in lower case."""
    return frozenset(re.findall(r"[a-z]+", prompt.text.lower()))


@pytest.mark.parametrize(("name", "count"), [("calibration", 40), ("tuning", 40), ("test", 200), ("short", 27)])
def test_each_set_has_its_documented_size(name: str, count: int) -> None:
    """The sizes stand in the documentation and in tables; they must not drift."""
    assert len(load_prompts(name)) == count


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_kinds_are_balanced_in_every_set(name: str) -> None:
    """A mean over a set weighs every kind alike, to within one prompt."""
    counts = Counter(prompt.kind for prompt in load_prompts(name))
    assert set(counts) == set(PromptKind)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("kind", list(PromptKind))
def test_choosing_a_kind_keeps_order_and_drops_the_rest(kind: PromptKind) -> None:
    """``kind`` is a filter: same prompts, same order."""
    everything = load_prompts("test")
    assert load_prompts("test", kind) == tuple(prompt for prompt in everything if prompt.kind is kind)
    assert load_prompts("test", str(kind)) == load_prompts("test", kind)


def test_no_prompt_stands_in_two_sets_or_twice_in_one() -> None:
    """What is measured on the test set was never seen while calibrating or tuning."""
    prompts = [prompt for name in FULL_SETS for prompt in load_prompts(name)]
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({" ".join(prompt.text.lower().split()) for prompt in prompts}) == len(prompts)


def test_no_two_prompts_are_variations_of_one_template() -> None:
    """No pair shares most of its words, so 200 prompts are 200 different texts."""
    prompts = [prompt for name in FULL_SETS for prompt in load_prompts(name)]
    bags = [(prompt.id, words(prompt)) for prompt in prompts]
    for (first_id, first), (second_id, second) in combinations(bags, 2):
        overlap = len(first & second) / len(first | second)
        assert overlap < 0.5, f"{first_id} and {second_id} share {overlap:.0%} of their words"


def test_short_is_every_seventh_prompt_of_each_kind_of_test() -> None:
    """The short set is the documented subset, not a picked one."""
    expected = [
        prompt
        for kind in PromptKind
        for prompt in load_prompts("test", kind)[: 36 if kind is PromptKind.PASSAGE else 49 : 7]
    ]
    assert list(load_prompts("short")) == expected


def test_ids_say_set_kind_and_number() -> None:
    """An id can be read without the file: set, kind, running number from 1."""
    for name in FULL_SETS:
        for kind in PromptKind:
            numbered = [f"{name}-{kind}-{number:02d}" for number in range(1, len(load_prompts(name, kind)) + 1)]
            assert [prompt.id for prompt in load_prompts(name, kind)] == numbered


def test_an_id_keeps_its_text() -> None:
    """Changing a test prompt makes published results incomparable: give a new prompt a new id instead."""
    content = "\n".join(f"{prompt.id}\t{prompt.text}" for prompt in load_prompts("test"))
    assert hashlib.sha256(content.encode()).hexdigest() == TEST_SHA256


def test_lengths_vary_within_what_a_small_context_takes() -> None:
    """Every prompt is 20 to 900 characters without stray blanks at its ends, and they are not all alike."""
    lengths = [len(prompt.text) for name in FULL_SETS for prompt in load_prompts(name)]
    assert min(lengths) >= 20
    assert max(lengths) <= 900
    assert len(set(lengths)) > 150
    assert all(prompt.text == prompt.text.strip() for name in FULL_SETS for prompt in load_prompts(name))


@pytest.mark.parametrize(("name", "kind"), [("train", None), ("test", "poetry"), ("", None)])
def test_an_unknown_set_or_kind_is_a_clear_error(name: str, kind: str | None) -> None:
    """The message names the value and lists what there is."""
    with pytest.raises(ConfigError, match=f"{(kind or name)!r}, expected one of"):
        load_prompts(name, kind)
