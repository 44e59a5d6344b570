"""Embedding, norm, rotary embedding and attention: Triton against plain torch, and what no row may notice."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch

from edgeprec.errors import KernelError
from edgeprec.kernels import decoder, torch_decoder
from edgeprec.kernels.decoder_shapes import SPLIT_TOKENS, AttentionSpace, KvLayer, RotaryTables, Turning

attention_launch = pytest.importorskip("edgeprec.kernels.attention_launch")
decoder_launch = pytest.importorskip("edgeprec.kernels.decoder_launch")

EPS = 1e-5


class Heads(NamedTuple):
    """Heads of queries, heads of keys, width of one."""

    query: int
    kv: int
    width: int


LLAMA, SMOL, WIDE_GROUP = Heads(8, 2, 32), Heads(9, 3, 24), Heads(20, 1, 16)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return a seeded normal tensor on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tables(positions: int, half: int, device: str) -> RotaryTables:
    """Return cosine and sine of theta 10,000."""
    angles = torch.arange(positions)[:, None] * 10_000.0 ** (-torch.arange(half) / half)[None, :]
    return RotaryTables(angles.cos().to(device), angles.sin().to(device))


def make_cache(heads: Heads, device: str, *, sequences: int = 1, capacity: int = 400, filled: bool = True) -> KvLayer:
    """Return a cache of random entries, or of zeros."""
    shape = (sequences, heads.kv, capacity, heads.width)
    make: Any = randn if filled else lambda *shape, seed: torch.zeros(*shape)
    return KvLayer(*(make(*shape, seed=seed).half().to(device) for seed in (1, 2)))


def make_space(rows: int, heads: Heads, device: str, *, splits: int = 4) -> AttentionSpace:
    """Return a space full of NaN, in which no program has arrived."""
    shape = (rows, heads.query, splits)
    return AttentionSpace(
        torch.full((*shape, heads.width), math.nan, device=device),
        torch.full((*shape, 2), math.nan, device=device),
        torch.zeros(rows, heads.kv, dtype=torch.int32, device=device),
    )


def int32(values: list[int], device: str) -> torch.Tensor:
    """Return an index tensor as the kernels read it."""
    return torch.tensor(values, dtype=torch.int32, device=device)


def run_attention(
    query: torch.Tensor, positions: list[int], cache: KvLayer, heads: Heads, *, per_sequence: int, span: int = 400
) -> torch.Tensor:
    """Run the Triton kernels in a poisoned space of their own."""
    device = str(query.device)
    out, splits = torch.full_like(query, math.nan), -(-span // SPLIT_TOKENS)
    space = make_space(query.shape[0], heads, device, splits=splits)
    attention_launch.attend(
        query, int32(positions, device), cache, space, out, rows_per_sequence=per_sequence, span=span
    )
    assert not space.arrived.any(), "the next pass counts from 0"
    return out


def run_in_one(
    qkv: torch.Tensor,
    positions: list[int],
    cache: KvLayer,
    heads: Heads,
    *,
    per_sequence: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Run the kernel that turns, writes and attends, in a poisoned space of its own."""
    device, rows, capacity = str(qkv.device), qkv.shape[0], cache.keys.shape[2]
    out = torch.full((rows, heads.query, heads.width), math.nan, dtype=torch.float16, device=device)
    space = make_space(rows, heads, device, splits=-(-capacity // SPLIT_TOKENS))
    attention_launch.attend(
        qkv,
        int32(positions, device),
        cache,
        space,
        out,
        rows_per_sequence=per_sequence,
        span=capacity,
        turning=Turning(tables(capacity, heads.width // 2, device), norms, EPS),
    )
    assert not space.arrived.any(), "the next pass counts from 0"
    return out


def test_embedding_reads_rows_and_never_beyond(device: str) -> None:
    """Ids outside the vocabulary, which a row of NaN gives, read its ends."""
    table = randn(7, 1100).half().to(device)
    out = torch.full((4, 1100), math.nan, device=device)
    decoder_launch.embed(int32([3, 0, 9, -4], device), table, out)
    assert torch.equal(out, table[[3, 0, 6, 0]].float())


@pytest.mark.parametrize("width", [5, 64, 576])
def test_norm(device: str, width: int) -> None:
    """The root-mean-square norm in float32, rounded once."""
    x, weight = (randn(3, width) * 30).to(device), randn(width, seed=1).to(device)
    out, expected = torch.empty(3, width, dtype=torch.float16, device=device), torch.empty(3, width)
    decoder_launch.rms_norm(x, weight, out, eps=EPS)
    torch_decoder.rms_norm(x.cpu(), weight.cpu(), expected, eps=EPS)
    torch.testing.assert_close(out.cpu().float(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("heads", [LLAMA, SMOL])
def test_rotation_and_cache_write(device: str, heads: Heads, has_norm: bool) -> None:
    """Queries turn, keys and values land in the slots of their sequences, a row that is not there writes nothing."""
    positions, rows = [5, 6, 0, -1], 4
    qkv = randn(rows, (heads.query + 2 * heads.kv) * heads.width).half()
    norms = (randn(heads.width, seed=3), randn(heads.width, seed=4)) if has_norm else None
    results = []
    for place in (device, "cpu"):
        cache = make_cache(heads, place, sequences=2, capacity=9, filled=False)
        query = torch.empty(rows, heads.query, heads.width, dtype=torch.float16, device=place)
        rotate = decoder_launch.rotate if not results else torch_decoder.rotate
        moved = None if norms is None else (norms[0].to(place), norms[1].to(place))
        rotate(
            qkv.to(place),
            int32(positions, place),
            tables(9, heads.width // 2, place),
            moved,
            cache,
            query,
            rows_per_sequence=2,
            eps=EPS,
        )
        results.append([query.cpu().float(), *(part.cpu().float() for part in cache)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got[:3], expected[:3], rtol=2e-3, atol=2e-3)
    keys = results[0][1]
    written = keys.abs().sum(dim=(1, 3)) > 0  # [sequences, capacity]
    assert written.nonzero().tolist() == [[0, 5], [0, 6], [1, 0]]


@pytest.mark.parametrize("heads", [LLAMA, SMOL, WIDE_GROUP])
@pytest.mark.parametrize("positions", [[0, 1, 2], [126, 127, 128], [317, 318, 319]])
def test_attention(device: str, heads: Heads, positions: list[int]) -> None:
    """Rows that end before, at and after the edge of a split, for groups that fill a tile and such that do not."""
    query = randn(3, heads.query, heads.width).half().to(device)
    cache = make_cache(heads, device)
    out = run_attention(query, positions, cache, heads, per_sequence=3)
    expected = torch.empty(3, heads.query, heads.width)
    torch_decoder.attend(
        query.cpu(), int32(positions, "cpu"), KvLayer(*(p.cpu() for p in cache)), expected, rows_per_sequence=3
    )
    torch.testing.assert_close(out.cpu().float(), expected, rtol=4e-3, atol=2e-3)


@pytest.mark.parametrize("heads", [LLAMA, SMOL])
def test_attention_of_a_row_has_the_same_bits_in_any_company(device: str, heads: Heads) -> None:
    """Alone, at another place of a pass, with room for more splits, in a batch: the same bits.

    The interpreter's products are a BLAS's, whose rows depend on their place in the tile: there only rows that keep
    their place are compared.
    """
    rows, start = 7, 250
    query = randn(rows, heads.query, heads.width).half().to(device)
    cache = make_cache(heads, device, sequences=2)
    positions = list(range(start, start + rows))
    together = run_attention(query, positions, cache, heads, per_sequence=rows)
    step = 1 if device == "cuda" else 16 // (heads.query // heads.kv)
    for row in range(0, rows, step):
        alone = run_attention(query[row : row + 1], [start + row], cache, heads, per_sequence=1, span=start + row + 1)
        assert torch.equal(alone[0], together[row])
    swapped = KvLayer(*(part.flip(0).contiguous() for part in cache))
    batch = run_attention(query[[1, 0]], [-1, start], swapped, heads, per_sequence=1)
    assert torch.equal(batch[1], together[0])
    assert not batch[0].any()


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("heads", [LLAMA, SMOL, WIDE_GROUP])
@pytest.mark.parametrize(
    ("positions", "per_sequence"),
    [([0], 1), ([200], 1), ([125, 126, 127, 128, 129, 130], 6), ([5, -1, 131], 1), ([126, 127, 128, 300, 301, -1], 3)],
)
def test_one_kernel_does_what_three_do(
    device: str, heads: Heads, positions: list[int], per_sequence: int, has_norm: bool
) -> None:
    """New keys at the edge of a split, sequences of their own lengths, rows that are not there: cache and result."""
    rows = len(positions)
    qkv = randn(rows, (heads.query + 2 * heads.kv) * heads.width).half()
    norms = (randn(heads.width, seed=3), randn(heads.width, seed=4)) if has_norm else None
    sequences = rows // per_sequence
    expected_cache = make_cache(heads, "cpu", sequences=sequences)
    query, expected = (torch.empty(rows, heads.query, heads.width, dtype=torch.float16) for _ in range(2))
    at = int32(positions, "cpu")
    turning = {"rows_per_sequence": per_sequence, "eps": EPS}
    torch_decoder.rotate(qkv, at, tables(400, heads.width // 2, "cpu"), norms, expected_cache, query, **turning)
    torch_decoder.attend(query, at, expected_cache, expected, rows_per_sequence=per_sequence)
    cache = make_cache(heads, device, sequences=sequences)
    moved = None if norms is None else (norms[0].to(device), norms[1].to(device))
    out = run_in_one(qkv.to(device), positions, cache, heads, per_sequence=per_sequence, norms=moved)
    for got, wanted in zip((out, *cache), (expected, *expected_cache), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=6e-3, atol=4e-3)


@pytest.mark.parametrize("heads", [LLAMA, SMOL])
def test_one_kernel_gives_a_row_the_same_bits_in_any_company(device: str, heads: Heads) -> None:
    """One row after the other, or all at once over the edge of a split: the same cache and the same bits."""
    rows, start = 6, 125
    qkv = randn(rows, (heads.query + 2 * heads.kv) * heads.width).half().to(device)
    cache, other = make_cache(heads, device), make_cache(heads, device)
    together = run_in_one(qkv, list(range(start, start + rows)), cache, heads, per_sequence=rows)
    step = 1 if device == "cuda" else 16 // (heads.query // heads.kv)  # see the test of attention alone
    for row in range(rows):
        alone = run_in_one(qkv[row : row + 1], [start + row], other, heads, per_sequence=1)
        assert row % step or torch.equal(alone[0], together[row])
    assert all(torch.equal(one, two) for one, two in zip(cache, other, strict=True))


def test_turning_beforehand_gives_the_same_cache(device: str) -> None:
    """Long prompts turn their keys in a kernel of its own, tokens after them do not: one cache, the same bits."""
    qkv = randn(4, (LLAMA.query + 2 * LLAMA.kv) * LLAMA.width).half().to(device)
    cache, other = make_cache(LLAMA, device), make_cache(LLAMA, device)
    run_in_one(qkv, [7, 8, 9, 10], cache, LLAMA, per_sequence=4)
    query = torch.empty(4, LLAMA.query, LLAMA.width, dtype=torch.float16, device=device)
    at, turns = int32([7, 8, 9, 10], device), tables(400, LLAMA.width // 2, device)
    decoder_launch.rotate(qkv, at, turns, None, other, query, rows_per_sequence=4, eps=EPS)
    assert all(torch.equal(one, two) for one, two in zip(cache, other, strict=True))


def test_a_long_context_is_joined_with_the_same_bits(device: str) -> None:
    """Above so many splits a kernel of its own joins them; the room in a launch changes no bit."""
    heads = Heads(4, 2, 16)
    query = randn(2, heads.query, heads.width).half().to(device)
    cache = make_cache(heads, device, capacity=33 * SPLIT_TOKENS)
    short, long = (
        run_attention(query, [700, 701], cache, heads, per_sequence=2, span=span)
        for span in (6 * SPLIT_TOKENS, 33 * SPLIT_TOKENS)
    )
    assert torch.equal(short, long)


def test_what_lies_beyond_a_row_does_not_count(device: str) -> None:
    """Stale entries after a rollback change no bit."""
    query = randn(2, LLAMA.query, LLAMA.width).half().to(device)
    cache = make_cache(LLAMA, device)
    before = run_attention(query, [140, 141], cache, LLAMA, per_sequence=2)
    cache.keys[:, :, 142:] = 50.0
    cache.values[:, :, 142:] = -60000.0
    assert torch.equal(run_attention(query, [140, 141], cache, LLAMA, per_sequence=2), before)


def test_plain_attention_is_softmax(device: str) -> None:
    """The torch version against torch's own attention."""
    if device != "cpu":
        pytest.skip("needs to run once")
    query, cache = randn(4, 8, 32), make_cache(LLAMA, "cpu")
    out = torch.empty(4, 8, 32)
    torch_decoder.attend(query, int32([9, 10, 11, 12], "cpu"), cache, out, rows_per_sequence=4)
    keys, values = (part[:, :, :13].float() for part in cache)
    mask = torch.ones(4, 13, dtype=torch.bool).tril(diagonal=9)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(out, expected[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_door_refuses_shapes_that_do_not_belong_together() -> None:
    """One sentence with the shapes, before anything runs."""
    x, cache = torch.zeros(3, 8), make_cache(LLAMA, "cpu")
    with pytest.raises(KernelError, match=r"rms_norm got shapes \(3, 8\), \(7,\), \(3, 8\)"):
        decoder.rms_norm(x, torch.ones(7), eps=EPS, out=x.clone())
    with pytest.raises(KernelError, match="embed got shapes"):
        decoder.embed(int32([1, 2], "cpu"), x, out=torch.zeros(3, 8))
    query = torch.zeros(3, 8, 32)
    with pytest.raises(KernelError, match="rotate got shapes"):
        decoder.rotate(
            torch.zeros(3, 8),
            int32([0, 1, 2], "cpu"),
            tables=tables(9, 16, "cpu"),
            norms=None,
            cache=cache,
            rows_per_sequence=3,
            eps=EPS,
            query=query,
        )
    with pytest.raises(KernelError, match="attend got shapes"):
        decoder.attend(
            query, int32([0, 1, 2], "cpu"), cache=cache, space=None, rows_per_sequence=2, span=9, out=query.clone()
        )


def test_split_is_what_the_bits_rest_on() -> None:
    """A guard: another size changes every model's bits and needs a note in the change log."""
    assert SPLIT_TOKENS == 128
