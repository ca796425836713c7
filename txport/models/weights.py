"""Rules that turn the tensors of a checkpoint into those of a model: their names, layout, and which of them are one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from txport.errors import quoted


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
    """A tensor in whose name this is found holds several, one after the other, as large as they are in the model.

    `to` replaces what matches, once for each of them.
    """

    pattern: str
    to: tuple[str, ...]


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
class Zeros:
    """The model's tensor of this name is zeros where the checkpoint has none."""

    name: str


Rule = Rename | Drop | Transpose | Split | Shift | Take | Spare | Zeros


@dataclass(frozen=True)
class Piece:
    """What a tensor of a checkpoint, or one of `count` parts of it, becomes."""

    name: str
    transposed: bool = False
    part: int = 0
    count: int = 1
    shift: float = 0.0
    row: int | None = None


def own_names(rules: Sequence[Rule], weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a checkpoint as the model's, each that is tied under its first name only.

    A name that is the model's own stays; to any other, the rules are applied in turn. What is none of the model's
    even then stands under the name that the checkpoint has for it. Raises `ValueError` for tensors that must be one,
    but differ, and for one that can't be split.
    """
    if not rules:
        return dict(weights)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in model.named_parameters()}
    found: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for given, whole in weights.items():
        pieces = (Piece(given),) if given in parameters else apply(rules, given)
        if strange := [piece.name for piece in pieces if piece.name not in parameters]:
            if not _is_spare(rules, strange):
                found[given], origin[given] = whole, given
            continue
        for piece, tensor in zip(pieces, _parts(given, whole, pieces, parameters), strict=True):
            name = first[id(parameters[piece.name])]
            if name in found and not torch.equal(found[name], tensor):
                raise ValueError(f"{quoted(origin[name])} and {quoted(given)} must be one tensor, but differ")
            found[name], origin[name] = tensor, given
    absent = [rule.name for rule in rules if isinstance(rule, Zeros) and rule.name not in found]
    return found | {name: torch.zeros(parameters[name].shape) for name in absent if name in parameters}


def apply(rules: Sequence[Rule], name: str) -> tuple[Piece, ...]:
    """What the tensor of a name becomes; nothing if it is dropped."""
    pieces = [Piece(name)]
    for rule in rules:
        pieces = [made for piece in pieces for made in _applied(rule, piece)]
    return tuple(pieces)


def _is_spare(rules: Sequence[Rule], names: Sequence[str]) -> bool:
    """Whether a model may lack tensors of these names."""
    patterns = [rule.pattern for rule in rules if isinstance(rule, Spare)]
    return all(any(re.match(pattern, name) for pattern in patterns) for name in names)


def _applied(rule: Rule, piece: Piece) -> Sequence[Piece]:
    """What a rule makes of a piece."""
    if isinstance(rule, Rename):
        return [replace(piece, name=re.sub(rule.pattern, rule.to, piece.name))]
    if isinstance(rule, Drop):
        return [] if re.match(rule.pattern, piece.name) else [piece]
    if isinstance(rule, Spare | Zeros) or not re.search(rule.pattern, piece.name):
        return [piece]
    if isinstance(rule, Transpose):
        return [replace(piece, transposed=not piece.transposed)]
    if isinstance(rule, Shift):
        return [replace(piece, shift=piece.shift + rule.by)]
    if isinstance(rule, Take):
        return [replace(piece, row=rule.row)]
    names = (re.sub(rule.pattern, to, piece.name) for to in rule.to)
    return [replace(piece, name=name, part=part, count=len(rule.to)) for part, name in enumerate(names)]


def _parts(given: str, tensor: Tensor, pieces: Sequence[Piece], parameters: Mapping[str, Tensor]) -> Sequence[Tensor]:
    """A checkpoint's tensor as its pieces are in the model; one of another shape than any of them stays as it is."""
    if not pieces:
        return ()
    first = pieces[0]
    if first.transposed and tensor.dim() == 2:
        tensor = tensor.t()
    if first.row is not None and tensor.dim() == 2 and first.row < len(tensor):
        tensor = tensor[first.row]
    parts: Sequence[Tensor] = (tensor,)
    if first.count > 1:
        sizes = [len(parameters[piece.name]) for piece in pieces]
        if not tensor.dim() or len(tensor) != sum(sizes):
            rows = f"{' + '.join(map(str, sizes))} rows"
            raise ValueError(f"{quoted(given)} of shape {tuple(tensor.shape)} must hold {rows}")
        parts = torch.split(tensor, sizes)
    shifts = [piece.shift if tensor.is_floating_point() else 0.0 for piece in pieces]  # whole numbers are refused
    return [part.float() + shift if shift else part for part, shift in zip(parts, shifts, strict=True)]
