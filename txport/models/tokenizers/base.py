"""Protocols of tokenizers, and a pair of tokenizers for sources and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from txport.errors import TextError

# What to do with text outside the vocabulary. "token": use the unknown token; "error": refuse the text; "skip": leave
# it out; "auto": "token" if the tokenizer has an unknown token and is not character-level, otherwise "error".
Unknown = Literal["auto", "token", "error", "skip"]


class Tokenizer(Protocol):
    """Converts source text to token ids, and target ids to text. An id without a token raises `TokenError`."""

    def encode(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """Return the source ids, special tokens included.

        Raises `TextError` for characters that the tokenizer can't encode, and `UnknownTextError` for empty text or text
        in which nothing can be encoded.
        """
        ...

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token of sources; None if there is none."""
        ...

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Return the text of target ids, without special tokens, or with them as the vocabulary writes them."""
        ...

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """Return the text that target ids add after those in `before`; decoded alone, the text may differ."""
        ...

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each target id, as the vocabulary writes it."""
        ...

    def ids(self, tokens: str) -> list[int]:
        """Return the target ids of vocabulary tokens separated by spaces; `TextError` names a token that is missing."""
        ...


class Reader(Protocol):
    """The encoding part of a tokenizer."""

    def encode(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """See `Tokenizer.encode`."""
        ...

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        ...


@dataclass(frozen=True)
class TokenizerPair:
    """One tokenizer, or its encoding part, for sources, and another tokenizer for targets."""

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
    """Return the token ids of a text; raise `TextError` if it has more than `longest` tokens."""
    ids = tokenizer.encode(text, unknown)
    if len(ids) > longest:
        raise TextError(f"{shorten(text)} has {len(ids)} tokens, the model takes at most {longest}; split the text")
    return ids


def shorten(text: str) -> str:
    """Return a text as an error message quotes it: at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
