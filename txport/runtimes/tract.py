"""Run portable bundles on tract, an engine in Rust without dependencies, with one thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tract

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import require_order
from txport.errors import BundleError, LoadError, UnsupportedError, brief
from txport.runtimes.base import GraphPorts, GraphRuntime, running
from txport.runtimes.portable import PortableRuntime
from txport.system.arrays import Array
from txport.system.machine import is_out_of_memory
from txport.targets.ports import UNNAMED, Dim, Graph, Port

UNCOUNTED = ("Source", "Const")  # operators that compute nothing
Tensor = Any  # tract has no types
KINDS = {"f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "bool": "bool"}
LACKS = ("unimplemented", "not implemented", "unsupported", "no parser for")  # in its messages about operators


class Loaded:
    """A loaded graph. tract identifies inputs and outputs by their order, not by name."""

    def __init__(self, file: Path, graph: Graph) -> None:
        require_order(file)
        try:
            model = tract.onnx().load(str(file))
            inputs = [model.input_name(at) for at in range(model.input_count())]
            self.model = model.into_model().into_runnable()
            facts = (self.model.input_facts(), self.model.output_facts())
        except Exception as error:  # an error of tract, or a name that is not UTF-8
            raise _refused(file, error) from error
        outputs = [port.name for port in graph.outputs]
        if len(outputs) != len(facts[1]):
            raise BundleError(f"{file} gives {len(facts[1])} outputs, expected {len(outputs)}; export it again")
        self.ports: GraphPorts = (tuple(map(_port, inputs, facts[0])), tuple(map(_port, outputs, facts[1])))

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """All inputs in order -> all outputs in order; raise `RuntimeError` if the run fails."""
        try:
            found: list[Tensor] = self.model.run(inputs)
        except tract.TractError as error:
            raise RuntimeError(_plain(error)) from error
        return found

    def count(self) -> int:
        """Return the number of nodes that compute something."""
        return sum(each["op_name"] not in UNCOUNTED for each in json.loads(self.model.profile_json(None))["nodes"])


class TractEngine:
    """`Engine` of the graphs of a bundle on tract."""

    def __init__(self, bundle: Bundle) -> None:
        self._graphs = {role: Loaded(bundle.file(role), graph) for role, graph in bundle.manifest.driven.items()}

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`; tract has no names of outputs, so they are the manifest's, in order."""
        return self._graphs[role].ports

    def run(self, role: str, inputs: dict[str, Tensor], outputs: list[str], *, last: bool = False) -> dict[str, Tensor]:
        """See `Engine.run`; all outputs are computed."""
        loaded = self._graphs[role]
        given, made = loaded.ports
        with running(role, "tract"):
            found = loaded.run([inputs[port.name] for port in given])
        by_name = {port.name: tensor for port, tensor in zip(made, found, strict=True)}
        return {name: by_name[name] for name in outputs}

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return {role: {"CPU": loaded.count()} for role, loaded in self._graphs.items()}

    def from_numpy(self, array: Array) -> Tensor:
        """See `Engine.from_numpy`."""
        return tract.Tensor.from_numpy(array)

    def to_numpy(self, tensor: Tensor) -> Array:
        """See `Engine.to_numpy`; returns a copy."""
        return tensor.to_numpy()  # type: ignore[no-any-return]


def _port(name: str, fact: object) -> Port:
    """Return a port from tract's description of it: "batch_size,4,sequence_length,8,f32"."""
    *dims, kind = str(fact).split(",")
    return Port(name, KINDS.get(kind.lower(), kind), tuple(map(_dim, dims)))


def _dim(text: str) -> Dim:
    """Return a dim as a number or a name; sums are `UNNAMED`, because tract changes the order of terms."""
    if text.isdecimal():
        return int(text)
    return text if text.isidentifier() else UNNAMED


def _refused(file: Path, error: Exception) -> Exception:
    """Return our error for a graph that tract can't load: memory, a missing operator, or an invalid graph."""
    reason = _plain(error)
    message = f"tract {tract.version()} can't load {file}: {brief(reason)}"
    if is_out_of_memory(error):
        return MemoryError(message)
    if any(words in reason.lower() for words in LACKS):
        return LoadError(f"{message}; update it, export again with a lower opset, or take the ort runtime")
    return BundleError(f"{message}; the bundle is damaged, export it again")


def _plain(error: Exception) -> str:
    """Return the message of an error without tract's backtrace."""
    return str(error).partition("Stack backtrace")[0]


def require(provider: str) -> None:
    """See `runtimes.require`."""
    if provider != "cpu":
        raise UnsupportedError(f"the tract runtime runs on the cpu only, got provider {provider!r}")


def load(bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> GraphRuntime:
    """Start a bundle on tract; raise `UnsupportedError` for more than one thread, and for weights in few bits."""
    if bundle.manifest.is_quantised:
        raise UnsupportedError(f"tract has no operators for {bundle.manifest.precision}; take the ort runtime")
    if threads not in (None, 1):
        raise UnsupportedError(f"the tract runtime has one thread, got {threads}")
    return PortableRuntime(TractEngine(bundle), bundle.manifest)
