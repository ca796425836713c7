"""Graphs for the audit: a step as the cuda target has it, one fault each, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

PRECISIONS = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "fp32": TensorProto.FLOAT}
OURS = "com.microsoft"
ROWS, BATCH, BEAMS, CAPACITY, SOURCE, HEADS, SIZE, WORDS = 4, 2, 2, 16, 8, 2, 64, 50
WIDTH = HEADS * SIZE
STATE = {
    "next_ids": "input_ids",
    "present_lengths": "past_lengths",
    "present.key": "past.key",
    "present.value": "past.value",
}


class Draft:
    """A model that is written down node by node."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self.weights: list[TensorProto] = []

    def input(self, name: str, kind: int, *dims: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def output(self, name: str, kind: int, *dims: int | str) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims))

    def weight(self, name: str, kind: int, *dims: int) -> str:
        array = np.zeros(dims, helper.tensor_dtype_to_np_dtype(kind))
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def numbers(self, name: str, *values: int) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def node(self, operator: str, inputs: list[str], *outputs: str, **attributes: object) -> str:
        domain, _, name = operator.rpartition(".")
        made = outputs or (f"v{len(self.nodes)}",)
        self.nodes.append(
            helper.make_node(name, inputs, made, f"n{len(self.nodes)}_{name}", domain=domain, **attributes)
        )
        return made[0]

    def model(self, opset: int = 24) -> ModelProto:
        graph = helper.make_graph(self.nodes, "graph", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(OURS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def step(kind: int, plant: Callable[[Draft, int], None] = lambda draft, kind: None, opset: int = 24) -> ModelProto:
    """One layer of a decoder's step, and what `plant` adds to it."""
    draft = Draft()
    ids = draft.input("input_ids", TensorProto.INT64, BATCH, BEAMS)
    past = draft.input("past_lengths", TensorProto.INT64, ROWS)
    count = draft.input("k", TensorProto.INT64, 1)
    one = draft.numbers("one", 1)
    norm = [draft.weight(name, kind, WIDTH) for name in ("scale", "bias")]
    words = draft.node("Gather", [draft.weight("table", kind, WORDS, WIDTH), ids])
    x = draft.node("Reshape", [words, draft.numbers("row", -1, 1, WIDTH)])
    present = draft.node("Add", [past, one], "present_lengths")
    seen = own_attention(draft, kind, x, present, draft.node("Sub", [present, one]))
    draft.node(f"{OURS}.SkipLayerNormalization", [seen, x, *norm], "normed", "", "", "sum", epsilon=1e-5)
    heard = cross_attention(draft, kind)
    draft.node(f"{OURS}.SkipLayerNormalization", [heard, "sum", *norm], "last", epsilon=1e-5)
    scores = draft.node("MatMul", ["last", draft.weight("projection", kind, WIDTH, WORDS)])
    wide = draft.node("Cast", [scores], to=TensorProto.FLOAT)
    draft.node("Reshape", [wide, draft.numbers("flat", -1, WORDS)], "logits")
    draft.node("TopK", [draft.node("LogSoftmax", ["logits"], axis=-1), count], "log_probs", "ids")
    best = draft.node("Slice", ["ids", draft.numbers("zero", 0), one, one])
    draft.node("Reshape", [best, draft.numbers("pairs", BATCH, BEAMS)], "next_ids")
    draft.output("next_ids", TensorProto.INT64, BATCH, BEAMS)
    draft.output("present_lengths", TensorProto.INT64, ROWS)
    draft.output("logits", TensorProto.FLOAT, ROWS, WORDS)
    draft.output("log_probs", TensorProto.FLOAT, ROWS, "k")
    draft.output("ids", TensorProto.INT64, ROWS, "k")
    plant(draft, kind)
    return draft.model(opset)


def own_attention(draft: Draft, kind: int, x: str, lengths: str, slot: str) -> str:
    """Over the tokens so far, which lie in caches that are written in place."""
    packed = draft.node("MatMul", [x, draft.weight("packed", kind, WIDTH, 3 * WIDTH)])
    draft.node("Split", [packed], "q", "new_key", "new_value", axis=-1, num_outputs=3)
    caches = []
    for role in ("key", "value"):
        old = draft.input(f"past.{role}", kind, ROWS, CAPACITY, WIDTH)
        caches.append(draft.node("TensorScatter", [old, f"new_{role}", slot], f"present.{role}", axis=1))
        draft.output(caches[-1], kind, ROWS, CAPACITY, WIDTH)
    return draft.node("Attention", ["q", *caches, "", "", "", lengths], q_num_heads=HEADS, kv_num_heads=HEADS)


def cross_attention(draft: Draft, kind: int) -> str:
    """Over the source, whose beams are its queries."""
    lengths = draft.input("source_lengths", TensorProto.INT64, BATCH)
    source = [draft.input(f"cross.{role}", kind, BATCH, SOURCE, WIDTH) for role in ("key", "value")]
    asked = draft.node("MatMul", ["normed", draft.weight("asks", kind, WIDTH, WIDTH)])
    folded = draft.node("Reshape", [asked, draft.numbers("fold", BATCH, BEAMS, WIDTH)])
    inputs = [folded, *source, "", "", "", lengths]
    heard = draft.node("Attention", inputs, q_num_heads=HEADS, kv_num_heads=HEADS)
    return draft.node("Reshape", [heard, draft.numbers("unfold", -1, 1, WIDTH)])


def shape_chain(draft: Draft, kind: int) -> None:
    """A shape that is computed as the graph runs."""
    dims = draft.node("Shape", ["past.key"])
    first = draft.node("Gather", [dims, draft.numbers("first", 0)])
    shape = draft.node("Concat", [first, draft.numbers("rest", 1, -1)], axis=0)
    draft.output(draft.node("Reshape", ["last", shape]), kind, ROWS, 1, WIDTH)


def branch(draft: Draft, kind: int) -> None:
    """Two ways through the graph."""
    first = draft.node("Equal", [draft.node("Slice", ["past_lengths", "zero", "one", "zero"]), "zero"])
    value = helper.make_tensor_value_info("either", kind, [ROWS, 1, WIDTH])
    body = helper.make_graph([helper.make_node("Identity", ["last"], ["either"])], "body", [], [value])
    draft.output(draft.node("If", [first], then_branch=body, else_branch=body), kind, ROWS, 1, WIDTH)


def count_of_device(draft: Draft, kind: int) -> None:
    """How many tokens to choose, computed on the device."""
    count = draft.node("ReduceMax", ["present_lengths", "zero"], keepdims=1)
    draft.node("TopK", ["logits", count], "most", "which")
    draft.outputs.append(helper.make_tensor_value_info("which", TensorProto.INT64, [ROWS, "n"]))


def count_in_arithmetic(draft: Draft, kind: int) -> None:
    """A number of the host that a kernel on the device reads too."""
    draft.output(draft.node("Add", ["past_lengths", "k"]), TensorProto.INT64, ROWS)


def range_of_lengths(draft: Draft, kind: int) -> None:
    """Positions up to a length that the device knows."""
    length = draft.node("Squeeze", [draft.node("ReduceMax", ["present_lengths", "zero"], keepdims=1)])
    ends = [draft.node("Squeeze", [name]) for name in ("zero", "one")]
    places = draft.node("Range", [ends[0], length, ends[1]])
    draft.outputs.append(helper.make_tensor_value_info(places, TensorProto.INT64, ["n"]))


FAULTS = {  # what ONNX Runtime refuses to capture: the fault, and what the audit says of it
    "shape arithmetic": (shape_chain, "arithmetic with shapes, which runs on the host: n"),
    "control flow": (branch, "control flow, which can't be captured: n"),
    "a host input from the device": (count_of_device, "lies on the device, and n"),
    "a device input on the host": (count_in_arithmetic, "k lies on the host, and n"),
    "Range": (range_of_lengths, "lies on the device, and n"),
}


def unequal_pieces(draft: Draft, kind: int) -> None:
    draft.output(draft.node("Concat", ["last", "normed", "present.key"], axis=1), kind, ROWS, CAPACITY + 2, WIDTH)


def unequal_parts(draft: Draft, kind: int) -> None:
    draft.node("Split", ["last", draft.numbers("parts", 1, WIDTH - 1)], "part", "other", axis=-1)
    draft.output("other", kind, ROWS, 1, WIDTH - 1)


def gathered(draft: Draft, kind: int) -> None:
    draft.output(draft.node("GatherND", ["last", draft.numbers("place", 0)]), kind, 1, WIDTH)


def broadcast(draft: Draft, kind: int) -> None:
    made = draft.node("MatMul", [draft.weight("shares", kind, 1, CAPACITY), "past.key"])
    draft.output(made, kind, ROWS, 1, WIDTH)


def bare_shape(draft: Draft, kind: int) -> None:
    draft.output(draft.node("Reshape", ["last", draft.node("Shape", ["last"])]), kind, ROWS, 1, WIDTH)


REPLAYED_WRONGLY = {  # what ONNX Runtime captures all the same, though a replay would be wrong
    "shapes": (bare_shape, "shapes, which lie on the host: n"),
    "unequal pieces": (unequal_pieces, "its pieces are not known to be equal"),
    "unequal parts": (unequal_parts, "its pieces are not known to be equal"),
    "GatherND": (gathered, "it copies sizes from memory"),
    "a broadcast product": (broadcast, "it broadcasts matrices"),
}


def drawn(seed: int) -> ModelProto:
    """A random graph of numbers, of comparisons, and of shapes that are computed with."""
    choose = random.Random(seed)
    draft = Draft()
    kind = choose.choice(list(PRECISIONS.values()))
    data = [draft.input(f"x{number}", kind, 2, 2) for number in range(2)]
    whole = [draft.input("ids", TensorProto.INT64, 2, 2)]
    flags = [draft.input("flags", TensorProto.BOOL, 2, 2)]
    dims = [draft.input("sizes", TensorProto.INT64, 2)]
    big = draft.weight("big", TensorProto.INT64, 101, 2, 2)
    two = draft.numbers("two", 2, 2)
    first = draft.numbers("first", 0)
    moves: dict[str, Callable[[], object]] = {
        "Add": lambda: data.append(draft.node("Add", [choose.choice(data), choose.choice(data)])),
        "Log": lambda: data.append(draft.node(choose.choice(["Log", "Tanh", "Abs"]), [choose.choice(data)])),
        "Where": lambda: data.append(draft.node("Where", [choose.choice(flags), *choose.choices(data, k=2)])),
        "Less": lambda: flags.append(draft.node("Less", choose.choices(data, k=2))),
        "Equal": lambda: flags.append(draft.node("Equal", choose.choices(whole, k=2))),
        "Sub": lambda: whole.append(draft.node("Sub", [choose.choice(whole), choose.choice([*whole, *dims])])),
        "Shape": lambda: dims.append(draft.node("Shape", [choose.choice([*data, *whole, *flags])])),
        "Mul": lambda: dims.append(draft.node("Mul", [choose.choice(dims), choose.choice([*dims, two])])),
        "Cast": lambda: data.append(draft.node("Cast", [choose.choice([*whole, *flags])], to=kind)),
        "Reshape": lambda: data.append(draft.node("Reshape", [choose.choice(data), choose.choice(dims)])),
        "Expand": lambda: whole.append(draft.node("Expand", [choose.choice(whole), choose.choice([*dims, two])])),
        "Gather": lambda: dims.append(draft.node("Concat", [pick(), pick()], axis=0)),
        "ReduceMax": lambda: draft.node("Add", [choose.choice(whole), big]),
        "ConstantOfShape": lambda: draft.node("ConstantOfShape", [choose.choice(dims)]),
    }

    def pick() -> str:
        return draft.node("Gather", [choose.choice(dims), first])

    weights = [3 if name in ("Shape", "Mul", "Gather") else 1 for name in moves]
    for move in choose.choices(list(moves.values()), weights, k=choose.randint(3, 14)):
        move()
    for node in draft.nodes:
        draft.outputs.append(helper.make_empty_tensor_value_info(node.output[0]))
    return onnx.shape_inference.infer_shapes(draft.model())


def save(model: ModelProto, path: Path) -> Path:
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path


def quantised(bits: int, block: int, rows: int, outputs: int, inputs: int) -> ModelProto:
    """One product with a weight in blocks."""
    draft = Draft()
    x = draft.input("x", TensorProto.FLOAT16, rows, inputs)
    weight = draft.weight("w", TensorProto.UINT8, outputs, inputs // block, block * bits // 8)
    scales = draft.weight("s", TensorProto.FLOAT16, outputs, inputs // block)
    sizes = {"K": inputs, "N": outputs, "bits": bits, "block_size": block}
    made = draft.node(f"{OURS}.MatMulNBits", [x, weight, scales], **sizes)
    draft.output(made, TensorProto.FLOAT16, rows, outputs)
    return draft.model()
