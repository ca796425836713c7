"""Why CUDA or TensorRT can't run here, as functions of collected facts, so that tests can simulate any machine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from txport.runtimes.ort.nvidia.driver import LIBRARY, VISIBLE, Device, Driver, Opener, load, query_driver
from txport.runtimes.ort.nvidia.libraries import OF_TENSORRT, Library, find, split
from txport.runtimes.ort.nvidia.wheel import (
    CUDA,
    TENSORRT,
    Wheel,
    folder_of_package,
    library_file,
    needs_of,
    read_wheel,
)
from txport.system.machine import is_x86

GPU_WHEEL = "onnxruntime-gpu"
EXTRA = "pip install 'txport[cuda]'"
DRIVERS = {11: 450, 12: 525, 13: 580}  # CUDA -> the first driver series that runs all of its minor versions
CONTAINER = "in a container, start it with its GPUs (docker run --gpus all)"
CUDNN = "cudnn"  # the family of its library
NO_GPU = 100  # CUDA_ERROR_NO_DEVICE
# CUDA's error code at start -> its meaning, and the fix.
STARTS = {
    34: ("the stub of libcuda that CUDA's toolkit brings", "take the toolkit's stubs out of LD_LIBRARY_PATH"),
    46: ("a GPU that another process holds alone", "end that process, or set the GPU's compute mode to default"),
    802: ("GPUs that are not ready", "start nvidia-fabricmanager, and wait until it runs"),
    803: ("a driver whose library and kernel module differ", "restart the machine; an update of the driver needs that"),
    804: ("a CUDA compatibility package that is not for this GPU", "take cuda-compat out of LD_LIBRARY_PATH"),
}
RESTART = "restart the machine; if nvidia-smi fails then too, install the driver anew"


class Problem(NamedTuple):
    """A problem: the finding, the requirement, and the fix."""

    found: str
    needs: str
    fix: str

    def __str__(self) -> str:
        """Return the problem in one line."""
        return f"found {self.found}, needs {self.needs}; {self.fix}"


@dataclass(frozen=True)
class Nvidia:
    """Facts about the requirements of NVIDIA's providers; `tensorrt` are the libraries that only TensorRT needs."""

    driver: Driver
    wheel: Wheel | None
    libraries: tuple[Library, ...] = ()
    tensorrt: tuple[Library, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the facts and the problems as JSON values."""
        wheel = self.wheel and {
            "name": self.wheel.name,
            "version": self.wheel.version,
            "cuda": self.wheel.cuda,
            "kernels": str(self.wheel.kernels),
        }
        libraries = [asdict(each) for each in (*self.libraries, *self.tensorrt)]
        problems = [str(problem) for problem in (*problems_of_cuda(self), *problems_of_cudnn(self))]
        driver = asdict(self.driver)
        return {"driver": driver, "wheel": wheel, "libraries": libraries, "problems": problems}


def look(open_library: Opener = load, folder: Path | None = None) -> Nvidia:
    """Query the driver, read the wheel in `folder`, by default the installed one, and find the libraries it needs."""
    folder = folder or folder_of_package()
    wheel = read_wheel(folder) if folder else None
    driver = query_driver(open_library)
    if wheel is None or wheel.library is None:
        return Nvidia(driver, wheel)
    libraries = find(wheel.needs, wheel.folder.parent, open_library)
    return Nvidia(driver, wheel, libraries)


def find_tensorrt(facts: Nvidia, open_library: Opener = load) -> Nvidia:
    """Return the facts with the libraries that the wheel's TensorRT provider needs in addition to those of CUDA."""
    if facts.wheel is None:
        return facts
    file = facts.wheel.folder / "capi" / library_file(TENSORRT)
    names = [name for name in needs_of(file) if split(name)[0] in OF_TENSORRT] if file.is_file() else []
    found = find(names, facts.wheel.folder.parent, open_library)
    return Nvidia(facts.driver, facts.wheel, facts.libraries, found)


def problems_of_driver(facts: Nvidia) -> list[Problem]:
    """Return the problems of the driver, for packages that contain CUDA."""
    return [*_of_driver(facts.driver, None)]


def problems_of_cuda(facts: Nvidia) -> list[Problem]:
    """Return all problems of CUDA, in the order in which to fix them."""
    driver = facts.driver
    wheel = facts.wheel
    parts = [*_of_driver(driver, wheel)]
    if wheel is not None:
        libraries = [each for each in facts.libraries if not (wheel.has_late_cudnn and each.family == CUDNN)]
        parts += [*_of_wheel(wheel), *_of_devices(driver.devices, wheel), *_of_libraries(libraries)]
    return parts


def problems_of_cudnn(facts: Nvidia) -> list[Problem]:
    """Return the problems of cuDNN if the provider starts without it and nodes load it later, else []."""
    is_late = facts.wheel is not None and facts.wheel.has_late_cudnn
    return [*_of_libraries([each for each in facts.libraries if each.family == CUDNN])] if is_late else []


def problems_of_tensorrt(facts: Nvidia) -> list[Problem]:
    """Return all problems of TensorRT, including those of CUDA and cuDNN."""
    problems = [*problems_of_cuda(facts), *problems_of_cudnn(facts)]
    wheel = facts.wheel
    if wheel and wheel.library:
        file = library_file(TENSORRT)
        if not (wheel.folder / "capi" / file).is_file():
            problems.append(_incomplete(wheel, file))
        missing = [each for each in facts.tensorrt if not each.is_fine]
        if missing:
            major = split(missing[0].name)[1] or "10"
            fix = f"pip install 'tensorrt-cu{wheel.cuda_major}=={major}.*'" if wheel.cuda_major else "install TensorRT"
            names = ", ".join(each.name for each in missing)
            problems.append(Problem(_found(missing), f"{names} of NVIDIA TensorRT {major}", fix))
    return problems


def _of_driver(driver: Driver, wheel: Wheel | None) -> Iterator[Problem]:
    major = wheel.cuda_major if wheel else None
    series = f" {DRIVERS[major]} or newer" if major in DRIVERS else ""
    if not driver.is_there:
        where = f"{LIBRARY} does not load"
        if driver.module:
            found = f"the driver {driver.module} in the kernel and none of its libraries ({where})"
            yield Problem(found, "the NVIDIA driver's libraries", CONTAINER)
            return
        needs = f"an NVIDIA GPU and its driver{series}"
        then = f", then {EXTRA} for CUDA and cuDNN" if wheel else ""
        yield Problem(f"no NVIDIA driver ({where})", needs, f"install it{then}")
        return
    told = f"the NVIDIA driver {driver.version}".rstrip()
    if driver.cuda and major and driver.cuda < (major, 0):
        newest = f"{driver.cuda[0]}.{driver.cuda[1]}"
        needs = f"CUDA {major}, so driver{series}" if series else f"CUDA {major}"
        other = f"update it, or install an onnxruntime-gpu that was built with CUDA {driver.cuda[0]}"
        yield Problem(f"{told}, which runs CUDA up to {newest}", needs, other)
    if not driver.devices:
        yield _no_gpu(driver, told)


def _no_gpu(driver: Driver, told: str) -> Problem:
    code, name = driver.error or (NO_GPU, "CUDA_ERROR_NO_DEVICE")
    needs = "an NVIDIA GPU that this process may use"
    if code in STARTS:
        found, fix = STARTS[code]
        return Problem(f"{found} (CUDA error {code}, {name})", "a GPU that CUDA can start", fix)
    if code != NO_GPU:
        return Problem(f"{told}, in which CUDA does not start (error {code}, {name})", needs, RESTART)
    if driver.visible is not None:
        names = f", which hides {', '.join(driver.hidden)}" if driver.hidden else ""
        return Problem(f"{VISIBLE}={driver.visible!r}{names}", needs, f"unset {VISIBLE}, or set it to 0")
    if driver.hidden:
        fix = f"see who may open /dev/nvidia*; {CONTAINER}"
        return Problem(f"{', '.join(driver.hidden)}, which CUDA does not show to this process", needs, fix)
    return Problem(f"{told}, which finds no GPU", needs, f"see whether nvidia-smi lists one; {CONTAINER}")


def _of_wheel(wheel: Wheel) -> Iterator[Problem]:
    if wheel.library is not None:
        return
    if wheel.cuda:
        yield _incomplete(wheel, library_file(CUDA))
        return
    fix = f"pip uninstall -y {wheel.name}, then pip install {GPU_WHEEL}"
    if not has_gpu_wheel():
        fix = f"there is no {GPU_WHEEL} for this kind of machine, so use provider='cpu'"
    yield Problem(f"{wheel.described}, which has no CUDA provider", GPU_WHEEL, fix)


def has_gpu_wheel() -> bool:
    """Return whether pip has ONNX Runtime with CUDA for this platform."""
    return sys.platform in ("linux", "win32") and is_x86()


def _incomplete(wheel: Wheel, file: str) -> Problem:
    fix = f"pip install --force-reinstall --no-deps {wheel.name}=={wheel.version}"
    return Problem(f"{wheel.described}, without its {file}", "all of its files", fix)


def _of_devices(devices: tuple[Device, ...], wheel: Wheel) -> Iterator[Problem]:
    """Yield a problem if the wheel has no kernels for the first GPU of the process, which the provider uses."""
    known = wheel.kernels.built | wheel.kernels.portable
    if not devices or not known or wheel.kernels.fit(devices[0].capability):
        return
    able = [index for index, device in enumerate(devices) if wheel.kernels.fit(device.capability)]
    which = "an older" if devices[0].capability < min(known) else "a newer"
    fix = f"set {VISIBLE}={able[0]}" if able else f"install {which} onnxruntime-gpu, or use provider='cpu'"
    needs = f"compute capability {wheel.kernels}, which {wheel.described} has kernels for"
    yield Problem(devices[0].described, needs, fix)


def _of_libraries(libraries: Iterable[Library]) -> Iterator[Problem]:
    missing = [each for each in libraries if not each.is_fine]
    for what, group in (
        ("CUDA", [each for each in missing if each.family != CUDNN]),
        ("cuDNN", [each for each in missing if each.family == CUDNN]),
    ):
        if group:
            names = ", ".join(each.name for each in group)
            yield Problem(_found(group), f"{names} of {what}", f"{EXTRA} brings what is needed")


def _found(missing: list[Library]) -> str:
    """Return the findings for missing libraries: broken files, other versions, or none."""
    broken = [f"{each.path or each.name}, which does not load ({each.reason})" for each in missing if each.reason]
    others = sorted({other for each in missing for other in each.others})
    absent = [each.name for each in missing if not each.reason]
    return "; ".join(broken or others) or f"no {absent[0]}"
