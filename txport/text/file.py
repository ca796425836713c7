"""Conversion between text and token ids with a `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from txport.errors import BundleError, LongTextError, TextError, TokenError, UnknownTextError
from txport.text.base import Aligned, Encoded, Unknown, shorten
from txport.text.library import (
    controlled,
    letter_by_letter,
    read_tokenizer,
    recognising,
    refusals,
    require_bounded,
    spells,
    unknown_of,
)
from txport.text.token_bytes import BYTE, TokenBytes

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# A text with more characters per token is too long, and is refused before it is encoded. Texts of up to FEW characters
# are always encoded. Spaces do not count: tokenizers may drop them.
LETTERS_PER_TOKEN, FEW = 64, 10_000
# The vocabulary ends before this token, which occurs in no text: a tokenizer may cut more pieces than its model has.
OUTSIDE = " outside the vocabulary"
FOREIGN = " "  # prefix of a token that is no piece, but equals a text that is unknown to the pieces
NEAR = 32  # tokens of a text with which those that follow are decoded
SHOWN = 10  # unknown characters that an error names
NOT_UTF8 = re.compile("[\ud800-\udfff]")


class FileTokenizer:
    """A `tokenizer.json` for encoding and decoding.

    Decoded text leaves out its special tokens, or the `special` ids if it has none.
    A text is refused before it is encoded if it is too long for `longest` tokens. The token `mask` is recognised in a
    text; other special tokens are if a method is called with `special`. `content` is the JSON text if it is not to be
    read from `path`. Ids from `limit` on are not ids of the model: text that is encoded as one of them is outside the
    vocabulary. Raises `BundleError` for a file that is not a tokenizer.
    """

    def __init__(
        self,
        path: Path,
        special: Collection[int] = (),
        longest: int | None = None,
        mask: int | None = None,
        *,
        content: str | None = None,
        limit: int | None = None,
        clean_up: bool = False,
    ) -> None:
        self._path = path
        self._longest = longest
        self._clean_up = clean_up
        with refusals(BundleError, f"{path} is not a tokenizer"):
            tokenizer = read_tokenizer(path, content)
            self._tokenizer = tokenizer if mask is None else recognising(tokenizer, mask)
            self._tokenizer.encode_special_tokens = True  # without `special`, "</s>" in a text is four characters
            self._tokenizer.no_truncation()  # a text that is too long is refused, not cut
            self._tokenizer.no_padding()
            parts = json.loads(self._tokenizer.to_str())
            marks = any(each["special"] for each in parts["added_tokens"])  # a pad without a mark may be a piece
            self._special = frozenset(() if marks else special)
            self._unknown = unknown_of(parts["model"])
            self._spells = spells(parts)
            self._reader = letter_by_letter(self._tokenizer, parts)
        require_bounded(path, parts)
        outside = self._tokenizer.token_to_id(OUTSIDE)
        self._limit = min(each for each in (limit, outside, self.size) if each is not None)
        self._outside = outside
        self._control: Tokenizer | None = None

    @property
    def content(self) -> str:
        """The `tokenizer.json`, as the library writes it."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode`. Raises `TextError` also for text that is not UTF-8 or too long."""
        return self._encode(text, unknown, around=True, reader=self._parser if special else self._reader)

    def encode_texts(
        self, texts: Sequence[str], unknown: Unknown = "auto", special: bool = False, truncate: bool = False
    ) -> Encoded:
        """See `PairTokenizer.encode_texts`."""
        reader = self._parser if special else self._reader
        if not truncate or self._longest is None:
            return self._read(texts, unknown, around=True, reader=reader)
        most = max(FEW, LETTERS_PER_TOKEN * self._longest)
        short = [text[:most] if sum(map(len, text.split())) > most else text for text in texts]
        found = self._read(short, unknown, around=True, reader=reader, longest=self._longest)
        return found._replace(is_cut=found.is_cut or short != list(texts))

    def encode_aligned(self, one: str, other: str, unknown: Unknown = "auto", special: bool = False) -> Aligned:
        """See `PairTokenizer.encode_aligned`."""
        if unknown == "skip":
            raise TextError("unknown='skip' leaves out text in which answers are looked for; use another value")
        encoding = self._split((one, other), around=True, reader=self._parser if special else self._reader)
        texts, words, places = encoding.sequence_ids, encoding.word_ids, encoding.offsets
        ids = self._ids(encoding, range(len(texts)), (one, other), unknown)
        if len({word for word, text in zip(words, texts, strict=True) if text == 1}) == 1 < len(other.split()):
            words = [None] * len(texts)  # without rules for words, a whole text is one
        return Aligned([id_ for id_, _ in ids], encoding.type_ids, texts, words, places)

    def spelled(self, text: str) -> list[str]:
        """See `Tokenizer.spelled`."""
        return list(dict.fromkeys(self._spellings.findall(text)))

    @cached_property
    def _parser(self) -> Tokenizer:
        """A copy of the tokenizer that recognises special tokens in texts, as the library does by default."""
        return type(self._tokenizer).from_str(self.content)

    @cached_property
    def _spellings(self) -> re.Pattern[str]:
        """The pattern of the special tokens, the longest first."""
        tokens = sorted((token for token, is_special in self.added().items() if is_special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, tokens)) or "(?!)")

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        return self._unknown if self._unknown is not None and self._unknown < self._limit else None

    def bare(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """Like `encode`, without special tokens around the ids."""
        return self._encode(text, unknown, around=False, reader=self._parser if special else self._reader)

    def encode_target(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode_target`."""
        if self._spells:
            return self.ids(text)
        return self.bare(text, unknown, special) if text.strip() else []

    def with_control(self, text: str, control: Collection[str], mark: str, unknown: Unknown = "auto") -> list[int]:
        """Like `bare`, but `control` tokens are recognised unless a `mark` breaks them; marks are then removed."""
        if self._control is None:
            with refusals(BundleError, f"{self._path} can't read the prompts of a chat"):
                self._control = controlled(self._tokenizer, control, mark)
        return self._encode(text, unknown, around=False, reader=self._control)

    def added(self) -> dict[str, bool]:
        """Return the added tokens, which are matched as a whole, and for each whether it is special."""
        return {token.content: token.special for token in self._tokenizer.get_added_tokens_decoder().values()}

    def _encode(self, text: str, unknown: Unknown, around: bool, reader: Tokenizer) -> list[int]:
        return self._read((text,), unknown, around=around, reader=reader).ids

    def _read(
        self, texts: Sequence[str], unknown: Unknown, *, around: bool, reader: Tokenizer, longest: int | None = None
    ) -> Encoded:
        """Return the ids of one text or two, and the type of each token; with `longest`, of at most so many tokens."""
        for text in texts:
            self._require_length(text)
        encoding = self._split(texts, around=around, reader=reader)
        numbers, types = encoding.sequence_ids, encoding.type_ids  # each copies all
        kept = range(len(numbers)) if longest is None else fitting(numbers, longest)
        known = self._ids(encoding, kept, texts, unknown)
        return Encoded([id_ for id_, _ in known], [types[at] for _, at in known], len(kept) < len(numbers))

    def _split(self, texts: Sequence[str], *, around: bool, reader: Tokenizer) -> Encoding:
        """Return the tokens of one text or two."""
        for text in texts:
            if not text.strip():
                raise UnknownTextError("the text is empty; give at least one character")
            if NOT_UTF8.search(text):
                raise TextError(f"{shorten(text)} is not UTF-8 text")
        with refusals(TextError, f"{self._path} can't split {_told(texts)}; fix it, or leave that text out"):
            return reader.encode(texts[0], texts[1] if len(texts) > 1 else None, add_special_tokens=around)

    def _ids(
        self, encoding: Encoding, kept: Sequence[int], texts: Sequence[str], unknown: Unknown
    ) -> list[tuple[int, int]]:
        """Return the ids of the tokens at the places `kept` that the model has, and their places."""
        takes = unknown == "token" or (unknown == "auto" and not self._spells)
        numbers, offsets = encoding.sequence_ids, encoding.offsets
        every = list(zip(encoding.ids, encoding.tokens, strict=True))
        ids = [(self._known_id(*every[at], takes), at) for at in kept]
        strange = [texts[numbers[at] or 0][slice(*offsets[at])] for id_, at in ids if id_ is None]
        if strange and unknown != "skip":
            found = _listed(list(dict.fromkeys(strange)))
            fix = "unknown='skip' leaves them out"
            raise TextError(f"{_told(texts)} has characters outside the vocabulary: {found}; {fix}")
        known = [(id_, at) for id_, at in ids if id_ is not None]
        if not {*range(len(texts))} <= {numbers[at] for _, at in known}:
            raise UnknownTextError(f"{_told(texts)} has no character of the vocabulary")
        return known

    def _known_id(self, id_: int, token: str, takes_unknown: bool) -> int | None:
        """Return the id if the model has it; for a source text unknown to the pieces, return the id of the same token.

        If there is no such id, this may be the unknown token, but not for tokens that were added to the vocabulary and
        are missing from the model. None: the text is outside the vocabulary.
        """
        if id_ != self._unknown and id_ < self._limit:
            return id_
        foreign = self._tokenizer.token_to_id(FOREIGN + token) if id_ == self._unknown else None
        if foreign is not None and foreign < self._limit:
            return int(foreign)
        is_piece = id_ == self._unknown or (self._outside is not None and id_ > self._outside)
        return self.unknown if takes_unknown and is_piece else None

    def require_fit(self, what: str, size: int) -> None:
        """Raise `BundleError` if tokens that the model lacks may occur in any text: the tokenizer is another model's.

        Tokens that were only added to the vocabulary may exceed the model's `size` (such as a mask that training did
        not use), unless one of them is added around every text.
        """
        if self.size <= size:
            return
        added = self._tokenizer.get_added_tokens_decoder()
        plain = [id_ for id_ in self._tokenizer.get_vocab().values() if id_ >= size and id_ not in added]
        around = [id_ for id_ in self.around if id_ >= size]
        if around or (plain and self._outside is None):
            sizes = f"{self.size} tokens, {what} {size}"
            raise BundleError(f"{self._path} has {sizes}: it belongs to another model")

    def _require_length(self, text: str) -> None:
        if self._longest is None or len(text) <= (most := max(FEW, LETTERS_PER_TOKEN * self._longest)):
            return
        if (count := sum(map(len, text.split()))) > most:
            takes = f"the model takes at most {self._longest} tokens"
            raise LongTextError(f"{shorten(text)} has {count} characters beside spaces, {takes}; split the text")

    @property
    def joins(self) -> bool:
        """See `Tokenizer.joins`."""
        return not self._spells

    def lacks(self, ids: Sequence[int]) -> list[int]:
        """See `Tokenizer.lacks`."""
        return [id_ for id_ in ids if self._tokenizer.id_to_token(id_) is None]

    @property
    def vocabulary(self) -> dict[str, int]:
        """All tokens with their ids below the limit."""
        return {token: id_ for token, id_ in self._tokenizer.get_vocab().items() if id_ < self._limit}

    @property
    def around(self) -> list[int]:
        """The ids of the special tokens that are added to every text."""
        return list(self._tokenizer.encode("").ids)

    def id_of(self, token: str) -> int:
        """Return the id of a token, which must be in the vocabulary."""
        id_ = self._tokenizer.token_to_id(token)
        assert id_ is not None
        return id_

    @cached_property
    def size(self) -> int:
        """The largest id plus one."""
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.decode`."""
        kept = [id_ for id_ in ids if special or id_ not in self._special]
        with refusals(BundleError, f"{self._path} can't write tokens as text"):
            text = str(self._tokenizer.decode(kept, skip_special_tokens=not special))
        return clean_up(text) if self._clean_up else text

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.continuation`."""
        for part in (self._near(before, special), before):
            text = self.decode(part, special)
            whole = self.decode([*part, *ids], special)
            if whole.startswith(text):
                return whole[len(text) :]
        return self.decode(ids, special)

    def _near(self, ids: Sequence[int], special: bool) -> Sequence[int]:
        """Return the last ids, with which ids that follow have the same text as with all.

        The first one is no byte, which is decoded with those before it, and has a text, since decoders change the first
        token with a text. A clean-up may depend on where a text starts, so all ids are needed.
        """
        at = 0 if self._clean_up else max(0, len(ids) - NEAR)
        while at and (not self.decode(first := ids[at : at + 1], special) or BYTE.fullmatch(self.tokens(first)[0])):
            at -= 1
        return ids[at:]

    def spelling(self, id_: int) -> bytes | None:
        """See `Tokenizer.spelling`."""
        with refusals(BundleError, f"{self._path} can't write tokens as text"):
            return self._spell(id_)

    @cached_property
    def _spell(self) -> TokenBytes:
        return TokenBytes(self._tokenizer)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        return [self._token(id_) for id_ in ids]

    def _token(self, id_: int) -> str:
        token = self._tokenizer.id_to_token(id_) if id_ >= 0 else None
        if token is None:
            raise TokenError(f"{self._path} has no token for id {id_}: its ids go up to {self.size - 1}")
        return str(token)

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        if NOT_UTF8.search(tokens):
            raise TextError(f"{shorten(tokens)} is not UTF-8 text")
        found: list[int] = []
        for token in tokens.split():
            if (id_ := self._tokenizer.token_to_id(token)) is None or id_ >= self._limit:
                raise TextError(f"{shorten(token)} is not a token of the vocabulary")
            found.append(id_)
        return found


def fitting(numbers: Sequence[int | None], longest: int) -> list[int]:
    """Return the places of the tokens that remain of one text or two: the longer one loses its end first.

    `numbers` are those of the tokens' texts, 0 or 1; None for special tokens, which remain. What remains is that of the
    `tokenizers` library ("longest_first"), which would also make all other parts of the texts.
    """
    room = max(0, longest - numbers.count(None))
    sizes = [numbers.count(0), numbers.count(1)]
    if sum(sizes) > room:
        less = min(sizes)
        more = less if less > room else max(less, room - less)
        if less + more > room:
            less, more = room // 2, room - room // 2
        sizes = [more, less] if sizes[0] > sizes[1] else [less, more]
    places = [[at for at, number in enumerate(numbers) if number == each] for each in (None, 0, 1)]
    return sorted([*places[0], *places[1][: sizes[0]], *places[2][: sizes[1]]])


def _told(texts: Sequence[str]) -> str:
    return " with ".join(map(shorten, texts))


def clean_up(text: str) -> str:
    """Remove spaces before punctuation and English contractions, as older checkpoints require."""
    for written in (".", "?", "!", ","):
        text = text.replace(f" {written}", written)
    text = text.replace(" ' ", "'")
    for written in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {written}", written)
    return text


def _listed(texts: Sequence[str]) -> str:
    """Return the first few of several texts, as an error quotes them."""
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(map(shorten, texts[:SHOWN])) + more
