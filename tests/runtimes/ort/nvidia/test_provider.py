"""The real CUDA provider, on libraries that compute nothing: where it puts nodes, and how it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.processes import assert_one_line, run
from tests.fake_cuda.fixture import FakeCuda
from tests.tiny import edit_graph
from txport.bundles.bundle import Bundle
from txport.targets.ports import ENCODER

# Start the bundle's sessions with each fault in turn; where its nodes are, or what was raised.
START = """
import json, os, sys
from pathlib import Path
from txport.bundles.bundle import load_bundle
from txport.errors import TxportError
from txport.runtimes.ort import placement, sessions

bundle = load_bundle(Path(sys.argv[1]))
found = {}
for name, faults in json.loads(sys.argv[2]).items():
    for fault in ("FAKE_CUDA_FULL", "FAKE_CUDA_ERROR"):
        os.environ.pop(fault, None)
    os.environ.update(faults)
    try:
        started = sessions.start_sessions(bundle, "cuda", 1)
        options = started["encoder"].get_provider_options()["CUDAExecutionProvider"]
        nodes = [list(node) for node in placement.nodes(started)]
        found[name] = {"nodes": nodes, "counts": placement.placement(started), "options": options}
        placement.require_all_nodes(started, "CUDAExecutionProvider")
    except TxportError as error:
        found[name] = {**found.get(name, {}), "code": error.exit_code, "error": str(error)}
print(json.dumps(found))
"""


def begin(fake_cuda: FakeCuda, path: Path, faults: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """What becomes of a bundle's sessions on CUDA, with each of some faults."""
    found: dict[str, dict[str, Any]] = json.loads(fake_cuda.python("-c", START, str(path), json.dumps(faults)))
    return found


@pytest.fixture(scope="module")
def seen(fake_cuda: FakeCuda, bundle: Bundle) -> dict[str, dict[str, Any]]:
    errors = {name: {"FAKE_CUDA_ERROR": number} for name, number in {"old": "35", "gone": "100"}.items()}
    return begin(fake_cuda, bundle.path, {"none": {}, "full": {"FAKE_CUDA_FULL": "1"}, **errors})


def test_cuda_takes_the_model_and_leaves_only_arithmetic_of_shapes(seen: dict[str, dict[str, Any]]) -> None:
    here = seen["none"]
    left = {operator for _, provider, _, operator in here["nodes"] if provider == "CPUExecutionProvider"}
    assert left <= {"Add", "Cast", "Concat", "Gather", "Reshape", "Shape", "Slice", "Squeeze", "Sub", "Unsqueeze"}
    taken = {operator for _, provider, _, operator in here["nodes"] if provider == "CUDAExecutionProvider"}
    assert {"MatMul", "Softmax"} <= taken
    assert all(counts["CUDAExecutionProvider"] > 1 for counts in here["counts"].values())
    assert sum(map(sum, (counts.values() for counts in here["counts"].values()))) == len(here["nodes"])


def test_whoever_needs_every_node_there_is_told_which_are_not(seen: dict[str, dict[str, Any]]) -> None:
    here = seen["none"]
    assert here["code"] == 3
    assert here["error"].startswith("CUDAExecutionProvider does not take ")
    assert here["error"].count(" graph") <= 3


def test_a_part_of_the_model_without_a_kernel_for_cuda_is_refused_by_name(fake_cuda: FakeCuda, copied: Path) -> None:
    """ONNX Runtime would run it on the CPU, and copy its tensors there and back at each step."""

    def quantise(model: onnx.ModelProto) -> None:
        product = next(node for node in model.graph.node if node.op_type == "MatMul")
        product.name = "product"
        source = product.input[0]
        parts = ["quantised", "scale", "zero"]
        nodes = [
            onnx.helper.make_node("DynamicQuantizeLinear", [source], parts, name="quantise"),
            onnx.helper.make_node("DequantizeLinear", parts, ["rounded"], name="dequantise"),
        ]
        product.input[0] = "rounded"
        place = list(model.graph.node).index(product)
        for node in reversed(nodes):
            model.graph.node.insert(place, node)

    edit_graph(copied, ENCODER, quantise)
    error = begin(fake_cuda, copied, {"none": {}})["none"]["error"]
    assert error.startswith(
        "CUDAExecutionProvider does not take 'quantise' (DynamicQuantizeLinear) of the encoder graph"
    )


def test_options_are_in_force(seen: dict[str, dict[str, Any]]) -> None:
    found = seen["none"]["options"]
    assert (found["use_tf32"], found["cudnn_conv_algo_search"], found["tunable_op_enable"]) == ("0", "HEURISTIC", "0")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (
            "full",
            "the GPU's memory is at its end (Failed to allocate memory for requested buffer",
        ),
        (
            "old",
            "the NVIDIA driver is older than the CUDA of ONNX Runtime (CUDA failure 35: CUDA driver",
        ),
        (
            "gone",
            "CUDA finds no GPU that this process may use (CUDA failure 100: no CUDA-capable device",
        ),
    ],
)
def test_its_errors_are_told_in_one_line(fault: str, line: str, seen: dict[str, dict[str, Any]]) -> None:
    assert seen[fault]["code"] == (1 if fault == "full" else 3)
    assert seen[fault]["error"].startswith(f"CUDAExecutionProvider: {line}")
    assert "\n" not in seen[fault]["error"]


def test_too_old_a_driver_is_told_before_anything_starts(fake_cuda: FakeCuda, bundle: Bundle) -> None:
    done = run("run", bundle.path, "bad", "--provider", "cuda", env=fake_cuda.environment(FAKE_CUDA_DRIVER="12020"))
    line = "found the NVIDIA driver, which runs CUDA up to 12.2, needs CUDA 13, so driver 580 or newer; update it"
    assert_one_line(done, f"provider cuda can't run here: {line}", 3)


def test_without_cudnn_nothing_is_half_run(fake_cuda: FakeCuda, bundle: Bundle) -> None:
    """ONNX Runtime would start, and fail in the middle at the first node that needs it."""
    done = run("run", bundle.path, "bad", "--provider", "cuda", env=fake_cuda.environment(fake_cuda.libraries.cuda))
    assert_one_line(done, "provider cuda can't run here: found no libcudnn.so.9, needs libcudnn.so.9 of cuDNN; pip", 3)


def test_doctor_shows_the_gpu(fake_cuda: FakeCuda) -> None:
    done = run("doctor", env=fake_cuda.environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert "a device that computes nothing (compute capability 8.0), 17179.9 MB" in done.stdout
    assert "nothing that CUDA needs is missing" in done.stdout
    assert re.search(r"CUDAExecutionProvider +starts", done.stdout)
