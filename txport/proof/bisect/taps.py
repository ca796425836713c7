"""Taps: values that exist both in PyTorch and in a graph.

A tap is the input or the output of a linear layer, a convolution, a norm or an embedding, or an output of the graph. It
is found in PyTorch by the module's name, and in the graph by the weight that a node reads. An isolated graph reads
PyTorch's values at every tap. Each value is therefore computed from right values, and an error stays where it arises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from torch import nn

from txport.bundles.forms import Form, Stored
from txport.errors import ParityError
from txport.models.facts import StateTensor
from txport.models.parts import NORM_TYPES
from txport.proof.faults.calls import Record, calls_of
from txport.system.arrays import Array
from txport.targets.ports import IDS, NEXT_IDS, PRESENT_LENGTHS, Graph

IN, OUT, PORT = "in", "out", "port"
# Operators that multiply with a weight, and the index of the input that is the weight.
LINEAR = {"Gemm": 1, "MatMul": 1, "FusedMatMul": 1, "DynamicQuantizeMatMul": 1, "MatMulNBits": 1, "QGemm": 3}
NO_PARTS = (IDS, NEXT_IDS, PRESENT_LENGTHS)  # outputs without tap: tokens may be near-ties; lengths are counters
LOOKUPS = ("Gather", "GatherBlockQuantized")
TO_ROWS = 4  # nodes between the Gather of 8-bit blocks and the rows of a table: Cast, Reshape, Mul, Reshape
CONVOLUTION = "Conv"
NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


@dataclass(frozen=True)
class Holder:
    """A part that directly contains a weight or a table, and the name of that attribute."""

    name: str
    part: nn.Module
    attribute: str

    @property
    def tensor(self) -> str:
        """The model's name of the weight or table."""
        return f"{self.name}.{self.attribute}".removeprefix(".")

    @property
    def is_main(self) -> bool:
        """True if the input and output of the part are found at the nodes that read this weight."""
        return self.attribute == "weight" and isinstance(self.part, (nn.Linear, nn.Conv1d, nn.Embedding, *NORM_TYPES))


@dataclass(frozen=True)
class Tap:
    """One tap: the names of the modules (several if one node computes them all), the side, and the graph's value."""

    modules: tuple[str, ...]
    side: str
    value: str
    readers: tuple[tuple[str, int], ...] = ()  # nodes that read an input: their first output, index of the input
    form: Form | None = None  # of the weight, if this is a product with a quantised one
    nth: int = 0  # index among the module's calls in one run
    state: StateTensor | None = None  # of a port that is a cache

    @property
    def name(self) -> str:
        """The name, such as `decoder.0.attention.query in`; for a port, the name of the port."""
        again = f" (call {self.nth + 1})" if self.nth else ""
        return self.modules[0] if self.side == PORT else f"{'+'.join(self.modules)} {self.side}{again}"

    @property
    def given(self) -> str:
        """The name of the input of an isolated graph that receives PyTorch's value for this tap."""
        return f"given {self.name}"


def truth(tap: Tap, record: Record, expected: Mapping[str, Array]) -> Array | None:
    """Return PyTorch's value at a tap; None for an output that is not in `expected`, and for what is not kept.

    Raises `ParityError` if PyTorch did not run the modules of the tap.
    """
    if tap.side == PORT:
        return expected.get(tap.modules[0])
    calls = [record.get(name, [])[tap.nth : tap.nth + 1] for name in tap.modules]
    if not all(calls):
        raise ParityError(f"no part covers {tap.name}: PyTorch does not compute it in this run")
    if not all(call.kept for (call,) in calls):
        return None
    parts = [call.gave if tap.side == OUT else call.tensor.numpy() for (call,) in calls]
    return parts[0] if tap.side == IN or len(parts) == 1 else np.concatenate(parts, axis=-1)


def find_taps(
    graph: ir.Model, table: Mapping[str, Stored], ports: Graph, model: nn.Module, record: Record
) -> list[Tap]:
    """Return every tap of a graph, in the order of computation.

    `table` states how its initializers are stored; `record` has the calls of the model's parts in the same run. Raises
    `ParityError` for a weight that is packed with others of unknown parts.
    """
    order = _order_of(graph)
    holders = holders_of(model)
    found: list[Tap] = []
    for value in graph.graph.initializers.values():
        stored = table.get(str(value.name), Stored((str(value.name),)))
        held = [holders[name] for name in stored.weights if name in holders]
        if held and len(held) < len(stored.weights):
            unknown = next(name for name in stored.weights if name not in holders)
            raise ParityError(f"no part covers {unknown}, which {value.name} packs with weights of the model")
        if held:
            found.extend(_taps_of_weight(value, stored, held, order, record))
    known = {tap.value for tap in found if tap.side == OUT}
    # attention weights that the graph itself reads are not the output of a part; other taps show what depends on them
    ends = (each for each in graph.graph.outputs if not (each.name == ports.attention and list(each.uses())))
    names = (str(each.name) for each in ends)
    states = {name: each for each, name in ports.present().items()}
    found += [
        Tap((name,), PORT, name, state=states.get(name)) for name in names if name not in known and name not in NO_PARTS
    ]  # tokens may be near-ties
    return sorted(found, key=lambda tap: (order.get(tap.value, -1), (OUT, PORT, IN).index(tap.side), tap.modules))


def find_products(
    graph: ir.Model, table: Mapping[str, Stored], model: nn.Module, record: Record
) -> list[tuple[Tap, Tap]]:
    """Return the taps of the input and of the result of each product with a quantised weight; see `find_taps`."""
    order = _order_of(graph)
    holders = holders_of(model)
    found: list[Tap] = []
    for value in graph.graph.initializers.values():
        stored = table.get(str(value.name))
        if stored is not None and stored.is_quantised:
            held = [holders.get(name, []) for name in stored.weights]
            taps = _taps_of_weight(value, stored, held, order, record)
            found.extend(tap for tap in taps if tap.form is not None)
    return list(zip(found[::2], found[1::2], strict=True))


def _order_of(graph: ir.Model) -> dict[str, int]:
    """Return the index of the node that computes each value."""
    return {str(value.name): at for at, node in enumerate(graph.graph) for value in node.outputs}


def holders_of(model: nn.Module) -> dict[str, list[Holder]]:
    """Return the parts that directly contain each weight and table, by each of its names; tied weights have several."""
    found: dict[int, list[Holder]] = {}
    names: dict[str, int] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        for own, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                names[f"{name}.{own}".removeprefix(".")] = id(tensor)
                found.setdefault(id(tensor), []).append(Holder(name, part, own))
    return {name: found[key] for name, key in names.items()}


def _taps_of_weight(
    value: ir.Value, stored: Stored, held: Sequence[Sequence[Holder]], order: Mapping[str, int], record: Record
) -> Iterator[Tap]:
    """Yield the taps of each node that computes with a weight; the nth node corresponds to the nth call."""
    readers = sorted(readers_of(value), key=lambda each: order.get(str(each[0].outputs[0].name), -1))
    top = [(node, place) for node, place in readers if str(node.outputs[0].name) in order]
    main = next((each for some in held for each in some if each.is_main), None)
    counts: dict[tuple[type[nn.Module], ...], int] = {}
    for node, place in top:
        kinds = _kinds_at(node, place)
        names = [[each.name for each in some if each.is_main and isinstance(each.part, kinds)] for some in held]
        if not kinds or not all(names):
            if main is not None:
                raise ParityError(f"no part covers {main.name}: {node.op_type} {node.name!r} is none of its operators")
            continue  # a table within a part; the tap of that part covers it
        number = counts[kinds] = counts.get(kinds, -1) + 1
        calls = [calls_of(record, some) for some in names]
        if not all(calls) and kinds == (nn.Embedding,):
            continue  # the model adds rows of the table without a call; the next tap covers the sum
        if not all(calls):
            raise ParityError(f"no part covers {node.op_type} {node.name!r}: PyTorch runs no {names[0][0]} here")
        picked = [some[min(number, len(some) - 1)] for some in calls]
        nth = record[picked[0].name].index(picked[0])
        form = stored.form if stored.is_quantised else None
        yield from _taps_of(node, picked[0].part, tuple(call.name for call in picked), nth, form)


def _kinds_at(node: ir.Node, place: int) -> tuple[type[nn.Module], ...]:
    """Return the types of parts that use their weight as the input `place` of a node; empty if there are none."""
    if node.op_type in LOOKUPS and place == 0:
        return (nn.Embedding,)
    if LINEAR.get(node.op_type) == place:
        return (nn.Linear,)
    if node.op_type == CONVOLUTION and place == 1:
        return (nn.Conv1d,)
    if node.op_type in NORMS and place == 1:
        return NORM_TYPES
    return NORM_TYPES if node.op_type == "Mul" else ()


def readers_of(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield (node, input index) for the nodes that read a weight, directly, transposed or dequantised."""
    for node, place in value.uses():
        if node.op_type in ("Transpose", "DequantizeLinear"):
            yield from readers_of(node.outputs[0])
        else:
            yield node, place


def _taps_of(node: ir.Node, part: nn.Module, modules: tuple[str, ...], nth: int, form: Form | None) -> Iterator[Tap]:
    if isinstance(part, nn.Embedding):
        yield Tap(modules, OUT, str(_end_of_lookup(node).name), nth=nth)
        return
    read: ir.Value | None
    if node.op_type == "Mul":
        read = _start_of_norm(node)
        end = _with_bias(node)
        readers = _readers_within(read, end)
    else:
        sources = [node] if node.op_type in NORMS else _quantizers(node)
        end = node.outputs[0] if node.op_type in NORMS else _with_bias(node)
        read = sources[0].inputs[0]
        readers = tuple((str(each.outputs[0].name), 0) for each in sources)
    assert read is not None
    yield Tap(modules, IN, str(read.name), readers, form, nth)
    yield Tap(modules, OUT, str(end.name), form=form, nth=nth)


def ends_of_linear(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return the values that a product with a weight reads and computes: before its quantisation, after its bias."""
    read = _quantizers(node)[0].inputs[0]
    assert read is not None
    return read, _with_bias(node)


def _start_of_norm(node: ir.Node) -> ir.Value:
    """Return the input of a norm made of plain nodes, which ends with the product `node` (Sub, Div, Mul)."""
    value = node.inputs[0]
    divided = _before(value, "Div")
    if divided is not None:
        centred = _before(value := divided.inputs[0], "Sub")
        if centred is not None and _before(centred.inputs[1], "ReduceMean") is not None:
            value = centred.inputs[0]
        before = None if value is None else value.producer()
        value = before.inputs[0] if before is not None and before.op_type == "Cast" else value
    assert value is not None
    return value


def _before(value: ir.Value | None, operator: str) -> ir.Node | None:
    """Return the node that outputs a value if it is this operator, else None; a Cast in between is skipped."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type == "Cast" and operator != "Cast":
        return _before(node.inputs[0], operator)
    return node if node is not None and node.op_type == operator else None


def _readers_within(start: ir.Value, end: ir.Value) -> tuple[tuple[str, int], ...]:
    """Return (first output, input index) of the nodes between `start` and `end` that read `start`."""
    between: set[ir.Node] = set()
    waiting = [end]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value is not start and node is not None and node not in between:
            between.add(node)
            waiting.extend(each for each in node.inputs if each is not None)
    return tuple((str(node.outputs[0].name), place) for node, place in start.uses() if node in between)


def _quantizers(node: ir.Node) -> list[ir.Node]:
    """Return the nodes that read the input of a product before its quantisation to 8 bits, or the product itself."""
    before = _producer(node) if node.op_type == "QGemm" else None
    if before is None or before.op_type != "QuantizeLinear":
        return [before or node]
    if (beside := _beside(node)) is not None:
        read = (_producer(before), _producer(_producer(beside)))  # a product with a mask, and some columns
        return [each for each in read if each is not None]
    divided = _producer(before)  # each row divided by its largest value, which is computed from the same input
    largest = divided and _producer(divided, 1)
    top = largest and _producer(largest)
    size = top and _producer(top)
    return [each for each in (divided, size) if each is not None]


def _beside(node: ir.Node) -> ir.Node | None:
    """Return the product in fp32 of some columns to which a scaled product of integers is added, if there is one."""
    scaled = [user for user, _ in node.outputs[0].uses()]
    added = [user for user, place in scaled[0].outputs[0].uses() if place == 2] if len(scaled) == 1 else []
    return added[0] if added and added[0].op_type == "Gemm" else None


def _producer(node: ir.Node | None, place: int = 0) -> ir.Node | None:
    value = None if node is None else node.inputs[place]
    return None if value is None else value.producer()


def _with_bias(node: ir.Node) -> ir.Value:
    """Return the result of a product after the scale of its rows and its bias."""
    if node.op_type == "QGemm" and (beside := _beside(node)) is not None:
        return beside.outputs[0]
    quantizers = _quantizers(node)
    uses = list(node.outputs[0].uses())
    if len(quantizers) > 1 and len(uses) == 1 and uses[0][0].inputs[1] is quantizers[0].inputs[1]:
        node = uses[0][0]
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and uses[0][0].op_type == "Add":
        other = uses[0][0].inputs[1 - uses[0][1]]
        if other is not None and other.is_initializer() and other.shape is not None and len(other.shape) == 1:
            return uses[0][0].outputs[0]
    return node.outputs[0]


def _end_of_lookup(node: ir.Node) -> ir.Value:
    """Return the result of a lookup after dequantisation, if there is one."""
    after = [user for user, _ in node.outputs[0].uses()]
    is_table = node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.INT8
    if is_table and [user.op_type for user in after] == ["Cast"]:
        for _ in range(TO_ROWS):  # blocks of numbers times their scales
            node = next(iter(node.outputs[0].uses())).node
        return node.outputs[0]
    if len(after) == 1 and (ends := [user for user, place in after[0].outputs[0].uses() if place == 2]):
        return ends[0].outputs[0]  # the columns in fp32 are added
    quantized = node.op_type == LOOKUPS[1] or any(user.op_type == "DequantizeLinear" for user in after)
    return after[0].outputs[0] if quantized and len(after) == 1 else node.outputs[0]
