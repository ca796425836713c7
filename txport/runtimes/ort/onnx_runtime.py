"""ONNX Runtime, which is imported here and nowhere else, so that it sends nothing and keeps no record of its use.

Its telemetry (from 1.31 on) is on by default: an identifier of the device and a database of events in the user's
cache, and connections to its maker. The switch is read when the library is loaded; a user who has set it keeps it.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

ort.set_default_logger_severity(4)  # what fails is raised; a log between our lines helps nobody

__all__ = ["ort"]
