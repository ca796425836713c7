"""Tensors that write down what is done to them, and the graph that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from txport.errors import UnsupportedError
from txport.models.weights.streamed import Read

NOWHERE = "meta"  # PyTorch's device of tensors without numbers
FEW = 1 << 22  # numbers of a tensor that examples are computed with
Pair = tuple[int, int]
Form = Callable[..., Any]


class Size(int):
    """A length that only a run of the graph knows: an example of it, and the graph's own scalar (int64)."""

    tracer: Tracer
    pair: Pair
    value: ir.Value

    def __add__(self, other: int) -> Size:
        found: Size = self._combined("Add", other, int.__add__)
        return found

    def __sub__(self, other: int) -> Size:
        found: Size = self._combined("Sub", other, int.__sub__)
        return found

    __radd__ = __add__

    def _combined(self, operator: str, other: int, how: Callable[[int, int], int]) -> Any:
        if isinstance(other, Symbol | Tensor):
            return NotImplemented
        if not isinstance(other, int):
            raise UnsupportedError(f"a trace adds and subtracts whole numbers to lengths, got {other!r}")
        others = other.pair if isinstance(other, Size) else (other, other)
        pair = (how(self.pair[0], others[0]), how(self.pair[1], others[1]))
        return self.tracer.size(pair, lambda: self.tracer.op("size", operator, [self.value, self.tracer.scalar(other)]))


def _refuse(name: str) -> Any:
    def method(self: Size, *others: object) -> Any:
        if any(isinstance(each, Symbol | Tensor) for each in others):
            return NotImplemented  # the tensor's own operator takes a length as it takes a number
        raise UnsupportedError(f"a trace can't depend on a length by {name}; lengths can be added and subtracted")

    return method


UNARY = "neg pos abs invert bool int float complex round trunc floor ceil"
BINARY = "mul truediv floordiv mod divmod pow and or xor lshift rshift"
COMPARISONS = "lt le gt ge eq ne"
REFLECTED = " ".join(f"r{_name}" for _name in BINARY.split())
for _name in f"rsub {UNARY} {BINARY} {REFLECTED} {COMPARISONS}".split():
    setattr(Size, f"__{_name}__", _refuse(f"__{_name}__"))  # __index__ stays: Python itself uses an int without it


class Symbol:
    """A tensor that only a run of the graph knows: its value there, and what it looks like for two sets of lengths."""

    def __init__(self, tracer: Tracer, value: ir.Value, examples: tuple[Tensor, Tensor]) -> None:
        self.tracer = tracer
        self.value = value
        self.examples = examples

    @property
    def dtype(self) -> torch.dtype:
        """As of a tensor."""
        return self.examples[0].dtype

    @property
    def device(self) -> torch.device:
        """Where tensors that are made beside it belong."""
        return torch.device("cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        """As of a tensor; each dynamic dim is a `Size`."""
        return tuple(self.tracer.length(self, axis) for axis in range(self.dim()))

    def dim(self) -> int:
        """As of a tensor."""
        return self.examples[0].dim()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name, None)
        if method is None or name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **options: self.tracer.call(method, (self, *args), options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        """What PyTorch's own functions do with a tensor that is none of its own."""
        tracer = next(each.tracer for each in flat(args) if isinstance(each, Symbol))
        return tracer.call(function, args, options or {})


def _operator(name: str) -> Any:
    return lambda self, *args: self.tracer.call(name, (self, *args), {})


def _refuse_content(name: str) -> Any:
    def method(self: Symbol, *_: object) -> Any:
        raise UnsupportedError(f"a trace can't depend by {name} on what a tensor holds, or how many; compute with it")

    return method


for _name in f"add radd sub rsub matmul rmatmul getitem neg abs invert {BINARY} {REFLECTED} {COMPARISONS}".split():
    setattr(Symbol, f"__{_name}__", _operator(_name))  # set here, `__eq__` leaves a symbol's hash as it is
for _name in ["bool", "int", "float", "complex", "index", "len", "iter", "contains", "setitem"]:
    setattr(Symbol, f"__{_name}__", _refuse_content(f"__{_name}__"))


class Tracer(TorchFunctionMode):
    """The graph that is being written."""

    def __init__(
        self, forms: Mapping[str, Form], weights: Mapping[int, str], opset: int, read: Read | None = None
    ) -> None:
        super().__init__()
        self.opset = opset
        self.nodes = list[ir.Node]()
        self.initializers = dict[int, ir.Value]()
        self._forms = forms
        self._weights = weights
        self._read = read
        self._sizes = dict[Pair, Size]()
        self._names = dict[str, int]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        """Functions that make a tensor from lengths alone have no `Symbol` to tell of them."""
        given = flat([*args, *(options or {}).values()])
        if any(isinstance(each, Size) for each in given) and not any(isinstance(each, Symbol) for each in given):
            return self.call(function, args, options or {})
        return function(*args, **(options or {}))

    def call(self, function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """One function of PyTorch, or of ours, as nodes; `UnsupportedError` for one that has no form."""
        name = str(getattr(function, "__name__", function)).strip("_")
        if name not in self._forms:
            raise UnsupportedError(f"the exporter has no ONNX form of PyTorch's {name}: see exporters/forms")
        with torch._C.DisableTorchFunction():
            return self._forms[name](self, *args, **options)

    def op(self, name: str, operator: str, inputs: Sequence[ir.Value | None], domain: str = "", **how: Any) -> ir.Value:
        """Add one node of one output, named after the function that it stands for."""
        return self.ops(name, operator, inputs, 1, domain, **how)[0]

    def ops(
        self, name: str, operator: str, inputs: Sequence[ir.Value | None], count: int, domain: str = "", **how: Any
    ) -> Sequence[ir.Value]:
        """Add one node."""
        unique = self._unique(name)
        outputs = [ir.Value(name=f"{unique}/{each}" if each else unique) for each in range(count)]
        node = ir.node(operator, inputs, attributes=how, domain=domain, outputs=outputs, name=unique)
        self.nodes.append(node)
        return outputs

    def _unique(self, name: str) -> str:
        """A name that no other node has, and no weight."""
        number = self._names[name] = self._names.get(name, -1) + 1
        unique = f"{name}_{number}" if number else name
        return self._unique(name) if unique in self._weights.values() else unique

    def symbol(self, value: ir.Value, function: Any, *args: Any, **options: Any) -> Symbol:
        """A value that looks like what a function of PyTorch makes of the examples."""
        one, other = (
            _computed(function, [_example(each, at) for each in args], {k: _example(v, at) for k, v in options.items()})
            for at in (0, 1)
        )
        return self.given(value, (one, other))

    def given(self, value: ir.Value, examples: tuple[Tensor, Tensor]) -> Symbol:
        """A value that looks like two examples."""
        value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(str(examples[0].dtype).removeprefix("torch."))))
        dims = zip(*(each.shape for each in examples), strict=True)
        value.shape = ir.Shape([one if one == other else None for one, other in dims])
        return Symbol(self, value, examples)

    def size(self, pair: Pair, make: Callable[[], ir.Value]) -> Size:
        """The length with these two examples; equal lengths are computed once."""
        if pair not in self._sizes:
            size = Size(pair[0])
            size.tracer = self
            size.pair = pair
            size.value = make()
            self._sizes[pair] = size
        return self._sizes[pair]

    def length(self, symbol: Symbol, axis: int) -> int:
        """One dim of a tensor: a number if it is the same in both examples."""
        one, other = (int(each.shape[axis]) for each in symbol.examples)
        if one == other:
            return one

        def make() -> ir.Value:
            dim = self.op("dim", "Shape", [symbol.value], start=axis, end=axis + 1)
            return self.op("size", "Squeeze", [dim])

        return self.size((one, other), make)

    def known_length(self, given: Symbol, result: Symbol, axis: int) -> int:
        """One dim of what a view of `given` gives: as some tensor has it, or -1, which a view itself finds out."""
        pair = (int(result.examples[0].shape[axis]), int(result.examples[1].shape[axis]))
        if pair in self._sizes:
            return self._sizes[pair]
        shapes = list(zip(*(each.shape for each in given.examples), strict=True))
        return self.length(given, shapes.index(pair)) if pair in shapes else -1

    def scalar(self, number: int) -> ir.Value:
        """A length, or a number, as an int64 without dims."""
        return number.value if isinstance(number, Size) else self.constant(np.array(number, np.int64))

    def constant(self, array: np.ndarray) -> ir.Value:
        """A number, or several, that never change."""
        value = self.op("constant", "Constant", [], value=ir.Tensor(array))
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        return value

    def tensor(self, tensor: Tensor) -> ir.Value:
        """A weight of the module under its own name, or any other tensor as a constant."""
        if id(tensor) not in self._weights:
            return self.constant(array_of(tensor))
        if id(tensor) not in self.initializers:
            name = self._weights[id(tensor)]
            held = self._later(name, tensor) if tensor.is_meta else ir.Tensor(array_of(tensor))
            value = ir.Value(name=name, const_value=held)
            value.type = ir.TensorType(held.dtype)
            value.shape = ir.Shape(tensor.shape)
            self.initializers[id(tensor)] = value
        return self.initializers[id(tensor)]

    def _later(self, name: str, tensor: Tensor) -> ir.LazyTensor:
        """A weight that is read when the graph is written."""
        read = self._read
        dtype = tensor.dtype
        if read is None:
            raise UnsupportedError(f"{name} has no numbers, and nothing reads them")
        kind = ir.DataType.from_numpy(np.dtype(str(dtype).removeprefix("torch.")))
        return ir.LazyTensor(lambda: ir.tensor(array_of(read(name).to(dtype))), kind, ir.Shape(tensor.shape), name=name)


def array_of(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor; NumPy has no bf16 of its own, so PyTorch gives it none."""
    tensor = tensor.detach()
    if tensor.dtype != torch.bfloat16:
        found: np.ndarray = tensor.numpy()
        return found
    return tensor.contiguous().view(torch.int16).numpy().view(np.dtype("bfloat16"))  # of ml_dtypes


def _example(value: Any, at: int) -> Any:
    """What stands for an argument in one of the two examples."""
    if isinstance(value, Symbol):
        return value.examples[at]
    if isinstance(value, Size):
        return value.pair[at]
    if isinstance(value, Tensor):
        return value.detach() if value.numel() <= FEW else value.detach().to(NOWHERE)
    if isinstance(value, list | tuple):
        return type(value)(_example(each, at) for each in value)
    return value


def _computed(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Tensor:
    """What a function makes of an example; beside a tensor that has no numbers, only what it looks like.

    Without numbers, PyTorch computes some functions by its compiler, which takes a second to load.
    """
    given = [each for each in flat([*args, *options.values()]) if isinstance(each, Tensor)]
    if not any(each.is_meta for each in given):
        found: Tensor = function(*args, **options)
        return found
    args = _nowhere(args)
    options = {name: _nowhere(each) for name, each in options.items()}
    found = function(*args, **options)
    return torch.zeros(found.shape, dtype=found.dtype) if found.numel() <= FEW else found


def _nowhere(value: Any) -> Any:
    """The same without numbers."""
    if isinstance(value, list | tuple):
        return type(value)(map(_nowhere, value))
    return value.to(NOWHERE) if isinstance(value, Tensor) else value


def flat(values: Any) -> list[Any]:
    """Arguments, those in lists among them."""
    if isinstance(values, list | tuple):
        return list(chain.from_iterable(map(flat, values)))
    return [values]
