"""Rules that turn the tensors of a checkpoint into those of a model: their names, layout, and which of them are one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rename:
    """Every place of a name that matches a regular expression is replaced, as `re.sub` does."""

    pattern: str
    to: str


@dataclass(frozen=True)
class Drop:
    """A tensor whose name begins with this regular expression is no weight: a table that follows from the config."""

    pattern: str


@dataclass(frozen=True)
class Transpose:
    """A matrix in whose name this regular expression is found lies as (in, out), the model's as (out, in)."""

    pattern: str


@dataclass(frozen=True)
class Split:
    """A tensor in whose name this is found holds several along an axis, each as large as in the model.

    `to` replaces what matches, once for each of them. They lie one after the other, or, with `groups`, a share of each
    in each group: with as many groups as heads, rows lie as (heads, 3, size).
    """

    pattern: str
    to: tuple[str, ...]
    axis: int = 0
    groups: int = 1


@dataclass(frozen=True)
class Unstack:
    """A tensor in whose name this is found holds the same one of each layer along its first axis.

    `to` replaces what matches; in it, `{}` is the number of the layer.
    """

    pattern: str
    to: str


@dataclass(frozen=True)
class Concat:
    """Tensors in whose names these are found, where the names are alike but for that, are one along an axis, in order.

    `to` replaces what matches.
    """

    patterns: tuple[str, ...]
    to: str
    axis: int = 0


@dataclass(frozen=True)
class Permute:
    """The axis of a tensor in whose name this is found is seen as `view`, whose axes come in the order `order`.

    `view` may have one -1. Rotary pairs that lie side by side come into halves by `(heads, -1, 2)` and `(0, 2, 1)`.
    """

    pattern: str
    view: tuple[int, ...]
    order: tuple[int, ...]
    axis: int = 0


@dataclass(frozen=True)
class Squeeze:
    """A tensor in whose name this is found has axes of one, the model's has not."""

    pattern: str


@dataclass(frozen=True)
class Shift:
    """The model's tensor is larger by a number, for norms that multiply by 1 + weight."""

    pattern: str
    by: float


@dataclass(frozen=True)
class Take:
    """Of a matrix in whose name this is found, or of one with a single row, the model has one row."""

    pattern: str
    row: int = 0


@dataclass(frozen=True)
class Spare:
    """A tensor whose name begins with this is left out where the model has none of that name: of a head not used."""

    pattern: str


@dataclass(frozen=True)
class Constant:
    """The model's tensors whose whole names match have this value everywhere, where the checkpoint has none."""

    pattern: str
    value: float = 0.0


@dataclass(frozen=True)
class Tie:
    """The model's tensor `name` is made as its tensor `of` is, where the checkpoint has only that."""

    name: str
    of: str


@dataclass(frozen=True)
class Settle:
    """Tensors that have a name of the model's by now keep it. Without this rule, it holds before the first."""


Rule = (
    Rename
    | Drop
    | Transpose
    | Split
    | Unstack
    | Concat
    | Permute
    | Squeeze
    | Shift
    | Take
    | Spare
    | Constant
    | Tie
    | Settle
)
