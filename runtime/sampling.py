"""Which token follows a row of logits: greedy, or drawn with position-keyed noise.

Filters and their order are those of Hugging Face ``generate``: repetition penalty, temperature, top-k, top-p, min-p.
Ties go to the lowest token id. The draw is ``argmax(score + noise)`` over the tokens that passed the filters, which
follows softmax(score) exactly and depends on nothing but logits, history, seed and position.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
import numpy.typing as npt

from edgeprec.config import GenerationConfig, SamplingConfig
from edgeprec.errors import ConfigError
from edgeprec.runtime.noise import gumbel_noise

__all__ = ["Sampler", "with_seed"]

_Scores = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sampler:
    """Chooses tokens as ``config`` says. ``config.seed`` must be set when the temperature is above 0."""

    config: SamplingConfig
    vocab_size: int

    def __post_init__(self) -> None:
        if not self.is_greedy and self.config.seed is None:
            raise ConfigError(
                f"sampling: seed is None at temperature {self.config.temperature}, expected a number: draw one first"
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit wins."""
        return self.config.temperature == 0.0

    @property
    def needs_history(self) -> bool:
        """Whether ``choose`` looks at earlier tokens."""
        return self.config.repetition_penalty != 1.0

    @property
    def takes_argmax(self) -> bool:
        """Whether the token is the largest logit as it is, so that no logits need to be read."""
        return self.config.takes_argmax

    def choose(self, logits: _Scores, *, position: int, history: Sequence[int] = (), argmax: int | None = None) -> int:
        """Return the token at index ``position`` of the sequence, from its row of logits [V].

        ``history`` holds the tokens before it, prompt included. ``argmax`` saves the search when it is known.
        """
        if self.is_greedy:
            if argmax is not None and not self.needs_history:
                return argmax
            return int(self._penalized(logits, history).argmax())
        ids, scores = self._kept(logits, history)
        assert self.config.seed is not None
        noise = gumbel_noise(seed=self.config.seed, position=position, vocab_size=self.vocab_size, token_ids=ids)
        winner = int((scores + noise).argmax())
        return winner if ids is None else int(ids[winner])

    def gap(self, logits: _Scores, token: int, other: int, *, position: int, history: Sequence[int] = ()) -> float:
        """Return how much, in units of logits, ``token`` beats ``other`` in this row; filters play no part."""
        row = self._penalized(logits, history)
        difference = float(row[token]) - float(row[other])
        if self.is_greedy:
            return difference
        assert self.config.seed is not None
        ids = np.array([token, other])
        noise = gumbel_noise(seed=self.config.seed, position=position, vocab_size=self.vocab_size, token_ids=ids)
        return difference + self.config.temperature * float(noise[0] - noise[1])

    def distribution(self, logits: _Scores, *, history: Sequence[int] = ()) -> npt.NDArray[np.float64]:
        """Return the probabilities ``choose`` draws from, float64 [V]."""
        probabilities = np.zeros(self.vocab_size)
        if self.is_greedy:
            probabilities[self.choose(logits, position=0, history=history)] = 1.0
            return probabilities
        ids, scores = self._kept(logits, history)
        weights = np.exp(scores.astype(np.float64) - float(scores.max()))
        probabilities[slice(None) if ids is None else ids] = weights / weights.sum()
        return probabilities

    def _penalized(self, logits: _Scores, history: Sequence[int]) -> _Scores:
        row = logits[: self.vocab_size]
        if not self.needs_history or not len(history):
            return row
        seen = np.unique(np.asarray(history, np.int64))
        penalty = np.float32(self.config.repetition_penalty)
        row = row.copy()
        row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        return row

    def _kept(self, logits: _Scores, history: Sequence[int]) -> tuple[_Ids | None, _Scores]:
        """Return the ids that pass the filters, in ascending order (None = all), and their scores."""
        config = self.config
        scores = self._penalized(logits, history) / np.float32(config.temperature)
        ids: _Ids | None = None
        if 0 < config.top_k < scores.size:
            ids, scores = _narrowed(ids, scores, _is_top_k(scores, config.top_k))
        if config.top_p < 1.0:
            ids, scores = _narrowed(ids, scores, _is_top_p(scores, config.top_p))
        if config.min_p > 0.0:
            ids, scores = _narrowed(ids, scores, scores >= scores.max() + np.float32(log(config.min_p)))
        return ids, scores


def _narrowed(ids: _Ids | None, scores: _Scores, mask: npt.NDArray[np.bool_]) -> tuple[_Ids, _Scores]:
    chosen = np.flatnonzero(mask)
    return chosen if ids is None else ids[chosen], scores[chosen]


def _is_top_k(scores: _Scores, k: int) -> npt.NDArray[np.bool_]:
    """Keep the k largest; all that tie with the k-th stay."""
    mask: npt.NDArray[np.bool_] = scores >= np.partition(scores, -k)[-k]
    return mask


def _is_top_p(scores: _Scores, top_p: float) -> npt.NDArray[np.bool_]:
    """Keep the smallest set of largest tokens whose probabilities reach ``top_p``; a tie favours the lower id."""
    weights = np.exp(scores - scores.max())
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this weight together hold less than 1 - top_p: none of them is kept, so none is sorted.
    floor = (1.0 - top_p) * total / scores.size
    candidates = np.flatnonzero(weights >= floor)
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    reached = np.cumsum(weights[order], dtype=np.float64)
    count = int(np.searchsorted(reached, top_p * total, side="left")) + 1
    mask = np.zeros(scores.size, np.bool_)
    mask[order[:count]] = True
    return mask


def with_seed(config: GenerationConfig) -> GenerationConfig:
    """Draw a seed where sampling needs one and none was given; it is reported in the reply."""
    if config.sampling.temperature == 0.0 or config.sampling.seed is not None:
        return config
    return replace(config, sampling=replace(config.sampling, seed=secrets.randbits(32)))
