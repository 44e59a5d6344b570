"""Prompt lookup with rollback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.errors import ConfigError
from edgeprec.runtime.ngram import NgramIndex

_TOKENS = st.lists(st.integers(0, 3), max_size=40)


def _by_search(tokens: list[int], count: int, max_n: int, min_n: int) -> list[int]:
    """The definition: longest suffix first, its latest earlier occurrence, what followed it."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if n <= len(tokens) and tokens[end - n : end] == tokens[-n:]:
                text = list(tokens)
                for offset in range(count):
                    text.append(text[end + offset])
                return text[len(tokens) :]
    return []


@given(_TOKENS, st.integers(0, 9), st.integers(1, 3), st.integers(0, 3))
def test_proposal_equals_a_search_of_the_whole_text(tokens: list[int], count: int, min_n: int, extra: int) -> None:
    """The index finds what a scan finds."""
    index = NgramIndex(tokens, min_n=min_n, max_n=min_n + extra)
    assert index.propose(count) == _by_search(tokens, count, min_n + extra, min_n)


@given(_TOKENS, _TOKENS, _TOKENS)
def test_truncation_leaves_no_trace(kept: list[int], dropped: list[int], after: list[int]) -> None:
    """Appending, taking back and going on equals never having appended."""
    index = NgramIndex(kept)
    index.extend(dropped)
    index.truncate(len(kept))
    index.extend(after)
    assert len(index) == len(kept) + len(after)
    assert vars(index) == vars(NgramIndex([*kept, *after])) | {"_sizes": range(4, 1, -1)}


def test_longer_matches_win() -> None:
    """Three matching tokens say more than two later ones."""
    assert NgramIndex([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]).propose(2) == [7, 9]


def test_later_matches_win() -> None:
    """Of two equally long matches the recent one counts."""
    assert NgramIndex([2, 3, 7, 2, 3, 8, 0, 2, 3]).propose(2) == [8, 0]


def test_loops_are_continued() -> None:
    """A text that repeats itself is proposed past its own end."""
    assert NgramIndex([5, 6, 5, 6]).propose(5) == [5, 6, 5, 6, 5]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_new_text_proposes_nothing(tokens: list[int]) -> None:
    """No match, no proposal."""
    assert NgramIndex(tokens).propose(4) == []


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (3, 2)])
def test_bad_sizes_are_refused(min_n: int, max_n: int) -> None:
    """Sizes must be a range of positive numbers."""
    with pytest.raises(ConfigError, match="n-gram"):
        NgramIndex(min_n=min_n, max_n=max_n)


@pytest.mark.parametrize("length", [-1, 4])
def test_bad_truncation_is_refused(length: int) -> None:
    """Only a length the text has had can be gone back to."""
    with pytest.raises(ConfigError, match="length"):
        NgramIndex([1, 2, 3]).truncate(length)
