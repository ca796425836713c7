"""Tensors that record the operations applied to them, and the tracer that builds the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from txport.checkpoints.weights.streamed import Read
from txport.errors import UnsupportedError

NOWHERE = "meta"  # PyTorch's device of tensors without values
FEW = 1 << 22  # weights with more elements have no values in examples
FORMS_PAGE = "docs/architectures.md lists the functions that have one"
UNREGISTERED = (
    "is neither a parameter nor a buffer of its module, nor computed of these by functions with a form: register "
    "it with register_buffer(name, tensor, persistent=False)"
)
Pair = tuple[int, int]
Form = Callable[..., Any]


class Size(int):
    """A length known only when the graph runs: the int is an example, `value` is the int64 scalar in the graph."""

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


def _refuse(name: str) -> object:
    def method(self: Size, *others: object) -> object:
        if any(isinstance(each, Symbol | Tensor) for each in others):
            return NotImplemented  # the tensor's operator accepts a length like a number
        raise UnsupportedError(f"a trace can't depend on a length by {name}; lengths can be added and subtracted")

    return method


UNARY = "neg pos abs invert bool int float complex round trunc floor ceil"
BINARY = "mul truediv floordiv mod divmod pow and or xor lshift rshift"
COMPARISONS = "lt le gt ge eq ne"
REFLECTED = " ".join(f"r{_name}" for _name in BINARY.split())
for _name in f"rsub {UNARY} {BINARY} {REFLECTED} {COMPARISONS}".split():
    setattr(Size, f"__{_name}__", _refuse(f"__{_name}__"))  # __index__ stays: Python itself uses an int without it


class Symbol:
    """A tensor that is known only when the graph runs: its value in the graph, and examples for two sets of lengths."""

    def __init__(self, tracer: Tracer, value: ir.Value, examples: tuple[Tensor, Tensor]) -> None:
        self.tracer = tracer
        self.value = value
        self.examples = examples

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype, like `Tensor.dtype`."""
        return self.examples[0].dtype

    @property
    def device(self) -> torch.device:
        """Return the device for new tensors used with this one: always the CPU."""
        return torch.device("cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape, like `Tensor.shape`; each dynamic dim is a `Size`."""
        return tuple(self.tracer.length(self, axis) for axis in range(self.dim()))

    def dim(self) -> int:
        """Return the number of dims, like `Tensor.dim`."""
        return self.examples[0].dim()

    ndim = property(dim)

    @property
    def mT(self) -> Symbol:  # noqa: N802 - PyTorch's name
        """Return the transposed matrices, like `Tensor.mT`."""
        found: Symbol = self.tracer.call("transpose", (self, -2, -1), {})
        return found

    T = mT  # of a matrix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name, None)
        if not callable(method) or name.startswith("__"):
            raise AttributeError(f"a tensor of a trace has no {name}")
        return lambda *args, **options: self.tracer.call(method, (self, *args), options)

    @classmethod
    def __torch_function__(cls, function: object, types: object, args: Any = (), options: Any = None) -> Any:
        """Record a PyTorch function that is called with a symbol."""
        options = options or {}
        tracer = next(each.tracer for each in flat([*args, *options.values()]) if isinstance(each, Symbol))
        return tracer.call(function, args, options)


def _operator(name: str) -> object:
    return lambda self, *args: self.tracer.call(name, (self, *args), {})


def _refuse_content(name: str) -> object:
    def method(self: Symbol, *_: object) -> object:
        raise UnsupportedError(f"a trace can't depend by {name} on what a tensor holds, or how many; compute with it")

    return method


for _name in f"add radd sub rsub matmul rmatmul getitem neg abs invert {BINARY} {REFLECTED} {COMPARISONS}".split():
    setattr(Symbol, f"__{_name}__", _operator(_name))  # set here, `__eq__` keeps the default hash
for _name in ["bool", "int", "float", "complex", "index", "len", "iter", "contains", "setitem"]:
    setattr(Symbol, f"__{_name}__", _refuse_content(f"__{_name}__"))


class Tracer(TorchFunctionMode):
    """Builds a graph: nodes and initializers of the functions called while it is active."""

    def __init__(
        self, forms: Mapping[str, Form], weights: Mapping[int, str], opset: int, read: Read | None = None
    ) -> None:
        super().__init__()
        self.opset = opset
        self.nodes = list[ir.Node]()
        self.initializers = dict[int, ir.Value]()
        self._forms = forms
        self._weights = weights
        self._reserved = {*weights.values()}
        self._read = read
        self.dims = dict[Pair, str | None]()  # the names of dims; None: what tensors hold decides such a length
        self._sizes = dict[Pair, Size]()
        self._names = dict[str, int]()

    def __torch_function__(self, function: Any, types: object, args: Any = (), options: Any = None) -> object:
        """Record functions without a `Symbol` argument: of lengths, and of tensors of the module."""
        given = flat([*args, *(options or {}).values()])
        if any(isinstance(each, Symbol) for each in given):
            return function(*args, **(options or {}))
        is_of_module = any(id(each) in self._weights for each in given) and _name_of(function) in self._forms
        if is_of_module or any(isinstance(each, Size) for each in given):
            return self.call(function, args, options or {})
        return function(*args, **(options or {}))

    def call(self, function: object, args: Sequence[object], options: Mapping[str, object]) -> Any:
        """Add the nodes of one function of PyTorch or txport; raise `UnsupportedError` if it has no ONNX conversion."""
        name = _name_of(function)
        if name not in self._forms:
            raise UnsupportedError(f"the exporter has no ONNX form of PyTorch's {name}: {FORMS_PAGE}")
        form = self._forms[name]
        options = dict(options)
        if not args and "input" in options:  # PyTorch's name of the first parameter of most functions
            args = (options.pop("input"),)
        if args and isinstance(args[0], Tensor):
            args = (self.as_symbol(args[0]), *args[1:])
        options = {each: value for each, value in options.items() if each != "out" or value is not None}
        try:
            inspect.signature(form).bind(self, *args, **options)
        except TypeError as error:
            raise UnsupportedError(f"the exporter's ONNX form of PyTorch's {name} has {error}: {FORMS_PAGE}") from error
        with torch._C.DisableTorchFunction():
            return form(self, *args, **options)

    def op(
        self, name: str, operator: str, inputs: Sequence[ir.Value | None], domain: str = "", **how: object
    ) -> ir.Value:
        """Add one node with one output, named after the function that it implements; return the output."""
        return self.ops(name, operator, inputs, 1, domain, **how)[0]

    def ops(
        self, name: str, operator: str, inputs: Sequence[ir.Value | None], count: int, domain: str = "", **how: Any
    ) -> Sequence[ir.Value]:
        """Add one node with `count` outputs; return the outputs."""
        unique = self._unique(name)
        outputs = [ir.Value(name=f"{unique}/{each}" if each else unique) for each in range(count)]
        node = ir.node(operator, inputs, attributes=how, domain=domain, outputs=outputs, name=unique)
        self.nodes.append(node)
        return outputs

    def _unique(self, name: str) -> str:
        """Return a name that no other node and no weight has."""
        number = self._names[name] = self._names.get(name, -1) + 1
        unique = f"{name}_{number}" if number else name
        return self._unique(name) if unique in self._reserved else unique

    def symbol(self, value: ir.Value, function: object, *args: object, **options: object) -> Symbol:
        """Return a symbol whose examples are the results of a PyTorch function on its arguments' examples."""
        one, other = (
            _computed(function, [example(each, at) for each in args], {k: example(v, at) for k, v in options.items()})
            for at in (0, 1)
        )
        return self.given(value, (one, other))

    def given(self, value: ir.Value, examples: tuple[Tensor, Tensor]) -> Symbol:
        """Return a symbol with these two examples, and set the type and shape of its value.

        Equal dims have equal names, by which ONNX Runtime knows whose memory fits another value.
        """
        value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(str(examples[0].dtype).removeprefix("torch."))))
        dims = zip(*(each.shape for each in examples), strict=True)
        value.shape = ir.Shape([one if one == other else self._dim((one, other)) for one, other in dims])
        return Symbol(self, value, examples)

    def _dim(self, pair: Pair) -> str | None:
        """Return the name of a dim with these two examples, if it has one."""
        return self.dims.setdefault(pair, f"dim_{len(self.dims)}")

    def size(self, pair: Pair, make: Callable[[], ir.Value]) -> Size:
        """Return the length with these two examples; `make` is called only for a new pair."""
        if pair not in self._sizes:
            size = Size(pair[0])
            size.tracer = self
            size.pair = pair
            size.value = make()
            self._sizes[pair] = size
        return self._sizes[pair]

    def length(self, symbol: Symbol, axis: int) -> int:
        """Return the length of an axis: a plain int if it is the same in both examples, otherwise a `Size`."""
        one, other = (int(each.shape[axis]) for each in symbol.examples)
        if one == other:
            return one

        def make() -> ir.Value:
            dim = self.op("dim", "Shape", [symbol.value], start=axis, end=axis + 1)
            return self.op("size", "Squeeze", [dim])

        return self.size((one, other), make)

    def known_length(self, given: Symbol, result: Symbol, axis: int) -> int:
        """Return the length of an axis of a view of `given`: a known `Size`, otherwise -1 (inferred)."""
        pair = (int(result.examples[0].shape[axis]), int(result.examples[1].shape[axis]))
        if pair in self._sizes:
            return self._sizes[pair]
        shapes = list(zip(*(each.shape for each in given.examples), strict=True))
        return self.length(given, shapes.index(pair)) if pair in shapes else -1

    def scalar(self, number: int) -> ir.Value:
        """Return a length or a number as an int64 scalar in the graph."""
        return number.value if isinstance(number, Size) else self.constant(np.array(number, np.int64))

    def constant(self, array: np.ndarray) -> ir.Value:
        """Add a Constant node with these values."""
        value = self.op("constant", "Constant", [], value=ir.Tensor(array))
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        return value

    def as_symbol(self, x: Symbol | Tensor) -> Symbol:
        """Return a tensor, whose values are the same in every run, as a symbol."""
        return x if isinstance(x, Symbol) else Symbol(self, self.tensor(x), (example(x, 0), example(x, 0)))

    def tensor(self, tensor: Tensor) -> ir.Value:
        """Return a weight of the module as a named initializer, any other tensor as a constant."""
        if id(tensor) not in self._weights:
            if tensor.dtype.is_floating_point and tensor.numel() > 1 and bool((tensor != tensor.flatten()[0]).any()):
                what = f"a constant of {_calling_part()} of the shape {tuple(tensor.shape)}"
                raise UnsupportedError(f"{what} {UNREGISTERED}")
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
        """Return a weight on the meta device as a tensor that is read when the graph is written."""
        read = self._read
        dtype = tensor.dtype
        if read is None:
            raise UnsupportedError(f"{name} has no numbers, and nothing reads them")
        kind = ir.DataType.from_numpy(np.dtype(str(dtype).removeprefix("torch.")))
        return ir.LazyTensor(lambda: ir.tensor(array_of(read(name).to(dtype))), kind, ir.Shape(tensor.shape), name=name)


def _name_of(function: Any) -> str:
    """Return the name of a function as in `forms`; a function that changes a tensor keeps the `_` of its name."""
    name = str(getattr(function, "__name__", function))
    if name == "__get__":  # of an attribute, such as `Tensor.T`
        return str(function.__self__.__name__)
    return name.strip("_") if name.startswith("_") else name


def _calling_part() -> str:
    """Return the innermost part of the model that runs, in words."""
    frame = inspect.currentframe()
    while frame is not None:
        part = frame.f_locals.get("self")
        if isinstance(part, nn.Module):
            return f"part {type(part).__name__}"
        frame = frame.f_back
    return "the model"


def array_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array; bf16 has the type of ml_dtypes, since PyTorch can't convert it to NumPy."""
    tensor = tensor.detach()
    if tensor.dtype != torch.bfloat16:
        found: np.ndarray = tensor.numpy()
        return found
    return tensor.contiguous().view(torch.int16).numpy().view(np.dtype("bfloat16"))  # of ml_dtypes


def example(value: object, at: int) -> Any:
    """Return an argument with symbols and lengths replaced by example `at` (0 or 1)."""
    if isinstance(value, Symbol):
        return value.examples[at]
    if isinstance(value, Size):
        return value.pair[at]
    if isinstance(value, Tensor):
        return value.detach() if value.numel() <= FEW else value.detach().to(NOWHERE)
    if isinstance(value, list | tuple):
        return type(value)(example(each, at) for each in value)
    return value


def _computed(function: Any, args: Sequence[Any], options: Mapping[str, object]) -> Tensor:
    """Return the result of a function on an example; with meta tensors, only its shape and dtype are correct.

    On the meta device, PyTorch computes some functions with its compiler, which takes a second to load. Therefore small
    results become zeros on the CPU.
    """
    given = [each for each in flat([*args, *options.values()]) if isinstance(each, Tensor)]
    if not any(each.is_meta for each in given):
        found: Tensor = function(*args, **options)
        return found
    args = _nowhere(args)
    options = {name: _nowhere(each) for name, each in options.items()}
    found = function(*args, **options)
    return torch.zeros(found.shape, dtype=found.dtype) if found.numel() <= FEW else found


def _nowhere(value: object) -> Any:
    """Move tensors to the meta device, including those in lists."""
    if isinstance(value, list | tuple):
        return type(value)(map(_nowhere, value))
    return value.to(NOWHERE) if isinstance(value, Tensor) else value


def flat(values: object) -> list[object]:
    """Flatten nested lists and tuples of arguments, and the bounds of slices."""
    if isinstance(values, slice):
        values = (values.start, values.stop, values.step)
    if isinstance(values, list | tuple):
        return list(chain.from_iterable(map(flat, values)))
    return [values]
