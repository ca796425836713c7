"""What makes the graphs of a target: graph modules, ONNX conversions and stages; each target has a record of them.

Export runs all stages of a graph; bisect runs them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from torch import nn

from txport.bundles.forms import Form, Stored
from txport.bundles.manifest import Manifest
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.packed import PackedReader
from txport.checkpoints.weights.smoothing import Smoothing
from txport.checkpoints.weights.streamed import Read
from txport.exporters.fused.packs import packs
from txport.exporters.fused.parts import PACKED
from txport.exporters.fused.rewrite import Matrices, Quantising, apply_forms
from txport.exporters.memory import memory_model
from txport.exporters.program import trace_program
from txport.exporters.tracing import passes
from txport.exporters.tracing.symbols import Form as OnnxForm
from txport.exporters.tracing.trace import kinds_of_trace, parts_of_trace, trace
from txport.models.facts import Facts, Task
from txport.models.model import Model
from txport.system.packages import named
from txport.targets import target_of
from txport.targets.ports import Graph
from txport.targets.target import FEW_BITS

QUANTISE = "quantise"  # the stage of each target that has quantised weights


@dataclass
class Job:
    """State of one graph during export.

    `weights` states how each initializer is stored. `read` loads weights by name if the model is on the meta device.
    `quantised` contains the quantised matrices, shared by the graphs of a bundle. `unrounded` loads weights in full
    precision if the model is in 16 bits. `packed` reads the matrices that another tool has quantised, by any name.
    """

    model: Model
    manifest: Manifest
    role: str
    counts: dict[str, int] = field(default_factory=dict)  # stage -> number of changes
    weights: dict[str, Stored] = field(default_factory=dict)
    read: Read | None = None
    quantised: Matrices = field(default_factory=dict)
    unrounded: Read | None = None
    packed: Mapping[str, PackedReader] = field(default_factory=dict)

    @property
    def ports(self) -> Graph:
        """The inputs and outputs of the graph in the bundle."""
        return self.manifest.graphs[self.role]


Stage = Callable[[ir.Model, Job], int]


SmoothingOf = Callable[[Checkpoint, Manifest], tuple[Smoothing, ...]]
FormsOf = Callable[[Checkpoint, Manifest, Mapping[str, ir.Model], Mapping[str, Form]], dict[str, Form]]


@dataclass(frozen=True)
class Exporter:
    """How an export makes the graphs of a target.

    `modules`: graph modules by task and role; their arguments are the ports that `traced` returns. `forms`: ONNX
    conversions of torch functions. `stages`: passes after the trace; `last`: passes after the storage form of each
    weight is chosen. `require`: raise `UnsupportedError` for a model that the target does not support. `prefers`:
    default opset for a model; `least`: minimum opset; `least_few`: that of few bits. `rows_of`: the rows of the
    manifest, from those that are asked for. `forms_of`: storage forms of quantised weights, by initializer.
    `smoothing_of`: the factors by which the checkpoint is smoothed first.
    """

    modules: Mapping[Task, Mapping[str, Callable[[Model], nn.Module]]]
    forms: Mapping[str, OnnxForm]
    stages: Mapping[str, Stage]
    last: Callable[[Job, Mapping[str, Form] | None], Mapping[str, Stage]] = lambda job, forms: {}
    traced: Callable[[Graph], Graph] = lambda graph: graph
    require: Callable[[Model], None] = lambda model: None
    prefers: Callable[[Model], int] = lambda model: 0
    least: int = 0
    least_few: int = 0
    rows_of: Callable[[Facts, str, int | None], int | None] = lambda facts, precision, rows: rows
    forms_of: FormsOf | None = None
    smoothing_of: SmoothingOf = lambda checkpoint, manifest: ()

    def least_opset(self, precision: str) -> int:
        """Return the minimum opset of a precision."""
        return max(self.least, self.least_few) if precision in FEW_BITS else self.least

    def module(self, job: Job) -> nn.Module:
        """Return the graph module of the job."""
        return self.modules[job.manifest.facts.task][job.role](job.model)

    def trace(self, job: Job) -> ir.Model:
        """Trace the graph; graphs that move a state are built directly."""
        if not job.ports.has_weights:
            return memory_model(job.ports, job.manifest.opset)
        if isinstance(job.model, Adapted):
            job.model.probe()  # a trace does not detect mismatched dtypes
            return trace_program(self.module(job), self.traced(job.ports), job.manifest.opset, job.manifest.facts)
        return trace(self.module(job), self.traced(job.ports), job.manifest.opset, self.forms, job.read)

    def run(self, graph: ir.Model, job: Job) -> None:
        """Run the stages that do not need the storage forms of weights; the graph is modified in place."""
        for name, stage in self.stages.items() if job.ports.has_weights else ():
            job.counts[name] = stage(graph, job)
        job.weights = packs(graph)

    def finish(self, graph: ir.Model, job: Job, forms: Mapping[str, Form] | None) -> None:
        """Run the remaining stages. `forms`: storage forms of quantised weights, None if the precision has none."""
        for name, stage in self.last(job, forms).items():
            job.counts[name] = stage(graph, job)


def stages(
    target: Exporter, job: Job, forms_of: Callable[[ir.Model], Mapping[str, Form] | None]
) -> Iterator[tuple[str, ir.Model]]:
    """Yield (name, graph) after each step of the export; the graph is modified in place.

    `forms_of` returns the storage forms of the weights after they are packed.
    """
    graph = target.trace(job)
    yield "the trace of the model", graph
    for name, stage in target.stages.items():
        stage(graph, job)
        yield f"the pass {name!r}", graph
    for name, stage in target.last(job, forms_of(graph)).items():
        stage(graph, job)
        yield f"the pass {name!r}", graph


def of_ports(run: passes.Pass, traced: Callable[[Graph], Graph] = lambda graph: graph) -> Stage:
    """Return the stage of a pass over the ports that are traced."""
    return lambda graph, job: run(graph, traced(job.ports))


def check(compare: Callable[..., None], graph: ir.Model, job: Job) -> int:
    """Compare the graph with the operators counted in its trace; return the number of parts."""
    became = parts_of_trace(graph)
    packed = job.counts.get(passes.PACK, became.get(PACKED, 0))
    compare(graph, became, kinds_of_trace(graph), packed, job.role)
    return sum(became.values())


def quantise(how: Quantising, forms: Mapping[str, Form], tables: Collection[str], graph: ir.Model, job: Job) -> int:
    """Write the matrices in their storage forms; return how many are quantised."""
    found = apply_forms(graph, forms, tables, job.quantised, how, job.unrounded, job.packed)
    job.weights = {**packs(graph), **found}
    return sum(stored.is_quantised for stored in found.values())


def exporter_of(name: str) -> Exporter:
    """Return what makes the graphs of a target, by its name."""
    exporter: Exporter = named(target_of(name).exporter)
    return exporter
