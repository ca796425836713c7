"""Tokenization with language tokens for sources and targets."""

from __future__ import annotations

from dataclasses import dataclass

from txport.errors import BundleError, UnsupportedError, quoted
from txport.text.base import Unknown
from txport.text.file import FileTokenizer
from txport.text.usage import Languages

SHOWN = 12  # languages that an error names


@dataclass(frozen=True)
class LanguageReader:
    """Encodes sources with `inner`, and adds language tokens at the positions that the model expects.

    `source` is the source language, by default the model's. `target` is the target language. If the model reads it from
    the source, a source may also begin with such a token itself (`>>fra<<`). `writer` is the tokenizer of targets if
    that is separate. Raises `UnsupportedError` for a language that the model does not have, and `BundleError` for
    language tokens that are not in the vocabulary.
    """

    inner: FileTokenizer
    languages: Languages
    source: str | None = None
    target: str | None = None
    writer: FileTokenizer | None = None

    def __post_init__(self) -> None:
        known = self.inner.vocabulary
        named = [self._token(each) for each in (self.source, self.target) if each is not None]
        for token in (*self.languages.tokens.values(), *named, *self._around()):
            if token not in known:
                raise BundleError(f"the tokenizer has no token {quoted(token)}, which texts are to have")
        if self.languages.target == "forced" and self.writer is not None:
            known = self.writer.vocabulary
            if lacking := [token for token in self.languages.tokens.values() if token not in known]:
                raise BundleError(f"the target's tokenizer has no token {quoted(lacking[0])}, of a language")

    def between(self, source: str | None, target: str | None) -> LanguageReader:
        """Return this reader with these source and target languages; None leaves a language unchanged.

        Raises `UnsupportedError` for a language that is unknown or can't be set.
        """
        if source is not None and None not in (*self.languages.before, *self.languages.after):
            raise UnsupportedError("this model has no source language; remove source_language")
        if target is not None and self.languages.target == "fixed":
            told = "its decoder starts with that of its config"
            raise UnsupportedError(f"this model has no target language: {told}; remove target_language")
        names = [None if each is None else self._name(each) for each in (source, target)]
        return LanguageReader(self.inner, self.languages, names[0] or self.source, names[1] or self.target, self.writer)

    @property
    def chooses(self) -> bool:
        """Return True if the decoder chooses the target language, because none is set."""
        return self.languages.target == "forced" and self.target is None

    @property
    def forced(self) -> int | None:
        """The id of the target language's token, with which a target must begin; None if none is forced."""
        if self.target is None or self.languages.target != "forced":
            return None
        return (self.writer or self.inner).id_of(self._token(self.target))

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        first = [] if self.target is None or self.languages.target != "source" else [self._token(self.target)]
        if own := self._own(text):
            text = text.removeprefix(own)
            first.append(own)
        language = self.source or self.languages.source
        before, after = (
            [self._token(language or "") if each is None else each for each in side]
            for side in (self.languages.before, self.languages.after)
        )
        ids = [self.inner.id_of(token) for token in (*first, *before)]
        return [*ids, *self.inner.bare(text, unknown, special), *map(self.inner.id_of, after)]

    def spelled(self, text: str) -> list[str]:
        """See `Tokenizer.spelled`."""
        return self.inner.spelled(text.removeprefix(self._own(text)))

    def _own(self, text: str) -> str:
        """Return the language token that a source begins with itself, if the model reads the target language there."""
        tokens = self.languages.tokens.values() if self.languages.target == "source" else ()
        return next((token for token in tokens if text.startswith(token)), "")

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        return self.inner.unknown

    def _token(self, language: str) -> str:
        """Return the token of a language by its name; a token that was added to the tokenizer is its own name."""
        return self.languages.tokens.get(language, language)

    def _name(self, language: str) -> str:
        """Return the name of a language, which may be given as its token, or as any token that a user added."""
        if not isinstance(language, str):
            raise UnsupportedError(f"a language must be a string, got {quoted(language)}")
        for name, token in self.languages.tokens.items():
            if language in (name, token):
                return name
        if language in self.inner.added() and language not in self._around():
            return language
        names = list(self.languages.tokens)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise UnsupportedError(f"there is no language {quoted(language)}; there are {', '.join(names[:SHOWN])}{more}")

    def _around(self) -> list[str]:
        return [token for token in (*self.languages.before, *self.languages.after) if token is not None]
