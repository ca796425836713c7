"""Read the installed ONNX Runtime from its files, so that wrong or broken packages work too."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from txport.runtimes.ort.nvidia.binaries import Kernels, kernels, needed
from txport.runtimes.ort.nvidia.libraries import is_nvidias

INFO = "capi/build_and_package_info.py"
ENTRY = re.compile(r"^(package_name|__version__|cuda_version) = '([^']*)'", re.MULTILINE)
USUAL = {"package_name": "onnxruntime", "__version__": "", "cuda_version": ""}
CUDA, TENSORRT, SHARED = "onnxruntime_providers_cuda", "onnxruntime_providers_tensorrt", "onnxruntime_providers_shared"
CUDNN = "cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9"  # for ONNX Runtime from 1.19 on


@dataclass(frozen=True)
class Wheel:
    """The package in `folder`: its name and version, and the CUDA version that it was built with.

    `library`: its CUDA provider, None if it has none. `needs`: NVIDIA's libraries that the provider is linked to, and
    cuDNN. `has_late_cudnn`: whether cuDNN is not linked, but loaded when a node first needs it. `kernels`: the compute
    capabilities that it was built for.
    """

    folder: Path
    name: str = "onnxruntime"
    version: str = ""
    cuda: str = ""
    library: Path | None = None
    needs: tuple[str, ...] = ()
    has_late_cudnn: bool = False
    kernels: Kernels = field(default_factory=Kernels)

    @property
    def cuda_major(self) -> int | None:
        """The major version of the CUDA that it was built with; None if unknown."""
        major = self.cuda.partition(".")[0]
        return int(major) if major.isdigit() else None

    @property
    def described(self) -> str:
        """The name, version and CUDA version as text."""
        built = f", built with CUDA {self.cuda}" if self.cuda else ""
        return f"{self.name} {self.version}{built}".strip()


def library_file(name: str) -> str:
    """Return the file name of a provider's library."""
    return f"{name}.dll" if sys.platform == "win32" else f"lib{name}.so"


def folder_of_package() -> Path | None:
    """Return the folder of ONNX Runtime, without importing it; None if it is not installed."""
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin:
        return Path(spec.origin).parent
    return next(map(Path, spec.submodule_search_locations or ()), None)  # leftover files without a package


@functools.cache
def read_wheel(folder: Path) -> Wheel:
    """Read a folder of ONNX Runtime; fields that can't be read stay empty."""
    try:
        entries = dict(ENTRY.findall((folder / INFO).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        entries = {}
    library = folder / "capi" / library_file(CUDA)
    name, version, cuda = (entries.get(key, usual) for key, usual in USUAL.items())
    if not library.is_file():
        return Wheel(folder, name, version, cuda)
    needs = needs_of(library)
    linked = linked_to(library)
    return Wheel(folder, name, version, cuda, library, needs, needs != linked, _kernels(library))


def needs_of(library: Path) -> tuple[str, ...]:
    """Return NVIDIA's libraries that a provider needs, including cuDNN even if it is not linked."""
    linked = linked_to(library)
    return tuple(dict.fromkeys([*linked, CUDNN])) if linked else ()


def linked_to(library: Path) -> tuple[str, ...]:
    """Return NVIDIA's libraries that a provider is linked to; () if its file can't be read."""
    try:
        return tuple(name for name in needed(library) if is_nvidias(name))
    except OSError:
        return ()


def _kernels(library: Path) -> Kernels:
    try:
        return kernels(library)
    except OSError:
        return Kernels()
