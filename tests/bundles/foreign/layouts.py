"""Folders as others export them, made of our portable bundles: the same numbers behind other files and ports.

`exported.py` makes the same layouts with Optimum, where that is installed.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from txport.bundles.bundle import Bundle
from txport.targets.ports import DECODER, ENCODER, MODEL

JSON = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
BRANCH = "use_cache_branch"
PAST, PRESENT, CROSS = "past_key_values", "present", ".encoder."


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def computed(model: onnx.ModelProto, names: Iterable[str], nodes: Sequence[onnx.NodeProto], *tensors: Any) -> None:
    """Let nodes compute what were inputs of these names."""
    held = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(held)
    model.graph.initializer.extend(tensors)
    keep(model.graph.input, lambda name: name not in set(names))


def filled(shape: str, name: str, dtype: int, value: int) -> onnx.NodeProto:
    return helper.make_node("ConstantOfShape", [shape], [name], value=helper.make_tensor("value", dtype, [1], [value]))


def dims_of(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def without(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The same graph that reads zeros of no length in the place of these inputs."""
    found = copy.deepcopy(model)
    names = set(names)
    nodes, tensors = [helper.make_node("Shape", ["input_ids"], ["rows"], start=0, end=1)], []
    for value in (value for value in model.graph.input if value.name in names):
        rest = ints(f"{value.name}.rest", *(each if isinstance(each, int) else 0 for each in dims_of(value)[1:]))
        nodes.append(helper.make_node("Concat", ["rows", rest.name], [f"{value.name}.dims"], axis=0))
        nodes.append(filled(f"{value.name}.dims", value.name, value.type.tensor_type.elem_type, 0))
        tensors.append(rest)
    computed(found, names, nodes, *tensors)
    return found


def keep(values: onnx.ValueInfoProto, is_kept: Callable[[str], bool]) -> None:  # type: ignore[valid-type]
    kept = [value for value in values if is_kept(value.name)]  # type: ignore[attr-defined]
    del values[:]  # type: ignore[attr-defined]
    values.extend(kept)  # type: ignore[attr-defined]


def is_past(name: str) -> bool:
    return name.startswith(PAST)


def caches(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.input if is_past(value.name)]


def whole(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """A decoder without caches, which gives logits alone."""
    found = without(decoder, caches(decoder))
    keep(found.graph.output, lambda name: name == "logits")
    return found


def first(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """A decoder for the first step, which gives caches."""
    return without(decoder, caches(decoder))


def later(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """A decoder for the steps after it: of the source it reads the caches, which it does not give again."""
    found = without(decoder, ["encoder_hidden_states"])
    keep(found.graph.output, lambda name: CROSS not in name)
    return found


def merged(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """Both in one `If`; as Optimum's, a later step gives empty caches of the source, and a first one reads none."""
    names = [value.name for value in decoder.graph.output]
    pasts = caches(decoder)
    branches = {"then_branch": branch(decoder, "later", {}, names), "else_branch": None}
    branches["else_branch"] = branch(decoder, "first", dict.fromkeys(pasts), names)
    found = copy.deepcopy(decoder)
    del found.graph.node[:], found.graph.initializer[:]
    found.graph.initializer.extend(decoder.graph.initializer)  # both branches read them from outside
    found.graph.input.append(helper.make_tensor_value_info(BRANCH, TensorProto.BOOL, [1]))
    choose = helper.make_node("If", ["chosen"], names, **branches)
    squeeze = helper.make_node("Squeeze", [BRANCH], ["chosen"])
    found.graph.node.extend([squeeze, choose])
    return found


def branch(model: onnx.ModelProto, prefix: str, emptied: Mapping[str, None], outputs: Sequence[str]) -> onnx.GraphProto:
    """The nodes of a graph under names of their own; what is emptied reads nothing of that input."""
    zero = ints(f"{prefix}.zero", 0)
    two = ints(f"{prefix}.two", 2)
    nodes: list[onnx.NodeProto] = []
    renamed = {name: f"{prefix}/{name}" for node in model.graph.node for name in node.output if name}
    for name in emptied:
        renamed[name] = f"{prefix}/{name}"
        nodes.append(helper.make_node("Slice", [name, zero.name, zero.name, two.name], [renamed[name]]))
    for node in model.graph.node:
        each = copy.deepcopy(node)
        each.name = f"{prefix}/{node.name}"
        each.input[:] = [renamed.get(name, name) for name in node.input]
        each.output[:] = [renamed.get(name, name) for name in node.output]
        nodes.append(each)
    values = []
    for value in (value for value in model.graph.output if value.name in outputs):
        name = renamed.get(value.name, value.name)
        if prefix == "later" and CROSS in value.name:
            nodes.append(helper.make_node("Slice", [name, zero.name, zero.name, two.name], [f"{name}/none"]))
            name = f"{name}/none"
        values.append(helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None))
    return helper.make_graph(nodes, prefix, [], values, [zero, two])


def unplaced(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """A causal graph without `position_ids`: as old exports, it counts from the length of the caches on."""
    found = copy.deepcopy(decoder)
    key = next(value.name for value in decoder.graph.input if is_past(value.name))
    zero = ints("place.zero", 0)
    one = numpy_helper.from_array(np.array(1), "place.one")
    nodes = [
        helper.make_node("Shape", [key], ["place.past"], start=2, end=3),
        helper.make_node("Shape", ["input_ids"], ["place.new"], start=1, end=2),
        helper.make_node("Add", ["place.past", "place.new"], ["place.all"]),
        helper.make_node("Squeeze", ["place.past"], ["place.from"]),
        helper.make_node("Squeeze", ["place.all"], ["place.to"]),
        helper.make_node("Range", ["place.from", "place.to", one.name], ["place.row"]),
        helper.make_node("Unsqueeze", ["place.row", zero.name], ["place.rows"]),
        helper.make_node("Shape", ["input_ids"], ["place.dims"]),
        helper.make_node("Expand", ["place.rows", "place.dims"], ["position_ids"]),
    ]
    computed(found, ["position_ids"], nodes, zero, one)
    return found


def unmasked(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph without `attention_mask`, which takes every token for a real one."""
    found = copy.deepcopy(model)
    shape = helper.make_node("Shape", ["input_ids"], ["mask.dims"])
    computed(found, ["attention_mask"], [shape, filled("mask.dims", "attention_mask", TensorProto.INT64, 1)])
    return found


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph that asks for `token_type_ids` too."""
    found = copy.deepcopy(model)
    if any(each.name == "token_type_ids" for each in found.graph.input):
        return found
    found.graph.input.append(
        helper.make_tensor_value_info("token_type_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    )
    return found


def asking(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """A causal graph that asks how many logits are wanted, and where the tokens of a step stand."""
    found = copy.deepcopy(decoder)
    rank = ints("keep.rank", 0)
    end = ints("keep.end", 1 << 40)
    axis = ints("keep.axis", 1)
    (node,) = (node for node in found.graph.node if "logits" in node.output)
    node.output[list(node.output).index("logits")] = "keep.all"
    found.graph.node.extend(
        [
            helper.make_node("Neg", ["num_logits_to_keep"], ["keep.back"]),
            helper.make_node("Unsqueeze", ["keep.back", rank.name], ["keep.from"]),
            helper.make_node("Slice", ["keep.all", "keep.from", end.name, axis.name], ["logits"]),
        ]
    )
    found.graph.initializer.extend([rank, end, axis])
    for name, dims in {"num_logits_to_keep": [], "cache_position": ["sequence_length"]}.items():
        found.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, dims))
    return found


def of_sentences(model: onnx.ModelProto) -> onnx.ModelProto:
    """An encoder as Optimum exports one of sentence-transformers."""
    found = copy.deepcopy(model)
    (value,) = (value for value in found.graph.output if value.name == "last_hidden_state")
    value.name = "token_embeddings"
    found.graph.node.append(helper.make_node("Identity", ["last_hidden_state"], ["token_embeddings"]))
    return found


Made = dict[str, onnx.ModelProto]
Make = Callable[[Mapping[str, onnx.ModelProto]], Made]
SEQ2SEQ: dict[str, Make] = {
    "merged": lambda of: {"encoder_model": of[ENCODER], "decoder_model_merged": merged(of[DECODER])},
    "merged-beside-parts": lambda of: SEQ2SEQ["merged"](of) | SEQ2SEQ["apart"](of),
    "merged-without-if": lambda of: {"encoder_model": of[ENCODER], "decoder_model_merged": of[DECODER]},
    "apart": lambda of: {
        "encoder_model": of[ENCODER],
        "decoder_model": first(of[DECODER]),
        "decoder_with_past_model": later(of[DECODER]),
    },
    "whole": lambda of: {"encoder_model": of[ENCODER], "decoder_model": whole(of[DECODER])},
}
CAUSAL: dict[str, Make] = {
    "one": lambda of: {"model": of[DECODER]},
    "merged": lambda of: {"decoder_model_merged": merged(of[DECODER])},
    "apart": lambda of: {"decoder_model": first(of[DECODER]), "decoder_with_past_model": of[DECODER]},
    "whole": lambda of: {"model": whole(of[DECODER])},
    "asking": lambda of: {"decoder_model": asking(of[DECODER])},
    "unplaced": lambda of: {"model": unplaced(of[DECODER])},
}
ENCODE: dict[str, Make] = {
    "plain": lambda of: {"model": of[MODEL]},
    "typed": lambda of: {"model": typed(of[MODEL])},
    "unmasked": lambda of: {"model": unmasked(of[MODEL])},
}
SENTENCES: dict[str, Make] = {"sentences": lambda of: {"model": of_sentences(of[MODEL])}}
LAYOUTS: dict[str, dict[str, Make]] = {"seq2seq": SEQ2SEQ, "causal": CAUSAL, "encode": ENCODE | SENTENCES}


def lay_out(bundle: Bundle, layout: str, folder: Path, *, place: str = "", variant: str = "") -> Path:
    """A bundle's model in a layout of others, without anything of ours."""
    roles = [role for role in bundle.manifest.graphs if role != "select"]
    graphs = {role: onnx.load(str(bundle.file(role))) for role in roles}
    (folder / place).mkdir(parents=True, exist_ok=True)
    for name in JSON:
        if (bundle.path / name).is_file():
            shutil.copyfile(bundle.path / name, folder / name)
    for stem, model in LAYOUTS[bundle.manifest.facts.task][layout](graphs).items():
        onnx.save(model, str(folder / place / f"{stem}{variant and '_'}{variant}.onnx"))
    return folder
