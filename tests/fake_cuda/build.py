"""Builds the libraries of CUDA that ONNX Runtime's provider asks for, from `device.c` and from what it asks for.

    python -m tests.fake_cuda.build FOLDER

The provider's own table of symbols says which functions there must be, and in which library; of cuDNN, which it opens
when it needs it, its texts do. Those that `device.c` does not define answer that all went well. All are one file under
the names of the libraries, and count together, but for cuDNN, which counts nothing.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PROVIDERS = ("libonnxruntime_providers_cuda.so", "libonnxruntime_providers_tensorrt.so")
CUDNN = "libcudnn.so.9"
DEVICE = Path(__file__).parent / "device.c"
SYMBOL = re.compile(r"\bU (\w+)(?:@(lib\w+\.so\.\d+))?$", re.MULTILINE)
OF_NVIDIA = re.compile(r"cu[A-Z]|create\w+_INTERNAL|getPluginRegistry|getInferLibVersion")  # symbols without a library
OF_CUDNN = re.compile(rb"\0(cudnn[A-Z]\w+)(?=\0)")
LAUNCH = re.compile(r"(__)?cudaLaunch(Cooperative)?Kernel|cublas\w*(gemm|Gemm|geam|Matmul$|Transform$|copy|scal)")
LIBRARY = re.compile(r"\[(lib(?:cu|nv)[\w.]+)\]")
FLAGS = ("-O1", "-w", "-shared", "-fPIC", "-fno-builtin")


class Folders(NamedTuple):
    """Where libraries lie: those of CUDA alone, cuDNN's beside them, and TensorRT's too."""

    cuda: Path
    with_cudnn: Path
    everything: Path


def providers() -> list[Path]:
    """The provider libraries of the installed wheel; none where it has none."""
    found = find_spec("onnxruntime")
    assert found is not None
    assert found.origin is not None
    return [file for name in PROVIDERS if (file := Path(found.origin).parent / "capi" / name).exists()]


def libraries(provider: Path) -> set[str]:
    """The names of NVIDIA's libraries that a provider is linked to."""
    table = subprocess.run(["readelf", "-d", str(provider)], check=True, capture_output=True, text=True)
    return set(LIBRARY.findall(table.stdout))


def symbols() -> dict[str, set[str]]:
    """The functions of NVIDIA's that the providers need, by library; "" where nothing says which."""
    needed: dict[str, set[str]] = defaultdict(set)
    for file in providers():
        table = subprocess.run(["nm", "-D", "--undefined-only", str(file)], check=True, capture_output=True, text=True)
        for name, library in SYMBOL.findall(table.stdout):
            if library.startswith(("libcu", "libnv")) or (not library and OF_NVIDIA.match(name)):
                needed[library].add(name)
    known = set().union(*needed.values())
    with providers()[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        needed[CUDNN] |= {name.decode() for name in OF_CUDNN.findall(content)} - known
    return needed


def source(needed: dict[str, set[str]]) -> Iterator[str]:
    """A function for each symbol, which another of that name takes the place of."""
    yield "long fake_launch(void);"
    for name in sorted(set().union(*needed.values())):
        does = "return fake_launch();" if LAUNCH.match(name) else "return 0;"
        yield f"__attribute__((weak)) long {name}(void) {{ {does} }}"


def versions(needed: dict[str, set[str]]) -> Iterator[str]:
    """The linker's script, by which a function is of its library."""
    for library, names in needed.items():
        yield f"{library or 'fake'} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
    yield "more { global: fake_count; fake_launches_on; fake_streams; cu[A-Z]*; local: *; };"


def build(folder: Path) -> Folders:
    """Compile into a new folder."""
    folder.mkdir(parents=True)
    needed = symbols()
    stubs, script, library = (folder / name for name in ("stubs.c", "versions.map", "fake.so"))
    stubs.write_text("\n".join(source(needed)) + "\n", encoding="utf-8")
    script.write_text("\n".join(versions(needed)) + "\n", encoding="utf-8")
    command = ["cc", *FLAGS, f"-Wl,--version-script={script}", "-o", str(library), str(DEVICE), str(stubs)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    places = folders(folder)
    cuda, *more = map(libraries, providers())
    for place, names in zip(places, (cuda, {*cuda, CUDNN}, {CUDNN}.union(cuda, *more)), strict=True):
        place.mkdir()
        for name in names:
            (shutil.copy if name == CUDNN else os.link)(library, place / name)
    return places


def folders(folder: Path) -> Folders:
    """Where `build` puts them."""
    return Folders(*(folder / name for name in Folders._fields))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
