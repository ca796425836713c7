"""The only import of OpenVINO, with its telemetry disabled.

Its Python package records each import in the user's home and reports it to the vendor, through an optional package.
Without that package it sends nothing.
"""

from __future__ import annotations

import sys

TELEMETRY = "openvino_telemetry"
hides = TELEMETRY not in sys.modules
if hides:
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # importing it raises, as if it were not installed
try:
    import openvino
    import openvino.passes
finally:
    if hides:
        del sys.modules[TELEMETRY]

__all__ = ["openvino"]
