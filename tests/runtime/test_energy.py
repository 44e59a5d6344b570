"""The energy of a reply: joules by phase from a scripted sensor, or None and the reason; never 0 for "not measured"."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.config import Objective
from edgeprec.devices.sensor import Rail
from edgeprec.errors import ConfigError, EngineError
from edgeprec.runtime.energy import NoWindow, PhasePower, energy_stats

MakeRig = Callable[..., Any]
PASS_S = 1.0


@pytest.fixture(scope="session")
def meters() -> ModuleType:
    """Return the module of scripted sensors that the tests of the devices use."""
    path = Path(__file__).parents[1] / "devices" / "fake_meter.py"
    found = spec_from_file_location("edgeprec_tests_fake_meter", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def make_metered(make_rig: MakeRig, meters: ModuleType) -> Callable[..., Any]:
    """Return ``make(script, **sensor)``: a rig on a meter's clock whose passes take a second, and the bench."""

    def make(script: Any = lambda _: {"r1": 4_000.0}, *, agreement: str = "always", **sensor: Any) -> Any:
        bench = meters.Bench(script, period_ms=20.0, **sensor)
        rig = make_rig(
            agreement, session={"meter": bench.meter, "meter_note": None, "clock": bench.clock, "wait": bench.run}
        )
        rig.target.before_pass = lambda _: bench.run(PASS_S)
        return rig, bench

    return make


ASKED = {"draft_length": 2, "max_new_tokens": 7, "ignore_eos": True}


def test_joules_of_a_constant_load(make_metered: Callable[..., Any]) -> None:
    """At 4 W, seven passes of a second are 28 J: one prefill, four draft steps, two verifications."""
    rig, _ = make_metered()
    stats = rig.session.generate("abc", **ASKED).stats
    energy = stats.energy
    assert energy.joules == pytest.approx(28.0, rel=0.01)
    assert energy.joules_per_token == pytest.approx(4.0, rel=0.01)
    assert energy.by_phase["prefill"] == pytest.approx(4.0, rel=0.05)
    assert energy.by_phase["draft"] == pytest.approx(16.0, rel=0.05)
    assert energy.by_phase["verify"] == pytest.approx(8.0, rel=0.05)
    assert energy.by_phase["idle"] is None
    assert (energy.source, energy.rail, energy.is_total, energy.scope) == ("fake", "VDD_IN", True, "module")
    assert energy.coverage == pytest.approx(1.0, abs=0.01)
    assert energy.samples > 300


def test_phases_get_the_power_of_their_time(make_metered: Callable[..., Any]) -> None:
    """A load that is heavy only in FP16 shows up in prefill and verify alone."""
    rig, bench = make_metered(lambda _: {"r1": power["mw"]})
    power = {"mw": 1_000.0}

    def work(asked: Any) -> None:
        power["mw"] = 9_000.0 if asked.is_fp16 else 1_000.0
        bench.run(PASS_S)

    rig.target.before_pass = work
    by_phase = rig.session.generate("abc", **ASKED).stats.energy.by_phase
    assert by_phase["draft"] == pytest.approx(4.0, rel=0.15)
    assert by_phase["verify"] == pytest.approx(18.0, rel=0.15)


def test_several_rails_are_named(make_metered: Callable[..., Any]) -> None:
    """The rails summed are told by their labels."""
    rails = (Rail(id="r1", label="CPU"), Rail(id="r2", label="GPU"))
    rig, _ = make_metered(lambda _: {"r1": 1_000.0, "r2": 2_000.0}, rails=rails)
    energy = rig.session.generate("abc", **ASKED).stats.energy
    assert energy.rail == "CPU+GPU"
    assert energy.joules == pytest.approx(21.0, rel=0.01)


def test_a_silent_rail_is_no_zero(make_metered: Callable[..., Any]) -> None:
    """Where the sensor gives no value, energy is None and the note says why."""
    rig, _ = make_metered(lambda _: {"r1": "permission denied"})
    stats = rig.session.generate("abc", **ASKED).stats
    assert stats.energy is None
    assert "permission denied" in stats.energy_note


def test_without_a_meter_the_note_says_why(make_rig: MakeRig) -> None:
    """The reason the session was given is the reply's."""
    stats = make_rig(session={"meter_note": "no power sensor can be read"}).session.generate("ab").stats
    assert (stats.energy, stats.energy_note) == (None, "no power sensor can be read")
    assert make_rig().session.generate("ab").stats.energy_note == "no meter was given to this session"


def test_tokens_after_a_stop_string_pay_into_the_others(make_metered: Callable[..., Any]) -> None:
    """Joules per token are joules over the reply's tokens, whatever was dropped on the way."""
    rig, _ = make_metered()
    whole = rig.session.generate("abc", **ASKED)
    stop = whole.text[3]
    reply = rig.session.generate("abc", stop=stop, **ASKED)
    assert reply.stats.new_tokens < 7
    energy = reply.stats.energy
    assert energy.joules_per_token == pytest.approx(energy.joules / max(reply.stats.new_tokens, 1))


def test_energy_survives_an_engine_error(make_metered: Callable[..., Any]) -> None:
    """What was spent until a pass failed is measured."""
    rig, bench = make_metered()

    def fail(asked: Any) -> None:
        bench.run(PASS_S)
        if asked.position > 4:
            raise EngineError("gone")

    rig.target.before_pass = fail
    generation = rig.session.stream("abc", **ASKED)
    with pytest.raises(EngineError):
        list(generation)
    assert generation.reply.stats.energy.joules == pytest.approx(4.0 * len(rig.target.passes) + 4.0, rel=0.02)


def test_a_window_that_was_never_opened_has_a_reason(meters: ModuleType) -> None:
    """A generation that never began is not measured, and says so."""
    bench = meters.Bench(lambda _: {"r1": 1.0})
    assert energy_stats(bench.meter.window("generation"), new_tokens=0) == (None, "the window is still open")


def test_no_window_does_nothing() -> None:
    """The stand-in for a meter takes marks and lets errors through."""
    with NoWindow() as window:
        window.mark("draft")
    with pytest.raises(KeyError), NoWindow():
        raise KeyError


def test_budget_without_a_total_is_refused(make_metered: Callable[..., Any]) -> None:
    """Rails that do not add up to a known total cannot hold a budget; the note says why."""
    rig, _ = make_metered(total=None, total_note="the board is unknown")
    with pytest.raises(ConfigError, match="the board is unknown"):
        rig.session.generate("ab", power_budget_w=5.0)


def test_budget_brings_the_power_down(make_metered: Callable[..., Any]) -> None:
    """A machine that draws 12 W while it works comes under a budget of 6 W by pausing; the text is FP16's."""
    power = {"mw": 1_500.0}
    rig, bench = make_metered(lambda _: {"r1": power["mw"]})

    def work(asked: Any) -> None:
        power["mw"] = 12_000.0 if asked.is_fp16 else 9_000.0
        bench.run(0.05)
        power["mw"] = 1_500.0

    rig.target.before_pass = work
    free = rig.session.generate("ab", max_new_tokens=60, ignore_eos=True)
    held = rig.session.generate("ab", max_new_tokens=60, ignore_eos=True, power_budget_w=6.0)
    assert list(held.tokens) == list(free.tokens) == rig.expected("ab", 60)
    assert held.stats.energy.by_phase["idle"] > 0.0
    assert mean_watts(free) > 9.0
    assert mean_watts(held) < 7.5


def mean_watts(reply: Any) -> float:
    """Return the mean power of a whole generation."""
    return float(reply.stats.energy.joules / (reply.stats.prefill_s + reply.stats.decode_s))


def test_objective_energy_without_a_meter_follows_speed_and_says_so(make_rig: MakeRig) -> None:
    """What cannot be weighed in joules is not pretended to be."""
    rig = make_rig("always")
    asked = {"objective": Objective.ENERGY, "max_new_tokens": 12, "ignore_eos": True}
    notes = rig.session.generate("abc", **asked).stats.fallbacks
    assert any("objective energy follows speed" in note for note in notes), notes


def test_objective_energy_learns_within_one_generation(make_metered: Callable[..., Any]) -> None:
    """After two seconds of measuring, rounds have joules: one long run is enough."""
    rig, _ = make_metered()
    asked = {"objective": Objective.ENERGY, "max_new_tokens": 12, "ignore_eos": True}
    notes = rig.session.generate("abc", **asked).stats.fallbacks
    assert not any("objective energy" in note for note in notes), notes


def test_phase_power_tells_a_round_from_the_last_measured_phases(make_metered: Callable[..., Any]) -> None:
    """Joules of a round are its time at its phases' measured power; an unmeasured phase has none."""
    _, bench = make_metered()
    window = bench.meter.window("work")
    with window:
        window.mark("draft")
        bench.run(2.0)
    power = PhasePower()
    power.learn(window.by_phase)
    assert power.millijoules("draft", 5_000_000) == pytest.approx(20.0, rel=0.02)
    assert power.millijoules("verify", 5_000_000) is None


def test_a_budget_that_cannot_be_held_is_said(make_metered: Callable[..., Any]) -> None:
    """Four watts under a budget of one is no silent failure: the reply names both."""
    rig, _ = make_metered()
    notes = rig.session.generate("abc", power_budget_w=1.0, **ASKED).stats.fallbacks
    assert any("power budget of 1 W was not held: the mean was 4.0 W" in note for note in notes), notes


def test_a_budget_that_is_held_is_not_mentioned(make_metered: Callable[..., Any]) -> None:
    """A budget above what is drawn leaves no note."""
    rig, _ = make_metered()
    notes = rig.session.generate("abc", power_budget_w=5.0, **ASKED).stats.fallbacks
    assert not any("power budget" in note for note in notes), notes
