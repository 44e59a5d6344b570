"""``edgeprec project``: from the lines of ``bench`` to joules and money, with what each number rests on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "docs" / "data"
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


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"device": {"name": "NVIDIA H200", "power_mode": None, "gpus": ["A", "A"]}}, 'gpus ["A", "A"]'),
        ({"engine_device": "cuda:1 NVIDIA A100"}, "engine_device cuda:1 NVIDIA A100"),
        ({"threads": 4}, "threads 4"),
        ({"temperature": 0.7}, "temperature 0.7"),
        ({"objective": "energy"}, "objective energy"),
        ({"ignores_eos": True}, "ignores_eos true"),
        ({"model": {"name": "pair", "draft": "other"}}, "draft other"),
        ({"model": {"name": "pair", "group_size": 32}}, "group_size 32"),
        ({"energy": make_line()["energy"] | {"scope": "module"}}, "scope module"),
        ({"energy": make_line()["energy"] | {"source": "rapl"}}, "source rapl"),
    ],
)
def test_rows_of_different_settings_are_no_sweep(
    project: Callable[..., Any], change: dict[str, Any], told: str
) -> None:
    """Another GPU, sensor, temperature or draft is another configuration: no line is drawn between them."""
    lines = [make_line(1), make_line(4, **change)]
    refused = project(lines, "--batch", "2")
    assert refused.code == 2
    assert refused.err.count("lies outside") == 2
    outcome = project(lines, "--batch", "1")
    name, _, rest = outcome.out.splitlines()[0].partition(" [")
    assert name == "pair torch on NVIDIA H200 exact self K=adaptive tg128"
    assert f"{told.rpartition(' ')[0].partition(' ')[0]} " in rest
    assert f" [{told}]" in outcome.err


def test_json_has_the_settings(project: Callable[..., Any]) -> None:
    """For programs that choose among the configurations of a file."""
    found = json.loads(project([make_line(temperature=0.5), make_line()], "--json").out)["projections"]
    assert [one["settings"]["temperature"] for one in found] == [0.5, None]
    assert [one["configuration"].partition(" [")[2] for one in found] == ["temperature 0.5]", "temperature null]"]


def test_power_at_rest_is_of_the_rows_used(project: Callable[..., Any]) -> None:
    """Not of the last line of the file, which another command wrote."""
    note = "the idle baseline of 3 s is shorter than 10 s"
    lines = [make_line(1, idle={"watts": 60.0, "note": note}), make_line(4, idle={"watts": 90.0, "note": "not this"})]
    outcome = project(lines)
    assert "60 W at rest" in outcome.out
    assert f"  note          {note}\n" in outcome.out
    assert "not this" not in outcome.out
    (projection,) = json.loads(project(lines, "--json").out)["projections"]
    assert (projection["idle_watts"], projection["notes"]) == (60.0, [note])


def test_a_row_that_broke_off_does_not_replace_a_whole_one(project: Callable[..., Any]) -> None:
    """Ctrl-C in the second measurement leaves the first one in force; alone it counts, and is named."""
    whole, broken = make_line(joules=4.0, is_complete=True), make_line(joules=9.0, is_complete=False, repeats=1)
    for lines in ([whole, broken], [broken, whole]):
        assert "4 ± 0.11 J/token" in project(lines).out
    assert "not used      line 2: tg128 x1: it broke off, and line 1: tg128 x1 did not" in project([whole, broken]).out
    alone = project([broken]).out
    assert "9 ± 0.11 J/token" in alone
    assert "note          broken off after 1 repeats" in alone


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("simulated:orin-nano", "the energy is simulated (simulated:orin-nano), not measured"),
        ("replay", "the energy is replayed from a recording, not measured in this run"),
    ],
)
def test_energy_that_no_sensor_measured_is_named(project: Callable[..., Any], source: str, told: str) -> None:
    """Money must not rest on a simulated board without a word."""
    line = make_line(energy=make_line()["energy"] | {"source": source})
    assert f"note          {told}" in project([line]).out
    (projection,) = json.loads(project([line], "--json").out)["projections"]
    assert (projection["source"], projection["notes"]) == (source, [told])


def test_one_bad_row_costs_itself_alone(project: Callable[..., Any]) -> None:
    """A row without a speed, or a damaged one, is named; the others are projected."""
    outcome = project([make_line(), make_line(4, tokens_per_s=None), make_line(8, joules=-1.0)])
    assert outcome.code == 0
    assert "not used      line 2, batch 4: no speed was measured" in outcome.out
    assert "line 3: energy.joules_per_token.mean is '-1.0'" in outcome.err


def test_what_ends_a_line_in_unicode_only_is_text(project: Callable[..., Any]) -> None:
    """bench writes U+2028 as it is, which Python's splitlines breaks at."""
    line = json.dumps(make_line(notes=["a\u2028b\x85c"]), ensure_ascii=False)
    outcome = project([line + "\r"])
    assert (outcome.code, outcome.err) == (0, "")
    assert "line 1: tg128 x1" in outcome.out


def test_the_gpus_of_a_machine_are_named(project: Callable[..., Any]) -> None:
    """A host's name tells nothing of what decodes."""
    line = make_line(device={"name": "Xeon", "gpus": ["NVIDIA H200", "NVIDIA H200"]})
    assert "device        Xeon with 2 x NVIDIA H200, energy of NVIDIA H200 (gpu)" in project([line]).out


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


TOTAL = make_line()["energy"]
PARTIAL = TOTAL | {"is_total": False}


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
        (["garbage"], (), "holds no result of decoding: write one with edgeprec bench -o jsonl ("),
        (["garbage"], (), "line 1 is cut off or no JSON, and is left out)"),
        (["[" * 100_000], (), "line 1 is cut off or no JSON, and is left out)"),
        (["x", "x", "x", "x", "x"], (), "line 3 is cut off or no JSON, and is left out; and 2 lines more)"),
        ([make_line(energy=None, energy_note="no sensor")], (), "line 1, batch 1: no measured total (no sensor)"),
        ([make_line(energy=PARTIAL)], (), "no measured total (only a part of the device was measured)"),
        ([make_line(tokens_per_s=None)], (), "line 1, batch 1: no speed was measured"),
        (
            [make_line(tokens_per_s={"mean": None})],
            (),
            "line 1: tokens_per_s.mean is 'None', expected a number of 0 or",
        ),
        ([make_line(rate=0.0)], (), "tokens_per_s.mean is '0.0', expected more than 0"),
        ([make_line(rate=1e300)], (), "tokens_per_s.mean is '1e+300', expected a number of 0 or more, up to 1e+15"),
        ([make_line(rate=1e-300)], (), "line 1: tokens_per_s is 1e-300, expected 1e-09 to 1e+12"),
        ([make_line(rate=float("nan"))], (), "tokens_per_s.mean is 'nan'"),
        ([make_line(energy=3)], (), "no measured total (only a part of the device was measured)"),
        ([make_line(idle={"watts": "60"})], (), "idle.watts is '60', expected a number of 0 or more"),
        ([make_line(energy=TOTAL | {"tokens": 0})], (), "energy.tokens is '0', expected a whole number of 1 or more"),
        ([make_line(energy=TOTAL | {"plus_minus_joules": 10**400})], (), "energy.plus_minus_joules is '1000"),
        ([make_line(joules=-1.0)], (), "energy.joules_per_token.mean is '-1.0'"),
        ([make_line(model={"name": 3})], (), "model.name is '3', expected a text"),
        ([make_line(test={"kind": "tg", "name": "x", "new_tokens": 1, "sequences": 0})], (), "test.sequences is '0'"),
        ([make_line()], ("--batch", "x"), "'x' is no batch such as 8"),
        ([make_line()], ("--batch", "1:0.5,1:0.5"), "names a batch twice"),
        ([make_line()], ("--batch", "1:0.4"), "the shares of the batches sum to 0.4, expected 1"),
        ([make_line()], ("--tokens", "0"), "tokens_per_request is 0.0, expected more than 0"),
        ([make_line()], ("--tokens", "nan"), "'nan' is not a finite number"),
        (
            [make_line()],
            ("--tokens", "1e300"),
            "tokens_per_request is 1e+300, expected more than 0, from 1e-09 to 1e+12",
        ),
        ([make_line()], ("--requests-per-s", "1e-300"), "requests_per_s is 1e-300, expected more than 0"),
        ([make_line()], ("--price-per-kwh", "inf"), "'inf' is not a finite number"),
        ([make_line()], ("--batch", "1:nan"), "expected batches of 1 or more with shares above 0"),
        ([make_line()], ("--batch", "1e300"), "batch 1e+300 lies outside of the measured batches"),
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


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("batches-h200-*.jsonl")))
def test_published_sweeps_are_read(invoke: Callable[..., Any], name: str) -> None:
    """Rows of several programs in one file, ours and others': all of them are read, and none is left out."""
    outcome = invoke("project", str(DATA / name), *LOAD, "--batch", "8", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert not any("damaged" in remark or "no JSON" in remark for remark in found["left_out"])
    assert all("the idle baseline of 3 s is shorter than 10 s" in one["notes"] for one in found["projections"])


def test_what_bench_writes_project_reads(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """The file goes from one command to the other; here without a sensor, so the refusal says why."""
    file = tmp_path / "results.jsonl"
    bench = ("-p", "8", "-n", "3", "-r", "1", "--mode", "fp16", "--sensor", "none", "--quiet")
    assert invoke("bench", str(pair), *bench, "--save", str(file)).code == 0
    outcome = invoke("project", str(file), *LOAD)
    assert outcome.code == 2
    assert "line 2, batch 1: no measured total (power is not measured: the sensor is set to none)" in outcome.err
