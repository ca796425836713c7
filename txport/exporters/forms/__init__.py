"""ONNX conversions of the PyTorch functions that models call: one form per function name."""

from txport.exporters.forms import arithmetic, layers, shapes
from txport.exporters.forms.common import FORMS

__all__ = ["FORMS", "arithmetic", "layers", "shapes"]
