"""The door to what a decoder layer does between its linears: Triton on a GPU, plain torch elsewhere.

Positions and tokens are int32 on the device and -1 marks a row that is not there, so one captured graph serves every
text. Row m of a pass belongs to sequence m // rows_per_sequence. No row's bits depend on another row.
"""

from __future__ import annotations

import torch

from edgeprec.errors import KernelError
from edgeprec.kernels import torch_decoder
from edgeprec.kernels.decoder_shapes import SPLIT_TOKENS, AttentionSpace, KvLayer, RotaryTables, Turning
from edgeprec.kernels.dispatch import kernel_backend

__all__ = ["attend", "embed", "rms_norm", "rotate", "rotate_and_attend"]


def embed(tokens: torch.Tensor, table: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Fill out float32 [M, D] with rows ``tokens`` int32 [M] of table [V, D], contiguous.

    Raises:
        KernelError: the shapes do not belong together.
    """
    _require(tokens.ndim == 1 and out.shape == (tokens.numel(), table.shape[1]), "embed", tokens, table, out)
    if _has_triton(out):
        from edgeprec.kernels import decoder_launch

        decoder_launch.embed(tokens, table, out)
    else:
        torch_decoder.embed(tokens, table, out)
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, out: torch.Tensor) -> torch.Tensor:
    """Fill out [M, D] with x / sqrt(mean x^2 + eps) * weight for x [M, D] and weight float32 [D], all contiguous.

    Raises:
        KernelError: the shapes do not belong together.
    """
    _require(x.shape == out.shape and weight.shape == x.shape[1:], "rms_norm", x, weight, out)
    if _has_triton(x):
        from edgeprec.kernels import decoder_launch

        decoder_launch.rms_norm(x, weight, out, eps=eps)
    else:
        torch_decoder.rms_norm(x, weight, out, eps=eps)
    return out


def rotate(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    *,
    tables: RotaryTables,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    cache: KvLayer,
    rows_per_sequence: int,
    eps: float,
    query: torch.Tensor,
) -> torch.Tensor:
    """Fill query [M, H, d] with turned queries, and the cache with turned keys and plain values.

    qkv [M, (H + 2 H_kv) d] holds heads q | k | v; ``norms`` are float32 [d] for queries and keys, applied before
    turning, None where the model has none. Element i of a head turns with element d / 2 + i.

    Raises:
        KernelError: the shapes do not belong together.
    """
    rows, heads, width = query.shape
    wanted = (rows, (heads + 2 * cache.keys.shape[1]) * width)
    is_whole = positions.shape == (rows,) and rows % rows_per_sequence == 0
    _require(qkv.shape == wanted and is_whole and cache.keys.shape[3] == width, "rotate", qkv, positions, query)
    if _has_triton(qkv):
        from edgeprec.kernels import decoder_launch as module

        module.rotate(qkv, positions, tables, norms, cache, query, rows_per_sequence=rows_per_sequence, eps=eps)
    else:
        torch_decoder.rotate(qkv, positions, tables, norms, cache, query, rows_per_sequence=rows_per_sequence, eps=eps)
    return query


def attend(
    query: torch.Tensor,
    positions: torch.Tensor,
    *,
    cache: KvLayer,
    space: AttentionSpace | None,
    rows_per_sequence: int,
    span: int,
    out: torch.Tensor,
) -> torch.Tensor:
    """Fill out [M, H, d]: row m attends to slots 0 .. positions[m] of its sequence.

    ``span`` bounds what any row sees; it sizes the launch and changes no bit. ``space`` is needed on a GPU only.

    Raises:
        KernelError: the shapes do not belong together, or the space is too small.
    """
    rows, heads, width = query.shape
    is_grouped = heads % cache.keys.shape[1] == 0 and rows % rows_per_sequence == 0
    _require(out.shape == query.shape and is_grouped and cache.keys.shape[3] == width, "attend", query, positions, out)
    if not _has_triton(query):
        torch_decoder.attend(query, positions, cache, out, rows_per_sequence=rows_per_sequence)
        return out
    space = _require_room(space, rows=rows, span=span)
    from edgeprec.kernels import attention_launch

    attention_launch.attend(query, positions, cache, space, out, rows_per_sequence=rows_per_sequence, span=span)
    return out


def rotate_and_attend(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    *,
    tables: RotaryTables,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    cache: KvLayer,
    space: AttentionSpace | None,
    rows_per_sequence: int,
    span: int,
    eps: float,
    query: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Do what ``rotate`` and then ``attend`` do, in one kernel where a sequence has few rows; ``query`` is scratch.

    Raises:
        KernelError: the shapes do not belong together, or the space is too small.
    """
    if space is not None and _has_triton(qkv):
        from edgeprec.kernels import attention_launch

        if rows_per_sequence <= attention_launch.MAX_TURNED_ROWS:
            _require_room(space, rows=out.shape[0], span=span)
            rows, heads, width = out.shape
            wanted = (rows, (heads + 2 * cache.keys.shape[1]) * width)
            is_whole = positions.shape == (rows,) and rows % rows_per_sequence == 0
            is_grouped = heads % cache.keys.shape[1] == 0 and cache.keys.shape[3] == width
            _require(qkv.shape == wanted and is_whole and is_grouped, "rotate_and_attend", qkv, positions, out)
            turning = Turning(tables, norms, eps)
            attention_launch.attend(
                qkv, positions, cache, space, out, rows_per_sequence=rows_per_sequence, span=span, turning=turning
            )
            return out
    rotate(
        qkv,
        positions,
        tables=tables,
        norms=norms,
        cache=cache,
        rows_per_sequence=rows_per_sequence,
        eps=eps,
        query=query,
    )
    return attend(query, positions, cache=cache, space=space, rows_per_sequence=rows_per_sequence, span=span, out=out)


def _require_room(space: AttentionSpace | None, *, rows: int, span: int) -> AttentionSpace:
    if space is None or space.parts.shape[0] < rows or space.splits * SPLIT_TOKENS < span:
        found = None if space is None else tuple(space.parts.shape)
        raise KernelError(f"attend got space {found} for {rows} rows of {span} keys, expected room for all of them")
    return space


def _has_triton(tensor: torch.Tensor) -> bool:
    return kernel_backend(tensor.device).name == "triton"


def _require(is_met: bool, name: str, *tensors: torch.Tensor) -> None:
    if not is_met:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise KernelError(f"{name} got shapes {shapes}, expected ones that belong together: see its docstring")
