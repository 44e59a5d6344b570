"""One cap for a batch: what pays, what does not, and how little finding out may cost, on simulated costs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from edgeprec.runtime.batch_caps import BatchCosts, CapPolicy

LARGEST = 7


class Machine:
    """Rounds that cost what ``seconds`` says, with every draft of sequence b accepted with probability rates[b]."""

    def __init__(
        self,
        seconds: Callable[[int], float],
        rates: list[float],
        *,
        seed: int = 0,
        catch_up: float = 0.0,
        has_joins: bool = True,
    ) -> None:
        self.has_joins = has_joins
        self.seconds, self.rates, self.catch_up = seconds, rates, catch_up
        self.random = random.Random(seed)
        self.caps: list[int] = []
        self.lacks = [1] * len(rates)  # tokens that the drafter has not read: of each 16 it needs a pass
        self.spent = 0.0
        self.tokens = 0

    def run(self, policy: CapPolicy, rounds: int, *, slots: int = 8) -> None:
        """Decode."""
        members = range(len(self.rates))
        for _ in range(rounds):
            lacks = self.lacks
            cap = 0 if policy.rests(slots) else policy.cap(slots, members, behind=max(lacks), is_near=min(lacks) <= 18)
            near = [member for member in members if lacks[member] <= (2 if min(lacks) <= 2 else 18)]
            drafting = near if policy.is_trial and near else list(members) if cap else []
            outcomes = []
            for member in members:
                accepted = 0
                while member in drafting and accepted < cap and self.random.random() < self.rates[member]:
                    accepted += 1
                outcomes.append((member, cap if member in drafting else 0, accepted))
                self.tokens += accepted + 1
            took = self.seconds(cap) * self.random.uniform(0.97, 1.03)
            behind = max((lacks[member] for member in drafting), default=0)
            if behind > 2:
                took += self.catch_up * -(-behind // 16)
            for member, (_, _, accepted) in enumerate(outcomes):
                lacks[member] = 1 if member in drafting else lacks[member] + accepted + 1
            if (
                self.has_joins and self.random.random() < len(self.rates) / 128
            ):  # a reply ends, the next takes its place
                lacks[lacks.index(max(lacks))] = 1 if policy.keeps_up(slots) else 100
            self.caps.append(cap)
            self.spent += took
            policy.observe(slots, cap, took, outcomes, is_caught_up=behind <= 2)

    def over_plain(self) -> float:
        """Return the speed over plain decoding's."""
        return self.tokens / self.spent / (len(self.rates) / self.seconds(0))

    def best_over_plain(self) -> float:
        """Return what the best fixed cap would reach."""

        def speed(cap: int) -> float:
            return sum(rate**place for rate in self.rates for place in range(cap + 1)) / self.seconds(cap)

        return max(speed(cap) for cap in range(LARGEST + 1)) / speed(0)


def line(plain: float, first: float, step: float) -> Callable[[int], float]:
    """Return costs of rounds: a plain one, what drafting adds at all, and what every draft adds."""
    return lambda cap: plain + (first if cap else 0.0) + cap * step


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("costs", [line(1.0, 0.05, 0.1), line(1.0, 0.1, 0.25), line(1.0, 0.0, 0.6)])
def test_speed_is_near_the_best_fixed_cap(costs: Callable[[int], float], rate: float) -> None:
    """After a few trials the cap is as good as one chosen by hand, whatever the acceptance."""
    machine = Machine(costs, [rate] * 8)
    machine.run(CapPolicy(BatchCosts(), LARGEST), 1500)
    assert machine.over_plain() > 0.93 * machine.best_over_plain()


@pytest.mark.parametrize("costs", [line(1.0, 0.5, 0.9), line(1.0, 2.0, 1.5), line(1.0, 0.3, 0.4)])
def test_never_much_slower_than_plain(costs: Callable[[int], float]) -> None:
    """Where speculation is a loss it switches itself off, and the trials cost less than two percent."""
    machine = Machine(costs, [0.3] * 16)
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine.run(policy, 1500, slots=16)
    assert machine.over_plain() > 0.98
    assert policy.rounds_off > 1000
    assert machine.caps.count(0) > 0.95 * len(machine.caps)


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.7])
@pytest.mark.parametrize("costs", [line(1.0, 0.9, 0.15), line(1.0, 1.4, 0.2), line(1.0, 1.0, 0.5)])
def test_catching_up_is_part_of_the_price(costs: Callable[[int], float], rate: float) -> None:
    """That a round drafts at all is dear, and a drafter left behind dearer: still two percent is all that is lost."""
    machine = Machine(costs, [rate] * 64, catch_up=1.5)
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine.run(policy, 1500, slots=64)
    assert machine.over_plain() > 0.98
    assert machine.over_plain() > 0.95 * machine.best_over_plain()


def test_an_untimed_cap_is_no_cheaper_than_drafting_at_all() -> None:
    """Between a plain round and the smallest cap measured lies a step, not a line."""
    costs = BatchCosts()
    costs.add(8, 0, 1.0)
    assert costs.seconds(8, 3) is None
    costs.add(8, 3, 2.2)
    assert costs.seconds(8, 1) == pytest.approx(2.2)
    assert costs.seconds(8, 5) == pytest.approx(3.0)
    costs.add(8, 5, 2.4)
    assert costs.seconds(8, 1) == pytest.approx(2.0)
    assert costs.seconds(8, 7) == pytest.approx(2.6)


@pytest.mark.parametrize("costs", [line(1.0, 3.0, 1.1), line(1.0, 2.0, 1.5), line(1.0, 5.0, 1.5)])
def test_what_full_acceptance_cannot_pay_is_tried_ever_more_rarely(costs: Callable[[int], float]) -> None:
    """A round of K drafts that takes longer than K + 1 plain ones costs less than a hundredth, trials included."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(costs, [0.99] * 4)
    lost = []
    for _ in range(5):
        spent, tokens = machine.spent, machine.tokens
        machine.run(policy, 4000)
        lost.append(1 - (machine.tokens - tokens) / (machine.spent - spent) / 4)
        assert 1 - machine.over_plain() < 0.01
    drafted = [at for at, cap in enumerate(machine.caps) if cap]
    assert sum(at >= 4000 for at in drafted) >= 2
    assert sum(at >= 12_000 for at in drafted) <= 4
    assert max(lost[3:]) < 0.005


def stalled(costs: Callable[[int], float], *, rounds: int, times: float) -> Callable[[int], float]:
    """Return costs of which the first so many rounds that draft take so many times as long."""
    left = iter(range(rounds))
    return lambda cap: costs(cap) * (times if cap and next(left, None) is not None else 1.0)


@pytest.mark.parametrize("times", [2.5, 10.0])
@pytest.mark.parametrize(("rounds", "has_joins"), [(400, False), (6000, True)])
def test_a_slow_beginning_is_not_for_ever(rounds: int, has_joins: bool, times: float) -> None:
    """Costs that are bad at first and good then: batches, short or long, come to draft, and the next does at once."""
    costs = line(1.0, 0.1, 0.2)
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(stalled(costs, rounds=2, times=times), [0.8] * 8, has_joins=has_joins)
    run_batches(machine, policy, batches=6000 // rounds, rounds=rounds, slots=8)
    assert machine.caps[:600].count(0) > 590  # the stall did turn it off
    assert machine.caps[-200:].count(0) < 20
    run_batches(machine, policy, batches=1, rounds=100, slots=8)
    assert machine.caps[-100:].count(0) < 10


def test_a_machine_that_was_busy_drafts_again() -> None:
    """What drafting cost was right once and is not any more: a far dearer time is doubted as one from a stall."""
    busy = line(1.0, 3.0, 1.1)
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(busy, [0.8] * 8)
    machine.run(policy, 1000)
    assert set(machine.caps[-500:]) == {0}
    machine.seconds = line(1.0, 0.1, 0.2)
    machine.run(policy, 4000)
    assert machine.caps[-200:].count(0) < 20


def test_another_text_turns_it_on_again() -> None:
    """Acceptance that rises is found by the rare trials; acceptance that falls turns drafting off."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(line(1.0, 0.1, 0.2), [0.05] * 8)
    machine.run(policy, 300)
    assert set(machine.caps[-30:]) == {0}
    machine.rates = [0.9] * 8
    machine.run(policy, 1500)
    assert sum(cap >= 2 for cap in machine.caps[-100:]) > 90
    machine.rates = [0.02] * 8
    machine.run(policy, 200)
    assert machine.caps[-20:].count(0) > 15


def test_another_text_turns_it_on_again_where_none_joins() -> None:
    """A drafter that no text is near to is tried too, as catching up is cheap with few slots."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(line(1.0, 0.1, 0.2), [0.05] * 8, catch_up=0.2, has_joins=False)
    machine.run(policy, 300)
    assert set(machine.caps[-30:]) == {0}
    machine.rates = [0.9] * 8
    machine.run(policy, 3000)
    assert sum(cap >= 2 for cap in machine.caps[-200:]) > 180


def test_a_stall_ends_nothing() -> None:
    """A round that took as long as a hundred counts as little more than an ordinary one."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(line(1.0, 0.1, 0.2), [0.8] * 8)
    machine.run(policy, 500)
    policy.observe(8, policy.cap(8, range(8)), 100.0, [(member, 5, 3) for member in range(8)])
    machine.run(policy, 500)
    assert machine.caps[-500:].count(0) < 50


def test_costs_are_those_of_the_slots() -> None:
    """A batch that shrinks is another device: where one sequence gains, sixteen may not."""
    costs = BatchCosts()
    policy = CapPolicy(costs, LARGEST)
    many = Machine(line(1.0, 0.5, 1.0), [0.7] * 16)
    many.run(policy, 60, slots=16)
    few = Machine(line(1.0, 0.0, 0.1), [0.7] * 16)
    few.run(policy, 60, slots=1)
    assert many.caps[-1] == 0
    assert few.caps[-1] >= 2
    again = CapPolicy(costs, LARGEST)  # another batch on the same device tries nothing anew
    assert again.cap(16, range(16)) == 0


def test_one_sequence_in_many_does_not_decide() -> None:
    """Every sequence counts with its own acceptance."""
    good, bad = [0.97] * 2, [0.02] * 14
    machine = Machine(line(1.0, 0.2, 0.25), [*good, *bad])
    machine.run(CapPolicy(BatchCosts(), LARGEST), 400, slots=16)
    assert machine.caps[-50:].count(0) > 40


@pytest.mark.parametrize(("others", "is_drafting"), [(0, True), (7, False)])
def test_who_does_not_draft_waits_too(others: int, is_drafting: bool) -> None:
    """One that gains two tokens a round for twice the time pays alone, not where seven others only wait for it."""
    costs = BatchCosts()
    for cap, seconds in ((0, 1.0), (3, 1.6), (5, 2.0)):
        for _ in range(2):
            costs.add(8, cap, seconds)
    policy = CapPolicy(costs, LARGEST)
    for _ in range(60):
        policy.observe(8, 3, None, [(0, 3, 3)])
    assert bool(policy.cap(8, [0], others=others)) is is_drafting
    gain = policy.score(8, 5, [0], others=others) / policy.score(8, 0, [0], others=others)
    assert (gain > 1.0) is is_drafting


def test_untimed_rounds_teach_no_cost() -> None:
    """A round that compiled or captured counts for acceptance alone."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    for expected, seconds in ((0, None), (0, None), (0, 1.0), (3, None), (3, None)):
        assert policy.cap(4, range(4)) == expected
        policy.observe(4, expected, seconds, [(index, expected, expected) for index in range(4)])
    assert policy.costs.samples(4, 0) == 1
    assert policy.costs.seconds(4, 3) is None
    assert policy.pooled.mean(0.0) > 0.8


def run_batches(machine: Machine, policy: CapPolicy, *, batches: int, rounds: int, slots: int) -> None:
    """Decode batch after batch; the drafter has read the prompts of each."""
    for _ in range(batches):
        policy.begin(LARGEST)
        machine.lacks = [1] * len(machine.rates)
        machine.run(policy, rounds, slots=slots)


@pytest.mark.parametrize("rounds", [20, 60, 200])
@pytest.mark.parametrize("costs", [line(1.0, 0.9, 0.3), line(1.0, 0.3, 0.4), line(1.0, 0.05, 0.3)])
def test_short_batches_find_out_once(costs: Callable[[int], float], rounds: int) -> None:
    """Where drafting does not pay, the first batch shows it to those after it."""
    machine = Machine(costs, [0.2] * 16, has_joins=False)
    run_batches(machine, CapPolicy(BatchCosts(), LARGEST), batches=4000 // rounds, rounds=rounds, slots=16)
    assert machine.over_plain() > 0.98


def test_short_batches_draft_where_it_pays() -> None:
    """What was learned outlives a batch the other way round too, also when the texts change."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(line(1.0, 0.1, 0.15), [0.05] * 8, has_joins=False)
    run_batches(machine, policy, batches=20, rounds=30, slots=8)
    assert machine.caps[-30:].count(0) > 25
    machine.rates = [0.85] * 8
    run_batches(machine, policy, batches=60, rounds=30, slots=8)
    assert machine.caps[-30:].count(0) < 5


@pytest.mark.parametrize("catch_up", [1.5, 8.0])
def test_a_batch_that_shrinks_foresees_catching_up(catch_up: float) -> None:
    """Nothing is known yet of so few slots, and the drafter is far behind: finding out costs no more than elsewhere."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    many = Machine(line(1.0, 0.9, 0.4), [0.3] * 64, has_joins=False)
    many.run(policy, 1000, slots=64)
    few = Machine(line(1.0, 0.9, 0.4), [0.3] * 32, has_joins=False, catch_up=catch_up)
    few.lacks = [900] * 32
    few.run(policy, 1000, slots=32)
    assert few.over_plain() > 0.97


def test_old_gains_excuse_no_loss() -> None:
    """After 20,000 rounds that gained, texts that drafting does not pay for lose what any would."""
    policy = CapPolicy(BatchCosts(), LARGEST)
    machine = Machine(line(1.0, 0.1, 0.2), [0.9] * 8)
    machine.run(policy, 20_000)
    machine.rates = [0.02] * 8
    before_s, before = machine.spent, machine.tokens
    machine.run(policy, 2000)
    assert (machine.tokens - before) / (machine.spent - before_s) / 8 > 0.96
