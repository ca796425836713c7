"""Find the libraries of CUDA and cuDNN that a provider needs: their paths, versions, and other versions present."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.errors import brief
from txport.runtimes.ort.nvidia.driver import Opener, load

# A library's family and major version: libcublas.so.13, cublas64_13.dll, nvinfer_10.dll
NAMES = re.compile(r"lib(?P<elf>\w+)\.so\.(?P<elf_major>\d+)|(?P<pe>\w+?)(64)?_(?P<pe_major>\d+)\.dll", re.IGNORECASE)
OF_NVIDIA = ("cudart", "cublas", "cublasLt", "curand", "cufft", "cusparse", "cusolver", "cudnn", "nvrtc", "nvJitLink")
OF_TENSORRT = ("nvinfer", "nvonnxparser")
PLACES = ("nvidia/*/lib", "nvidia/*/bin", "nvidia/*/bin/*", "tensorrt_libs")  # folders of packages installed by pip
ASKED = {"cudnn": "cudnnGetVersion", "nvinfer": "getInferLibVersion"}  # family -> the function that returns its version
SYSTEM = "system"
MAPS = Path("/proc/self/maps")  # the files that this process has mapped


@dataclass(frozen=True)
class Library:
    """A needed library, by name.

    `path`: its file, "system" if only the loader knows it, None if it was not found. `version`: the version that it
    reports, if any. `reason`: why a library that was found does not load. `others`: libraries of the same family with
    another major version that were found instead.
    """

    name: str
    path: str | None
    version: str = ""
    reason: str = ""
    others: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The family of the library: `cudnn` for libcudnn.so.9."""
        return split(self.name)[0]

    @property
    def is_fine(self) -> bool:
        """Whether the library was found and loads."""
        return self.path is not None and not self.reason


def split(name: str) -> tuple[str, str]:
    """Return the family and major version in a library's name; the whole name and "" for an unknown form."""
    found = NAMES.fullmatch(name)
    if not found:
        return name, ""
    return found["elf"] or found["pe"], found["elf_major"] or found["pe_major"]


def is_nvidias(name: str) -> bool:
    """Return whether a library belongs to CUDA, cuDNN or TensorRT; those of the driver do not."""
    family = split(name)[0].lower()
    return family in {each.lower() for each in (*OF_NVIDIA, *OF_TENSORRT)}


def find(names: Iterable[str], packages: Path, open_library: Opener = load) -> tuple[Library, ...]:
    """Look for libraries in NVIDIA's packages in `packages` (site-packages), then with the system's loader."""
    return tuple(_find(name, packages, open_library) for name in names)


def _find(name: str, packages: Path, open_library: Opener) -> Library:
    folders = [folder for place in PLACES for folder in sorted(packages.glob(place)) if folder.is_dir()]
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    others = () if file else _others(name, folders, open_library)
    try:
        library = open_library(str(file or name))
    except OSError as error:
        if file:
            return Library(name, str(file), reason=brief(error))
        # If the loader finds the library but not one that it needs, the message has the name of that other one.
        return Library(name, None, reason="" if name in str(error) else brief(error), others=others)
    return Library(name, str(file) if file else _place_of(name), _version(split(name)[0], library))


def _place_of(name: str) -> str:
    """Return the path from which a library is loaded in this process; `SYSTEM` if it is unknown."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return SYSTEM
    paths = (line.partition("/")[2] for line in lines if "/" in line)
    return next((f"/{path}" for path in paths if path.rpartition("/")[2].startswith(name)), SYSTEM)


def _others(name: str, folders: list[Path], open_library: Opener) -> tuple[str, ...]:
    family, major = split(name)
    found = {
        file.name
        for folder in folders
        for file in folder.iterdir()
        if split(file.name)[0] == family and split(file.name)[1] not in ("", major)
    }
    if major:
        for other in (int(major) - 1, int(major) + 1):
            sibling = name.replace(f".so.{major}", f".so.{other}").replace(f"_{major}.dll", f"_{other}.dll")
            try:
                open_library(sibling)
                found.add(sibling)
            except OSError:
                pass
    return tuple(sorted(found))


def _version(family: str, library: Any) -> str:
    """Return the version that the CUDA runtime, cuDNN or TensorRT reports; "" for other libraries."""
    try:
        if family == "cudart":
            value = ctypes.c_int(0)
            library.cudaRuntimeGetVersion(ctypes.byref(value))
            return f"{value.value // 1000}.{value.value % 1000 // 10}" if value.value else ""
        if family in ASKED:
            function = getattr(library, ASKED[family])
            function.restype = ctypes.c_size_t if family == "cudnn" else ctypes.c_int
            number = int(function())
            unit = 10000 if number >= 10000 else 1000  # up to cuDNN 8 and TensorRT 8
            return f"{number // unit}.{number % unit // 100}.{number % 100}"
    except AttributeError:
        pass
    return ""
