"""OpenVINO, which is imported here and nowhere else, so that it sends nothing and keeps no record of its use.

Its Python package counts each import in the user's home and tells its maker of it, by a package that it takes for
optional: without that one it says nothing.
"""

from __future__ import annotations

import sys

TELEMETRY = "openvino_telemetry"
hides = TELEMETRY not in sys.modules
if hides:
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # an import of it raises, as if it were not there
try:
    import openvino
finally:
    if hides:
        del sys.modules[TELEMETRY]

__all__ = ["openvino"]
