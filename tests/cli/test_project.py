"""``edgeprec project``: from the lines of ``bench`` to joules and money, with what each number rests on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LOAD = ("--requests-per-s", "1", "--tokens", "50")


def make_line(batch: int = 1, *, rate: float = 100.0, joules: float = 4.0, **changes: Any) -> dict[str, Any]:
    """Return what a projection needs of a record; ``changes`` replace fields at the top."""
    values: dict[str, Any] = {
        "schema": "edgeprec.bench",
        "schema_version": 1,
        "device": {"name": "NVIDIA H200", "power_mode": None},
        "model": {"name": "pair"},
        "server": None,
        "engine": "torch",
        "mode": "exact",
        "drafter": "self",
        "draft_length": "adaptive",
        "test": {"name": f"tg128 x{batch}", "kind": "tg", "new_tokens": 128, "depth_tokens": 0, "sequences": batch},
        "tokens_per_s": {"mean": rate, "stdev": 2.0, "count": 3},
        "energy": {
            "joules_per_token": {"mean": joules, "stdev": 0.1, "count": 3},
            "plus_minus_joules": 10.0,
            "tokens": 1000,
            "is_total": True,
            "rail": "NVIDIA H200",
            "scope": "gpu",
        },
        "energy_note": None,
        "idle": {"watts": 60.0},
    }
    return values | changes


@pytest.fixture
def project(invoke: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Return ``project(lines, *arguments)``: it writes the lines to a file and runs the command on it."""

    def run(lines: list[Any], *arguments: str) -> Any:
        file = tmp_path / "results.jsonl"
        file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return invoke("project", str(file), *LOAD, *arguments)

    return run


def test_every_number_names_what_it_rests_on(project: Callable[..., Any]) -> None:
    """Device, scope, uncertainty, lines: who reads it can look it up."""
    lines = [make_line(1), make_line(4, rate=300.0, joules=2.0)]
    outcome = project(lines, "--batch", "1:0.5,2:0.5", "--price-per-kwh", "0.5")
    assert outcome.code == 0, outcome.err
    for text in (
        "pair torch on NVIDIA H200 exact self K=adaptive tg128",
        "energy of NVIDIA H200 (gpu)",
        "50 new tokens/s",
        "batch 1       100 ± 2 tokens/s, 4 ± 0.11 J/token, 50% of the tokens; measured in line 1: tg128 x1",
        "3 ± 1.1 J/token, 50% of the tokens; between line 1: tg128 x1 and line 2: tg128 x4",
        "60 W at rest",
        "a million tokens at 0.5 a kWh",
    ):
        assert text in outcome.out, text


def test_json_has_the_same_numbers(project: Callable[..., Any]) -> None:
    """For programs: the load, every projection, and the measurements inside."""
    found = json.loads(project([make_line()], "--price-per-kwh", "0.5", "--json").out)
    (projection,) = found["projections"]
    assert found["load"]["batches"] == {"1": 1.0}
    assert projection["kwh_per_day"]["value"] == pytest.approx(5.52)
    assert projection["estimates"][0]["rests_on"][0]["origin"] == "line 1: tg128 x1"
    assert (projection["device"], projection["scope"]) == ("NVIDIA H200", "gpu")


def test_configurations_stand_apart(project: Callable[..., Any]) -> None:
    """Modes, engines and servers in one file are projected one by one, never mixed; prefill is no decoding."""
    prefill = make_line(test={"name": "pp512", "kind": "pp", "new_tokens": 0, "sequences": 1})
    peer = make_line(
        joules=1.0, mode=None, drafter=None, draft_length=None, server={"url": "http://host/v1"}, engine="vllm"
    )
    outcome = project([prefill, make_line(), make_line(mode="fp16", drafter=None, draft_length=None, joules=8.0), peer])
    names = [line for line in outcome.out.splitlines() if not line.startswith(" ")]
    assert names == [
        "pair torch on NVIDIA H200 exact self K=adaptive tg128",
        "pair torch on NVIDIA H200 fp16 tg128",
        "pair vllm on NVIDIA H200 at http://host/v1 tg128",
    ]


def test_the_later_of_two_results_counts(project: Callable[..., Any]) -> None:
    """A sweep that was measured again is appended to the same file."""
    outcome = project([make_line(joules=9.0), make_line(joules=3.0)])
    assert "3 ± 0.11 J/token" in outcome.out
    assert "line 2" in outcome.out
    assert "line 1" not in outcome.out


def test_a_line_cut_off_is_left_out_and_named(project: Callable[..., Any]) -> None:
    """An interrupted run leaves what it has; the half line is no reason to refuse the rest."""
    outcome = project([make_line(), '{"schema": "edgep'])
    assert outcome.code == 0
    assert "line 2 is cut off or no JSON, and is left out" in outcome.err


def test_one_repeat_has_no_known_uncertainty(project: Callable[..., Any]) -> None:
    """Not 0."""
    line = make_line(tokens_per_s={"mean": 100.0, "stdev": None, "count": 1})
    assert "100 ± unknown (one repeat) tokens/s" in project([line]).out


def test_tokens_a_second_hold_prefill(project: Callable[..., Any]) -> None:
    """Speed and joules are of the same windows: 1,000 tokens in 20 s are 50 a second, however fast decoding is."""
    line = make_line()
    line["energy"] = line["energy"] | {"seconds": 20.0}
    assert "batch 1       50 ± 1 tokens/s, 4 ± 0.11 J/token" in project([line]).out


def test_one_reason_is_said_once(project: Callable[..., Any]) -> None:
    """Many configurations that lack the same batch are one sentence, not one each."""
    lines = [make_line(4, mode=mode, drafter=None, draft_length=None) for mode in ("fp16", "int4", "gated")]
    outcome = project(lines, "--batch", "9")
    assert outcome.code == 2
    assert "pair torch on NVIDIA H200 fp16 tg128 and 2 more: batch 9 lies outside" in outcome.err
    assert outcome.err.count("nothing is extrapolated") == 1


PARTIAL = make_line()["energy"] | {"is_total": False}


@pytest.mark.parametrize(
    ("lines", "arguments", "expected"),
    [
        (
            [make_line(4)],
            ("--batch", "1"),
            "batch 1 lies outside of the measured batches: the nearest measured one is 4",
        ),
        ([make_line(4)], ("--batch", "64"), "nearest measured one is 4, and nothing is extrapolated"),
        ([make_line(schema="other.bench")], (), "line 1 is of the schema 'other.bench', expected 'edgeprec.bench'"),
        ([make_line(), {"a": 1}], (), "line 2 is of the schema None"),
        ([make_line(), "[1, 2]"], (), "line 2 is of the schema '[1, 2]'"),
        ([make_line(schema_version=2)], (), "is of schema version 2, expected 1: measure again"),
        ([], (), "holds no result of decoding: write one with edgeprec bench -o jsonl"),
        (["garbage"], (), "holds no result of decoding"),
        ([make_line(energy=None, energy_note="no sensor")], (), "line 1, batch 1: no measured total (no sensor)"),
        ([make_line(energy=PARTIAL)], (), "no measured total (only a part of the device was measured)"),
        ([make_line(tokens_per_s=None)], (), "line 1: tokens_per_s.mean is 'None', expected a number of 0 or more"),
        ([make_line(rate=0.0)], (), "tokens_per_s.mean is '0.0', expected more than 0"),
        ([make_line(joules=-1.0)], (), "energy.joules_per_token.mean is '-1.0'"),
        ([make_line(model={"name": 3})], (), "model.name is '3', expected a text"),
        ([make_line(test={"kind": "tg", "name": "x", "new_tokens": 1, "sequences": 0})], (), "test.sequences is '0'"),
        ([make_line()], ("--batch", "x"), "'x' is no batch such as 8"),
        ([make_line()], ("--batch", "1:0.5,1:0.5"), "names a batch twice"),
        ([make_line()], ("--batch", "1:0.4"), "the shares of the batches sum to 0.4, expected 1"),
        ([make_line()], ("--tokens", "0"), "tokens_per_request is 0.0, expected more than 0"),
    ],
)
def test_what_cannot_be_projected_is_one_sentence(
    project: Callable[..., Any], lines: list[Any], arguments: tuple[str, ...], expected: str
) -> None:
    """Refused with exit code 2, and nothing that looks like a result."""
    outcome = project(lines, *arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "cannot be read: No such file"), (b"\xff\xfe", "are not UTF-8 at byte 0")]
)
def test_a_file_that_cannot_be_read_is_named(
    invoke: Callable[..., Any], tmp_path: Path, content: bytes | None, expected: str
) -> None:
    """A slip in the name, or another file's bytes."""
    file = tmp_path / "results.jsonl"
    if content is not None:
        file.write_bytes(content)
    outcome = invoke("project", str(file), *LOAD)
    assert outcome.code == 2
    assert expected in outcome.err


def test_what_bench_writes_project_reads(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """The file goes from one command to the other; here without a sensor, so the refusal says why."""
    file = tmp_path / "results.jsonl"
    bench = ("-p", "8", "-n", "3", "-r", "1", "--mode", "fp16", "--sensor", "none", "--quiet")
    assert invoke("bench", str(pair), *bench, "--save", str(file)).code == 0
    outcome = invoke("project", str(file), *LOAD)
    assert outcome.code == 2
    assert "line 2, batch 1: no measured total (power is not measured: the sensor is set to none)" in outcome.err
