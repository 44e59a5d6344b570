"""Benchmark cases on a session of fake engines: what runs, what counts, and where the joules go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.config import DrafterKind, DraftingConfig, GenerationConfig, Mode
from edgeprec.errors import ConfigError, EngineError
from edgeprec.runtime.benchmark import run_case, session_runs
from edgeprec.runtime.benchmark_case import Case, CaseKind, Corpus, SetPrompt, require_room
from edgeprec.runtime.benchmark_repeat import Generated, Repeat, counted_tokens, rate
from edgeprec.runtime.reply import token_sha256

MakeRig = Callable[..., Any]
FP16 = GenerationConfig(mode=Mode.FP16)
EXACT = GenerationConfig(drafting=DraftingConfig(drafter=DrafterKind.SELF, draft_length=2))
PASS_S = 1.0


@pytest.fixture(scope="session")
def meters() -> ModuleType:
    """Return the module of scripted sensors that the tests of the devices use."""
    path = Path(__file__).parents[1] / "devices" / "fake_meter.py"
    found = spec_from_file_location("edgeprec_tests_fake_meter_bench", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Letters(Corpus):
    """A corpus of the tokens it is given, so that prompts can be foreseen."""

    def __init__(self, tokens: str = "abcdefghijklmnopqrstuvwxyz") -> None:
        super().__init__(
            lambda text: [ord(letter) - ord("a") for letter in text],
            lambda ids: "".join(chr(ord("a") + token) for token in ids),
        )
        self._tokens = tuple(self._encode(tokens))


def run(
    rig: Any, case: Case, *, repeats: int = 2, has_warm_up: bool = True, corpus: Corpus | None = None
) -> list[Repeat]:
    """Return the repeats of a case."""
    return list(run_case(rig.session, case, corpus or Letters(), repeats=repeats, has_warm_up=has_warm_up))


def test_decoding_counts_the_tokens_after_the_first(make_rig: MakeRig) -> None:
    """tg5 is five tokens decoded: the one that prefill gives comes on top. Time is that of decoding."""
    rig = make_rig()
    (one,) = run(rig, Case(kind=CaseKind.DECODE, config=FP16, new_tokens=5), repeats=1)[0].generated
    assert (one.prompt_tokens, one.new_tokens) == (1, 6)
    assert one.decode_s == pytest.approx(5 * 4e-6)
    assert rate(CaseKind.DECODE, [one]) == pytest.approx(1 / 4e-6)


def test_every_repeat_decodes_the_same_tokens_in_every_mode(make_rig: MakeRig) -> None:
    """The hash is what shows it: exact gives FP16's."""
    case = Case(kind=CaseKind.DECODE, config=FP16, new_tokens=8)
    rig = make_rig("sometimes")
    plain = run(rig, case, repeats=3)
    exact = run(rig, replace(case, config=EXACT), repeats=3)
    hashes = {repeat.token_sha256 for repeat in [*plain, *exact]}
    assert hashes == {token_sha256(tuple(rig.expected("a", 9)))}
    assert exact[0].generated[0].work.drafted > 0
    assert plain[0].generated[0].work.drafted == 0
    assert (exact[0].generated[0].work.drafter, plain[0].generated[0].work.drafter) == ("self", "none")


def test_three_levels_are_counted(make_rig: MakeRig) -> None:
    """What the draft model drafted for the INT4 target, and what that took, stands beside FP16's acceptance."""
    config = replace(EXACT, drafting=replace(EXACT.drafting, drafter="model", three_level=True, draft_length=4))
    case = Case(kind=CaseKind.DECODE, config=config, new_tokens=12)
    work = run(make_rig("always", draft="always"), case, repeats=1)[0].generated[0].work
    assert work.level_drafted > 0
    assert work.level_accepted == work.level_drafted
    assert work.drafter == "model"


def test_a_prefill_is_never_answered_from_the_cache(make_rig: MakeRig) -> None:
    """Each repeat begins with another token, so all of its rows are computed, and they are what is divided."""
    rig = make_rig(max_rows=4)
    repeats = run(rig, Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=8), repeats=4)
    assert [repeat.generated[0].cached_tokens for repeat in repeats] == [0, 0, 0, 0]
    assert {len(asked.tokens) for asked in rig.target.passes} == {4}
    first_tokens = [asked.tokens[0] for asked in rig.target.passes if asked.position == 0]
    assert all(one != other for one, other in pairwise(first_tokens))
    assert rate(CaseKind.PREFILL, repeats[0].generated) == pytest.approx(8 / (2 * 4.3e-6))


@pytest.mark.parametrize("kind", [CaseKind.PREFILL, CaseKind.BOTH])
def test_a_prompt_behind_a_depth_costs_only_itself(make_rig: MakeRig, kind: CaseKind) -> None:
    """The context lies in the cache; it is neither timed nor counted."""
    rig = make_rig()
    case = Case(kind=kind, config=FP16, prompt_tokens=5, new_tokens=3, depth_tokens=20)
    for repeat in run(rig, case, repeats=3):
        (one,) = repeat.generated
        assert (one.prompt_tokens, one.cached_tokens) == (25, 20)
        assert counted_tokens(kind, [one]) == (5 if kind is CaseKind.PREFILL else 8)


def test_decoding_at_a_depth_reads_it_from_the_cache(make_rig: MakeRig) -> None:
    """Also in INT4, whose entries the next repeat must not find."""
    for mode in (Mode.FP16, Mode.INT4, Mode.EXACT):
        rig = make_rig()
        config = replace(EXACT, mode=mode)
        for repeat in run(rig, Case(kind=CaseKind.DECODE, config=config, new_tokens=4, depth_tokens=12), repeats=2):
            (one,) = repeat.generated
            assert (one.prompt_tokens, one.cached_tokens, one.new_tokens) == (12, 11, 5)


def test_the_warm_up_is_not_among_the_repeats(make_rig: MakeRig) -> None:
    """Without it there is one run less, with the same numbers."""
    case = Case(kind=CaseKind.DECODE, config=FP16, new_tokens=3)
    with_it, without = make_rig(), make_rig()
    assert len(run(with_it, case)) == len(run(without, case, has_warm_up=False)) == 2
    assert len(with_it.target.passes) == 3 * 4
    assert len(without.target.passes) == 2 * 4


def test_a_limit_on_rows_holds_for_its_case_only(make_rig: MakeRig) -> None:
    """-b cuts prefill into passes; the session is left as it was, also by an error."""
    rig = make_rig()
    run(rig, Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=6, prefill_rows=2), repeats=1)
    assert {len(asked.tokens) for asked in rig.target.passes} == {2}
    assert rig.session.prefill_rows is None
    rig.target.before_pass = lambda _: (_ for _ in ()).throw(EngineError("out of memory"))
    with pytest.raises(EngineError, match="out of memory"):
        run(rig, Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=6, prefill_rows=2), repeats=1)
    assert rig.session.prefill_rows is None


PROMPTS = tuple(SetPrompt(f"p{number}", kind, text) for number, (kind, text) in enumerate(
    [("prose", "abc"), ("prose", "bcd"), ("code", "xyz")]
))  # fmt: skip


def test_a_set_runs_each_prompt_with_its_task(make_rig: MakeRig) -> None:
    """Ids and tasks stay with the numbers; the tokens are those of each prompt alone."""
    rig = make_rig("sometimes")
    case = Case(kind=CaseKind.PROMPTS, config=EXACT, new_tokens=6, prompt_set="mine", prompts=PROMPTS)
    (repeat,) = run(rig, case, repeats=1)
    assert [(one.id, one.kind) for one in repeat.generated] == [("p0", "prose"), ("p1", "prose"), ("p2", "code")]
    for one, prompt in zip(repeat.generated, PROMPTS, strict=True):
        assert list(one.tokens or ()) == rig.expected(prompt.text, one.new_tokens)


def test_a_set_ends_at_the_end_of_text_unless_told_otherwise(make_rig: MakeRig) -> None:
    """Past its end a small model repeats itself, which flatters every drafter."""
    rig = make_rig(model={"forced": {5: 26}})
    case = Case(kind=CaseKind.PROMPTS, config=FP16, new_tokens=9, prompt_set="mine", prompts=PROMPTS[:1])
    (one,) = run(rig, case, repeats=1)[0].generated
    assert (one.new_tokens, one.finish_reason) == (3, "stop")
    going_on = replace(case, config=replace(FP16, ignore_eos=True))
    (one,) = run(rig, going_on, repeats=1)[0].generated
    assert (one.new_tokens, one.finish_reason) == (9, "length")


def test_what_the_engine_cannot_run_is_refused(make_rig: MakeRig) -> None:
    """Batches and passes wider than the engine's are named, never cut down silently."""
    rig = make_rig(max_rows=16)
    with pytest.raises(ConfigError, match="-npl asks for 8 sequences at once: the engine fake has no slots"):
        session_runs(rig.session, Case(kind=CaseKind.DECODE, config=FP16, new_tokens=2, sequences=8))
    with pytest.raises(ConfigError, match="-b asks for 17 rows in a prefill pass, the engine fake takes at most 16"):
        session_runs(rig.session, Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=2, prefill_rows=17))


@pytest.mark.parametrize(
    ("case", "takes"),
    [
        (Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=60), 61),
        (Case(kind=CaseKind.DECODE, config=FP16, new_tokens=60), 62),
        (Case(kind=CaseKind.DECODE, config=FP16, new_tokens=20, depth_tokens=40), 62),
        (Case(kind=CaseKind.PROMPTS, config=FP16, new_tokens=60, prompt_set="mine", prompts=PROMPTS), 63),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(case: Case, takes: int) -> None:
    """The room a case takes is known: it fits at exactly that size and is refused one below."""
    require_room([case], Letters(), context_tokens=takes)
    with pytest.raises(ConfigError, match=rf"takes {takes} tokens, the context holds {takes - 1}: .*raise --context"):
        require_room([case], Letters(), context_tokens=takes - 1)


def test_room_is_enough_where_it_is_said_to_be(make_rig: MakeRig) -> None:
    """A case that fills the context to its last token gets all of its tokens."""
    for case in (
        Case(kind=CaseKind.DECODE, config=EXACT, new_tokens=20, depth_tokens=42),
        Case(kind=CaseKind.BOTH, config=EXACT, prompt_tokens=30, new_tokens=33),
    ):
        require_room([case], Letters(), context_tokens=64)
        (one,) = run(make_rig(context_tokens=64), case, repeats=1)[0].generated
        assert one.finish_reason == "length"
        assert one.new_tokens == case.new_tokens + (case.kind is CaseKind.DECODE)


@pytest.fixture
def make_metered(make_rig: MakeRig, meters: ModuleType) -> Callable[..., Any]:
    """Return ``make(script, **sensor)``: a rig whose passes take a second at the script's power."""

    def make(script: Any = lambda _: {"r1": 4_000.0}, **sensor: Any) -> Any:
        bench = meters.Bench(script, period_ms=20.0, **sensor)
        rig = make_rig(session={"meter": bench.meter, "meter_note": None, "clock": bench.clock, "wait": bench.run})
        rig.target.before_pass = lambda _: bench.run(PASS_S)
        return rig, bench

    return make


def test_joules_of_a_repeat_are_those_of_all_its_generations(make_metered: Callable[..., Any]) -> None:
    """At 4 W, three prompts of one prefill and five tokens each are 18 s of passes; the phases add up to the whole."""
    rig, _ = make_metered()
    case = Case(kind=CaseKind.PROMPTS, config=FP16, new_tokens=6, prompt_set="mine", prompts=PROMPTS)
    (repeat,) = run(rig, case, repeats=1)
    energy = repeat.energy
    assert energy is not None
    assert energy.reading.joules == pytest.approx(4.0 * 18, rel=0.01)
    assert energy.tokens == 18
    assert energy.joules_per_token == pytest.approx(4.0, rel=0.01)
    assert energy.by_phase["prefill"] == pytest.approx(12.0, rel=0.05)
    assert energy.by_phase["verify"] == pytest.approx(60.0, rel=0.05)
    assert energy.decode_joules_per_token == pytest.approx(60.0 / 18, rel=0.05)
    assert repeat.energy_note is None


def test_idle_power_is_subtracted_where_it_was_measured(make_metered: Callable[..., Any]) -> None:
    """1 W at rest and 4 W at work: joules above idle are three quarters; without a baseline they are not known."""
    power = {"mw": 1_000.0}
    rig, bench = make_metered(lambda _: {"r1": power["mw"]})
    case = Case(kind=CaseKind.DECODE, config=FP16, new_tokens=5)
    (repeat,) = run(rig, case, repeats=1)
    assert repeat.energy is not None
    assert repeat.energy.joules_per_token_above_idle is None
    bench.meter.measure_idle(10.0)
    power["mw"] = 4_000.0
    (repeat,) = run(rig, case, repeats=1)
    assert repeat.energy is not None
    assert repeat.energy.joules_per_token == pytest.approx(4.0, rel=0.01)
    assert repeat.energy.joules_per_token_above_idle == pytest.approx(3.0, rel=0.01)


def test_the_warm_up_and_the_depth_cost_no_joules(make_metered: Callable[..., Any]) -> None:
    """Only the repeat is inside the window: five decoding passes and the last row of the prompt."""
    rig, _ = make_metered()
    case = Case(kind=CaseKind.DECODE, config=FP16, new_tokens=5, depth_tokens=30)
    (repeat,) = run(rig, case, repeats=1)
    assert repeat.energy is not None
    assert repeat.energy.reading.joules == pytest.approx(4.0 * 6, rel=0.02)


@pytest.mark.parametrize("says", ["permission denied", "no such device"])
def test_not_measured_is_none_with_the_reason(make_metered: Callable[..., Any], says: str) -> None:
    """Never 0, and the row is there all the same."""
    rig, _ = make_metered(lambda _: {"r1": says})
    (repeat,) = run(rig, Case(kind=CaseKind.DECODE, config=FP16, new_tokens=3), repeats=1)
    assert repeat.energy is None
    assert says in (repeat.energy_note or "")
    assert rate(CaseKind.DECODE, repeat.generated) is not None


def test_without_a_meter_the_sessions_reason_stands(make_rig: MakeRig) -> None:
    """What ``edgeprec.load`` found out is what the row says."""
    rig = make_rig(session={"meter_note": "no power sensor can be read"})
    (repeat,) = run(rig, Case(kind=CaseKind.DECODE, config=FP16, new_tokens=3), repeats=1)
    assert (repeat.energy, repeat.energy_note) == (None, "no power sensor can be read")
    assert rig.session.meter_note == "no power sensor can be read"


def make_generated(**changes: Any) -> Generated:
    """Return a generation of round numbers."""
    values: dict[str, Any] = {
        "id": "p",
        "kind": "",
        "prompt_tokens": 100,
        "cached_tokens": 20,
        "new_tokens": 41,
        "prefill_s": 2.0,
        "decode_s": 8.0,
        "finish_reason": "length",
        "text": "",
    }
    return Generated(**values | changes)


@pytest.mark.parametrize(
    ("kind", "expected", "counted"),
    [
        (CaseKind.PREFILL, 80 / 2.0, 80),
        (CaseKind.DECODE, 40 / 8.0, 41),
        (CaseKind.PROMPTS, 40 / 8.0, 41),
        (CaseKind.BOTH, 121 / 10.0, 121),
    ],
)
def test_each_kind_counts_its_own_tokens(kind: CaseKind, expected: float, counted: int) -> None:
    """As docs/bench-format.md defines them; several generations are added before they are divided."""
    one = make_generated()
    assert rate(kind, [one]) == pytest.approx(expected)
    assert rate(kind, [one, one]) == pytest.approx(expected)
    assert counted_tokens(kind, [one, one]) == 2 * counted


@pytest.mark.parametrize("kind", list(CaseKind))
def test_nothing_in_no_time_has_no_rate(kind: CaseKind) -> None:
    """A division by zero is not a speed."""
    nothing = make_generated(prompt_tokens=20, new_tokens=0, prefill_s=0.0, decode_s=0.0)
    assert rate(kind, [nothing]) is None
    assert rate(kind, []) is None


def test_names_are_llama_benchs() -> None:
    """A table can be laid beside another one."""
    names = [
        Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=512).name,
        Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=512, prefill_rows=16, depth_tokens=8).name,
        Case(kind=CaseKind.DECODE, config=FP16, new_tokens=128, depth_tokens=4096).name,
        Case(kind=CaseKind.DECODE, config=FP16, new_tokens=128, sequences=8).name,
        Case(kind=CaseKind.BOTH, config=FP16, prompt_tokens=512, new_tokens=128).name,
        Case(kind=CaseKind.PROMPTS, config=FP16, new_tokens=64, prompt_set="small").name,
    ]
    assert names == ["pp512", "pp512 b16 @ d8", "tg128 @ d4096", "tg128 x8", "pp512+tg128", "small tg64"]


def test_the_corpus_is_the_products_own_texts() -> None:
    """Real text, however long the prompt: it begins anew where it ends."""
    corpus = Corpus(lambda text: list(text.encode()), lambda tokens: bytes(tokens).decode())
    case = Case(kind=CaseKind.DECODE, config=FP16, new_tokens=4, depth_tokens=40)
    (job,) = corpus.jobs(case, 0)
    assert job.text.startswith("The last letter in the box had never")
    longer = replace(case, depth_tokens=len(corpus.tokens) + 3)
    assert corpus.context(longer)[-3:] == corpus.tokens[:3]


def test_a_corpus_of_one_token_still_gives_prompts(make_rig: MakeRig) -> None:
    """No two prompts can differ then: what the cache answers is not counted."""
    repeats = run(make_rig(), Case(kind=CaseKind.PREFILL, config=FP16, prompt_tokens=5), corpus=Letters("a"))
    assert [repeat.generated[0].cached_tokens for repeat in repeats] == [4, 4]
    assert counted_tokens(CaseKind.PREFILL, repeats[0].generated) == 1
