"""Graphs that are garbled, exchanged, false or greedy, under hashes that are right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.hostile.case import (
    ABSENT,
    BAD,
    FAILED,
    GOOD,
    Case,
    Command,
    Place,
    command,
    edit_values,
    fix_hashes,
    provers,
    readers,
)
from tests.hostile.corpus.values import NAME
from txport.models.names import MANIFEST

ENCODER = {"portable": "onnx/encoder_model.onnx", "cpu": "onnx/encoder.onnx", "int8": "onnx/encoder.onnx"}
DECODER = {"portable": "onnx/decoder_model_merged.onnx", "cpu": "onnx/step.onnx", "int8": "onnx/step.onnx"}
REFUSED = (BAD, ABSENT)

Bytes = Callable[[bytes], bytes]
Edit = Callable[[onnx.ModelProto], None]


def noise(whole: bytes) -> bytes:
    """As many bytes that mean nothing."""
    return random.Random(0).randbytes(len(whole))


GARBLED: dict[str, Bytes] = {
    "noise": noise,
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "a field of 2 GB": lambda whole: b"\x3a\xff\xff\xff\xff\x07" + whole,
    "10,000 levels": lambda whole: _nested(10_000),
}


def cases() -> Iterator[Case]:
    """Every graph."""
    for kind in ENCODER:
        yield from (Case(f"graphs/{kind} {name}", _garbled(kind, change)) for name, change in GARBLED.items())
        yield Case(f"graphs/{kind} exchanged", _exchanged(kind))
        yield from (
            Case(f"graphs/{kind} {name}", _edited(kind, edit, *([FAILED] if edit is _greedy else [])))  # no memory
            for name, edit in FALSE.items()
        )
    yield from (Case(f"graphs/strange {name}", _edited("portable", edit, any_=True)) for name, edit in STRANGE.items())
    yield from (Case(f"graphs/external {name}", _external(*what)) for name, what in EXTERNAL.items())
    yield from (Case(f"graphs/shared {name}", _shared(change)) for name, change in SHARED.items())


def _nested(levels: int) -> bytes:
    """Messages in one another: the graph of a model, its node, its attribute, the graph of that, and so on."""
    inner = b""
    for level in range(levels):
        inner = bytes([(0x0A, 0x2A, 0x32)[level % 3]]) + _length(len(inner)) + inner
    return b"\x3a" + _length(len(inner)) + inner


def _length(number: int) -> bytes:
    parts = b""
    while number > 127:
        parts = parts + bytes([number & 127 | 128])
        number = number >> 7
    return parts + bytes([number])


def _garbled(kind: str, change: Bytes) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        commands = []
        for number, path in enumerate((ENCODER[kind], DECODER[kind])):
            bundle = place.bundle(kind, f"bundle {number}")
            (bundle / path).write_bytes(change((bundle / path).read_bytes()))
            fix_hashes(bundle)
            commands += _wrong(bundle, place)
        return commands

    return make


def _wrong(bundle: Path, place: Place, *also: int) -> list[Command]:
    """It is a bundle, so `inspect` may show it; but it does not run, so nothing that runs it ends well."""
    cheap = readers(bundle, place, inspect=(GOOD, *REFUSED), run=REFUSED, verify=(FAILED, *also))
    benchmark = command("bench", bundle, "--runtime", "ort", "--rounds", 3, codes=REFUSED)
    return [*cheap, *provers(bundle, place, (FAILED, *REFUSED)), benchmark]


def _exchanged(kind: str) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle(kind)
        one = bundle / ENCODER[kind]
        two = bundle / DECODER[kind]
        first = one.read_bytes()
        second = two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
        fix_hashes(bundle)
        return _wrong(bundle, place)

    return make


def edit_model(file: Path, edit: Edit) -> None:
    """Change a graph, whatever comes of it."""
    model = onnx.load(str(file), load_external_data=False)
    edit(model)
    file.write_bytes(model.SerializeToString())


def _edited(kind: str, edit: Edit, *also: int, any_: bool = False) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle(kind)
        edit_model(bundle / ENCODER[kind], edit)
        fix_hashes(bundle)
        return readers(bundle, place) if any_ else _wrong(bundle, place, *also)

    return make


def _rename_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = NAME


def _drop_output(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def _unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = NAME


def _next_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 9_999


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = model.graph.node[-1].output[0]


def _misshapen(model: onnx.ModelProto) -> None:
    weight = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    weight.dims[0] += 1


def _vast(model: onnx.ModelProto) -> None:
    """A weight of 4 TiB, of which nothing is there."""
    weight = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    weight.dims[0] = 2**40


def _rename_made(model: onnx.ModelProto) -> str:
    """Call what makes the first output `small`; -> the name of that output, which is free now."""
    name: str = model.graph.output[0].name
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["small" if each == name else each for each in names]
    return name


def _greedy(model: onnx.ModelProto) -> None:
    """A value of 2**42 numbers on the way to the output."""
    shape = helper.make_tensor("vast_shape", TensorProto.INT64, [1], [2**42])
    model.graph.initializer.append(shape)
    first = _rename_made(model)
    model.graph.node.append(helper.make_node("ConstantOfShape", ["vast_shape"], ["vast"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["vast"], ["sum"]))
    model.graph.node.append(helper.make_node("Add", ["small", "sum"], [first]))


def _recursive(model: onnx.ModelProto) -> None:
    """A function that calls itself."""
    opset = [helper.make_opsetid("", 18), helper.make_opsetid("here", 1)]
    call = helper.make_node("Again", ["x"], ["y"], domain="here")
    model.functions.append(helper.make_function("here", "Again", ["x"], ["y"], [call], opset))
    model.opset_import.append(helper.make_opsetid("here", 1))
    name = _rename_made(model)
    model.graph.node.append(helper.make_node("Again", ["small"], [name], domain="here"))


def _not_a_number(model: onnx.ModelProto) -> None:
    for weight in model.graph.initializer:
        if weight.data_type == TensorProto.FLOAT and weight.raw_data:
            weight.raw_data = b"\x00\x00\xc0\x7f" * (len(weight.raw_data) // 4)


def _doc(model: onnx.ModelProto) -> None:
    model.doc_string = model.producer_name = NAME


def _double_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = NAME


FALSE: dict[str, Edit] = {
    "with another input": _rename_input,
    "without outputs": _drop_output,
    "of an unknown operator": _unknown_operator,
    "of a future opset": _next_opset,
    "in a circle": _cycle,
    "with a misshapen weight": _misshapen,
    "with a weight of 4 TiB": _vast,
    "with a value of 16 TiB": _greedy,
    "with a function that calls itself": _recursive,
}
STRANGE: dict[str, Edit] = {
    "of NaN": _not_a_number,
    "with documents of escapes": _doc,
    "with one name for all nodes": _double_names,
}


# A weight that lies in a file: its location, offset and length
EXTERNAL: dict[str, tuple[str, int, int | None]] = {
    "that leaves the bundle": ("../../../outside/precious.bin", 0, None),
    "that is absolute": ("/etc/passwd", 0, None),
    "that is a device": ("/dev/zero", 0, None),
    "that is not listed": ("unlisted.bin", 0, None),
    "that is missing": ("nowhere.bin", 0, None),
    "that is the graph": ("encoder_model.onnx", 0, None),
    "with a negative offset": ("unlisted.bin", -8, None),
    "with an offset beyond its end": ("unlisted.bin", 2**40, None),
    "with an offset beyond all": ("unlisted.bin", 2**63 - 1, 2**63 - 1),
    "by a link that leaves the bundle": ("link.bin", 0, None),
}


def _external(location: str, offset: int, length: int | None) -> Callable[[Place], list[Command]]:
    def edit(model: onnx.ModelProto) -> None:
        weight = max(model.graph.initializer, key=lambda each: len(each.raw_data))
        size = len(weight.raw_data) if length is None else length
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, "offset": offset, "length": size}.items():
            weight.external_data.add(key=key, value=str(value))

    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        (bundle / "onnx" / "unlisted.bin").write_bytes(bytes(1_000_000))
        (bundle / "onnx" / "link.bin").symlink_to(place.outside / "precious.bin")
        edit_model(bundle / ENCODER["portable"], edit)
        fix_hashes(bundle)
        return _wrong(bundle, place)

    return make


SHARED: dict[str, dict[str, object]] = {  # what is changed in the entry of a weight that several graphs share
    "with a negative offset": {"offset": -4},
    "with an offset beyond the end": {"offset": 10**9},
    "with an offset of 5,000 digits": {"offset": 10**4_000},
    "of objects": {"dtype": "O"},
    "of a structure": {"dtype": "i4,(1000000,1000000)f8"},
    "of texts": {"dtype": "U1000000"},
    "of negative dims": {"dims": [-1, 16]},
    "of vast dims": {"dims": [2**40, 2**40]},
    "of dims whose product overflows": {"dims": [2**32, 2**32, 0]},
    "of 1,000 dims": {"dims": [1] * 1_000},
}


def _shared(changes: dict[str, object]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle("cpu")
        edit_values(bundle / MANIFEST, lambda values: next(iter(values["shared"].values())).update(changes))
        cheap = readers(bundle, place, inspect=(GOOD, BAD), run=REFUSED, verify=(FAILED, BAD))
        return [*cheap, *provers(bundle, place, (FAILED, *REFUSED))]

    return make
