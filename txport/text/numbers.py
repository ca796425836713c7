"""A tokenizer whose text is token ids."""

from __future__ import annotations

from collections.abc import Sequence

from txport.errors import TextError, TokenError, UnknownTextError
from txport.models.facts import Facts
from txport.text.base import Unknown, shorten


class NumberTokenizer:
    """Text is token ids separated by spaces: for a model without a tokenizer, or to bypass the tokenizer (`exact`).

    With `exact`, ids are read and written unchanged. Otherwise, the special tokens that the model expects are added to
    sources, and special tokens are left out of targets.
    """

    def __init__(self, facts: Facts, *, exact: bool = False) -> None:
        self._facts = facts
        self._exact = exact
        self._fix = "" if exact else "; text needs a tokenizer beside the checkpoint (docs/tokenizers.md)"
        self._why = "text is read as" if exact else "this model has no tokenizer, so text is"

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode`; the start and end tokens that the model expects are added, unless `exact`."""
        if not text.strip():
            raise UnknownTextError(f"the text is empty; {self._why} token ids such as '5 17 3'")
        size = self._facts.source_ids
        ids = []
        wrong = []
        for word in text.split():
            if _is_below(size, word):
                ids.append(int(word))
            else:
                wrong.append(word)
        if wrong and unknown != "skip":
            ids_wanted = f"token ids, numbers from 0 to {size - 1}"
            raise TextError(f"{self._why} {ids_wanted}; got {shorten(' '.join(wrong))}{self._fix}")
        if not ids:
            raise UnknownTextError(f"{shorten(text)} has no number from 0 to {size - 1}")
        return ids if self._exact else self._facts.vocabulary.with_special(ids)

    def spelled(self, text: str) -> list[str]:
        """See `Tokenizer.spelled`: no token has a spelling."""
        return []

    def encode_target(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode_target`."""
        return self.ids(text)

    @property
    def unknown(self) -> None:
        """See `Tokenizer.unknown`: there is none."""
        return None

    @property
    def joins(self) -> bool:
        """See `Tokenizer.joins`: numbers at the ends of two texts would become one."""
        return False

    def lacks(self, ids: Sequence[int]) -> list[int]:
        """See `Tokenizer.lacks`."""
        return []

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.continuation`."""
        return self.decode(ids, special)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.decode`."""
        left_out = () if self._exact or special else self._facts.writes.special
        return " ".join(self.tokens([id_ for id_ in ids if id_ not in left_out]))

    def spelling(self, id_: int) -> bytes | None:
        """See `Tokenizer.spelling`: a space and the number."""
        return f" {id_}".encode() if 0 <= id_ < self._facts.writes.size else None

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        size = self._facts.writes.size
        if strange := [id_ for id_ in ids if not 0 <= id_ < size]:
            raise TokenError(f"{strange[0]} is not the id of a token: a number from 0 to {size - 1}")
        return [str(id_) for id_ in ids]

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        size = self._facts.writes.size
        strange = [token for token in tokens.split() if not _is_below(size, token)]
        if strange:
            raise TextError(f"{shorten(strange[0])} is not a token: a number from 0 to {size - 1}")
        return [int(token) for token in tokens.split()]


def _is_below(size: int, word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10 and int(word) < size
