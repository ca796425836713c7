"""What users lend the driver over a device that computes nothing: a stream of theirs, and tensors on the GPU by DLPack.

    python -m tests.fake_cuda.lent GENERATING ENCODING ANSWER

Both are bundles. The answer, a JSON file, has on which streams kernels were launched, and what became of the tensors;
what is found means nothing.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests.fake_cuda.asked import counts
from tests.fake_cuda.driven import launches, steps
from txport import runtimes
from txport.bundles.bundle import load_bundle
from txport.errors import UnsupportedError


class OnGpu:
    """A tensor of another library on the GPU, as far as DLPack goes: it notes the stream that is to wait for it."""

    def __init__(self, array: Any) -> None:
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        self.asked = list[int]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: int) -> Any:
        self.asked.append(stream)
        return self.value._ortvalue.to_dlpack()


def stream() -> int:
    """One of the user's own."""
    made = ctypes.c_void_p()
    ctypes.CDLL("libcudart.so.13").cudaStreamCreate(ctypes.byref(made))
    return int(made.value or 0)


def on_a_stream(folder: str) -> dict[str, Any]:
    """Where the kernels of a search are launched."""
    own = stream()
    bundle = load_bundle(Path(folder))
    runtime: Any = runtimes.load("ort", bundle, provider="cuda", user_compute_stream=own)
    steps(runtime, bundle.manifest.facts, 1)
    count = ctypes.CDLL("libcuda.so.1").fake_streams()
    return {
        "is the user's": [each == own for each in runtime.device.streams],
        "launches": launches(runtime),
        "streams": count,
    }


def by_dlpack(folder: str) -> dict[str, Any]:
    """What an encoder makes of tensors on the GPU, and says of others."""
    bundle = load_bundle(Path(folder))
    runtime: Any = runtimes.load("ort", bundle, provider="cuda")
    ids = OnGpu(np.array([[5, 9, 2], [6, 2, 0]]))
    lengths = OnGpu(np.array([3, 2]))
    before = counts()
    outputs = runtime.infer_on_device(ids, lengths)
    now = counts()
    said = ""
    try:
        runtime.infer_on_device(np.array([[5, 9, 2]]), np.array([3]))
    except UnsupportedError as error:
        said = str(error)
    return {
        "outputs": {name: [list(each.shape()), each.device_name()] for name, each in outputs.items()},
        "copies": now["uploads"] + now["downloads"] - before["uploads"] - before["downloads"],
        "asked": [each.asked == [runtime.device.streams[0]] for each in (ids, lengths)],
        "refused": said,
    }


def main(generating: str, encoding: str, answer: str) -> None:
    found = {"stream": on_a_stream(generating), "dlpack": by_dlpack(encoding)}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
