"""How the graphs of the cpu target are made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import onnx_ir as ir

from txport.bundles.forms import Form
from txport.exporters.cpu import choose, operators
from txport.exporters.cpu.modules import FUSED
from txport.exporters.cpu.ops import require_fusable
from txport.exporters.cpu.rewrite import ON_CPU
from txport.exporters.cpu.smoothing import find_smoothing
from txport.exporters.cpu.top import add_top, make_conditional, without_top
from txport.exporters.exporter import QUANTISE, Exporter, Job, Stage, check, of_ports, quantise
from txport.exporters.fused.parts import check_parts
from txport.exporters.fused.rewrite import tables_of
from txport.exporters.tracing import passes
from txport.exporters.tracing.forms.layers import RMS_OPSET
from txport.models.model import Model
from txport.models.parts import RMSNorm
from txport.targets.cpu import screens
from txport.targets.ports import ALIGN, STEP

TOP, CONDITION = "choose the best tokens", "make attention conditional"
check_operators = partial(
    check_parts, operators=(operators.MULTI_HEAD, operators.GROUPED), kind_of=operators.kind_of_node
)


def _condition(graph: ir.Model, job: Job) -> int:
    has_switch = any(port.name == ALIGN for port in job.ports.inputs)
    return make_conditional(graph, job.ports) if has_switch else 0


def _choose(graph: ir.Model, job: Job) -> int:
    """Add top-k to a step; return 1 if screening is used, otherwise 0."""
    screened = screens(job.manifest.facts, job.manifest.precision) and not job.manifest.weightless
    add_top(graph, job.ports, shorten=screened)
    return int(screened)


def _last(job: Job, forms: Mapping[str, Form] | None) -> Mapping[str, Stage]:
    found: dict[str, Stage] = {}
    if forms is not None:
        found[QUANTISE] = partial(quantise, ON_CPU, forms, tables_of(job.model))
    if job.role == STEP:
        found[TOP] = _choose
    return found


def _prefers(model: Model) -> int:
    """Return the opset with a single RMSNormalization operator, independent of runtime fusions; 0 without RMSNorm."""
    return RMS_OPSET if any(isinstance(each, RMSNorm) for each in model.modules()) else 0


EXPORTER = Exporter(
    FUSED,
    operators.FUSED_FORMS,
    {
        **{name: of_ports(run, without_top) for name, run in passes.CPU.items()},
        CONDITION: _condition,
        "check parts": partial(check, check_operators),
    },
    _last,
    without_top,
    require_fusable,
    _prefers,
    rows_of=choose.rows_of,
    forms_of=choose.forms_of,
    smoothing_of=find_smoothing,
)
