"""Whole rounds of a batch on the device: K draft steps and one verifying pass in one CUDA graph, one copy each way.

What is drafted goes from the drafter's statistics into the target's inputs on the device. Inputs and numbers have
buffers of their own here, since those of an engine serve one pass at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from edgeprec.errors import EngineError
from edgeprec.runtime.batch_engine import MAX_BATCH_DRAFT, Ids, RoundFacts, RoundWork
from edgeprec.runtime.engine_torch import TorchEngine, as_engine_error
from edgeprec.runtime.torch_model import PassShape, TorchModel

__all__ = ["TorchRounds"]

_INPUTS = 2 * (MAX_BATCH_DRAFT + 1)  # a slot: rows of the drafter, 2 and K - 1, and K + 1 of the target
_OUTPUTS = 2 * MAX_BATCH_DRAFT + 1


class _RoundKey(NamedTuple):
    """What distinguishes one kind of round from another."""

    serial: int  # whose buffers
    slots: int
    first_rows: int
    cap: int
    draft_gates: tuple[bool, ...]
    gates: tuple[bool, ...]
    span: int


class TorchRounds:
    """Rounds of ``target``, drafted by ``drafter``: another engine on the same device, the target itself, or nobody.

    A captured round knows the buffers it was captured with: ``serial`` tells the rounds of one engine apart, and they
    live as long as its graphs.
    """

    def __init__(self, target: TorchEngine, drafter: TorchEngine | None, *, vocabulary: int, serial: int = 0) -> None:
        device = target.model.buffers.statistics.device
        self._target, self._drafter = target, drafter
        self._vocabulary, self._serial = vocabulary, serial
        self._is_gpu = device.type == "cuda"
        inputs, outputs = ((2, _INPUTS * target.sequences), (3, _OUTPUTS * target.sequences))
        self._host_inputs = torch.zeros(inputs, dtype=torch.int32, pin_memory=self._is_gpu)
        self._host_outputs = torch.zeros(outputs, dtype=torch.int32, pin_memory=self._is_gpu)
        self._inputs = torch.zeros(inputs, dtype=torch.int32, device=device) if self._is_gpu else self._host_inputs
        self._outputs = torch.zeros(outputs, dtype=torch.int32, device=device) if self._is_gpu else self._host_outputs
        make_event: Any = torch.cuda.Event
        self._is_done = make_event() if self._is_gpu else None
        self._work: RoundWork | None = None

    def launch(self, work: RoundWork) -> None:
        """Bring the inputs to the device and start the round.

        Raises:
            EngineError: the device failed.
        """
        key, model = self._key(work), self._target.model
        drafter = None if self._drafter is None or not work.cap else self._drafter.model
        self._target.begin_pass()
        if self._drafter is not None:
            self._drafter.begin_pass()
        with as_engine_error(work.longest - 1):
            self._put(work)
            self._target.graphs.run(key, lambda: self._round(model, drafter, key))
            if self._is_done is not None:
                self._host_outputs.copy_(self._outputs, non_blocking=True)
                self._is_done.record()
        self._work = work

    def read(self) -> RoundFacts:
        """Wait for the round; see the protocol."""
        work, self._work = self._work, None
        if work is None:
            raise EngineError("a round was read that was not launched: launch one first")
        if self._is_done is not None:
            with as_engine_error(work.longest - 1):
                self._is_done.synchronize()
        numbers = self._host_outputs.numpy()
        drafted, slots = work.cap * work.slots, work.slots
        ends = drafted + slots * (work.cap + 1)
        drafts = numbers[:, :drafted].reshape(3, work.cap, slots).transpose(0, 2, 1)
        verified = numbers[:, drafted:ends].reshape(3, slots, work.cap + 1)
        facts = RoundFacts(
            drafted=drafts[0].copy(),
            draft_margins=drafts[1].copy(order="C").view(np.float32),
            draft_entropy_bits=drafts[2].copy(order="C").view(np.float32),
            tokens=verified[0].copy(),
            entropy_bits=verified[2].copy().view(np.float32),
        )
        self._check(work, facts)
        return facts

    def _key(self, work: RoundWork) -> _RoundKey:
        gates = () if work.draft_plan is None else work.draft_plan.gates
        span = self._target.span_of(work.longest)
        return _RoundKey(self._serial, work.slots, work.first.shape[1], work.cap, gates, work.plan.gates, span)

    def _put(self, work: RoundWork) -> None:
        """Lay out the drafter's rows, then the target's; what it drafts is filled in on the device."""
        inputs = self._host_inputs.numpy()
        at = 0
        if work.cap:
            inputs[0, : work.first.size] = work.first.ravel()
            for step in work.draft_positions():
                inputs[1, at : at + step.size] = step.ravel()
                at += step.size
        verified = np.zeros((work.slots, work.cap + 1), np.int32)
        verified[:, 0] = work.first[:, -1]
        inputs[0, at : at + verified.size] = verified.ravel()
        inputs[1, at : at + verified.size] = work.positions().ravel()
        if self._is_gpu:
            self._inputs.copy_(self._host_inputs, non_blocking=True)

    def _round(self, target: TorchModel, drafter: TorchModel | None, key: _RoundKey) -> None:
        at = 0
        if drafter is not None:
            at = self._draft(drafter, key)
        rows = key.slots * (key.cap + 1)
        tokens, positions = (part[at : at + rows] for part in self._inputs)
        if drafter is not None:
            drafted = self._outputs[0, : key.slots * key.cap].view(key.cap, key.slots)
            tokens.view(key.slots, key.cap + 1)[:, 1:].copy_(drafted.t())
        hidden = target.run(
            tokens, positions, shape=PassShape(rows_per_sequence=key.cap + 1, span=key.span), gates=key.gates
        )
        logits = target.logits(hidden, is_int4=key.gates[-1])
        self._with_outputs(target).statistics(logits, first=key.slots * key.cap)

    def _draft(self, model: TorchModel, key: _RoundKey) -> int:
        """Run the draft steps and return how many input slots they took."""
        counted = self._with_outputs(model)
        rows = key.slots * key.first_rows
        tokens, at = self._inputs[0, :rows], 0
        for step in range(key.cap):
            each = key.first_rows if step == 0 else 1
            positions = self._inputs[1, at : at + tokens.numel()]
            at += tokens.numel()
            shape = PassShape(rows_per_sequence=each, span=key.span)
            hidden = model.run(tokens, positions, shape=shape, gates=key.draft_gates)
            if each > 1:
                hidden = hidden.view(key.slots, each, -1)[:, -1].contiguous()
            logits = model.logits(hidden, is_int4=key.draft_gates[-1])
            tokens = counted.statistics(logits, first=step * key.slots, vocabulary=self._vocabulary)
        return at

    def _with_outputs(self, model: TorchModel) -> TorchModel:
        return replace(model, buffers=replace(model.buffers, statistics=self._outputs))

    def _check(self, work: RoundWork, facts: RoundFacts) -> None:
        """Refuse a row of NaN, whose largest id the kernel writes as one beyond those that it looked at."""
        is_verified = work.positions() >= 0
        _refuse_nan("a batch", facts.tokens[is_verified], facts.entropy_bits[is_verified], self._target.info.vocab_size)
        if self._drafter is not None and work.cap:
            is_drafted = np.arange(work.cap) < work.drafts[:, None]
            width = min(self._vocabulary, self._drafter.info.vocab_size)
            _refuse_nan("a batch's drafts", facts.drafted[is_drafted], facts.draft_entropy_bits[is_drafted], width)


def _refuse_nan(whose: str, tokens: Ids, entropy_bits: Any, width: int) -> None:
    if (tokens >= width).any() or not np.isfinite(entropy_bits).all():
        raise EngineError(
            f"a row of the logits of {whose} holds NaN, expected numbers: the engine or the weights are broken, run "
            "edgeprec verify on the bundle"
        )
