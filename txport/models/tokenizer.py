"""Text <-> token ids, on the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from txport.errors import BundleError, TextError, TokenError
from txport.models.config import TransformerConfig
from txport.models.names import TARGET_TOKENIZER, TOKENIZER

Unknown = Literal["error", "skip"]


class Tokenizer(Protocol):
    """Source text to token ids, and target tokens to text; an id that has no token raises `TokenError`."""

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """Source ids, special tokens included; `TextError` on empty text or characters it does not know."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Target text, special tokens left out."""
        ...

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each target id as the vocabulary writes it."""
        ...

    def ids(self, tokens: str) -> list[int]:
        """Target ids of tokens as the vocabulary writes them, apart by spaces; `TextError` names one that it lacks."""
        ...


class FileTokenizer:
    """A `tokenizer.json`, for both directions; beside its own special tokens, decoded text leaves out `special` ids."""

    def __init__(self, path: Path, special: Collection[int] = ()) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise BundleError(f"{path} is not a tokenizer: {error}") from error
        self._tokenizer.encode_special_tokens = True  # "</s>" in a user's text is four characters
        self._tokenizer.no_truncation()  # a text that is too long is refused, not cut
        self._tokenizer.no_padding()
        self._path, self._special = path, frozenset(special)
        self._unknown = unknown_id(self._tokenizer.to_str())

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """See `Tokenizer.encode`; "skip" leaves unknown characters out."""
        if not text.strip():
            raise TextError("the text is empty; give at least one character")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise TextError(f"{shorten(text)} is not UTF-8 text")
        encoding = self._tokenizer.encode(text)
        strange = [span for id_, span in zip(encoding.ids, encoding.offsets, strict=True) if id_ == self._unknown]
        if strange and unknown == "error":
            found = ", ".join(dict.fromkeys(repr(text[start:end]) for start, end in strange))
            mend = "--unknown skip leaves them out"
            raise TextError(f"{shorten(text)} has characters outside the vocabulary: {found}; {mend}")
        ids = [id_ for id_ in encoding.ids if id_ != self._unknown]
        if len(ids) == sum(encoding.special_tokens_mask):
            raise TextError(f"{shorten(text)} has no character of the vocabulary")
        return ids

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        kept = [id_ for id_ in ids if id_ not in self._special]
        self.tokens(kept)  # the library leaves out what it does not know
        return str(self._tokenizer.decode(kept, skip_special_tokens=True))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        return [self._token(id_) for id_ in ids]

    def _token(self, id_: int) -> str:
        token = self._tokenizer.id_to_token(id_) if id_ >= 0 else None
        if token is None:
            have = f"which has ids up to {self.size - 1}"
            mend = "export the checkpoint with the tokenizer that its model was trained with"
            raise TokenError(f"{self._path} has no token for id {id_} ({have}); {mend}")
        return str(token)

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        found: list[int] = []
        for token in tokens.split():
            if (id_ := self._tokenizer.token_to_id(token)) is None:
                raise TextError(f"{shorten(token)} is not a token of the vocabulary")
            found.append(id_)
        return found


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

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        return self.target.tokens(ids)

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        return self.target.ids(tokens)


class NumberTokenizer:
    """For a checkpoint without a tokenizer: text is token ids, apart by spaces."""

    def __init__(self, config: TransformerConfig) -> None:
        self._config = config

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """See `Tokenizer.encode`; the start and end tokens that the config wants are added."""
        if not text.strip():
            raise TextError("the text is empty; this model has no tokenizer, so give token ids such as '5 17 3'")
        size = self._config.source_vocab_size
        wrong = [word for word in text.split() if not _is_below(size, word)]
        if wrong and unknown == "error":
            ids_wanted = f"token ids, numbers from 0 to {size - 1}"
            raise TextError(f"this model has no tokenizer, so text is {ids_wanted}; got {shorten(' '.join(wrong))}")
        ids = [int(word) for word in text.split() if word not in wrong]
        if not ids:
            raise TextError(f"{shorten(text)} has no number from 0 to {size - 1}")
        return self._config.add_special_tokens(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        special = special_ids(self._config)
        return " ".join(self.tokens([id_ for id_ in ids if id_ not in special]))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.tokens`."""
        size = self._config.target_vocab_size
        if strange := [id_ for id_ in ids if not 0 <= id_ < size]:
            raise TokenError(f"{strange[0]} is not the id of a token: a number from 0 to {size - 1}")
        return [str(id_) for id_ in ids]

    def ids(self, tokens: str) -> list[int]:
        """See `Tokenizer.ids`."""
        size = self._config.target_vocab_size
        strange = [token for token in tokens.split() if not _is_below(size, token)]
        if strange:
            raise TextError(f"{shorten(strange[0])} is not a token: a number from 0 to {size - 1}")
        return [int(token) for token in tokens.split()]


def _is_below(size: int, word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10 and int(word) < size


def shorten(text: str) -> str:
    """A text as an error message quotes it."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def special_ids(config: TransformerConfig) -> tuple[int, ...]:
    """The tokens of a target that are no text."""
    return config.pad_id, config.bos_id, config.eos_id


def load_tokenizer(folder: Path, config: TransformerConfig) -> Tokenizer:
    """The tokenizer of a checkpoint or a bundle; without a file, token ids stand for text.

    `tokenizer.json` is the source's, and the target's too if that has none of its own. Raises `BundleError` for one
    that does not fit the model's vocabularies.
    """
    file, target_file = folder / TOKENIZER, folder / TARGET_TOKENIZER
    sizes = config.source_vocab_size, config.target_vocab_size
    if not file.exists() and not target_file.exists():
        return NumberTokenizer(config)
    if not file.exists():
        raise BundleError(f"{target_file} is there, but not the source's tokenizer; add {TOKENIZER}")
    source = _load_file(file, "source", sizes[0], config)
    if target_file.exists():
        return TokenizerPair(source, _load_file(target_file, "target", sizes[1], config))
    if sizes[0] != sizes[1]:
        both = f"a source vocabulary of {sizes[0]} and a target vocabulary of {sizes[1]}"
        raise BundleError(f"{file} can't serve both {both}; add {TARGET_TOKENIZER}, the target's, to the checkpoint")
    return source


def _load_file(path: Path, side: str, size: int, config: TransformerConfig) -> FileTokenizer:
    tokenizer = FileTokenizer(path, special_ids(config))
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
