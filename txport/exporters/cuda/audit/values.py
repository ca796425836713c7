"""Types of the values of a graph, inferred from schemas, and whether CUDA has a kernel for each node."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from txport.exporters.cuda.audit.kernels import FUNCTIONS, KERNELS, OPSETS, SIGNATURES

UNKNOWN = "?"
CONSTANT = "Constant"
NAMES = {  # ONNX's type number -> NumPy's name
    number: onnx.helper.tensor_dtype_to_np_dtype(number).name
    for name, number in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING", "COMPLEX64", "COMPLEX128")
}
OF_SCHEMA = {f"tensor({TensorProto.DataType.Name(number).lower()})": name for number, name in NAMES.items()}
TYPES = frozenset(NAMES.values())


def operator_of(node: NodeProto) -> str:
    """Return the operator with its domain, which is left out for standard operators."""
    return f"{node.domain}.{node.op_type}".removeprefix("ai.onnx.").lstrip(".")


def name_of(node: NodeProto) -> str:
    """Return a node's name, or the name of its first output if it has none."""
    return node.name or next(iter(node.output), "")


class Values:
    """Types of the values of a graph, sizes of constants, and names of inputs."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self.opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
        self.sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}  # of constants: elements
        self.inputs = {value.name for value in graph.input} - set(self.sizes)
        self.types = dict(_given_types(graph))
        for node in graph.node:
            if node.op_type == CONSTANT:
                self.sizes[node.output[0]] = _constant_size(node)
            self._infer(node)

    def _infer(self, node: NodeProto) -> None:
        """Infer the types of a node's outputs."""
        _, made = self._signature(node)
        bound = self.bound(node)
        for place, name in enumerate(node.output):
            variable = made[min(place, len(made) - 1)] if made else ""
            known = _attribute_type(node, place) or bound.get(variable)
            self.types[name] = known or (variable if variable in TYPES else UNKNOWN)

    def _signature(self, node: NodeProto) -> tuple[list[str], list[str]]:
        """Return the types of inputs and outputs (type variables or names); empty lists for an unknown operator."""
        if signature := SIGNATURES.get(operator_of(node)):
            reads, gives = signature.split(" -> ")
            return reads.split(), gives.split()
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, node.domain)
        except onnx.defs.SchemaError:
            return [], []
        alone = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
        certain = {variable: types[0] for variable, types in alone.items() if len(types) == 1}
        given = [_plain(certain.get(each.type_str, each.type_str)) for each in schema.inputs]
        return given, [_plain(certain.get(each.type_str, each.type_str)) for each in schema.outputs]

    def bound(self, node: NodeProto) -> dict[str, str]:
        """Return type variable -> type of a node, as far as its inputs determine it."""
        given, _ = self._signature(node)
        known = [
            (given[min(place, len(given) - 1)], self.types.get(name, UNKNOWN))
            for place, name in enumerate(node.input if given else ())
            if name
        ]
        return {variable: found for variable, found in known if variable not in TYPES}

    def has_kernel(self, node: NodeProto) -> bool:
        """True if the provider has a kernel for the node's operator and types."""
        name = operator_of(node)
        if name in FUNCTIONS and not node.domain:
            bound = set(self.bound(node).values())
            return all(bound <= row.get("T", set()) for each in FUNCTIONS[name] for row in KERNELS[each])
        if name not in KERNELS or (not node.domain and self.opset not in OPSETS):
            return False
        _, made = self._signature(node)
        variables = self.bound(node)
        for place, output in enumerate(node.output):
            if output and made and (variable := made[min(place, len(made) - 1)]) not in TYPES:
                variables.setdefault(variable, self.types[output])
        return any(
            all(found in row[variable] for variable, found in variables.items() if variable in row)
            for row in KERNELS[name]
        ) and not _falls_back(node)


def _plain(type_str: str) -> str:
    """Return `float32` for `tensor(float)`; a type variable is unchanged."""
    return OF_SCHEMA.get(type_str, type_str)


def _given_types(graph: GraphProto) -> Iterator[tuple[str, str]]:
    """Yield (name, type) of initializers and inputs."""
    for tensor in graph.initializer:
        yield tensor.name, NAMES.get(tensor.data_type, UNKNOWN)
    for value in graph.input:
        yield value.name, NAMES.get(value.type.tensor_type.elem_type, UNKNOWN)


def _attribute_type(node: NodeProto, place: int) -> str | None:
    """Return the type of an output that is set by an attribute, otherwise None."""
    given = {each.name: each for each in node.attribute}
    if node.op_type == "Cast":
        return NAMES.get(given["to"].i, UNKNOWN)
    if node.op_type == "ConstantOfShape":
        return NAMES[given["value"].t.data_type] if "value" in given else "float32"
    if node.op_type == CONSTANT:
        kinds = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32"}
        return next((kinds.get(name) or NAMES.get(each.t.data_type, UNKNOWN) for name, each in given.items()), UNKNOWN)
    if node.op_type == "LayerNormalization" and place:
        return NAMES[given["stash_type"].i] if "stash_type" in given else "float32"
    return None


def _constant_size(node: NodeProto) -> int:
    each = node.attribute[0]
    return math.prod(each.t.dims) if each.HasField("t") else max(1, len(each.ints) + len(each.floats))


def _falls_back(node: NodeProto) -> bool:
    """True if the provider does not run a node because of an attribute, although it has a kernel for its types."""
    return node.op_type in ("ArgMax", "ArgMin") and any(
        each.name == "select_last_index" and each.i for each in node.attribute
    )
