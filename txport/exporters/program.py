"""One module of the user's own -> one graph, by PyTorch's exporter: its code may use any function."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from txport.bundles.ports import (
    BATCH,
    PAST,
    PAST_SOURCE,
    PAST_TARGET,
    SOURCE,
    TARGET,
    TOKENS,
    Graph,
    Port,
)
from txport.errors import UnsupportedError, brief
from txport.exporters.trace import IR_VERSION
from txport.models.adapters.adapted import computing, line_of
from txport.models.adapters.adapter import SHORTEST
from txport.models.facts import Facts
from txport.system.machine import is_out_of_memory

# The lengths of a trace: 2 or more, since PyTorch takes 0 and 1 for constants, and within the shortest model.
LENGTHS = {BATCH: 6, SOURCE: 7, PAST_SOURCE: 4, TARGET: 3, PAST_TARGET: SHORTEST - 3, TOKENS: 3, PAST: SHORTEST - 3}
PREFIX = re.compile(r"^(model\.)?(module\.)?")  # of what wraps the user's module
CONTROL = {"If", "Loop", "Scan"}
FIXED = re.compile(r"L\['(\w+)'\](?:\[(\d+)\])?\.size\(\)\[(\d+)\].*?constant \((\d+)\)", re.DOTALL)
TARGET_OF = re.compile(r"translating node .*?target=(torch[\w.]+)", re.DOTALL)
NOISY = ("torch.fx", "torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


@torch.no_grad()
def trace_program(module: nn.Module, graph: Graph, opset: int, facts: Facts) -> ir.Model:
    """A module whose arguments are the inputs of `graph`, as ONNX, every dynamic dim of its ports kept open.

    Weights have the names that the user's module has for them. Raises `UnsupportedError` for code that PyTorch can't
    export, that looks at values to choose what to compute, or that holds only for some lengths.
    """
    program = _exported(module, graph, facts)
    with _quiet(), _refusals(graph, "can't be written as ONNX"):
        found = torch.onnx.export(program, opset_version=opset, optimize=False, verbose=False)
    assert found is not None
    model = found.model
    _bound(model)
    _require_standard(model, graph)
    _name(model, graph)
    _strip(model)
    _part_rotations(model)
    model.ir_version = IR_VERSION
    model.graph.opset_imports.clear()
    model.graph.opset_imports[""] = opset
    return model


def lengths_of(graph: Graph) -> dict[str, int]:
    """The length of each dynamic dim of a graph's inputs in a trace."""
    return {dim: _length(dim) for port in graph.inputs for dim in port.dims if isinstance(dim, str)}


def _length(dim: str) -> int:
    return sum(LENGTHS[each] for each in dim.split(" + "))


def _exported(module: nn.Module, graph: Graph, facts: Facts) -> Any:
    """The module as PyTorch's exporter sees it, which runs it once."""
    module = copy.deepcopy(module).eval()  # code may leave on it what it made of a trace
    examples = [_example(port) for port in graph.inputs]
    dims = [_open_dims(port) for port in graph.inputs]
    kinds = [each.kind for each in inspect.signature(module.forward).parameters.values()]
    named = sum(kind is not inspect.Parameter.VAR_POSITIONAL for kind in kinds)
    shapes: tuple[Any, ...] = tuple(dims)
    if named < len(kinds):
        shapes = (*dims[:named], tuple(dims[named:]))
    dtype = next(each.dtype for each in module.parameters() if each.is_floating_point())
    with _quiet(), _refusals(graph, f"can't be traced in {dtype}"), computing(dtype):
        program = torch.export.export(module, tuple(examples), dynamic_shapes=shapes, strict=False)
    _require_open(program, graph, facts)
    _require_outputs(program, graph)
    return program


def _example(port: Port) -> Tensor:
    """Every input is a tensor of its own: the exporter takes one that comes twice for one input."""
    dims = [_length(dim) if isinstance(dim, str) else dim for dim in port.dims]
    return torch.ones(dims, dtype=getattr(torch, port.dtype))


def _open_dims(port: Port) -> dict[int, Any]:
    return {at: torch.export.Dim.DYNAMIC for at, dim in enumerate(port.dims) if isinstance(dim, str)}


def _require_open(program: Any, graph: Graph, facts: Facts) -> None:
    """Raise `UnsupportedError` where the code took a way that only some lengths take."""
    longest = {BATCH: 1 << 20, SOURCE: facts.reads.longest, PAST_SOURCE: facts.reads.longest}
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"][-len(graph.inputs) :]
    for port, value in zip(graph.inputs, values, strict=True):
        for dim, size in zip(port.dims, value.shape, strict=True):
            if not isinstance(dim, str):
                continue
            if isinstance(size, int):
                raise UnsupportedError(_fixed(graph, port.name, dim, size))
            bounds = program.range_constraints.get(size.node.expr)
            most = longest.get(dim, facts.writes.longest)
            # to PyTorch, what is past and what is new are 2 tokens or more
            if bounds is not None and (bounds.lower > 4 or bounds.upper < most - 2):
                what = f"only for {bounds.lower} to {bounds.upper} as the {dim} of {port.name}, of up to {most}"
                fix = "compute the same for every length, without an `if` on it"
                raise UnsupportedError(f"the {graph.role} graph holds {what}; {fix}")


def _require_outputs(program: Any, graph: Graph) -> None:
    """Raise `UnsupportedError` for outputs of another type than their ports', and for weights named as a port is."""
    outputs = next(node.args[0] for node in program.graph.nodes if node.op == "output")
    for port, node in zip(graph.outputs, outputs, strict=True):
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        if dtype != port.dtype:
            what = f"{port.name} in {dtype}, expected {port.dtype}"
            raise UnsupportedError(f"the {graph.role} graph gives {what}: the module's code converts it")
    ports = {port.name for port in (*graph.inputs, *graph.outputs)}
    if taken := sorted({PREFIX.sub("", name) for name in program.state_dict} & ports):
        raise UnsupportedError(f"the module's {taken[0]} has the name of a port of the {graph.role} graph; rename it")


def _fixed(graph: Graph, name: str, dim: str, size: object) -> str:
    what = "Python that counts with a length (range, int, a list, a table that was made before) fixes it"
    return f"the {graph.role} graph holds only for {size} as the {dim} of {name}: {what}; use functions of torch"


@contextlib.contextmanager
def _refusals(graph: Graph, what: str) -> Iterator[None]:
    """What PyTorch's exporter raises, in one line, with that of the user's code that it names."""
    try:
        yield
    except (UnsupportedError, MemoryError):
        raise
    except Exception as error:  # of many kinds
        if is_out_of_memory(error):
            raise
        if found := FIXED.search(str(error)):
            name, at, axis, size = found.groups()
            port = next((each for each in graph.inputs if each.name == name), None)
            if port is None and at is not None:
                port = [each for each in graph.inputs if each.state is not None][int(at)]
            if port is not None:
                raise UnsupportedError(_fixed(graph, port.name, str(port.dims[int(axis)]), size)) from error
        cause = error.__cause__ or error
        raise UnsupportedError(f"the {graph.role} graph {what}: {_reason(cause)}{line_of(error)}") from error


def _reason(error: BaseException) -> str:
    """The first sentence; of code that looks at values, what it is that can't be done."""
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return "the code chooses what to compute by values that only a run knows (if, int, .item())"
    if found := TARGET_OF.search(str(error)):
        return f"ONNX has no form of {found[1]} for what it is given"
    return brief(str(error).strip().partition("\n\n")[0])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own doings, and writes whole programs to standard error before it refuses them."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)


def _bound(model: ir.Model) -> None:
    """Give each Clip without a lower bound the lowest number there is: a bundle's nodes leave out no input."""
    for node in model.graph:
        while node.inputs and node.inputs[-1] is None:  # what comes last is left out by not being there
            node.resize_inputs(len(node.inputs) - 1)
    for node in [each for each in model.graph if each.op_type == "Clip" and len(each.inputs) > 1]:
        dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
        if node.inputs[1] is None and dtype is not None:
            kind = dtype.numpy()
            lowest = np.finfo(kind).min if np.issubdtype(kind, np.floating) else np.iinfo(kind).min
            bound = ir.node("Constant", [], attributes={"value": ir.tensor(np.array(lowest, kind))})
            bound.outputs[0].type = ir.TensorType(dtype)
            model.graph.insert_before(node, bound)
            node.replace_input_with(1, bound.outputs[0])


def _require_standard(model: ir.Model, graph: Graph) -> None:
    """Only standard operators with all their inputs, and no branches or loops, as of code that looks at values."""
    foreign = {f"{node.domain}.{node.op_type}" for node in model.graph if node.domain not in ("", "ai.onnx")}
    if foreign or model.functions:
        names = ", ".join(sorted(foreign)) or "functions of its own"
        raise UnsupportedError(f"the {graph.role} graph needs {names}, beyond ONNX's standard operators")
    if control := sorted({node.op_type for node in model.graph} & CONTROL):
        raise UnsupportedError(f"the {graph.role} graph has {', '.join(control)}; a portable graph has no control flow")
    if gaps := sorted({node.op_type for node in model.graph if None in node.inputs}):
        raise UnsupportedError(f"the {graph.role} graph leaves out an input of {', '.join(gaps)}, which no bundle does")


def _name(model: ir.Model, graph: Graph) -> None:
    """Ports as the contract has them, weights as the user's module."""
    body = model.graph
    if len(body.inputs) != len(graph.inputs) or len(body.outputs) != len(graph.outputs):
        found, wanted = ((len(each.inputs), len(each.outputs)) for each in (body, graph))
        raise UnsupportedError(f"the {graph.role} graph has {found} inputs and outputs, expected {wanted}")
    weights = list(body.initializers.values())
    for number, node in enumerate(body):
        node.name = f"{node.op_type}_{number}"
        for value in node.outputs:
            value.name = f"/{value.name}"
    for value in weights:
        name = PREFIX.sub("", str(value.name))
        body.initializers.pop(str(value.name))
        value.name = name
        body.initializers[name] = value
    for value, port in zip(body.inputs, graph.inputs, strict=True):
        value.name = port.name
        value.shape = ir.Shape(port.dims)
    known = set(map(id, body.inputs))
    for at, port in enumerate(graph.outputs):
        value = body.outputs[at]
        made = value.producer()
        if made is not None and made.op_type == "Identity" and made.inputs[0] is not None:
            value = body.outputs[at] = made.inputs[0]
        if id(value) in known or value.is_initializer():
            # no Identity: taken away, it would give one of the outputs the name of the other
            value = body.outputs[at] = _reshaped(value, [0] * len(port.dims), f"copy_{at}")
            body.extend(_nodes_of(value))
        known.add(id(value))
        value.name = port.name
        value.shape = ir.Shape(port.dims)


def _reshaped(value: ir.Value, shape: list[Any], name: str) -> ir.Value:
    """The same tensor by a Reshape, in which 0 stands for a dim as it is, whatever it is."""
    constant = ir.node("Constant", [], attributes={"value": ir.tensor(np.array(shape, np.int64))}, name=f"{name}_shape")
    node = ir.node("Reshape", [value, constant.outputs[0]], name=name)
    constant.outputs[0].name = f"/{constant.name}"
    node.outputs[0].name = f"/{name}"
    node.outputs[0].type = value.type
    return node.outputs[0]


def _nodes_of(value: ir.Value) -> list[ir.Node]:
    """The two nodes of what `_reshaped` gave."""
    node = value.producer()
    assert node is not None
    shape = node.inputs[1]
    assert shape is not None
    return [each for each in (shape.producer(), node) if each is not None]


def _strip(model: ir.Model) -> None:
    """Leave out what tells of the trace and of this machine, and dims that have names of the exporter's own."""
    ports = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    for each in (model, model.graph, *model.graph, *model.graph.initializers.values()):
        each.metadata_props.clear()
        each.doc_string = None
    for node in model.graph:
        for value in node.outputs:
            value.metadata_props.clear()
            if id(value) not in ports and value.shape is not None:
                value.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape])


def _part_rotations(model: ir.Model) -> None:
    """Put a Reshape to the same shape, which costs nothing, between a product and a transpose of its leading dims.

    ONNX Runtime 1.31 fuses the two, and in fp16 it crashes on what it made: so on PyTorch's own encoder layers.
    """
    for node in [each for each in model.graph if each.op_type == "MatMul"]:
        for at, value in enumerate(node.inputs):
            if value is None or not _is_rotated(value):
                continue
            assert value.shape is not None
            shape = [*[0] * (len(value.shape) - 1), value.shape[-1]]
            same = _reshaped(value, shape, f"{node.name}_same_{at}")
            same.shape = value.shape
            model.graph.insert_before(node, _nodes_of(same))
            node.replace_input_with(at, same)


def _is_rotated(value: ir.Value) -> bool:
    """Whether an fp16 tensor has its first dim moved behind all but the last, whose size is known."""
    made = value.producer()
    if made is None or made.op_type != "Transpose" or value.shape is None or value.dtype != ir.DataType.FLOAT16:
        return False
    rank = len(value.shape)
    rotation = [*range(1, rank - 1), 0, rank - 1]
    return list(made.attributes["perm"].as_ints()) == rotation and isinstance(value.shape[-1], int)
