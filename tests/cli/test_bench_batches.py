"""``bench -npl``: several sequences at once on the torch engine, one row a number of sequences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QUICK = ("-r", "2", "--idle-seconds", "0", "--sensor", "none", "--threads", "1", "--context", "96")
TORCH = ("--engine", "torch", "--provider", "cpu")


def records_of(outcome: Any) -> list[dict[str, Any]]:
    """Return the records of ``-o jsonl``."""
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_rows_of_several_sequences(tiny_pair: Path, invoke: Callable[..., Any]) -> None:
    """Each number of sequences has its rows; exact gives FP16's tokens in all of them; a sequence's share is told."""
    flags = ("-p", "5", "-n", "6", "-npl", "1,3", "--mode", "fp16,exact", "--drafter", "self", "--draft-length", "2")
    outcome = invoke("bench", str(tiny_pair), *QUICK, *TORCH, *flags, "-o", "jsonl")
    records = records_of(outcome)
    names = [(record["test"]["name"], record["mode"]) for record in records]
    assert names == [
        ("pp5", "fp16"),
        ("tg6", "fp16"),
        ("tg6", "exact"),
        ("pp5 x3", "fp16"),
        ("tg6 x3", "fp16"),
        ("tg6 x3", "exact"),
    ]
    single, together = records[1], records[4]
    assert single["batch"] is None
    assert together["batch"]["sequences"] == 3
    assert together["batch"]["mean_sequences"] == 3.0
    each, rate = together["batch"]["tokens_per_s_per_sequence"], together["tokens_per_s"]["mean"]
    assert 3 * each == pytest.approx(rate, rel=0.5)
    assert len(together["runs"][0]["generations"]) == 3
    assert [one["new_tokens"] for one in together["runs"][0]["generations"]] == [7, 7, 7]
    assert together["token_sha256"] is not None
    assert together["token_sha256"] == records[5]["token_sha256"]
    assert records[5]["drafted"] > 0
    assert records[5]["batch"]["tokens_per_round"] >= 1.0
    assert records[3]["batch"]["tokens_per_round"] is None
    assert together["graphs"] == {"captured": 0, "dropped": 0, "mean_ms": None, "largest_ms": None}
    assert "tokens/s a sequence" in outcome.err


def test_prompts_run_so_many_at_a_time(tiny_pair: Path, tmp_path: Path, invoke: Callable[..., Any]) -> None:
    """Five prompts, two at once: the texts are those that run alone."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo two\nthree three three\nfour\nfive 5\n")
    flags = ("--prompts", str(prompts), "-n", "5", "-npl", "1,2", "--mode", "exact", "--drafter", "model")
    alone, together = records_of(invoke("bench", str(tiny_pair), *QUICK, *TORCH, *flags, "-o", "jsonl", "-r", "1"))
    assert together["test"]["name"] == "prompts.txt tg5 x2"
    assert together["token_sha256"] == alone["token_sha256"]
    assert [one["id"] for one in together["runs"][0]["generations"]] == [f"line-{n}" for n in range(1, 6)]


def test_joules_of_a_batch(tiny_pair: Path, invoke: Callable[..., Any]) -> None:
    """The window is the batch's: prefill and decode, all of it by all tokens."""
    flags = ("-p", "0", "-n", "6", "-npl", "2", "--mode", "fp16", "--idle-seconds", "0.3", "--sensor")
    outcome = invoke("bench", str(tiny_pair), *QUICK, *TORCH, *flags, "simulated:agx-orin", "-o", "jsonl")
    (record,) = records_of(outcome)
    assert record["energy"]["tokens"] == 2 * 2 * 7
    assert set(record["energy"]["by_phase"]) == {"prefill", "decode", "idle", "between"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ("--mode", "bounded", "--drafter", "self"),
            "-npl asks for 2 sequences at once: mode bounded decides token by",
        ),
        (("--mode", "exact", "--drafter", "ngram"), "drafters ngram do not draft for several sequences together"),
        (("--mode", "fp16", "-p", "5", "-d", "4"), "a batch fills its own caches, so -d goes with -n alone"),
    ],
)
def test_what_cannot_run_together_is_refused(
    tiny_pair: Path, invoke: Callable[..., Any], flags: tuple[str, ...], expected: str
) -> None:
    """A benchmark never measures something else than it was asked for."""
    outcome = invoke("bench", str(tiny_pair), *QUICK, *TORCH, "-npl", "2", "-n", "4", *flags)
    assert outcome.code == 2
    assert outcome.out == ""
    assert expected in outcome.err


def test_batch_that_does_not_fit_names_one_that_does(tiny_pair: Path, invoke: Callable[..., Any]) -> None:
    """Refused before anything is loaded."""
    outcome = invoke("bench", str(tiny_pair), *QUICK, *TORCH, "-p", "0", "-n", "4", "-npl", "900000")
    assert outcome.code != 0
    assert "900000 sequences with a context of 96 tokens each need" in outcome.err
    assert "sequences or fewer" in outcome.err
