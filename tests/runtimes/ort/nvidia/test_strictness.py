"""The provider that was asked for runs the nodes, fp32 stays fp32, and what does not fit is refused beforehand."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.errors import OutOfMemoryError, OutputError, RunError, UnavailableError, UnsupportedError
from txport.runtimes.base import running
from txport.runtimes.ort import placement, providers, sessions
from txport.runtimes.ort.nvidia import fit, options, problems
from txport.runtimes.ort.nvidia.driver import Device
from txport.runtimes.ort.nvidia.failures import explain
from txport.runtimes.ort.nvidia.options import CUDA, TENSORRT
from txport.targets.ports import DECODER, ENCODER

CPU = "CPUExecutionProvider"
H100 = Device("NVIDIA H100", (9, 0), 80 << 30, 79 << 30)
T4 = Device("Tesla T4", (7, 5), 15 << 30, 14 << 30)


class Placed:
    """A session of which only the placement of its nodes is known: operators by provider."""

    def __init__(self, **by_provider: Iterable[str]) -> None:
        self.by_provider = by_provider

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [
            SimpleNamespace(
                ep_name=name,
                get_nodes=lambda operators=tuple(operators): [
                    SimpleNamespace(name=f"{operator}_{index}", op_type=operator, domain="")
                    for index, operator in enumerate(operators)
                ],
            )
            for name, operators in self.by_provider.items()
        ]


SHAPES = ["Shape", "Gather", "Concat", "Unsqueeze", "Cast"]
MODEL = ["MatMul", "Softmax", "Add"]


def test_every_node_is_on_the_provider_or_is_named() -> None:
    fine = {"encoder": Placed(**{CUDA: MODEL}), "step": Placed(**{CUDA: ["Gather"]})}
    placement.require_all_nodes(fine, CUDA)
    placement.require_compute(fine, CUDA)
    assert placement.placement(fine) == {"encoder": {CUDA: 3}, "step": {CUDA: 1}}
    some = {**fine, "decoder": Placed(**{CUDA: MODEL, CPU: SHAPES})}
    assert placement.placement(some)["decoder"] == {CUDA: 3, CPU: 5}
    placement.require_compute(some, CUDA)
    with pytest.raises(UnavailableError) as caught:
        placement.require_all_nodes(some, CUDA)
    assert str(caught.value) == (
        "CUDAExecutionProvider does not take 'Shape_0' (Shape) of the decoder graph, 'Gather_1' (Gather) of the "
        "decoder graph, 'Concat_2' (Concat) of the decoder graph and 2 more; ONNX Runtime put them on "
        "CPUExecutionProvider: update ONNX Runtime, export again for it, with another target or "
        "precision, or use provider='cpu'"
    )


def test_what_tensorrt_leaves_may_be_on_cuda_and_nowhere_else() -> None:
    placed = {"decoder": Placed(**{TENSORRT: MODEL, CUDA: ["MatMul", "Loop"], CPU: SHAPES})}
    placement.require_compute(placed, TENSORRT, CUDA)
    with pytest.raises(UnavailableError, match=r"TensorrtExecutionProvider does not take 'MatMul_0' \(MatMul\)"):
        placement.require_compute(placed, TENSORRT)
    placement.require_all_nodes({"decoder": Placed(**{TENSORRT: MODEL, CUDA: ["Loop"]})}, TENSORRT, CUDA)


def test_real_nodes_have_names_and_operators(bundle: Bundle) -> None:
    real = sessions.start_sessions(bundle, "cpu", 1)
    found = list(placement.nodes(real))
    assert {node.role for node in found} == set(bundle.manifest.driven)
    assert {node.provider for node in found} == {CPU}
    assert placement.COMPUTE & {node.operator for node in found}
    assert sum(sum(counts.values()) for counts in placement.placement(real).values()) == len(found)


class OnProvider(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A real session on the CPU that says that it is where it was asked to be, with `left` on the CPU."""

    left: tuple[str, ...] = ()
    asked: list[Any]

    def __init__(self, file: str, options: Any, providers: Any, **more: Any) -> None:
        OnProvider.asked = providers
        self.names = [each if isinstance(each, str) else each[0] for each in providers]
        self.deterministic = options.use_deterministic_compute
        super().__init__(file, options, providers=providers[-1:], **more)

    def get_providers(self) -> list[str]:
        return self.names

    def get_provider_graph_assignment_info(self) -> list[Any]:
        parts: dict[str, list[str]] = {self.names[0]: []}
        for part in super().get_provider_graph_assignment_info():
            for node in part.get_nodes():
                parts.setdefault(CPU if node.op_type in self.left else self.names[0], []).append(node.op_type)
        found: list[Any] = Placed(**parts).get_provider_graph_assignment_info()
        return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which NVIDIA's providers start; an H100 as far as is asked."""
    monkeypatch.setattr(providers, "missing", lambda name: None)
    monkeypatch.setattr(problems, "problem_of_cudnn", lambda: None)
    monkeypatch.setattr(providers, "device_of", lambda name: "cpu")
    monkeypatch.setattr(sessions, "first_device", lambda: H100)
    monkeypatch.setattr(onnxruntime, "InferenceSession", OnProvider)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    monkeypatch.delenv(fit.TF32, raising=False)
    return monkeypatch


def test_cuda_starts_with_fp32_that_is_fp32_and_repeats_itself(bundle: Bundle, gpu: pytest.MonkeyPatch) -> None:
    started = sessions.start_sessions(bundle, "cuda", 1)
    assert {session.deterministic for session in started.values()} == {True}
    (name, found), cpu = OnProvider.asked
    assert (name, cpu) == (CUDA, CPU)
    assert found["use_tf32"] == "0"
    assert found["cudnn_conv_algo_search"] != "EXHAUSTIVE", "that measures, and takes what was the fastest just then"
    assert not sessions.start_sessions(bundle, "cpu", 1)[ENCODER].deterministic


@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_a_part_of_the_model_that_a_provider_did_not_take(
    name: str, bundle: Bundle, gpu: pytest.MonkeyPatch, cache: Path
) -> None:
    full = runtimes.PROVIDERS[name]
    gpu.setattr(OnProvider, "left", ("MatMul",))
    with pytest.raises(
        UnavailableError, match=rf"{full} does not take 'MatMul_\d+' \(MatMul\) of the encoder graph.* more"
    ):
        sessions.start_sessions(bundle, name, 1)
    gpu.setattr(OnProvider, "left", ("Shape", "Gather"))
    placed = placement.placement(sessions.start_sessions(bundle, name, 1))
    assert placed[DECODER][CPU] > 0, "it is counted, and `parity` reports it"


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
@pytest.mark.parametrize("value", ["1", "", "yes"])
def test_tf32_that_is_switched_on_from_outside_is_refused(
    provider: str, value: str, bundle: Bundle, gpu: pytest.MonkeyPatch
) -> None:
    gpu.setenv(fit.TF32, value)
    with pytest.raises(UnsupportedError, match=f"{fit.TF32} is {value!r} in the environment, .*; unset it for fp32"):
        sessions.start_sessions(bundle, provider, 1)


def test_tensorrt_keeps_fp32_and_its_engines(
    bundle: Bundle, gpu: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    gpu.setenv("XDG_CACHE_HOME", str(tmp_path))
    gpu.setattr(sessions, "builder", lambda provider: "1.31.1-101300")
    sessions.start_sessions(bundle, "tensorrt", 1)
    (name, found), (second, besides), cpu = OnProvider.asked
    assert (name, second, cpu) == (TENSORRT, CUDA, CPU)
    assert besides["use_tf32"] == "0"
    assert found["trt_fp16_enable"] == found["trt_bf16_enable"] == found["trt_int8_enable"] == "False"
    assert os.environ[fit.TF32] == "0", "TensorRT reads it, and ONNX Runtime has no option for it"
    engines = Path(found["trt_engine_cache_path"])
    timings = Path(found["trt_timing_cache_path"])
    assert engines.is_dir()
    assert timings.is_dir()
    assert tmp_path in engines.parents
    assert engines.name == list(bundle.manifest.driven)[-1]
    assert engines.parent.name.endswith("-NVIDIA-H100-9.0-1.31.1-101300")
    if sys.platform != "win32":
        assert stat.S_IMODE(engines.stat().st_mode) == 0o700, "engines are code"


def test_half_precision_only_where_the_bundle_has_it(tmp_path: Path) -> None:
    half = options.tensorrt_options("fp16", tmp_path, tmp_path)
    assert (half["trt_fp16_enable"], half["trt_bf16_enable"]) == ("True", "False")
    assert half["trt_layer_norm_fp32_fallback"] == "True"
    assert options.tensorrt_options("bf16", tmp_path, tmp_path)["trt_bf16_enable"] == "True"
    assert "trt_layer_norm_fp32_fallback" not in options.tensorrt_options("fp32", tmp_path, tmp_path)


def test_engines_are_good_for_one_bundle_one_gpu_and_one_version(bundle: Bundle) -> None:
    def key(**changes: Any) -> str:
        usual: dict[str, Any] = {"provider": TENSORRT, "bundle": bundle, "device": H100, "runtime": "1.31.1-101300"}
        return options.engine_key(**{**usual, **changes})

    altered = Bundle(bundle.path, bundle.manifest)
    files = {name: dict(entry) for name, entry in bundle.manifest.files.items()}
    next(iter(files.values()))["sha256"] = "0" * 64
    object.__setattr__(altered, "manifest", SimpleNamespace(files=files, precision="fp32"))
    others = [key(provider=CUDA), key(device=T4), key(device=None), key(runtime="1.32.0-101300"), key(bundle=altered)]
    assert len({key(), *others}) == 6
    assert key() == key(bundle=Bundle(Path("elsewhere"), bundle.manifest))
    assert not set("/\\ :") & set("".join(others)), "they are names of folders"


def test_a_cache_where_a_file_lies(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "engines").touch()
    with pytest.raises(OutputError, match=r"can't be written: .*; choose another place for caches by XDG_CACHE_HOME"):
        options.bundle_options(TENSORRT, bundle, ENCODER, H100, "1", tmp_path / "engines")


def test_memory_is_asked_for_before_any_session(bundle: Bundle, gpu: pytest.MonkeyPatch) -> None:
    weights = fit.weights_of(bundle, bundle.manifest.driven)
    graphs = sum((bundle.file(role)).stat().st_size for role in bundle.manifest.driven)
    assert weights >= graphs
    least = weights + fit.MARGIN
    for free, memory in ((least - 1, 80 << 30), (None, least - 1)):
        small = Device("Small", (8, 6), memory, free)
        gpu.setattr(sessions, "first_device", lambda small=small: small)
        gpu.setattr(onnxruntime, "InferenceSession", None)
        with pytest.raises(UnavailableError, match=r"of weights and 268 MB beside them, and Small has .*; end"):
            sessions.start_sessions(bundle, "cuda", 1)
    fit.require_memory("it", weights, Device("Small", (8, 6), 80 << 30, least))


def test_bf16_needs_a_gpu_that_has_it() -> None:
    fit.require_precision("out", "bf16", H100)
    fit.require_precision("out", "fp16", T4)
    message = (
        "out computes in bf16, which needs a GPU of compute capability 8.0 or newer; found Tesla T4 (compute "
        "capability 7.5): export it with precision='fp16' or precision='fp32', or take another GPU"
    )
    with pytest.raises(UnavailableError) as caught:
        fit.require_precision("out", "bf16", T4)
    assert (str(caught.value), caught.value.exit_code) == (message, 3)


# What ONNX Runtime has raised on machines of others, cut to what differs.
HEAD = "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:123 bool onnxruntime::CudaCall(...) "
TAIL = " ; GPU=0 ; hostname=a ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/x.cc ; line=245 ; expr=f(); "
RUNNING = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. Name:'Add_15' "
MESSAGES = {
    f"{HEAD}CUDA failure 2: out of memory{TAIL}": ("memory is at its end (CUDA failure 2: out of memory)", "batches"),
    f"{RUNNING}Status Message: {HEAD}CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED{TAIL}": ("memory is at", "batches"),
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : /src/bfc_arena.cc:376 void* onnxruntime::BFCArena::Allocate(size_t) "
    "Failed to allocate memory for requested buffer of size 8589934592": (
        "memory is at its end",
        "smaller model",
    ),
    f"{HEAD}CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version{TAIL}": (
        "the NVIDIA driver is older than the CUDA of ONNX Runtime",
        "update the driver",
    ),
    f"{RUNNING}Status Message: CUDA error cudaErrorNoKernelImageForDevice:no kernel image is available for execution": (
        "has no kernels for this GPU (CUDA error cudaErrorNoKernelImageForDevice",
        "a newer onnxruntime-gpu",
    ),
    f"{HEAD}CUDA failure 100: no CUDA-capable device is detected{TAIL}": ("finds no GPU", "txport doctor"),
    f"{RUNNING}Status Message: cudnnContext* onnxruntime::cuda::CudaKernel::RequireCudnnHandle(cudnnHandle_t) "
    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : cuDNN is unavailable or disabled for CUDA Execution Provider: x": (
        "cuDNN is missing or does not start (cuDNN is unavailable",
        "txport[cuda]",
    ),
    f"{RUNNING}Status Message: CUDA error cudaErrorIllegalAddress:an illegal memory access was encountered": (
        "a call of CUDA has failed",
        "start the process again",
    ),
    f"{HEAD}CUDA failure 999: unknown error{TAIL}": (
        "in this process (CUDA failure 999",
        "start the process",
    ),
    "TensorRT EP could not deserialize engine from cache: /x/y.engine": ("an engine in TensorRT's cache", "delete"),
    "TensorRT EP failed to create engine from network for fused node: a_0": ("TensorRT has failed", "provider='cuda'"),
    "libcublasLt.so.13: cannot open shared object file: No such file or directory": ("a library is missing", "doctor"),
}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message[-60:-20])
def test_errors_of_the_gpu_say_what_to_do(message: str) -> None:
    meaning, fix = MESSAGES[message]
    error = explain(RuntimeError(message), CUDA)
    assert error is not None
    assert error.exit_code == (1 if isinstance(error, OutOfMemoryError) else 3)
    line = str(error)
    assert line.startswith(f"{CUDA}: ")
    assert meaning in line
    assert "::" not in line
    assert "ONNXRuntimeError" not in line
    assert fix in line.rpartition(";")[0] + line.rpartition(";")[2]
    assert "onnxruntime_src" not in line
    assert "\n" not in line


def test_other_errors_are_not_the_gpus() -> None:
    for message in (
        "INVALID_ARGUMENT : Got invalid dimensions for input: x",
        "Fatal error: Nonsense is not a registered",
    ):
        assert explain(RuntimeError(message), CUDA) is None


def test_while_a_graph_runs_what_is_known_is_told_and_what_is_not_is_a_damaged_bundle() -> None:
    def told(message: str, explained: Any) -> None:
        with running("decoder", "ONNX Runtime", explained):
            raise RuntimeError(message)

    with pytest.raises(UnavailableError, match=f"^{CUDA}: the GPU's memory is at its end"):
        told("CUDA failure 2: out of memory", lambda error: explain(error, CUDA))
    with pytest.raises(RunError, match="the decoder graph does not run on ONNX Runtime: nonsense"):
        told("nonsense", lambda error: explain(error, CUDA))
    with pytest.raises(MemoryError):
        told("out of memory", None)


def test_an_error_while_a_session_starts(bundle: Bundle, gpu: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **more: Any) -> None:
        raise RuntimeError(f"{HEAD}CUDA failure 35: CUDA driver version is insufficient{TAIL}")

    gpu.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(UnavailableError, match=f"{CUDA}: the NVIDIA driver is older than the CUDA of ONNX Runtime"):
        sessions.start_sessions(bundle, "cuda", 1)
