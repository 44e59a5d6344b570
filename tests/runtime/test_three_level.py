"""Three-level drafting: FP16's tokens whatever the levels below agree on, and statistics that tell the levels apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgeprec
from edgeprec.calibration import Calibration
from edgeprec.config import Mode
from edgeprec.errors import ConfigError
from edgeprec.precision import Plan
from edgeprec.prompts import load_prompts
from edgeprec.runtime.reply import FinishReason, LevelStats, Reply, TokenSource
from edgeprec.runtime.session import Session

AGREEMENTS = ("always", "never", "sometimes")
PROMPT = "bananaband"
MakeRig = Callable[..., Any]


def levels(reply: Reply) -> LevelStats:
    """Return the statistics by level, which must be there."""
    assert reply.stats.three_level is not None
    return reply.stats.three_level


@pytest.mark.parametrize("kind", ["FakeEngine", "DraftingFake"])
@pytest.mark.parametrize("draft_length", [1, 2, 5, 15, None])
def test_exact_is_fp16(
    make_rig: MakeRig, calibration: Callable[..., Calibration], draft_length: int | None, kind: str
) -> None:
    """Every token is FP16's; the fake cache raises on any hole, stale or INT4 entry that FP16 or INT4 would read."""
    for index, (agreement, draft) in enumerate(product(AGREEMENTS, AGREEMENTS)):
        layers = 1 + index % 4
        known = calibration(layers=layers) if index % 2 else None
        rig = make_rig(agreement, draft=draft, num_layers=layers, kind=kind, session={"calibration": known})
        asked: dict[str, Any] = {"three_level": True, "draft_length": draft_length, "middle_gears": 1}
        reply = rig.session.generate(PROMPT, max_new_tokens=40, ignore_eos=True, **asked)
        assert list(reply.tokens) == rig.expected(PROMPT, 40), (agreement, draft, layers)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_no_setting_changes_the_tokens(
    make_rig: MakeRig, calibration: Callable[..., Calibration], drawn: ModuleType, data: st.DataObject
) -> None:
    """Rules, gears, gated layers, sampling, rows, context and stop texts move speed only, never a token."""
    draw, made = data.draw, drawn.of_rig(data.draw, calibration)
    rig = make_rig(
        draw(st.sampled_from(AGREEMENTS), label="int4"),
        draft=draw(st.sampled_from(AGREEMENTS), label="draft"),
        kind=draw(st.sampled_from(("FakeEngine", "DraftingFake"))),
        **made,
    )
    asked = {"three_level": True, **drawn.of_drafting(draw, layers=made["num_layers"])}
    drawn.require_fp16s_text(rig, draw, asked)


def test_one_int4_pass_reads_all_that_was_drafted(make_rig: MakeRig) -> None:
    """Where all agree, a round is a run of small steps, one INT4 pass of five rows and one FP16 pass of six."""
    rig = make_rig("always", draft="always")
    reply = rig.session.generate(PROMPT, three_level=True, draft_length=5, max_new_tokens=13, ignore_eos=True)
    after_prefill = [(len(asked.tokens), asked.is_fp16) for asked in rig.target.passes[1:]]
    assert after_prefill == [(5, False), (6, True)] * 2
    assert [event.source for event in reply.events[1:7]] == [TokenSource.DRAFT] * 5 + [TokenSource.TARGET]
    assert [event.int4_layers for event in reply.events[1:7]] == [3] * 5 + [0]


def test_a_rejection_below_is_settled_below(make_rig: MakeRig) -> None:
    """A draft model that is always wrong costs INT4 passes, but FP16 sees only what INT4 says, and accepts it."""
    rig = make_rig("always", draft="never")
    stats = rig.session.generate(PROMPT, three_level=True, draft_length=4, max_new_tokens=41, ignore_eos=True).stats
    found = stats.three_level
    assert found is not None
    assert (found.model_acceptance_rate, found.int4_acceptance_rate) == (0.0, 1.0)
    assert (stats.rounds, found.rounds, found.int4_passes) == (8, 8, 32)
    assert found.model_drafted == 8 * (3 + 2 + 1)
    assert (stats.drafted, stats.accepted) == (found.int4_drafted, found.int4_accepted) == (32, 32)


def test_a_rejection_above_says_nothing_about_the_level_below(make_rig: MakeRig) -> None:
    """INT4 takes all that the draft model proposes, FP16 none of it: both rates are told apart."""
    rig = make_rig("never", draft="never")
    stats = rig.session.generate(PROMPT, three_level=True, draft_length=4, max_new_tokens=20, ignore_eos=True).stats
    found = stats.three_level
    assert found is not None
    assert (found.model_acceptance_rate, found.int4_acceptance_rate, stats.acceptance_rate) == (1.0, 0.0, 0.0)
    assert found.int4_passes == found.rounds == 18  # the last token has no room for a draft


def test_int4_share_counts_all_three_levels(make_rig: MakeRig) -> None:
    """Both INT4 levels count as draft, each with its own layers and bits; FP16's rows are the rest."""
    rig = make_rig("always", draft="always")
    stats = rig.session.generate(PROMPT, three_level=True, draft_length=3, max_new_tokens=5, ignore_eos=True).stats
    model, level, fp16 = 2 * 3, 3 * 4, 4 * 4  # rows x (layers + head): the draft model has 2 layers, the target 3
    assert stats.int4_layer_share == pytest.approx((model + level) / (model + level + fp16))
    assert (stats.draft_int4_layer_share, stats.target_int4_layer_share) == (1.0, 0.0)
    weights = 2 * 80 + 360 + 360  # two passes of the draft model, one of the INT4 target, one of FP16
    assert stats.bits_read_per_weight == pytest.approx((2 * 80 * 5.0 + 360 * 4.5 + 360 * 16) / weights)


def test_gated_layers_run_in_the_int4_target(make_rig: MakeRig) -> None:
    """The pass in the middle runs the draft's plan: one layer in INT4 where one is gated."""
    rig = make_rig("always", draft="always")
    asked: dict[str, Any] = {"three_level": True, "draft_length": 3, "gated_layers": 1}
    reply = rig.session.generate(PROMPT, max_new_tokens=9, ignore_eos=True, **asked)
    assert {asked.plan for asked in rig.target.passes if not asked.is_fp16} == {Plan((False, False, True, False))}
    assert reply.events[1].int4_layers == 1


def test_the_draft_models_cache_follows_a_second_prompt(make_rig: MakeRig) -> None:
    """A turn that goes on from the last one feeds the draft model only what it lacks, and the text is right."""
    rig = make_rig("sometimes", draft="sometimes")
    asked: dict[str, Any] = {"three_level": True, "draft_length": 4, "ignore_eos": True}
    first = rig.session.generate(PROMPT, max_new_tokens=12, **asked)
    text = [*rig.session.tokenizer.encode(PROMPT), *first.tokens, 3, 4]
    before = len(rig.draft.passes)
    second = rig.session.generate(text, max_new_tokens=12, **asked)
    assert list(second.tokens) == rig.model.decode(text, 12)
    assert rig.draft.passes[before].position >= len(PROMPT)


def test_cancelled_between_passes_keeps_what_stands(make_rig: MakeRig) -> None:
    """Cancelling while the lower levels work ends the round without tokens and the reply says so."""
    rig = make_rig("always", draft="always")
    generation = rig.session.stream(PROMPT, three_level=True, draft_length=8, max_new_tokens=40, ignore_eos=True)
    emitted = [next(generation).token for _ in range(3)]
    rig.draft.before_pass = lambda asked: generation.cancel()
    reply = generation.reply
    assert reply.finish_reason is FinishReason.CANCELLED
    assert list(reply.tokens)[:3] == emitted
    assert list(reply.tokens) == rig.expected(PROMPT, len(reply.tokens))


@pytest.mark.parametrize("mode", ["fp16", "int4", "gated"])
def test_modes_that_draft_nothing_have_no_levels(make_rig: MakeRig, mode: str) -> None:
    """As with every drafting setting, modes without drafts pay no attention to it, and their replies say null."""
    rig = make_rig(draft="always")
    reply = rig.session.generate(PROMPT, mode=mode, three_level=True, max_new_tokens=6)
    assert reply.to_json()["stats"]["three_level"] is None


def test_bounded_repairs_the_cache(make_rig: MakeRig, calibration: Callable[..., Calibration]) -> None:
    """What INT4 may emit unverified comes faster through the draft model, and is still read by FP16 later."""
    rig = make_rig("always", draft="sometimes", session={"calibration": calibration(1000)})
    reply = rig.session.generate(PROMPT, mode="bounded", three_level=True, max_new_tokens=40, ignore_eos=True)
    assert list(reply.tokens) == rig.expected(PROMPT, 40)
    assert TokenSource.UNVERIFIED in {event.source for event in reply.events}
    assert (levels(reply).model_accepted > 0, levels(reply).direct_rounds) == (True, 0)


def test_json_has_every_level(make_rig: MakeRig) -> None:
    """The reply's JSON is a contract."""
    reply = make_rig(draft="always").session.generate(PROMPT, three_level=True, draft_length=3, max_new_tokens=9)
    assert set(reply.to_json()["stats"]["three_level"]) == {
        "rounds",
        "int4_passes",
        "model_drafted",
        "model_accepted",
        "model_acceptance_rate",
        "int4_drafted",
        "int4_accepted",
        "int4_acceptance_rate",
        "direct_rounds",
        "direct_drafted",
        "direct_accepted",
    }


@pytest.fixture(scope="module", params=["onnxruntime", "torch"])
def session(request: pytest.FixtureRequest, tiny_pair: Path) -> Iterator[Session]:
    """Load the tiny pair with each engine, on the CPU."""
    common: dict[str, Any] = {"provider": "cpu", "sensor": "none", "context_tokens": 190, "threads": 1}
    with edgeprec.load(tiny_pair, engine=request.param, **common) as loaded:
        yield loaded


@pytest.mark.parametrize("length", [2, 5, None])
def test_real_engines_give_fp16s_tokens(session: Session, length: int | None) -> None:
    """Greedy over many prompts, with every layer gated and with some, on both engines."""
    for prompt, gated in product([prompt.text[:40] for prompt in load_prompts("short")[:4]], (None, 2)):
        common: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True}
        asked: dict[str, Any] = {"three_level": True, "draft_length": length, "gated_layers": gated}
        plain = session.generate(prompt, mode="fp16", **common)
        reply = session.generate(prompt, **asked, **common)
        assert reply.tokens == plain.tokens, prompt
        assert reply.mode is Mode.EXACT
        assert levels(reply).int4_passes > 0 or levels(reply).direct_rounds > 0 or not reply.stats.drafted


@pytest.mark.parametrize("seed", range(6))
def test_real_engines_give_fp16s_samples(session: Session, seed: int) -> None:
    """With the same seed, at a temperature and with a penalty for repetition."""
    common: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "seed": seed, "temperature": 0.8, "top_p": 0.9}
    common["repetition_penalty"] = 1.1 if seed % 2 else 1.0
    plain = session.generate("The tide", mode="fp16", **common)
    for length in (3, None):
        assert session.generate("The tide", three_level=True, draft_length=length, **common).tokens == plain.tokens


def test_without_a_draft_model_it_is_refused(make_rig: MakeRig) -> None:
    """One sentence that says what to do, before any pass."""
    rig = make_rig()
    with pytest.raises(ConfigError, match="needs a draft model and this bundle has none: export it with --draft"):
        rig.session.generate(PROMPT, three_level=True)
    assert rig.target.passes == []
