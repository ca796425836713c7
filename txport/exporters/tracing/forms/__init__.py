"""ONNX conversions of the PyTorch functions that models call: one form per function name."""

from txport.exporters.tracing.forms import arithmetic, elementwise, indexing, layers, reductions, shapes
from txport.exporters.tracing.forms.common import FORMS

__all__ = ["FORMS", "arithmetic", "elementwise", "indexing", "layers", "reductions", "shapes"]
