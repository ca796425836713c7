"""Vocabularies of a trainer: ids of tokens, and the tokens around a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txport.errors import CheckpointError, quoted

UNKNOWN, END = "<unk>", "</s>"  # the names that most trainers use


@dataclass(frozen=True, kw_only=True)
class Side:
    """The vocabulary of one side: its file, its tokens with their ids, and the number of the model's rows.

    `size` is the length of its list, including tokens that occur twice; None: the largest id plus one. `exact`: the
    trainer's models have exactly one row per token. `unknown` is the unknown token. `pieces` is the SentencePiece model
    of this side, if the trainer names one.
    """

    place: Path
    ids: Mapping[str, int]
    rows: int
    size: int | None = None
    exact: bool = False
    unknown: str = UNKNOWN
    pieces: Path | None = None

    def require(self, *tokens: str) -> None:
        """Raise `CheckpointError` if the number of tokens does not fit the rows, or if one of `tokens` is missing."""
        size = 1 + max(self.ids.values(), default=-1) if self.size is None else self.size
        if size > self.rows or (self.exact and size < self.rows):
            raise CheckpointError(f"{self.place} has {size} tokens, the model {self.rows}: it belongs to another model")
        if len(set(self.ids.values())) < len(self.ids):
            raise CheckpointError(f"{self.place} gives one id to two tokens")
        if lacking := [token for token in tokens if token not in self.ids]:
            raise CheckpointError(f"{self.place} has no {quoted(lacking[0])}, which texts need")


@dataclass(frozen=True, kw_only=True)
class Words:
    """Both vocabularies of a checkpoint. `before` and `after` are the tokens around a source.

    `languages` are the names and tokens of the languages that the trainer puts before sources and targets. If the
    checkpoint does not state whether it did, `likely_languages` are tokens with the form of language tokens. `special`
    tokens are not text. `alike`: the model has as many ids for sources as for targets. `has_classes`: the folder may
    also have files of transformers tokenizers.
    """

    folder: Path
    source: Side
    target: Side
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    languages: Mapping[str, str] = field(default_factory=dict)
    likely_languages: tuple[str, ...] = ()
    alike: bool = True
    has_classes: bool = False


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    """Return the index of each token; the first for a token that occurs twice."""
    found: dict[str, int] = {}
    for number, token in enumerate(tokens):
        found.setdefault(token, number)
    return found


@dataclass(frozen=True)
class Around:
    """The tokens before and after each source, and all special tokens, these included."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    special: frozenset[str]
