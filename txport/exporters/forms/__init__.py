"""What the functions of PyTorch that models call are in ONNX: one form each, by the function's name."""

from txport.exporters.forms import arithmetic, layers, shapes
from txport.exporters.forms.common import FORMS

__all__ = ["FORMS", "arithmetic", "layers", "shapes"]
