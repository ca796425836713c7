"""Text <-> token ids, on the `tokenizers` library."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from txport.errors import BundleError, TextError, TokenError, TxportError, UnknownTextError, brief
from txport.models.facts import Facts
from txport.models.names import TARGET_TOKENIZER, TOKENIZER
from txport.system.documents import require_size
from txport.system.machine import is_out_of_memory
from txport.system.packages import needed
from txport.system.terminal import native_stderr_held

Unknown = Literal["error", "skip"]
# No text of so many characters a token fits; up to FEW nobody waits. Spaces do not count: tokenizers may drop them.
LETTERS_PER_TOKEN, FEW = 64, 10_000
LARGEST = 64 << 20  # bytes of a file; the largest of today have 35 MB
MOST_GROWTH = 4096
SHOWN = 10  # unknown characters that an error names
NOT_UTF8 = re.compile("[\ud800-\udfff]")


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


class FileTokenizer:
    """A `tokenizer.json`, for both directions; beside its own special tokens, decoded text leaves out `special` ids.

    A text is refused unread if it can't be one of up to `longest` tokens. Where a text has the token `mask` as the
    vocabulary writes it, it is read as that token, and no other special one is.
    """

    def __init__(
        self, path: Path, special: Collection[int] = (), longest: int | None = None, mask: int | None = None
    ) -> None:
        self._path, self._special, self._longest = path, frozenset(special), longest
        with refusals(BundleError, f"{path} is not a tokenizer"):
            tokenizer = read_tokenizer(path)
            self._tokenizer = tokenizer if mask is None else _reading(tokenizer, mask)
            self._tokenizer.encode_special_tokens = True  # "</s>" in a user's text is four characters
            self._tokenizer.no_truncation()  # a text that is too long is refused, not cut
            self._tokenizer.no_padding()
            content = self._tokenizer.to_str()
            self._unknown = unknown_id(content)
        _require_bounded(path, content)

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """See `Tokenizer.encode`; "skip" leaves unknown characters out."""
        if not text.strip():
            raise UnknownTextError("the text is empty; give at least one character")
        if NOT_UTF8.search(text):
            raise TextError(f"{shorten(text)} is not UTF-8 text")
        self._require_length(text)
        with refusals(TextError, f"{self._path} can't split {shorten(text)}; fix it, or leave that text out"):
            encoding = self._tokenizer.encode(text)
        strange = [span for id_, span in zip(encoding.ids, encoding.offsets, strict=True) if id_ == self._unknown]
        if strange and unknown == "error":
            found = _listed(list(dict.fromkeys(text[start:end] for start, end in strange)))
            fix = "--unknown skip leaves them out"
            raise TextError(f"{shorten(text)} has characters outside the vocabulary: {found}; {fix}")
        ids = [id_ for id_ in encoding.ids if id_ != self._unknown]
        if len(ids) == sum(encoding.special_tokens_mask):
            raise UnknownTextError(f"{shorten(text)} has no character of the vocabulary")
        return ids

    def _require_length(self, text: str) -> None:
        if self._longest is None or len(text) <= (most := max(FEW, LETTERS_PER_TOKEN * self._longest)):
            return
        if (count := sum(map(len, text.split()))) > most:
            takes = f"the model takes at most {self._longest} tokens"
            raise TextError(f"{shorten(text)} has {count} characters beside spaces, {takes}; split the text")

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        kept = [id_ for id_ in ids if id_ not in self._special]
        self.tokens(kept)  # the library leaves out what it does not know
        with refusals(BundleError, f"{self._path} can't write tokens as text"):
            return str(self._tokenizer.decode(kept, skip_special_tokens=True))

    def continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """See `Tokenizer.continuation`."""
        text, whole = self.decode(before), self.decode([*before, *ids])
        return whole[len(text) :] if whole.startswith(text) else self.decode(ids)

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
            if (id_ := self._tokenizer.token_to_id(token)) is None:
                raise TextError(f"{shorten(token)} is not a token of the vocabulary")
            found.append(id_)
        return found


def read_tokenizer(path: Path) -> Any:
    """A `tokenizer.json` as the `tokenizers` library reads it; `UnavailableError` where that does not import."""
    with needed("txport"):
        import tokenizers
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


def _require_bounded(path: Path, content: str) -> None:
    """Raise `BundleError` for a tokenizer that lets a text grow by far more than any script needs."""
    parts = json.loads(content)
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
    model = json.loads(tokenizer)["model"]
    number = model.get("unk_id", model["vocab"].get(model["unk_token"]) if model.get("unk_token") else None)
    return None if number is None else int(number)


@dataclass(frozen=True)
class TokenizerPair:
    """Two vocabularies: one tokenizer for sources, another one for targets."""

    source: Tokenizer
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


class NumberTokenizer:
    """Text is token ids, apart by spaces: for a model without a tokenizer, or, `exact`, in place of the one it has.

    Then ids are read and written as they are; else special tokens are added where the model expects some, and left out.
    """

    def __init__(self, facts: Facts, *, exact: bool = False) -> None:
        self._facts, self._exact = facts, exact
        self._why = "text is read as" if exact else "this model has no tokenizer, so text is"

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """See `Tokenizer.encode`; the start and end tokens that the model expects are added."""
        if not text.strip():
            raise UnknownTextError(f"the text is empty; {self._why} token ids such as '5 17 3'")
        size, ids, wrong = self._facts.vocabulary.size, [], []
        for word in text.split():
            if _is_below(size, word):
                ids.append(int(word))
            else:
                wrong.append(word)
        if wrong and unknown == "error":
            ids_wanted = f"token ids, numbers from 0 to {size - 1}"
            raise TextError(f"{self._why} {ids_wanted}; got {shorten(' '.join(wrong))}")
        if not ids:
            raise UnknownTextError(f"{shorten(text)} has no number from 0 to {size - 1}")
        return ids if self._exact else self._facts.vocabulary.with_special(ids)

    def continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """See `Tokenizer.continuation`."""
        return self.decode(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        special = () if self._exact else self._facts.writes.special
        return " ".join(self.tokens([id_ for id_ in ids if id_ not in special]))

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


def _listed(texts: Sequence[str]) -> str:
    """What an error quotes of several texts, the first few of them."""
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(map(shorten, texts[:SHOWN])) + more


def shorten(text: str) -> str:
    """A text as an error message quotes it."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def load_tokenizer(folder: Path, facts: Facts) -> Tokenizer:
    """The tokenizer of a checkpoint or a bundle; without a file, token ids stand for text.

    `tokenizer.json` is the source's, and the target's too if that has none of its own. Raises `BundleError` for one
    that does not fit the model's vocabularies.
    """
    file, target_file = folder / TOKENIZER, folder / TARGET_TOKENIZER
    sizes = facts.vocabulary.size, facts.writes.size
    if not file.exists() and not target_file.exists():
        return NumberTokenizer(facts)
    if not file.exists():
        raise BundleError(f"{target_file} is there, but not the source's tokenizer; add {TOKENIZER}")
    source = _load_file(file, "source", sizes[0], facts)
    if target_file.exists():
        return TokenizerPair(source, _load_file(target_file, "target", sizes[1], facts))
    if sizes[0] != sizes[1]:
        both = f"a source vocabulary of {sizes[0]} and a target vocabulary of {sizes[1]}"
        raise BundleError(f"{file} can't serve both {both}; add {TARGET_TOKENIZER}, the target's, to the checkpoint")
    return source


def _load_file(path: Path, side: str, size: int, facts: Facts) -> FileTokenizer:
    mask = facts.vocabulary.mask if facts.ability == "fill" else None
    tokenizer = FileTokenizer(path, facts.writes.special, facts.vocabulary.longest, mask)
    if tokenizer.size > size:
        sizes = f"{tokenizer.size} tokens, the model's {side} vocabulary {size}"
        raise BundleError(f"{path} has {sizes}: it belongs to another model")
    return tokenizer


def spelling_tokenizer(vocabulary: Sequence[str]) -> str:
    """The JSON of a tokenizer that reads text letter by letter, in lower case, and writes tokens apart by spaces.

    The first four tokens of `vocabulary` are padding, start, end and unknown.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    pad, start, end, unknown = vocabulary[:4]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.add_special_tokens([pad, start, end, unknown])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, ids[end])])
    return str(tokenizer.to_str(pretty=True))
