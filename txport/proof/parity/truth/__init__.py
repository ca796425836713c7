"""References for whole runs of a model, by task, computed by PyTorch in float64 once for all runtimes."""

from __future__ import annotations

from typing import Protocol

from txport.proof.parity.cases import Case
from txport.proof.parity.tolerances import Tolerance
from txport.proof.reports.report import Report
from txport.runtimes.base import GraphRuntime


class Truth(Protocol):
    """Reference results of all cases. `pytorch`: the errors of PyTorch itself, if measured. `cases`: as compared."""

    cases: list[Case]
    pytorch: dict[str, float]

    def compare(self, report: Report, label: str, runtime: GraphRuntime, tolerance: Tolerance) -> None:
        """Add the comparison of whole runs of one runtime to a report."""
        ...
