"""How the graphs of the portable target are made."""

from __future__ import annotations

from txport.exporters.exporter import Exporter, of_ports
from txport.exporters.portable.modules import PORTABLE
from txport.exporters.tracing import passes
from txport.exporters.tracing.forms import FORMS

EXPORTER = Exporter(PORTABLE, FORMS, {name: of_ports(run) for name, run in passes.PORTABLE.items()})
