"""Input statistics: averages over batches, and what is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from edgeprec.errors import ConfigError
from edgeprec.export.quantizer import InputStatistics, SecondMoments


def test_batches_add_up_to_the_average_over_all_rows() -> None:
    """How the text was cut into batches does not matter."""
    rows = np.random.default_rng(0).standard_normal((101, 12)).astype(np.float32)
    gathered = SecondMoments(12, with_hessian=True)
    for batch in np.split(rows, [1, 40, 41]):
        gathered.add(batch)
    found, exact = gathered.finish(), rows.astype(np.float64)
    assert gathered.rows == 101
    assert found.hessian is not None
    np.testing.assert_allclose(found.second_moment, (exact**2).mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.hessian, exact.T @ exact / 101, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.hessian.diagonal(), found.second_moment, rtol=1e-5)


def test_a_long_text_of_large_activations_does_not_lose_small_ones() -> None:
    """Sums run in float64: 2^24 and then ones would stand still in float32."""
    gathered = SecondMoments(1)
    gathered.add(np.full((1, 1), 2.0**12, np.float32))
    for _ in range(64):
        gathered.add(np.ones((1, 1), np.float32))
    assert gathered.finish().second_moment[0] == np.float32((2.0**24 + 64) / 65)


def test_half_precision_inputs_do_not_overflow() -> None:
    """The square of an FP16 activation of 1,000 is beyond FP16."""
    gathered = SecondMoments(2)
    gathered.add(np.full((3, 2), 1000.0, np.float16))
    np.testing.assert_array_equal(gathered.finish().second_moment, [1e6, 1e6])


def test_without_being_asked_no_hessian_is_kept() -> None:
    """K^2 numbers are held only for a quantizer that reads them."""
    gathered = SecondMoments(4)
    gathered.add(np.ones((2, 4)))
    assert gathered.finish().hessian is None


@pytest.mark.parametrize("shape", [(4,), (3, 5), (2, 2, 4)])
def test_rows_of_another_width_are_refused(shape: tuple[int, ...]) -> None:
    """The message gives both widths."""
    with pytest.raises(ConfigError, match=r"expected \[T, 4\]"):
        SecondMoments(4).add(np.ones(shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_activation_names_its_channel(bad: float) -> None:
    """One NaN would spoil every scale without a trace."""
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = bad
    with pytest.raises(ConfigError, match="channel 2 of 4"):
        SecondMoments(4).add(rows)


def test_no_rows_is_no_statistic() -> None:
    """An empty calibration text is an error, not a division by zero."""
    with pytest.raises(ConfigError, match="calibration text is empty"):
        SecondMoments(4).finish()


@pytest.mark.parametrize(
    ("moments", "hessian", "message"),
    [
        (np.ones((2, 2), np.float32), None, "have shape"),
        (np.array([1.0, -1.0], np.float32), None, "negative"),
        (np.array([1.0, np.nan], np.float32), None, "NaN"),
        (np.ones(2, np.float32), np.ones((3, 3), np.float32), r"expected \(2, 2\)"),
        (np.ones(2, np.float32), np.full((2, 2), np.inf, np.float32), "Hessian holds NaN or infinite"),
    ],
)
def test_statistics_that_cannot_be_are_refused(
    moments: npt.NDArray[np.float32], hessian: npt.NDArray[np.float32] | None, message: str
) -> None:
    """Statistics from elsewhere are checked like gathered ones."""
    with pytest.raises(ConfigError, match=message):
        InputStatistics(second_moment=moments, hessian=hessian)
