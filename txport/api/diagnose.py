"""Diagnose the installation: versions, available runtimes and providers, problems and their fixes."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass, field

from txport import runtimes
from txport.api import tuned
from txport.errors import UnavailableError
from txport.runtimes.ort.nvidia.driver import query_driver
from txport.runtimes.ort.nvidia.problems import GPU_WHEEL, Nvidia, look
from txport.system.packages import needed
from txport.version import __version__

BASE = ("numpy", "click", "tokenizers")
PACKAGES = (*BASE, "torch", "onnx", "onnxscript", "safetensors", "openvino", "tract")
IMPORTED = {"openvino": "txport.runtimes.openvino.library"}  # modules that import a package safely


@dataclass(frozen=True)
class Diagnosis:
    """The state of the installation.

    `versions` are those of packages (None: not installed). `runtimes` and `providers` (of ONNX Runtime) map each name
    to the reason why it can't run (None: it can). `gpu` describes NVIDIA hardware and libraries; if they are missing,
    that is not a problem of the installation. `tuned` has the settings that `txport tune` found here, by bundle.
    """

    versions: dict[str, str | None]
    runtimes: dict[str, str | None]
    providers: dict[str, str | None]
    gpu: Nvidia
    problems: list[str]
    tuned: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {**asdict(self), "gpu": self.gpu.to_dict()}


def examine() -> Diagnosis:
    """Examine the installation: import every package, and start every provider."""
    wheels = runtimes.versions()
    versions: dict[str, str | None] = {"python": platform.python_version(), "platform": sys.platform}
    versions |= {"machine": platform.machine(), "txport": __version__}
    versions |= {name: _version(name) for name in PACKAGES} | dict(wheels)
    problems = [problem for name in PACKAGES if (problem := _problem(name))]
    if len(wheels) > 1:
        problems.append(_several(list(wheels)))
    found: dict[str, str | None] = {}
    gpu = None
    try:
        with needed("txport", "the ort runtime"):
            from txport.runtimes.ort import providers

            found = {name: providers.start(name) for name in providers.candidates()}
            gpu = look()
    except UnavailableError as error:
        problems.append(str(error))
    able = {name: _missing(name) for name in runtimes.RUNTIMES}
    settings = {bundle: each.describe() for bundle, each in tuned.every()}
    return Diagnosis(versions, able, found, gpu or Nvidia(query_driver()), problems, settings)


def _several(wheels: list[str]) -> str:
    """Return the message for several installed ONNX Runtime wheels, and the fix."""
    kept = GPU_WHEEL if GPU_WHEEL in wheels else next((name for name in wheels if name != "onnxruntime"), wheels[0])
    fix = f"pip uninstall -y {' '.join(wheels)}, then pip install {kept}"
    names = ", ".join(wheels)
    return f"{len(wheels)} ONNX Runtime wheels are installed ({names}), which replace each other's files; {fix}"


def _missing(name: str) -> str | None:
    """Return the reason why a runtime can't run on the CPU, or None."""
    try:
        runtimes.require(name, "cpu")
    except UnavailableError as error:
        return str(error)
    return None


def _problem(name: str) -> str | None:
    """Return the reason why an installed or required package can't be imported, or None."""
    try:
        with needed("txport", "txport"):
            importlib.import_module(IMPORTED.get(name, name))
    except UnavailableError as error:
        is_absent = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == name
        return None if is_absent and name not in BASE else str(error)
    return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
