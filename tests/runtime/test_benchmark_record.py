"""The record of a benchmark: spread, sums, and null with a reason wherever nothing was measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.config import DraftingConfig, GenerationConfig, Mode
from edgeprec.devices.reading import EnergyReading, Method
from edgeprec.devices.sensor import Scope
from edgeprec.devices.sysfs import Sysfs
from edgeprec.runtime.benchmark_case import Case, CaseKind, SetPrompt
from edgeprec.runtime.benchmark_energy import RepeatEnergy, decoding_joules, repeat_energy, summed_phases
from edgeprec.runtime.benchmark_machine import MachineState, library_versions, read_state
from edgeprec.runtime.benchmark_record import Circumstances, make_record, spread
from edgeprec.runtime.benchmark_repeat import Generated, Repeat, Work
from edgeprec.runtime.energy import NoWindow

FORMAT = (Path(__file__).parents[2] / "docs" / "bench-format.md").read_text(encoding="utf-8")
ABOUT = Circumstances(
    time="2026-12-02T00:00:00+00:00",
    command=("edgeprec", "bench"),
    device={"name": "board", "power_mode": "15W"},
    versions={"edgeprec": "0.1.0"},
    model={"name": "tiny", "size_bytes": 1000},
    engine="fake",
    engine_device="cpu",
    threads=2,
    repeats=2,
    has_warm_up=True,
    idle={"watts": 1.0, "seconds": 10.0, "power_mode": "15W", "note": None},
    meter={"source": "fake", "period_ms": 50.0},
)
STATE = MachineState(
    clocks={"gpu": [], "cpu": {"current_khz": [2_000_000]}, "is_locked": None, "reasons": []},
    hottest_c=40.0,
    process_peak_bytes=2**20,
)
CASE = Case(
    kind=CaseKind.DECODE,
    config=GenerationConfig(drafting=DraftingConfig(draft_length=3)),
    new_tokens=40,
    depth_tokens=8,
)


def make_work(**changes: Any) -> Work:
    """Return the work of some rounds; ``changes`` replace fields."""
    values: dict[str, Any] = {
        "drafter": "self",
        "rounds": 10,
        "drafted": 30,
        "accepted": 24,
        "int4_passes": 60,
        "all_passes": 100,
        "bits_read": 800.0,
        "weights_read": 100.0,
    }
    return Work(**values | changes)


def make_generated(**changes: Any) -> Generated:
    """Return 41 tokens of which 40 were decoded in 8 s; ``changes`` replace fields."""
    values: dict[str, Any] = {
        "id": "synthetic",
        "kind": "",
        "prompt_tokens": 8,
        "cached_tokens": 7,
        "new_tokens": 41,
        "prefill_s": 0.5,
        "decode_s": 8.0,
        "finish_reason": "length",
        "text": "text",
        "tokens": tuple(range(41)),
        "work": make_work(),
    }
    return Generated(**values | changes)


def make_energy(joules: float = 41.0, **changes: Any) -> RepeatEnergy:
    """Return the energy of 10 s; ``changes`` replace fields of the reading."""
    values: dict[str, Any] = {
        "joules": joules,
        "source": "fake",
        "rails": ("VDD_IN",),
        "is_total": True,
        "scope": Scope.MODULE,
        "method": Method.INTEGRATED_POWER,
        "seconds": 10.0,
        "samples": 200,
        "period_ms": 50.0,
        "lag_ms": None,
        "coverage": 1.0,
        "plus_minus_joules": 0.5,
        "power_mode": "15W",
        "idle_watts": 1.0,
        "joules_above_idle": joules - 10.0,
    }
    reading = EnergyReading(**values | changes)
    return RepeatEnergy(reading=reading, by_phase={"prefill": 1.0, "draft": 10.0, "verify": joules - 11.0}, tokens=41)


def make_repeat(
    generated: Generated | None = None, energy: RepeatEnergy | None = None, note: str | None = None
) -> Repeat:
    """Return a repeat of one generation."""
    return Repeat(generated=(generated or make_generated(),), energy=energy, energy_note=note)


def record_of(*repeats: Repeat, case: Case = CASE, **about: Any) -> dict[str, Any]:
    """Return the record of a case, as it looks once it was written and read."""
    record = make_record(replace(ABOUT, **about), case, repeats, before=STATE, after=STATE)
    return dict(json.loads(json.dumps(record, allow_nan=False)))


def test_speed_is_mean_and_deviation_of_the_repeats() -> None:
    """5 and 10 tokens/s: the sample's deviation, divided by n - 1."""
    record = record_of(make_repeat(), make_repeat(make_generated(decode_s=4.0)))
    assert record["tokens_per_s"] == {"mean": 7.5, "stdev": pytest.approx(3.5355339), "count": 2}
    assert [run["tokens_per_s"] for run in record["runs"]] == [5.0, 10.0]
    assert (record["test"]["name"], record["repeats"], record["is_complete"]) == ("tg40 @ d8", 2, True)


def test_text_that_repeats_itself_shows() -> None:
    """Of 41 equal tokens 25 end a row of 16 that stood there before; a server's tokens are not known."""
    assert record_of(make_repeat())["loop_share"] == 0.0
    assert record_of(make_repeat(make_generated(tokens=(7,) * 41)))["loop_share"] == pytest.approx(25 / 41)
    assert record_of(make_repeat(make_generated(tokens=None)))["loop_share"] is None


def test_clocks_say_what_is_not_known() -> None:
    """The fastest core before and after, whether clocks are locked, and why not known."""
    assert record_of(make_repeat())["clocks"] == {
        "before_mhz": {"cpu": 2000.0},
        "after_mhz": {"cpu": 2000.0},
        "is_locked": None,
        "reasons": [],
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [((), None), ((None,), None), ((3.0,), (3.0, None, 1)), ((1.0, None, 3.0), (2.0, 2.0**0.5, 2))],
)
def test_a_spread_rests_on_what_is_known(values: tuple[float | None, ...], expected: Any) -> None:
    """One value has no deviation, none has no mean: neither is 0."""
    found = spread(values)
    assert (None if found is None else (found.mean, found.stdev, found.count)) == (
        expected
        if expected is None
        else (expected[0], pytest.approx(expected[1]) if expected[1] else None, expected[2])
    )


def test_work_is_added_before_it_is_divided() -> None:
    """Acceptance is accepted over drafted of all repeats, bits are weighted by the weights read."""
    rejected = make_generated(work=make_work(rounds=30, drafted=90, accepted=0, bits_read=1600.0))
    record = record_of(make_repeat(), make_repeat(rejected))
    assert record["acceptance_rate"] == pytest.approx(24 / 120)
    assert record["mean_draft_length"] == pytest.approx(120 / 40)
    assert record["bits_read_per_weight"] == pytest.approx(12.0)
    assert record["int4_layer_share"] == pytest.approx(0.6)
    assert (record["mode"], record["drafter"], record["draft_length"]) == ("exact", "self", 3)


def test_three_levels_have_an_acceptance_below() -> None:
    """It is added up like FP16's; with two levels there is none."""
    works = [make_work(level_drafted=drafted, level_accepted=accepted) for drafted, accepted in ((10, 9), (30, 3))]
    record = record_of(*(make_repeat(make_generated(work=work)) for work in works))
    assert record["level_acceptance_rate"] == pytest.approx(12 / 40)
    assert record_of(make_repeat())["level_acceptance_rate"] is None


def test_plain_decoding_has_no_drafter() -> None:
    """Nothing was drafted: acceptance is not known, and no length stands there."""
    plain = make_generated(work=make_work(drafter="none", drafted=0, accepted=0))
    record = record_of(make_repeat(plain), case=replace(CASE, config=GenerationConfig(mode=Mode.FP16)))
    assert [record[name] for name in ("drafter", "draft_length", "acceptance_rate", "mean_draft_length")] == [None] * 4
    assert record["drafted"] == 0


def test_a_server_tells_nothing_of_its_layers() -> None:
    """What only an engine of our own knows is null, not a guess."""
    answer = make_generated(tokens=None, work=None)
    record = record_of(make_repeat(answer), make_repeat(answer), server={"url": "http://host/v1"}, engine="vllm")
    for name in ("mode", "drafter", "draft_length", "acceptance_rate", "drafted", "int4_layer_share", "token_sha256"):
        assert record[name] is None, name
    assert record["bits_read_per_weight"] is None
    assert record["text_sha256"] is not None
    assert record["memory"]["process_peak_bytes"] is None


def test_joules_are_given_gross_above_idle_and_by_phase() -> None:
    """41 and 82 J for 41 tokens each: 1 and 2 J/token; 10 J of each are the idle machine's."""
    record = record_of(make_repeat(energy=make_energy(41.0)), make_repeat(energy=make_energy(82.0)))
    energy = record["energy"]
    assert energy["joules_per_token"] == {"mean": 1.5, "stdev": pytest.approx(0.5**0.5), "count": 2}
    assert energy["joules_per_token_above_idle"]["mean"] == pytest.approx((31 + 72) / 82)
    assert energy["decode_joules_per_token"]["mean"] == pytest.approx((40 + 81) / 82)
    assert energy["watts"]["mean"] == pytest.approx((4.1 + 8.2) / 2)
    assert energy["by_phase"] == {"prefill": 2.0, "draft": 20.0, "verify": 101.0}
    assert (energy["joules"], energy["plus_minus_joules"], energy["tokens"]) == (123.0, 1.0, 82)
    assert (energy["rail"], energy["scope"], energy["idle_watts"], energy["repeats"]) == ("VDD_IN", "module", 1.0, 2)
    assert record["energy_note"] is None


def test_no_energy_is_null_with_every_reason() -> None:
    """Two repeats, two reasons, no number."""
    record = record_of(make_repeat(note="too short"), make_repeat(note="the bus went away"))
    assert (record["energy"], record["energy_note"]) == (None, "too short; the bus went away")
    assert [run["energy"] for run in record["runs"]] == [None, None]


def test_energy_of_some_repeats_says_of_how_many() -> None:
    """A mean over one of two repeats is no mean over two."""
    record = record_of(make_repeat(energy=make_energy()), make_repeat(note="the sensor ended"))
    assert (record["energy"]["repeats"], record["energy"]["joules_per_token"]["count"]) == (1, 1)
    assert record["energy_note"] == "measured in 1 of 2 repeats; the sensor ended"


def test_one_partial_repeat_makes_the_whole_partial() -> None:
    """A part is never called the total, and coverage is that of the worst repeat."""
    partial = make_energy(is_total=False, coverage=0.5, idle_watts=None, joules_above_idle=None)
    energy = record_of(make_repeat(energy=make_energy()), make_repeat(energy=partial))["energy"]
    assert energy["is_total"] is False
    assert energy["coverage"] == 0.5
    assert energy["joules_per_token_above_idle"]["count"] == 1


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ({"prefill": 1.0, "draft": 2.0, "verify": 3.0, "idle": None, "between": 9.0}, 5.0),
        ({"prefill": 1.0, "decode": 4.0}, 4.0),
        ({"prefill": 1.0, "draft": None, "verify": 3.0}, None),
        ({"prefill": 1.0}, None),
        ({}, None),
    ],
)
def test_decoding_is_what_comes_after_prefill(phases: dict[str, float | None], expected: float | None) -> None:
    """The moment at the end may be too short to measure; a phase of work may not."""
    assert decoding_joules(phases) == expected


def test_phases_are_summed_only_where_all_are_known() -> None:
    """One repeat without a phase's joules makes the sum unknown; a phase that did not occur does not."""
    first, second = make_energy(), make_energy()
    second = replace(second, by_phase={"prefill": None, "verify": 5.0})
    assert summed_phases([first, second]) == {"prefill": None, "draft": 10.0, "verify": 35.0}


def test_without_a_window_the_reason_is_the_sessions() -> None:
    """And where none was given, it still is not silent."""
    assert repeat_energy(NoWindow(), tokens=3, note="no sensor") == (None, "no sensor")
    assert repeat_energy(NoWindow(), tokens=3, note=None) == (None, "not measured")


def test_energy_without_tokens_has_no_joules_a_token() -> None:
    """A prompt answered from the cache alone divides by nothing."""
    energy = replace(make_energy(), tokens=0)
    assert (energy.joules_per_token, energy.decode_joules_per_token) == (None, None)
    assert energy.to_json()["joules"] == 41.0


def test_hashes_stand_where_all_repeats_agree() -> None:
    """Equal tokens have one hash; different ones have none in common, and for decoding that is remarkable."""
    same = record_of(make_repeat(), make_repeat())
    assert same["token_sha256"] == same["runs"][0]["token_sha256"]
    assert same["notes"] == []
    other = make_repeat(make_generated(tokens=(1,) * 41, text="other"))
    different = record_of(make_repeat(), other)
    assert (different["token_sha256"], different["text_sha256"]) == (None, None)
    assert different["notes"] == ["the repeats gave 2 different texts"]
    assert record_of(make_repeat(), other, case=replace(CASE, kind=CaseKind.BOTH))["notes"] == []


def test_what_fell_short_is_noted() -> None:
    """Fewer repeats, fewer tokens: the row says so."""
    record = record_of(make_repeat(make_generated(new_tokens=12)))
    assert record["is_complete"] is False
    assert record["notes"] == ["broken off after 1 of 2 repeats", "a generation ended after 12 of 41 tokens"]


def test_fallbacks_of_many_generations_are_one_sentence() -> None:
    """Two hundred prompts do not make two hundred remarks that differ in a number."""
    words = "speculation switched itself off in {} of {} rounds"
    generated = [make_generated(fallbacks=(words.format(n, n + 1),)) for n in range(3)] + [make_generated()]
    repeat = Repeat(generated=tuple(generated), energy=None, energy_note="none")
    assert record_of(repeat, repeats=1)["fallbacks"] == [f"in 3 of 4 generations, such as: {words.format(0, 1)}"]
    single = make_repeat(make_generated(fallbacks=("no CUDA",)))
    assert record_of(single, repeats=1)["fallbacks"] == ["no CUDA"]


def test_a_set_is_split_by_task() -> None:
    """Each task has its own speed and acceptance over all repeats."""
    prompts = (SetPrompt("a", "code", "x"), SetPrompt("b", "prose", "y"))
    case = Case(kind=CaseKind.PROMPTS, config=CASE.config, new_tokens=41, prompt_set="mine", prompts=prompts)
    slow = make_generated(kind="prose", decode_s=16.0, work=make_work(accepted=3))
    repeat = Repeat(generated=(make_generated(kind="code"), slow), energy=None, energy_note="none")
    by_kind = record_of(repeat, repeat, case=case)["by_kind"]
    assert (by_kind["code"]["tokens_per_s"]["mean"], by_kind["prose"]["tokens_per_s"]["mean"]) == (5.0, 2.5)
    assert (by_kind["code"]["acceptance_rate"], by_kind["prose"]["acceptance_rate"]) == (0.8, 0.1)
    assert (by_kind["code"]["prompts"], by_kind["code"]["new_tokens"]) == (1, 82)


def test_every_field_is_documented() -> None:
    """docs/bench-format.md is the contract of who reads the file."""
    record = record_of(make_repeat(energy=make_energy()), make_repeat(energy=make_energy()))
    names = [*record, *record["energy"], *record["test"], *record["runs"][0], *record["runs"][0]["generations"][0]]
    missing = [name for name in names if f"`{name}`" not in FORMAT]
    assert not missing


def test_the_state_of_a_machine_that_tells_nothing_is_none(tmp_path: Path) -> None:
    """No clock, no heat, no memory: null, never 0."""
    state = read_state(Sysfs(tmp_path), own=Sysfs(tmp_path))
    assert (state.clock_mhz, state.hottest_c, state.process_peak_bytes) == ({}, None, None)


def test_the_state_of_this_machine() -> None:
    """This process's peak memory is known on Linux, and it grows."""
    before = read_state(Sysfs()).process_peak_bytes
    ballast = bytearray(b"x" * 50_000_000)
    after = read_state(Sysfs()).process_peak_bytes
    assert before is not None
    assert after is not None
    assert after >= max(before, len(ballast))


@pytest.mark.parametrize(("is_used", "expected"), [(True, 12_345), (False, None)])
def test_the_peak_of_a_gpu_is_torchs(monkeypatch: pytest.MonkeyPatch, is_used: bool, expected: int | None) -> None:
    """Where an engine uses it; a library that was only imported has no peak, and 0 would be a lie."""
    cuda = SimpleNamespace(is_initialized=lambda: is_used, max_memory_allocated=lambda: 12_345)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    state = read_state(Sysfs())
    assert state.gpu_peak_bytes == expected
    record = make_record(
        replace(ABOUT, engine="tensorrt", engine_device="cuda:0"), CASE, [make_repeat()], before=STATE, after=state
    )
    assert record["memory"]["gpu_peak_bytes"] == expected
    assert ("tensorrt does not tell its peak on cuda:0" in record["memory"]["note"]) is not is_used


def test_versions_name_what_computed(tmp_path: Path) -> None:
    """The engine's library and no other, and the driver where there is one."""
    driver = tmp_path / "sys/module/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text("580.159.04\n")
    found = library_versions("onnxruntime", Sysfs(tmp_path))
    assert {"edgeprec", "python", "numpy", "onnxruntime"} <= set(found)
    assert found["nvidia_driver"] == "580.159.04"
    assert "torch" not in found
    assert "nvidia_driver" not in library_versions("torch", Sysfs(tmp_path / "sys"))
