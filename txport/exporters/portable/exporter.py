"""How the graphs of the portable target are made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from txport.bundles.forms import Form
from txport.exporters.exporter import QUANTISE, Exporter, Job, Stage, of_ports, quantise
from txport.exporters.fused.rewrite import tables_of
from txport.exporters.portable.modules import PORTABLE
from txport.exporters.portable.quantize import QDQ_OPSET, STANDARD, forms_of
from txport.exporters.tracing import passes
from txport.exporters.tracing.forms import FORMS


def _last(job: Job, forms: Mapping[str, Form] | None) -> Mapping[str, Stage]:
    return {} if forms is None else {QUANTISE: partial(quantise, STANDARD, forms, tables_of(job.model))}


EXPORTER = Exporter(
    PORTABLE,
    FORMS,
    {name: of_ports(run) for name, run in passes.PORTABLE.items()},
    _last,
    least_few=QDQ_OPSET,
    forms_of=forms_of,
)
