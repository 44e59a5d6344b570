"""An evaluation says what is so: FP16 against itself agrees in everything, a drafter that is never right in nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeprec.calibration import Calibration
from edgeprec.config import DrafterKind, DraftRule
from edgeprec.errors import ConfigError
from edgeprec.precision import Plan, Precision
from edgeprec.prompts import Prompt, PromptKind
from edgeprec.runtime.evaluation import Evaluation, evaluate
from edgeprec.runtime.evaluation_drafts import (
    Contestant,
    contestant_groups,
    contestants,
    in_turn,
    judged_drafts,
    measure_drafts,
)
from edgeprec.runtime.evaluation_effort import overall, stage_efforts
from edgeprec.runtime.evaluation_layers import gated_plan, layer_counts, measure_layers
from edgeprec.runtime.evaluation_modes import count_agreeing, measure_modes
from edgeprec.runtime.evaluation_settings import EvaluationSettings, Table
from edgeprec.runtime.evaluation_texts import EvaluationText, choose_prompts, write_texts

MakeRig = Callable[..., Any]
MakeCalibration = Callable[..., Calibration]
SETTINGS = EvaluationSettings(prompts_per_kind=1, reply_tokens=12, draft_prompts_per_kind=1, draft_lengths=(1, 3))
PROMPTS = tuple(
    Prompt(f"test-{kind}-{number}", kind, text)
    for kind, texts in zip(PromptKind, (("ab", "cc"), ("cd", "ee"), ("abc", "f"), ("ea", "g")), strict=True)
    for number, text in enumerate(texts)
)


@pytest.fixture
def make(make_rig: MakeRig, fake_text: ModuleType) -> MakeRig:
    """Return ``make_rig`` with a tokenizer that has no chat template and no token that ends a text."""
    plain = replace(fake_text.letters(chat_template=None), eos_token_ids=frozenset())

    def build(agreement: str = "always", *, session: dict[str, Any] | None = None, **changes: Any) -> Any:
        return make_rig(agreement, session={"tokenizer": plain} | (session or {}), **changes)

    return build


def silent(stage: str, done: int, total: int) -> None:
    """Take progress and say nothing."""


def texts_of(rig: Any, *, tokens: int = 12) -> tuple[EvaluationText, ...]:
    """Return four texts with FP16's replies."""
    return write_texts(rig.session, PROMPTS[::2], reply_tokens=tokens, progress=silent)


def evaluated(rig: Any, *, has_draft_model: bool = False) -> Evaluation:
    """Evaluate a rig."""
    return evaluate(rig.session, PROMPTS, settings=SETTINGS, has_draft_model=has_draft_model)


@pytest.mark.parametrize(
    ("layers", "counts"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (30, (1, 2, 4, 8, 16, 30))]
)
def test_layer_counts_double_and_end_with_all(layers: int, counts: tuple[int, ...]) -> None:
    """1, 2, 4, ... and all of them, once."""
    assert layer_counts(layers) == counts


def test_texts_are_fp16s(make: MakeRig) -> None:
    """A reply is what plain FP16 decoding gives; its kind is its prompt's."""
    rig = make("never")
    texts = texts_of(rig)
    assert [list(text.reply) for text in texts] == [rig.expected(prompt.text, 12) for prompt in PROMPTS[::2]]
    assert [text.kind for text in texts] == list(PromptKind)
    assert texts[0].tokens == (*texts[0].prompt, *texts[0].reply)


def test_questions_and_passages_are_asked(make_rig: MakeRig) -> None:
    """With a chat template they are a user's turn; prose and code stand as they are, and a reply may end itself."""
    rig = make_rig()
    texts = {text.kind: text for text in write_texts(rig.session, PROMPTS, reply_tokens=40, progress=silent)}
    encode = rig.session.tokenizer.encode
    assert texts[PromptKind.PROSE].prompt == tuple(encode("cc"))
    assert texts[PromptKind.QUESTION].prompt == tuple(encode("ueeza"))
    assert texts[PromptKind.PASSAGE].prompt == tuple(encode("ugza"))
    assert any(len(text.reply) < 40 for text in texts.values())
    assert all(26 not in text.reply[:-1] for text in texts.values())


def test_prompts_are_taken_evenly() -> None:
    """So many of each kind, in the order of the set."""
    assert choose_prompts(PROMPTS, per_kind=1) == PROMPTS[::2]
    assert choose_prompts(PROMPTS, per_kind=9) == PROMPTS


def test_layers_that_agree_lose_nothing(make: MakeRig, calibration: MakeCalibration) -> None:
    """INT4 that always agrees has a top-1 of 1, no divergence and the whole text in common, at every number."""
    rig = make("always", session={"calibration": calibration()})
    rows = measure_layers(rig.session, texts_of(rig), progress=silent)
    assert [(row.gated_layers, row.has_int4_head) for row in rows] == [(1, False), (2, False), (3, False), (3, True)]
    for row in rows:
        assert (row.on_reply.top1, row.on_prompt.top1) == (1.0, 1.0)
        assert row.on_reply.kl_bits == pytest.approx(0.0, abs=1e-5)
        assert (row.free.share, row.free.mean_prefix_tokens, row.exact.share) == (1.0, 12.0, 1.0)
        assert sum(row.on_reply.tokens) == 4 * 12
        assert sum(row.on_prompt.tokens) == sum(len(prompt.text) - 1 for prompt in PROMPTS[::2])


def test_layers_that_never_agree_are_exact_all_the_same(make: MakeRig, calibration: MakeCalibration) -> None:
    """Forced top-1 is 0, only the prefill's token is common, and mode exact is FP16's text still."""
    rig = make("never", session={"calibration": calibration()})
    for row in measure_layers(rig.session, texts_of(rig), progress=silent):
        assert (row.on_reply.top1, row.on_prompt.top1) == (0.0, 0.0)
        assert row.on_reply.kl_bits is not None
        assert row.on_reply.kl_bits > 0.1
        assert row.free.mean_prefix_tokens == 1.0
        assert row.exact.share == 1.0


def test_plans_gate_the_least_sensitive_layers(make: MakeRig, calibration: MakeCalibration) -> None:
    """The calibration's order decides; None is everything and the head."""
    rig = make(session={"calibration": calibration()})
    assert gated_plan(rig.session, 1) == Plan((False, False, True, False))
    assert gated_plan(rig.session, None) == Plan.uniform(Precision.INT4, num_layers=3)


def test_modes_keep_what_they_promise(make: MakeRig, calibration: MakeCalibration) -> None:
    """exact is FP16; bounded with a drafter that is right leaves most tokens unverified and agrees."""
    rig = make("always", session={"calibration": calibration(1000)}, accepts_int4=True)
    modes = measure_modes(rig.session, texts_of(rig, tokens=30), epsilon=0.05, progress=silent)
    assert (modes.exact.share, modes.bounded_note) == (1.0, None)
    assert modes.bounded is not None
    assert modes.bounded.tokens == 4 * 29
    assert modes.bounded.to_json()["agreement"] == 1.0
    assert modes.bounded.to_json()["verified_share"] < 0.6


def test_a_wrong_bounded_text_is_found_out(make: MakeRig, calibration: MakeCalibration) -> None:
    """Tokens that stand though FP16 would have chosen others lower the agreement."""
    rig = make("never", session={"calibration": calibration(1000)}, accepts_int4=True)
    bounded = measure_modes(rig.session, texts_of(rig, tokens=30), epsilon=0.5, progress=silent).bounded
    assert bounded is not None
    assert bounded.agreeing < bounded.tokens
    assert bounded.agreeing >= bounded.verified  # a token FP16 looked at is its own choice


def test_agreement_is_counted_after_each_prefix(make: MakeRig) -> None:
    """One foreign token costs one: what follows is judged in its own context."""
    rig = make()
    prompt = rig.session.tokenizer.encode("ab")
    own = rig.model.decode(prompt, 6)
    assert count_agreeing(rig.session, prompt, own) == 5
    foreign = [*own[:2], (own[2] + 1) % 27]
    continued = [*foreign, *rig.model.decode([*prompt, *foreign], 3)]
    assert count_agreeing(rig.session, prompt, continued) == 4
    assert count_agreeing(rig.session, prompt, own[:1]) == 0


def test_bounded_without_calibration_is_noted(make: MakeRig) -> None:
    """A pair that cannot run it has null there and the reason; the other modes are measured."""
    found = evaluated(make("always", accepts_int4=True)).to_json()
    assert found["modes"]["bounded"] is None
    assert found["modes"]["exact"] == {"token_match": 1.0}
    assert any("needs a calibration" in note for note in found["notes"])


def test_entrants() -> None:
    """Every fixed length and every adaptive rule, for the drafters there are; lookup with a fixed length too."""
    found = contestants(has_model=False, lengths=(1, 2))
    assert {entrant.drafter for entrant in found} == {DrafterKind.SELF, DrafterKind.NGRAM}
    assert len(found) == len(set(found)) == 2 + 3 + 2
    assert len(contestants(has_model=True, lengths=(1, 2))) == len(found) + 5
    assert {entrant.rule for entrant in found if entrant.length is None and entrant.drafter is DrafterKind.SELF} == {
        DraftRule.ENTROPY,
        DraftRule.SVIP,
        DraftRule.ADAEDL,
    }


def test_whom_a_user_chooses_between_comes_first() -> None:
    """The entropy rule and every fixed length are compared together; the published rules come when those are done."""
    first, others = contestant_groups(has_model=True, lengths=(1, 4))
    assert first[0] == Contestant(DrafterKind.MODEL, None, DraftRule.ENTROPY)
    assert {(entrant.drafter, entrant.length) for entrant in first} >= {
        (drafter, length) for drafter in (DrafterKind.MODEL, DrafterKind.SELF) for length in (None, 1, 4)
    }
    assert {entrant.rule for entrant in others if entrant.length is None} == {DraftRule.SVIP, DraftRule.ADAEDL}
    assert not set(first) & set(others)


def test_tables_come_one_by_one(make: MakeRig, calibration: MakeCalibration) -> None:
    """Whoever listens has each table as soon as it is there, drafts in two parts, and no key of what is not."""
    seen: list[Evaluation] = []
    rig = make("sometimes", session={"calibration": calibration()}, accepts_int4=True)
    last = evaluate(rig.session, PROMPTS, settings=SETTINGS, has_draft_model=False, on_table=seen.append)
    assert [found.finished for found in seen] == [
        (Table.LAYERS,),
        (Table.LAYERS, Table.MODES),
        (Table.LAYERS, Table.MODES),
        tuple(Table),
    ]
    assert seen[-1] is last
    known = [seen_so_far.to_json() for seen_so_far in seen]
    assert "modes" not in known[0]
    assert "drafts" not in known[1]
    assert known[3]["drafts"][: len(known[2]["drafts"])] == known[2]["drafts"]
    assert len(known[3]["drafts"]) > len(known[2]["drafts"]) > 0
    assert known[0]["layers"] == known[3]["layers"]


@pytest.mark.parametrize("table", list(Table))
def test_only_what_is_asked_for_is_measured(make: MakeRig, calibration: MakeCalibration, table: Table) -> None:
    """One table alone; nothing is decoded for the others."""
    rig = make("always", session={"calibration": calibration()}, accepts_int4=True)
    stages: set[str] = set()
    found = evaluate(
        rig.session,
        PROMPTS,
        settings=replace(SETTINGS, tables=(table,)),
        has_draft_model=False,
        progress=lambda stage, done, total: stages.add(stage),
    )
    assert found.finished == (table,)
    assert [kind for kind in Table if getattr(found, kind) is not None] == [table]
    expected = {"layers": {"forced", "decode"}, "modes": {"modes"}, "drafts": {"drafts", "more drafts"}}
    assert stages == {"fp16", *expected[table]}


def test_progress_is_of_everything_and_never_falls(make: MakeRig, calibration: MakeCalibration) -> None:
    """It begins at 0, rises through all stages and ends at the total."""
    told: list[tuple[str, int, int]] = []
    rig = make("always", session={"calibration": calibration()}, accepts_int4=True)
    evaluate(
        rig.session,
        PROMPTS,
        settings=SETTINGS,
        has_draft_model=False,
        progress=lambda *values: told.append(values),
    )
    done = [values[1] for values in told]
    assert (done[0], done[-1], told[0][2]) == (0, 1000, 1000)
    assert done == sorted(done)
    assert len(set(done)) > 20


def test_effort_grows_with_what_is_asked() -> None:
    """Stages that are not asked for cost nothing; more drafters and rows cost more."""
    size = {"texts": 4, "drafting_texts": 2}
    drafts = stage_efforts([Table.DRAFTS], layer_rows=3, entrants=(5, 2), **size)
    assert drafts == {"fp16": 4.0, "drafts": 14.0, "more drafts": 8.0}
    few, many = (stage_efforts([Table.LAYERS], layer_rows=rows, entrants=(5, 2), **size) for rows in (2, 4))
    assert set(few) == {"fp16", "forced", "decode"}
    assert few["decode"] < many["decode"]


def test_overall_progress_weighs_stages() -> None:
    """Half of a stage with three quarters of the effort is 375 of 1000; a stage with nothing to do is done."""
    told: list[int] = []
    progress = overall({"a": 3.0, "b": 1.0}, lambda stage, done, total: told.append(done))
    progress("a", 1, 2)
    progress("a", 2, 2)
    progress("b", 0, 0)
    assert told == [375, 750, 1000]


def test_a_perfect_drafter_is_fast_and_accepted(make: MakeRig, calibration: MakeCalibration) -> None:
    """Acceptance 1 at a fixed length, a gain from cheaper steps, and no token but FP16's."""
    rig = make("always", session={"calibration": calibration()})
    entrant = Contestant(DrafterKind.SELF, 3, DraftRule.FIXED)
    scores = measure_drafts(rig.session, texts_of(rig), [entrant], progress=silent)
    figures = scores.total[entrant].to_json()
    assert figures["acceptance"] == 1.0
    assert figures["speedup_over_fp16"] > 1.5
    assert scores.total[entrant].differing_tokens == 0
    assert {kind for kind, _ in scores.by_kind} == set(PromptKind)
    assert sum(score.drafted for score in scores.by_kind.values()) == scores.total[entrant].drafted


def test_a_useless_drafter_is_slow(make: MakeRig, calibration: MakeCalibration) -> None:
    """Nothing is accepted, every round costs its drafts, and the text stays FP16's."""
    rig = make("never", session={"calibration": calibration()})
    entrant = Contestant(DrafterKind.SELF, 3, DraftRule.FIXED)
    score = measure_drafts(rig.session, texts_of(rig), [entrant], progress=silent).total[entrant]
    assert score.to_json()["acceptance"] == 0.0
    assert score.to_json()["speedup_over_fp16"] < 1.0
    assert (score.differing_tokens, sum(score.agreed)) == (0, 0)
    assert sum(score.judged) > 0


def test_only_judged_drafts_count(script_round: Callable[..., Any]) -> None:
    """Tokens after the first rejected one were never looked at; a drafter without entropy has no place in a bin."""
    rounds = [
        script_round(draft_entropy_bits=(0.1, 0.2, 0.3), accepted=1),
        script_round(draft_entropy_bits=(0.4, 0.5), accepted=2),
        script_round(draft_entropy_bits=(None, None), accepted=1),
    ]
    assert list(judged_drafts(rounds)) == [(0.1, True), (0.2, False), (0.4, True), (0.5, True)]


def test_the_whole_evaluation_is_plain_values(make: MakeRig, calibration: MakeCalibration) -> None:
    """The contract's keys are there, exactly, and all counts are of the texts that were run."""
    rig = make("sometimes", draft="sometimes", session={"calibration": calibration()}, accepts_int4=True)
    found = evaluated(rig, has_draft_model=True).to_json()
    assert [row["gated"] for row in found["layers"]] == [1, 2, 3]
    for row in (*found["layers"], found["all_and_head"]):
        assert set(row) == {
            "gated",
            "top1",
            "top1_low_entropy",
            "kl_bits",
            "common_prefix_tokens",
            "free_running_match",
        }
        assert 0.0 < row["top1"] < 1.0
    assert {mode: set(values) for mode, values in found["modes"].items()} == {
        "exact": {"token_match"},
        "bounded": {"agreement", "verified_share"},
        "gated": {"token_match"},
    }
    assert {name for row in found["drafts"] for name in row} == {
        "name",
        "k",
        "rule",
        "acceptance",
        "tokens_per_s",
        "speedup_over_fp16",
    }
    assert {row["name"] for row in found["drafts"]} == {"self", "model", "ngram"}
    assert {row["token_match"] for row in found["exact_by_layers"]} == {1.0}
    assert (found["prompts"], found["reply_tokens"], found["notes"]) == (4, 48, [])
    assert found["tables"] == ["layers", "modes", "drafts"]
    assert all(sum(entry["tokens"] for entry in row["bins"]) == 48 for row in found["entropy"])


def test_prompts_that_do_not_fit_are_named(make: MakeRig, calibration: MakeCalibration) -> None:
    """They are left out with a note; when none is left there is nothing to evaluate."""
    long = Prompt("test-prose-9", PromptKind.PROSE, "a" * 60)
    rig = make("always", session={"calibration": calibration()}, accepts_int4=True)
    found = evaluate(rig.session, (long, *PROMPTS), settings=SETTINGS, has_draft_model=False)
    assert any(note.startswith("1 prompts were left out") for note in found.notes)
    with pytest.raises(ConfigError, match="none of 1 prompts fits"):
        evaluate(rig.session, (long,), settings=SETTINGS, has_draft_model=False)


@pytest.mark.parametrize("changes", [{"prompts_per_kind": 0}, {"reply_tokens": 0}, {"draft_lengths": ()}])
def test_settings_are_checked(changes: dict[str, Any]) -> None:
    """Nothing to measure is an error before anything is loaded."""
    with pytest.raises(ConfigError, match="evaluation"):
        EvaluationSettings(**changes)


def test_speed_is_against_fp16_of_the_same_texts(make: MakeRig, calibration: MakeCalibration) -> None:
    """Drafting nobody does is plain decoding: the ratio is 1."""
    rig = make("always", session={"calibration": calibration()})
    entrant = Contestant(DrafterKind.NONE, None, DraftRule.ENTROPY)
    score = measure_drafts(rig.session, texts_of(rig), [entrant], progress=silent).total[entrant]
    assert score.to_json()["speedup_over_fp16"] == pytest.approx(1.0)
    assert score.to_json()["acceptance"] is None
    assert np.sum(score.judged) == 0


def test_nobody_drafts_first_in_every_text() -> None:
    """All of them for every text, and each first once before anybody is first again."""
    everybody = contestants(has_model=True, lengths=(1, 4))
    orders = [in_turn(everybody, text) for text in range(len(everybody))]
    assert all(sorted(order, key=str) == sorted(everybody, key=str) for order in orders)
    assert {order[0] for order in orders} == set(everybody)
    assert in_turn((), 3) == ()
