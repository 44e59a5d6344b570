"""A draft is trained in the INT4 that export makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgeprec.export.distill_int4 import round_to_int4, see_int4
from edgeprec.export.quantizer import METHODS, Method, QuantizerSettings, SecondMoments, quantize
from edgeprec.kernels.reference import dequantize


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(8, 64, 32), (6, 70, 32), (4, 128, 64), (2, 5, 32)])
def test_the_values_are_those_of_round_to_nearest(outputs: int, inputs: int, group: int) -> None:
    """Blocks, scales, signs and the short last block are export's own."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(inputs))
    weight[0, :group] = 0.0
    settings = QuantizerSettings(method="rtn", group_size=group)
    expected = dequantize(quantize(np.ascontiguousarray(weight.T.numpy()), settings, None).weight)
    found = round_to_int4(weight, group_size=group).T.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_export_keeps_what_was_trained(method: Method) -> None:
    """Weights that lie on a grid already are found again, by every quantizer."""
    weight = round_to_int4(torch.randn(16, 64, generator=torch.Generator().manual_seed(1)), group_size=32)
    stored = np.ascontiguousarray(weight.half().T.numpy())
    moments = SecondMoments(64, with_hessian=True)
    mixed = np.random.default_rng(2).standard_normal((64, 64))
    moments.add(np.random.default_rng(3).standard_normal((500, 64)) @ mixed)
    settings = QuantizerSettings(method=method, group_size=32)
    error = dequantize(quantize(stored, settings, moments.finish()).weight) - stored.astype(np.float32)
    assert np.linalg.norm(error) < 2e-3 * np.linalg.norm(stored.astype(np.float32))


def test_gradients_pass_straight_through() -> None:
    """The master weight learns what the rounded one was told."""
    weight = torch.randn(4, 32, generator=torch.Generator().manual_seed(2), requires_grad=True)
    factors = torch.randn(4, 32, generator=torch.Generator().manual_seed(3))
    seen = see_int4(weight, group_size=32)
    torch.testing.assert_close(seen, round_to_int4(weight, group_size=32))
    (seen * factors).sum().backward()
    torch.testing.assert_close(weight.grad, factors)
