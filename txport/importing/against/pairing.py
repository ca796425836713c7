"""Which call of the original computes what a part of the import does: by the tensors of which both are made.

A plan says of which numbers of which tensor of the files each number of the model's is made. Nothing is inferred from
names, and where one module of the original does the work of several parts, each gets its share of what that gives.
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

from txport.importing.against.original import Original
from txport.importing.against.watching import Seen, Watched
from txport.models.model import Model
from txport.models.parts import NORM_TYPES, Attention, FeedForward, GatedFeedForward
from txport.models.weights.plan import Plan, first_names
from txport.models.weights.values import Filled, Shape, Weights
from txport.proof.bisect.calls import PartCall, Record, calls_of
from txport.proof.bisect.faults.evidence import last_map

# of the largest value: a product with the same weight
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.002, torch.bfloat16: 0.02}
BLOCKS = (Attention, FeedForward, GatedFeedForward)
AT_ONCE = 1 << 20  # numbers of a matrix that are compared


@dataclass(frozen=True)
class Rows:
    """Which number of which tensor of the files each row of outputs of a linear map of the import is."""

    file: str
    outputs: Tensor  # (out,) the outputs of the original's map
    inputs: Tensor | None = None  # (in,)


@dataclass(frozen=True)
class Share:
    """Rows of a matrix of the import that are numbers of one tensor of the files.

    `first` (out,) are places along the file's first axis, `second` (in,) along its last; the other way round where the
    matrix is `turned` between the two.
    """

    file: str
    first: Tensor
    second: Tensor
    turned: bool

    def rows(self, *, across: bool) -> Rows:
        """Which numbers of the original's map, whose matrix in the file may be (in, out), the rows are."""
        one, other = (self.first, self.second) if self.turned == across else (self.second, self.first)
        return Rows(self.file, one, other)


@dataclass(frozen=True)
class Pair:
    """A call of a part of the import, and what the original read and gave in its place; None for what can't be told.

    `theirs` are the names of its modules.
    """

    call: PartCall
    theirs: tuple[str, ...]
    read: Tensor | None
    gave: Tensor | None
    bias: str = ""  # a tensor of the files that the original adds and the import does not read
    rows: tuple[Rows, ...] = ()


class Origins:
    """Of which tensors of the files each tensor of the import is made, and which modules of the original own them."""

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
        self._columns: dict[str, Tensor | None] = {}
        self._owners: dict[str, list[tuple[str, str]]] = {}
        state = original.module.state_dict(keep_vars=True)
        files: dict[int, list[str]] = {}
        for name, of in original.names.items():
            files.setdefault(id(state[name]), []).append(of)
        self._tensors: dict[str, Tensor] = {}
        for module_name, module in original.module.named_modules():
            for own, tensor in (*module._parameters.items(), *module._buffers.items()):
                for file in () if tensor is None else files.get(id(tensor), ()):
                    self._owners.setdefault(file, []).append((module_name, own))
                    self._tensors[file] = tensor.detach()
        self._same = {file: frozenset(several) for several in files.values() for file in several}  # tied ones
        self._modules = dict(original.module.named_modules())

    @property
    def used(self) -> list[str]:
        """The tensors of the files of which the import is made."""
        every = (name for pieces in self.plan.made.values() for piece in pieces for name in piece.value.names())
        return list(dict.fromkeys(every))

    def files_of(self, name: str) -> tuple[str, ...]:
        """Those of which a tensor of the import is made."""
        pieces = self.plan.made.get(self._first.get(name, name), ())
        return tuple(dict.fromkeys(each for piece in pieces[:1] for each in piece.value.names()))

    def files_under(self, module: str) -> frozenset[str]:
        """Those that a module of the original has anywhere in it."""
        inside = (
            file
            for file, owners in self._owners.items()
            for name, _ in owners
            if not module or name == module or name.startswith(f"{module}.")
        )
        return frozenset(inside)

    def owners(self, file: str) -> list[str]:
        """The modules of the original that have a tensor themselves."""
        return [name for name, _ in self._owners.get(file, [])]

    def numbers(self, name: str) -> Tensor | None:
        """The number that each number of a tensor of the import is, all tensors of the files one after the other."""
        pieces = self.plan.made.get(self._first.get(name, name), ())
        if not pieces or isinstance(pieces[0].value, Filled) or not pieces[0].value.names():
            return None
        found = pieces[0].value.read(self._numbers)
        return None if found.is_floating_point() else found

    def shares(self, name: str) -> list[Share]:
        """The rows of a matrix, cut where the tensor of the files changes; none where they are no rows of these."""
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

    def columns(self, name: str) -> Tensor | None:
        """The places along the file's last axis of the first row of a matrix; None of what is no matrix."""
        if name not in self._columns:
            numbers = self.numbers(name)
            is_matrix = numbers is not None and numbers.dim() == 2
            self._columns[name] = None
            if numbers is not None and is_matrix:
                file, begin = self.file_at(int(numbers[0, 0]))
                self._columns[name] = (numbers[0] - begin).long() % self.plan.given[file][-1]
        return self._columns[name]

    def file_at(self, number: int) -> tuple[str, int]:
        """The tensor that a number is of, and where that begins."""
        at = bisect_right(self._begins, number) - 1
        return self._names[at], self._begins[at]

    def tensor(self, file: str) -> Tensor:
        """The original's, in the type that it computes in."""
        return self._tensors[file]

    def unread(self, module: str) -> list[str]:
        """Tensors of a module of the original of which the import is not made."""
        used = {same for file in self.used for same in self._same.get(file, {file})}
        return [file for file in self.own_files(module) if file not in used]

    def own_files(self, module: str) -> list[str]:
        """The tensors that a module of the original has itself."""
        return [file for file, owners in self._owners.items() if module in [name for name, _ in owners]]


def share_of(numbers: Tensor, file: str, shape: Shape) -> Share | None:
    """Rows of a matrix (out, in) of numbers that a tensor of a file of this shape has, counted from its first."""
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
    """Whether each number of a matrix is the sum of one for its row and one for its column; a few rows at a time."""
    several = max(1, AT_ONCE // max(1, numbers.shape[1]))
    places = (slice(at, at + several) for at in range(0, len(numbers), several))
    return all(torch.equal(numbers[some], begins[some, None] + steps) for some in places)


@dataclass(frozen=True)
class Product:
    """A call of the original that gives a product of what it reads with a matrix of its own, and perhaps a bias."""

    call: Seen
    file: str
    across: bool  # the matrix is (in, out)
    bias: str  # its file, if one is added


def product_of(origins: Origins, call: Seen, file: str) -> Product | None:
    """How a call computes with a matrix, found on its figures; None where it does anything else."""
    x = call.read
    y = call.result
    weight = origins.tensor(file)
    if x is None or y is None or weight.dim() != 2 or not x.dim() or x.dtype != weight.dtype:
        return None
    biases = [each for each in origins.own_files(call.name) if origins.tensor(each).shape == y.shape[-1:]]
    for across, matrix in ((False, weight.t()), (True, weight)):
        if matrix.shape != (x.shape[-1], y.shape[-1]):
            continue
        plain = x @ matrix
        for bias in ("", *biases):
            found = plain + origins.tensor(bias) if bias else plain
            if found.shape == y.shape and _close(found, y):
                return Product(call, file, across, bias)
    return None


def _close(one: Tensor, other: Tensor) -> bool:
    largest = float(other.abs().max()) if other.numel() else 0.0
    return float((one - other).abs().max() if other.numel() else 0.0) <= CLOSE[other.dtype] * max(largest, 1e-30)


def pairs_of(origins: Origins, record: Record, watched: Watched) -> Iterator[Pair]:
    """Each call of a part of the import for which calls of the original are found, in the import's order."""
    several = {name: [name] for name in record}
    done: set[frozenset[str]] = set()
    for name in several:
        part = record[name][0].part
        if not isinstance(part, (nn.Linear, nn.Conv1d, nn.Embedding, *NORM_TYPES)):
            continue
        files = frozenset(origins.files_of(f"{name}.weight"))
        kind = frozenset({*files, "tokens" if isinstance(part, nn.Embedding) else f"numbers of {name}"})
        if not files or kind in done:
            continue
        done.add(kind)
        if isinstance(part, nn.Embedding):
            alike = [each for each in record if isinstance(record[each][0].part, nn.Embedding)
                     and frozenset(origins.files_of(f"{each}.weight")) == files]  # fmt: skip
            yield from _lookups(origins, calls_of(record, alike), watched, sorted(files))
        elif isinstance(part, nn.Linear):
            yield from _products(origins, name, record[name], watched, sorted(files))
        else:
            yield from _others(origins, name, record[name], watched, sorted(files))


def _calls(origins: Origins, watched: Watched, file: str, *, of_tokens: bool) -> list[Seen]:
    """The calls of the modules that own a tensor, which are given tokens, or numbers."""
    owners = dict.fromkeys(origins.owners(file))
    found = [each for owner in owners for each in watched.get(owner, [])]
    fitting = [each for each in found if (each.read is None) == of_tokens and each.result is not None]
    return sorted(fitting, key=lambda each: each.order)


def _lookups(origins: Origins, calls: Sequence[PartCall], watched: Watched, files: Sequence[str]) -> Iterator[Pair]:
    """Of embeddings: as often as the original looks tokens up, in its order."""
    if len(files) != 1:
        return
    theirs = _calls(origins, watched, files[0], of_tokens=True)
    columns = origins.columns(f"{calls[0].name}.weight")
    if len(theirs) != len(calls) or columns is None:
        return
    table = origins.tensor(files[0])
    for call, seen in zip(calls, theirs, strict=True):
        looked_up = any(torch.equal(F.embedding(each, table), seen.gave[0]) for each in _ids(seen, len(table)))
        if looked_up:  # and not scaled, or anything else
            yield Pair(call, (seen.name,), None, _taken(seen.result, columns))


def _ids(seen: Seen, size: int) -> list[Tensor]:
    return [each for each in seen.given if each.dtype == torch.long and int(each.max()) < size and int(each.min()) >= 0]


def _others(
    origins: Origins, name: str, calls: Sequence[PartCall], watched: Watched, files: Sequence[str]
) -> Iterator[Pair]:
    """Of norms and convolutions: what goes in and what comes out."""
    theirs = _calls(origins, watched, files[0], of_tokens=False) if len(files) == 1 else []
    numbers = origins.numbers(f"{name}.weight")
    if len(theirs) != len(calls) or numbers is None:
        return
    columns = (numbers - numbers.min()).long() if numbers.dim() == 1 else None
    for call, seen in zip(calls, theirs, strict=True):
        yield Pair(call, (seen.name,), _taken(seen.read, columns), _taken(seen.result, columns))


def _products(
    origins: Origins, name: str, calls: Sequence[PartCall], watched: Watched, files: Sequence[str]
) -> Iterator[Pair]:
    """Of linear maps, whose outputs may be a share of one of the original's, or several of its maps."""
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
    """Values with their last axis in another order."""
    if values is None or columns is None:
        return values
    return values[..., columns] if int(columns.max()) < values.shape[-1] else None


def blocks_of(origins: Origins, record: Record, watched: Watched, paired: set[str]) -> Iterator[Pair]:
    """Attentions and feed-forwards whose last map is no call of the original's: what the whole of them gives."""
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
                yield Pair(call, (seen.name,), seen.read, seen.result)
