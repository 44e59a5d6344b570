"""How many tokens a batch drafts in its next round: one cap for all, from whole rounds timed at this many slots.

A round over P slots with cap K costs ``seconds(P, K)``, draft and verification together: the host hears of a round
once, so whole rounds are what it can time. A sequence that has a share a of its drafts accepted gains
1 + a + ... + a^K tokens. The cap is the one with the most tokens a second over all sequences; 0 when none beats plain
decoding by more than the noise, so that speculation switches itself off where a batch makes it a loss.
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
_LEAST_CHANGE = 1.03  # over the cap in use
_DECIDE_EVERY = 8
_PLAIN_EVERY = 128  # rounds between two plain ones, so that their cost stays known
_PROBE_EVERY = 64  # rounds between two trials while speculation is off; doubled each time
_LONGEST_PROBE = 256
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
    """Seconds of whole rounds by slots and cap. It outlives a batch: the device stays what it is."""

    rounds: dict[int, dict[int, _RoundTime]] = field(default_factory=dict)

    def seconds(self, slots: int, cap: int) -> float | None:
        """Return what a round costs: measured, or on the line through the two nearest caps that were. None before."""
        known = self.rounds.get(slots, {})
        if cap in known:
            return known[cap].seconds
        if len(known) < 2:
            return next((time.seconds for time in known.values()), None)
        caps = sorted(known)
        at = min(max(bisect_left(caps, cap), 1), len(caps) - 1)
        low, high = caps[at - 1], caps[at]
        slope = max((known[high].seconds - known[low].seconds) / (high - low), 0.0)
        return max(known[low].seconds + slope * (cap - low), _LEAST_SECONDS)

    def samples(self, slots: int, cap: int) -> int:
        """Return how many such rounds were timed."""
        found = self.rounds.get(slots, {}).get(cap)
        return 0 if found is None else found.samples

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
class CapPolicy:
    """Chooses the cap of each round of one batch. It looks at no clock."""

    costs: BatchCosts
    largest: int
    pooled: _Rate = field(default_factory=_Rate)
    rounds_off: int = 0
    _rates: dict[int, _Rate] = field(default_factory=dict)
    _choice: tuple[int, int] | None = None  # slots and cap
    _age: int = 0
    _since_plain: int = 0
    _since_probe: int = 0
    _probe_every: int = _PROBE_EVERY

    def cap(self, slots: int, members: Sequence[int], *, others: int = 0) -> int:
        """Return the cap of the coming round of these sequences; so many ``others`` run with them and wait for it."""
        most_gain = len(members) / (len(members) + others)
        untimed = self._untimed(slots, most_gain)
        if untimed is not None:
            return untimed
        if self._choice is None or self._choice[0] != slots or self._age >= _DECIDE_EVERY:
            self._decide(slots, members, others)
        self._age += 1
        assert self._choice is not None
        cap = self._choice[1]
        if cap == 0:
            cap = self._probe(slots, most_gain)
            self.rounds_off += cap == 0
            return cap
        self._since_plain += 1
        if self._since_plain >= _PLAIN_EVERY:
            self._since_plain = 0
            return 0
        return cap

    def observe(self, slots: int, cap: int, seconds: float | None, outcomes: Sequence[tuple[int, int, int]]) -> None:
        """Take in a round: (sequence, drafted, accepted) of each, and its time where that is worth something."""
        if seconds is not None:
            self.costs.add(slots, cap, seconds)
        tested = taken = 0
        for sequence, drafted, accepted in outcomes:
            if drafted:
                tests = min(accepted + 1, drafted)
                rate = self._rates.setdefault(sequence, _Rate())
                rate.add(accepted=accepted, tested=tests, keep=_KEEP)
                tested, taken = tested + tests, taken + accepted
        if tested:
            self.pooled.add(accepted=taken, tested=tested, keep=_POOLED_KEEP)

    def score(self, slots: int, cap: int, members: Sequence[int], *, others: int = 0) -> float:
        """Return tokens a second of a round with this cap, in which the others give a token each."""
        seconds = self.costs.seconds(slots, cap)
        assert seconds is not None
        pooled = self.pooled.mean(_FIRST_RATE)
        nobody = _Rate()
        rates = [self._rates.get(member, nobody).mean(pooled) for member in members]
        return (others + sum(rate**place for rate in rates for place in range(cap + 1))) / seconds

    def _untimed(self, slots: int, most_gain: float) -> int | None:
        """Return a cap that is to be timed first: 0, and further ones as long as full acceptance could pay."""
        most = self._allowed[-1]
        for tried in (0, *(min(cap, most) for cap in _TRIED_CAPS)):
            if self.costs.samples(slots, tried) < _ENOUGH_SAMPLES:
                return tried
            if tried and not self._can_pay(slots, tried, most_gain):
                return None
        return None

    def _can_pay(self, slots: int, cap: int, most_gain: float) -> bool:
        """Whether full acceptance would pay; ``most_gain`` is what a draft adds then, in tokens a sequence."""
        plain, seconds = self.costs.seconds(slots, 0), self.costs.seconds(slots, cap)
        return plain is not None and seconds is not None and (1.0 + most_gain * cap) * plain > seconds

    @property
    def _allowed(self) -> list[int]:
        return [cap for cap in _CAPS if cap <= self.largest]

    def _decide(self, slots: int, members: Sequence[int], others: int) -> None:
        scores = {cap: self.score(slots, cap, members, others=others) for cap in self._allowed}
        best = max(scores, key=scores.__getitem__)
        used = self._choice[1] if self._choice is not None and self._choice[0] == slots else None
        if used and used in scores and scores[best] <= _LEAST_CHANGE * scores[used]:
            best = used
        if scores[best] <= _LEAST_GAIN * scores[0]:
            best = 0
        self._choice, self._age = (slots, best), 0

    def _probe(self, slots: int, most_gain: float) -> int:
        """Draft once in a while where speculation is off, unless not even full acceptance would pay."""
        self._since_probe += 1
        if self._since_probe < self._probe_every:
            return 0
        self._since_probe = 0
        self._probe_every = min(2 * self._probe_every, _LONGEST_PROBE)
        if not any(self._can_pay(slots, cap, most_gain) for cap in self._allowed if cap):
            return 0
        for rate in (self.pooled, *self._rates.values()):
            rate.add(accepted=0, tested=0, keep=_PROBE_KEEP)
        self._age = _DECIDE_EVERY  # what it shows is looked at in the next round
        return min(_TRIED_CAPS[0], self.largest)
