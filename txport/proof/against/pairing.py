"""Pairs of calls in the import and in the original that compute the same, found by the tensors that both use.

The plan of the import states which value of which tensor of the files each value of the model is. Nothing is inferred
from names. If one module of the original computes several parts, each part gets its share of the module's output.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.checkpoints.weights.plan import Plan, first_names
from txport.checkpoints.weights.steps import Shape
from txport.checkpoints.weights.streamed import reader_of
from txport.checkpoints.weights.values import Filled, Weights
from txport.models.model import Model
from txport.models.parts import NORM_TYPES, Attention, FeedForward, GatedFeedForward
from txport.proof.against.original import Original
from txport.proof.faults.calls import PartCall, Record, calls_of
from txport.proof.faults.evidence import last_map

# Difference of a part from the original relative to its largest value, with the same inputs: above SURELY it is an
# error, below CLOSELY it is rounding. Between them, it is an error only if a cause explains it, such as an epsilon or
# a table that the original has in fp32.
CLOSELY = {torch.float64: 1e-9, torch.float32: 1e-4}
SURELY = {torch.float64: 1e-5, torch.float32: 1e-4}
BLOCKS = (Attention, FeedForward, GatedFeedForward)
AT_ONCE = 1 << 20  # values of a matrix that are compared at once


@dataclass(frozen=True)
class Rows:
    """Positions of a linear layer's outputs and inputs in those of the original's layer with the tensor `file`."""

    file: str
    outputs: Tensor  # (out,)
    inputs: Tensor | None = None  # (in,)


@dataclass(frozen=True)
class Share:
    """Rows of a matrix of the import that consist of values of one tensor of the files.

    `first` (out,) are positions along the tensor's first axis, `second` (in,) along its last axis. If the import
    transposes the tensor (`turned`), `first` are positions along the last axis and `second` along the first.
    """

    file: str
    first: Tensor
    second: Tensor
    turned: bool

    def rows(self, *, across: bool) -> Rows:
        """Return the positions in the original's linear layer; with `across`, its matrix in the file is (in, out)."""
        one, other = (self.first, self.second) if self.turned == across else (self.second, self.first)
        return Rows(self.file, one, other)


@dataclass(frozen=True)
class Pair:
    """A call of a part of the import, and the corresponding input and output in the original; None if unknown.

    `theirs` are the names of the original's modules.
    """

    call: PartCall
    theirs: tuple[str, ...]
    read: Tensor | None
    gave: Tensor | None
    bias: str = ""  # a tensor of the files that the original adds and the import does not read
    rows: tuple[Rows, ...] = ()
    is_block: bool = False  # an attention or a feed-forward whose last linear layer has no counterpart


def files_read(plan: Plan) -> list[str]:
    """Return the tensors of the files from which an import is made."""
    every = (name for pieces in plan.made.values() for piece in pieces for name in piece.value.names())
    return list(dict.fromkeys(every))


class Origins:
    """The tensors of the files from which the import is made, and the modules of the original that own them."""

    def __init__(self, model: Model, plan: Plan, original: Original) -> None:
        self.plan = plan
        self._first = first_names(model)
        sizes = [prod(shape) for shape in plan.given.values()]
        self._names = list(plan.given)
        self._begins = [0, *accumulate(sizes)]
        begins = dict(zip(self._names, self._begins, strict=False))
        kind = torch.int32 if self._begins[-1] <= torch.iinfo(torch.int32).max else torch.int64
        self._numbers = Weights(
            plan.given,
            lambda name: torch.arange(begins[name], begins[name] + prod(plan.given[name]), dtype=kind).reshape(
                plan.given[name]
            ),
        )
        self._shares: dict[str, list[Share]] = {}
        self._owners: dict[str, list[tuple[str, str]]] = {}
        state = original.module.state_dict(keep_vars=True)
        files: dict[int, list[str]] = {}
        for name, of in original.names.items():
            files.setdefault(id(state[name]), []).append(of)
        self._tensors: dict[str, Tensor] = {}
        self._reader = reader_of(original.module)
        self._parameters = {id(each): name for name, each in original.module.named_parameters()}
        for module_name, module in original.module.named_modules():
            for own, tensor in (*module._parameters.items(), *module._buffers.items()):
                for file in () if tensor is None else files.get(id(tensor), ()):
                    self._owners.setdefault(file, []).append((module_name, own))
                    self._tensors[file] = tensor
        self._same = {file: frozenset(several) for several in files.values() for file in several}  # tied tensors
        self._modules = dict(original.module.named_modules())

    def files_of(self, name: str) -> tuple[str, ...]:
        """Return the tensors of the files from which a tensor of the import is made."""
        pieces = self.plan.made.get(self._first.get(name, name), ())
        return tuple(dict.fromkeys(each for piece in pieces[:1] for each in piece.value.names()))

    def files_under(self, module: str) -> frozenset[str]:
        """Return the tensors of the files in a module of the original, including its submodules."""
        inside = (
            file
            for file, owners in self._owners.items()
            for name, _ in owners
            if not module or name == module or name.startswith(f"{module}.")
        )
        return frozenset(inside)

    def owners(self, file: str) -> list[str]:
        """Return the modules of the original that own a tensor of the files directly."""
        return [name for name, _ in self._owners.get(file, [])]

    def numbers(self, name: str) -> Tensor | None:
        """Return the index of each value of a tensor of the import, counted through all tensors of the files.

        The result has the shape of the import's tensor. It is None if the values are not those of the files.
        """
        pieces = self.plan.made.get(self._first.get(name, name), ())
        if not pieces or isinstance(pieces[0].value, Filled) or not pieces[0].value.names():
            return None
        found = pieces[0].value.read(self._numbers)
        return None if found.is_floating_point() else found

    def shares(self, name: str) -> list[Share]:
        """Return a matrix as shares of tensors of the files, in the order of its rows; [] if this is not possible."""
        if name not in self._shares:
            numbers = self.numbers(name)
            found = [] if numbers is None or numbers.dim() != 2 else [self._share(each) for each in self._cut(numbers)]
            self._shares[name] = [each for each in found if each is not None] if None not in found else []
        return self._shares[name]

    def _cut(self, numbers: Tensor) -> list[Tensor]:
        files = torch.bucketize(numbers[:, 0].long(), torch.tensor(self._begins), right=True)
        return list(numbers.tensor_split((files.diff().nonzero().flatten() + 1).tolist()))

    def _share(self, numbers: Tensor) -> Share | None:
        file, begin = self.file_at(int(numbers[0, 0]))
        return share_of(numbers - begin, file, self.plan.given[file])

    def file_at(self, number: int) -> tuple[str, int]:
        """Return the tensor of the files that has the value with this index, and the index of its first value."""
        at = bisect_right(self._begins, number) - 1
        return self._names[at], self._begins[at]

    def tensor(self, file: str) -> Tensor:
        """Return the original's tensor for one of the files, in the original's dtype."""
        tensor = self._tensors[file]
        name = self._parameters.get(id(tensor))
        return tensor.detach() if self._reader is None or name is None else self._reader(name).to(tensor.dtype)

    def unread(self, module: str) -> list[str]:
        """Return the tensors that a module of the original owns directly and from which the import is not made."""
        used = {same for file in files_read(self.plan) for same in self._same.get(file, {file})}
        return [file for file in self.own_files(module) if file not in used]

    def own_files(self, module: str) -> list[str]:
        """Return the tensors of the files that a module of the original owns directly."""
        return [file for file, owners in self._owners.items() if module in [name for name, _ in owners]]


def share_of(numbers: Tensor, file: str, shape: Shape) -> Share | None:
    """Return the share for a matrix (out, in) of indices into a tensor of this shape; None if it is not a submatrix."""
    size = prod(shape)
    width = shape[-1]
    for turned in (False, True):
        column = numbers[:, 0]
        row = numbers[0]
        first, second = (column % width, row // width) if turned else (column // width, row % width)
        begins, steps = (first, second * width) if turned else (first * width, second)
        if int(begins.max()) < size and int(steps.max()) < size and _is_sum(numbers, begins, steps):
            return Share(file, first.long(), second.long(), turned)
    return None


def _is_sum(numbers: Tensor, begins: Tensor, steps: Tensor) -> bool:
    """Return True if each value of a matrix is the sum of one for its row and one for its column; in blocks of rows."""
    several = max(1, AT_ONCE // max(1, numbers.shape[1]))
    places = (slice(at, at + several) for at in range(0, len(numbers), several))
    return all(torch.equal(numbers[some], begins[some, None] + steps) for some in places)


@dataclass(frozen=True)
class Product:
    """A call of the original that returns the product of its input with one of its matrices, plus an optional bias."""

    call: PartCall
    across: bool  # the matrix is (in, out)
    bias: str  # the tensor of the files that is added, or ""


def product_of(origins: Origins, call: PartCall, file: str) -> Product | None:
    """Return the product that a call computes with a matrix, by its values; None if it computes anything else."""
    x = call.read
    y = call.result
    weight = origins.tensor(file)
    if x is None or weight.dim() != 2 or not x.dim() or x.dtype != weight.dtype:
        return None
    biases = [each for each in origins.own_files(call.name) if origins.tensor(each).shape == y.shape[-1:]]
    for across, matrix in ((False, weight.t()), (True, weight)):
        if matrix.shape != (x.shape[-1], y.shape[-1]):
            continue
        plain = x @ matrix
        for bias in ("", *biases):
            found = plain + origins.tensor(bias) if bias else plain
            if found.shape == y.shape and _close(found, y):
                return Product(call, across, bias)
    return None


def _close(one: Tensor, other: Tensor) -> bool:
    largest = float(other.abs().max()) if other.numel() else 0.0
    return float((one - other).abs().max() if other.numel() else 0.0) <= CLOSELY[other.dtype] * max(largest, 1e-30)


def pairs_of(origins: Origins, record: Record, watched: Record) -> list[Pair]:
    """Return the calls of linear layers, convolutions, embeddings, norms and blocks with a counterpart."""
    pairs = list(_parts_of(origins, record, watched))
    return [*pairs, *_blocks_of(origins, record, watched, {each.call.name for each in pairs})]


def _parts_of(origins: Origins, record: Record, watched: Record) -> Iterator[Pair]:
    """Yield the pairs of linear layers, convolutions, embeddings and norms, in the order of the import."""
    done: list[list[str]] = []  # tables of which the lookups are paired
    for name, calls in record.items():
        part = calls[0].part
        files = sorted(origins.files_of(f"{name}.weight"))
        if isinstance(part, nn.Embedding) and files and files not in done:
            done.append(files)
            lookups = [each for each, several in record.items() if isinstance(several[0].part, nn.Embedding)]
            alike = [each for each in lookups if sorted(origins.files_of(f"{each}.weight")) == files]
            yield from _lookups(origins, calls_of(record, alike), watched, files)
        elif isinstance(part, nn.Linear):
            yield from _products(origins, name, calls, watched, files)
        elif isinstance(part, (nn.Conv1d, *NORM_TYPES)):
            yield from _others(origins, name, calls, watched, files)


def _calls(origins: Origins, watched: Record, file: str, *, of_tokens: bool) -> list[PartCall]:
    """Return the calls of the modules that own a tensor, in order: with floating-point inputs, or with tokens only."""
    owners = dict.fromkeys(origins.owners(file))
    found = [each for owner in owners for each in watched.get(owner, [])]
    fitting = [each for each in found if (each.read is None) == of_tokens]
    return sorted(fitting, key=lambda each: each.order)


def _lookups(origins: Origins, calls: Sequence[PartCall], watched: Record, files: Sequence[str]) -> Iterator[Pair]:
    """Yield the pairs of embeddings with one table, in order, if both models look tokens up equally often."""
    if len(files) != 1:
        return
    theirs = _calls(origins, watched, files[0], of_tokens=True)
    shares = origins.shares(f"{calls[0].name}.weight")
    if len(theirs) != len(calls) or len(shares) != 1:
        return
    table = origins.tensor(files[0])
    for call, seen in zip(calls, theirs, strict=True):
        looked_up = any(torch.equal(F.embedding(each, table), seen.result) for each in _ids(seen, len(table)))
        if looked_up:  # and not scaled, or anything else
            yield Pair(call, (seen.name,), None, _taken(seen.result, shares[0].second))


def _ids(seen: PartCall, size: int) -> list[Tensor]:
    tokens = (each for each in seen.arguments if each is not None and each.dtype == torch.long)
    return [each for each in tokens if int(each.max()) < size and int(each.min()) >= 0]


def _others(
    origins: Origins, name: str, calls: Sequence[PartCall], watched: Record, files: Sequence[str]
) -> Iterator[Pair]:
    """Yield the pairs of a norm or a convolution."""
    theirs = _calls(origins, watched, files[0], of_tokens=False) if len(files) == 1 else []
    numbers = origins.numbers(f"{name}.weight")
    if len(theirs) != len(calls) or numbers is None:
        return
    columns = (numbers - numbers.min()).long() if numbers.dim() == 1 else None
    for call, seen in zip(calls, theirs, strict=True):
        yield Pair(call, (seen.name,), _taken(seen.read, columns), _taken(seen.result, columns))


def _products(
    origins: Origins, name: str, calls: Sequence[PartCall], watched: Record, files: Sequence[str]
) -> Iterator[Pair]:
    """Yield the pairs of a linear layer, which may be a share of one in the original, or several of its layers."""
    shares = origins.shares(f"{name}.weight")
    theirs = [_calls(origins, watched, file, of_tokens=False) for file in files]
    if not shares or any(len(each) != len(calls) for each in theirs):
        return
    for at, call in enumerate(calls):
        found = {file: product_of(origins, each[at], file) for file, each in zip(files, theirs, strict=True)}
        products = {file: each for file, each in found.items() if each is not None}
        if len(products) < len(files):
            continue
        rows = [each.rows(across=products[each.file].across) for each in shares]
        gave = [_taken(products[each.file].call.result, each.outputs) for each in rows]
        reads = _taken(products[rows[0].file].call.read, rows[0].inputs)
        whole = torch.cat([each for each in gave if each is not None], -1)
        names = tuple(dict.fromkeys(products[each.file].call.name for each in rows))
        used = set(origins.files_of(f"{name}.bias"))
        lost = next((products[each.file].bias for each in rows if products[each.file].bias not in ("", *used)), "")
        yield Pair(call, names, reads, whole, lost, tuple(rows))


def _taken(values: Tensor | None, columns: Tensor | None) -> Tensor | None:
    """Return values with the given columns of their last axis, unchanged without columns; None if one is missing."""
    if values is None or columns is None:
        return values
    return values[..., columns] if int(columns.max()) < values.shape[-1] else None


def _blocks_of(origins: Origins, record: Record, watched: Record, paired: set[str]) -> Iterator[Pair]:
    """Yield the pairs of attentions and feed-forwards whose last linear layer is not paired."""
    for name, calls in record.items():
        part: Any = calls[0].part
        last = last_map(part)
        if last is None or not isinstance(part, BLOCKS):
            continue
        ends = next(each for each, inner in part.named_modules() if inner is last)
        if f"{name}.{ends}" in paired:
            continue
        tensors = (each for each, _ in part.named_parameters())
        files = frozenset(file for each in tensors for file in origins.files_of(f"{name}.{each}"))
        alike = [each for each in watched if files and origins.files_under(each) == files]
        if alike and len(watched[alike[-1]]) == len(calls):
            for call, seen in zip(calls, watched[alike[-1]], strict=True):
                yield Pair(call, (seen.name,), seen.read, seen.result, is_block=True)
