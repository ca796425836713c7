"""The only import of ONNX Runtime, with its telemetry disabled.

Telemetry (from 1.31 on) is enabled by default: it stores a device identifier and a database of events in the user's
cache, and connects to its vendor. The variable is read when the library is loaded; a value set by the user is kept.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

ort.set_default_logger_severity(4)  # failures raise errors; a log between our lines would not help

__all__ = ["ort"]
