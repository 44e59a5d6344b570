"""A window around others takes over their phases."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest


def make_bench() -> Any:
    """Return a meter over a rail of 2 W, sampled every 10 ms."""
    path = Path(__file__).with_name("fake_meter.py")
    found = spec_from_file_location("edgeprec_tests_adopt_meter", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.Bench(lambda _: {"r1": 2_000.0}, period_ms=10.0)


def test_phases_of_inner_windows_add_up_in_the_outer_one() -> None:
    """Two generations of one repeat: their phases are summed, and the time between them is a phase of its own."""
    bench = make_bench()
    with bench.meter.window("repeat") as outer:
        for _ in range(2):
            with bench.meter.window("generation") as inner:
                inner.mark("prefill")
                bench.run(1.0)
                inner.mark("verify")
                bench.run(2.0)
            outer.adopt(inner, after="between")
            bench.run(0.5)
    joules = {phase: reading.joules for phase, reading in outer.by_phase.items() if reading is not None}
    assert joules == pytest.approx({"prefill": 4.0, "verify": 8.0, "between": 2.0}, rel=0.01)
    assert outer.reading is not None
    assert sum(joules.values()) == pytest.approx(outer.reading.joules, rel=0.01)


def test_an_open_window_cannot_be_taken_over() -> None:
    """Its end is not known: that is a fault of the caller, not a phase of no length."""
    bench = make_bench()
    with bench.meter.window("outer") as outer, bench.meter.window("inner") as inner:
        with pytest.raises(RuntimeError, match="'inner' is not closed"):
            outer.adopt(inner, after="between")
        bench.run(0.1)
