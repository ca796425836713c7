"""What a CUDA graph would repeat wrongly: kernels whose launch depends on memory of the run that was captured.

They copy parameters from the host's memory, which is freed after the run; replays read what lies there then. So says
ONNX Runtime's source (onnxruntime/core/providers/cuda/tensor and math/matmul.cc); it refuses none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import ModelProto, NodeProto

from txport.exporters.cuda.audit.kernels import FROZEN

Dims = Mapping[str, Sequence[int | str]]  # of values; "" for a dim of which nothing is known
INVENTED = "unk__"  # what ONNX's inference calls a dim of which it knows nothing begins with
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
    """Why a node can't be captured; None if it can, or where dims are not known well enough to say."""
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
    batches = [[dim for dim in each[:-MATRIX] if dim != 1] for each in (first, second)]
    is_one = not batches[1] and len(first) >= len(second)
    if is_one or (len(first) > MATRIX and _may_be_alike(*batches)):
        return None
    said = " by ".join(str(list(each)) for each in (first, second))
    return f"it broadcasts matrices, {said}, and where they lie is copied from memory of the run"


def _may_be_alike(one: Sequence[int | str], other: Sequence[int | str]) -> bool:
    """Whether dims are the same, as far as they are known."""
    known = [pair for pair in zip(one, other, strict=False) if all(map(_is_known, pair))]
    first, second = (sorted(str(pair[side]) for pair in known) for side in (0, 1))
    return len(one) == len(other) and first == second


def _is_known(dim: int | str) -> bool:
    return isinstance(dim, int) or not (dim == "" or dim.startswith(INVENTED))


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), default)


CHECKS = {"Concat": _concat, "Split": _split, "MatMul": _matmul, "com.microsoft.FusedMatMul": _matmul}
