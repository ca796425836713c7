"""Models whose weights do not have to fit in memory: each part reads its weights when it runs.

Such a model has an outline, whose parameters have shapes but no data, and a function that reads a weight by its name.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from txport.models.config import Config
from txport.models.model import Model

Read = Callable[[str], Tensor]  # the name of a weight -> its values, in any floating-point type
Module = TypeVar("Module", bound=nn.Module)

FILLING = ("zero_", "fill_", "uniform_", "normal_", "kaiming_uniform_")
MOST_ROOM = 1 << 25  # numbers of a linear layer that are converted at once: 256 MB in float64
SOURCE = "streamed_from"  # the attribute of a streamed model with its outline (None: none) and `Reader`
COME = "read_weights"  # the attribute of a streamed module with the function that reads its weights to stay


class Reader:
    """Reads a weight by its name, or some of its rows.

    `rows`: a function that reads the rows at an index, a slice or an array, without reading all of them.
    """

    def __init__(self, read: Read, rows: Callable[[str, object], Tensor] | None = None) -> None:
        self._read = read
        self._rows = rows

    @classmethod
    def of(cls, read: Read) -> Reader:
        """Return a function that reads weights as a `Reader`."""
        return read if isinstance(read, Reader) else cls(read)

    def __call__(self, name: str) -> Tensor:
        """Return all of a weight."""
        return self._read(name)

    def rows(self, name: str, index: Any) -> Tensor:
        """Return the rows of a weight at an index, a slice or an array."""
        return self._read(name)[index] if self._rows is None else self._rows(name, index)

    def then(self, change: Callable[[Tensor], Tensor]) -> Reader:
        """Return a reader of the same weights, each changed number by number."""
        return Reader(lambda name: change(self(name)), lambda name, index: change(self.rows(name, index)))


class Unfilled(TorchFunctionMode):
    """In this context, parameters of new modules are not initialised: a checkpoint fills them."""

    def __torch_function__(self, function: Any, types: object, args: Any = (), options: Any = None) -> object:
        """See `TorchFunctionMode`; functions that fill a tensor are those of `torch.nn.init`, or tensor methods."""
        options = options or {}
        if function.__name__ in FILLING:
            return args[0] if args else options["tensor"]
        return function(*args, **options)


class Outlined(Unfilled):
    """In this context, parameters of new modules have no data; tables computed from a config do."""

    def __torch_function__(self, function: object, types: object, args: object = (), options: Any = None) -> object:
        """See `TorchFunctionMode`; parameters that are not created by `torch.empty` are small."""
        options = dict(options or {}, device="meta") if function is torch.empty else options
        return super().__torch_function__(function, types, args, options)


def outline(build: Callable[[object], Model], config: Config) -> Model:
    """Return a model of a config with its parameters on the device "meta"."""
    with Outlined():
        return emptied(build(config).eval(), is_copy=False)


def emptied(model: Model, *, is_copy: bool = True) -> Model:
    """Return a model with its parameters on the device "meta" and its tables unchanged."""
    nothing = {
        name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in model.named_parameters()
    }
    return _with_parameters(copied(model) if is_copy else model, nothing)


def filled(outline: Model, read: Read, dtype: torch.dtype = torch.float32, *, is_copy: bool = True) -> Model:
    """Return the model with all its weights in memory, in type `dtype`."""
    model = copied(outline, dtype) if is_copy else outline.to(dtype)
    return _with_parameters(model, {name: read(name).to(dtype) for name, _ in model.named_parameters()})


def streamed(outline: Model, read: Read, dtype: torch.dtype = torch.float32) -> Model:
    """Return the model in type `dtype`; each module reads its own weights when it runs, and drops them afterwards.

    Dropped weights are NaN: a computation with them is noticed.
    """
    model = copied(outline, dtype)
    reader = Reader.of(read)
    _stream_in_place(model, reader, dtype)
    setattr(model, SOURCE, (outline, reader))
    return model


def widen(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert any module in place to a wider type; its parameters keep theirs, and are converted by the part that runs.

    A part that reads a parameter of another part finds NaN; after `stay`, it finds the number.
    """
    kept = Reader({name: each.detach() for name, each in module.named_parameters()}.__getitem__)
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.to(dtype)
    _stream_in_place(module, kept, dtype)
    setattr(module, SOURCE, (None, kept))


def reader_of(module: nn.Module) -> Reader | None:
    """Return the function by which a streamed module reads its parameters, by their first names; else None."""
    reader: Reader | None = getattr(module, SOURCE, (None, None))[1]
    return reader


def read_weight(model: nn.Module, layer: str) -> Tensor:
    """Return the weight of a part by the part's name; that of a streamed model is read."""
    held = model.get_submodule(layer).get_parameter("weight")
    reader = reader_of(model)
    if reader is None or not held.isnan().all():
        return held.detach()
    return reader(next(name for name, each in model.named_parameters() if each is held))


def _stream_in_place(model: nn.Module, reader: Reader, dtype: torch.dtype) -> None:
    """Replace the parameters of a model by NaN; each module reads its own ones when it runs."""
    nothing = torch.full((), torch.nan, dtype=dtype)
    shapes = {name: each.shape for name, each in model.named_parameters()}
    _with_parameters(model, {name: nothing.expand(shape) for name, shape in shapes.items()})
    names = {id(each): name for name, each in model.named_parameters()}
    room = Room(dtype)
    for module in model.modules():
        own = {names[id(each)]: each for each in module.parameters(recurse=False)}
        if type(module) is nn.Embedding and module.max_norm is None:
            _look_up(module, names[id(module.weight)], reader, dtype)
        elif _is_linear(module) and module.weight.numel() > MOST_ROOM:
            _project(module, names, reader, dtype)
        elif own:
            _stream(module, own, reader, room, nothing)


def _is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a module computes what `nn.Linear` does; a subclass in the user's code may compute more."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


class Room:
    """Memory for the weights of the module that runs, used again by the next module.

    New memory for each weight would take longer than its conversion: the system clears each of its pages.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._memory = torch.empty(0, dtype=dtype)
        self._holder: nn.Module | None = None

    def hold(self, module: nn.Module, weights: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the weights of a module in this room; in new memory if another module is in the room."""
        if self._holder is not None:
            yield from (each.to(self._dtype) for each in weights)
            return
        self._holder = module
        size = sum(each.numel() for each in weights)
        if size > len(self._memory):
            self._memory = torch.empty(0, dtype=self._dtype)  # the old memory is freed first
            self._memory = torch.empty(size, dtype=self._dtype)
        start = 0
        for each in weights:
            end = start + each.numel()
            yield _shaped(self._memory[start:end], each).copy_(each)
            start = end

    def leave(self, module: nn.Module) -> None:
        """Give the room back if this module has it."""
        if self._holder is module:
            self._holder = None


def _shaped(memory: Tensor, like: Tensor) -> Tensor:
    """Return memory in the shape of a tensor, transposed if that is: to turn numbers takes five times as long."""
    is_turned = like.dim() == 2 and like.stride(0) < like.stride(1)
    return memory.view(like.shape[::-1]).t() if is_turned else memory.view(like.shape)


def _look_up(module: nn.Embedding, name: str, reader: Reader, dtype: torch.dtype) -> None:
    """Make an embedding read the rows that it looks up, when it runs."""

    def forward(ids: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return reader.rows(name, ids.flatten().numpy()).to(dtype).view(*ids.shape, module.embedding_dim)

    _replace(module, forward, {name: module.weight}, reader, dtype)


def _replace(
    module: nn.Module,
    forward: Callable[[Tensor], Tensor],
    own: Mapping[str, Tensor],
    reader: Reader,
    dtype: torch.dtype,
) -> None:
    """Replace the `forward` of a module until its weights stay."""
    module.forward = forward
    _may_stay(module, own, reader, dtype, lambda: delattr(module, "forward"))


def _project(module: nn.Linear, names: Mapping[int, str], reader: Reader, dtype: torch.dtype) -> None:
    """Make a large linear layer read its weights when it runs, and convert some of its outputs at a time."""
    weight, bias = names[id(module.weight)], None if module.bias is None else names[id(module.bias)]
    count = max(1, MOST_ROOM // module.in_features)
    room = Room(dtype)

    def forward(x: Tensor) -> Tensor:
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], module.out_features)
        parts = []
        with torch._C.DisableTorchFunction():
            added = None if bias is None else reader(bias).to(dtype)
        for start in range(0, module.out_features, count):
            rows = slice(start, start + count)
            with torch._C.DisableTorchFunction():
                (held,) = room.hold(module, [reader.rows(weight, rows)])
            parts.append(F.linear(x, held, None if added is None else added[rows]))
            room.leave(module)
        return torch.cat(parts, -1)

    _replace(module, forward, {names[id(each)]: each for each in module.parameters()}, reader, dtype)


def _stream(module: nn.Module, own: Mapping[str, nn.Parameter], reader: Reader, room: Room, nothing: Tensor) -> None:
    """Make a module read its parameters by name before it runs, and drop them afterwards."""

    def load(*_: object) -> None:
        with torch._C.DisableTorchFunction():  # modes may change computations, but not weights
            held = room.hold(module, [reader(name) for name in own])
            for parameter, values in zip(own.values(), held, strict=True):
                parameter.data = values

    def drop(*_: object) -> None:
        room.leave(module)
        with torch._C.DisableTorchFunction():  # a mode that rounds would allocate the expanded tensor
            for parameter in own.values():
                parameter.data = nothing.expand(parameter.shape)

    hooks = module.register_forward_pre_hook(load), module.register_forward_hook(drop, always_call=True)

    def end() -> None:
        for hook in hooks:
            hook.remove()

    _may_stay(module, own, reader, nothing.dtype, end)


def _may_stay(
    module: nn.Module, own: Mapping[str, Tensor], reader: Reader, dtype: torch.dtype, end: Callable[[], None]
) -> None:
    """Give a module the function that `stay` calls; `end` ends that it reads its weights when it runs."""

    def come() -> None:
        end()
        delattr(module, COME)
        for name, parameter in own.items():
            parameter.data = reader(name).to(dtype)

    setattr(module, COME, come)


def stay(module: nn.Module) -> None:
    """Read the weights of a streamed module and of its parts, which then have them as other modules do."""
    for part in module.modules():
        getattr(part, COME, lambda: None)()


def is_streamed(model: nn.Module) -> bool:
    """Return whether a model is streamed: it reads its weights when it uses them."""
    return hasattr(model, SOURCE)


def in_memory(model: Model) -> Model:
    """Return the same model with all its weights in memory."""
    if not is_streamed(model):
        return model
    outlined, read = getattr(model, SOURCE)
    return filled(outlined, read, next(model.parameters()).dtype)


def converted(model: Model, dtype: torch.dtype) -> Model:
    """Return a copy of a model in another type, streamed if the model is.

    The weights of a streamed model are first rounded to the model's own type.
    """
    if not is_streamed(model):
        return copied(model, dtype)
    outlined, reader = getattr(model, SOURCE)
    own = next(model.parameters()).dtype

    def rounded(values: Tensor) -> Tensor:
        is_exact = torch.promote_types(values.dtype, own) == own  # it would only take memory and time to convert it
        return values if is_exact and torch.promote_types(values.dtype, dtype) == dtype else values.to(own)

    return streamed(copied(outlined, own), reader.then(rounded), dtype)


def _with_parameters(model: Module, tensors: Mapping[str, Tensor]) -> Module:
    """Replace the parameters of a model, by their first names; shared parameters stay shared."""
    made = {
        id(each): nn.Parameter(tensors[name], requires_grad=each.requires_grad and tensors[name].is_leaf)
        for name, each in model.named_parameters()
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = made[id(parameter)]
    return model


def copied(model: Module, dtype: torch.dtype | None = None) -> Module:
    """Return a copy of a model: `deepcopy(model).to(dtype)` without an intermediate copy in the model's type."""
    memo: dict[int, object] = {}
    for module in model.modules():
        for each in (*module._parameters.values(), *module._buffers.values()):
            if each is not None and each.is_leaf and id(each) not in memo:
                memo[id(each)] = _converted(each, dtype)
        # Every module has a dozen of these. Copying them one by one would take most of the time for a small model.
        empty = (each for each in vars(module).values() if type(each) in (OrderedDict, set) and not each)
        memo |= {id(each): type(each)() for each in empty}
    return copy.deepcopy(model, memo)


def _converted(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    numbers = tensor.detach().to(dtype if dtype and tensor.is_floating_point() else tensor.dtype, copy=True)
    return nn.Parameter(numbers, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else numbers
