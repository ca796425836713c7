"""Nodes that a CUDA graph would replay incorrectly: kernels whose launch depends on memory of the captured run.

These kernels copy parameters from host memory that is freed after the run; replays read whatever is there then.
Source: onnxruntime/core/providers/cuda/tensor and math/matmul.cc. ONNX Runtime raises no error for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import onnx
from onnx import ModelProto, NodeProto

from txport.exporters.cuda.audit.kernels import FROZEN

Dims = Mapping[str, Sequence[int | str]]  # value -> dims; "" for an unknown dim
INVENTED = "unk__"  # prefix of dims that ONNX's shape inference invents
MOST_PIECES = 32  # maximum number of pieces whose addresses are kernel arguments
MATRIX = 2  # dims


def dims_of(model: ModelProto) -> Dims:
    """Return value -> dims, as far as the graph states them or ONNX infers them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    found: dict[str, Sequence[int | str]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            found[value.name] = tuple(dim.dim_value or dim.dim_param for dim in tensor.shape.dim)
    return found


def unfit(node: NodeProto, operator: str, dims: Dims) -> str | None:
    """Return why a node can't be captured; None if it can, or if the number of dims is unknown."""
    if operator in FROZEN:
        return FROZEN[operator]
    check = CHECKS.get(operator)
    return check(node, dims) if check else None


def _concat(node: NodeProto, dims: Dims) -> str | None:
    axis = _attribute(node, "axis", 0)
    pieces = [dims[name][axis] if name in dims else "" for name in node.input]
    return _pieces(len(node.input), len(set(pieces)) == 1 and "" not in pieces)


def _split(node: NodeProto, dims: Dims) -> str | None:
    """Return the reason for a Split; three pieces on the last axis can have any sizes."""
    given = dims.get(node.input[0])
    axis = _attribute(node, "axis", 0)
    if given is not None and len(node.output) == 3 and axis % len(given) == len(given) - 1:
        return None
    made = [dims[name][axis] if name in dims else "" for name in node.output]
    return _pieces(len(node.output), len(set(made)) == 1 and "" not in made)


def _pieces(count: int, are_equal: bool) -> str | None:
    if count > MOST_PIECES:
        return f"it has {count} pieces, and places of at most {MOST_PIECES} are arguments of the kernel"
    return None if are_equal else "its pieces are not known to be equal, and sizes are copied from memory of the run"


def _matmul(node: NodeProto, dims: Dims) -> str | None:
    """Return the reason for a product that broadcasts; with one matrix or equal batches it is one cuBLAS call."""
    first, second = (dims.get(name) for name in node.input[:2])
    if first is None or second is None:
        return None
    are_one = all(dim == 1 for dim in second[:-MATRIX]) and len(first) >= len(second) >= MATRIX
    if are_one or (len(first) == 1 and len(second) <= MATRIX):
        return None
    if min(len(first), len(second)) > MATRIX and _may_be_alike(first[:-MATRIX], second[:-MATRIX]):
        return None
    shapes = " by ".join(str(list(each)) for each in (first, second))
    return f"it broadcasts matrices, {shapes}, and where they lie is copied from memory of the run"


def _may_be_alike(one: Sequence[int | str], other: Sequence[int | str]) -> bool:
    """True if the dims of two batches are equal as far as they are known; one may have more leading dims of length 1.

    ONNX infers no dims for outputs of ONNX Runtime's contrib operators, therefore those products are accepted.
    """
    pairs = zip_longest(reversed(one), reversed(other), fillvalue=1)
    return all(first == second for first, second in pairs if _is_known(first) and _is_known(second))


def _is_known(dim: int | str) -> bool:
    return isinstance(dim, int) or not (dim == "" or dim.startswith(INVENTED))


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), default)


CHECKS = {"Concat": _concat, "Split": _split, "MatMul": _matmul, "com.microsoft.FusedMatMul": _matmul}
