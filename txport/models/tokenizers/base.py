"""What every tokenizer does, and two as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Unknown = Literal["error", "skip"]


class Tokenizer(Protocol):
    """Source text to token ids, and target tokens to text; an id that has no token raises `TokenError`."""

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """Source ids, special tokens included; `TextError` on empty text or characters it does not know.

        `UnknownTextError` if there is nothing in it that it knows.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Target text, special tokens left out."""
        ...

    def continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """What target ids add to the text of those before them; by themselves they may be written in another way."""
        ...

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each target id as the vocabulary writes it."""
        ...

    def ids(self, tokens: str) -> list[int]:
        """Target ids of tokens as the vocabulary writes them, apart by spaces; `TextError` names one that it lacks."""
        ...


class Reader(Protocol):
    """The part of a tokenizer that reads."""

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """See `Tokenizer.encode`."""
        ...


@dataclass(frozen=True)
class TokenizerPair:
    """One tokenizer, or a part of it, for sources, another one for targets."""

    source: Reader
    target: Tokenizer

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """See `Tokenizer.encode`."""
        return self.source.encode(text, unknown)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return self.target.decode(ids)

    def continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """See `Tokenizer.continuation`."""
        return self.target.continuation(before, ids)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        return self.target.tokens(ids)

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        return self.target.ids(tokens)


def shorten(text: str) -> str:
    """A text as an error message quotes it."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
