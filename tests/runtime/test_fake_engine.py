"""The fake engine notices what it is there to notice: otherwise the tests that lean on it prove nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeprec.errors import EngineError
from edgeprec.precision import Plan, Precision

FP16 = Plan.uniform(Precision.FP16, num_layers=3)
INT4 = Plan.uniform(Precision.INT4, num_layers=3)


@pytest.fixture
def engine(fake: ModuleType) -> Any:
    """An engine with three tokens in its cache, whose INT4 variant never agrees."""
    made = fake.FakeEngine(fake.ToyModel(), "never")
    made.forward([1, 2, 3], position=0, plan=FP16)
    return made


def test_one_pass_equals_single_steps(engine: Any, fake: ModuleType) -> None:
    """Logits depend on the text alone, not on how it was cut into passes."""
    steps = fake.FakeEngine(engine.model)
    rows = [steps.forward([token], position=index, plan=FP16).logits[0].copy() for index, token in enumerate((1, 2, 3))]
    assert np.array_equal(engine.forward([1, 2, 3], position=0, plan=FP16).logits, rows)


def test_hole_and_stale_entry_and_int4_leftover_are_faults(engine: Any, fake: ModuleType) -> None:
    """The three ways a cache can lie are caught before any logits are given."""
    with pytest.raises(fake.CacheFault, match="hole"):
        engine.forward([4], position=4, plan=INT4)
    engine.forward([9], position=1, plan=INT4)
    with pytest.raises(fake.CacheFault, match="slot 2 is stale"):
        engine.forward([4], position=3, plan=INT4)
    with pytest.raises(fake.CacheFault, match="INT4 left"):
        engine.forward([4], position=2, plan=FP16)


def test_overwriting_in_order_heals_the_cache(engine: Any) -> None:
    """Going back and writing FP16 again over what INT4 wrote is what verification does, and is no fault."""
    before = engine.forward([4], position=3, plan=FP16).logits.copy()
    engine.forward([4], position=3, plan=INT4)
    engine.forward([5], position=4, plan=INT4)
    assert np.array_equal(engine.forward([4, 5], position=3, plan=FP16).logits[:1], before)


def test_int4_leftovers_change_fp16_logits_where_they_are_accepted(engine: Any) -> None:
    """A polluted cache gives other tokens, as a real one does."""
    clean = engine.forward([4, 5], position=3, plan=FP16).logits[1].copy()
    engine.accepts_int4 = True
    engine.forward([4], position=3, plan=INT4)
    assert not np.array_equal(engine.forward([5], position=4, plan=FP16).logits[0], clean)


def test_single_fp16_row_spoils_the_next_slot(engine: Any, fake: ModuleType) -> None:
    """The padding row of a real engine is there: whoever counts on the slot behind a single row fails."""
    engine.forward([4, 5], position=3, plan=FP16)
    engine.forward([4], position=3, plan=FP16)
    with pytest.raises(fake.CacheFault, match="slot 4 is a hole"):
        engine.forward([6], position=5, plan=FP16)


def test_logits_do_not_outlive_the_next_pass(engine: Any) -> None:
    """Whoever keeps the array sees NaN."""
    kept = engine.forward([4], position=3, plan=FP16).logits
    engine.forward([4], position=3, plan=FP16)
    assert np.isnan(kept).all()


def test_limits_are_those_of_a_real_engine(engine: Any) -> None:
    """Rows, context and layers are checked as every engine does."""
    with pytest.raises(EngineError):
        engine.forward(list(range(17)), position=0, plan=FP16)
    with pytest.raises(EngineError):
        engine.forward([1], position=64, plan=FP16)
    with pytest.raises(EngineError):
        engine.forward([1], position=3, plan=Plan.uniform(Precision.FP16, num_layers=2))
