"""Whether ``exact`` gives the tokens of ``fp16``: many prompts, several numbers of gated layers, greedy and seeded.

The draft length is fixed, so that every round drafts and FP16 has something to refuse. Each prompt meets one case in
the first sweep, another one in the second, and so on: stopped early, every case has been compared on many prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from decode_record import decode_one

from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, GenerationConfig, Mode, SamplingConfig
from edgeprec.prompts import Prompt
from edgeprec.runtime.session import Session

__all__ = ["ALL_IDENTICAL", "CUT_SHORT", "DIFFERENT", "Case", "Check", "cases", "check_identical", "print_checks"]

DRAFT_LENGTH = 5
TEMPERATURE = 0.8
ALL_IDENTICAL, DIFFERENT, CUT_SHORT = 0, 1, 3  # exit codes; 2 is a wrong command line's


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to decode exactly. ``gated_layers`` None = all layers and the head in INT4."""

    name: str
    drafter: DrafterKind
    gated_layers: int | None = None
    is_seeded: bool = False

    def config(self, tokens: int, *, seed: int) -> GenerationConfig:
        """Return the settings for one prompt."""
        return GenerationConfig(
            max_new_tokens=tokens,
            ignore_eos=True,
            sampling=SamplingConfig(temperature=TEMPERATURE, seed=seed) if self.is_seeded else SamplingConfig(),
            controller=ControllerConfig(gated_layers=self.gated_layers),
            drafting=DraftingConfig(drafter=self.drafter, draft_length=DRAFT_LENGTH),
        )


@dataclass(slots=True)
class Check:
    """What came of a case so far; ``differences`` say where a reply left FP16's tokens."""

    compared: int = 0
    identical: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    differences: list[str] = field(default_factory=list)


class _Job(NamedTuple):
    index: int
    prompt: Prompt
    case: Case


def cases(gated: Sequence[int], *, has_draft: bool) -> tuple[Case, ...]:
    """Return the cases: each number of gated layers, all of them with the head, a draft model, and sampled ones."""
    own = DrafterKind.SELF
    found = [Case(name=f"{count} gated layers", drafter=own, gated_layers=count) for count in gated]
    found.append(Case(name="all layers and the head", drafter=own))
    found.append(Case(name=f"all, temperature {TEMPERATURE}, seeded", drafter=own, is_seeded=True))
    if has_draft:
        model = DrafterKind.MODEL
        found.append(Case(name="draft model", drafter=model))
        found.append(Case(name=f"draft model, temperature {TEMPERATURE}, seeded", drafter=model, is_seeded=True))
    return tuple(found)


def check_identical(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    tokens: int,
    which: Sequence[Case],
    has_time: Callable[[], bool],
    report: Callable[[dict[str, Check]], object],
) -> dict[str, Check]:
    """Compare until all is compared or time runs out; ``report`` is called now and then with what there is."""
    checks = {case.name: Check() for case in which}
    plain: dict[tuple[str, bool], tuple[int, ...]] = {}
    for count, job in enumerate(_jobs(prompts, which)):
        if not has_time():
            break
        config = job.case.config(tokens, seed=job.index)
        key = (job.prompt.id, job.case.is_seeded)
        if key not in plain:
            plain[key] = decode_one(session, "fp16", replace(config, mode=Mode.FP16), job.prompt).tokens
        _compare(checks[job.case.name], session, config, job, plain[key])
        if count % 25 == 24:
            report(checks)
    return checks


def _jobs(prompts: Sequence[Prompt], which: Sequence[Case]) -> Iterator[_Job]:
    for sweep in range(len(which)):
        for index, prompt in enumerate(prompts):
            yield _Job(index, prompt, which[(index + sweep) % len(which)])


def _compare(check: Check, session: Session, config: GenerationConfig, job: _Job, expected: tuple[int, ...]) -> None:
    record = decode_one(session, job.case.name, config, job.prompt)
    check.compared += 1
    check.tokens += len(expected)
    check.drafted += record.drafted
    check.accepted += record.accepted
    if record.tokens == expected:
        check.identical += 1
        return
    pairs = enumerate(zip(record.tokens, expected, strict=False))
    where = next((index for index, (got, want) in pairs if got != want), min(len(record.tokens), len(expected)))
    check.differences.append(f"{job.prompt.id}, seed {job.index}: token {where}")


def print_checks(checks: dict[str, Check], *, planned: int) -> int:
    """Print one line per case and the sum, and return the exit code: a difference counts before what is missing."""
    for name, check in checks.items():
        accepted = f"{check.accepted / check.drafted:.2f}" if check.drafted else "-"
        print(
            f"{name}: identical: {check.identical} of {check.compared} ({check.tokens:,} tokens; {check.drafted:,} "
            f"drafted, acceptance {accepted})"
        )
        for difference in check.differences[:5]:
            print(f"  differs at {difference}")
    identical = sum(check.identical for check in checks.values())
    compared = sum(check.compared for check in checks.values())
    tokens = sum(check.tokens for check in checks.values())
    print(f"identical: {identical} of {compared} replies, {tokens:,} tokens; {planned} were planned")
    is_short = compared < max(planned, 1)  # nothing compared is no success either
    if is_short:
        print(f"cut short: {compared} of {planned} planned replies were compared; give --limit-s more time")
    if identical < compared:
        return DIFFERENT
    return CUT_SHORT if is_short else ALL_IDENTICAL
