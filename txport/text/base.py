"""Protocols of tokenizers, and a pair of tokenizers for sources and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from txport.errors import LongTextError, TextError

# What to do with text outside the vocabulary. "token": use the unknown token; "error": refuse the text; "skip": leave
# it out; "auto": "token" if the tokenizer has an unknown token and is not character-level, otherwise "error".
Unknown = Literal["auto", "token", "error", "skip"]


class Tokenizer(Protocol):
    """Converts source text to token ids, and target ids to text."""

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """Return the source ids, with special tokens around them.

        The spelling of a special token in a text is plain characters, or with `special` the token. Raises `TextError`
        for characters that the tokenizer can't encode, and `UnknownTextError` for empty text or text in which nothing
        can be encoded.
        """
        ...

    def spelled(self, text: str) -> list[str]:
        """Return the special tokens that are spelled in a source text, and are plain characters without `special`."""
        ...

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token of sources; None if there is none."""
        ...

    def encode_target(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """Return the ids of a target text as `decode` writes it, without special tokens around them; [] if it is blank.

        For a tokenizer that writes tokens separated by spaces, such as a character-level one, it reads these.
        """
        ...

    @property
    def joins(self) -> bool:
        """Whether a text and what follows it can be encoded as one text."""
        ...

    def lacks(self, ids: Sequence[int]) -> list[int]:
        """Return those of these target ids that have no token."""
        ...

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Return the text of target ids, without special tokens, or with them as the vocabulary writes them.

        An id without a token has no text.
        """
        ...

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """Return the text that target ids add after those in `before`; decoded alone, the text may differ."""
        ...

    def spelling(self, id_: int) -> bytes | None:
        """Return the bytes that a target id adds to a text, also a special token's; None for an id without a token."""
        ...

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each target id, as the vocabulary writes it; raise `TokenError` for an id without one."""
        ...

    def ids(self, tokens: str) -> list[int]:
        """Return the target ids of vocabulary tokens separated by spaces; `TextError` names a token that is missing."""
        ...


class Encoded(NamedTuple):
    """Ids of one text or two, the type of each token (0 or 1), and whether the end of a text was left out."""

    ids: list[int]
    types: list[int]
    is_cut: bool


class Aligned(NamedTuple):
    """Ids and types of two texts as one input, and where each token is: its text, its word, and its characters.

    A special token has the text None. Words count from 0 in each text; None: the tokenizer has no words.
    """

    ids: list[int]
    types: list[int]
    texts: list[int | None]
    words: list[int | None]
    offsets: list[tuple[int, int]]


@runtime_checkable
class PairTokenizer(Protocol):
    """The part of a tokenizer of encoder-only models that reads one text, or two as one input."""

    def encode_texts(
        self, texts: Sequence[str], unknown: Unknown = "auto", special: bool = False, truncate: bool = False
    ) -> Encoded:
        """Return the ids of one text or two, with special tokens around them.

        With `truncate`, the longer text loses its end until the model takes both. Raises the errors of
        `Tokenizer.encode`.
        """
        ...

    def encode_aligned(self, one: str, other: str, unknown: Unknown = "auto", special: bool = False) -> Aligned:
        """Return two texts of any length as one input, and where each token is in them; "skip" leaves nothing out.

        Raises the errors of `Tokenizer.encode`.
        """
        ...


def reading_pairs(tokenizer: object) -> PairTokenizer:
    """Return a tokenizer that reads pairs of texts; raise `TextError` if it is none."""
    if not isinstance(tokenizer, PairTokenizer):
        raise TextError("token ids are not cut, and are no pair of texts; this needs the tokenizer of the model")
    return tokenizer


class Reader(Protocol):
    """The encoding part of a tokenizer."""

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        ...

    def spelled(self, text: str) -> list[str]:
        """See `Tokenizer.spelled`."""
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

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        return self.source.encode(text, unknown, special)

    def spelled(self, text: str) -> list[str]:
        """See `Tokenizer.spelled`."""
        return self.source.spelled(text)

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        return self.source.unknown

    def encode_target(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode_target`."""
        return self.target.encode_target(text, unknown, special)

    @property
    def joins(self) -> bool:
        """See `Tokenizer.joins`."""
        return self.target.joins

    def lacks(self, ids: Sequence[int]) -> list[int]:
        """See `Tokenizer.lacks`."""
        return self.target.lacks(ids)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.decode`."""
        return self.target.decode(ids, special)

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.continuation`."""
        return self.target.continuation(before, ids, special)

    def spelling(self, id_: int) -> bytes | None:
        """See `Tokenizer.spelling`."""
        return self.target.spelling(id_)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        return self.target.tokens(ids)

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        return self.target.ids(tokens)


def encode_within(
    tokenizer: Tokenizer, longest: int, text: str, unknown: Unknown = "auto", special: bool = False
) -> list[int]:
    """Return the token ids of a text; raise `TextError` if it has more than `longest` tokens."""
    ids = tokenizer.encode(text, unknown, special)
    if len(ids) > longest:
        raise LongTextError(f"{shorten(text)} has {len(ids)} tokens, the model takes at most {longest}; split the text")
    return ids


def shorten(text: str) -> str:
    """Return a text as an error message quotes it: at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
