"""The installed ONNX Runtime, read from its files: it need not import, and may be a wrong or a broken one."""

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
CUDNN = "cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9"  # of every ONNX Runtime from 1.19 on


@dataclass(frozen=True)
class Wheel:
    """The package that lies in `folder`: the name and version that it was built as, and the CUDA it was built with.

    `library` is its CUDA provider, None if it has none; `needs` are NVIDIA's libraries that this is linked to, and
    cuDNN; `has_late_cudnn` says whether it is not linked to that, but loads it when a node first needs it; `kernels`
    are the GPUs that it was built for.
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
        """The major version of the CUDA that it was built with, None if it does not say."""
        major = self.cuda.partition(".")[0]
        return int(major) if major.isdigit() else None

    @property
    def described(self) -> str:
        """Name, version, and CUDA."""
        built = f", built with CUDA {self.cuda}" if self.cuda else ""
        return f"{self.name} {self.version}{built}".strip()


def library_file(name: str) -> str:
    """The file of a provider's library."""
    return f"{name}.dll" if sys.platform == "win32" else f"lib{name}.so"


def folder_of_package() -> Path | None:
    """Where ONNX Runtime lies, whether it imports or not; None if it is not installed."""
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin:
        return Path(spec.origin).parent
    return next(map(Path, spec.submodule_search_locations or ()), None)  # files of it, and no package any more


@functools.cache
def read_wheel(folder: Path) -> Wheel:
    """What lies in a folder of ONNX Runtime; what can't be read stays empty."""
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
    """NVIDIA's libraries that a provider needs; cuDNN is one of them, whether it is linked to it or not."""
    linked = linked_to(library)
    return tuple(dict.fromkeys([*linked, CUDNN])) if linked else ()


def linked_to(library: Path) -> tuple[str, ...]:
    """NVIDIA's libraries without which a provider does not load."""
    try:
        return tuple(name for name in needed(library) if is_nvidias(name))
    except OSError:
        return ()


def _kernels(library: Path) -> Kernels:
    try:
        return kernels(library)
    except OSError:
        return Kernels()
