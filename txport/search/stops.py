"""Stop strings: a target ends with the token that completes one of them, by the rule of transformers 5.

Tokens are compared as the bytes that they add to a text, so a stop string may begin and end within tokens, and tokens
may be parts of a character. Shape comments: R rows, T tokens so far, C candidates per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Ints

Spelling = Callable[[int], bytes | None]  # token id -> the bytes that it adds to a text; None for an id without a token


class Place(NamedTuple):
    """Where a stop string begins: the position of a token, and of a byte in it."""

    token: int
    byte: int


class Stops(tuple[str, ...]):
    """Stop strings, and the spelling of the tokens that may complete them."""

    spelling: Spelling
    _wanted: list[bytes]
    _longest: int
    _completes: Callable[[int], bool]

    def __new__(cls, strings: Sequence[str], spelling: Spelling) -> Stops:
        """Return these stop strings; `spelling` is called once per token."""
        stops = super().__new__(cls, strings)
        stops.spelling = cache(spelling)
        stops._wanted = [each.encode() for each in strings]
        stops._longest = max(map(len, stops._wanted))
        stops._completes = cache(stops._may_complete)
        return stops

    def completed(self, seen: Ints, candidates: Ints) -> NDArray[np.bool_]:
        """Return which candidates (R, C) complete a stop string after the tokens (R, T) so far; negative: no token."""
        found = np.zeros(candidates.shape, np.bool_)
        rows = seen[:, max(0, seen.shape[1] - self._longest + 1) :].tolist()
        for row, tokens in enumerate(candidates.tolist()):
            for place, token in enumerate(tokens):
                found[row, place] = self._completes(token) and self.start([*rows[row], token]) is not None
        return found

    def start(self, tokens: Sequence[int]) -> Place | None:
        """Return where the first stop string begins that ends in the last of these tokens; None without one."""
        last = self.spelling(tokens[-1]) if tokens else None
        if not last:
            return None
        pieces = [last]
        missing = self._longest - 1
        for token in reversed(tokens[max(0, len(tokens) - self._longest) : -1]):
            if missing <= 0 or (piece := self.spelling(token)) is None:
                break
            pieces.insert(0, piece)
            missing -= len(piece)
        text = b"".join(pieces)
        before = len(text) - len(last)
        starts = [text.find(each, max(0, before - len(each) + 1)) for each in self._wanted]
        byte = min((start for start in starts if start >= 0), default=None)
        if byte is None:
            return None
        token = len(tokens) - len(pieces)
        for piece in pieces:
            if byte < len(piece):
                break
            byte -= len(piece)
            token += 1
        return Place(token, byte)

    def cut(self, before: Sequence[int], tokens: Sequence[int], text_of: Callable[[Sequence[int]], str]) -> str | None:
        """Return the text of a target up to the stop string that its last token completes; None if it completes none.

        `before` are the tokens before the target; a stop string that begins in these leaves no text.
        """
        place = self.start([*before, *tokens])
        if place is None:
            return None
        first = place.token - len(before)
        if first < 0:
            return ""
        removed = b"".join(self.spelling(token) or b"" for token in tokens[first:])[place.byte :]
        text = text_of(tokens)
        tail = removed.decode(errors="replace")
        return text.removesuffix(tail) if text.endswith(tail) else text_of(tokens[:first])

    def settled(self, text: str) -> str:
        """Return a text without an end that may become a stop string."""
        for size in range(min(len(text), max(map(len, self)) - 1), 0, -1):
            if any(each.startswith(text[-size:]) for each in self):
                return text[:-size]
        return text

    def _may_complete(self, token: int) -> bool:
        piece = self.spelling(token)
        return piece is not None and any(each[-1:] in piece for each in self._wanted)
