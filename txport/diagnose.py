"""What can run on this machine, what can't, and how to fix it."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from txport import runtimes
from txport.errors import UnavailableError
from txport.system.packages import needed
from txport.version import __version__

BASE = ("numpy", "click", "tokenizers")
PACKAGES = (*BASE, "torch", "onnx", "onnxscript", "safetensors")
WHEELS_FIX = "pip uninstall all of them, then install one: the wheels overwrite each other's files"


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
    """Look at the installation, import every package and really start every provider."""
    wheels = runtimes.versions()
    versions: dict[str, str | None] = {"python": platform.python_version(), "platform": sys.platform}
    versions |= {"machine": platform.machine(), "txport": __version__}
    versions |= {name: _version(name) for name in PACKAGES} | dict(wheels)
    problems = [problem for name in PACKAGES if (problem := _problem(name))]
    if len(wheels) > 1:
        problems.append(f"{len(wheels)} ONNX Runtime wheels are installed ({', '.join(wheels)}); {WHEELS_FIX}")
    found: dict[str, str | None] = {}
    try:
        with needed("txport", "the ort runtime"):
            from txport.runtimes.ort import providers

            found = {name: providers.start(name) for name in providers.candidates()}
    except UnavailableError as error:
        problems.append(str(error))
    return Diagnosis(versions, found, problems)


def _problem(name: str) -> str | None:
    """Why a package that is installed, or has to be, does not import."""
    try:
        with needed("txport", "txport"):
            importlib.import_module(name)
    except UnavailableError as error:
        is_absent = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == name
        return None if is_absent and name not in BASE else str(error)
    return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
