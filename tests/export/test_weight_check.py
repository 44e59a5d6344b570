"""Weights pass exactly where FP16 holds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeprec.errors import ConfigError
from edgeprec.export.tensor_source import FloatArray
from edgeprec.export.weight_check import WeightCheck, to_fp16


def passes(*parts: FloatArray) -> bool:
    """Return whether a tensor of these parts is accepted."""
    check = WeightCheck("w")
    for part in parts:
        check.add(part)
    try:
        check.finish()
    except ConfigError:
        return False
    return check.is_clean


@settings(max_examples=200, deadline=None)
@given(values=hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
def test_accepted_iff_fp16_is_finite(values: FloatArray) -> None:
    """A tensor is accepted exactly where rounding it to FP16 gives finite numbers."""
    with np.errstate(over="ignore"):
        is_finite = bool(np.isfinite(values.astype(np.float16)).all())
    assert passes(values) is is_finite
    if is_finite:
        assert to_fp16(values).dtype == np.float16


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_one_bad_value_among_good_parts(value: float, dtype: type) -> None:
    """A bad value is found in whichever part it stands, in either type."""
    good, bad = np.ones(5, dtype), np.asarray([1.0, value], dtype)
    assert passes(good, good)
    assert not passes(bad, good)
    assert not passes(good, bad)


def test_counts_go_over_all_parts() -> None:
    """The message counts bad values and all values of the whole tensor."""
    check = WeightCheck("model.w")
    for _ in range(3):
        check.add(np.asarray([np.nan, 1.0, np.inf], np.float32))
    with pytest.raises(ConfigError, match=r"model\.w holds 6 NaN or infinite values of 9"):
        check.finish()


def test_largest_magnitude_is_reported_beside_nothing_bad() -> None:
    """An overflow is told apart from damage and says how large the weight is."""
    check = WeightCheck("model.w")
    check.add(np.asarray([1.0, -1e6], np.float32))
    assert not check.is_clean
    with pytest.raises(ConfigError, match=r"model\.w holds a weight of magnitude 1e\+06"):
        check.finish()


def test_empty_tensor_is_clean() -> None:
    """Nothing cannot be wrong."""
    assert passes(np.empty(0, np.float32), np.empty(0, np.float16))
