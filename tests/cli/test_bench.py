"""``edgeprec bench`` through the whole command line, on a tiny model: tables, files, energy, interruptions, servers."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.cli import bench_facts
from edgeprec.devices import SimulatedBoard, simulated
from edgeprec.devices.detect import Attempt, Detection
from edgeprec.devices.meter import Meter
from edgeprec.devices.sensor import Sensor
from edgeprec.runtime.engine import StepResult
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine

QUICK = ("-p", "12", "-n", "6", "-r", "2", "--idle-seconds", "0", "--draft-length", "2")
NO_SENSOR = ("--sensor", "none")
PERIOD_MS = 500.0


def records_of(outcome: Any) -> list[dict[str, Any]]:
    """Return the records of ``-o jsonl``."""
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_a_table_has_a_row_for_every_test(pair: Path, invoke: Callable[..., Any]) -> None:
    """llama-bench's layout, aligned; energy has no columns where nothing measures it, and the reason is told."""
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR)
    assert outcome.code == 0, outcome.err
    header, rule, *rows = outcome.out.splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    names = [cell.strip() for cell in header.strip("|").split("|")]
    assert names[:9] == ["model", "size", "engine", "threads", "mode", "drafter", "K", "test", "t/s"]
    assert "J/token" not in names
    assert [row[4:8] for row in cells] == [
        ["fp16", "-", "-", "pp12"],
        ["fp16", "-", "-", "tg6"],
        ["exact", "self", "2", "tg6"],
    ]
    assert all(" ± " in row[8] for row in cells)
    assert {len(line) for line in (header, rule)} == {len(header)}
    assert cells[1][names.index("tokens")] == cells[2][names.index("tokens")] != "-"
    assert "energy not measured: power is not measured: the sensor is set to none" in outcome.err


def test_lines_hold_everything_that_was_asked_and_measured(pair: Path, invoke: Callable[..., Any]) -> None:
    """One object a test: schema, machine, versions, command, spread and each repeat's raw numbers."""
    arguments = ("bench", str(pair), *QUICK, *NO_SENSOR, "-o", "jsonl")
    prefill, plain, exact = records_of(invoke(*arguments))
    assert (exact["schema"], exact["schema_version"]) == ("edgeprec.bench", 1)
    assert exact["command"] == ["edgeprec", *arguments]
    assert exact["versions"]["onnxruntime"]
    assert exact["device"]["cpu_threads"] > 0
    assert exact["model"]["parameters"] > 0
    assert (exact["mode"], exact["drafter"], exact["draft_length"]) == ("exact", "self", 2)
    assert (plain["mode"], plain["drafter"], plain["draft_length"]) == ("fp16", None, None)
    assert exact["token_sha256"] == plain["token_sha256"]
    assert len(exact["runs"]) == exact["repeats"] == exact["tokens_per_s"]["count"] == 2
    assert plain["bits_read_per_weight"] == 16.0
    assert plain["acceptance_rate"] is None
    assert prefill["test"]["name"] == "pp12"
    assert exact["memory"]["process_peak_bytes"] > 10_000_000
    for run in exact["runs"]:
        (one,) = run["generations"]
        assert one["new_tokens"] == 7
        assert one["accepted"] <= one["drafted"]
        assert run["tokens_per_s"] == pytest.approx(6 / one["decode_s"])


def test_energy_that_is_not_measured_is_null_with_a_reason(pair: Path, invoke: Callable[..., Any]) -> None:
    """Never 0: not in the record, not in its repeats, not in the CSV."""
    for record in records_of(invoke("bench", str(pair), *QUICK, *NO_SENSOR, "-o", "jsonl")):
        assert record["energy"] is None
        assert record["energy_note"] == "power is not measured: the sensor is set to none"
        assert record["idle"]["watts"] is None
        assert all(run["energy"] is None and run["energy_note"] for run in record["runs"])
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert len(rows) == 3
    assert {row["joules_per_token"] for row in rows} == {""}
    assert {row["energy_note"] for row in rows} == {"power is not measured: the sensor is set to none"}


@pytest.mark.parametrize("flag", [("-o", "json"), ("--json",)])
def test_json_is_one_object(pair: Path, invoke: Callable[..., Any], flag: tuple[str, ...]) -> None:
    """For programs that read it at once."""
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, *flag)
    found = json.loads(outcome.out)
    assert (found["schema"], len(found["results"])) == ("edgeprec.bench", 3)


def test_a_prompt_set_is_reported_by_task(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Acceptance depends on the text: each task has its own figures."""
    prompts = [("prose", "Once upon"), ("code", "def f("), ("prose", "It was")]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"kind": kind, "text": text}) + "\n" for kind, text in prompts))
    arguments = ("--prompts", str(file), "-n", "3", "-r", "1", "--mode", "fp16", "--ignore-eos")
    (record,) = records_of(invoke("bench", str(pair), *arguments, *NO_SENSOR, "-o", "jsonl"))
    assert {kind: found["prompts"] for kind, found in record["by_kind"].items()} == {"prose": 2, "code": 1}
    assert record["test"]["name"] == "mine.jsonl tg3"
    assert record["test"]["prompts"] == 3
    assert [one["kind"] for one in record["runs"][0]["generations"]] == ["prose", "code", "prose"]
    assert record["tokens_per_s"]["stdev"] is None
    assert record["by_kind"]["prose"]["new_tokens"] == 6


def test_saved_lines_are_added_to_what_is_there(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """A sweep is several commands into one file; a line that a crash cut off stays on its own."""
    file = tmp_path / "results.jsonl"
    file.write_text('{"schema": "edgep')
    for _ in range(2):
        assert invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--mode", "fp16", "--save", str(file)).code == 0
    first, *lines = file.read_text().splitlines()
    assert first == '{"schema": "edgep'
    assert [json.loads(line)["test"]["name"] for line in lines] == ["pp12", "tg6", "pp12", "tg6"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("-n", "x"), 2, "'x' is neither a number nor a range such as 1-8, 1-8+2 or 1-64*2"),
        (("--mode", "fast"), 2, "'fast' is no mode"),
        (("-npl", "8"), 2, "-npl asks for 8 sequences at once: the engine onnxruntime has no slots for several"),
        (("-b", "100"), 2, "-b asks for 100 rows in a prefill pass, the engine onnxruntime takes at most 64"),
        (("-p", "99999"), 2, "pp99999 takes 100000 tokens, the context holds "),
        (("-d", "40", "--context", "32"), 2, "takes 53 tokens, the context holds 32"),
        (("--require-energy", *NO_SENSOR), 5, "--require-energy: no total can be measured: power is not measured"),
        (("--save", "/no/such/folder/file"), 2, "--save /no/such/folder/file cannot be written: No such file"),
        (("--against", "nonsense"), 2, "--against is 'nonsense', expected a URL"),
        (("--against", "http://127.0.0.1:9"), 5, "the server http://127.0.0.1:9/v1 cannot be reached"),
        (("--against", "http://127.0.0.1:9", "-d", "8"), 2, "-d needs the cache of an engine of our own"),
        (("--against", "http://127.0.0.1:9", "--against-key-file", "absent"), 2, "the key file absent cannot be read"),
        (("--three-level",), 2, "three-level drafting needs a draft model and this bundle has none"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    pair: Path, invoke: Callable[..., Any], arguments: tuple[str, ...], code: int, expected: str
) -> None:
    """Nothing is printed as a result, and the exit code says which kind of trouble it is."""
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--quiet", *arguments)
    assert outcome.code == code
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


@pytest.mark.parametrize("output", ["md", "csv", "json", "jsonl"])
def test_ctrl_c_keeps_the_results_there_are(
    pair: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str
) -> None:
    """The tests done, and the repeats done of the one at work, in every format and in the saved file."""
    run_pass, passes = OnnxRuntimeEngine.forward, iter(range(1_000_000))

    def forward(engine: OnnxRuntimeEngine, *arguments: Any, **settings: Any) -> StepResult:
        if next(passes) == 3 + 7 + 7 + 3:  # prefill twice after a warm-up; then decoding, in its second repeat
            raise KeyboardInterrupt
        return run_pass(engine, *arguments, **settings)

    monkeypatch.setattr(OnnxRuntimeEngine, "forward", forward)
    file = tmp_path / "results.jsonl"
    quick = ("bench", str(pair), *QUICK, *NO_SENSOR, "--mode", "fp16", "-o", output, "--save", str(file))
    outcome = invoke(*quick)
    assert outcome.code == 130
    assert "interrupted" in outcome.err
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(record["test"]["name"], record["repeats"], record["is_complete"]) for record in kept] == [
        ("pp12", 2, True),
        ("tg6", 1, False),
    ]
    assert kept[1]["notes"] == ["broken off after 1 of 2 repeats"]
    assert outcome.out.count("tg6") >= 1
    if output == "json":
        assert json.loads(outcome.out)["results"] == kept


class NoSampler:
    """Stands in for the meter's thread: here every pass of the model is a moment to sample."""

    def __init__(self, _sample: Callable[[], bool], _period_ns: int) -> None:
        pass

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Stop nothing."""


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedBoard]:
    """Return an Orin Nano that every command finds, read once after every pass of the model."""
    meters: list[Meter] = []

    def make_meter(sensor: Sensor, **settings: Any) -> Meter:
        meters.append(Meter(sensor, sampler=NoSampler, wait=lambda _seconds: None, **settings))
        return meters[-1]

    def forward(engine: OnnxRuntimeEngine, *arguments: Any, **settings: Any) -> StepResult:
        result = run_pass(engine, *arguments, **settings)
        for meter in meters:
            meter.sample()
        return result

    run_pass = OnnxRuntimeEngine.forward
    monkeypatch.setattr(OnnxRuntimeEngine, "forward", forward)
    monkeypatch.setattr(sys.modules["edgeprec.devices.meter"], "Meter", make_meter)
    with simulated("orin-nano") as board:
        sensor = board.sensor()
        sensor.period_ms = PERIOD_MS
        found = Detection(sensor=sensor, attempts=(Attempt(source="jetson", ok=True, reason=None),), sysfs=board.sysfs)
        monkeypatch.setattr(sys.modules["edgeprec.devices.detect"], "detect", lambda _wanted: found)
        yield board


def test_joules_per_token_with_idle_in_and_out(pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """At a constant 8 W joules are watts times seconds; at rest it draws as much, so nothing is above idle."""
    board.set_power("VDD_IN", 8_000.0)
    arguments = ("-p", "0", "-n", "20", "-r", "2", "--idle-seconds", "10", "--require-energy", "-o", "jsonl")
    for record in records_of(invoke("bench", str(pair), *arguments)):
        energy = record["energy"]
        assert energy["is_total"] is True
        assert energy["watts"]["mean"] == pytest.approx(8.0, rel=0.02)
        assert record["idle"]["watts"] == pytest.approx(8.0, rel=0.02)
        assert energy["joules_per_token"]["mean"] == pytest.approx(energy["joules"] / energy["tokens"], rel=0.05)
        assert energy["joules"] == pytest.approx(8.0 * energy["seconds"], rel=0.02)
        assert abs(energy["joules_per_token_above_idle"]["mean"]) < 0.05 * energy["joules_per_token"]["mean"]
        assert energy["tokens"] == 2 * 21
        assert {"prefill", "verify"} <= set(energy["by_phase"])
        known = [joules for joules in energy["by_phase"].values() if joules is not None]
        assert sum(known) == pytest.approx(energy["joules"], rel=0.1)
        assert (energy["source"], energy["power_mode"]) == ("simulated:orin-nano", "15W")
        assert record["device"]["soc"] is not None
        assert record["clocks"]["after_mhz"]


def test_the_table_shows_joules_and_what_they_rest_on(
    pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]
) -> None:
    """J/token beside tokens/s, idle power under the table."""
    outcome = invoke("bench", str(pair), *QUICK[:-2], "--mode", "fp16", "--idle-seconds", "10")
    assert outcome.code == 0, outcome.err
    headers = [cell.strip() for cell in outcome.out.splitlines()[0].strip("|").split("|")]
    assert {"J/token", "above idle", "W", "power mode", "clock"} <= set(headers)
    assert "idle power " in outcome.err
    assert "15W" in outcome.out


def test_part_of_a_board_is_no_total(pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """A rail that refuses leaves the row without joules, and --require-energy fails with the reason."""
    board.break_rail("VDD_IN", 5)
    arguments = ("-p", "0", "-n", "4", "-r", "1", "--mode", "fp16", "--idle-seconds", "0")
    outcome = invoke("bench", str(pair), *arguments, "--require-energy", "-o", "jsonl")
    assert outcome.code == 5
    (record,) = [json.loads(line) for line in outcome.out.splitlines()]
    assert record["energy"] is None
    assert "VDD_IN" in record["energy_note"]
    assert "edgeprec: --require-energy: 1 of 1 tests have no measured total, first tg4: VDD_IN" in outcome.err


def load_servers() -> ModuleType:
    """Return the module of scripted servers."""
    path = Path(__file__).parents[1] / "factories" / "completions_server.py"
    found = spec_from_file_location("edgeprec_factories_completions_server_cli", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_server_has_rows_beside_ours(pair: Path, board: SimulatedBoard, invoke: Callable[..., Any]) -> None:
    """The same prompts, the same meter, one table."""
    with load_servers().CompletionsServer() as server:
        arguments = ("-p", "12", "-n", "2", "-r", "2", "--mode", "fp16", "--idle-seconds", "0", "--against", server.url)
        *own, prefill, decode = records_of(invoke("bench", str(pair), *arguments, "-o", "jsonl"))
        prompts = [request["prompt"] for request in server.requests]
    assert [record["server"] for record in own] == [None, None]
    assert (prefill["test"]["name"], decode["test"]["name"]) == ("pp12", "tg2")
    assert decode["server"] == {"url": server.url, "model": "tiny", "engine": "scripted", "is_local": True}
    assert (decode["engine"], decode["mode"], decode["token_sha256"]) == ("scripted", None, None)
    assert decode["text_sha256"] is not None
    assert decode["acceptance_rate"] is None
    assert decode["memory"]["process_peak_bytes"] is None
    assert decode["memory"]["note"] == "the server's memory is not seen from here"
    assert decode["energy_note"]  # the board is simulated, or the answers came faster than it can be read
    assert len(prompts) == 2 * 3
    assert len({prompts[0], prompts[1], prompts[2]}) == 3


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (lambda servers: lambda _request: iter([b"\x07 garbage\n"]), "sent what is no completion"),
        (lambda servers: lambda _request: iter([servers.chunk("a")]), "ended its answer half-way, after 1 chunks"),
    ],
)
def test_a_server_that_fails_costs_its_rows_only(
    pair: Path, invoke: Callable[..., Any], reply: Callable[..., Any], expected: str
) -> None:
    """Our rows stand; the sentence says what the server did; the exit code is 1."""
    servers = load_servers()
    with servers.CompletionsServer(reply(servers)) as server:
        outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--against", server.url, "-o", "jsonl")
    assert outcome.code == 1
    assert expected in outcome.err
    assert [json.loads(line)["mode"] for line in outcome.out.splitlines()] == ["fp16", "fp16", "exact"]


def test_a_server_that_fails_later_keeps_the_rows_it_gave(pair: Path, invoke: Callable[..., Any]) -> None:
    """What it answered until then is measured."""
    servers = load_servers()
    answers = iter(range(1_000))

    def reply(request: dict[str, Any]) -> Iterator[bytes]:
        if next(answers) < 4:  # the prefill test and the warm-up of the other one
            yield from servers.stream_of("a", "b", "c")(request)
        else:
            yield b'data: {"error": {"message": "out of memory"}}\n\n'

    with servers.CompletionsServer(reply) as server:
        outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--against", server.url, "-o", "jsonl")
    assert outcome.code == 1
    assert "failed after 0 chunks: it says " in outcome.err
    names = [(record["test"]["name"], record["engine"]) for record in map(json.loads, outcome.out.splitlines())]
    assert names[-1] == ("pp12", "scripted")


def test_a_server_without_ignore_eos_is_told_of(pair: Path, invoke: Callable[..., Any]) -> None:
    """A row named tg6 that rests on three tokens says so."""
    with load_servers().CompletionsServer() as server:
        arguments = ("-p", "0", "-n", "6", "-r", "1", "--mode", "fp16", "--idle-seconds", "0", "--against", server.url)
        outcome = invoke("bench", str(pair), *arguments, *NO_SENSOR)
    assert "tg6 scripted: a generation ended after 3 of 7 tokens" in outcome.err


def test_idle_power_is_left_out_where_there_is_no_total(pair: Path, invoke: Callable[..., Any]) -> None:
    """Nobody waits ten seconds for a sensor that is not there."""
    arguments = ("-p", "0", "-n", "3", "-r", "1", "--mode", "fp16")
    (record,) = records_of(invoke("bench", str(pair), *arguments, *NO_SENSOR, "-o", "jsonl"))
    assert record["idle"] == {
        "watts": None,
        "seconds": 0.0,
        "power_mode": None,
        "note": "power is not measured: the sensor is set to none",
    }


def test_values_come_from_a_settings_file_too(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Numbers as numbers, lists as texts; a mode set for every command is one of one."""
    file = tmp_path / "edgeprec.toml"
    file.write_text('mode = "int4"\n[bench]\nn-prompt = 0\nn-gen = "3-5+2"\nrepetitions = 1\nidle-seconds = 0\n')
    outcome = invoke("bench", str(pair), *NO_SENSOR, "--config", str(file), "-o", "jsonl")
    found = [(record["test"]["name"], record["mode"], record["repeats"]) for record in records_of(outcome)]
    assert found == [("tg3", "int4", 1), ("tg5", "int4", 1)]


def test_model_facts_count_what_is_in_the_bundle(pair: Path) -> None:
    """Size and parameters are those of the files."""
    from edgeprec.bundle import Bundle

    bundle = Bundle.open(pair)
    facts = bench_facts.model_facts(bundle)
    assert facts["size_bytes"] == sum(entry.size_bytes for entry in bundle.manifest.files.values())
    with bundle.target.open_fp16() as file:
        assert facts["parameters"] == sum(spec.num_elements for spec in file.specs.values())
