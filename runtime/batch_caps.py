"""How many tokens a batch drafts in its next round: one cap for all, from whole rounds timed at this many slots.

A round over P slots with cap K costs ``seconds(P, K)``, draft and verification together: the host hears of a round
once, so whole rounds are what it can time. A sequence that has a share a of its drafts accepted gains
1 + a + ... + a^K tokens. The cap is the one with the most tokens a second over all sequences; 0 when none beats plain
decoding by more than the noise, so that speculation switches itself off where a batch makes it a loss.

Whatever the estimates say, an account holds what drafting rounds really saved against plain ones. Once they have lost
a hundredth of all time and eight plain rounds, nothing is drafted until plain rounds have made that small again: so
finding out, too, costs little more than that. While nothing is drafted the texts run ahead of the drafter: a trial is
for texts that are near, where there are any, and what catching up with all took is a debt that is charged where
drafting ends before it has paid.

A policy outlives its batches: the next one begins with what rounds cost, how much was accepted lately, and the account,
so that many short batches find out no more often than one long batch does. No time is for ever: where not even full
acceptance would pay by the times there are, they are doubted ever more rarely, and what a trial lost once fades.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BatchCosts", "CapPolicy"]

_CAPS = (0, 1, 2, 3, 5, 7)  # what is chosen from: every cap is a graph of its own
_TRIED_CAPS = (3, 5)  # what is timed first besides plain rounds
_CLIP = 1.5
_LEAST_RATE = 1 / 8
_LEAST_SECONDS = 1e-9
_ENOUGH_SAMPLES = 2
_LEAST_GAIN = 1.02  # over plain decoding
_GAIN_A_TOKEN = 1 / 2000  # more for each token behind: ``_CATCH_UP``, to be back in 200 rounds
_LEAST_CHANGE = 1.03  # over the cap in use
_DECIDE_EVERY = 8
_PLAIN_EVERY = 128  # rounds between two plain ones, so that their cost stays known
_PROBE_EVERY = 64  # rounds between two trials while speculation is off; doubled each time
_LONGEST_PROBE = 256
_REST = 32  # rounds without a decision while speculation is off
_NEAR_BEFORE = 8  # rounds before a trial in which the drafter reads prompts again
_CATCH_UP = 0.1  # plain rounds' time that a token behind may take with ``_MANY`` slots, less with fewer
_MANY = 64
_MOST_LOST = 0.01  # of all time
_FREE_ROUNDS = 8.0  # that drafting may lose besides: to find out at all
_ACCOUNT_KEEP = 1 - 1 / 4096  # of the account a round: two thousandths more may be lost, again and again
_PROBE_KEEP = 0.5  # of all counts at a trial: they are old by then
_KEEP = 0.9  # of a sequence's counts a round
_POOLED_KEEP = 0.98
_PRIOR_TESTS = 4.0
_FIRST_RATE = 0.6


@dataclass(slots=True)
class _RoundTime:
    """The mean seconds of one kind of round; a stall counts as little more than an ordinary one."""

    samples: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        if self.samples < _ENOUGH_SAMPLES:
            self.seconds = min(self.seconds, seconds) if self.samples else seconds
        else:
            clipped = min(max(seconds, self.seconds / _CLIP), self.seconds * _CLIP)
            self.seconds += max(1 / (self.samples + 1), _LEAST_RATE) * (clipped - self.seconds)
        self.samples += 1


@dataclass(slots=True)
class BatchCosts:
    """Seconds of whole rounds by slots and cap."""

    rounds: dict[int, dict[int, _RoundTime]] = field(default_factory=dict)

    def seconds(self, slots: int, cap: int) -> float | None:
        """Return what a round costs: measured, or from the nearest caps that were. None before.

        That is the line through two that draft, and not through the plain round: that a round drafts at all may cost
        more than what it drafts. Where one alone was measured, a smaller cap counts as much, and a larger one lies on
        the line from the plain round, which is the dearest there is.
        """
        known = self.rounds.get(slots, {})
        if cap in known:
            return known[cap].seconds
        plain = known[0].seconds if 0 in known else _LEAST_SECONDS
        caps = sorted(one for one in known if one)
        if not caps or not cap:
            return None
        at = min(max(bisect_left(caps, cap), 1), len(caps) - 1)
        low, high = (0, caps[0]) if len(caps) == 1 else (caps[at - 1], caps[at])
        first, last = (known[one].seconds if one else plain for one in (low, high))
        if len(caps) == 1 and cap < high:
            return last
        slope = max((last - first) / (high - low), 0.0)
        return max(first + slope * (cap - low), plain, _LEAST_SECONDS)

    def samples(self, slots: int, cap: int) -> int:
        """Return how many such rounds were timed."""
        found = self.rounds.get(slots, {}).get(cap)
        return 0 if found is None else found.samples

    def doubt(self, slots: int, cap: int) -> None:
        """Forget what drafting costs but for one round of ``cap``: if the next is faster, that one was a stall."""
        known = self.rounds.get(slots, {})
        self.rounds[slots] = {one: time for one, time in known.items() if one in (0, cap)}
        if cap in known:
            known[cap].samples = 1

    def add(self, slots: int, cap: int, seconds: float) -> None:
        """Take in one round."""
        self.rounds.setdefault(slots, {}).setdefault(cap, _RoundTime()).add(seconds)


@dataclass(slots=True)
class _Rate:
    """A decaying share of accepted drafts."""

    accepted: float = 0.0
    tested: float = 0.0

    def add(self, *, accepted: int, tested: int, keep: float) -> None:
        self.accepted = keep * self.accepted + accepted
        self.tested = keep * self.tested + tested

    def mean(self, prior: float) -> float:
        return (self.accepted + _PRIOR_TESTS * prior) / (self.tested + _PRIOR_TESTS)


@dataclass(slots=True)
class _Account:
    """Seconds that drafting rounds saved against plain ones, and how much of all time they may lose."""

    saved: float = 0.0
    spent: float = 0.0
    debt: float = 0.0  # of catching up
    trial: float = 0.0  # that a trial may lose, as trials before did; it fades

    def add(self, saved: float, seconds: float) -> None:
        """Take in a round; what was saved long ago does not excuse losses, and what was lost long ago is forgotten."""
        self.spent = _ACCOUNT_KEEP * self.spent + seconds
        self.trial *= _ACCOUNT_KEEP
        paid = min(max(saved, 0.0), self.debt)
        self.debt -= paid
        self.saved = min(_ACCOUNT_KEEP * self.saved + saved - paid, _MOST_LOST * self.spent)

    def add_trial(self, lost: float) -> None:
        self.trial = max(lost, self.trial / 2)

    def charge(self) -> None:
        """Count what catching up took and drafting did not bring back."""
        self.saved, self.debt = self.saved - self.debt, 0.0

    def allows(self, plain: float, lost: float = 0.0) -> bool:
        """Whether a round may lose so many seconds."""
        return lost - self.saved <= _MOST_LOST * self.spent + _FREE_ROUNDS * plain


@dataclass(slots=True)
class CapPolicy:
    """Chooses the cap of each round, batch after batch. It looks at no clock."""

    costs: BatchCosts
    largest: int
    pooled: _Rate = field(default_factory=_Rate)
    rounds_off: int = 0
    is_trial: bool = False  # the cap given last is to find out: texts far ahead of the drafter better stay out
    _rates: dict[int, _Rate] = field(default_factory=dict)
    _choice: tuple[int, int] | None = None  # slots and cap
    _age: int = 0
    _since_plain: int = 0
    _since_probe: int = 0
    _probe_every: int = _PROBE_EVERY
    _account: _Account = field(default_factory=_Account)
    _hopeless: dict[int, int] = field(default_factory=dict)  # by slots: trials that were due and could not pay

    def begin(self, largest: int) -> None:
        """Forget the texts of the batch before; the next one drafts so many tokens at most."""
        self.largest = largest
        self._rates.clear()
        self.rounds_off, self._age = 0, _REST
        self._account.charge()

    def rests(self, slots: int) -> bool:
        """Whether the coming round is plain without any look at the texts; else ``cap`` is to be asked.

        Between two rounds the device waits, so a policy that is off must cost next to nothing.
        """
        if self._choice != (slots, 0) or self._age >= _REST or self._since_probe + 1 >= self._probe_every:
            return False
        self.is_trial = False
        self._age += 1
        self._since_probe += 1
        self._off()
        return True

    def keeps_up(self, slots: int) -> bool:
        """Whether the drafter is to read a prompt that joins: not while speculation is off and no trial is near."""
        return self._choice != (slots, 0) or self._since_probe + _NEAR_BEFORE >= self._probe_every

    def cap(self, slots: int, members: Sequence[int], *, others: int = 0, behind: int = 0, is_near: bool = True) -> int:
        """Return the cap of the coming round of these sequences; so many ``others`` run with them and wait for it.

        The drafter is so many tokens ``behind`` the text it is furthest from, and near to some (``is_near``).
        """
        self.is_trial = False
        most_gain = len(members) / (len(members) + others)
        untimed = self._untimed(slots, most_gain)
        if untimed == 0:
            return 0
        plain = self.costs.seconds(slots, 0)
        assert plain is not None
        far = 0.0 if is_near else _CATCH_UP * slots / _MANY * behind * plain
        if not self._account.allows(plain, 0.0 if untimed is None else far):
            self._choice, self._age = (slots, 0), 0
            return self._off()
        if untimed is not None:
            self.is_trial = True
            return untimed
        if self._choice is None or self._choice[0] != slots or self._age >= self._every:
            self._decide(slots, members, others, behind)
        self._age += 1
        assert self._choice is not None
        cap = self._choice[1]
        if cap == 0:
            lost = max(self._account.trial, far)
            self.is_trial = self._is_due(slots, most_gain, plain, lost)
            return min(_TRIED_CAPS[0], self.largest) if self.is_trial else self._off()
        self._since_plain += 1
        if self._since_plain >= _PLAIN_EVERY:
            self._since_plain = 0
            return 0
        return cap

    def _off(self) -> int:
        self._account.charge()
        self.rounds_off += 1
        return 0

    def observe(
        self,
        slots: int,
        cap: int,
        seconds: float | None,
        outcomes: Sequence[tuple[int, int, int]],
        *,
        is_caught_up: bool = True,
    ) -> None:
        """Take in a round: (sequence, drafted, accepted) of each, and its time where that is worth something.

        Its time is no measure of such rounds where the drafter had to catch up with the texts first.
        """
        if seconds is not None:
            self._count(slots, cap, seconds, outcomes, is_caught_up=is_caught_up)
        tested = taken = 0
        for sequence, drafted, accepted in outcomes:
            if drafted:
                tests = min(accepted + 1, drafted)
                rate = self._rates.setdefault(sequence, _Rate())
                rate.add(accepted=accepted, tested=tests, keep=_KEEP)
                tested, taken = tested + tests, taken + accepted
        if tested:
            self.pooled.add(accepted=taken, tested=tested, keep=_POOLED_KEEP)

    def _count(
        self, slots: int, cap: int, seconds: float, outcomes: Sequence[tuple[int, int, int]], *, is_caught_up: bool
    ) -> None:
        if is_caught_up:
            expected = self.costs.seconds(slots, cap)
            is_known = self.costs.samples(slots, cap) >= _ENOUGH_SAMPLES
            self.costs.add(slots, cap, seconds)
            if expected is not None and is_known:  # a stall is not drafting's fault
                seconds = min(seconds, _CLIP * expected)
            if self.costs.samples(slots, cap) == _ENOUGH_SAMPLES:
                self._age = _REST  # what was an estimate is known now
        plain = self.costs.seconds(slots, 0)
        if plain is None:
            return
        gained = 1.0 + sum(accepted for _, _, accepted in outcomes) / max(len(outcomes), 1)
        saved = gained * plain - seconds if cap else 0.0
        is_trial, self.is_trial = self.is_trial and cap > 0, False
        if not is_caught_up and not is_trial:
            self._account.debt -= saved
            saved = 0.0
        self._account.add(saved, seconds)
        if is_trial:
            self._account.add_trial(-saved)

    def score(self, slots: int, cap: int, members: Sequence[int], *, others: int = 0) -> float:
        """Return tokens a second of a round with this cap, in which the others give a token each."""
        seconds = self.costs.seconds(slots, cap)
        assert seconds is not None
        pooled = self.pooled.mean(_FIRST_RATE)
        nobody = _Rate()
        rates = [self._rates.get(member, nobody).mean(pooled) for member in members]
        return (others + sum(rate**place for rate in rates for place in range(cap + 1))) / seconds

    def _untimed(self, slots: int, most_gain: float) -> int | None:
        """Return a cap that is to be timed first: 0, and further ones as long as full acceptance could pay.

        A plain round first, without which nothing tells what the others lose; those before more plain ones, while the
        drafter still keeps up with the texts.
        """
        if not self.costs.samples(slots, 0):
            return 0
        most = self._allowed[-1]
        for tried in (min(cap, most) for cap in _TRIED_CAPS):
            if self.costs.samples(slots, tried) < _ENOUGH_SAMPLES:
                return tried
            if not self._can_pay(slots, tried, most_gain):
                break
        return 0 if self.costs.samples(slots, 0) < _ENOUGH_SAMPLES else None

    def _can_pay(self, slots: int, cap: int, most_gain: float) -> bool:
        """Whether full acceptance would pay; ``most_gain`` is what a draft adds then, in tokens a sequence."""
        plain, seconds = self.costs.seconds(slots, 0), self.costs.seconds(slots, cap)
        return plain is None or (seconds is not None and (1.0 + most_gain * cap) * plain > seconds)

    @property
    def _every(self) -> int:
        """Return how many rounds a decision holds."""
        return _DECIDE_EVERY if self._choice is not None and self._choice[1] else _REST

    @property
    def _allowed(self) -> list[int]:
        return [cap for cap in _CAPS if cap <= self.largest]

    def _decide(self, slots: int, members: Sequence[int], others: int, behind: int) -> None:
        scores = {cap: self.score(slots, cap, members, others=others) for cap in self._allowed}
        best = max(scores, key=scores.__getitem__)
        used = self._choice[1] if self._choice is not None and self._choice[0] == slots else None
        if used and used in scores and scores[best] <= _LEAST_CHANGE * scores[used]:
            best = used
        if scores[best] <= (_LEAST_GAIN + _GAIN_A_TOKEN * slots / _MANY * behind) * scores[0]:
            best = 0
        self._choice, self._age = (slots, best), 0

    def _is_due(self, slots: int, most_gain: float, plain: float, lost: float) -> bool:
        """Whether to draft once where speculation is off: now and then, and ever more rarely where it cannot pay."""
        self._since_probe += 1
        if self._since_probe < self._probe_every:
            return False
        if not self._account.allows(plain, lost):
            self._since_probe = max(self._probe_every - _REST, 0)
            return False
        self._since_probe = 0
        self._probe_every = min(2 * self._probe_every, _LONGEST_PROBE)
        if not self._is_worth_a_trial(slots, most_gain, lost):
            return False
        for rate in (self.pooled, *self._rates.values()):
            rate.add(accepted=0, tested=0, keep=_PROBE_KEEP)
        self._age = _REST  # what it shows is looked at in the next round
        return True

    def _is_worth_a_trial(self, slots: int, most_gain: float, lost: float) -> bool:
        """Whether full acceptance would pay. Else times may be wrong at the 1st, 2nd, 4th, 8th ... trial that is due.

        Such a trial has no free rounds, and two may follow each other, as one that had to catch up gives no time.
        """
        if any(self._can_pay(slots, cap, most_gain) for cap in self._allowed if cap):
            self._hopeless.pop(slots, None)
            return True
        if not self._account.allows(0.0, lost + self._account.trial):
            return False
        count = self._hopeless[slots] = self._hopeless.get(slots, 0) + 1
        if count & (count - 1):
            return False
        self.costs.doubt(slots, min(_TRIED_CAPS[0], self.largest))
        return True
