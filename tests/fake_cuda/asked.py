"""What ONNX Runtime's CUDA provider says, in a process of its own, whose LD_LIBRARY_PATH has what `build` made.

    python -m tests.fake_cuda.asked REQUESTS ANSWERS

Both are JSON files. A request names a function, `do`, and has its arguments:

    place    a file, whether it is to be captured   -> {"error": TEXT or null, "nodes": {NAME: PROVIDER}}
    run      a file, what its inputs are            -> {"counts": [{KIND: COUNT}, ...]}, of each run
    kernels  needs TensorRT's libraries too         -> {"kernels": [[OPERATOR, FIRST, LAST, {VARIABLE: TYPES}], ...],
                                                        "versions": {OPERATOR: [VERSION, ...]}}
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

CUDA = "CUDAExecutionProvider"
KINDS = ("launches", "replays", "uploads", "downloads", "allocations", "waits", "refused", "followed")


def session(file: str, captured: bool, optimised: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if captured:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    cuda = (CUDA, {"enable_cuda_graph": "1" if captured else "0"})
    providers = [cuda] if captured else [cuda, "CPUExecutionProvider"]
    return ort.InferenceSession(file, options, providers=providers, enable_fallback=0)


def place(file: str, captured: bool, optimised: bool = False) -> dict[str, Any]:
    try:
        parts = session(file, captured, optimised).get_provider_graph_assignment_info()
    except Exception as error:
        return {"error": str(error), "nodes": {}}
    return {"error": None, "nodes": {node.name: part.ep_name for part in parts for node in part.get_nodes()}}


def run(
    file: str, lengths: dict[str, int], aliases: dict[str, str], on_host: list[str], times: int
) -> dict[str, list[dict[str, int]]]:
    started = session(file, captured=True, optimised=True)
    graph = onnx.load(file, load_external_data=False).graph
    made: dict[str, ort.OrtValue] = {}
    binding = started.io_binding()
    for value in graph.input:
        made[value.name] = memory(value, lengths, "cpu" if value.name in on_host else "cuda")
        binding.bind_ortvalue_input(value.name, made[value.name])
    for value in graph.output:
        bound = made[aliases[value.name]] if value.name in aliases else memory(value, lengths, "cuda")
        binding.bind_ortvalue_output(value.name, bound)
    found = []
    before = counts()
    for _ in range(times):
        started.run_with_iobinding(binding)
        now = counts()
        found.append({kind: now[kind] - before[kind] for kind in KINDS})
        before = now
    return {"counts": found}


def memory(value: onnx.ValueInfoProto, lengths: dict[str, int], device: str) -> ort.OrtValue:
    """What fits a port; on the host, ones."""
    tensor = value.type.tensor_type
    shape = [dim.dim_value or lengths[dim.dim_param] for dim in tensor.shape.dim]
    if device == "cpu":
        return ort.OrtValue.ortvalue_from_numpy(np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, tensor.elem_type, device, 0)


def counts() -> dict[str, int]:
    """How often each has happened, as the fake device counts."""
    count = ctypes.CDLL("libcuda.so.1").fake_count
    count.restype = ctypes.c_long
    return {kind: count(number) for number, kind in enumerate(KINDS)}


def kernels() -> dict[str, Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = [each for each in state.get_all_opkernel_def() if each.provider == CUDA]
    types = [
        [f"{each.domain}.{each.op_name}".lstrip("."), *each.version_range, dict(each.type_constraints)]
        for each in found
    ]
    versions: dict[str, list[int]] = {}
    for each in state.get_all_operator_schema():
        versions.setdefault(f"{each.domain}.{each.name}".lstrip("."), []).append(each.since_version)
    return {"kernels": types, "versions": versions}


def main(requests: str, answers: str) -> None:
    asked = json.loads(Path(requests).read_text(encoding="utf-8"))
    known = {"place": place, "run": run, "kernels": kernels}
    Path(answers).write_text(json.dumps([known[each.pop("do")](**each) for each in asked]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
