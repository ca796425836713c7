"""What a trainer's vocabularies say: which token has which id, and what stands around a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txport.errors import CheckpointError, quoted

UNKNOWN, END = "<unk>", "</s>"  # as most trainers write them


@dataclass(frozen=True, kw_only=True)
class Side:
    """The vocabulary of one side: where it lies, its tokens with their ids, and how many the model has rows for.

    `size` is the length of its list, tokens that are there twice included; by default the ids say it. Of a trainer
    whose models have a row for each token and no more, it is `exact`. `unknown` is the token of what it lacks. `pieces`
    is the model of SentencePiece that cuts words for it, if the trainer says which.
    """

    place: Path
    ids: Mapping[str, int]
    rows: int
    size: int | None = None
    exact: bool = False
    unknown: str = UNKNOWN
    pieces: Path | None = None

    def require(self, *tokens: str) -> None:
        """`CheckpointError` for more tokens than rows, or fewer where each row has one, or without one of these."""
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

    `languages` are the names and tokens of those that the trainer puts before sources and targets. Where the checkpoint
    doesn't say whether it did, `likely_languages` are tokens that look so. `special` ones are
    no text. `alike` says whether the model has as many ids for sources as for targets, `has_classes` that files of
    transformers' may lie in the folder too.
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
    """Tokens by their places; of one that is there twice, the first."""
    found: dict[str, int] = {}
    for number, token in enumerate(tokens):
        found.setdefault(token, number)
    return found


@dataclass(frozen=True)
class Around:
    """The tokens that stand before and after each source, and all that are no text, these included."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    special: frozenset[str]
