"""Each thing that can be missing on a machine is told in one line: what was found, what is needed, what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from tests.runtimes.ort.nvidia.machines import CUBLAS, H100, NO_GPU, T4, Machine
from txport.errors import UnavailableError
from txport.runtimes.ort import providers
from txport.runtimes.ort.nvidia import problems
from txport.runtimes.ort.nvidia.driver import query_driver
from txport.runtimes.ort.nvidia.problems import CUDA, CUDNN, look, problem_of_library

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the libraries have other names there")


def told(machine: Machine, folder: Path) -> list[str]:
    """The problems on a machine."""
    with machine.used(folder):
        lines: list[str] = look().to_dict()["problems"]
    return lines


def test_a_whole_machine_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(gpus=(H100, T4))
    assert told(machine, tmp_path) == []
    with machine.used(tmp_path):
        driver = query_driver()
        assert providers.require_provider("cuda") == "CUDAExecutionProvider"
        assert providers.first_device() == driver.devices[0]
    assert capsys.readouterr().out == ""
    assert (driver.version, driver.cuda, driver.hidden, driver.error) == ("580.65.06", (13, 0), (), 0)
    assert [device.described for device in driver.devices] == [
        "NVIDIA H100 (compute capability 9.0)",
        "Tesla T4 (compute capability 7.5)",
    ]
    assert (driver.devices[0].memory, driver.devices[0].free) == (80 << 30, 79 << 30)
    assert driver.devices[1].free == 15 << 30, "no more is free than there is: the board of a partition has more"


def test_without_nvidias_package_all_but_the_free_memory_is_known(tmp_path: Path) -> None:
    with Machine(version=None).used(tmp_path):
        driver = query_driver()
        assert look().to_dict()["problems"] == []
    assert (driver.version, driver.devices[0].memory, driver.devices[0].free) == ("", 80 << 30, None)


FAULTS = [
    (
        Machine(cuda=None),
        "found no NVIDIA driver (libcuda.so.1 does not load), needs an NVIDIA GPU and its driver 580 or newer; "
        "install it, then pip install 'txport[cuda]' for CUDA and cuDNN; "
        "in a container, start it with its GPUs (docker run --gpus all)",
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
        "found the NVIDIA driver 580.65.06, in which CUDA does not start (error 803), needs an NVIDIA GPU that "
        "this process may use; restart the machine; if nvidia-smi fails then too, install the driver anew",
    ),
    (
        Machine(lacks=(CUBLAS,)),
        "found no libcublasLt.so.13, needs it for libonnxruntime_providers_cuda.so; "
        "pip install 'txport[cuda]' brings what is needed",
    ),
]


@pytest.mark.parametrize(("machine", "line"), FAULTS, ids=[line[6:50] for _, line in FAULTS])
def test_each_fault_is_one_line(machine: Machine, line: str, tmp_path: Path) -> None:
    assert told(machine, tmp_path) == [line]
    with machine.used(tmp_path), pytest.raises(UnavailableError) as caught:
        providers.require_provider("cuda")
    assert str(caught.value) == f"provider cuda can't run here: {line}"


def test_cudnn_is_missing_only_for_what_needs_it(tmp_path: Path) -> None:
    machine = Machine(lacks=(CUDNN,))
    line = "found no libcudnn.so.9, needs libcudnn.so.9 of cuDNN; pip install 'txport[cuda]' brings what is needed"
    assert told(machine, tmp_path) == [line]
    with machine.used(tmp_path):
        assert providers.require_provider("cuda") == "CUDAExecutionProvider"
        with pytest.raises(
            UnavailableError, match=f"provider cuda can't run here: {line}; it convolves".replace("[", r"\[")
        ):
            providers.require_cudnn("cuda", "it convolves")


def test_all_is_told_at_once_and_the_driver_first(tmp_path: Path) -> None:
    machine = Machine(cuda=None, lacks=(CUBLAS, CUDNN))
    assert [line.split(",")[0] for line in told(machine, tmp_path)] == [
        "found no NVIDIA driver (libcuda.so.1 does not load)",
        "found no libcublasLt.so.13",
        "found no libcudnn.so.9",
    ]
    with machine.used(tmp_path), pytest.raises(UnavailableError, match=r"\(and 1 more, which `txport doctor` lists\)"):
        providers.require_provider("cuda")


@pytest.mark.parametrize("hidden", ["", "-1", "7"])
def test_gpus_that_a_variable_hides(hidden: str, tmp_path: Path) -> None:
    with Machine(start=NO_GPU).used(tmp_path) as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert look().to_dict()["problems"] == [
            f"found CUDA_VISIBLE_DEVICES={hidden!r}, which hides NVIDIA H100, needs an NVIDIA GPU that this process "
            "may use; unset CUDA_VISIBLE_DEVICES, or set it to 0"
        ]


@pytest.mark.parametrize(
    ("has_wheel", "fix"),
    [
        (True, "pip uninstall -y onnxruntime, then pip install onnxruntime-gpu"),
        (False, "there is no onnxruntime-gpu for this kind of machine, so use provider='cpu'"),
    ],
)
def test_a_wheel_without_the_provider(has_wheel: bool, fix: str, tmp_path: Path) -> None:
    with Machine().used(tmp_path) as patch:
        patch.setattr(problems, "has_gpu_wheel", lambda: has_wheel)
        patch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
        patch.setattr(onnxruntime, "cuda_version", "")
        patch.setattr(onnxruntime, "package_name", "onnxruntime")
        version = onnxruntime.__version__
        [line] = look().to_dict()["problems"]
    assert line == f"found onnxruntime {version}, which has no CUDA provider, needs onnxruntime-gpu; {fix}"


def test_a_wheel_whose_files_are_gone(tmp_path: Path) -> None:
    with Machine().used(tmp_path):
        (tmp_path / "capi" / CUDA).unlink()
        version = onnxruntime.__version__
        assert str(problem_of_library(CUDA)) == (
            f"found onnxruntime-gpu {version}, built with CUDA 13.0, without its {CUDA}, needs all of its files; "
            f"pip install --force-reinstall --no-deps onnxruntime-gpu=={version}"
        )


def test_tensorrt_has_libraries_of_its_own(tmp_path: Path) -> None:
    with Machine(lacks=(f"{tmp_path}/capi/{problems.TENSORRT}",)).used(tmp_path):
        (tmp_path / "capi" / problems.TENSORRT).touch()
        assert str(problem_of_library(problems.TENSORRT)).endswith(
            "; pip install 'tensorrt-cu13==10.*' brings what is needed"
        )


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
QUERY = (
    "from txport.runtimes.ort.nvidia.driver import query_driver; "
    "driver = query_driver(); print(driver.is_there, driver.cuda, *driver.devices)"
)


def asked(folder: Path) -> str:
    environment = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-c", QUERY]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="no C compiler here")
def test_a_driver_in_c_is_asked_in_its_own_types(tmp_path: Path) -> None:
    """The fakes above can't tell whether pointers and sizes are what C takes."""
    command = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=STAND_IN, text=True, check=True)
    device = f"Device(name='Stand-in', capability=(8, 6), memory={24 << 30}, free=None)"
    assert asked(tmp_path) == f"True (12, 2) {device}"


@pytest.mark.skipif(sys.platform != "linux", reason="the loader is another one")
def test_a_file_that_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    assert asked(tmp_path) == "False None"
