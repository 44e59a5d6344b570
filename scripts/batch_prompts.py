"""The prompts of a batch sweep: the product's test set, the four kinds in turn, as many as there are replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest

from edgeprec.prompts import PromptKind, load_prompts
from edgeprec.runtime.benchmark_case import Job, SetPrompt

__all__ = ["SweepPrompts"]

_STRIDE = 53  # repeats begin at other prompts: coprime to the number of prompts, so that all have their turn


class SweepPrompts:
    """Prompts of at most ``most_tokens`` each, in turn by kind, that begin anew where they end."""

    def __init__(self, encode: Callable[[str], Sequence[int]], *, most_tokens: int) -> None:
        by_kind = [load_prompts("test", kind) for kind in PromptKind]
        mixed = [prompt for prompt in chain.from_iterable(zip_longest(*by_kind)) if prompt is not None]
        encoded = [(prompt, tuple(encode(prompt.text))) for prompt in mixed]
        self._prompts = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= most_tokens]
        self.left_out = len(encoded) - len(self._prompts)

    @property
    def of_set(self) -> tuple[SetPrompt, ...]:
        """Return them as a case names them."""
        return tuple(SetPrompt(prompt.id, prompt.kind.value, prompt.text) for prompt, _ in self._prompts)

    def jobs(self, count: int, *, repeat: int, new_tokens: int) -> list[Job]:
        """Return so many; another repeat begins at another prompt, every way of decoding at the same."""
        chosen = [self._prompts[(repeat * _STRIDE + at) % len(self._prompts)] for at in range(count)]
        return [Job(prompt.id, prompt.kind.value, tokens, prompt.text, new_tokens) for prompt, tokens in chosen]
