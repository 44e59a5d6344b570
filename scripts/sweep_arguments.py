"""What the sweeps over batches are told alike, so that ours and those of other programs measure the same."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

__all__ = ["add_sweep_arguments"]


def add_sweep_arguments(parser: argparse.ArgumentParser, *, ways: str, batches: Sequence[int]) -> None:
    """Add batches, ways, lengths, times and files; ``ways`` says what names there are."""
    parser.add_argument("--configs", type=_names, metavar="LIST", help=ways)
    parser.add_argument("--batches", type=_counts, default=list(batches), metavar="LIST")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="longer prompts of the set are left out")
    parser.add_argument("--tokens", type=int, default=128, help="of a reply at most")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, help="stop after so many seconds and print what there is")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.jsonl", help="keep results here, and go on from it")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table here")


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
