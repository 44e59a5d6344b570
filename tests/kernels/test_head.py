"""The fused head pass against the numpy reference, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgeprec.errors import KernelError
from edgeprec.kernels import reference

pytest.importorskip("triton")
from edgeprec.kernels.head import head_statistics


def random_logits(rows: int, vocabulary: int, *, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Return seeded normal logits in float32."""
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 2), (3, 2048), (2, 2049), (1, 9001)])
def test_agrees_with_the_reference(device: str, rows: int, vocabulary: int, scale: float) -> None:
    """Argmax exactly, margin and entropy to float32 rounding; flat and peaked; tails of a block."""
    logits = random_logits(rows, vocabulary, scale=scale)
    result, expected = head_statistics(logits.to(device)), reference.head_statistics(logits.numpy())
    np.testing.assert_array_equal(result.argmax.cpu().numpy(), expected.argmax)
    np.testing.assert_allclose(result.margin.cpu().numpy(), expected.margin, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.entropy_bits.cpu().numpy(), expected.entropy_bits, rtol=2e-5, atol=1e-5)


def test_the_lowest_index_of_a_tie_wins(device: str) -> None:
    """Within a block and across blocks; the margin of a tie is 0."""
    logits = torch.zeros(2, 5000)
    logits[0, [7, 9, 4500]] = 3.0
    logits[1, [3000, 4999]] = 2.0
    result = head_statistics(logits.to(device))
    assert result.argmax.tolist() == [7, 3000]
    assert result.margin.tolist() == [0.0, 0.0]


def test_ruled_out_tokens_count_for_nothing(device: str) -> None:
    """-inf in whole blocks and in parts of one."""
    logits = random_logits(1, 6000)
    logits[:, 100:5990] = -torch.inf
    result, expected = head_statistics(logits.to(device)), reference.head_statistics(logits.numpy())
    assert result.argmax.item() == expected.argmax[0]
    np.testing.assert_allclose(result.entropy_bits.cpu().numpy(), expected.entropy_bits, rtol=2e-5)


def test_certain_and_uniform(device: str) -> None:
    """One possible token has 0 bits, 4096 equal ones have 12."""
    logits = torch.zeros(2, 4096)
    logits[0, 1:] = -torch.inf
    result = head_statistics(logits.to(device))
    assert result.entropy_bits[0].item() == 0.0
    assert result.margin[0].item() == float("inf")
    assert result.entropy_bits[1].item() == pytest.approx(12.0, abs=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy has its own words for what is tested
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_with_any_nan_has_no_argmax(device: str, dtype: torch.dtype, bad: float) -> None:
    """Where the reference refuses a row, its argmax is V; the rows beside it keep every bit.

    One NaN in the first block, among ruled-out tokens, at the end of the last one, beside the largest value, a whole
    block, and all of a row. A GPU's maximum passes NaN over, and so does that of Triton's interpreter (``np.nanmax``):
    a kernel that looks at maxima alone fails here on either.
    """
    vocabulary = 5000
    clean = random_logits(7, vocabulary).to(dtype)
    spoilt = clean.clone()
    spoilt[0, 3] = bad
    spoilt[1, 2048:4096] = -torch.inf
    spoilt[1, 2500] = bad
    spoilt[2, vocabulary - 1] = bad
    spoilt[3, 100], spoilt[3, 101] = 40.0, bad
    spoilt[4, 2048:4096] = bad
    spoilt[5] = bad
    assert head_statistics(spoilt.to(device)).argmax.tolist() == [*[vocabulary] * 6, clean[6].float().argmax().item()]
    for row in range(6):
        with pytest.raises(KernelError, match="NaN"):
            reference.head_statistics(spoilt[row : row + 1].float().numpy())
    for alone, together in zip(head_statistics(clean[6:].to(device)), head_statistics(spoilt.to(device)), strict=True):
        assert torch.equal(alone, together[6:])


def test_half_precision_logits_with_rows_apart(device: str) -> None:
    """fp16 logits are read as they are; rows may lie in a wider buffer."""
    wide = random_logits(3, 3000).half()
    result = head_statistics(wide.to(device)[:, :2900])
    expected = reference.head_statistics(wide[:, :2900].numpy())
    np.testing.assert_array_equal(result.argmax.cpu().numpy(), expected.argmax)
    np.testing.assert_allclose(result.entropy_bits.cpu().numpy(), expected.entropy_bits, rtol=2e-5)


def test_refusals(device: str) -> None:
    """One logit has no margin; columns must be contiguous."""
    with pytest.raises(KernelError, match="V of 2 or more"):
        head_statistics(torch.zeros(1, 1, device=device))
    with pytest.raises(KernelError, match="expected contiguous rows"):
        head_statistics(torch.zeros(8, 4, device=device).t())
