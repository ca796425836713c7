"""How the graphs of the cuda target are made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from txport.bundles.forms import Form
from txport.exporters.cuda import operators, quantize
from txport.exporters.cuda.modules import DEVICE
from txport.exporters.cuda.ops import require_device
from txport.exporters.cuda.quantize import ON_DEVICE
from txport.exporters.exporter import QUANTISE, Exporter, Job, Stage, check, of_ports, quantise
from txport.exporters.fused.parts import check_parts
from txport.exporters.fused.rewrite import tables_of
from txport.exporters.tracing import passes

IN_PLACE_OPSET = 24  # first opset with operators that write caches in place and read them up to a length
check_operators = partial(
    check_parts,
    operators=(operators.ATTENTION,),
    kind_of=operators.kind_of_node,
    others=(operators.ROTARY, operators.WRITE),
)


def _last(job: Job, forms: Mapping[str, Form] | None) -> Mapping[str, Stage]:
    if forms is None or not job.ports.has_weights:
        return {}
    return {QUANTISE: partial(quantise, ON_DEVICE, forms, tables_of(job.model))}


EXPORTER = Exporter(
    DEVICE,
    operators.CUDA_FORMS,
    {
        **{name: of_ports(run) for name, run in passes.CUDA.items()},
        "check parts": partial(check, check_operators),
    },
    _last,
    require=require_device,
    least=IN_PLACE_OPSET,
    forms_of=quantize.forms_of,
)
