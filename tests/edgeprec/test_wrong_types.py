"""Values of another type than is meant are refused in a sentence that names them, not by an error from inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeprec
from edgeprec.config import ControllerConfig, DraftingConfig, GenerationConfig, SamplingConfig, with_overrides
from edgeprec.errors import ConfigError
from edgeprec.runtime.session import Session

PROMPT = "the and"


@pytest.fixture(scope="module")
def session(tiny_pair: Path) -> Iterator[Session]:
    """Load the tiny pair."""
    with edgeprec.load(tiny_pair, sensor="none") as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_new_tokens", "5", "a whole number"),
        ("max_new_tokens", None, "a whole number"),
        ("max_new_tokens", 5.0, "a whole number"),
        ("max_new_tokens", True, "a whole number"),
        ("temperature", "hot", "a number"),
        ("temperature", True, "a number"),
        ("temperature", [1], "a number"),
        ("top_p", None, "a number"),
        ("top_k", 1.5, "a whole number"),
        ("seed", "x", "a whole number"),
        ("draft_length", "adaptive", "a whole number"),
        ("draft_length", 2.5, "a whole number"),
        ("three_level", "yes", "True or False"),
        ("ignore_eos", 1, "True or False"),
        ("window", 1.5, "a whole number"),
        ("gated_layers", "x", "a whole number"),
        ("theta_low_bits", "x", "a number"),
        ("power_budget_w", "20", "a number"),
        ("mode", 3, "one of exact, bounded, gated, fp16, int4"),
        ("mode", None, "one of exact, bounded, gated, fp16, int4"),
        ("drafter", ["self"], "one of auto, self, model, ngram, none"),
        ("stop", 3, "a text, or texts"),
        ("stop", None, "a text, or texts"),
        ("stop", b"x", "a text, or texts"),
        ("stop", ["a", None], "a text, or texts"),
        ("sampling", {"temperature": 1}, "a SamplingConfig"),
        ("drafting", None, "a DraftingConfig"),
    ],
)
def test_a_setting_has_its_kind(session: Session, name: str, value: Any, expected: str) -> None:
    """The field, what was given and what is meant are named, and the session goes on."""
    with pytest.raises(ConfigError, match=rf"{name} is .*, expected {expected}"):
        session.generate(PROMPT, **{name: value})
    assert session.generate(PROMPT, max_new_tokens=1).tokens


@pytest.mark.parametrize("config", [{"mode": "exact"}, "exact", [GenerationConfig()]])
def test_a_configuration_is_one(session: Session, config: Any) -> None:
    """A dictionary of settings goes in as keywords."""
    with pytest.raises(ConfigError, match=r"the configuration is .*, expected a GenerationConfig"):
        session.generate(PROMPT, config)


@pytest.mark.parametrize("prompt", [None, 5, 1.5, b"ab", {1, 2}, iter("ab"), object()])
def test_a_prompt_is_a_text_or_a_list(session: Session, prompt: Any) -> None:
    """Bytes are no text, and a set has no order."""
    for begin in (session.generate, session.stream):
        with pytest.raises(ConfigError, match=f"the prompt is of type {type(prompt).__name__}, expected a text"):
            begin(prompt, max_new_tokens=1)


def test_truth_is_no_token(session: Session) -> None:
    """True would be token 1."""
    with pytest.raises(ConfigError, match="neither a text nor all token ids"):
        session.generate([True, 2], max_new_tokens=1)


def test_half_a_character_is_refused(session: Session) -> None:
    """What was decoded with surrogate escapes is no text."""
    for chat in (False, True):
        with pytest.raises(ConfigError, match=r"the prompt has '\\udcff' at character \d+, which is no character"):
            session.generate("a\udcff", chat=chat, max_new_tokens=1)


@pytest.mark.parametrize("count", ["3", 1.5, True])
def test_alternatives_are_a_whole_number(session: Session, count: Any) -> None:
    """So are they where no probability is asked for."""
    with pytest.raises(ConfigError, match=f"top_logprobs is {count!r}, expected a whole number"):
        session.generate(PROMPT, top_logprobs=count, max_new_tokens=1)


def test_numbers_of_numpy_are_numbers(session: Session) -> None:
    """Whoever computes a setting has those."""
    config = with_overrides(GenerationConfig(), temperature=np.float32(0.5), top_k=np.int64(4), seed=np.uint32(1))
    assert session.generate(np.array([4, 5]), config, max_new_tokens=np.int32(2)).tokens  # type: ignore[call-overload]


def test_a_whole_part_is_an_override_too() -> None:
    """Fields given beside it are put on top."""
    config = with_overrides(GenerationConfig(), drafting=DraftingConfig(draft_length=3), max_draft_length=5)
    assert config.drafting == DraftingConfig(draft_length=3, max_draft_length=5)


def test_defaults_are_of_their_kind() -> None:
    """Every field is checked by what it is declared to be."""
    assert GenerationConfig(sampling=SamplingConfig(), controller=ControllerConfig(), drafting=DraftingConfig())


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"source": None}, "the source is None, expected a text or a Path"),
        ({"output": 3}, "the output is 3, expected a text or a Path"),
        ({"draft": None}, "the draft is None, expected a text or a Path"),
        ({"settings": {"group_size": 32}}, "settings is .*, expected ExportSettings or None"),
    ],
)
def test_an_export_has_paths(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    """Before any package is looked for."""
    for export in (edgeprec.export_bundle, edgeprec.api.export_compressed_tensors):
        with pytest.raises(ConfigError, match=match):
            export(**{"source": "a", "output": tmp_path / "b"} | given)


def test_a_batch_of_none_is_refused(tiny_pair: Path) -> None:
    """At least one sequence runs."""
    with pytest.raises(ConfigError, match="sequences is 0, expected 1 or more"):
        edgeprec.load(tiny_pair, sensor="none", sequences=0)
