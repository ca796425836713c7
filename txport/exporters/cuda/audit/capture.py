"""What a CUDA graph would repeat wrongly: kernels whose launch depends on memory of the run that was captured.

They copy parameters from the host's memory, which is freed after the run; replays read what lies there then. So says
ONNX Runtime's source (onnxruntime/core/providers/cuda/tensor and math/matmul.cc); it refuses none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import onnx
from onnx import ModelProto, NodeProto

from txport.exporters.cuda.audit.kernels import FROZEN

Dims = Mapping[str, Sequence[int | str]]  # of values; "" for a dim of which nothing is known
INVENTED = "unk__"  # prefix of dims that ONNX's shape inference invents
MOST_PIECES = 32  # whose places a kernel takes as arguments
MATRIX = 2  # dims


def dims_of(model: ModelProto) -> Dims:
    """The dims of each value, as far as the graph says them and ONNX infers them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    found: dict[str, Sequence[int | str]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            found[value.name] = tuple(dim.dim_value or dim.dim_param for dim in tensor.shape.dim)
    return found


def unfit(node: NodeProto, operator: str, dims: Dims) -> str | None:
    """Why a node can't be captured; None if it can, or where not even the number of dims is known."""
    if operator in FROZEN:
        return FROZEN[operator]
    check = CHECKS.get(operator)
    return check(node, dims) if check else None


def _concat(node: NodeProto, dims: Dims) -> str | None:
    axis = _attribute(node, "axis", 0)
    pieces = [dims[name][axis] if name in dims else "" for name in node.input]
    return _pieces(len(node.input), len(set(pieces)) == 1 and "" not in pieces)


def _split(node: NodeProto, dims: Dims) -> str | None:
    """Three pieces on the last axis are taken in any sizes."""
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
    """Products with one matrix, and of as many matrices as there are others, are one call of cuBLAS."""
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
    """Whether the dims of two batches are the same, as far as they are known; one may begin with more of length 1.

    What operators of ONNX Runtime's own give has no dims that ONNX could infer, so those can't be refused.
    """
    pairs = zip_longest(reversed(one), reversed(other), fillvalue=1)
    return all(first == second for first, second in pairs if _is_known(first) and _is_known(second))


def _is_known(dim: int | str) -> bool:
    return isinstance(dim, int) or not (dim == "" or dim.startswith(INVENTED))


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), default)


CHECKS = {"Concat": _concat, "Split": _split, "MatMul": _matmul, "com.microsoft.FusedMatMul": _matmul}
