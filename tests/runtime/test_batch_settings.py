"""Settings of a batch's sequences: what each keeps for itself, what cannot run together, and what is said of it."""

from __future__ import annotations

import copy
import itertools
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgeprec
from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, GenerationConfig, Mode
from edgeprec.errors import ConfigError
from edgeprec.runtime.batch_caps import BatchCosts, CapPolicy
from edgeprec.runtime.batch_runners import FusedRunner, SteppedRunner
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.session import Session

texts = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("batch_texts.py"))))
PROMPTS, COMMON, same = texts.PROMPTS, texts.COMMON, texts.same


def test_objective_energy_says_what_it_does(sessions: tuple[Session, Session]) -> None:
    """Nothing measures a round's parts in a batch, so it follows speed, which is said."""
    batch = sessions[1].generate(PROMPTS[:2], drafter="self", objective="energy", **COMMON)
    assert any("objective energy follows speed in a batch" in note for note in batch.stats.fallbacks)


def test_drafts_longer_than_a_batch_has_rows_for(sessions: tuple[Session, Session]) -> None:
    """They are cut, which is said; the texts stay."""
    one, five = sessions
    alone = [one.generate(prompt, drafter="self", draft_length=12, **COMMON) for prompt in PROMPTS[:2]]
    batch = five.generate(PROMPTS[:2], drafter="self", draft_length=12, **COMMON)
    same(batch, alone)
    assert "drafts of 12 tokens were cut to 7" in batch[0].stats.fallbacks[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"drafter": "ngram"}, "drafters ngram do not draft for several sequences together"),
        ({"drafter": "self", "middle_gears": 1}, "drafts in middle gears follow one sequence's entropy"),
    ],
)
def test_what_runs_one_after_another_says_so(
    sessions: tuple[Session, Session], settings: dict[str, Any], reason: str
) -> None:
    """The texts are there all the same, and every reply has the reason."""
    one, five = sessions
    alone = [one.generate(prompt, **settings, **COMMON) for prompt in PROMPTS[:2]]
    batch = five.generate(PROMPTS[:2], **settings, **COMMON)
    same(batch, alone)
    note = f"2 prompts ran one after another: {reason}"
    assert all(note in reply.stats.fallbacks for reply in batch)
    assert batch.stats.at_once == 1


def test_session_for_one_runs_a_list_in_turn(sessions: tuple[Session, Session]) -> None:
    """Opened without slots, it says how to get them."""
    batch = sessions[0].generate(PROMPTS[:2], mode="fp16", **COMMON)
    assert "load it with sequences=N" in batch.stats.fallbacks[0]
    assert batch.stats.new_tokens == 60
    assert batch.stats.tokens_per_s is not None


def test_engine_without_slots_runs_a_list_in_turn(tiny_pair: Path, sessions: tuple[Session, Session]) -> None:
    """onnxruntime gives the same texts, one after another, and names itself."""
    with edgeprec.load(
        tiny_pair, engine="onnxruntime", sensor="none", context_tokens=110, threads=1, sequences=2
    ) as onnx:
        batch = onnx.generate(PROMPTS[:2], mode="fp16", **COMMON)
    same(batch, [sessions[0].generate(prompt, mode="fp16", **COMMON) for prompt in PROMPTS[:2]])
    assert batch.stats.fallbacks == (
        "2 prompts ran one after another: the engine onnxruntime has no slots for several sequences",
    )


@pytest.mark.parametrize(
    ("prompts", "settings", "match"),
    [
        (["a", ""], {}, "the prompt is empty"),
        (["a", list(range(3, 120))], {}, "the prompt has 117 tokens, the context holds 110"),
        (["a", "b"], {"top_logprobs": 2}, "top_logprobs is for a single prompt"),
        (["a", "b"], {"config": [GenerationConfig()] * 3}, "there are 3 configurations for 2 prompts"),
        (["a", [1, "b"]], {}, "neither a text nor all token ids"),
    ],
)
def test_bad_lists_are_refused(
    sessions: tuple[Session, Session], prompts: list[Any], settings: dict[str, Any], match: str
) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError, match=match):
        sessions[1].generate(prompts, **settings)


@pytest.mark.parametrize(
    "settings",
    [{"drafter": "ngram"}, {"three_level": True}, {"drafter": "self", "middle_gears": 1}, {"drafter": "self"}],
    ids=str,
)
def test_a_list_of_one_is_its_prompt_alone(sessions: tuple[Session, Session], settings: dict[str, Any]) -> None:
    """What batches cannot do is done as for a single prompt, and nothing fell back."""
    for session in sessions:
        alone = session.generate(PROMPTS[0], **settings, **COMMON)
        batch = session.generate(PROMPTS[:1], **settings, **COMMON)
        same(batch, [alone])
        assert batch[0].stats.drafter == alone.stats.drafter
        assert (batch[0].stats.three_level is None) == (alone.stats.three_level is None)
        assert not any("one after another" in note for note in batch.stats.fallbacks)


def test_each_sequence_has_its_longest_draft(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap is one for all, and ``max_draft_length`` each sequence's own."""
    costs = BatchCosts()
    for cap, seconds in ((0, 1.0), (3, 1e-6), (5, 1e-6)):
        for _ in range(2):
            costs.add(2, cap, seconds)  # so that drafting pays, however little is accepted
    monkeypatch.setattr(sessions[1].batches, "policies", {(DrafterKind.SELF, FusedRunner): CapPolicy(costs, 7)})
    base = GenerationConfig(max_new_tokens=60, ignore_eos=True, drafting=DraftingConfig(drafter="self"))
    configs = [replace(base, drafting=replace(base.drafting, max_draft_length=most)) for most in (1, 7)]
    batch = sessions[1].generate(PROMPTS[:2], configs)
    caps = [found.cap for found in batch.rounds if found.cap]
    assert max(caps) > 1
    assert batch[0].stats.drafted <= len(caps) < batch[1].stats.drafted


def test_greedy_and_sampled_rounds_share_no_times(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round on the device and one that samplers on the host take part in cost otherwise: each kind has its policy."""
    batches = sessions[1].batches
    monkeypatch.setattr(batches, "policies", {})
    configs = [GenerationConfig(max_new_tokens=12, ignore_eos=True, drafting=DraftingConfig(drafter="self"))] * 2
    batches.generate(PROMPTS[:2], configs, {}, chat=False, top_logprobs=None)
    greedy = batches.policies[DrafterKind.SELF, FusedRunner]
    timed = copy.deepcopy(greedy.costs)
    batches.generate(PROMPTS[:2], configs, {"temperature": 0.9, "seed": 3}, chat=False, top_logprobs=None)
    assert set(batches.policies) == {(DrafterKind.SELF, FusedRunner), (DrafterKind.SELF, SteppedRunner)}
    assert greedy.costs == timed
    assert timed.samples(2, 0)
    assert batches.policies[DrafterKind.SELF, SteppedRunner].costs.seconds(2, 0) != timed.seconds(2, 0)


def test_notes_are_of_who_drafts(sessions: tuple[Session, Session]) -> None:
    """Plain FP16 and a fixed length have nothing to switch off; a rule that stops no draft here is named."""
    base = GenerationConfig(max_new_tokens=60, ignore_eos=True, drafting=DraftingConfig(drafter="self"))
    drafting = base.drafting
    configs = [
        replace(base, mode=Mode.FP16),
        replace(base, drafting=replace(drafting, draft_length=1)),
        replace(base, drafting=replace(drafting, rule="svip")),
    ]
    batch = sessions[1].generate(PROMPTS[:3], configs)
    assert [bool(reply.stats.fallbacks) for reply in batch] == [False, False, True]
    assert "the draft rule svip stops no draft in a batch" in batch[2].stats.fallbacks[0]


def test_drafts_of_other_layers_do_not_run_together(sessions: tuple[Session, Session]) -> None:
    """A draft step has one plan: sequences that gate other layers come one after another."""
    configs = [GenerationConfig(max_new_tokens=5, controller=ControllerConfig(gated_layers=n)) for n in (1, 2)]
    batch = sessions[1].generate(PROMPTS[:2], configs, drafter="self")
    assert any("their drafts run different numbers of layers in INT4" in note for note in batch.stats.fallbacks)
    assert batch.stats.at_once == 1


@pytest.mark.parametrize("drafter", ["self", "model"])
def test_a_settled_batch_meets_no_first_pass(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    """Whatever is chosen, accepted, caught up with or joins: each kind of pass has run, and was captured, before."""
    five = sessions[1]
    batches = five.batches
    engines = [engine for engine in batches.engines if isinstance(engine, TorchEngine)]
    for engine in engines:
        engine.graphs.clear()
        monkeypatch.setattr(engine.graphs, "capture", lambda body: SimpleNamespace(replay=body))
    drafting = DraftingConfig(drafter=drafter)
    config = GenerationConfig(ignore_eos=True, drafting=drafting)
    batches.settle(config, slots=5, tokens=100)
    settled = sum(engine.first_passes for engine in engines)
    assert settled > 2 * 8
    caps = itertools.cycle([1, 1, *[0] * 20, 2, 3, 0, 0, 4, 5, 1, 6, 7, *[0] * 4])
    monkeypatch.setattr(CapPolicy, "cap", lambda *args, **facts: next(caps))
    prompts = [tuple(range(3, 3 + length)) for length in (1, 20, 40, 7, 12, 33, 2, 18, 9)]
    configs = [replace(config, max_new_tokens=limit) for limit in (60, 50, 40, 30, 55, 25, 60, 60, 60)]
    batch = replace(batches, is_over=lambda begun: len(begun) == len(prompts)).run(prompts, configs)
    assert {found.slots for found in batch.rounds} == {5}
    assert {found.cap for found in batch.rounds} == set(range(8))
    assert sum(engine.first_passes for engine in engines) == settled
    for engine in engines:
        engine.graphs.clear()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 3}], ids=str)
def test_passes_that_compile_teach_no_cost(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """The first two plain rounds run a pass for the first time and capture it; whoever chooses tokens, both go
    untimed."""
    five = sessions[1]
    engine = five.batches.engine
    assert isinstance(engine, TorchEngine)
    engine.graphs.clear()
    monkeypatch.setattr(engine.graphs, "capture", lambda body: SimpleNamespace(replay=body))
    monkeypatch.setattr(five.batches, "policies", {})
    batch = five.generate(PROMPTS, drafter="self", max_draft_length=1, max_new_tokens=24, ignore_eos=True, **settings)
    plain = [found for found in batch.rounds if not found.cap and found.slots == 5]
    (policy,) = five.batches.policies.values()
    assert len(plain) > 2
    assert policy.costs.samples(5, 0) == len(plain) - 2
    engine.graphs.clear()
