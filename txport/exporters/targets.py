"""What makes the graphs of each target, one record each: graph modules, ONNX conversions and stages.

Export runs all stages of a graph; bisect runs them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import onnx_ir as ir
from torch import nn

from txport.bundles.forms import Form, Stored
from txport.bundles.manifest import Manifest
from txport.bundles.ports import ALIGN, STEP, Graph, screens
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.packed import PackedReader
from txport.checkpoints.weights.streamed import Read
from txport.exporters.cpu import choose
from txport.exporters.cpu import operators as of_cpu
from txport.exporters.cpu.modules import FUSED
from txport.exporters.cpu.ops import require_fusable
from txport.exporters.cpu.rewrite import ON_CPU
from txport.exporters.cpu.top import add_top, make_conditional, without_top
from txport.exporters.cuda import operators as of_cuda
from txport.exporters.cuda import quantize
from txport.exporters.cuda.modules import DEVICE
from txport.exporters.cuda.ops import require_device
from txport.exporters.cuda.quantize import ON_DEVICE
from txport.exporters.fused.packs import packs
from txport.exporters.fused.parts import PACKED, check_parts
from txport.exporters.fused.rewrite import Matrices, Quantising, apply_forms, tables_of
from txport.exporters.graphs import PORTABLE
from txport.exporters.memory import memory_model
from txport.exporters.program import trace_program
from txport.exporters.tracing import passes
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.forms.layers import RMS_OPSET
from txport.exporters.tracing.symbols import Form as OnnxForm
from txport.exporters.tracing.trace import kinds_of_trace, parts_of_trace, trace
from txport.models.facts import Task
from txport.models.model import Model
from txport.models.parts import RMSNorm

IN_PLACE_OPSET = 24  # first opset with operators that write caches in place and read them up to a length
QUANTISE, TOP, CONDITION = "quantise", "choose the best tokens", "make attention conditional"


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


FormsOf = Callable[[Checkpoint, Manifest, Mapping[str, ir.Model], Mapping[str, Form]], dict[str, Form]]


@dataclass(frozen=True)
class Exporter:
    """How an export makes the graphs of a target.

    `modules`: graph modules by task and role; their arguments are the ports that `traced` returns. `forms`: ONNX
    conversions of torch functions. `stages`: passes after the trace; `last`: passes after the storage form of each
    weight is chosen. `require`: raise `UnsupportedError` for a model that the target does not support. `prefers`:
    default opset for a model; `least`: minimum opset. `forms_of`: storage forms of quantised weights, by initializer.
    """

    modules: Mapping[Task, Mapping[str, Callable[[Model], nn.Module]]]
    forms: Mapping[str, OnnxForm]
    stages: Mapping[str, Stage]
    last: Callable[[Job, Mapping[str, Form] | None], Mapping[str, Stage]] = lambda job, forms: {}
    traced: Callable[[Graph], Graph] = lambda graph: graph
    require: Callable[[Model], None] = lambda model: None
    prefers: Callable[[Model], int] = lambda model: 0
    least: int = 0
    forms_of: FormsOf | None = None

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


def _of_ports(run: passes.Pass, traced: Callable[[Graph], Graph]) -> Stage:
    return lambda graph, job: run(graph, traced(job.ports))


def _condition(graph: ir.Model, job: Job) -> int:
    has_switch = any(port.name == ALIGN for port in job.ports.inputs)
    return make_conditional(graph, job.ports) if has_switch else 0


def _check(check: Callable[..., None], graph: ir.Model, job: Job) -> int:
    """Compare the graph with the operators counted in its trace; return the number of parts."""
    became = parts_of_trace(graph)
    packed = job.counts.get(passes.PACK, became.get(PACKED, 0))
    check(graph, became, kinds_of_trace(graph), packed, job.role)
    return sum(became.values())


check_cpu = partial(check_parts, operators=(of_cpu.MULTI_HEAD, of_cpu.GROUPED), kind_of=of_cpu.kind_of_node)
check_cuda = partial(
    check_parts,
    operators=(of_cuda.ATTENTION,),
    kind_of=of_cuda.kind_of_node,
    others=(of_cuda.ROTARY, of_cuda.WRITE),
)


def _quantise(how: Quantising, forms: Mapping[str, Form], tables: Collection[str], graph: ir.Model, job: Job) -> int:
    found = apply_forms(graph, forms, tables, job.quantised, how, job.unrounded, job.packed)
    job.weights = {**packs(graph), **found}
    return sum(stored.is_quantised for stored in found.values())


def _choose(graph: ir.Model, job: Job) -> int:
    """Add top-k to a step; return 1 if screening is used, otherwise 0."""
    screened = screens(job.manifest.facts, job.manifest.precision) and not job.manifest.weightless
    add_top(graph, job.ports, shorten=screened)
    return int(screened)


def _last_of_cpu(job: Job, forms: Mapping[str, Form] | None) -> Mapping[str, Stage]:
    found: dict[str, Stage] = {}
    if forms is not None:
        found[QUANTISE] = partial(_quantise, ON_CPU, forms, tables_of(job.model))
    if job.role == STEP:
        found[TOP] = _choose
    return found


def _last_of_cuda(job: Job, forms: Mapping[str, Form] | None) -> Mapping[str, Stage]:
    if forms is None or not job.ports.has_weights:
        return {}
    return {QUANTISE: partial(_quantise, ON_DEVICE, forms, tables_of(job.model))}


def _prefers_of_cpu(model: Model) -> int:
    """Return the opset with a single RMSNormalization operator, independent of runtime fusions; 0 without RMSNorm."""
    return RMS_OPSET if any(isinstance(each, RMSNorm) for each in model.modules()) else 0


EXPORTERS = {
    "portable": Exporter(
        PORTABLE, FORMS, {name: _of_ports(run, lambda graph: graph) for name, run in passes.PORTABLE.items()}
    ),
    "cpu": Exporter(
        FUSED,
        of_cpu.FUSED_FORMS,
        {
            **{name: _of_ports(run, without_top) for name, run in passes.CPU.items()},
            CONDITION: _condition,
            "check parts": partial(_check, check_cpu),
        },
        _last_of_cpu,
        without_top,
        require_fusable,
        _prefers_of_cpu,
        forms_of=choose.forms_of,
    ),
    "cuda": Exporter(
        DEVICE,
        of_cuda.CUDA_FORMS,
        {
            **{name: _of_ports(run, lambda graph: graph) for name, run in passes.CUDA.items()},
            "check parts": partial(_check, check_cuda),
        },
        _last_of_cuda,
        require=require_device,
        least=IN_PLACE_OPSET,
        forms_of=quantize.forms_of,
    ),
}
