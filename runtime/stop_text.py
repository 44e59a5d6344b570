"""Text from a stream of token ids: whole characters only, and cut before a stop string.

Held back is what may still change: the bytes of an unfinished character, and a tail that may become a stop string. The
result does not depend on how tokens are grouped into rounds.

A stop string cuts the text where it begins. Of the ids, those are kept whose first character lies before that place: a
token that holds both the last character before the stop and its beginning stays, so the kept ids may decode to a little
more than the text. A token that only finishes a character begins where that character begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["TextStream"]

_UNFINISHED = "\ufffd"
_CONTEXT_TOKENS = 6
_UNFINISHED_TOKENS = 16  # more without a whole character are invalid bytes, shown as U+FFFD


class TextStream:
    """Decode tokens as they come and watch for stop strings.

    ``decode`` turns ids into text. ``context`` holds the ids before the first pushed one (the prompt's last few): with
    them the first piece gets its leading space as in the middle of a text.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], *, stop: Sequence[str] = (), context: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._ids = list(context[-_CONTEXT_TOKENS:])  # tokens of the window that is decoded again and again
        self._base_text = decode(self._ids) if self._ids else ""
        self._finished = ""  # whole characters so far, a stop string and what follows it included
        self._waiting = 0  # pushed tokens in the window
        self._segment = 0  # characters of the current window that are in _finished
        self._starts: list[int] = []  # where each pushed token's text begins
        self._shown = 0
        self._cut: int | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has occurred."""
        return self._cut is not None

    @property
    def text(self) -> str:
        """Return the whole text shown so far."""
        return self._finished[: self._shown]

    @property
    def kept_tokens(self) -> int:
        """Return how many of the pushed tokens belong to the text; all of them before a stop string."""
        if self._cut is None:
            return len(self._starts)
        return sum(start < self._cut for start in self._starts)

    def push(self, token: int) -> str:
        """Take one token and return the text that may be shown now. After a stop string nothing changes any more."""
        if self.is_stopped:
            return ""
        self._starts.append(len(self._finished))
        self._ids.append(token)
        tail = self._window_text()
        self._waiting += 1
        if self._waiting < _UNFINISHED_TOKENS and tail.endswith(_UNFINISHED):
            self._finish(tail.rstrip(_UNFINISHED))
        else:
            self._finish(tail)
            self._slide()
        return self._show(len(self._finished) - self._held_back())

    def flush(self) -> str:
        """Return what was held back; call it when no token will follow. Unfinished characters show as U+FFFD."""
        if self.is_stopped:
            return ""
        self._finish(self._window_text())
        return self._show(len(self._finished))

    def _window_text(self) -> str:
        """Return the text of the window's new tokens."""
        whole = self._decode(self._ids)
        return whole[_common_length(self._base_text, whole) :]

    def _finish(self, segment: str) -> None:
        """Add what is new of the window's whole characters, and look for a stop string in it."""
        added = segment[self._segment :]
        self._segment += len(added)
        if added:
            known = len(self._finished)
            self._finished += added
            self._cut = self._find_stop(known)

    def _slide(self) -> None:
        """Start a new window whose context is the tokens just finished."""
        self._ids = self._ids[-_CONTEXT_TOKENS:]
        self._base_text = self._decode(self._ids)
        self._segment = 0
        self._waiting = 0

    def _find_stop(self, known: int) -> int | None:
        """Return where the first stop string begins that ends after index ``known``."""
        found = (self._finished.find(stop, max(0, known - len(stop) + 1)) for stop in self._stop)
        return min((place for place in found if place >= 0), default=None)

    def _held_back(self) -> int:
        """Return the length of the longest tail that begins a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(self._finished)), 0, -1):
            tail = self._finished[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0

    def _show(self, end: int) -> str:
        end = end if self._cut is None else self._cut
        piece = self._finished[self._shown : end]
        self._shown = max(self._shown, end)
        return piece


def _common_length(base: str, whole: str) -> int:
    """Return how much of ``whole`` is its context; decoders may rewrite a context's last character."""
    if whole.startswith(base):
        return len(base)
    return next((i for i, (a, b) in enumerate(zip(base, whole, strict=False)) if a != b), min(len(base), len(whole)))
