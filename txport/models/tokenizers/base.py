"""What every tokenizer does, and two as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from txport.errors import TextError

# What to do with what is not in the vocabulary: take the tokenizer's unknown token, refuse the text, leave it out, or,
# "auto", what suits the tokenizer: its unknown token where it has one, unless it reads letter by letter.
Unknown = Literal["auto", "token", "error", "skip"]


class Tokenizer(Protocol):
    """Source text to token ids, and target tokens to text; an id that has no token raises `TokenError`."""

    def encode(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """Source ids, special tokens included; `TextError` on empty text or characters that it can't take.

        `UnknownTextError` if there is nothing in it that it can take.
        """
        ...

    @property
    def unknown(self) -> int | None:
        """The id that stands for what is not in the vocabulary of sources; None where there is none."""
        ...

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Target text, special tokens left out, or as the vocabulary writes them."""
        ...

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
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

    def encode(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """See `Tokenizer.encode`."""
        ...

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        ...


@dataclass(frozen=True)
class TokenizerPair:
    """One tokenizer, or a part of it, for sources, another one for targets."""

    source: Reader
    target: Tokenizer

    def encode(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """See `Tokenizer.encode`."""
        return self.source.encode(text, unknown)

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        return self.source.unknown

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.decode`."""
        return self.target.decode(ids, special)

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.continuation`."""
        return self.target.continuation(before, ids, special)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        return self.target.tokens(ids)

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        return self.target.ids(tokens)


def encode_within(tokenizer: Tokenizer, longest: int, text: str, unknown: Unknown = "auto") -> list[int]:
    """Token ids of a text; raises `TextError` for a text of more than `longest` tokens."""
    ids = tokenizer.encode(text, unknown)
    if len(ids) > longest:
        raise TextError(f"{shorten(text)} has {len(ids)} tokens, the model takes at most {longest}; split the text")
    return ids


def shorten(text: str) -> str:
    """A text as an error message quotes it."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
