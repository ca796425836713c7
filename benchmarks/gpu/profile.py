"""The kernels that a step of a bundle launches, and the providers of its nodes, from ONNX Runtime's profiler."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.gpu.lines import Line
from txport.bundles.bundle import Bundle
from txport.runtimes.ort.nvidia.options import CUDA, cuda_options
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.providers import full_name, open_session
from txport.targets.cuda import ON_HOST
from txport.targets.ports import ALL_ROWS, BATCH, BEAMS, COUNT, PAST_LENGTHS, ROOM, SOURCE, SOURCE_LENGTHS, STEP

RUNS = 4  # the first is ignored


def profile_step(bundle: Bundle, line: Line, provider: str, folder: Path) -> dict[str, Any]:
    """Profile the step graph without capture; return its nodes by provider and operator, and its kernels if known."""
    name = full_name(provider)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / f"{bundle.path.name}")
    session = open_session(str(bundle.file(STEP)), options, name, cuda_options() if name == CUDA else {})
    binding = session.io_binding()
    inputs = []
    device = "cpu" if provider == "cpu" else "cuda"
    for port in bundle.manifest.graphs[STEP].inputs:
        dims = {
            BATCH: line.batch,
            BEAMS: line.beams,
            ALL_ROWS: line.rows,
            SOURCE: line.source,
            ROOM: line.tokens,
            COUNT: 1,
        }
        value = _value(port.name, port.dtype, port.shape(dims), line, "cpu" if port.name in ON_HOST else device)
        binding.bind_ortvalue_input(port.name, value)
        inputs.append(value)
    for port in bundle.manifest.graphs[STEP].outputs:
        binding.bind_output(port.name, device)
    for _ in range(RUNS):
        session.run_with_iobinding(binding)
    return read_profile(Path(session.end_profiling()))


def _value(name: str, dtype: str, shape: tuple[int, ...], line: Line, device: str) -> Any:
    """Return an input: valid lengths and tokens; keys and values of any content, which does not affect launches."""
    if dtype != "int64":
        number = (
            onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) if dtype != "bfloat16" else onnx.TensorProto.BFLOAT16
        )
        if device == "cpu":
            return ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype))
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, number, device, 0)
    numbers = {PAST_LENGTHS: line.tokens // 2, SOURCE_LENGTHS: line.source, COUNT: 1}
    return ort.OrtValue.ortvalue_from_numpy(np.full(shape, numbers.get(name, 0), np.int64), device)


def read_profile(path: Path) -> dict[str, Any]:
    """Read a file of the profiler; return the nodes of one run by provider and operator, and the GPU's kernels."""
    events = json.loads(path.read_text(encoding="utf-8"))
    runs = [each for each in events if each.get("name") == "model_run"]
    begun = sorted(each["ts"] for each in runs)[1] if len(runs) > 1 else 0  # the first run allocates
    later = [each for each in events if each.get("ts", 0) >= begun]
    count = max(1, sum(each.get("name") == "model_run" for each in later))
    nodes = [each["args"] for each in later if each.get("cat") == "Node" and each["name"].endswith("_kernel_time")]
    kernels = Counter(each["name"] for each in later if each.get("cat") == "Kernel")
    return {
        "nodes": {name: number // count for name, number in Counter(each["provider"] for each in nodes).items()},
        "operators": {
            name: number // count for name, number in Counter(each["op_name"] for each in nodes).most_common()
        },
        "kernels": sum(kernels.values()) // count or None,  # None if the profiler was built without CUPTI
        "most launched": dict(kernels.most_common(12)),
    }
