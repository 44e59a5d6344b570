"""Counting layer passes and the bits they read, by hand."""

from __future__ import annotations

import pytest

from edgeprec.architecture import ModelConfig
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.passes import PassCounter, WeightBits

BITS = WeightBits(weights=(100, 100, 60), int4_bits=4.5)
FP16 = Plan.uniform(Precision.FP16, num_layers=2)
INT4 = Plan.uniform(Precision.INT4, num_layers=2)
MIXED = Plan((True, False, True))


@pytest.mark.parametrize(
    ("plan", "rows", "int4_passes", "all_passes", "bits_read"),
    [
        (FP16, 1, 0, 3, 260 * 16.0),
        (FP16, 5, 0, 15, 260 * 16.0),
        (INT4, 1, 3, 3, 260 * 4.5),
        (INT4, 4, 12, 12, 260 * 4.5),
        (MIXED, 2, 4, 6, 160 * 4.5 + 100 * 16.0),
    ],
)
def test_rows_count_for_the_share_and_passes_for_the_bits(
    plan: Plan, rows: int, int4_passes: int, all_passes: int, bits_read: float
) -> None:
    """More rows are more layer passes, but weights are read once a pass; the head is one of the gates."""
    counter = PassCounter(BITS)
    counter.add(plan, rows=rows)
    assert (counter.int4_passes, counter.all_passes) == (int4_passes, all_passes)
    assert (counter.bits_read, counter.weights_read) == (pytest.approx(bits_read), 260.0)


def test_passes_add_up() -> None:
    """Counts of several passes are their sum, whatever the order."""
    counter, other = PassCounter(BITS), PassCounter(BITS)
    asked = [(FP16, 3), (INT4, 1), (INT4, 1), (MIXED, 2)]
    for plan, rows in asked:
        counter.add(plan, rows=rows)
    for plan, rows in reversed(asked):
        other.add(plan, rows=rows)
    assert counter.int4_passes == other.int4_passes == 0 + 3 + 3 + 4
    assert counter.all_passes == other.all_passes == 9 + 3 + 3 + 6
    assert counter.bits_read == pytest.approx(other.bits_read)
    assert counter.weights_read == 4 * 260.0


def test_many_passes_alike_are_counted_at_once() -> None:
    """A batch counts rounds first and passes at its end, with the same sums."""
    plan = Plan((True, False, True))
    bits = WeightBits(weights=(100, 100, 60), int4_bits=4.5)
    one_by_one, at_once = PassCounter(bits), PassCounter(bits)
    for _ in range(7):
        one_by_one.add(plan, rows=3)
    at_once.add(plan, rows=3, times=7)
    assert at_once == one_by_one


def test_weights_of_a_model() -> None:
    """Each gate stands for its layer's linears, the last for the head, tied or not."""
    config = ModelConfig(
        family="llama",
        vocab_size=50,
        hidden_size=16,
        intermediate_size=40,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_positions=64,
        tied_embeddings=True,
    )
    layer = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 40  # q, k and v, o, gate and up and down
    assert WeightBits.of(config, int4_bits=4.5).weights == (layer, layer, 16 * 50)
