"""Each thing that can be missing on a machine is told in one line: what was found, what is needed, what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtimes.nvidia import machines
from tests.runtimes.nvidia.machines import B200, H100, NEEDS, NO_GPU, P100, T4, Machine, elf, lay, wheel
from txport.runtimes.ort.nvidia import driver, problems
from txport.runtimes.ort.nvidia.driver import query_driver
from txport.runtimes.ort.nvidia.libraries import find
from txport.runtimes.ort.nvidia.problems import (
    Nvidia,
    look,
    problems_of_cuda,
    problems_of_cudnn,
    problems_of_driver,
    problems_of_tensorrt,
)
from txport.runtimes.ort.nvidia.wheel import CUDNN

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the libraries have other names there")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine that runs the tests shows."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(driver, "KERNEL_MODULE", tmp_path / "none")


def told(machine: Machine, folder: Path, **changes: Any) -> list[str]:
    """The problems on a machine with a wheel."""
    installed = wheel(folder / "site" / "onnxruntime", **changes)
    found = find(installed.needs, folder / "site", machine.open)
    facts = Nvidia(query_driver(machine.open), installed, found)
    return [str(problem) for problem in (*problems_of_cuda(facts), *problems_of_cudnn(facts))]


def test_a_whole_machine_has_none(tmp_path: Path) -> None:
    assert told(Machine(), tmp_path) == []
    found = query_driver(Machine(gpus=(H100, T4)).open)
    assert (found.version, found.cuda, found.hidden, found.error) == ("580.65.06", (13, 0), (), None)
    assert [device.described for device in found.devices] == [
        "NVIDIA H100 (compute capability 9.0)",
        "Tesla T4 (compute capability 7.5)",
    ]
    assert (found.devices[0].memory, found.devices[0].free) == (80 << 30, 79 << 30)


def test_what_cannot_be_asked_stays_empty(tmp_path: Path) -> None:
    found = query_driver(Machine(version=None).open)
    assert (found.version, found.devices[0].free) == ("", None)
    assert told(Machine(version=None), tmp_path) == []


def test_a_partition_of_a_gpu_has_no_more_free_than_it_has() -> None:
    class Whole(machines.Nvml):
        def nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:  # noqa: N802
            out._obj.free = 80 << 30
            return 0

    machine = Machine(gpus=(("NVIDIA H100 MIG 1g.10gb", (9, 0), 10 << 30),))
    opened = machine.open
    found = query_driver(lambda name: Whole(machine) if name == driver.MANAGEMENT else opened(name))
    assert found.devices[0].free == 10 << 30


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        (
            Machine(cuda=None),
            "found no NVIDIA driver (libcuda.so.1 does not load), needs an NVIDIA GPU and its driver 580 or newer; "
            "install it, then pip install 'txport[cuda]' for CUDA and cuDNN",
        ),
        (
            Machine(cuda=12020, version="535.129.03"),
            "found the NVIDIA driver 535.129.03, which runs CUDA up to 12.2, needs CUDA 13, so driver 580 or newer; "
            "update it, or install an onnxruntime-gpu that was built with CUDA 12",
        ),
        (
            Machine(gpus=(), start=NO_GPU),
            "found the NVIDIA driver 580.65.06, which finds no GPU, needs an NVIDIA GPU that this process may use; "
            "see whether nvidia-smi lists one; in a container, start it with its GPUs (docker run --gpus all)",
        ),
        (
            Machine(start=NO_GPU),
            "found NVIDIA H100, which CUDA does not show to this process, needs an NVIDIA GPU that this process may "
            "use; see who may open /dev/nvidia*; in a container, start it with its GPUs (docker run --gpus all)",
        ),
        (
            Machine(start=803),
            "found a driver whose library and kernel module differ (CUDA error 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"
            ", needs a GPU that CUDA can start; restart the machine; an update of the driver needs that",
        ),
        (
            Machine(start=999),
            "found the NVIDIA driver 580.65.06, in which CUDA does not start (error 999, ?), needs an NVIDIA GPU that "
            "this process may use; restart the machine; if nvidia-smi fails then too, install the driver anew",
        ),
        (
            Machine(gpus=(P100,)),
            "found Tesla P100 (compute capability 6.0), needs compute capability 7.5, 8.0, 8.6, 8.9, 9.0, 12.0, which "
            "onnxruntime-gpu 1.31.1, built with CUDA 13.0 has kernels for; install an older onnxruntime-gpu, or use "
            "provider='cpu'",
        ),
        (
            Machine(gpus=(B200,)),
            "found NVIDIA B200 (compute capability 10.0), needs compute capability 7.5, 8.0, 8.6, 8.9, 9.0, 12.0, "
            "which onnxruntime-gpu 1.31.1, built with CUDA 13.0 has kernels for; install a newer onnxruntime-gpu, or "
            "use provider='cpu'",
        ),
        (
            Machine(gpus=(P100, T4)),
            "found Tesla P100 (compute capability 6.0), needs compute capability 7.5, 8.0, 8.6, 8.9, 9.0, 12.0, which "
            "onnxruntime-gpu 1.31.1, built with CUDA 13.0 has kernels for; set CUDA_VISIBLE_DEVICES=1",
        ),
        (
            Machine(libraries={CUDNN: 91002}),
            "found no libcublasLt.so.13, needs libcublasLt.so.13, libcublas.so.13, libcurand.so.10, libcudart.so.13 of "
            "CUDA; pip install 'txport[cuda]' brings what is needed",
        ),
        (
            Machine(libraries=dict.fromkeys(NEEDS[:-1], 13000)),
            "found no libcudnn.so.9, needs libcudnn.so.9 of cuDNN; pip install 'txport[cuda]' brings what is needed",
        ),
        (
            Machine(libraries={**dict.fromkeys(NEEDS[:-1], 13000), "libcudnn.so.8": 8907}),
            "found libcudnn.so.8, needs libcudnn.so.9 of cuDNN; pip install 'txport[cuda]' brings what is needed",
        ),
        (
            Machine(broken={"libcublas.so.13": "libcublasLt.so.13: undefined symbol: x"}),
            "found libcublas.so.13, which does not load (libcublasLt.so.13: undefined symbol: x), needs "
            "libcublas.so.13 of CUDA; pip install 'txport[cuda]' brings what is needed",
        ),
    ],
    ids=lambda value: "" if isinstance(value, Machine) else value[6:50],
)
def test_each_fault_is_one_line(machine: Machine, line: str, tmp_path: Path) -> None:
    assert told(machine, tmp_path) == [line]


@pytest.mark.parametrize("hidden", ["", "-1", "7"])
def test_gpus_that_a_variable_hides(hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert told(Machine(start=NO_GPU), tmp_path) == [
        f"found CUDA_VISIBLE_DEVICES={hidden!r}, which hides NVIDIA H100, needs an NVIDIA GPU that this process may "
        "use; unset CUDA_VISIBLE_DEVICES, or set it to 0"
    ]
    assert "found CUDA_VISIBLE_DEVICES" in told(Machine(start=NO_GPU, gpus=(), version=None), tmp_path)[0]


def test_a_container_without_the_drivers_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:05:28 UTC 2025\nGCC version: 12\n"
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(driver, "KERNEL_MODULE", tmp_path / "version")
    [line] = told(Machine(cuda=None), tmp_path)
    assert line.startswith("found the driver 580.65.06 in the kernel and none of its libraries")
    assert "docker run --gpus all" in line


@pytest.mark.parametrize(
    ("package", "cuda", "line"),
    [
        (
            "onnxruntime",
            "",
            "found onnxruntime 1.31.1, which has no CUDA provider, needs onnxruntime-gpu; pip uninstall -y "
            "onnxruntime, then pip install onnxruntime-gpu",
        ),
        (
            "onnxruntime-gpu",
            "13.0",
            "found onnxruntime-gpu 1.31.1, built with CUDA 13.0, without its libonnxruntime_providers_cuda.so, needs "
            "all of its files; pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1",
        ),
    ],
)
def test_wheels_without_the_provider(
    package: str, cuda: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "has_gpu_wheel", lambda: True)
    found = look(Machine().open, lay(tmp_path / "onnxruntime", package, cuda))
    assert [str(problem) for problem in problems_of_cuda(found)] == [line]


def test_where_there_is_no_wheel_with_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "has_gpu_wheel", lambda: False)
    [problem] = problems_of_cuda(look(Machine().open, lay(tmp_path / "onnxruntime", "onnxruntime", "")))
    assert problem.fix == "there is no onnxruntime-gpu for this kind of machine, so use provider='cpu'"


def test_a_wheel_is_read_from_its_files(tmp_path: Path) -> None:
    folder = lay(tmp_path / "onnxruntime", library=elf([*NEEDS[:-1], "libcuda.so.1", "libc.so.6"], [75, 90]))
    packages = tmp_path / "nvidia" / "cu13" / "lib"
    packages.mkdir(parents=True)
    (packages / "libcudart.so.13").touch()
    found = look(Machine(libraries={**dict.fromkeys(NEEDS, 0), "libcudart.so.13": 13000, CUDNN: 91002}).open, folder)
    assert found.wheel is not None
    assert (found.wheel.described, str(found.wheel.kernels)) == (
        "onnxruntime-gpu 1.31.1, built with CUDA 13.0",
        "7.5, 9.0",
    )
    assert found.wheel.needs == NEEDS, "libcuda is the driver's, and cuDNN is loaded later"
    where = {library.name: (library.path, library.version) for library in found.libraries}
    assert where["libcudart.so.13"] == (str(packages / "libcudart.so.13"), "13.0")
    assert where[CUDNN] == ("system", "9.10.2")
    assert problems_of_cuda(found) == []
    assert found.to_dict()["problems"] == []


def test_a_library_that_pip_brought_and_that_is_damaged(tmp_path: Path) -> None:
    place = tmp_path / "site" / "nvidia" / "cudnn" / "lib"
    place.mkdir(parents=True)
    (place / CUDNN).write_bytes(b"half a file")
    [line] = told(Machine(broken={CUDNN: "file too short"}), tmp_path)
    assert line.startswith(f"found {place / CUDNN}, which does not load (file too short), needs {CUDNN} of cuDNN; ")


@pytest.mark.parametrize("is_late", [False, True])
def test_cudnn_keeps_a_provider_from_starting_only_where_it_is_linked_to_it(tmp_path: Path, is_late: bool) -> None:
    folder = lay(tmp_path / "onnxruntime", library=elf(list(NEEDS[:-1] if is_late else NEEDS), [90]))
    found = look(Machine(libraries=dict.fromkeys(NEEDS[:-1], 0)).open, folder)
    kept = problems_of_cuda(found)
    lacking = problems_of_cudnn(found)
    assert (len(kept), len(lacking)) == ((0, 1) if is_late else (1, 0))
    assert found.to_dict()["problems"] == list(map(str, kept + lacking))
    assert len(problems_of_tensorrt(found)) > 1


def test_all_is_told_at_once_and_the_driver_first(tmp_path: Path) -> None:
    lines = told(Machine(cuda=None, libraries={}), tmp_path)
    assert [line.split(",")[0] for line in lines] == [
        "found no NVIDIA driver (libcuda.so.1 does not load)",
        "found no libcublasLt.so.13",
        "found no libcudnn.so.9",
    ]


def test_what_brings_its_own_cuda_needs_the_driver_alone(tmp_path: Path) -> None:
    bare = Machine(libraries={})
    found = Nvidia(query_driver(bare.open), wheel(tmp_path, library=None))
    assert problems_of_driver(found) == []
    assert len(problems_of_driver(Nvidia(query_driver(Machine(cuda=None).open), None))) == 1


def test_tensorrt_has_libraries_of_its_own(tmp_path: Path) -> None:
    folder = lay(tmp_path / "onnxruntime", library=elf([*NEEDS[:-1]], [90]))
    found = look(Machine().open, folder)
    lines = [str(problem) for problem in problems_of_tensorrt(found)]
    assert "without its libonnxruntime_providers_tensorrt.so" in lines[0]
    (folder / "capi" / "libonnxruntime_providers_tensorrt.so").touch()
    absent = find(["libnvinfer.so.10", "libnvonnxparser.so.10"], tmp_path, Machine().open)
    assert [
        str(problem) for problem in problems_of_tensorrt(Nvidia(found.driver, found.wheel, found.libraries, absent))
    ] == [
        "found no libnvinfer.so.10, needs libnvinfer.so.10, libnvonnxparser.so.10 of NVIDIA TensorRT 10; "
        "pip install 'tensorrt-cu13==10.*'"
    ]


STAND_IN = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal + 5; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, device == 5 ? "Stand-in" : "?", size); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 8 : 6; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)24 << 30; return 0; }
int cuDeviceGetPCIBusId(char *id, int size, int device) { strncpy(id, "0000:65:00.0", size); return 0; }
"""
STAND_IN_MANAGEMENT = """
#include <string.h>
struct memory { unsigned long long total, free, used; };
static int handle;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { strncpy(version, "535.1", size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &handle; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { strncpy(name, "Stand-in", size); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    *device = &handle;
    return strcmp(id, "0000:65:00.0");
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    if (device != &handle) return 1;
    memory->total = (unsigned long long)24 << 30;
    memory->free = (unsigned long long)20 << 30;
    return 0;
}
"""
QUERY = (
    "from txport.runtimes.ort.nvidia.driver import query_driver; "
    "found = query_driver(); print(found.version, found.cuda, *found.devices)"
)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="no C compiler here")
def test_a_driver_in_c_is_asked_in_its_own_types(tmp_path: Path) -> None:
    """The fakes above can't tell whether pointers and sizes are what C takes."""
    for name, source in (("libcuda.so.1", STAND_IN), ("libnvidia-ml.so.1", STAND_IN_MANAGEMENT)):
        command = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(tmp_path / name)]
        subprocess.run(command, input=source, text=True, check=True)
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", QUERY], env=environment, capture_output=True, text=True, check=True)
    device = f"Device(name='Stand-in', capability=(8, 6), memory={24 << 30}, free={20 << 30})"
    assert done.stdout.strip() == f"535.1 (12, 2) {device}"


@pytest.mark.skipif(sys.platform != "linux", reason="the loader is another one")
def test_a_file_that_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    code = f"{QUERY}; print(found.is_there, found.loaded)"
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "False" in done.stdout
    assert "libcuda.so.1" in done.stdout
