"""Plans: how each tensor of a model is made from a checkpoint's, by rules, from names and shapes alone.

No data is read to make a plan. A plan then reads one tensor of the model at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from txport.checkpoints.weights.steps import (
    Dims,
    MisfitError,
    Padded,
    Part,
    Permuted,
    Plus,
    Reshaped,
    Row,
    Shape,
    Squeezed,
    Step,
    Times,
    Transposed,
)
from txport.checkpoints.weights.values import Filled, Joined, Made, Read, Value, sized
from txport.errors import CheckpointError, quoted
from txport.models.rules import (
    Concat,
    Constant,
    Drop,
    Multiply,
    Pad,
    Permute,
    Rename,
    Reshape,
    Rule,
    Settle,
    Shift,
    Spare,
    Split,
    Squeeze,
    Take,
    Tie,
    Transpose,
    Unstack,
)

MOST_PIECES, LONGEST_NAME, MOST_STEPS = 100, 1000, 40
MOST_LAYERS = 1 << 10  # in one tensor


@dataclass(frozen=True)
class Piece:
    """An intermediate tensor: its current name, how it is made, and the numbers of the rules that changed it.

    A settled piece is not changed by further rules.
    """

    name: str
    value: Value
    rules: tuple[int, ...] = ()
    settled: bool = False

    def step(self, step: Step, name: str | None = None) -> Piece:
        """Return this piece after one more step."""
        return replace(self, name=self.name if name is None else name, value=Made(self.value, step))


@dataclass(frozen=True)
class Plan:
    """How each tensor of a model is made, and the use of each tensor in the files.

    `expected` are the model's tensors, a tied one under its first name only; `given` are those of the files. `made` has
    the pieces of each tensor: several must be equal. `misshapen` are the shapes in the files of tensors that have
    another shape in the model. `misfits` are sentences about tensors that can't be split or joined by the rules;
    therefore `broken` tensors of the model can't be made. `left` are pieces with names that the model does not have.
    `dropped` and `spare` are tensors of the files that the rules leave out. `used` are the numbers of the rules that
    changed something.
    """

    expected: Mapping[str, Shape]
    given: Mapping[str, Shape]
    made: Mapping[str, tuple[Piece, ...]]
    misshapen: Mapping[str, Shape]
    misfits: tuple[str, ...]
    broken: frozenset[str]
    left: tuple[Piece, ...]
    dropped: tuple[str, ...]
    spare: tuple[str, ...]
    used: frozenset[int]

    @property
    def missing(self) -> tuple[str, ...]:
        """The model's tensors that are not made from any tensor in the files."""
        return tuple(name for name in self.expected if name not in self.made and name not in self.broken)

    @property
    def unexpected(self) -> tuple[str, ...]:
        """The tensors of the files that are not in the model."""
        return tuple(dict.fromkeys(name for piece in self.left for name in piece.value.names()))

    @property
    def fitting(self) -> tuple[str, ...]:
        """The model's tensors that can be read."""
        return tuple(name for name in self.expected if name in self.made and name not in self.misshapen)

    def problems(self, lines: Mapping[int, str] | None = None) -> list[str]:
        """Return all problems, one sentence each.

        `lines` are the lines of the user's rules, by number. Each of these rules must change something, and must not
        make a tensor that is made by another piece of the same name too.
        """
        lines = lines or {}
        return [
            *(f"{line}: the rule does nothing to any tensor" for at, line in lines.items() if at not in self.used),
            *self._problems_of_doubles(lines),
            *(f"missing {name} {self.expected[name]}" for name in self.missing),
            *(f"unexpected {quoted(name)[1:-1]} {self.given[name]}" for name in self.unexpected),
            *(f"{name} has shape {shape}, expected {self.expected[name]}" for name, shape in self.misshapen.items()),
            *self.misfits,
        ]

    def doubles(self, lines: Mapping[int, str]) -> dict[str, list[Piece]]:
        """Return the tensors that several pieces of the same name make, at least one of them by a rule in `lines`."""
        alike = {name: [each for each in pieces if each.name == pieces[0].name] for name, pieces in self.made.items()}
        return {
            name: pieces
            for name, pieces in alike.items()
            if len(pieces) > 1 and any(lines.keys() & set(piece.rules) for piece in pieces)
        }

    def _problems_of_doubles(self, lines: Mapping[int, str]) -> Iterator[str]:
        """Yield one sentence for each tensor that is made more than once, with the rules that make it."""
        for name, pieces in self.doubles(lines).items():
            ways = [(str(piece.value), [lines[at] for at in piece.rules if at in lines]) for piece in pieces]
            told = (f"{quoted(value)[1:-1]} ({', '.join(at) or 'as it is'})" for value, at in ways)
            yield f"{name} is made more than once: of {' and of '.join(told)}"

    def tensor(self, name: str, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the model's tensor of this name, made from `weights`; raise `ValueError` for tied ones that differ."""
        first, *others = self.made[name]
        tensor = first.value.read(weights)
        for other in others:
            if not torch.equal(tensor, other.value.read(weights)):
                one, two = (" and ".join(map(quoted, each.value.names())) for each in (first, other))
                raise ValueError(f"{one} and {two} must be one tensor, but differ")
        return tensor


def plan(rules: Sequence[Rule], given: Mapping[str, Shape], model: nn.Module) -> Plan:
    """Plan how tensors of these shapes become a model's; the rules are applied in order, each to all pieces.

    Tensors that have a name of the model when `Settle` is applied keep it; without that rule, they keep it from the
    start. Raises `CheckpointError` for rules that make far too many pieces.
    """
    aliases = first_names(model)
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    pieces = [Piece(name, Read(name, shape)) for name, shape in given.items()]
    used: set[int] = set()
    if not any(isinstance(rule, Settle) for rule in rules):
        pieces = _settled(pieces, aliases)
    for at, rule in enumerate(rules):
        before = pieces
        pieces = _settled(pieces, aliases) if isinstance(rule, Settle) else _applied(rule, at, pieces)
        _require_bounded(pieces, MOST_PIECES * (len(given) + len(expected)))
        used |= {at} if pieces != before else set()
    kept = {name for piece in pieces for name in piece.value.names()}
    strange = [piece for piece in pieces if piece.name not in aliases]
    sparing = [_sparing(rules, piece) for piece in strange]
    spare = [piece for piece, rule in zip(strange, sparing, strict=True) if rule is not None]
    made: dict[str, tuple[Piece, ...]] = {}
    for piece in pieces:
        if piece.name in aliases:
            made[aliases[piece.name]] = (*made.get(aliases[piece.name], ()), piece)
    used |= {rule for rule in sparing if rule is not None} | _complete(rules, made, aliases, expected)
    made, misshapen, misfits = _measured(made, expected)
    return Plan(
        expected=expected,
        given=given,
        made={name: pieces for name, pieces in made.items() if name not in misfits},
        misshapen=misshapen,
        misfits=tuple(dict.fromkeys(misfits.values())),
        broken=frozenset(misfits),
        left=tuple(piece for piece, rule in zip(strange, sparing, strict=True) if rule is None),
        dropped=tuple(name for name in given if name not in kept),
        spare=tuple(dict.fromkeys(name for piece in spare for name in piece.value.names())),
        used=frozenset(used),
    )


def _require_bounded(pieces: Sequence[Piece], most: int) -> None:
    """Raise `CheckpointError` for rules that make far more pieces, names or steps than any model needs."""
    if len(pieces) > most:
        raise CheckpointError(f"the rules make {len(pieces)} pieces of these tensors, the most that is taken is {most}")
    if any(len(piece.name) > LONGEST_NAME or len(piece.rules) > MOST_STEPS for piece in pieces):
        what = f"names of at most {LONGEST_NAME} characters and {MOST_STEPS} rules for a tensor"
        raise CheckpointError(f"the rules make more of a tensor than is taken: {what}")


def first_names(model: nn.Module) -> dict[str, str]:
    """Return every name of a model's tensors -> the first name of the same tensor."""
    first = {id(tensor): name for name, tensor in model.named_parameters()}
    return {name: first[id(tensor)] for name, tensor in model.named_parameters(remove_duplicate=False)}


def _settled(pieces: Sequence[Piece], names: Mapping[str, str]) -> list[Piece]:
    return [replace(each, settled=True) if each.name in names and not each.settled else each for each in pieces]


def _applied(rule: Rule, at: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Apply a rule to all pieces; changed pieces record its number."""
    if isinstance(rule, Concat):
        return _joined(rule, at, pieces)
    made: list[Piece] = []
    for piece in pieces:
        several = [piece] if piece.settled else _changed(rule, piece)
        made += [each if each is piece else replace(each, rules=(*piece.rules, at)) for each in several]
    return made


def _changed(rule: Rule, piece: Piece) -> Sequence[Piece]:
    """Apply a rule to one piece; return the same object if the rule does nothing."""
    match rule:
        case Rename(pattern, to):
            name = re.sub(pattern, to, piece.name)
            return [piece if name == piece.name else replace(piece, name=name)]
        case Drop(pattern, _):
            return [] if re.match(pattern, piece.name) else [piece]
        case Spare() | Constant() | Tie() | Concat() | Settle():
            return [piece]
    if not re.search(rule.pattern, piece.name):
        return [piece]
    if isinstance(rule, Split):
        names = [re.sub(rule.pattern, to, piece.name) for to in rule.to]
        return [piece.step(Part(at, len(names), rule.axis, rule.groups), name) for at, name in enumerate(names)]
    dims = _dims(piece)
    if isinstance(rule, Unstack):
        count = (dims[0] or 0) if dims else 0
        if count > MOST_LAYERS:
            raise CheckpointError(f"{quoted(piece.name)} would be unstacked to {count} layers, not over {MOST_LAYERS}")
        names = [re.sub(rule.pattern, rule.to.replace("{}", str(at)), piece.name) for at in range(count)]
        return [piece.step(Row(at), name) for at, name in enumerate(names)] or [piece]
    step = _step(rule, dims)
    return [piece if step is None else piece.step(step)]


def _step(rule: Transpose | Permute | Squeeze | Shift | Multiply | Reshape | Pad | Take, dims: Dims) -> Step | None:
    """Return the step of a rule for a tensor of this shape; None if it does nothing."""
    match rule:
        case Transpose():
            return Transposed() if len(dims) == 2 else None
        case Take(_, row):
            return Row(row) if len(dims) == 2 and dims[0] is not None and row < dims[0] else None
        case Shift(_, by):
            return Plus(by)
        case Multiply(_, by):
            return Times(by)
        case Reshape(_, shape):
            return Reshaped(shape)
        case Pad(_, rows, value):
            return Padded(rows, value)
        case Permute(_, view, order, axis):
            return Permuted(view, order, axis)
        case Squeeze():
            return Squeezed() if 1 in dims else None


def _joined(rule: Concat, at: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces after a `Concat`; a joined piece has the position of its first part."""
    found: dict[str, dict[int, Piece]] = {}
    for piece in pieces:
        for part, pattern in enumerate(rule.patterns):
            if not piece.settled and re.search(pattern, piece.name):
                found.setdefault(re.sub(pattern, rule.to, piece.name), {}).setdefault(part, piece)
    whole: dict[int, Piece] = {}
    for name, parts in found.items():
        ordered = [parts[part] for part in sorted(parts)]
        if len({id(piece) for piece in ordered}) == len(rule.patterns):
            earlier = tuple(dict.fromkeys(rule for piece in ordered for rule in piece.rules))
            joined = Joined(tuple(piece.value for piece in ordered), rule.axis)
            whole |= dict.fromkeys(map(id, ordered), Piece(name, joined, (*earlier, at)))
    made = (whole.get(id(piece), piece) for piece in pieces)
    return list({id(piece): piece for piece in made}.values())


def _dims(piece: Piece) -> Dims:
    """Return the shape of a piece so far; () if it can't be made."""
    try:
        return piece.value.dims()
    except MisfitError:
        return ()


def _sparing(rules: Sequence[Rule], piece: Piece) -> int | None:
    """Return the number of the rule that allows the model not to have a tensor of this name."""
    spares = (at for at, rule in enumerate(rules) if isinstance(rule, Spare) and re.match(rule.pattern, piece.name))
    return next(spares, None)


def _complete(
    rules: Sequence[Rule], made: dict[str, tuple[Piece, ...]], aliases: Mapping[str, str], expected: Mapping[str, Shape]
) -> set[int]:
    """Add tensors that the files lack but rules provide, in place; return the numbers of these rules."""
    used: set[int] = set()
    for at, rule in enumerate(rules):
        if isinstance(rule, Tie):
            name = aliases.get(rule.name)
            of = aliases.get(rule.of)
            if name is not None and of in made and name not in made:
                made[name] = tuple(replace(piece, rules=(*piece.rules, at)) for piece in made[of])
                used.add(at)
        elif isinstance(rule, Constant):
            absent = [name for name in expected if name not in made and re.fullmatch(rule.pattern, name)]
            made |= {name: (Piece(name, Filled(rule.value, expected[name]), (at,)),) for name in absent}
            used |= {at} if absent else set()
    return used


def _measured(
    made: Mapping[str, tuple[Piece, ...]], expected: Mapping[str, Shape]
) -> tuple[dict[str, tuple[Piece, ...]], dict[str, Shape], dict[str, str]]:
    """Return the pieces with all sizes known, the shapes that differ from the model's, and errors by tensor."""
    values = sized({name: tuple(piece.value for piece in pieces) for name, pieces in made.items()}, expected)
    found = {}
    misshapen = {}
    misfits = {}
    for name, pieces in made.items():
        found[name] = tuple(replace(piece, value=value) for piece, value in zip(pieces, values[name], strict=True))
        for value in values[name]:
            try:
                shape = tuple(size for size in value.dims() if size is not None)
            except MisfitError as error:
                misfits[name] = str(error)
                break
            if shape != expected[name]:
                misshapen[name] = shape
    return found, misshapen, misfits
