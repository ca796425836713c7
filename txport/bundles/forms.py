"""Storage of weights in a bundle: the form of each matrix, and the checkpoint's weights in each initializer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from txport.errors import quoted

BLOCKS = (128, 64, 32, 16)  # inputs that share a scale; larger blocks have fewer scales to read
BITS: dict[str, tuple[int, ...]] = {
    "plain": (32,),
    "dynamic": (8,),
    "rows": (8,),
    "invariant": (8,),
    "columns": (8,),
    "blocks": (8, 4),
    "qdq": (8, 4),
}
IN_BLOCKS = ("blocks", "qdq")
DESCRIPTIONS = {"plain": "fp32", "dynamic": "dynamic int8", "rows": "int8 rows", "invariant": "int8 invariant"}


@dataclass(frozen=True)
class Form:
    """The storage form of a matrix (out, in). Raises `ValueError` for an unknown form.

    `plain` is fp32. `dynamic`, `rows`, `invariant` and `columns` have one scale per row of `out`; `blocks` and `qdq`
    have one per `block` inputs of each row, in 4 bits perhaps with `zeros`, a zero point for each. `blocks` have the
    layout of MatMulNBits, `qdq` that of DequantizeLinear. The inputs `columns`, in ascending order, stay in fp32.
    """

    kind: str
    bits: int
    block: int | None = None
    columns: tuple[int, ...] = ()
    zeros: bool = False

    def __post_init__(self) -> None:
        sizes = BLOCKS if self.kind in IN_BLOCKS else (None,)
        if self.bits not in BITS.get(self.kind, ()) or self.block not in sizes:
            description = f"{quoted(self.kind)} with bits {quoted(self.bits)} and block {quoted(self.block)}"
            raise ValueError(f"unknown storage form: {description}")
        if self.zeros and (self.block is None or self.bits != 4):
            raise ValueError(f"a storage form {quoted(self.kind)} with bits {quoted(self.bits)} and zero points")
        is_ascending = all(one < other for one, other in pairwise((-1, *self.columns)))
        if bool(self.columns) != (self.kind == "columns") or not is_ascending:
            raise ValueError(f"a storage form {quoted(self.kind)} with the columns {quoted(list(self.columns))}")

    @property
    def has_row_scales(self) -> bool:
        """Whether there is one scale per row of `out`."""
        return self.kind in ("dynamic", "rows", "invariant", "columns")

    @property
    def shares_scale(self) -> bool:
        """Whether the kernels quantise the activations of all rows with one scale."""
        return self.kind in ("dynamic", "rows")

    def places(self, inputs: int) -> str:
        """Return the name of the initializer with the indices of the columns in fp32 of a matrix (out, in).

        Matrices with the same columns share it, so that ONNX Runtime quantises an input once for all that read it.
        """
        return f"columns.{inputs}.{'.'.join(map(str, self.columns))}"

    def rest(self, inputs: int) -> str:
        """Return the name of the initializer with the mask (in,): 0 for the columns in fp32, 1 for the others."""
        return f"{self.places(inputs)}.rest"

    def describe(self) -> str:
        """Return a readable name, such as `int8 invariant` or `4-bit blocks of 32`."""
        if self.columns:
            return f"int8 with {len(self.columns)} columns in fp32"
        zeros = " with zero points" if self.zeros else ""
        standard = " for DequantizeLinear" if self.kind == "qdq" else ""
        return DESCRIPTIONS.get(self.kind, f"{self.bits}-bit blocks of {self.block}{zeros}{standard}")

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; `columns` and `zeros` only if there are any."""
        values = {"kind": self.kind, "bits": self.bits, "block": self.block}
        values |= {"columns": list(self.columns)} if self.columns else {}
        return values | {"zeros": True} if self.zeros else values

    @classmethod
    def from_dict(cls, values: Any) -> Form:
        """Create a form from JSON values; raise `TypeError` or `ValueError` for invalid ones."""
        _check_keys("a form", values, {"kind", "bits", "block", "columns", "zeros"}, {"kind", "bits"})
        kind = values["kind"]
        bits = values["bits"]
        block = values.get("block")
        if not isinstance(kind, str) or type(bits) is not int or type(block) not in (int, type(None)):
            raise TypeError(f"a form must be a kind, its bits and its block, got {quoted(values)}")
        columns = values.get("columns", [])
        if not isinstance(columns, list) or not all(type(each) is int for each in columns):
            raise TypeError(f"the columns of a form must be a list of numbers, got {quoted(columns)}")
        zeros = values.get("zeros", False)
        if not isinstance(zeros, bool):
            raise TypeError(f"zeros of a form must be true or false, got {quoted(zeros)}")
        return cls(kind, bits, block, tuple(columns), zeros)


PLAIN = Form("plain", 32)
DYNAMIC, ROWS, INVARIANT = (Form(kind, 8) for kind in ("dynamic", "rows", "invariant"))


def with_columns(columns: tuple[int, ...]) -> Form:
    """Return the form whose inputs `columns` are in fp32, or `INVARIANT` if there are none."""
    return Form("columns", 8, columns=columns) if columns else INVARIANT


def blocks_of(bits: int, block: int, *, zeros: bool = False) -> Form:
    """Return the form with one scale per block of inputs, and perhaps a zero point."""
    return Form("blocks", bits, block, zeros=zeros)


@dataclass(frozen=True)
class Stored:
    """An initializer of the graphs: the checkpoint's weights in it, and their storage form.

    `weights` are the checkpoint's names, in the order of their rows. Several are packed along the first axis, with
    `sizes` rows if these differ. `form` is None if the precision has no choice: biases, and all weights of an fp32
    bundle. `scales` and `lookup_scales` name the initializers with the scales: (out,) or (out, blocks) for a matrix
    product, (out, blocks, 1) for a lookup. A graph that only looks tokens up may have no `scales`. Only blocks have
    `lookup_scales`, and may have `lookup_zeros`, the zero point of each block. Forms with zero points, and those
    with a scale for each row, have the initializer `zeros` for a product; those with columns in fp32 `columns`,
    `places` and `rest`, and `spread` for a lookup.
    """

    weights: tuple[str, ...]
    form: Form | None = None
    scales: str | None = None
    lookup_scales: str | None = None
    sizes: tuple[int, ...] | None = None

    @property
    def lookup_zeros(self) -> str | None:
        """The name of the initializer with the zero points of a lookup, in graphs that have one."""
        return None if self.lookup_scales is None else f"{self.lookup_scales}.zeros"

    @property
    def zeros(self) -> str:
        """The name of the zero points of a product: (out, blocks / 2), the first of two in the lower 4 bits, or (out,).

        Of 8 bits they are 0. Each matrix has its own: on x86 without VNNI, ONNX Runtime 1.31 turns weights and zero
        points of QGemm into unsigned ones, and fails if two matrices share zero points.
        """
        return f"{self.scales}.zeros"

    @property
    def columns(self) -> str:
        """The name of the weights in fp32 (columns + 1, out); the last row is -1 times the sum of each row of `out`."""
        return f"{self.scales}.columns"

    @property
    def spread(self) -> str:
        """The name of the matrix (columns + 1, in) of 0 and 1 that moves the columns in fp32 to their places."""
        return f"{self.columns}.spread"

    @property
    def is_quantised(self) -> bool:
        """Whether the numbers are stored in fewer bits than fp32."""
        return self.form not in (None, PLAIN)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, without those that are None."""
        form = self.form and self.form.to_dict()
        sizes = None if self.sizes is None else list(self.sizes)
        values = {**vars(self), "weights": list(self.weights), "form": form, "sizes": sizes}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Any) -> Stored:
        """Create an instance from JSON values; raise `TypeError` or `ValueError` for invalid ones."""
        _check_keys("a stored weight", values, {each.name for each in dataclasses.fields(cls)}, {"weights"})
        weights = values["weights"]
        form = values.get("form")
        scales, lookup, sizes = (values.get(name) for name in ("scales", "lookup_scales", "sizes"))
        if not isinstance(weights, list) or not weights or not all(isinstance(each, str) for each in weights):
            raise TypeError(f"weights of an initializer must be a list of names, got {quoted(weights)}")
        if not all(isinstance(each, str | None) for each in (scales, lookup)):
            raise TypeError(f"scales must be names, got {quoted(scales)} and {quoted(lookup)}")
        if sizes is not None and not _are_sizes(sizes, len(weights)):
            raise ValueError(f"sizes must be a positive whole number for each weight, got {quoted(sizes)}")
        rows = None if sizes is None else tuple(sizes)
        stored = cls(tuple(weights), None if form is None else Form.from_dict(form), scales, lookup, rows)
        if stored.is_quantised != (scales is not None) or (lookup is not None and not _has_lookup(stored.form)):
            raise ValueError(f"{quoted(weights)} must have the scales that the form wants, got {quoted(values)}")
        return stored


def _are_sizes(values: object, count: int) -> bool:
    """Whether a JSON value is a list of `count` positive whole numbers."""
    return isinstance(values, list) and len(values) == count and all(type(n) is int and n > 0 for n in values)


def _has_lookup(form: Form | None) -> bool:
    return form is not None and form.kind == "blocks"


def _check_keys(what: str, values: object, known: set[str], needed: set[str]) -> None:
    if not isinstance(values, dict) or not needed <= values.keys() <= known:
        raise TypeError(f"{what} must have {', '.join(sorted(needed))}, got {quoted(values)}")


def require_distinct(table: Sequence[Stored]) -> None:
    """Raise `ValueError` if a weight is in two initializers."""
    seen: set[str] = set()
    for name in (name for stored in table for name in stored.weights):
        if name in seen:
            raise ValueError(f"the weight {quoted(name)} is in two initializers")
        seen.add(name)
