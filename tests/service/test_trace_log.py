"""One file for the traces of all replies, and a full disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeprec.errors import ConfigError
from edgeprec.runtime.service.trace_log import TraceLog

MakeClient = Callable[..., Any]


def test_each_reply_adds_its_lines(make_client: MakeClient, tmp_path: Path) -> None:
    """Header, tokens, rounds and end of each, one reply after the other; an older file is added to."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"type":"older"}\n')
    client = make_client(trace=TraceLog.open(path))
    digests = [client.complete(prompt, max_tokens=4).json()["edgeprec"]["token_sha256"] for prompt in ("abc", "xy")]
    while path.read_text().count('"type":"end"') < 2:
        assert client.get("/ready").status_code == 200
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds[:2] == ["older", "header"]
    assert kinds.count("header") == kinds.count("end") == 2
    assert [line["token_sha256"] for line in lines if line["type"] == "end"] == digests
    assert next(line["index"] for line in lines if line["type"] == "token") == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_full_disk_ends_the_trace_only(make_client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    """Replies go on; the log says it once."""
    log = TraceLog.open(Path("/dev/full"))
    client = make_client(trace=log)
    with caplog.at_level(logging.WARNING):
        assert [client.complete("abc").status_code for _ in range(3)] == [200] * 3
        while log.note is None:
            assert client.get("/ready").status_code == 200
    assert log.note == "the trace ends early: No space left on device"
    assert sum("tracing has ended" in record.message for record in caplog.records) == 1


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    """Not after the first reply."""
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        TraceLog.open(tmp_path / "none" / "trace.jsonl")
