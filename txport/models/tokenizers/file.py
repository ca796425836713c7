"""Text <-> token ids, on the `tokenizers` library."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from txport.errors import BundleError, TextError, TokenError, TxportError, UnknownTextError, brief
from txport.models.tokenizers.base import Unknown, shorten
from txport.system.documents import require_size
from txport.system.machine import is_out_of_memory
from txport.system.packages import needed
from txport.system.terminal import native_stderr_held

# No text of so many characters a token fits; up to FEW nobody waits. Spaces do not count: tokenizers may drop them.
LETTERS_PER_TOKEN, FEW = 64, 10_000
LARGEST = 64 << 20  # bytes of a file; the largest of today have 35 MB
MOST_GROWTH = 4096
# The vocabulary ends before this token, which no text has: a tokenizer may cut more pieces than its model knows.
OUTSIDE = " outside the vocabulary"
FOREIGN = " "  # before a token that no piece is cut for, but that is the token of an unknown text which reads so
SHOWN = 10  # unknown characters that an error names
NOT_UTF8 = re.compile("[\ud800-\udfff]")


class FileTokenizer:
    """A `tokenizer.json`, for both directions; beside its own special tokens, decoded text leaves out `special` ids.

    A text is refused unread if it can't be one of up to `longest` tokens. Where a text has the token `mask` as the
    vocabulary writes it, it is read as that token, and no other special one is. `content` is the JSON where it lies in
    memory only. Ids from `limit` on are none of the model's: what gives one is outside the vocabulary.
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
        self._special = frozenset(special)
        self._longest = longest
        self._clean_up = clean_up
        with refusals(BundleError, f"{path} is not a tokenizer"):
            tokenizer = read_tokenizer(path, content)
            self._tokenizer = tokenizer if mask is None else _reading(tokenizer, mask)
            self._tokenizer.encode_special_tokens = True  # "</s>" in a user's text is four characters
            self._tokenizer.no_truncation()  # a text that is too long is refused, not cut
            self._tokenizer.no_padding()
            parts = json.loads(self._tokenizer.to_str())
            self._unknown = _unknown_of(parts["model"])
            self._spells = _spells(parts)
            self._reader = _letter_by_letter(self._tokenizer, parts)
        _require_bounded(path, parts)
        outside = self._tokenizer.token_to_id(OUTSIDE)
        self._limit = min(each for each in (limit, outside, self.size) if each is not None)
        self._outside = outside
        self._control: Any = None

    @property
    def content(self) -> str:
        """The `tokenizer.json`, as the library writes it."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """See `Tokenizer.encode`."""
        return self._encode(text, unknown, special=True)

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        return self._unknown if self._unknown is not None and self._unknown < self._limit else None

    def bare(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """As `encode`, without special tokens around it."""
        return self._encode(text, unknown, special=False)

    def with_control(self, text: str, control: Collection[str], mark: str, unknown: Unknown = "auto") -> list[int]:
        """As `bare`, but `control` tokens are read as such, unless a `mark` breaks them, which is no text."""
        if self._control is None:
            with refusals(BundleError, f"{self._path} can't read the prompts of a chat"):
                self._control = _controlled(self._tokenizer, control, mark)
        return self._encode(text, unknown, special=False, reader=self._control)

    def added(self) -> dict[str, bool]:
        """The tokens that are found as a whole, and whether they are special."""
        return {token.content: token.special for token in self._tokenizer.get_added_tokens_decoder().values()}

    def _encode(self, text: str, unknown: Unknown, special: bool, reader: Any = None) -> list[int]:
        if not text.strip():
            raise UnknownTextError("the text is empty; give at least one character")
        if NOT_UTF8.search(text):
            raise TextError(f"{shorten(text)} is not UTF-8 text")
        self._require_length(text)
        with refusals(TextError, f"{self._path} can't split {shorten(text)}; fix it, or leave that text out"):
            encoding = (reader or self._reader).encode(text, add_special_tokens=special)
        takes = unknown == "token" or (unknown == "auto" and not self._spells)
        ids = [self._known_id(id_, token, takes) for id_, token in zip(encoding.ids, encoding.tokens, strict=True)]
        strange = [span for id_, span in zip(ids, encoding.offsets, strict=True) if id_ is None]
        if strange and unknown != "skip":
            found = _listed(list(dict.fromkeys(text[start:end] for start, end in strange)))
            fix = "--unknown skip leaves them out"
            raise TextError(f"{shorten(text)} has characters outside the vocabulary: {found}; {fix}")
        known = [id_ for id_ in ids if id_ is not None]
        if len(known) == sum(encoding.special_tokens_mask):
            raise UnknownTextError(f"{shorten(text)} has no character of the vocabulary")
        return known

    def _known_id(self, id_: int, token: str, takes_unknown: bool) -> int | None:
        """The same id, if it is one of the model's; of what is unknown to the pieces of a source, that of its text.

        What has none may be the unknown token, but no token that was added to the vocabulary and not to the model.
        """
        if id_ != self._unknown and id_ < self._limit:
            return id_
        foreign = self._tokenizer.token_to_id(FOREIGN + token) if id_ == self._unknown else None
        if foreign is not None and foreign < self._limit:
            return int(foreign)
        is_piece = id_ == self._unknown or (self._outside is not None and id_ > self._outside)
        return self.unknown if takes_unknown and is_piece else None

    def require_fit(self, what: str, size: int) -> None:
        """Raise `BundleError` where tokens that the model lacks may stand in any text: it belongs to another model.

        Tokens that were only added to the vocabulary may be more than the model has (a mask that no training used), as
        long as none is put around every text.
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
            raise TextError(f"{shorten(text)} has {count} characters beside spaces, {takes}; split the text")

    @property
    def vocabulary(self) -> dict[str, int]:
        """All tokens with their ids."""
        return {token: id_ for token, id_ in self._tokenizer.get_vocab().items() if id_ < self._limit}

    @property
    def around(self) -> list[int]:
        """The special tokens that every text has."""
        return list(self._tokenizer.encode("").ids)

    def id_of(self, token: str) -> int:
        """The id of a token that the vocabulary has."""
        return int(self._tokenizer.token_to_id(token))

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.decode`."""
        kept = [id_ for id_ in ids if special or id_ not in self._special]
        self.tokens(kept)  # the library leaves out what it does not know
        with refusals(BundleError, f"{self._path} can't write tokens as text"):
            text = str(self._tokenizer.decode(kept, skip_special_tokens=not special))
        return clean_up(text) if self._clean_up else text

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.continuation`."""
        text = self.decode(before, special)
        whole = self.decode([*before, *ids], special)
        return whole[len(text) :] if whole.startswith(text) else self.decode(ids, special)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        return [self._token(id_) for id_ in ids]

    def _token(self, id_: int) -> str:
        token = self._tokenizer.id_to_token(id_) if id_ >= 0 else None
        if token is None:
            have = f"which has ids up to {self.size - 1}"
            fix = "export the checkpoint with the tokenizer that its model was trained with"
            raise TokenError(f"{self._path} has no token for id {id_} ({have}); {fix}")
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


def read_tokenizer(path: Path, content: str | None = None) -> Any:
    """A `tokenizer.json` as the `tokenizers` library reads it; `UnavailableError` where that does not import.

    `content` is its JSON, if it is not to be read from `path`.
    """
    with needed("txport"):
        import tokenizers
    if content is not None:
        return tokenizers.Tokenizer.from_str(content)
    require_size(path, LARGEST)
    return tokenizers.Tokenizer.from_file(str(path))


def _reading(tokenizer: Any, id_: int) -> Any:
    """The same tokenizer, which knows one special token where it stands in a text."""
    from tokenizers import AddedToken

    content = json.loads(tokenizer.to_str())
    added = [each for each in content["added_tokens"] if each["id"] == id_]
    for each in added:
        each["special"] = False  # special ones are read letter by letter
    tokenizer = type(tokenizer).from_str(json.dumps(content))
    if not added and (token := tokenizer.id_to_token(id_)) is not None:
        tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def _controlled(tokenizer: Any, control: Collection[str], mark: str) -> Any:
    """The same tokenizer, which finds these tokens in a text as it is given, and then drops the mark."""
    parts = json.loads(tokenizer.to_str())
    if parts["model"]["type"] == "Unigram":
        raise ValueError("a Unigram model would find special tokens in what messages say")
    for each in parts["added_tokens"]:
        if each["content"] in control:
            each.update(special=True, normalized=False)
    drop = {"type": "Replace", "pattern": {"String": mark}, "content": ""}
    normalizer = [drop] if parts["normalizer"] is None else [drop, parts["normalizer"]]
    parts["normalizer"] = {"type": "Sequence", "normalizers": normalizer}
    return type(tokenizer).from_str(json.dumps(parts))


def _letter_by_letter(tokenizer: Any, parts: dict[str, Any]) -> Any:
    """The same tokenizer, whose Unigram model finds no special token in a text either: they get names that none has.

    All spaces of a text have become another character before the model sees it.
    """
    special = {each["id"] for each in parts["added_tokens"] if each["special"]}
    if parts["model"]["type"] != "Unigram" or not (special := special & set(range(len(parts["model"]["vocab"])))):
        return tokenizer
    for id_ in special:
        parts["model"]["vocab"][id_][0] = f" {parts['model']['vocab'][id_][0]}"
    parts["added_tokens"] = [each for each in parts["added_tokens"] if each["id"] not in special]
    reader = type(tokenizer).from_str(json.dumps(parts))
    reader.encode_special_tokens = True
    return reader


def clean_up(text: str) -> str:
    """A text without the spaces before punctuation and English contractions, as old checkpoints ask for."""
    for written in (".", "?", "!", ","):
        text = text.replace(f" {written}", written)
    text = text.replace(" ' ", "'")
    for written in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {written}", written)
    return text


def _require_bounded(path: Path, parts: dict[str, Any]) -> None:
    """Raise `BundleError` for a tokenizer that lets a text grow by far more than any script needs."""
    for name in ("normalizer", "decoder"):
        if (growth := _growth(parts[name])) > MOST_GROWTH:
            raise BundleError(f"the {name} of {path} may let a text grow {growth:.0f} times, the most is {MOST_GROWTH}")


def _growth(part: dict[str, Any] | None) -> float:
    """How many times longer a text may get in a part of a tokenizer, which may be a sequence of others."""
    if part is None:
        return 1.0
    inner = part.get("normalizers") or part.get("decoders") or []
    added = max((len(part[key]) for key in ("content", "prepend") if isinstance(part.get(key), str)), default=0)
    pattern = part.get("pattern")
    taken = len(pattern["String"]) if isinstance(pattern, dict) and "String" in pattern else 1
    return math.prod((max(1.0, added / max(1, taken)), *map(_growth, inner)))


@contextlib.contextmanager
def refusals(kind: type[TxportError], what: str) -> Iterator[None]:
    """Raise `kind` for any error of the `tokenizers` library: plain Exceptions, and panics, which are none.

    A panic tells stderr its whole story first, which a command holds back.
    """
    try:
        with native_stderr_held():
            yield
    except TxportError:
        raise
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if is_out_of_memory(error) or not (isinstance(error, Exception) or is_panic):
            raise
        raise kind(f"{what}: {brief(error)}") from error


def unknown_id(tokenizer: str) -> int | None:
    """The id of what a tokenizer does not know: its JSON names it (WordLevel, BPE) or numbers it (Unigram)."""
    return _unknown_of(json.loads(tokenizer)["model"])


def _unknown_of(model: dict[str, Any]) -> int | None:
    number = model.get("unk_id", model["vocab"].get(model["unk_token"]) if model.get("unk_token") else None)
    return None if number is None else int(number)


def _spells(parts: dict[str, Any]) -> bool:
    """Whether a tokenizer has a token for each letter, as those of `spelling` do: what it lacks is a slip in a text."""
    splitter = parts["pre_tokenizer"]
    return parts["model"]["type"] == "WordLevel" and splitter is not None and splitter["type"] == "Split"


def _listed(texts: Sequence[str]) -> str:
    """What an error quotes of several texts, the first few of them."""
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(map(shorten, texts[:SHOWN])) + more
