"""Continue many prompts at once with a torch decoder. All rows stand at the same position, so nothing is padded.

Each row begins with its own prompt, which is fed token by token like the rest: a prompt costs what its length costs,
and a row with a short prompt begins to sample while its neighbour still reads. On CUDA the step is a captured graph,
one for each length of cache that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from edgeprec.export.distill_model import Decoder

__all__ = ["Row", "Sampler"]

_BUCKET_TOKENS = 64
_WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and how it goes on: at temperature ``hot`` before position ``hot_until``, then at ``temperature``."""

    prompt: tuple[int, ...]
    hot_until: int = 0
    hot: float = 1.0
    temperature: float = 0.0


class Sampler:
    """Owns the key/value cache of ``rows`` sequences of up to ``length`` tokens."""

    def __init__(self, decoder: Decoder, *, rows: int, length: int) -> None:
        config, device = decoder.config, decoder.ends.head.device
        self.rows, self.length = rows, -(-length // _BUCKET_TOKENS) * _BUCKET_TOKENS
        self._decoder = decoder
        self._position = torch.zeros(1, dtype=torch.long, device=device)
        self._tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        shape = (config.num_layers, rows, config.num_kv_heads, self.length, config.head_dim)
        self._keys = torch.zeros(shape, dtype=decoder.ends.head.dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        self._steps: dict[int, Callable[[], Tensor]] = {}

    @torch.no_grad()
    def run(self, rows: Sequence[Row], length: int, generator: torch.Generator) -> Tensor:
        """Return the prompts with their continuations, [len(rows), length] token ids on the decoder's device."""
        device = self._tokens.device
        tokens = torch.zeros(self.rows, length, dtype=torch.long, device=device)
        forced = torch.zeros(self.rows, dtype=torch.long, device=device)
        forced[: len(rows)] = torch.tensor([len(row.prompt) for row in rows], device=device)
        tokens[: len(rows)] = _prompts(rows, length).to(device)
        hot_until = _column(rows, self.rows, [row.hot_until for row in rows], device)
        hot = _column(rows, self.rows, [row.hot for row in rows], device)
        cool = _column(rows, self.rows, [row.temperature for row in rows], device)
        for position in range(length - 1):
            self._tokens.copy_(tokens[:, position : position + 1])
            self._position.fill_(position)
            logits = self._step(position)()
            temperature = torch.where(hot_until > position + 1, hot, cool)
            drawn = _draw(logits, temperature, generator)
            tokens[:, position + 1] = torch.where(forced > position + 1, tokens[:, position + 1], drawn)
        return tokens[: len(rows)]

    def _step(self, position: int) -> Callable[[], Tensor]:
        visible = (position // _BUCKET_TOKENS + 1) * _BUCKET_TOKENS
        if visible not in self._steps:
            self._steps[visible] = self._capture(visible) if self._tokens.is_cuda else lambda: self._forward(visible)
        return self._steps[visible]

    def _capture(self, visible: int) -> Callable[[], Tensor]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._forward(visible)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._forward(visible)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    def _forward(self, visible: int) -> Tensor:
        """Feed the current tokens and return logits [rows, V]; attention reads ``visible`` cached positions."""
        is_past = torch.arange(visible, device=self._tokens.device) <= self._position
        mask = torch.zeros(visible, dtype=self._keys.dtype, device=self._tokens.device)
        mask = mask.masked_fill(~is_past, -torch.inf)[None, None, None]  # [1, 1, 1, visible]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self._keys[layer].index_copy_(2, self._position, key)
            self._values[layer].index_copy_(2, self._position, value)
            keys, values = self._keys[layer, :, :, :visible], self._values[layer, :, :, :visible]
            grouped = query.reshape(len(query), keys.shape[1], -1, query.shape[-1])  # [B, H_kv, H / H_kv, d]
            rows = mask.expand(grouped.shape[0], grouped.shape[1], grouped.shape[2], visible)
            attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=rows)
            return attended.flatten(1, 2).unsqueeze(2)

        hidden = self._decoder.run(self._tokens, self._position, attend)
        return self._decoder.logits(hidden[:, 0])


def _prompts(rows: Sequence[Row], length: int) -> Tensor:
    filled = torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        filled[index, : len(row.prompt)] = torch.tensor(row.prompt[:length], dtype=torch.long)
    return filled


def _column(rows: Sequence[Row], size: int, values: Sequence[float], device: torch.device) -> Tensor:
    column = torch.zeros(size, dtype=torch.float32)
    column[: len(rows)] = torch.tensor(values, dtype=torch.float32)
    return column.to(device)


def _draw(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """Return argmax(logits + T Gumbel) [B]: a sample at temperature T, the argmax itself at 0."""
    noise = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).exponential_(generator=generator)
    scores = noise.log_().mul_(-temperature[:, None]).add_(logits)
    return scores.argmax(dim=-1)
