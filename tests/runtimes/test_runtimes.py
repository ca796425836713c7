"""Every runtime behind the seam computes what PyTorch computes, on exactly the provider that was asked for."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import txport
from tests.tiny import VOCABULARY, edit_graph, reseal
from txport import runtimes
from txport.api import diagnose
from txport.bundles.bundle import Bundle, load_bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import BundleError, LoadError, UnavailableError, UnsupportedError
from txport.models.architectures.transformer import Transformer
from txport.models.names import MANIFEST
from txport.runtimes import reference
from txport.runtimes.base import Floats, Ints, Runtime, scores
from txport.runtimes.ort import placement, providers, sessions
from txport.runtimes.ort import runtime as ort
from txport.runtimes.ort.nvidia import problems
from txport.runtimes.ort.nvidia.fit import needs_cudnn
from txport.runtimes.ort.sessions import start_sessions
from txport.system.documents import write_json
from txport.targets.ports import DECODER, ENCODER

TOLERANCE = 2e-5  # of the largest logit, from PyTorch in float64
ENGINES = ["ort", "openvino", "reference", "tract"]
RUNTIMES = ["torch", *ENGINES]

# What becomes of the rows after each step; None leaves them alone.
CASES: dict[str, tuple[list[int], list[list[int] | None]]] = {
    "one row": ([5], [None, None, None]),
    "length 1": ([1], [None, None]),
    "padded rows": ([6, 1, 4], [None, None, None]),
    "drop rows": ([6, 1, 4, 5], [[0, 2, 3], None, [1], None]),
    "drop the longest": ([9, 2, 1], [None, [1, 2], None]),
    "repeat rows": ([3, 6], [[0, 0, 0, 1, 1, 1], None, None]),
    "reorder rows": ([3, 6, 2], [[2, 0, 1], [1, 2, 0], None]),
    "beams": ([3, 6], [[0, 0, 1, 1], [1, 1, 2, 3], [0, 1, 3, 3], [1, 0], None]),
    "before the first step": ([4, 2], [[1, 1, 0]]),
    "as long as it may get": ([24, 24], [None] * 24),
}


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Transformer:
    return load_checkpoint(str(checkpoint)).model.double()


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, bundle: Bundle, checkpoint: Path) -> tuple[str, Runtime]:
    name = request.param
    return name, (
        runtimes.load_torch(load_checkpoint(str(checkpoint))) if name == "torch" else runtimes.load(name, bundle)
    )


def sources_of(lengths: list[int]) -> tuple[Ints, Ints]:
    padded = np.random.default_rng(0).integers(4, len(VOCABULARY), (len(lengths), max(lengths)))
    padded[np.arange(max(lengths))[None, :] >= np.array(lengths)[:, None]] = 0
    return padded, np.array(lengths)


@torch.no_grad()
def uncached(model: Transformer, *inputs: Ints) -> Floats:
    """The last logits of the whole target at once."""
    logits: Floats = model(*(torch.from_numpy(array) for array in inputs))[:, -1].numpy()
    return logits


@pytest.mark.parametrize("case", CASES)
def test_steps_and_selections_agree(case: str, runtime: tuple[str, Runtime], model: Transformer) -> None:
    under_test = runtime[1]
    source, lengths = sources_of(CASES[case][0])
    state = under_test.start(source, lengths, max_length=24)
    history = np.zeros((len(source), 0), dtype=np.int64)
    rng = np.random.default_rng(1)
    if case == "before the first step":
        rows = np.array(CASES[case][1][0])
        state = under_test.select(state, rows)
        source = source[rows]
        lengths = lengths[rows]
        history = history[rows]
    for rows in CASES[case][1]:
        tokens = rng.integers(1, len(VOCABULARY), len(source))
        history = np.column_stack([history, tokens])
        found, state = under_test.step(tokens, state)
        assert found.ids is None
        assert found.values.dtype == np.float32
        expected = uncached(model, source, lengths, history)
        np.testing.assert_allclose(found.values, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
        if rows is not None and case != "before the first step":
            state = under_test.select(state, np.array(rows))
            source = source[rows]
            lengths = lengths[rows]
            history = history[rows]


def test_a_state_is_not_changed_by_steps(runtime: tuple[str, Runtime]) -> None:
    """Search may step twice from one state: nothing is hidden in the runtime."""
    under_test = runtime[1]
    state = under_test.start(*sources_of([5, 3]), max_length=24)
    for _ in range(2):
        once = under_test.step(np.array([4, 5]), state)
        under_test.step(np.array([6, 7]), state)
        again = under_test.step(np.array([4, 5]), state)
        np.testing.assert_allclose(again[0].values, once[0].values, rtol=0, atol=TOLERANCE)
        state = once[1]


def test_the_reference_sums_fp16_in_fp32() -> None:
    """As the standard wants it of norms, and as every engine multiplies: squares of 256 are beyond fp16."""
    large = np.array([[256, -256]], np.float16)
    ones = np.ones(2, np.float16)
    normal, mean, inverse = reference.LayerNormalization.eval(large, ones, ones, axis=-1, epsilon=0.0)
    np.testing.assert_array_equal(normal, np.array([[2, 0]], np.float16))
    assert (normal.dtype, mean.dtype, inverse.dtype) == (np.float16, np.float32, np.float32)
    many = np.full((1, 4000), 0.1, np.float16)  # in fp16, a sum stops to grow where 0.1 is less than half a step
    product = reference.MatMul.eval(many, np.ones((4000, 1), np.float16))
    assert product.dtype == np.float16
    np.testing.assert_allclose(product, 4000 * float(many[0, 0]), rtol=1e-3)


@pytest.mark.parametrize("name", ENGINES)
def test_the_source_is_projected_once(name: str, bundle: Bundle) -> None:
    """Every step could do it anew and compute the same, only slowly."""
    runtime: Any = runtimes.load(name, bundle)
    state = runtime.start(*sources_of([8, 3]), max_length=24)
    first = runtime.step(np.array([4, 5]), state)[1]
    second = runtime.step(np.array([6, 7]), first)[1]
    for each, port in bundle.manifest.graphs[DECODER].past("source").items():
        assert runtime._engine.to_numpy(first.tensors[port]).shape == each.shape(2, 8) == (2, 2, 8, 8)
        assert second.tensors[port] is first.tensors[port]


@pytest.mark.parametrize("top", [1, 2, 7, len(VOCABULARY), 99])
def test_top_scores_are_the_log_softmax_of_the_logits(top: int, runtime: tuple[str, Runtime]) -> None:
    under_test = runtime[1]
    state = under_test.start(*sources_of([5, 3, 1]), max_length=24)
    tokens = np.array([4, 5, 1])
    logits = under_test.step(tokens, state)[0].values.astype(np.float64)
    found = under_test.step(tokens, state, top=top)[0]
    assert found.ids is not None
    assert found.ids.shape == found.values.shape == (3, min(top, len(VOCABULARY)))
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found.values, np.take_along_axis(expected, found.ids, 1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.values, -np.sort(-expected, axis=1)[:, :top], rtol=0, atol=1e-5)


def test_top_of_huge_logits_and_of_ties() -> None:
    logits = np.array([[1e4, -1e4, 1e4, 0.0] * 10], dtype=np.float32)
    found = scores(logits, 3)
    assert found.ids is not None
    assert logits[0, found.ids[0]].tolist() == [1e4] * 3
    assert len(set(found.ids[0].tolist())) == 3
    np.testing.assert_allclose(found.values, np.full((1, 3), -np.log(20)), rtol=1e-4)


@pytest.mark.parametrize("size", [4 * 1024 - 1, 4 * 1024, 4 * 1024 + 1, 51865])
@pytest.mark.parametrize("top", range(1, 10))
def test_the_best_of_many_tokens_are_those_that_a_sort_finds(size: int, top: int) -> None:
    rng = np.random.default_rng(size + top)
    logits = rng.permuted(np.tile(np.arange(size, dtype=np.float32), (3, 1)), axis=1)  # no two alike
    logits[0, -top:] = size + np.arange(top)  # those behind the last whole row of classes
    logits[1, 5 : 5 + 1024 * top : 1024][: size // 1024] = 2 * size + np.arange(min(top, size // 1024))  # of one class
    logits[2, rng.choice(size, size - 2, replace=False)] = -np.inf  # only two can be
    found = scores(logits, top, normalise=False)
    assert found.ids is not None
    assert all(len(set(row)) == top for row in found.ids.tolist())
    assert np.array_equal(found.values, -np.sort(-logits, axis=1)[:, :top])
    assert np.array_equal(np.take_along_axis(logits, found.ids, axis=1), found.values)


def test_threads(bundle: Bundle) -> None:
    state = runtimes.load("ort", bundle, threads=1).start(*sources_of([3]), max_length=24)
    assert state.length == 0
    assert runtimes.load("openvino", bundle, threads=1)
    for name in ("reference", "tract"):
        with pytest.raises(UnsupportedError, match=f"the {name} runtime has one thread, got 2"):
            runtimes.load(name, bundle, threads=2)


def test_threads_give_way_to_other_processes(bundle: Bundle) -> None:
    """One that stays awake from step to step is put to sleep in the middle of its work where the machine is busy."""
    for session in sessions.start_sessions(bundle, "cpu", 2, spinning=DECODER).values():
        options = session.get_session_options()
        assert int(options.get_session_config_entry("session.intra_op.spin_duration_us")) <= 20


def test_more_threads_than_are_of_use_are_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "cores", lambda: 8)
    assert runtimes.load("ort", bundle, threads=32)
    with pytest.raises(UnsupportedError, match="threads must not exceed 32 on 8 cores, got 33"):
        runtimes.load("ort", bundle, threads=33)
    with pytest.raises(UnsupportedError, match="threads must not exceed 32 on 8 cores, got 33"):
        runtimes.load_torch(load_checkpoint("preset:tiny"), threads=33)


def test_unknown_names(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="unknown runtime 'tvm'; there are ort, openvino, openvino-bf16"):
        runtimes.load("tvm", bundle)
    with pytest.raises(UnsupportedError, match=r"unknown provider 'gpu'; give one of cpu, cuda"):
        runtimes.load("ort", bundle, provider="gpu")
    for name in ("openvino", "reference", "tract"):
        with pytest.raises(UnsupportedError, match=f"the {name} runtime runs on the cpu only, got provider 'cuda'"):
            runtimes.load(name, bundle, provider="cuda")
    with pytest.raises(UnsupportedError, match="the torch runtime runs on cpu or cuda, got provider 'tensorrt'"):
        runtimes.require("torch", "tensorrt")


def test_torch_runs_no_bundle(bundle: Bundle) -> None:
    with pytest.raises(
        UnsupportedError,
        match="the torch runtime can't run bundles of the portable target; ort, openvino, ref",
    ):
        runtimes.load("torch", bundle)


def test_where_a_bundle_runs_is_said_before_what_is_missing_here(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No driver would help a bundle that does not run on the GPU."""
    only_cpu = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, target="cpu"))
    monkeypatch.setattr("txport.api.loading.find_bundle", lambda *_, **__: only_cpu)
    for load in (lambda: runtimes.load("ort", only_cpu, provider="cuda"), lambda: txport.load("it", provider="cuda")):
        with pytest.raises(
            UnsupportedError, match="a bundle of the cpu target runs on provider cpu, got provider 'cuda'"
        ):
            load()


def test_a_folder_of_others_is_called_one_everywhere(bundle: Bundle) -> None:
    foreign = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, target="foreign"))
    assert needs_cudnn(foreign, []) == f"{bundle.path} is a folder that others exported, which needs it"
    with pytest.raises(UnsupportedError, match=r"the cuda target, and .* is a folder that others exported; export"):
        runtimes.load("ort", foreign, user_compute_stream=1)


def test_a_runtime_is_one_line(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = runtimes.Entry("txport.runtimes.reference", "onnx", "txport[export]", ("cpu",))
    monkeypatch.setitem(runtimes.RUNTIMES, "another", entry)
    assert runtimes.installed("cpu") == ["ort", "another"]
    with pytest.raises(
        UnsupportedError, match="the another runtime can't run bundles of the portable target; ort, open"
    ):
        runtimes.load("another", bundle)
    monkeypatch.setitem(runtimes.RUNTIMES, "another", entry._replace(targets=("portable",)))
    assert runtimes.load("another", bundle).ports("encoder") == runtimes.load("reference", bundle).ports("encoder")


@pytest.mark.parametrize("name", ["cpu", "CPU", "CPUExecutionProvider", "cpuexecutionprovider"])
def test_spellings_of_a_provider(name: str) -> None:
    assert providers.full_name(name) == "CPUExecutionProvider"


def test_every_short_name_means_a_provider() -> None:
    for short, name in runtimes.PROVIDERS.items():
        assert providers.full_name(short) == name
        assert name.endswith("ExecutionProvider")


@pytest.mark.parametrize("provider", ["rocm", "coreml", "QNNExecutionProvider"])
def test_provider_that_the_wheel_was_built_without(
    provider: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(UnavailableError, match=f"was built without {providers.full_name(provider)}; install a wheel"):
        runtimes.load("ort", bundle, provider=provider)


def has_driver() -> bool:
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


def test_cuda_runs_there_or_says_what_is_missing(bundle: Bundle, runtime: tuple[str, Runtime]) -> None:
    """The one test that means another thing on a machine with a GPU."""
    reason = providers.missing("CUDAExecutionProvider")
    if reason is None:
        engine = ort.OrtEngine(start_sessions(bundle, "cuda", None), "cuda")
        assert {session.get_providers()[0] for session in engine._sessions.values()} == {"CUDAExecutionProvider"}
        on_cuda = runtimes.load("ort", bundle, provider="cuda")
        source = sources_of([5, 2])
        found = [
            each.step(np.array([4, 5]), each.start(*source, max_length=24))[0].values for each in (on_cuda, runtime[1])
        ]
        np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4)
        return
    with pytest.raises(UnavailableError, match="provider cuda can't run here: ") as caught:
        runtimes.load("ort", bundle, provider="cuda")
    assert reason in str(caught.value)
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and not has_driver():
        assert "found no NVIDIA driver (libcuda.so.1 does not load)" in reason
        assert "pip install 'txport[cuda]'" in reason


class FallenBack:
    """A session as ONNX Runtime makes it when a provider does not start: on the CPU, with no error."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.asked = options["providers"]

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]


def test_fallback_is_caught(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "missing", lambda name: None)
    monkeypatch.setattr(problems, "problem_of_cudnn", lambda: None)
    monkeypatch.setattr(sessions, "first_device", lambda: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", FallenBack)
    with pytest.raises(UnavailableError, match=r"CUDAExecutionProvider did not start for .*encoder_model\.onnx"):
        runtimes.load("ort", bundle, provider="cuda")
    assert providers.start("CUDAExecutionProvider") == "ONNX Runtime fell back to another provider without saying why"


class TakesNothing(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A real session whose provider is registered and takes no node, as with Azure's: all run on the CPU."""

    def __init__(self, file: str, options: Any, providers: Any, **more: Any) -> None:
        self.asked = [each if isinstance(each, str) else each[0] for each in providers]
        super().__init__(file, options, providers=providers[-1:], **more)

    def get_providers(self) -> list[str]:
        return self.asked


@pytest.fixture
def takes_nothing(monkeypatch: pytest.MonkeyPatch) -> str:
    """A provider that starts, takes no node, and says nothing about it."""
    monkeypatch.setattr(problems, "problem_of_cudnn", lambda: None)
    monkeypatch.setattr(providers, "missing", lambda name: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", TakesNothing)
    return "AzureExecutionProvider"


def test_provider_that_takes_no_node_is_caught(bundle: Bundle, takes_nothing: str) -> None:
    with pytest.raises(
        UnavailableError, match=f"{takes_nothing} takes no node of any graph; .* put all on CPUExecutionProvider$"
    ):
        runtimes.load("ort", bundle, provider=takes_nothing)
    assert set(runtimes.load("ort", bundle).placement()["encoder"]) == {"CPUExecutionProvider"}


def test_one_graph_on_the_provider_is_enough(
    bundle: Bundle, takes_nothing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`select_rows` is tiny: a provider may leave it to the CPU and still run the model."""
    others = [placement.Node(role, "CPUExecutionProvider", "", "Add") for role in bundle.manifest.graphs]
    taken = placement.Node(DECODER, takes_nothing, "", "MatMul")
    monkeypatch.setattr(placement, "nodes", lambda found: iter([*others, taken]))
    assert runtimes.load("ort", bundle, provider=takes_nothing)


def test_opset_that_the_installed_runtime_does_not_know(copied: Path) -> None:
    for file in copied.glob("onnx/*.onnx"):
        model = onnx.load(str(file))
        model.opset_import[0].version = 999
        onnx.save(model, str(file))
    values = json.loads((copied / MANIFEST).read_text(encoding="utf-8"))
    write_json(copied / MANIFEST, {**values, "opset": 999})
    with pytest.raises(LoadError, match=r"can't load .*decoder_model_merged\.onnx: .*; update it, or export"):
        runtimes.load("ort", reseal(copied))


def test_graph_that_does_not_load_is_told_from_a_provider_that_is_missing(copied: Path, takes_nothing: str) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "Nonsense"

    assert issubclass(LoadError, UnavailableError)  # the same exit code
    with pytest.raises(UnavailableError) as caught:
        runtimes.load("ort", load_bundle(copied), provider=takes_nothing)
    assert not isinstance(caught.value, LoadError)
    with pytest.raises(BundleError, match=r"can't load .*encoder_model\.onnx: .*Nonsense.*; the bundle is damaged"):
        runtimes.load("ort", edit_graph(copied, ENCODER, edit))


def test_package_that_is_not_installed(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(runtimes.importlib, "import_module", absent)
    packages = {
        "ort": "txport",
        "openvino": "txport[openvino]",
        "reference": "txport[export]",
        "tract": "txport[tract]",
    }
    for name, extra in packages.items():
        package = runtimes.RUNTIMES[name].needs
        with pytest.raises(UnavailableError) as caught:
            runtimes.load(name, bundle)
        assert str(caught.value) == f"the {name} runtime needs {package}, which is not installed: pip install '{extra}'"


class Wheel:
    """An installed distribution."""

    version = "1.31.1"

    def __init__(self, name: str) -> None:
        self.metadata = {"Name": name}


@pytest.mark.parametrize(
    ("installed", "broken"),
    [
        (["numpy", "onnxruntime-gpu"], False),
        (["onnxruntime", "onnxruntime-genai", "onnxruntime-extensions"], False),
        (["onnxruntime", "onnxruntime-ep-nv-tensorrt-rtx-cu13", "onnxruntime-genai-cuda"], False),
        (["onnxruntime", "onnxruntime-gpu"], True),
        (["onnxruntime-directml", "onnxruntime"], True),
    ],
)
def test_doctor_finds_two_wheels(installed: list[str], broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = [Wheel(name) for name in installed]
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "distributions", lambda: wheels)
        found = runtimes.versions.__wrapped__()
    monkeypatch.setattr(runtimes, "versions", lambda: found)
    told = diagnose.examine().problems
    assert bool(told) == broken
    if broken:
        assert f"2 ONNX Runtime wheels are installed ({', '.join(found)})" in told[0]
        assert "pip uninstall" in told[0]


def test_doctor_starts_every_provider() -> None:
    found = diagnose.examine()
    assert found.providers["CPUExecutionProvider"] is None
    assert set(onnxruntime.get_available_providers()) <= set(found.providers)
    assert found.versions["torch"] == importlib.metadata.version("torch")
