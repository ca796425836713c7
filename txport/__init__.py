"""Take a PyTorch Transformer to production: export it to ONNX, run it, prove it, measure it."""

from __future__ import annotations

from txport.errors import TxportError
from txport.version import __version__

__all__ = [
    "Answer", "Engine", "Fill", "Generated", "Handle", "Hypothesis", "Label", "Model", "Ranked", "Segment", "Tag",
    "Transcript", "TxportError",
    "__version__", "export", "load",
]  # fmt: skip

TYPE_CHECKING = False  # as in typing; importing typing would take most of a command's start time
if TYPE_CHECKING:
    from txport.api.answers import Answer
    from txport.api.encoding import Fill, Label, Ranked, Tag
    from txport.api.generated import Generated, Hypothesis
    from txport.api.loading import load
    from txport.api.model import Engine, Handle, Model, Segment, Transcript, export


def __getattr__(name: str) -> object:
    """Import the API at first use, so that `import txport` loads neither torch nor onnxruntime."""
    if name not in __all__:
        raise AttributeError(f"module 'txport' has no attribute {name!r}")
    if name == "load":
        from txport.api.loading import load  # which imports the others while a runtime starts

        return load
    from txport.api import model as api

    return getattr(api, name)
