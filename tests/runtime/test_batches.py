"""A list of prompts on the torch engine: every text is the one its prompt has alone, whatever runs beside it."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgeprec
from edgeprec.config import DraftingConfig, GenerationConfig, Mode, SamplingConfig
from edgeprec.runtime.batch_caps import CapPolicy
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.reply import FinishReason
from edgeprec.runtime.session import Session

texts = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("batch_texts.py"))))
PROMPTS, COMMON, same = texts.PROMPTS, texts.COMMON, texts.same
LIMITS = [5, 30, 17, 1, 23]


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "fp16"},
        {"mode": "int4"},
        {"mode": "gated"},
        {"mode": "gated", "middle_gears": 2, "theta_low_bits": 7.8, "theta_high_bits": 7.9, "hold_tokens": 0},
        {"drafter": "self", "draft_length": 1},
        {"drafter": "self", "draft_length": 4},
        {"drafter": "self", "draft_length": 3, "gated_layers": 2},
        {"drafter": "self"},
        {"drafter": "model", "draft_length": 3},
        {"drafter": "model", "draft_length": 7},
        {"drafter": "model"},
        {"draft_length": 0},
        {"drafter": "self", "temperature": 0.9, "seed": 5},
        {"drafter": "model", "draft_length": 3, "temperature": 1.1, "top_k": 20, "seed": 6},
        {"drafter": "self", "draft_length": 2, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_every_text_is_the_one_it_has_alone(sessions: tuple[Session, Session], settings: dict[str, Any]) -> None:
    """Five lengths of prompts that end at five times, in every mode, whoever drafts."""
    one, five = sessions
    configs = [edgeprec.GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in LIMITS]
    alone = [one.generate(prompt, config, **settings) for prompt, config in zip(PROMPTS, configs, strict=True)]
    batch = five.generate(PROMPTS, configs, **settings)
    same(batch, alone)
    assert batch.stats.at_once == 5
    assert batch.stats.new_tokens == sum(LIMITS)
    assert not any("one after another" in note for note in batch.stats.fallbacks)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_batches_of_any_size(sessions: tuple[Session, Session], count: int) -> None:
    """Sizes that are padded, and those that are not."""
    one, five = sessions
    settings: dict[str, Any] = {"drafter": "model", "draft_length": 2, **COMMON}
    alone = [one.generate(prompt, **settings) for prompt in PROMPTS[:count]]
    same(five.generate(PROMPTS[:count], **settings), alone)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "fp16"},
        {"mode": "gated"},
        {"drafter": "self", "draft_length": 2},
        {"drafter": "model", "draft_length": 3},
        {"drafter": "model"},
        {"drafter": "self", "temperature": 0.9, "seed": 5},
    ],
    ids=str,
)
def test_prompts_join_when_others_end(sessions: tuple[Session, Session], settings: dict[str, Any]) -> None:
    """Twelve prompts of several lengths in five slots: each text is the one it has alone, and no slot stays empty."""
    one, five = sessions
    prompts = [*PROMPTS, "x y z", "The end", *PROMPTS]
    limits = [*LIMITS, 9, 1, *LIMITS]
    configs = [edgeprec.GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in limits]
    alone = [one.generate(prompt, config, **settings) for prompt, config in zip(prompts, configs, strict=True)]
    batch = five.generate(prompts, configs, **settings)
    same(batch, alone)
    assert (batch.stats.sequences, batch.stats.at_once) == (12, 5)
    assert batch.stats.new_tokens == sum(limits)
    if settings.get("mode") != "gated":  # whose passes are of those in one gear
        assert all(found.sequences == 5 for found in batch.rounds[:5])


def test_prompts_join_a_full_batch_only(sessions: tuple[Session, Session]) -> None:
    """``at_once`` below the number of slots holds the others back, and a text ended by a stop string lets one in."""
    one, five = sessions
    plain = [one.generate(prompt, mode="fp16", **COMMON) for prompt in PROMPTS]
    stops = [reply.text[at : at + 2] for reply, at in zip(plain, (3, 8, 14, 1, 20), strict=True)]
    configs = [GenerationConfig(max_new_tokens=30, stop=(stop,), mode=Mode.FP16) for stop in stops]
    alone = [one.generate(prompt, config) for prompt, config in zip(PROMPTS, configs, strict=True)]
    ids = [tuple(one.tokenizer.encode(prompt)) for prompt in PROMPTS]
    batch = five.batches.run(ids, configs, at_once=2)
    same(batch, alone)
    assert max(found.sequences for found in batch.rounds) == 2
    assert batch.stats.at_once == 2


def test_batch_that_is_over_leaves_out_who_waited(sessions: tuple[Session, Session]) -> None:
    """Ended between two rounds, it has the replies of those that had begun; their time is all of its time."""
    _, five = sessions
    generator = replace(five.batches, is_over=lambda begun: len(begun) > 6)
    ids = [(5 + index, 6) for index in range(20)]
    limits = (4, 30, 30, 30, 30, 3, 3)
    configs = [
        GenerationConfig(max_new_tokens=limit, ignore_eos=True, mode=Mode.FP16) for limit in (*limits, *[9] * 13)
    ]
    batch = generator.run(ids, configs)
    assert [len(reply.tokens) for reply in batch] == [4, 6, 6, 6, 6, 3, 1]
    assert batch[6].finish_reason is FinishReason.CANCELLED
    assert batch[0].finish_reason is FinishReason.LENGTH
    rounds_s = sum(found.seconds for found in batch.rounds)
    assert batch.stats.decode_s == pytest.approx(rounds_s, rel=0.3)


def test_stop_strings_and_ends_of_text(sessions: tuple[Session, Session]) -> None:
    """Each text ends where it would alone: at a stop string, at the end token, at its limit."""
    one, five = sessions
    plain = [one.generate(prompt, mode="fp16", **COMMON) for prompt in PROMPTS]
    stops = [reply.text[at : at + 2] for reply, at in zip(plain, (3, 8, 14, 1, 20), strict=True)]
    configs = [GenerationConfig(max_new_tokens=30, stop=(stop,)) for stop in stops]
    for drafter in ("self", "model"):
        alone = [one.generate(p, c, drafter=drafter, draft_length=3) for p, c in zip(PROMPTS, configs, strict=True)]
        same(five.generate(PROMPTS, configs, drafter=drafter, draft_length=3), alone)
        assert any(reply.finish_reason is FinishReason.STOP for reply in alone)


def test_context_ends_a_text(sessions: tuple[Session, Session]) -> None:
    """A prompt near the end of the context gets what room there is; its neighbours are not held up."""
    one, five = sessions
    long = [int(token) for token in range(3, 103)]
    prompts = [long, [5, 6, 7], long[:109]]
    for settings in ({"drafter": "self", "draft_length": 5}, {"drafter": "model", "draft_length": 5}):
        alone = [one.generate(prompt, max_new_tokens=60, ignore_eos=True, **settings) for prompt in prompts]
        batch = five.generate(prompts, max_new_tokens=60, ignore_eos=True, **settings)
        same(batch, alone)
        assert len(batch[0].tokens) == 10
        assert len(batch[1].tokens) == 60


@pytest.mark.parametrize("drafter", ["self", "model"])
@pytest.mark.parametrize("chosen", [{"temperature": 0.8, "seed": 3}, {"repetition_penalty": 1.3}], ids=str)
def test_context_ends_a_sampled_text(sessions: tuple[Session, Session], drafter: str, chosen: dict[str, Any]) -> None:
    """A text with no room to draft stands beside one that drafts past the context's end as counted from there."""
    one, five = sessions
    long = [int(token) for token in range(3, 111)]
    prompts = [long[:106], [5, 6, 7], long[:107], long]
    settings: dict[str, Any] = {
        "drafter": drafter,
        "draft_length": 7,
        "max_new_tokens": 24,
        "ignore_eos": True,
        **chosen,
    }
    alone = [one.generate(prompt, **settings) for prompt in prompts]
    same(five.generate(prompts, **settings), alone)
    assert [len(reply.tokens) for reply in alone] == [4, 24, 3, 2]


def test_configurations_of_each_prompt(sessions: tuple[Session, Session]) -> None:
    """Modes, seeds and draft lengths may differ from prompt to prompt; gears run as passes of their own."""
    one, five = sessions
    sampled = SamplingConfig(temperature=0.8, seed=1)
    base = GenerationConfig(max_new_tokens=20, ignore_eos=True, drafting=DraftingConfig(drafter="self", draft_length=3))
    configs = [
        base,
        replace(base, mode="int4"),
        replace(base, sampling=sampled),
        replace(base, sampling=replace(sampled, seed=2)),
        replace(base, mode="gated"),
    ]
    alone = [one.generate("The same prompt", config) for config in configs]
    batch = five.generate(["The same prompt"] * 5, configs)
    same(batch, alone)
    assert batch[2].tokens != batch[3].tokens
    assert [reply.stats.seed for reply in batch] == [None, None, 1, 2, None]


def test_who_decodes_plainly_counts_for_the_cap(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy hears of everyone in the round: those that draft as it says, and how many wait for them."""
    heard: list[tuple[int, int]] = []
    real = CapPolicy.cap

    def cap(policy: CapPolicy, slots: int, members: Sequence[int], *, others: int = 0, **behind: Any) -> int:
        heard.append((len(members), others))
        return real(policy, slots, members, others=others, **behind)

    monkeypatch.setattr(CapPolicy, "cap", cap)
    drafting = DraftingConfig(drafter="self")
    adaptive = GenerationConfig(max_new_tokens=8, ignore_eos=True, drafting=drafting)
    plain = replace(adaptive, mode="fp16")
    sessions[1].generate(["The same prompt"] * 4, [adaptive, plain, plain, adaptive])
    assert heard[0] == (2, 2)


def test_who_may_choose_drafts_along_with_a_fixed_length(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is as long as its longest draft, so others draft as far; the policy is asked and told nothing of it."""
    heard: list[str] = []
    five = sessions[1]
    monkeypatch.setattr(five.batches, "policies", {})
    monkeypatch.setattr(CapPolicy, "cap", lambda *args, **facts: heard.append("asked") or 0)
    adaptive = GenerationConfig(max_new_tokens=12, ignore_eos=True, drafting=DraftingConfig(drafter="self"))
    fixed = replace(adaptive, max_new_tokens=6, drafting=replace(adaptive.drafting, draft_length=2))
    configs = [adaptive, fixed, adaptive]
    batch = five.generate(PROMPTS[:3], configs)
    same(batch, [sessions[0].generate(p, c) for p, c in zip(PROMPTS[:3], configs, strict=True)])
    caps = [found.cap for found in batch.rounds]
    together = len(caps) - len(heard)
    assert together >= 2
    assert max(caps[:together]) == 2
    assert not any(caps[together:])
    assert all(reply.stats.drafted for reply in batch)
    (policy,) = five.batches.policies.values()
    assert not policy.costs.samples(4, 2)


def test_a_trial_leaves_out_who_is_far_ahead(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 20 plain rounds the one whose prompt was just read drafts alone, and every text is as it was."""
    heard: list[tuple[int, bool]] = []

    def cap(policy: CapPolicy, slots: int, members: Sequence[int], *, behind: int, is_near: bool, **others: int) -> int:
        heard.append((behind, is_near))
        policy.is_trial = len(heard) == 20
        return 3 if policy.is_trial else 0

    monkeypatch.setattr(CapPolicy, "cap", cap)
    prompts, limits = [*PROMPTS, PROMPTS[0]], [40, 40, 40, 40, 20, 40]
    configs = [GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in limits]
    batch = sessions[1].generate(prompts, configs, drafter="model")
    assert heard[0] == (1, True)
    assert heard[19] == (20, True)
    (trial,) = [found for found in batch.rounds if found.cap]
    assert (trial.sequences, trial.drafted) == (5, 3)
    assert [reply.stats.drafted for reply in batch] == [0, 0, 0, 0, 0, 3]
    same(batch, [sessions[0].generate(prompt, one, mode="fp16") for prompt, one in zip(prompts, configs, strict=True)])


def test_prompts_a_drafter_has_not_read(sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is drafted the draft model reads no prompt; where drafting begins it reads all it lacks."""
    five = sessions[1]
    engine = five.batches.draft_engine
    assert isinstance(engine, TorchEngine)
    passes: list[int] = []
    real, caps = TorchEngine.forward_batch, iter([0] * 8 + [3] * 100)

    def forward_batch(self: TorchEngine, *args: Any, **facts: Any) -> Any:
        passes.append(self is engine)
        return real(self, *args, **facts)

    read_before: list[int] = []

    def cap(policy: CapPolicy, *args: Any, **facts: Any) -> int:
        found = next(caps)
        if not found:
            read_before.append(sum(passes))
        return found

    monkeypatch.setattr(TorchEngine, "forward_batch", forward_batch)
    monkeypatch.setattr(CapPolicy, "keeps_up", lambda policy, slots: False)
    monkeypatch.setattr(CapPolicy, "cap", cap)
    prompts, limits = [*PROMPTS, PROMPTS[0]], [30, 30, 30, 30, 5, 30]
    configs = [GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in limits]
    batch = five.generate(prompts, configs, drafter="model")
    assert read_before == [0] * 8
    assert sum(passes) > 0
    assert batch[5].stats.drafted > 0
    same(batch, [sessions[0].generate(prompt, one, mode="fp16") for prompt, one in zip(prompts, configs, strict=True)])


def test_statistics_of_a_batch(sessions: tuple[Session, Session]) -> None:
    """Rounds, drafts and shares add up, per reply as alone and over the batch."""
    one, five = sessions
    alone = [one.generate(prompt, drafter="self", draft_length=3, **COMMON) for prompt in PROMPTS]
    batch = five.generate(PROMPTS, drafter="self", draft_length=3, **COMMON)
    for ours, theirs in zip(batch, alone, strict=True):
        names = ("rounds", "drafted", "accepted", "acceptance_rate", "mean_draft_length", "verify_rounds")
        for name in (*names, "int4_layer_share", "bits_read_per_weight"):
            assert getattr(ours.stats, name) == pytest.approx(getattr(theirs.stats, name)), name
        assert [(e.source, e.round, e.int4_layers, e.gear) for e in ours.events] == [
            (e.source, e.round, e.int4_layers, e.gear) for e in theirs.events
        ]
        assert ours.stats.drafter == "self"
        assert ours.to_json()["stats"]["batch_sequences"] == 5
    stats = batch.stats
    assert stats.drafted == sum(reply.stats.drafted for reply in batch)
    assert stats.acceptance_rate == stats.accepted / stats.drafted
    assert sum(stats.caps.values()) == stats.rounds == len(batch.rounds)
    assert sum(one.emitted for one in batch.rounds) == stats.new_tokens - 5
    assert stats.energy is None
    assert stats.energy_note is not None
    assert batch.to_json()["stats"]["caps"]["3"] > 0


def test_slots_come_free(sessions: tuple[Session, Session]) -> None:
    """Fewer sequences run in fewer slots, and a moved text goes on as it was."""
    one, five = sessions
    configs = [GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in (4, 6, 8, 50, 60)]
    settings: dict[str, Any] = {"drafter": "model", "draft_length": 2}
    alone = [one.generate(prompt, config, **settings) for prompt, config in zip(PROMPTS, configs, strict=True)]
    batch = five.generate(PROMPTS, configs, **settings)
    same(batch, alone)
    slots = [found.slots for found in batch.rounds]
    assert slots == sorted(slots, reverse=True)
    assert (slots[0], slots[-1]) == (5, 1)


def test_single_prompts_and_batches_take_turns(sessions: tuple[Session, Session]) -> None:
    """A batch leaves nothing behind that a later prompt would start from."""
    one, five = sessions
    expected = one.generate(PROMPTS[2], mode="fp16", **COMMON)
    for _ in range(2):
        five.generate(PROMPTS, drafter="model", draft_length=2, **COMMON)
        assert five.generate(PROMPTS[2], drafter="model", draft_length=2, **COMMON).tokens == expected.tokens
        ids = [tuple(one.tokenizer.encode(prompt)) for prompt in PROMPTS[:2]]
        five.batches.run(ids, [GenerationConfig(max_new_tokens=3, mode=Mode.FP16)] * 2)
        assert five.generate(PROMPTS[2], drafter="model", draft_length=2, **COMMON).tokens == expected.tokens


class ReplayedBody:
    """What a CUDA graph is to its engine: the very body that was captured, with the buffers it had."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.replay = body


def test_graphs_of_one_batch_serve_the_next(sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that were captured are replayed in later batches, whoever drafts, on the buffers they know."""
    one, five = sessions
    engine = five.batches.engine
    assert isinstance(engine, TorchEngine)
    monkeypatch.setattr(engine.graphs, "capture", ReplayedBody)
    common: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    alone = [one.generate(prompt, mode="fp16", **common) for prompt in PROMPTS]
    for settings in (
        {"drafter": "self", "draft_length": 2},
        {"drafter": "model", "draft_length": 2},
        {"drafter": "self", "draft_length": 2},
        {"mode": "fp16"},
        {"drafter": "model", "draft_length": 2},
    ):
        for _ in range(3):
            same(five.generate(PROMPTS, **settings, **common), alone)
    assert engine.graph_report.captured > 3
    engine.graphs.clear()
