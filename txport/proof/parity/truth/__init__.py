"""What is right for whole runs of a model, by its task: computed by PyTorch in float64, once for all runtimes."""

from __future__ import annotations

from typing import Protocol

from txport.proof.parity.cases import Case
from txport.proof.parity.tolerances import Tolerance
from txport.proof.reports.report import Report
from txport.runtimes.base import GraphRuntime


class Truth(Protocol):
    """What is right in every case; `pytorch` is how far PyTorch itself is off, `cases` are as they are compared."""

    cases: list[Case]
    pytorch: dict[str, float]

    def compare(self, report: Report, label: str, runtime: GraphRuntime, tolerance: Tolerance) -> None:
        """Add to a report what whole runs of one runtime give."""
        ...
