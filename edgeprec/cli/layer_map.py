"""Which layers ran in INT4 when a token was proposed, as blocks of a map with tokens across and layers upwards.

A token FP16 chose itself has none. A token a draft model proposed did not pass the target's layers in INT4 at all: its
block says how many layers of that model did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from edgeprec.runtime.reply import RoundRecord, TokenEvent, TokenSource

__all__ = ["LayerBlock", "layer_blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """Tokens [begin, end) whose rows [low, high) ran in INT4; row ``num_layers`` is the head."""

    begin: int
    end: int
    low: int
    high: int
    kind: str  # "int4", or "int4-model" for a draft model's layers
    title: str


def layer_blocks(
    events: Sequence[TokenEvent], rounds: Sequence[RoundRecord], *, num_layers: int
) -> Iterator[LayerBlock]:
    """Yield the blocks; neighbours in tokens and in layers are one."""
    records = {record.round: record for record in rounds}
    plans = [_gates(event, records) for event in events]
    for gates, run in groupby(range(len(events)), key=plans.__getitem__):
        tokens = list(run)
        if gates:
            yield from _blocks(tokens[0], tokens[-1] + 1, gates, num_layers)


def _gates(event: TokenEvent, records: Mapping[int, RoundRecord]) -> tuple[bool, ...]:
    """Return the plan that proposed a token; empty where FP16 or nothing with layers did."""
    record = records.get(event.round)
    if event.source is TokenSource.TARGET or record is None:
        return ()
    return record.draft_plan


def _blocks(begin: int, end: int, gates: Sequence[bool], num_layers: int) -> Iterator[LayerBlock]:
    which = f"token {begin}" if end == begin + 1 else f"tokens {begin} to {end - 1}"
    if len(gates) != num_layers + 1:
        count = sum(gates[:-1])
        title = f"{which}: proposed by the draft model, {count} of its {len(gates) - 1} layers in INT4"
        yield LayerBlock(begin=begin, end=end, low=0, high=num_layers + 1, kind="int4-model", title=title)
        return
    row = 0
    for is_int4, run in groupby(gates):
        height = len(list(run))
        if is_int4:
            layers = _name_rows(row, row + height, num_layers)
            title = f"{which}: {layers} in INT4"
            yield LayerBlock(begin=begin, end=end, low=row, high=row + height, kind="int4", title=title)
        row += height


def _name_rows(low: int, high: int, num_layers: int) -> str:
    """Return rows [low, high) in words; the last row is the head."""
    last = min(high, num_layers) - 1
    layers = f"layer {low}" if low == last else f"layers {low} to {last}"
    if high <= num_layers:
        return layers
    return "the head" if low == num_layers else f"{layers} and the head"
