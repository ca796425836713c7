"""Seeded mutations: sound files with one thing changed that nobody thought of, each named by its kind and a number."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.hostile.case import (
    ABSENT,
    BAD,
    FAILED,
    GOOD,
    Case,
    Command,
    Place,
    command,
    fix_hashes,
    read_values,
    readers,
)
from tests.hostile.corpus import checkpoints, goldens, graphs, reports
from tests.hostile.corpus.values import WRONG, spell
from tests.hostile.sound import KINDS as BUNDLES
from txport.models.names import CONFIG, GOLDEN, MANIFEST, TOKENIZER, WEIGHTS

DEPTH = 20_000  # levels of a deep value: as deep as it must be, and quick to write
FILES = ("onnx/encoder_model.onnx", "golden.npz", "tokenizer.json", "samples.txt", "onnx/decoder_model_merged.onnx")
VERIFIED = (GOOD, FAILED, BAD)
Make = Callable[[Place, random.Random], list[Command]]


def names(count: int) -> list[str]:
    """So many mutations, of each kind as many as its share."""
    order = [kind for kind, (_, share) in MUTATIONS.items() for _ in range(share)]
    random.Random(0).shuffle(order)
    return [f"mutated {order[number % len(order)]}/{number}" for number in range(count)]


def mutation(name: str, seed: int) -> Case:
    """A mutation by its name: the same in every run of a seed."""
    kind, _, number = name.removeprefix("mutated ").partition("/")
    make, _ = MUTATIONS[kind]
    return Case(name, lambda place: make(place, random.Random(f"{seed} {kind} {number}")))


# Documents


def mutate_values(values: Any, rng: random.Random) -> Any:
    """A JSON document with a value replaced, removed, doubled, moved or put into another."""
    document = [json.loads(json.dumps(values))]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holder, key = _choose(document, rng)
        rng.choice(CHANGES)(holder, key, rng)
    return document[0] if document else None


def _choose(document: list[Any], rng: random.Random) -> tuple[Any, Any]:
    """A place in a document: each level is as likely to be the last as to be passed."""
    holder: Any = document
    key: Any = 0
    while isinstance(inner := holder[key], dict | list) and inner and rng.random() < 0.8:
        holder, key = inner, rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
    return holder, key


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = copy.deepcopy(rng.choice(WRONG))


def _nudge(holder: Any, key: Any, rng: random.Random) -> None:
    """Another value of the same kind."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = rng.choice((value + 1, value - 1, -value, value * 2, value * 10**6, 0, float(value), str(value)))
    elif isinstance(value, str):
        holder[key] = rng.choice((value + "x", value[:-1], value.upper(), value * 3, "../" + value, value[::-1]))
    else:
        _replace(holder, key, rng)


def _remove(holder: Any, key: Any, rng: random.Random) -> None:
    if len(holder) > 1:
        del holder[key]


def _double(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[f"{key}{rng.choice(('', ' ', '.', '_', '/..'))}2"] = copy.deepcopy(holder[key])


def _exchange(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _wrap(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, {key if isinstance(key, str) else "0": holder[key]}))


CHANGES = (_replace, _replace, _replace, _nudge, _nudge, _nudge, _remove, _double, _exchange, _wrap)


def _write(file: Path, values: Any) -> None:
    file.write_bytes(spell(json.dumps(values), DEPTH).encode("utf-8", "surrogatepass"))


# Bytes


def mutate_bytes(whole: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, removed, doubled, moved or added."""
    changed = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 5, 50))):
        if not changed:
            break
        at, size = rng.randrange(len(changed)), rng.choice((1, 1, 2, 4, 8, 100, 5_000))
        match rng.randrange(6):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case 2:
                changed[at : at + size] = rng.randbytes(len(changed[at : at + size]))
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = changed[at : at + size]
            case 5:
                changed[at:at] = rng.randbytes(size)
    return bytes(changed[: rng.randrange(len(changed))] if changed and rng.random() < 0.1 else changed)


# Each kind


def _manifest(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle(rng.choice(list(BUNDLES)))
    _write(bundle / MANIFEST, mutate_values(read_values(bundle / MANIFEST), rng))
    return _some(readers(bundle, place), rng)


def _manifest_bytes(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle(rng.choice(list(BUNDLES)))
    file = bundle / MANIFEST
    file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    return _some(readers(bundle, place), rng)


def _some(commands: list[Command], rng: random.Random) -> list[Command]:
    """One that shows, one that runs, one that proves."""
    chosen = [rng.choice([each for each in commands if each.name in names]) for names in TURNS]
    return list(dict.fromkeys(chosen))


TURNS = (("inspect",), ("run", "score"), ("verify",))


def _altered(place: Place, rng: random.Random) -> list[Command]:
    """A file that is not what its hash says."""
    bundle = place.bundle()
    file = bundle / rng.choice(FILES)
    before = file.read_bytes()
    file.write_bytes(mutate_bytes(before, rng))
    if file.read_bytes() == before:
        return []
    return _some(readers(bundle, place, inspect=[BAD], run=[BAD], verify=[FAILED]), rng)


def _graph_bytes(place: Place, rng: random.Random) -> list[Command]:
    kind = rng.choice(list(BUNDLES))
    bundle = place.bundle(kind)
    file = bundle / rng.choice((graphs.ENCODER, graphs.DECODER))[kind]
    file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    fix_hashes(bundle)
    return _some(readers(bundle, place), rng)


def _graph(place: Place, rng: random.Random) -> list[Command]:
    kind = rng.choice(list(BUNDLES))
    bundle = place.bundle(kind)
    file = bundle / rng.choice((graphs.ENCODER, graphs.DECODER))[kind]
    graphs.edit_model(file, lambda model: rng.choice(EDITS)(model, rng))
    fix_hashes(bundle)
    return _some(readers(bundle, place), rng)


def _golden_bytes(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle()
    (bundle / GOLDEN).write_bytes(mutate_bytes((bundle / GOLDEN).read_bytes(), rng))
    fix_hashes(bundle)
    return [command("verify", bundle, "--threads", 1, codes=VERIFIED)]


def _golden_member(place: Place, rng: random.Random) -> list[Command]:
    """Bytes of an array file in a zip that is sound."""
    bundle = place.bundle()
    members = goldens.read_members(bundle / GOLDEN)
    name = rng.choice(list(members))
    members[name] = mutate_bytes(members[name][: rng.choice((128, len(members[name])))], rng)
    goldens.write_members(bundle / GOLDEN, members)
    fix_hashes(bundle)
    return [command("verify", bundle, "--threads", 1, codes=VERIFIED)]


def _golden(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle(rng.choice(list(BUNDLES)))
    with np.load(bundle / GOLDEN) as file:
        arrays = dict(file)
    name = rng.choice(list(arrays))
    arrays[name] = rng.choice(ARRAYS)(arrays[name], rng)
    np.savez(bundle / GOLDEN, **arrays)
    fix_hashes(bundle)
    return [command("verify", bundle, "--threads", 1, codes=VERIFIED)]


def _place(array: np.ndarray[Any, Any], value: Any, rng: random.Random) -> np.ndarray[Any, Any]:
    changed = array.copy()
    with np.errstate(all="ignore"):
        changed.flat[rng.randrange(max(1, changed.size))] = value
    return changed


ARRAYS: tuple[Callable[[np.ndarray[Any, Any], random.Random], Any], ...] = (
    lambda array, rng: _place(array, rng.choice((-1, 0, 1, 10**6, -(2**31))), rng),
    lambda array, rng: _place(array.astype(float), rng.choice((np.nan, np.inf, -np.inf, 1e308, 0.5)), rng),
    lambda array, rng: array.astype(rng.choice(("i1", "u8", "f2", "f8", "c8", "bool", "U5", "S3"))),
    lambda array, rng: array.reshape(rng.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1)))),
    lambda array, rng: array.ravel()[: rng.randrange(array.size + 1)],
    lambda array, rng: np.concatenate([array.ravel()] * 2),
    lambda array, rng: np.zeros((0,) * rng.randrange(1, 4), array.dtype),
    lambda array, rng: array.ravel()[::-1].reshape(array.shape),
    lambda array, rng: array.ravel()[0] if array.size else array,
    lambda array, rng: array * rng.choice((-1, 2, 1_000)),
)


def _tokenizer(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle()
    file = bundle / TOKENIZER
    if rng.random() < 0.8:
        _write(file, mutate_values(read_values(file), rng))
    else:
        file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    fix_hashes(bundle)
    return _some(readers(bundle, place), rng)


def _config(place: Place, rng: random.Random) -> list[Command]:
    checkpoint = place.checkpoint()
    file = checkpoint / CONFIG
    if rng.random() < 0.8:
        _write(file, mutate_values(read_values(file), rng))
    else:
        file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    return [replace(each, codes=each.codes | {ABSENT}) for each in _loaded(checkpoint, place)]


def _loaded(checkpoint: Path, place: Place) -> list[Command]:
    """It is loaded, and then refused if nothing else is wrong: the bundle is of another checkpoint."""
    load = ("run", place.sound.bundle("portable"), "bad", "--runtime", "torch", "--threads", 1, "--checkpoint")
    return [command(*load, checkpoint, codes=(GOOD, BAD))]


def _weights(place: Place, rng: random.Random) -> list[Command]:
    checkpoint = place.checkpoint()
    file = checkpoint / WEIGHTS
    whole = file.read_bytes()
    header, data = checkpoints.split_weights(whole)
    if rng.random() < 0.7:
        text = spell(json.dumps(mutate_values(header, rng)), DEPTH)
        file.write_bytes(checkpoints.join_weights(text, data))
    else:
        size = rng.choice((8, 5_000, len(whole)))
        file.write_bytes(mutate_bytes(whole[:size], rng) + whole[size:])
    return _loaded(checkpoint, place)


def _report(kind: str) -> Make:
    def make(place: Place, rng: random.Random) -> list[Command]:
        values = reports.sound(place, kind)
        if kind == "parity":
            values["cases"] = values["cases"][: rng.choice((1, 2))]
        return [reports.against(place, kind, mutate_values(values, rng))]

    return make


def _text(place: Place, rng: random.Random) -> list[Command]:
    whole = mutate_bytes(b"bad\nchief\ndi'ed\na\n" * rng.choice((1, 20)), rng)
    how = [("--json",), ("--unknown", "skip"), ("--unknown", "skip", "--json", "--beams", 2), ("--stream",), ()]
    run = ("run", place.sound.bundle(rng.choice(list(BUNDLES))), "--threads", 1, "--max-new-tokens", 3)
    return [command(*run, *rng.choice(how), stdin=whole, codes=(GOOD, BAD))]


# Graphs, by their parts

GraphEdit = Callable[[onnx.ModelProto, random.Random], object]


def _weight(model: onnx.ModelProto, rng: random.Random) -> onnx.TensorProto:
    weight: onnx.TensorProto = rng.choice(model.graph.initializer)
    return weight


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    node: onnx.NodeProto = rng.choice(model.graph.node)
    return node


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attributes = [each for node in model.graph.node for each in node.attribute]
    if not attributes:
        return
    chosen = rng.choice(attributes)
    if chosen.type == onnx.AttributeProto.INT:
        chosen.i = rng.choice((-1, 0, 2, 17, 2**31, -(2**63)))
    elif chosen.type == onnx.AttributeProto.FLOAT:
        chosen.f = rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    elif chosen.ints:
        chosen.ints[0] = rng.choice((-1, 5, 2**40))
    else:
        chosen.type = rng.randrange(12)


def _dims(model: onnx.ModelProto, rng: random.Random) -> None:
    weight = _weight(model, rng)
    if weight.dims:
        weight.dims[rng.randrange(len(weight.dims))] = rng.choice((-1, 0, 1, 3, 17, 2**20, 2**40, 2**62))
    else:
        weight.dims.append(rng.choice((0, 2, 2**40)))


def _type(model: onnx.ModelProto, rng: random.Random) -> None:
    _weight(model, rng).data_type = rng.randrange(30)


def _raw(model: onnx.ModelProto, rng: random.Random) -> None:
    weight = _weight(model, rng)
    weight.raw_data = mutate_bytes(weight.raw_data, rng) if rng.random() < 0.5 else rng.randbytes(len(weight.raw_data))


def _numbers(model: onnx.ModelProto, rng: random.Random) -> None:
    """Whole numbers, which are shapes, axes and places."""
    whole = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.INT64 and each.raw_data]
    if not whole:
        return
    weight = rng.choice(whole)
    values = np.frombuffer(weight.raw_data, np.int64).copy()
    values[rng.randrange(len(values))] = rng.choice((-1, 0, 1, 5, 1_000, -(2**62), 2**62))
    weight.raw_data = values.tobytes()


def _rewire(model: onnx.ModelProto, rng: random.Random) -> None:
    node, other = _node(model, rng), _node(model, rng)
    if node.input:
        there = [*other.output, *other.input, _weight(model, rng).name, "", "nowhere"]
        node.input[rng.randrange(len(node.input))] = rng.choice(there)


def _operator(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).op_type = rng.choice(("Add", "MatMul", "Gather", "Reshape", "Loop", "If", "Identity", "Pow", ""))


def _port(model: onnx.ModelProto, rng: random.Random) -> None:
    port = rng.choice([*model.graph.input, *model.graph.output])
    match rng.randrange(4):
        case 0:
            port.name += "2"
        case 1:
            port.type.tensor_type.elem_type = rng.randrange(20)
        case 2:
            port.type.tensor_type.shape.dim.add().dim_value = rng.choice((1, 2**40, -5))
        case 3:
            port.ClearField("type")


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice((0, 1, 7, 13, 25, 30, 2**40))


EDITS: tuple[GraphEdit, ...] = (
    _attribute,
    _attribute,
    _dims,
    _type,
    _raw,
    _numbers,
    _numbers,
    _rewire,
    _rewire,
    _operator,
    _port,
    _opset,
    lambda model, rng: model.graph.node.remove(_node(model, rng)),
    lambda model, rng: model.graph.node.append(_node(model, rng)),
    lambda model, rng: model.graph.initializer.remove(_weight(model, rng)),
    lambda model, rng: model.graph.initializer.append(_weight(model, rng)),
    lambda model, rng: setattr(_weight(model, rng), "name", _weight(model, rng).name),
)


# How it is made, and its share of a hundred
MUTATIONS: dict[str, tuple[Make, int]] = {
    "manifest": (_manifest, 25),
    "manifest bytes": (_manifest_bytes, 5),
    "altered file": (_altered, 5),
    "graph bytes": (_graph_bytes, 6),
    "graph": (_graph, 10),
    "golden bytes": (_golden_bytes, 3),
    "golden member": (_golden_member, 4),
    "golden": (_golden, 6),
    "tokenizer": (_tokenizer, 8),
    "config": (_config, 7),
    "weights": (_weights, 6),
    "parity report": (_report("parity"), 6),
    "bench report": (_report("bench"), 6),
    "text": (_text, 3),
}
assert sum(share for _, share in MUTATIONS.values()) == 100
