"""A user's module -> one graph, with PyTorch's exporter: the module may use any function of PyTorch."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from txport.checkpoints.adapters.adapted import computing, line_of
from txport.checkpoints.adapters.adapter import SHORTEST
from txport.errors import UnsupportedError, brief
from txport.exporters.tracing.trace import IR_VERSION
from txport.models.facts import Facts
from txport.system.machine import is_out_of_memory
from txport.targets.ports import (
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

# Lengths of dims in a trace: at least 2, since PyTorch treats 0 and 1 as constants, and within the shortest model.
LENGTHS = {BATCH: 6, SOURCE: 7, PAST_SOURCE: 4, TARGET: 3, PAST_TARGET: SHORTEST - 3, TOKENS: 3, PAST: SHORTEST - 3}
PREFIX = re.compile(r"^(model\.)?(module\.)?")  # prefix of names in modules that wrap the user's module
CONTROL = {"If", "Loop", "Scan"}
FIXED = re.compile(r"L\['(\w+)'\](?:\[(\d+)\])?\.size\(\)\[(\d+)\].*?constant \((\d+)\)", re.DOTALL)
TARGET_OF = re.compile(r"translating node .*?target=(torch[\w.]+)", re.DOTALL)
NOISY = ("torch.fx", "torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


@torch.no_grad()
def trace_program(module: nn.Module, graph: Graph, opset: int, facts: Facts) -> ir.Model:
    """Export a module to ONNX. Its arguments are the inputs of `graph`; all dynamic dims of the ports stay dynamic.

    Weights have the names of the user's module. Raises `UnsupportedError` for code that PyTorch can't export, for
    control flow that depends on values, and for code that is valid only for some lengths.
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
    """Return dim -> its length in a trace, for all dynamic dims of the inputs."""
    return {dim: _length(dim) for port in graph.inputs for dim in port.dims if isinstance(dim, str)}


def _length(dim: str) -> int:
    return sum(LENGTHS[each] for each in dim.split(" + "))


def _exported(module: nn.Module, graph: Graph, facts: Facts) -> Any:
    """Return the exported program of a module, which PyTorch runs once."""
    module = copy.deepcopy(module).eval()  # code may store results of the trace on the module
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
    """Return a new tensor for each input: the exporter treats the same tensor passed twice as one input."""
    dims = [_length(dim) if isinstance(dim, str) else dim for dim in port.dims]
    return torch.ones(dims, dtype=getattr(torch, port.dtype))


def _open_dims(port: Port) -> dict[int, object]:
    return {at: torch.export.Dim.DYNAMIC for at, dim in enumerate(port.dims) if isinstance(dim, str)}


def _require_open(program: Any, graph: Graph, facts: Facts) -> None:
    """Raise `UnsupportedError` if the exported program is valid only for some lengths."""
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
            # PyTorch assumes at least 2 past and at least 2 new tokens
            if bounds is not None and (bounds.lower > 4 or bounds.upper < most - 2):
                what = f"only for {bounds.lower} to {bounds.upper} as the {dim} of {port.name}, of up to {most}"
                fix = "compute the same for every length, without an `if` on it"
                raise UnsupportedError(f"the {graph.role} graph holds {what}; {fix}")


def _require_outputs(program: Any, graph: Graph) -> None:
    """Raise `UnsupportedError` if an output's dtype differs from its port's, or if a weight has the name of a port."""
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
    """Turn errors of PyTorch's exporter into a one-line `UnsupportedError` that names the line of the user's code."""
    try:
        yield
    except (UnsupportedError, MemoryError):
        raise
    except Exception as error:  # the exporter raises many types
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
    """Return the reason of an error: txport's explanation for known errors, otherwise the start of its message."""
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return "the code chooses what to compute by values that only a run knows (if, int, .item())"
    if found := TARGET_OF.search(str(error)):
        return f"ONNX has no form of {found[1]} for what it is given"
    return brief(str(error).strip().partition("\n\n")[0])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings, logs and standard error: PyTorch's exporter prints whole programs when it fails."""
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
    """Add the lowest value of the dtype to each Clip without a lower bound: nodes have all their inputs."""
    for node in model.graph:
        while node.inputs and node.inputs[-1] is None:  # trailing inputs that are None are removed
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
    """Raise `UnsupportedError` for non-standard operators, control flow and omitted inputs."""
    foreign = {f"{node.domain}.{node.op_type}" for node in model.graph if node.domain not in ("", "ai.onnx")}
    if foreign or model.functions:
        names = ", ".join(sorted(foreign)) or "functions of its own"
        raise UnsupportedError(f"the {graph.role} graph needs {names}, beyond ONNX's standard operators")
    if control := sorted({node.op_type for node in model.graph} & CONTROL):
        raise UnsupportedError(f"the {graph.role} graph has {', '.join(control)}; a portable graph has no control flow")
    if gaps := sorted({node.op_type for node in model.graph if None in node.inputs}):
        raise UnsupportedError(f"the {graph.role} graph leaves out an input of {', '.join(gaps)}, which no bundle does")


def _name(model: ir.Model, graph: Graph) -> None:
    """Name inputs and outputs after the ports, and weights after the user's module."""
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
            # an Identity would be removed, which would give two outputs the same name
            value = body.outputs[at] = _reshaped(value, [0] * len(port.dims), f"copy_{at}")
            body.extend(_nodes_of(value))
        known.add(id(value))
        value.name = port.name
        value.shape = ir.Shape(port.dims)


def _reshaped(value: ir.Value, shape: Sequence[object], name: str) -> ir.Value:
    """Return a Reshape of a value; a 0 in `shape` keeps the dim."""
    constant = ir.node("Constant", [], attributes={"value": ir.tensor(np.array(shape, np.int64))}, name=f"{name}_shape")
    node = ir.node("Reshape", [value, constant.outputs[0]], name=name)
    constant.outputs[0].name = f"/{constant.name}"
    node.outputs[0].name = f"/{name}"
    node.outputs[0].type = value.type
    return node.outputs[0]


def _nodes_of(value: ir.Value) -> list[ir.Node]:
    """Return the two nodes of a value made by `_reshaped`."""
    node = value.producer()
    assert node is not None
    shape = node.inputs[1]
    assert shape is not None
    return [each for each in (shape.producer(), node) if each is not None]


def _strip(model: ir.Model) -> None:
    """Remove metadata and doc strings of the trace, and dim names chosen by PyTorch's exporter."""
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
    """Insert a Reshape to the same shape, without cost, between a MatMul and a Transpose that moves the first dim.

    ONNX Runtime 1.31 fuses the two and then crashes in fp16, for example on PyTorch's encoder layers.
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
    """True if an fp16 value is a Transpose that moves the first dim before the last, and the last dim is static."""
    made = value.producer()
    if made is None or made.op_type != "Transpose" or value.shape is None or value.dtype != ir.DataType.FLOAT16:
        return False
    rank = len(value.shape)
    rotation = [*range(1, rank - 1), 0, rank - 1]
    return list(made.attributes["perm"].as_ints()) == rotation and isinstance(value.shape[-1], int)
