"""The quantizer's promises: exact where it can be, never worse than rounding, better the more it knows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.errors import ConfigError
from edgeprec.export.quantizer import METHODS, InputStatistics, Method, QuantizerSettings, SecondMoments, quantize
from edgeprec.kernels.layout import GROUP_SIZES, Int4Weight, num_groups
from edgeprec.kernels.reference import dequantize, int4_linear

FORMS = [
    pytest.param(True, True, id="signed"),
    pytest.param(True, False, id="positive"),
    pytest.param(False, False, id="zero-point"),
]
Weight = npt.NDArray[np.float32]


def form(method: Method, *, is_symmetric: bool, has_signed_scales: bool, group_size: int = 32) -> QuantizerSettings:
    """Return settings of one of the three forms."""
    return QuantizerSettings(
        method=method, group_size=group_size, is_symmetric=is_symmetric, has_signed_scales=has_signed_scales
    )


def random_weight(k: int, n: int, *, seed: int = 0) -> Weight:
    """Return weights with the heavy tails that trained ones have."""
    return (np.random.default_rng(seed).standard_t(5, (k, n)) * 0.02).astype(np.float32)


def correlated_statistics(k: int, *, seed: int = 1) -> InputStatistics:
    """Return statistics of inputs that share a few directions and differ widely in size."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((k // 4 + 1, k)) * np.exp(rng.standard_normal(k))
    moments = SecondMoments(k, with_hessian=True)
    moments.add(rng.standard_normal((4 * k, k // 4 + 1)) @ mixing + 0.3 * rng.standard_normal((4 * k, k)))
    return moments.finish()


def exact_weight(k: int, n: int, *, is_symmetric: bool, has_signed_scales: bool, seed: int = 2) -> Weight:
    """Return weights on a grid of FP16 scales in which every block uses both ends of its levels."""
    rng = np.random.default_rng(seed)
    groups = num_groups(k, 32)
    scales = rng.uniform(0.001, 0.1, (groups, n)).astype(np.float16).astype(np.float32)
    if has_signed_scales:
        scales *= rng.choice(np.float32([-1.0, 1.0]), (groups, n))
    zeros = np.full((groups, n), 8) if is_symmetric else rng.integers(0, 16, (groups, n))
    levels = rng.integers(0, 16, (k, n))
    levels[::32], levels[1::32] = 0, 15
    return ((levels - np.repeat(zeros, 32, axis=0)[:k]) * np.repeat(scales, 32, axis=0)[:k]).astype(np.float32)


def arrays_of(weight: Int4Weight) -> list[bytes]:
    """Return every byte of a weight."""
    return [array.tobytes() for array in (weight.packed, weight.scales, weight.zeros) if array is not None]


@pytest.mark.parametrize(("is_symmetric", "has_signed_scales"), FORMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("k", "n"), [(64, 6), (98, 7)])
def test_weights_on_a_grid_come_back_exactly(
    method: Method, k: int, n: int, is_symmetric: bool, has_signed_scales: bool
) -> None:
    """What INT4 can hold is held without error by every method, tails and odd widths included."""
    weight = exact_weight(k, n, is_symmetric=is_symmetric, has_signed_scales=has_signed_scales)
    chosen = form(method, is_symmetric=is_symmetric, has_signed_scales=has_signed_scales)
    quantized = quantize(weight, chosen, correlated_statistics(k))
    np.testing.assert_array_equal(dequantize(quantized.weight), weight)
    assert quantized.report.weight_error == 0.0
    assert quantized.report.max_error == 0.0


@pytest.mark.parametrize(("is_symmetric", "has_signed_scales"), FORMS)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("k", "n"), [(1, 1), (31, 2), (129, 5), (300, 3)])
def test_any_shape_and_group_size_is_taken(
    method: Method, k: int, n: int, group_size: int, is_symmetric: bool, has_signed_scales: bool
) -> None:
    """Short last blocks and odd widths quantize to finite values of the right shape, close to the original."""
    weight = random_weight(k, n)
    chosen = form(method, is_symmetric=is_symmetric, has_signed_scales=has_signed_scales, group_size=group_size)
    result = quantize(weight, chosen, correlated_statistics(k))
    quantized, report = result.weight, result.report
    assert dequantize(quantized).shape == (k, n)
    assert quantized.group_size == group_size
    assert (quantized.zeros is None) == is_symmetric
    assert has_signed_scales or (quantized.scales > 0.0).all()
    minimised = {"rtn": report.weight_error, "clip": report.output_error, "gptq": report.correlated_error}[method]
    assert minimised is not None
    assert minimised < 0.25


@pytest.mark.parametrize(("is_symmetric", "has_signed_scales"), FORMS)
@settings(max_examples=40, deadline=None)
@given(k=st.integers(1, 80), n=st.integers(1, 9), seed=st.integers(0, 2**16), spread=st.floats(0.0, 1.0))
def test_clip_is_never_worse_than_rounding(
    is_symmetric: bool, has_signed_scales: bool, k: int, n: int, seed: int, spread: float
) -> None:
    """In the cost it searches by, clip falls back on the grid of rtn wherever that is better."""
    weight = random_weight(k, n, seed=seed)
    moments = np.exp(np.random.default_rng(seed).standard_normal(k) * spread).astype(np.float32)
    statistics = InputStatistics(second_moment=moments)
    clip, rtn = (
        quantize(
            weight, form(method, is_symmetric=is_symmetric, has_signed_scales=has_signed_scales), statistics
        ).report.output_error
        for method in ("clip", "rtn")
    )
    assert clip is not None
    assert rtn is not None
    assert clip <= rtn * (1.0 + 1e-5)


@pytest.mark.parametrize(("is_symmetric", "has_signed_scales"), FORMS)
def test_each_method_beats_the_one_before_on_correlated_inputs(is_symmetric: bool, has_signed_scales: bool) -> None:
    """The error of the real output falls from rtn to clip and, by far, from clip to gptq."""
    weight, statistics = random_weight(256, 64), correlated_statistics(256)
    rtn, clip, gptq = (
        quantize(
            weight, form(method, is_symmetric=is_symmetric, has_signed_scales=has_signed_scales), statistics
        ).report
        for method in METHODS
    )
    assert rtn.output_error is not None
    assert clip.output_error is not None
    assert clip.output_error < 0.97 * rtn.output_error
    assert clip.correlated_error is not None
    assert gptq.correlated_error is not None
    assert gptq.correlated_error < 0.6 * clip.correlated_error


def test_gptq_on_independent_inputs_is_clip() -> None:
    """Without correlation there is nothing to make up for: the same levels come out."""
    moments = np.exp(np.random.default_rng(3).standard_normal(96)).astype(np.float32)
    statistics = InputStatistics(second_moment=moments, hessian=np.diag(moments))
    weight = random_weight(96, 10)
    results = [quantize(weight, QuantizerSettings(method=method), statistics).report for method in ("gptq", "clip")]
    assert results[0].output_error == pytest.approx(results[1].output_error, rel=5e-3)


@pytest.mark.parametrize("method", METHODS)
def test_errors_in_the_report_are_those_of_the_outputs(method: Method) -> None:
    """correlated_error is the relative error of x @ w over the rows the statistics came from."""
    rng = np.random.default_rng(4)
    rows = (rng.standard_normal((500, 20)) @ rng.standard_normal((20, 64))).astype(np.float32)
    moments = SecondMoments(64, with_hessian=True)
    moments.add(rows)
    weight = random_weight(64, 12)
    quantized = quantize(weight, QuantizerSettings(method=method), moments.finish())
    expected = rows.astype(np.float64) @ weight
    error = np.linalg.norm(int4_linear(rows, quantized.weight) - expected) / np.linalg.norm(expected)
    assert quantized.report.correlated_error == pytest.approx(error, rel=1e-2)


def test_the_report_counts_bits_and_leaves_unmeasured_errors_out() -> None:
    """Scales and zero points count; an error without statistics is None and never 0."""
    weight = random_weight(128, 64)
    symmetric = quantize(weight, QuantizerSettings(method="clip")).report
    zero_point = quantize(weight, QuantizerSettings(method="clip", is_symmetric=False, group_size=64)).report
    assert symmetric.bits_per_weight == 4.0 + 16 / 32
    assert zero_point.bits_per_weight == 4.0 + 20 / 64
    assert symmetric.output_error is None
    assert symmetric.correlated_error is None
    assert symmetric.calibrated_error is None
    assert symmetric.to_json()["weights"] == 128 * 64


def test_the_calibrated_error_is_the_best_known_one() -> None:
    """Layers are ordered by it: the Hessian's figure where there is one, else that of the second moments."""
    weight, full = random_weight(64, 16), correlated_statistics(64)
    with_hessian = quantize(weight, QuantizerSettings(method="clip"), full).report
    without = quantize(
        weight, QuantizerSettings(method="clip"), InputStatistics(second_moment=full.second_moment)
    ).report
    assert with_hessian.calibrated_error == with_hessian.correlated_error
    assert without.calibrated_error == without.output_error == with_hessian.output_error


@pytest.mark.parametrize("method", METHODS)
def test_the_same_input_gives_the_same_bytes(method: Method) -> None:
    """Exports are reproducible, in either float type where the values are the same."""
    weight, statistics = random_weight(200, 30).astype(np.float16), correlated_statistics(200)
    chosen = QuantizerSettings(method=method)
    first = arrays_of(quantize(weight, chosen, statistics).weight)
    assert arrays_of(quantize(weight, chosen, statistics).weight) == first
    assert arrays_of(quantize(weight.astype(np.float32), chosen, statistics).weight) == first
    assert arrays_of(quantize(np.asfortranarray(weight), chosen, statistics).weight) == first


@pytest.mark.parametrize("method", ["rtn", "clip"])
def test_columns_do_not_influence_each_other(method: Method) -> None:
    """Cutting a weight into tiles changes no byte: a part quantizes as it does within the whole."""
    weight = random_weight(70, 1500)
    whole = dequantize(quantize(weight, QuantizerSettings(method=method)).weight)
    part = dequantize(quantize(weight[:, 600:713], QuantizerSettings(method=method)).weight)
    np.testing.assert_array_equal(whole[:, 600:713], part)


@pytest.mark.parametrize(("is_symmetric", "has_signed_scales"), FORMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 1e-12, 3e-8, 1e-6, 65504.0, -65504.0])
def test_extreme_blocks_stay_finite(method: Method, value: float, is_symmetric: bool, has_signed_scales: bool) -> None:
    """Zeros give zeros; values around FP16's ends err by at most its smallest step or a few percent."""
    weight = np.zeros((64, 3), np.float32)
    weight[3::7] = value
    chosen = form(method, is_symmetric=is_symmetric, has_signed_scales=has_signed_scales)
    values = dequantize(quantize(weight, chosen, correlated_statistics(64)).weight)
    assert np.isfinite(values).all()
    allowed = 6e-8 + abs(value) * (0.3 if method == "gptq" else 0.08)
    np.testing.assert_allclose(values, weight, rtol=0.0, atol=allowed)


def test_silent_inputs_keep_their_weights() -> None:
    """An input that was 0 all through the calibration text is still quantized sensibly."""
    weight = random_weight(64, 8)
    moments = np.ones(64, np.float32)
    moments[:32] = 0.0
    for statistics in (InputStatistics(second_moment=moments), InputStatistics(second_moment=np.zeros(64, np.float32))):
        values = dequantize(quantize(weight, QuantizerSettings(method="clip"), statistics).weight)
        assert np.linalg.norm(values - weight) < 0.12 * np.linalg.norm(weight)


@pytest.mark.parametrize("hessian", [np.zeros((64, 64), np.float32), np.ones((64, 64), np.float32)])
def test_gptq_takes_singular_hessians(hessian: npt.NDArray[np.float32]) -> None:
    """A short calibration text leaves directions unseen; damping makes the factor exist."""
    weight = random_weight(64, 8)
    statistics = InputStatistics(second_moment=np.ascontiguousarray(hessian.diagonal()), hessian=hessian)
    report = quantize(weight, QuantizerSettings(method="gptq"), statistics).report
    assert report.weight_error < 0.3


def test_gptq_refuses_a_matrix_that_is_no_hessian(caplog: pytest.LogCaptureFixture) -> None:
    """An indefinite matrix is reported; the stronger damping tried before is logged."""
    hessian = np.full((40, 40), -1.0, np.float32) + 2.0 * np.eye(40, dtype=np.float32)
    statistics = InputStatistics(second_moment=np.ones(40, np.float32), hessian=hessian)
    with pytest.raises(ConfigError, match="not positive definite"):
        quantize(random_weight(40, 4), QuantizerSettings(method="gptq"), statistics)
    assert "no factor at damping 0.01" in caplog.text


@pytest.mark.parametrize("statistics", [None, InputStatistics(second_moment=np.ones(32, np.float32))])
def test_gptq_without_a_hessian_is_an_error(statistics: InputStatistics | None) -> None:
    """It does not quietly become another method."""
    with pytest.raises(ConfigError, match="needs the Hessian"):
        quantize(random_weight(32, 4), QuantizerSettings(method="gptq"), statistics)


@pytest.mark.parametrize(("bad", "message"), [(np.nan, "NaN"), (np.inf, "magnitude inf"), (-1e5, "magnitude 100000")])
@pytest.mark.parametrize("method", METHODS)
def test_weights_that_are_no_fp16_numbers_are_refused(method: Method, bad: float, message: str) -> None:
    """NaN, infinity and overflow are found before any work."""
    weight = random_weight(64, 600)
    weight[40, 599] = bad
    with pytest.raises(ConfigError, match=message):
        quantize(weight, QuantizerSettings(method=method), correlated_statistics(64))


@pytest.mark.parametrize(
    "weight", [np.ones(32, np.float32), np.ones((0, 4), np.float32), np.ones((4, 4), np.int8), np.ones((4, 4))]
)
def test_what_is_no_weight_is_refused(weight: Weight) -> None:
    """Wrong rank, emptiness and types other than float16 and float32."""
    with pytest.raises(ConfigError, match="expected float16 or float32"):
        quantize(weight, QuantizerSettings())


def test_statistics_of_another_linear_are_refused() -> None:
    """Mixing up two layers is an error and not a bad model."""
    with pytest.raises(ConfigError, match="of 33 inputs, expected 32"):
        quantize(random_weight(32, 4), QuantizerSettings(), InputStatistics(second_moment=np.ones(33, np.float32)))


@pytest.mark.parametrize(
    ("values", "message"),
    [({"method": "awq"}, "one of rtn, clip, gptq"), ({"group_size": 48}, "group_size is 48")],
)
def test_settings_name_the_value_and_what_is_allowed(values: dict[str, object], message: str) -> None:
    """A wrong flag value is met when the settings are made."""
    with pytest.raises(ConfigError, match=message):
        QuantizerSettings(**values)


@pytest.mark.parametrize("method", ["rtn", "clip"])
def test_temporaries_do_not_grow_with_the_weight(method: Method) -> None:
    """Above its result the quantizer holds a few tiles, whatever the size: 8192 x 16384 fits beside its weights."""
    weight = np.zeros((1024, 4096), np.float16)
    weight[::3] = 0.25
    tracemalloc.start()
    result = quantize(weight, QuantizerSettings(method=method)).weight
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - result.num_bytes < 16 * 2**20, f"{(peak - result.num_bytes) / 2**20:.1f} MiB of temporaries"
