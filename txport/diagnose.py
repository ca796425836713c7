"""What can run on this machine, what can't, and how to mend it."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from txport import __version__, runtimes

PACKAGES = ("numpy", "click", "tokenizers", "torch", "onnx", "onnxscript", "safetensors")
WHEELS_MEND = "pip uninstall all of them, then install one: the wheels overwrite each other's files"


@dataclass(frozen=True)
class Diagnosis:
    """Versions by package (None if it is absent), why each provider can't start (None if it does), what is broken."""

    versions: dict[str, str | None]
    providers: dict[str, str | None]
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def examine() -> Diagnosis:
    """Look at the installation and really start every provider."""
    wheels = runtimes.versions()
    versions: dict[str, str | None] = {"python": platform.python_version(), "platform": sys.platform}
    versions |= {"machine": platform.machine(), "txport": __version__}
    versions |= {name: _version(name) for name in PACKAGES} | dict(wheels)
    problems = []
    if len(wheels) > 1:
        problems.append(f"{len(wheels)} ONNX Runtime wheels are installed ({', '.join(wheels)}); {WHEELS_MEND}")
    try:
        from txport.runtimes import providers

        found = {name: providers.start(name) for name in providers.candidates()}
    except (ImportError, AttributeError) as error:
        problems.append(f"ONNX Runtime does not import ({error}); pip install --force-reinstall txport")
        found = {}
    return Diagnosis(versions, found, problems)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
