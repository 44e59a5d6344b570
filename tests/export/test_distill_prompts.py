"""What the target is asked to write: seeded, within length, in its own chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files as resource
from types import ModuleType

import pytest

from edgeprec.errors import ConfigError
from edgeprec.export.distill_data import encode_text
from edgeprec.export.distill_prompts import PromptWriter
from edgeprec.export.distill_sampling import Row
from edgeprec.export.text_codec import TextCodec
from edgeprec.export.tokenizer_files import TokenizerFiles
from edgeprec.prompts import PromptSet, load_prompts

PROMPTS: tuple[PromptSet, ...] = ("tuning", "test")
GENERATION = {"eos_token_ids": [2, 0], "bos_token_id": 0, "add_bos_token": False, "bos_token": "<|endoftext|>"}


@pytest.fixture
def files(tiny_tokenizer: ModuleType) -> TokenizerFiles:
    """Return the tiny tokenizer's files."""
    tokenizer = tiny_tokenizer.build_tokenizer(301).to_str()
    return TokenizerFiles(
        tokenizer_json=tokenizer.encode(), chat_template=tiny_tokenizer.CHAT_TEMPLATE, generation=GENERATION
    )


@pytest.fixture
def codec(files: TokenizerFiles) -> TextCodec:
    """Return its codec."""
    return TextCodec.of(files)


def rows_of(codec: TextCodec, seed: int, length: int = 64) -> tuple[list[Row], list[Row]]:
    """Return the openings and follow-ups of one seed; openings are "continued" by fixed text."""
    given = encode_text(codec, "the sea and the shore " * 40)
    writer = PromptWriter(codec, given, length=length, seed=seed)
    openings = writer.openings(60)
    tail = codec.tokenizer.encode("sand and the ring").ids
    return openings, [writer.follow_up(row, [*row.prompt, *tail]) for row in openings]


def test_a_message_is_wrapped_in_the_template(codec: TextCodec) -> None:
    """As ``run --chat`` sends it."""
    text = codec.tokenizer.decode(list(codec.encode_chat("Why?")), skip_special_tokens=False)
    assert text == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    start = codec.tokenizer.decode(list(codec.encode_chat_start("Why")), skip_special_tokens=False)
    assert start == "<|im_start|>user\nWhy"


def test_without_a_template_messages_are_plain(files: TokenizerFiles) -> None:
    """A base model is not asked in a format it does not know."""
    codec = TextCodec.of(replace(files, chat_template=None))
    assert codec.encode_chat("Why?") == codec.encode("Why?") == codec.encode_chat_start("Why?")


def test_the_begin_token_is_there_where_the_model_wants_it(files: TokenizerFiles) -> None:
    """Plain text begins like the text that the runtime feeds."""
    codec = TextCodec.of(replace(files, generation=GENERATION | {"add_bos_token": True}))
    assert codec.encode("a")[0] == 0
    assert codec.end_ids == {0, 2}


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% broken", "fixed text"])
def test_a_template_that_cannot_be_used_is_refused(files: TokenizerFiles, template: str) -> None:
    """With a sentence, not a traceback."""
    with pytest.raises(ConfigError, match="the target's chat template"):
        TextCodec.of(replace(files, chat_template=template))


def test_a_seed_decides_everything(codec: TextCodec) -> None:
    """The same seed asks the same, another one something else."""
    assert rows_of(codec, 1) == rows_of(codec, 1)
    assert rows_of(codec, 1) != rows_of(codec, 2)


def test_prompts_leave_room_for_answers(codec: TextCodec) -> None:
    """No prompt is empty or longer than half a sequence, and ids belong to the vocabulary."""
    openings, prompts = rows_of(codec, 0, length=40)
    for row in (*openings, *prompts):
        assert 1 <= len(row.prompt) <= 20
        assert max(row.prompt) < 301


def test_the_target_answers_mostly_greedily(codec: TextCodec) -> None:
    """Openings are hot all the way; answers are cool, most of them greedy, as drafts will meet them."""
    openings, prompts = rows_of(codec, 0)
    assert {(row.hot_until, row.hot) for row in openings} == {(64, 0.9)}
    temperatures = [row.temperature for row in prompts]
    assert temperatures.count(0.0) > len(temperatures) / 2
    assert set(temperatures) == {0.0, 0.3, 0.7}


def test_what_the_target_wrote_becomes_its_prompt(codec: TextCodec) -> None:
    """Its own words come back as a user's message, without special tokens."""
    texts = [codec.tokenizer.decode(list(row.prompt), skip_special_tokens=False) for row in rows_of(codec, 0, 400)[1]]
    asked = [text for text in texts if text.startswith("<|im_start|>user\n") and "sand and the ring<|im_end|>" in text]
    assert len(asked) > 5
    assert all(text.count("<|im_start|>") == 2 for text in asked)


@pytest.mark.parametrize("text", ["", "too short"])
def test_an_empty_or_tiny_text_is_refused(codec: TextCodec, text: str) -> None:
    """With both numbers."""
    with pytest.raises(ConfigError, match=r"has \d+ tokens, expected at least 256"):
        encode_text(codec, text)


def words(text: str) -> set[tuple[str, ...]]:
    """Return every run of six words; five meet by chance in "what is wrong with this"."""
    parts = text.lower().split()
    return {tuple(parts[start : start + 6]) for start in range(len(parts) - 5)}


def test_nothing_that_is_measured_is_trained_on() -> None:
    """No six words in a row of the prompts for tuning and test stand in the seeds or the packaged text."""
    measured = set().union(*(words(prompt.text) for which in PROMPTS for prompt in load_prompts(which)))
    seeds = json.loads(resource("edgeprec.export").joinpath("distill_seeds.json").read_text(encoding="utf-8"))
    packaged = resource("edgeprec.export").joinpath("calibration_text.txt").read_text(encoding="utf-8")
    learned = set().union(*(words(text) for texts in seeds.values() for text in texts)) | words(packaged)
    assert len(measured) > 1000
    assert not measured & learned


def test_the_seeds_are_distinct_lines() -> None:
    """A seed that stands twice would be asked twice as often."""
    seeds: dict[str, Sequence[str]] = json.loads(
        resource("edgeprec.export").joinpath("distill_seeds.json").read_text(encoding="utf-8")
    )
    for kind, texts in seeds.items():
        assert len(set(texts)) == len(texts) > 5, kind
