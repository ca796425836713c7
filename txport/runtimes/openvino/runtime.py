"""OpenVINO on the CPU, in fp32 or exactly the precision in the runtime's name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import require_order
from txport.errors import BundleError, LoadError, UnavailableError, UnsupportedError, brief
from txport.models.facts import Facts
from txport.runtimes.base import GraphPorts, GraphRuntime, running
from txport.runtimes.openvino.caches import Cache, Decoder, dynamic
from txport.runtimes.openvino.library import openvino
from txport.runtimes.openvino.paged import PagedDecoder, windows_of, with_pages
from txport.runtimes.openvino.requests import Compiled, Held, Tensor
from txport.runtimes.openvino.rewrite import (
    Model,
    Value,
    fold,
    fuse,
    has_empty_parts,
    has_gates,
    part,
    with_half,
    with_places,
)
from txport.runtimes.openvino.variables import VariableDecoder, with_variables
from txport.runtimes.portable import PortableRuntime
from txport.system.arrays import Array
from txport.system.cores import cores
from txport.system.machine import flags, is_out_of_memory
from txport.targets.ports import BATCH, DECODER, LOGITS, PAST_SOURCE, ROWS, SELECT, SOURCE, UNNAMED, Graph, Port

DEVICE, HINT = "CPU", "INFERENCE_PRECISION_HINT"
STREAMS, THREADS = "NUM_STREAMS", "INFERENCE_NUM_THREADS"
PRECISIONS = {"fp32": "f32", "bf16": "bf16"}  # inference precision
LACKS = ("not support", "unsupported", "not implemented", "no conversion rule")  # in its messages about operators
ROUNDED = 32  # inputs that share a scale of activations in products of few bits, as on ONNX Runtime
NO_GATES = "can't run gated feed-forwards with one thread, because OpenVINO 2026.4 ends the process there"
NO_EXPERTS = "can't run experts, because OpenVINO 2026.4 ends the process at a product of no rows on some processors"
INNER = re.compile(r"Exception from \S+:\s*|Check '.*?' failed at \S+:\s*")  # positions in its source code

Parts = dict[tuple[str, ...], Compiled]  # by their outputs


class OpenVinoEngine:
    """`Engine` of the graphs of a bundle, compiled once for all lengths; separate parts for sources and for rows.

    Runs change the caches of rows in place. In bf16, the keys and values of sources stay in bf16 between runs, each of
    which would round them again.
    """

    def __init__(self, bundle: Bundle, threads: int | None, precision: str, workers: int) -> None:
        manifest = bundle.manifest
        self._graphs = manifest.driven
        self._options = options_of(threads, precision, workers, ROUNDED if manifest.is_quantised else 0)
        self._ports: dict[str, GraphPorts] = {}
        self._parts: dict[str, Parts] = {}
        self._is_half = precision == "bf16"
        self._folds = self._is_half and manifest.is_quantised
        self._has_amx = not flags() or "amx_bf16" in flags()
        for role, graph in self._graphs.items():
            file = bundle.file(role)
            model = _read(file)
            self._ports[role] = _ports_of(model, graph)
            try:
                self._parts[role] = {
                    names: self._compiled_part(graph, part(model, names, known), manifest.facts)
                    for names, known in _split(graph)
                }
            except (UnavailableError, UnsupportedError):
                raise
            except Exception as error:  # its errors have no common base class
                raise _refused(file, error) from error

    def _compiled_part(self, graph: Graph, cut: Model, facts: Facts) -> Compiled:
        """Compile a part of a graph; that with the caches of rows becomes the decoder."""
        if self._is_half and has_empty_parts(cut):
            raise UnsupportedError(f"openvino-bf16 {NO_EXPERTS}; take openvino")
        if self._is_half and self._has_amx and has_gates(cut) and self._threads_of_a_worker() < 2:
            raise UnsupportedError(f"openvino-bf16 {NO_GATES}; take openvino, or two threads for each worker")
        outputs = {name for each in cut.outputs for name in each.get_names()}
        caches = {graph.becomes[name]: name for name in graph.present("row").values() if name in outputs}
        of_source = {*graph.present("source").values(), *graph.past("source").values()}
        if caches:
            masks = fuse(cut)
            is_fused = 2 * len(masks) == len(caches)  # the attention of all layers
            windows = windows_of(cut, masks, facts.windows) if is_fused and facts.is_causal else None
            cut = with_variables(cut, caches)
            paged = None if windows is None else self._paged(with_places(cut.clone(), LOGITS, 0), windows, [*caches])
            if paged is not None:
                self._decoder: Decoder = paged
                return paged.compiled
            cut = with_places(cut, LOGITS, 1)
        elif self._folds:
            cut = fold(cut)
        if self._is_half and graph.role == DECODER and of_source:
            cut = with_half(cut, of_source)
        compiled = self._compiled(cut)
        if caches:
            self._decoder = VariableDecoder(compiled)
        return compiled

    def _threads_of_a_worker(self) -> int:
        """Return how many threads OpenVINO takes, which may be fewer than the options ask for."""
        nothing = openvino.opset13.parameter([1], openvino.Type.f32)
        compiled = _core().compile_model(openvino.Model([nothing], [nothing]), DEVICE, self._options)
        threads, streams = (int(compiled.get_property(each)) for each in (THREADS, STREAMS))
        return threads // max(streams, 1)

    def _paged(self, model: Model, windows: Sequence[int], caches: Sequence[str]) -> PagedDecoder | None:
        """Return a decoder with paged attention; None if OpenVINO lacks it here."""
        forms = [model.clone, lambda: fold(model.clone())][: 1 + self._folds]
        try:
            with ThreadPoolExecutor() as pool:
                few, *many = pool.map(lambda form: self._compiled(with_pages(form(), windows)), forms)
            return PagedDecoder([few, *many], caches)
        except Exception:  # neither in its stable interface nor on all processors
            return None

    def _compiled(self, model: Model) -> Compiled:
        compiled = _core().compile_model(model, DEVICE, self._options)
        used, wanted = compiled.get_property(HINT).to_string(), self._options[HINT]
        if used != wanted:
            raise UnavailableError(f"OpenVINO computes in {used} here, expected {wanted}; take the ort runtime")
        return Compiled(compiled)

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self._ports[role]

    def run(self, role: str, inputs: dict[str, Tensor], outputs: list[str], *, last: bool = False) -> dict[str, Tensor]:
        """See `Engine.run`."""
        graph = self._graphs[role]
        caches = [name for name, each in inputs.items() if isinstance(each, Cache)]  # all in one store
        others = {*caches[1:]}
        shapes = {name: each.shape for name, each in inputs.items() if name not in others}
        with running(role, "OpenVINO"):  # whose fused kernels do not check shapes
            lengths = graph.lengths(shapes)
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
                found |= self._continued(given, outputs, lengths, last)
                continue
            made = _made(graph, names, lengths, is_half=is_source and self._is_half)
            found |= made
            compiled.run(given, made)
            if is_source:
                given |= {graph.becomes[name]: held for name, held in made.items()}
        return {name: found[name] for name in outputs}

    def _continued(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str], lengths: Mapping[str, int], last: bool
    ) -> dict[str, Tensor]:
        """Run the decoder over new tokens, and return its outputs; of the logits, it computes the wanted ones only.

        Caches that are arrays, or of a state before the last step, are copied for the run; others grow.
        """
        graph = self._graphs[DECODER]
        pasts = graph.past("row")
        ports = [graph.port(past) for past in pasts.values()]
        first = inputs[ports[0].name]
        if isinstance(first, Cache) and first.is_current:
            store = first.store
        else:
            store = self._decoder.store(ports, lengths[BATCH])
            if length := lengths[dynamic(ports[0])[1]]:
                store.fill(inputs, length)
        made = store.run(graph, inputs, lengths, wanted=LOGITS in outputs, last=last)
        caches = store.caches()
        return made | {name: caches[graph.becomes[name]] for name in graph.present("row").values()}

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
        STREAMS: workers,
        THREADS: cores() if threads is None else threads * workers,
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
    """Select rows of a decoder's state, of which the caches are one."""
    rows = inputs[ROWS].array
    first = next(each for each in inputs.values() if isinstance(each, Cache))
    if not first.is_current:
        raise ValueError("rows can be selected from the newest state only")
    first.store.select(rows)
    given = {name: inputs[name.removeprefix("selected.")] for name in outputs}
    caches = {f"selected.{name}": each for name, each in first.store.caches().items()}
    return {name: caches[name] if name in caches else cast(Held, each).take(rows) for name, each in given.items()}


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
