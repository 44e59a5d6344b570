"""Whether two models speak the same ids: a draft's token means nothing to a target that numbers its tokens otherwise.

A model's logits may be wider than its tokenizer (rows padded to a round number). Padding is no difference: ids that no
token has are never drafted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.strict_json import parse_json

__all__ = ["Difference", "Vocabulary", "first_difference", "require_same_vocabulary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a tokenizer by id, which of them are special, and how many logits its model has.

    ``tokens`` ends with the last id that has a token; an id without one is None.
    """

    tokens: tuple[str | None, ...]
    specials: frozenset[int]
    width: int

    def __post_init__(self) -> None:
        if len(self.tokens) > self.width:
            raise ConfigError(
                f"the tokenizer has {len(self.tokens)} ids and the model {self.width} logits: expected at least as "
                "many logits, this tokenizer belongs to another model"
            )

    @classmethod
    def from_tokenizer_json(cls, data: bytes, *, width: int, where: str = "tokenizer.json") -> Vocabulary:
        """Read the text of a ``tokenizer.json`` (BPE, WordPiece, WordLevel or Unigram).

        Raises:
            ConfigError: it is not one.
        """
        values = parse_json(data, where=where, error=ConfigError)
        try:
            ids = _model_ids(values["model"]["vocab"])
            added = values.get("added_tokens") or []
            ids |= {int(token["id"]): str(token["content"]) for token in added}
            specials = frozenset(int(token["id"]) for token in added if token["special"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{where} is not a tokenizer this reads: {error!r}") from error
        size = max(ids, default=-1) + 1
        if min(ids, default=0) < 0 or size > 2**24:
            raise ConfigError(f"{where} has token ids {min(ids)} to {size - 1}, expected 0 to {2**24 - 1}")
        return cls(tokens=tuple(ids.get(index) for index in range(size)), specials=specials, width=width)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id at which two vocabularies part."""

    id: int
    target: str
    draft: str


def first_difference(target: Vocabulary, draft: Vocabulary) -> Difference | None:
    """Return the lowest id whose token or special mark differs, None if there is none."""
    for index in range(max(len(target.tokens), len(draft.tokens))):
        ours, theirs = _describe(target, index), _describe(draft, index)
        if ours != theirs:
            return Difference(index, ours, theirs)
    return None


def require_same_vocabulary(target: Vocabulary, draft: Vocabulary) -> int:
    """Return how many ids the pair shares: logits from there on are padding and must not be drafted.

    Raises:
        ConfigError: the vocabularies differ; the message names the first differing id.
    """
    difference = first_difference(target, draft)
    if difference is not None:
        raise ConfigError(
            f"target and draft have different vocabularies: id {difference.id} is {difference.target} in the target "
            f"and {difference.draft} in the draft; choose a draft with the target's tokenizer"
        )
    return len(target.tokens)


def _describe(vocabulary: Vocabulary, index: int) -> str:
    token = vocabulary.tokens[index] if index < len(vocabulary.tokens) else None
    if token is None:
        return "absent"
    return f"the special token {token!r}" if index in vocabulary.specials else repr(token)


def _model_ids(vocab: Any) -> dict[int, str]:
    """Return id -> token of a ``vocab``: an object of ids, or a list of [token, score]."""
    if isinstance(vocab, list):
        return {index: str(entry[0]) for index, entry in enumerate(vocab)}
    return {int(index): str(token) for token, index in vocab.items()}
