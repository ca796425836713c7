"""OpenVINO on the CPU, in fp32 or exactly the precision in the runtime's name."""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import require_order
from txport.errors import BundleError, LoadError, UnavailableError, UnsupportedError, brief
from txport.runtimes.base import GraphPorts, GraphRuntime, running
from txport.runtimes.openvino.library import openvino
from txport.runtimes.openvino.rewrite import BEAM_IDX, LOGIT_PLACES, Model, Value, fold, part, with_half, with_variables
from txport.runtimes.portable import PortableRuntime
from txport.system.arrays import Array, from_bf16, to_bf16
from txport.system.cores import cores
from txport.system.machine import is_out_of_memory
from txport.targets.ports import DECODER, INPUT_IDS, LOGITS, PAST_SOURCE, ROWS, SELECT, SOURCE, UNNAMED, Graph, Port

DEVICE, HINT = "CPU", "INFERENCE_PRECISION_HINT"
PRECISIONS = {"fp32": "f32", "bf16": "bf16"}  # inference precision
LACKS = ("not support", "unsupported", "not implemented", "no conversion rule")  # in its messages about operators
ROUNDED = 32  # inputs that share a scale of activations in products of few bits, as on ONNX Runtime
INNER = re.compile(r"Exception from \S+:\s*|Check '.*?' failed at \S+:\s*")  # positions in its source code
UNCOUNTED = ("Input", "Output", "Const")  # types of nodes that compute nothing


class Held:
    """An array, and an OpenVINO tensor over the same memory; an array of uint16 has the bits of bf16."""

    def __init__(self, stored: Array) -> None:
        self._stored = stored
        self.shape = stored.shape
        self._is_half = stored.dtype == np.uint16
        if self._is_half:
            self.tensor = openvino.Tensor(stored, list(self.shape), openvino.Type.bf16)
        else:
            self.tensor = openvino.Tensor(stored, shared_memory=True)

    @property
    def array(self) -> Array:
        """The numbers; those of bf16 in fp32."""
        return from_bf16(self._stored) if self._is_half else self._stored

    def take(self, rows: Array) -> Held:
        """Return some rows, copied."""
        return Held(self._stored[rows])

    def half(self) -> Held:
        """Return the numbers in bf16."""
        return self if self._is_half else Held(to_bf16(self._stored))


class Request:
    """An inference request, one run at a time, with its variables: the caches of `rows`, `length` tokens each.

    `rows` (R,) are those that the next run takes from the caches. Inputs that are already bound are not bound again.
    """

    def __init__(self, model: Model, inputs: Sequence[str], outputs: Mapping[str, int]) -> None:
        self._request = model.create_infer_request()
        self._inputs = inputs
        self._outputs = outputs
        self._bound: list[Tensor | None] = [None] * len(inputs)
        self.rows = np.zeros(0, np.int32)
        self.length = self.turn = 0  # `turn` counts the selections of rows
        self._ports: Sequence[Port] = ()

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Run the graph and write all outputs into `outputs`; raise `ValueError` if an output has another shape."""
        for at, name in enumerate(self._inputs):
            if self._bound[at] is not inputs[name]:
                self._request.set_input_tensor(at, inputs[name].tensor)
                self._bound[at] = inputs[name]
        for name, held in outputs.items():
            self._request.set_output_tensor(self._outputs[name], held.tensor)
        self._request.infer()
        for name, held in outputs.items():
            found = tuple(self._request.get_output_tensor(self._outputs[name]).shape)
            if found != held.shape:
                raise ValueError(f"{name} has the shape {found}, expected {held.shape}")

    def fill(self, ports: Sequence[Port], inputs: Mapping[str, Tensor], lengths: Mapping[str, int]) -> None:
        """Set the caches of `ports` to the inputs; `lengths` are the values of their dynamic dims."""
        self._ports = ports
        batch, past = _dynamic(ports[0])
        self.rows = np.arange(lengths[batch], dtype=np.int32)
        self.length = lengths[past]
        for each in self._request.query_state() if self.length else ():
            each.state = openvino.Tensor(inputs[each.name].array.astype(each.state.element_type.to_dtype()))

    def caches(self) -> dict[str, Cache]:
        """Return the caches by name, as the state after the last run or selection."""
        return {port.name: Cache(self, port, self.length, self.turn) for port in self._ports}

    def values(self, name: str) -> Array:
        """Return a copy of a cache with the rows that the next run takes."""
        array: Array = next(each.state.data for each in self._request.query_state() if each.name == name)
        return array[self.rows]


class Cache(NamedTuple):
    """A cache in a request after `length` tokens and `turn` selections; later steps of the request keep its values."""

    request: Request
    port: Port
    length: int
    turn: int

    @property
    def is_current(self) -> bool:
        """Whether the request has neither run nor selected rows since."""
        return (self.length, self.turn) == (self.request.length, self.request.turn)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims, for example (R, G, P, H)."""
        batch, past = _dynamic(self.port)
        return self.port.shape({batch: len(self.request.rows), past: self.length})

    @property
    def array(self) -> Array:
        """Its values, copied. Raise `ValueError` if its rows were selected since."""
        if self.turn != self.request.turn:
            raise ValueError(f"the rows of {self.port.name} were selected; use the state that `select` returned")
        axis = self.port.dims.index(_dynamic(self.port)[1])
        array = self.request.values(self.port.name).astype(self.port.dtype, copy=False)
        return array.take(np.arange(self.length), axis)

    @property
    def tensor(self) -> object:
        """Its values, copied, as a tensor of OpenVINO."""
        return openvino.Tensor(self.array)


def _dynamic(cache: Port) -> list[str]:
    """Return the dims of the rows and of their tokens."""
    return [dim for dim in cache.dims if isinstance(dim, str)]


Tensor = Held | Cache


class Compiled:
    """A compiled graph; threads that run it in parallel have separate requests."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._inputs = [each.get_node().get_friendly_name() for each in model.inputs]  # others have names of nodes, too
        self.outputs = {name: at for at, each in enumerate(model.outputs) for name in each.get_names()}
        self._free: deque[Request] = deque()  # its operations are atomic

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """See `Request.run`."""
        try:
            request = self._free.pop()
        except IndexError:
            request = self.request()
        request.run(inputs, outputs)
        self._free.append(request)  # a request that failed is not reused

    def request(self) -> Request:
        """Return a new request, whose variables are empty."""
        return Request(self._model, self._inputs, self.outputs)

    def count(self) -> int:
        """Return the number of nodes that compute something."""
        nodes = self._model.get_runtime_model().get_ops()
        return sum(_text(each.get_rt_info()["layerType"]) not in UNCOUNTED for each in nodes)


Parts = dict[tuple[str, ...], Compiled]  # by their outputs


class OpenVinoEngine:
    """`Engine` of the graphs of a bundle, compiled once for all lengths; separate parts for sources and for rows.

    The caches of rows are variables of a request, which a run changes in place. In bf16, the keys and values of sources
    stay in bf16 between runs, each of which would round them again.
    """

    def __init__(self, bundle: Bundle, threads: int | None, precision: str, workers: int) -> None:
        self._graphs = bundle.manifest.driven
        options = options_of(threads, precision, workers, ROUNDED if bundle.manifest.is_quantised else 0)
        self._ports: dict[str, GraphPorts] = {}
        self._parts: dict[str, Parts] = {}
        self._is_half = precision == "bf16"
        folds = self._is_half and bundle.manifest.is_quantised
        for role, graph in self._graphs.items():
            file = bundle.file(role)
            model = _read(file)
            self._ports[role] = _ports_of(model, graph)
            self._parts[role] = dict(_compile(graph, model, file, options, folds=folds))

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self._ports[role]

    def run(self, role: str, inputs: dict[str, Tensor], outputs: list[str], *, last: bool = False) -> dict[str, Tensor]:
        """See `Engine.run`."""
        graph = self._graphs[role]
        caches = [name for name, each in inputs.items() if isinstance(each, Cache)]  # all in one request
        shapes = {name: each.shape for name, each in inputs.items() if name not in caches[1:]}
        lengths = graph.lengths(shapes)
        with running(role, "OpenVINO"):  # whose fused kernels do not check shapes
            _require_fit(graph, shapes, lengths)
            if role == SELECT and caches:
                return _selected(inputs, outputs)
            try:
                return self._run(graph, inputs, outputs, lengths, last)
            except Exception as error:
                raise RuntimeError(_plain(error)) from error

    def _run(
        self, graph: Graph, inputs: dict[str, Tensor], outputs: list[str], lengths: Mapping[str, int], last: bool
    ) -> dict[str, Tensor]:
        of_source = {*graph.past("source").values()} if self._is_half and graph.role == DECODER else ()
        given = {name: cast(Held, each).half() if name in of_source else each for name, each in inputs.items()}
        found = dict[str, Tensor]()
        projects = lengths.get(PAST_SOURCE) != lengths.get(SOURCE)
        for names, compiled in self._parts[graph.role].items():
            is_source = names[0] in graph.present("source").values()
            if not (projects and is_source) and not any(name in outputs for name in names):
                continue
            if graph.role == DECODER and not is_source:
                found |= self._continued(compiled, given, outputs, lengths, last)
                continue
            made = _made(graph, names, lengths, is_half=is_source and self._is_half)
            found |= made
            compiled.run(given, made)
            if is_source:
                given |= {graph.becomes[name]: held for name, held in made.items()}
        return {name: found[name] for name in outputs}

    def _continued(
        self,
        compiled: Compiled,
        inputs: Mapping[str, Tensor],
        outputs: Sequence[str],
        lengths: Mapping[str, int],
        last: bool,
    ) -> dict[str, Tensor]:
        """Run the decoder over new tokens, and return its outputs; of the logits, it computes the wanted ones only.

        Caches that are arrays, or of a state before the last step, become variables of a new request; others grow.
        """
        graph = self._graphs[DECODER]
        pasts = graph.past("row")
        first = inputs[next(iter(pasts.values()))]
        if isinstance(first, Cache) and first.is_current:
            request = first.request
        else:
            request = compiled.request()
            request.fill([graph.port(past) for past in pasts.values()], inputs, lengths)
        rows, size = inputs[INPUT_IDS].shape
        unwanted = size if LOGITS not in outputs else size - 1 if last else 0
        places = Held(np.arange(unwanted, size))
        names = compiled.outputs.keys() & {port.name for port in graph.outputs} - {LOGITS}
        made = _made(graph, [*names], lengths)
        logits = graph.port(LOGITS)
        made[LOGITS] = Held(np.empty((rows, *places.shape, *logits.shape(lengths)[2:]), logits.dtype))
        request.run({**inputs, BEAM_IDX: Held(request.rows), LOGIT_PLACES: places}, made)
        request.rows = np.arange(rows, dtype=np.int32)
        request.length += size
        caches = request.caches()
        return made | {name: caches[pasts[each]] for each, name in graph.present("row").items()}

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return {role: {DEVICE: sum(each.count() for each in parts.values())} for role, parts in self._parts.items()}

    def from_numpy(self, array: Array) -> Tensor:
        """See `Engine.from_numpy`; the memory is shared if it is contiguous and writable."""
        return Held(np.require(array, requirements=("C", "W")))

    def to_numpy(self, tensor: Tensor) -> Array:
        """See `Engine.to_numpy`."""
        return tensor.array


@functools.cache
def _core() -> Model:
    return openvino.Core()


def options_of(threads: int | None, precision: str, workers: int, rounded: int = 0) -> dict[str, object]:
    """Return the options for compiling graphs: one stream per worker, and exactly the given precision.

    Products with weights in few bits round activations in blocks of `rounded`; 0: they do not.

    Requests of one stream wait for each other. Without the precision hint, OpenVINO uses bf16 if the processor has it.
    Threads are not pinned to cores, because those of several processes would be pinned to the same cores.
    """
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": workers,
        "INFERENCE_NUM_THREADS": cores() if threads is None else threads * workers,
        "ENABLE_CPU_PINNING": False,
        HINT: PRECISIONS[precision],
        "KV_CACHE_PRECISION": PRECISIONS[precision],  # by default 8 bits
        "EXECUTION_MODE_HINT": "ACCURACY" if precision == "fp32" else "PERFORMANCE",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": rounded,
    }


def _require_fit(graph: Graph, shapes: Mapping[str, tuple[int, ...]], lengths: Mapping[str, int]) -> None:
    """Raise `ValueError` for an input whose shape does not match the dims of the other inputs."""
    for name, shape in shapes.items():
        if shape != (wanted := graph.port(name).shape(lengths)):
            raise ValueError(f"{name} has the shape {shape}, expected {wanted}")


def _made(
    graph: Graph, names: Sequence[str], lengths: Mapping[str, int], *, is_half: bool = False
) -> dict[str, Tensor]:
    """Return new memory for all outputs of a part: unbound ones would be written to previously bound memory."""
    ports = map(graph.port, names)
    return {port.name: Held(np.empty(port.shape(lengths), np.uint16 if is_half else port.dtype)) for port in ports}


def _selected(inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
    """Select rows of a decoder's state; the next run selects those of its caches."""
    rows = inputs[ROWS].array
    first = next(each for each in inputs.values() if isinstance(each, Cache))
    if not first.is_current:
        raise ValueError("rows can be selected from the newest state only")
    request = first.request
    request.rows = request.rows[rows]
    request.turn += 1
    given = {name: inputs[name.removeprefix("selected.")] for name in outputs}
    caches = {f"selected.{name}": each for name, each in request.caches().items()}
    return {name: caches[name] if name in caches else cast(Held, each).take(rows) for name, each in given.items()}


def _compile(
    graph: Graph, model: Model, file: Path, options: Mapping[str, object], *, folds: bool
) -> Iterator[tuple[tuple[str, ...], Compiled]]:
    """Compile and yield the parts of a graph, in the order in which they run; `folds`: as numbers, see `fold`."""
    for names, known in _split(graph):
        try:
            cut = _rewritten(graph, part(model, names, known), folds)
            if graph.role == DECODER and options[HINT] == PRECISIONS["bf16"]:
                of_source = {*graph.present("source").values(), *graph.past("source").values()}
                cut = with_half(cut, of_source) if of_source else cut
            compiled = _core().compile_model(cut, DEVICE, dict(options))
        except Exception as error:  # its errors have no common base class
            raise _refused(file, error) from error
        used = compiled.get_property(HINT).to_string()
        wanted = options[HINT]
        if used != wanted:
            raise UnavailableError(f"OpenVINO computes in {used} here, expected {wanted}; take the ort runtime")
        yield names, Compiled(compiled)


def _rewritten(graph: Graph, cut: Model, folds: bool) -> Model:
    """Return a part of a graph: if it has caches of rows, with variables, else, if it `folds`, with folded weights."""
    outputs = {name for each in cut.outputs for name in each.get_names()}
    caches = {graph.becomes[name]: name for name in graph.present("row").values() if name in outputs}
    return with_variables(cut, caches, LOGITS) if caches else fold(cut) if folds else cut


def _split(graph: Graph) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield the outputs of each part, and the outputs of earlier parts -> the inputs with their values."""
    names = tuple(port.name for port in graph.outputs)
    of_source = tuple(graph.present("source").values()) if graph.role == DECODER else ()
    of_rows = tuple(name for name in names if name not in of_source)
    if of_source:
        yield of_source, {}
    yield of_rows, {name: graph.becomes[name] for name in of_source} if graph.role == DECODER else {}


def _read(file: Path) -> Model:
    require_order(file)
    try:
        return _core().read_model(str(file))
    except Exception as error:  # its errors have no common base class
        raise _refused(file, error) from error


def _refused(file: Path, error: Exception) -> Exception:
    """Return our error for a graph that OpenVINO can't load: memory, a missing operator, or an invalid graph."""
    message = f"OpenVINO {openvino.__version__.partition('-')[0]} can't load {file}: {brief(_plain(error))}"
    if is_out_of_memory(error):
        return MemoryError(message)
    if any(words in str(error).lower() for words in LACKS):
        return LoadError(f"{message}; update it, export again with a lower opset, or take the ort runtime")
    return BundleError(f"{message}; the bundle is damaged, export it again")


def _plain(error: Exception) -> str:
    """Return the message of an error without positions in OpenVINO's source code."""
    return INNER.sub("", str(error)).strip() or str(error)


def _ports_of(model: Model, graph: Graph) -> GraphPorts:
    """Return the inputs and outputs as OpenVINO read them, without names of dims."""
    inputs, outputs = (
        tuple(_port(each, ports) for each in values)
        for values, ports in ((model.inputs, graph.inputs), (model.outputs, graph.outputs))
    )
    return inputs, outputs


def _port(value: Value, expected: Sequence[Port]) -> Port:
    names = value.get_names()
    name = next((port.name for port in expected if port.name in names), min(names, default=""))
    dims = tuple(UNNAMED if dim.is_dynamic else dim.get_length() for dim in value.partial_shape)
    return Port(name, np.dtype(value.element_type.to_dtype()).name, dims)


def _text(value: Value) -> str:
    """Return a value of OpenVINO as text: it is a string or an object that contains one."""
    return value if isinstance(value, str) else str(value.astype(str))


def require(provider: str, precision: str = "fp32") -> None:
    """See `runtimes.require`; bf16 needs a processor with products in it."""
    if provider != "cpu":
        raise UnsupportedError(f"the openvino runtime runs on the cpu only, got provider {provider!r}")
    if precision == "bf16" and "BF16" not in _core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES"):
        raise UnavailableError("openvino-bf16 needs a processor that multiplies in bf16; take openvino or ort")


def load(
    bundle: Bundle, *, provider: str = "cpu", threads: int | None = None, precision: str = "fp32", workers: int = 1
) -> GraphRuntime:
    """Start a bundle on OpenVINO's CPU plugin; `threads` is the number per worker."""
    return PortableRuntime(OpenVinoEngine(bundle, threads, precision, workers), bundle.manifest)
