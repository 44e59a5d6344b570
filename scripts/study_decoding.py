"""Decoding with some layers in INT4 and nothing verified, as the fidelity study takes it apart.

own cache      each token's keys and values are those its INT4 pass wrote: the research's direct form
fresh cache    INT4 chooses the token, then FP16 rewrites its keys and values before the next one is chosen

A flip is a token INT4 chooses that FP16 would not have chosen after the same text. Flips are counted on FP16's reply,
so each is judged in the same context whatever came before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine import Engine

__all__ = ["count_flips", "decode", "expected_prefix", "read_prompt"]


def read_prompt(engine: Engine, prompt: Sequence[int]) -> int:
    """Run the prompt in FP16 and return the token FP16 chooses after it."""
    fp16 = Plan.uniform(Precision.FP16, num_layers=engine.info.num_layers)
    logits = None
    for position in range(0, len(prompt), engine.info.max_rows):
        rows = prompt[position : position + engine.info.max_rows]
        logits = engine.forward(rows, position=position, plan=fp16).logits
    assert logits is not None, "a prompt has at least one token"
    return int(logits[-1].argmax())


def decode(engine: Engine, prompt: Sequence[int], *, count: int, plan: Plan, rewrites_cache: bool) -> list[int]:
    """Return ``count`` new tokens, greedy; the first is FP16's, the others are chosen by ``plan``."""
    fp16 = Plan.uniform(Precision.FP16, num_layers=engine.info.num_layers)
    tokens = [read_prompt(engine, prompt)]
    while len(tokens) < count:
        position = len(prompt) + len(tokens) - 1
        last = tokens[-1:]
        tokens.append(int(engine.forward(last, position=position, plan=plan).logits[-1].argmax()))
        if rewrites_cache:
            engine.forward(last, position=position, plan=fp16)
    return tokens


def count_flips(
    engine: Engine, prompt: Sequence[int], reply: Sequence[int], *, plan: Plan, rewrites_cache: bool
) -> int:
    """Return the flips after each token of ``reply`` but the last; it is FP16's own text."""
    fp16 = Plan.uniform(Precision.FP16, num_layers=engine.info.num_layers)
    read_prompt(engine, prompt)
    flips = 0
    for index, (token, wanted) in enumerate(pairwise(reply)):
        position = len(prompt) + index
        flips += int(engine.forward([token], position=position, plan=plan).logits[-1].argmax()) != wanted
        if rewrites_cache:
            engine.forward([token], position=position, plan=fp16)
    return flips


def expected_prefix(flip_rate: float, count: int) -> float:
    """Return how many of ``count`` tokens agree before the first difference, were flips independent.

    The first token is FP16's, each later one agrees with probability 1 - f: 1 + (1 - f) + ... + (1 - f)^(count - 1).
    """
    return float(sum((1.0 - flip_rate) ** index for index in range(count)))
