"""Lists on the command line of ``bench``: llama-bench's syntax, and a clear sentence for everything else."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.cli.bench_lists import COUNTS, DRAFT_LENGTHS, MODES, PAIRS, parse_counts
from edgeprec.config import Mode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", (0,)),
        ("512", (512,)),
        ("1,2,4", (1, 2, 4)),
        (" 1 , 2 ", (1, 2)),
        ("1-4", (1, 2, 3, 4)),
        ("1-8+3", (1, 4, 7)),
        ("1-64*2", (1, 2, 4, 8, 16, 32, 64)),
        ("1-65*2", (1, 2, 4, 8, 16, 32, 64)),
        ("5-5", (5,)),
        ("5-5*1", (5,)),
        ("0-0+0", (0,)),
        ("4,1-4", (4, 1, 2, 3)),
    ],
)
def test_a_list_becomes_its_numbers_in_order(text: str, expected: tuple[int, ...]) -> None:
    """Commas, ranges, steps and factors; a number named twice is measured once."""
    assert parse_counts(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "'' is neither a number nor a range"),
        ("1,", "'' is neither a number nor a range"),
        ("-1", "'-1' is neither"),
        ("1.5", "'1.5' is neither"),
        ("a", "'a' is neither"),
        ("1-4/2", "'1-4/2' is neither"),
        ("1-", "'1-' is neither"),
        ("1-4+", "'1-4+' is neither"),
        ("٣", "is neither"),
        ("8-1", "'8-1' ends below its start"),
        ("1-8+0", "'1-8+0' never ends"),
        ("1-8*1", "'1-8*1' never ends"),
        ("0-8*2", "'0-8*2' never ends"),
        ("1-999999999", "has more than 1000 numbers"),
        ("1" * 40, "is neither"),
    ],
)
def test_what_is_no_list_is_refused(text: str, expected: str) -> None:
    """A range that would never end, or run for years, is a slip."""
    with pytest.raises(ValueError, match=expected.replace("*", r"\*").replace("+", r"\+")):
        parse_counts(text)


@given(st.lists(st.integers(0, 999_999_999), min_size=1, max_size=20))
def test_numbers_written_with_commas_come_back(numbers: list[int]) -> None:
    """For any numbers: parsing is the inverse of joining."""
    assert parse_counts(",".join(map(str, numbers))) == tuple(dict.fromkeys(numbers))


def convert(kind: click.ParamType[Any], value: object) -> Any:
    """Return what a flag of this type becomes."""
    return kind.convert(value, None, None)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (COUNTS, "1-3", (1, 2, 3)),
        (COUNTS, 128, (128,)),
        (PAIRS, "512,128", ((512, 128),)),
        (PAIRS, "512,128; 64,16", ((512, 128), (64, 16))),
        (MODES, "fp16,exact", (Mode.FP16, Mode.EXACT)),
        (MODES, "int4", (Mode.INT4,)),
        (MODES, "int4, int4", (Mode.INT4,)),
        (DRAFT_LENGTHS, "adaptive", (None,)),
        (DRAFT_LENGTHS, "adaptive,1-3,5", (None, 1, 2, 3, 5)),
        (DRAFT_LENGTHS, 5, (5,)),
    ],
)
def test_a_flag_takes_texts_and_what_a_settings_file_has(
    kind: click.ParamType[Any], value: object, expected: tuple[object, ...]
) -> None:
    """TOML has numbers where the command line has texts; and a value that was parsed already stays as it is."""
    assert convert(kind, value) == expected
    assert convert(kind, expected) == expected


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (COUNTS, "x", "'x' is neither a number nor a range"),
        (PAIRS, "512", "'512' is no pair of prompt and new tokens such as 512,128"),
        (PAIRS, "0,128", "is no pair"),
        (PAIRS, "512,128,", "is no pair"),
        (MODES, "fp16,fast", "'fast' is no mode, expected one of exact, bounded, gated, fp16, int4"),
        (MODES, "", "'' is no mode"),
        (DRAFT_LENGTHS, "often", "nor is it 'adaptive'"),
    ],
)
def test_a_flag_names_what_is_wrong(kind: click.ParamType[Any], value: str, expected: str) -> None:
    """The sentence quotes the part that is wrong and says what is right."""
    with pytest.raises(click.BadParameter) as caught:
        convert(kind, value)
    assert expected in caught.value.message
