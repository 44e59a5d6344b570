"""The trace file of a generation, and what happens when it cannot be written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeprec.config import Mode
from edgeprec.errors import ConfigError
from edgeprec.gears import Gear
from edgeprec.runtime.reply import FinishReason, Reply, RoundRecord, Stats, TokenEvent, TokenSource
from edgeprec.runtime.trace import SCHEMA_VERSION, TraceWriter

EVENT = TokenEvent(
    index=0,
    token=7,
    text="Zoë",
    entropy_bits=0.5,
    gear=Gear.LOW,
    source=TokenSource.DRAFT,
    round=1,
    int4_layers=30,
    time_ns=12,
)
ROUND = RoundRecord(
    round=1,
    position=4,
    drafted=(7, 8),
    draft_entropy_bits=(0.5, None),
    accepted=1,
    emitted=2,
    verified_rows=3,
    draft_cap=2,
    stop_reason="cap",
    smoothed_entropy_bits=math.nan,
    gear=Gear.LOW,
    draft_plan=(True, False),
    draft_ns=5,
    verify_ns=6,
    start_ns=7,
)
STATS = Stats(
    prompt_tokens=1,
    new_tokens=1,
    prefill_s=0.1,
    decode_s=0.1,
    tokens_per_s=None,
    rounds=1,
    drafted=2,
    accepted=1,
    acceptance_rate=0.5,
    mean_draft_length=2.0,
    int4_layer_share=0.5,
    draft_int4_layer_share=1.0,
    target_int4_layer_share=0.0,
    bits_read_per_weight=10.0,
    verify_rounds=1,
    fallbacks=(),
    energy=None,
    energy_note="no sensor",
)
REPLY = Reply(text="Zoë", tokens=(7,), finish_reason=FinishReason.STOP, mode=Mode.EXACT, stats=STATS)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a trace."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_trace_has_header_tokens_rounds_power_and_end(tmp_path: Path) -> None:
    """Whoever reads a trace finds what the module's docstring promises, in the order it happened."""
    path = tmp_path / "run.jsonl"
    with TraceWriter.open(path, {"bundle": "pair"}) as trace:
        trace.token(EVENT)
        trace.round(ROUND)
        trace.power(time_ns=9, milliwatts={"VDD_IN": 5000.0, "VDD_GPU": None}, total_mw=5000.0)
        trace.end(REPLY)
    header, token, record, power, end = lines(path)
    assert header == {"type": "header", "schema_version": SCHEMA_VERSION, "bundle": "pair"}
    assert token["type"] == "token"
    assert (token["token"], token["text"], token["source"], token["gear"]) == (7, "Zoë", "draft", "low")
    assert record["type"] == "round"
    assert record["drafted"] == [7, 8]
    assert record["draft_entropy_bits"] == [0.5, None]
    rails = {"VDD_IN": 5000.0, "VDD_GPU": None}
    assert power == {"type": "power", "time_ns": 9, "milliwatts": rails, "total_mw": 5000.0}
    assert end["finish_reason"] == "stop"
    assert end["token_sha256"] == REPLY.to_json()["token_sha256"]
    assert trace.note is None


def test_a_number_json_cannot_hold_is_null(tmp_path: Path) -> None:
    """NaN is no JSON: a strict reader must be able to read every line."""
    path = tmp_path / "run.jsonl"
    with TraceWriter.open(path, {}) as trace:
        trace.token(replace(EVENT, entropy_bits=math.inf))
        trace.round(ROUND)
    _, token, record = lines(path)
    assert token["entropy_bits"] is None
    assert record["smoothed_entropy_bits"] is None


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    """A process that is killed leaves a trace that is whole up to then."""
    path = tmp_path / "run.jsonl"
    with TraceWriter.open(path, {}) as trace:
        trace.token(EVENT)
        assert [line["type"] for line in lines(path)] == ["header", "token"]


def test_a_full_disk_ends_the_trace_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Losing the trace must not lose the text."""
    trace = TraceWriter.open(Path("/dev/full"), {})
    for _ in range(3):
        trace.token(EVENT)
    trace.close()
    trace.close()
    assert trace.note == "the trace ends early: No space left on device"
    assert [record.getMessage() for record in caplog.records] == [trace.note]


def test_an_unwritable_path_is_refused(tmp_path: Path) -> None:
    """What cannot be begun is said before the work."""
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        TraceWriter.open(tmp_path / "absent" / "run.jsonl", {})


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """``close`` is idempotent, as of every resource."""
    trace = TraceWriter.open(tmp_path / "run.jsonl", {})
    trace.close()
    trace.close()
    assert trace.note is None
