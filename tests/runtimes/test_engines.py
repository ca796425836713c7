"""Engines beside ONNX Runtime run the same files, in the precision that these have, and say what they can't."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.models.architectures.test_conformance import APART, CLOSE, error, infer, sources, step_through, targets
from tests.seeded import bundle_of
from tests.tiny import edit_graph
from txport import runtimes
from txport.api import diagnose
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import BundleError, LoadError, RunError, UnavailableError, UnsupportedError
from txport.proof.matrix import engines
from txport.proof.parity.check import check, exact_of
from txport.proof.parity.tolerances import tolerance_of
from txport.proof.verify.check import verify
from txport.runtimes.base import Runtime
from txport.runtimes.openvino import library, rewrite
from txport.runtimes.openvino import runtime as openvino
from txport.runtimes.openvino.caches import Cache
from txport.runtimes.openvino.library import TELEMETRY
from txport.runtimes.openvino.paged import PagedDecoder
from txport.runtimes.openvino.requests import Held
from txport.runtimes.pytorch import TorchRuntime
from txport.targets.ports import ATTENTION_MASK, BATCH, DECODER, ENCODER, PAST, TOKENS, UNNAMED

ENGINES = ["openvino", "tract"]
PRESETS = {"seq2seq": "tiny", "causal": "gpt2-tiny", "encode": "bert-tiny"}
KINDS = [(task, precision) for task in PRESETS for precision in ("fp32", "fp16")]


@pytest.fixture(scope="module", params=KINDS, ids=" ".join)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    task, precision = request.param
    folder = tmp_path_factory.mktemp("engines") / "out"
    return bundle_of(load_checkpoint(f"preset:{PRESETS[task]}"), folder, "portable", precision)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def runtime(made: Bundle, engine: str) -> Runtime:
    return runtimes.load(engine, made, threads=1)


@pytest.fixture(scope="module")
def running(bundle: Bundle, engine: str) -> Runtime:
    """The session's bundle on an engine."""
    return runtimes.load(engine, bundle, threads=1)


def said(runtime: Runtime, bundle: Bundle, rows: slice = slice(None)) -> list[Any]:
    """What a runtime gives for some of a few sources of unequal lengths, an array each."""
    facts = bundle.manifest.facts
    if facts.task == "encode":
        return [each for found in infer(runtime, facts, sources(facts)[rows]) for each in found.values()]
    return list(step_through(runtime, facts, sources(facts)[rows], targets(facts)[rows]))


def test_it_computes_what_pytorch_computes(made: Bundle, runtime: Runtime) -> None:
    exact = exact_of(made, load_checkpoint(made.manifest.checkpoint["name"]))
    expected = said(TorchRuntime(exact.model), made)
    for found, right in zip(said(runtime, made), expected, strict=True):
        assert error(found, right) < CLOSE[made.manifest.precision]


def test_a_row_alone_equals_the_row_in_a_batch(made: Bundle, runtime: Runtime) -> None:
    together = said(runtime, made)
    for row, found in enumerate(together[: len(sources(made.manifest.facts))]):
        if made.manifest.facts.task != "encode":
            (alone,) = said(runtime, made, slice(row, row + 1))
            assert error(found, alone) <= APART[made.manifest.precision]


def test_search_finds_what_it_finds_on_onnx_runtime(made: Bundle, engine: str) -> None:
    facts = made.manifest.facts
    if facts.task == "encode" or made.manifest.precision != "fp32":
        return
    models = [txport.load(made.path, runtime=name, threads=1) for name in ("ort", engine)]
    aligned = {"beams": 2, "alignment": "soft"} if facts.attention else {}
    for options in ({"beams": 1}, aligned, {"beams": 3, "nbest": 2}, {"do_sample": True, "seed": 5, "top_k": 5}):
        found = [
            [[each.tokens for each in row] for row in model.search(sources(facts), max_new_tokens=8, **options)]
            for model in models
        ]
        assert found[0] == found[1]


def test_continuous_batches_are_refused_by_name(bundle: Bundle, engine: str) -> None:
    with pytest.raises(UnsupportedError, match="continuous batching needs a cpu or cuda bundle"):
        txport.load(bundle.path, runtime=engine).generate(["bad"], continuous=True)


def test_several_threads_may_run_it_at_once(bundle: Bundle, running: Runtime) -> None:
    """Each run has a request of its own, and buffers that no other run writes to."""
    expected = said(running, bundle)
    with ThreadPoolExecutor(4) as executor:
        for found in executor.map(lambda _: said(running, bundle), range(8)):
            assert all(map(np.array_equal, found, expected))


def test_its_ports_are_those_of_the_files(bundle: Bundle, engine: str, running: Any) -> None:
    """As far as the engine tells: a name that it does not keep is no other name."""
    for graph in bundle.manifest.graphs.values():
        for found, expected in zip(running.ports(graph.role), (graph.inputs, graph.outputs), strict=True):
            assert all(one.fits(other) for one, other in zip(found, expected, strict=True))
            named = {dim for port in found for dim in port.dims if isinstance(dim, str)} - {UNNAMED}
            assert bool(named) == (engine == "tract")
    assert all(sum(counts.values()) > 1 for counts in running.placement().values())


# ------------------------------------------------------------------------------------------------ precision


def test_openvino_computes_in_32_bits_whatever_the_processor_prefers(made: Bundle) -> None:
    """Left to itself it takes bf16 where the processor has it."""
    loaded: Any = openvino.load(made, threads=1)
    for parts in loaded._engine._parts.values():
        for compiled in parts.values():
            assert compiled.model.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
            assert compiled.model.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == 0
            assert compiled.model.get_property("INFERENCE_NUM_THREADS") == 1
            nodes = compiled.model.get_runtime_model().get_ops()
            kinds = {str(each.get_rt_info()["runtimePrecision"].astype(str)) for each in nodes}
            assert "bf16" not in kinds


def test_a_precision_that_is_not_kept_to_is_no_success(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    core = openvino._core()
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("OpenVINO has no bf16 on this processor")

    class Forgets:
        """As OpenVINO does where nobody tells it."""

        read_model = core.read_model

        def compile_model(self, model: Any, device: str, options: dict[str, Any]) -> Any:
            return core.compile_model(model, device, options | {openvino.HINT: "bf16"})

    monkeypatch.setattr(openvino, "_core", Forgets)
    with pytest.raises(UnavailableError, match="OpenVINO computes in bf16 here, expected f32; take the ort runtime"):
        openvino.load(bundle)


def here(name: str) -> str | None:
    """Why a runtime can't run here."""
    try:
        runtimes.require(name, "cpu")
    except UnavailableError as error:
        return str(error)
    return None


def test_fewer_bits_are_another_runtime_and_are_proven_as_what_they_are(bundle: Bundle, checkpoint: Path) -> None:
    name = "openvino-bf16"
    if reason := here(name):
        pytest.skip(reason)
    report = check(bundle, load_checkpoint(str(checkpoint)), {name: "cpu"})
    assert report.passed
    assert report.about["tolerances"][name]["reason"] == tolerance_of("bf16", "cpu").reason
    assert 1e-3 < report.worst_output < 1  # it does compute in fewer bits
    with pytest.raises(UnsupportedError, match=f"{name} computes in bf16; `txport parity --runtime {name}`"):
        verify(bundle.path, runtime=name)


@pytest.mark.parametrize(("perm", "scale", "changes"), [
    ((0, 1, 3, 2), 0.3, True),
    ((0, 2, 3, 1), 0.3, False),  # keys (B, S, N, H)
    ((0, 1, 3, 2), [[[1.0]], [[2.0]]], False),  # a scale for each head
])  # fmt: skip
def test_queries_are_scaled_where_that_is_the_same(perm: tuple[int, ...], scale: Any, changes: bool) -> None:
    op = library.openvino.opset13
    dims = [1, 2, 5, 4] if perm == (0, 1, 3, 2) else [1, 5, 2, 4]
    query, key = op.parameter([1, 2, 3, 4], np.float32), op.parameter(dims, np.float32)
    turned = op.transpose(key, op.constant(np.array(perm)))
    product = op.multiply(op.matmul(query, turned, False, False), op.constant(np.array(scale, np.float32)))
    softmax = op.softmax(product, axis=-1)
    model = library.openvino.Model([softmax], [query, key])
    inputs = [np.random.default_rng(0).normal(size=each).astype(np.float32) for each in ((1, 2, 3, 4), dims)]
    before = outputs(model, inputs)
    rewrite._scale_queries(softmax)
    after = outputs(model, inputs)
    np.testing.assert_allclose(after, before, atol=1e-6)
    assert ("Transpose" not in [each.get_type_name() for each in model.get_ordered_ops()]) == changes


def outputs(model: Any, inputs: list[Any]) -> Any:
    exact = {openvino.HINT: "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    return library.openvino.compile_model(model, "CPU", exact)(inputs)[0]


def test_keys_and_values_of_sources_stay_in_bf16_with_their_rows(bundle: Bundle) -> None:
    if reason := here("openvino-bf16"):
        pytest.skip(reason)
    runtime: Any = openvino.load(bundle, precision="bf16")
    sources = np.random.default_rng(0).integers(4, 20, (3, 8))
    _, state = runtime.step(np.full(3, 1), runtime.start(sources, np.array([8, 5, 3]), max_length=9))
    tokens = np.array([5, 6, 7])
    rows = np.array([2, 0, 0])
    moved, after = runtime.step(tokens[rows], runtime.select(state, rows))
    _, again = runtime.step(np.full(3, 1), runtime.start(sources, np.array([8, 5, 3]), max_length=9))
    alone, _ = runtime.step(tokens, again)
    np.testing.assert_allclose(moved.values, np.array(alone.values)[rows], atol=0.02)
    for name in bundle.manifest.graphs["decoder"].past("source").values():
        bits = after.tensors[name].array.view(np.uint32)
        assert not (bits & 0xFFFF).any(), "an fp32 whose lower half is 0"
        assert bits.any()


def test_what_computes_in_bf16_does_not_pass_for_fp32(
    bundle: Bundle, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := here("openvino-bf16"):
        pytest.skip(reason)
    monkeypatch.setattr("txport.proof.parity.check.runtimes.computes", lambda name, precision: precision)
    assert not check(bundle, load_checkpoint(str(checkpoint)), {"openvino-bf16": "cpu"}).passed


def test_experts_in_bf16_are_refused(tmp_path: Path) -> None:
    """OpenVINO 2026.4 ends the process at a product of no rows in AMX."""
    if reason := here("openvino-bf16"):
        pytest.skip(reason)
    bundle = bundle_of(load_checkpoint("preset:llama-experts-tiny"), tmp_path / "out", "portable")
    with pytest.raises(UnsupportedError, match=r"openvino-bf16 can't run experts, .* take openvino"):
        runtimes.load("openvino-bf16", bundle)
    assert isinstance(runtimes.load("openvino", bundle)._engine._decoder, PagedDecoder)  # type: ignore[attr-defined]


def test_fewer_bits_run_only_where_they_are_asked_for(bundle: Bundle) -> None:
    assert "openvino-bf16" not in {*runtimes.installed("portable"), *(each for each, _ in engines())}
    assert engines(["openvino-bf16"], ["cpu"]) == [("ort", "cpu"), ("openvino-bf16", "cpu")]


def test_a_processor_without_bf16_is_told(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        def get_property(self, *_: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino, "_core", Plain)
    with pytest.raises(UnavailableError) as caught:
        runtimes.load("openvino-bf16", bundle)
    assert str(caught.value) == "openvino-bf16 needs a processor that multiplies in bf16; take openvino or ort"


def test_openvino_holds_each_weight_once(bundle: Bundle) -> None:
    """What projects the source is in one part of the decoder, all else in the other."""
    loaded: Any = runtimes.load("openvino", bundle)
    parts = loaded._engine._parts[DECODER]
    assert len(parts) == 2
    counts = [sum(_kind(node) == "FullyConnected" for node in each.model.get_runtime_model().get_ops())
              for each in parts.values()]  # fmt: skip
    facts = bundle.manifest.facts
    layers = len(facts.state) // 4
    assert counts == [2 * layers, 8 * layers + 1]  # the source's keys and values; all others, and the logits


def test_openvino_reads_caches_and_attention_as_one(made: Bundle) -> None:
    """One operator reads the caches of a layer: they are blocks in a causal decoder, and variables in others."""
    loaded: Any = runtimes.load("openvino", made)
    kinds = kinds_of(loaded)
    rows = [each for each in made.manifest.facts.state if each.owner == "row"]
    is_causal = made.manifest.facts.is_causal
    assert kinds["MemoryInput"] == kinds["MemoryOutput"] == (0 if is_causal else len(rows))
    assert kinds["PagedAttention" if is_causal else "ScaledDotProductAttention"] == len(rows) // 2


def kinds_of(loaded: Any) -> Counter[str]:
    """Return how many operators of each kind OpenVINO runs."""
    parts = [each for parts in loaded._engine._parts.values() for each in parts.values()]
    return Counter(_kind(node) for each in parts for node in each.model.get_runtime_model().get_ops())


@pytest.fixture(scope="module", params=["llama-windows-tiny", "gpt2-tiny"])
def paged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("paged") / "out"
    return bundle_of(load_checkpoint(f"preset:{request.param}"), folder, "portable")


@given(st.data())
@settings(max_examples=15)
def test_rows_share_blocks_and_keep_their_own_values(paged: Bundle, data: st.DataObject) -> None:
    """Rows of any lengths that are selected, some of them several times, give what they give on ONNX Runtime."""
    loaded: list[Any] = [runtimes.load(name, paged, threads=1) for name in ("ort", "openvino")]
    assert isinstance(loaded[1]._engine._decoder, PagedDecoder)
    longest = paged.manifest.facts.writes.longest
    lengths = np.array(data.draw(st.lists(st.integers(1, longest - 8), min_size=1, max_size=4)))
    rng = np.random.default_rng(0)
    prompts = rng.integers(4, 20, (len(lengths), lengths.max()))
    states = [each.start(prompts, lengths, max_length=longest) for each in loaded]
    tokens = prompts[np.arange(len(lengths)), lengths - 1]
    for _ in range(8):
        (right, one), (found, other) = (each.step(tokens, state) for each, state in zip(loaded, states, strict=True))
        np.testing.assert_allclose(found.values, right.values, atol=2e-5)
        rows = np.array(data.draw(st.lists(st.integers(0, len(tokens) - 1), min_size=1, max_size=6)))
        states = [each.select(state, rows) for each, state in zip(loaded, (one, other), strict=True)]
        tokens = rng.integers(4, 20, len(rows))
    seen = loaded[0]._engine.to_numpy(states[0].tensors[ATTENTION_MASK])[:, None, :, None]  # padding has no values
    for name in paged.manifest.graphs[DECODER].past().values():
        right, held = (each._engine.to_numpy(state.tensors[name]) for each, state in zip(loaded, states, strict=True))
        np.testing.assert_allclose(held, right * seen, atol=2e-5)


def test_an_older_state_of_blocks_still_has_its_values(paged: Bundle) -> None:
    loaded: Any = runtimes.load("openvino", paged, threads=1)
    prompts, lengths = np.array([[5, 6, 7, 8], [9, 4, 0, 0]]), np.array([4, 2])
    _, before = loaded.step(np.array([8, 4]), loaded.start(prompts, lengths, max_length=9))
    first, after = loaded.step(np.array([5, 6]), before)
    again, other = loaded.step(np.array([5, 6]), before)
    np.testing.assert_allclose(again.values, first.values, atol=1e-5)
    started = loaded.start(prompts, lengths, max_length=9)
    right = loaded.step(np.array([8, 4]), started)[0].values.copy()
    loaded.step(np.array([5, 6]), loaded.step(np.array([8, 4]), started)[1])
    np.testing.assert_array_equal(loaded.step(np.array([8, 4]), started)[0].values, right)
    for state in (after, other):
        found, _ = loaded.step(np.array([7, 7]), state)
        np.testing.assert_allclose(found.values, loaded.step(np.array([7, 7]), other)[0].values, atol=1e-5)
    with pytest.raises(RunError, match="rows can be selected from the newest state only"):
        loaded.select(after, np.array([1]))


@pytest.mark.parametrize(
    ("preset", "gated"), [("llama-tiny", True), ("modernbert-tiny", True), ("gpt2-tiny", False), ("bert-tiny", False)]
)
def test_gates_are_found_by_their_products(preset: str, gated: bool, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(f"preset:{preset}"), tmp_path / "out", "portable")
    (file,) = (bundle.file(role) for role, graph in bundle.manifest.graphs.items() if graph.has_weights)
    assert rewrite.has_gates(library.openvino.Core().read_model(str(file))) == gated


def test_in_bf16_one_thread_runs_no_gated_feed_forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO 2026.4 would end the process on processors with AMX."""
    if reason := here("openvino-bf16"):
        pytest.skip(reason)
    monkeypatch.setattr(openvino, "flags", frozenset)
    bundle = bundle_of(load_checkpoint("preset:llama-tiny"), tmp_path / "out", "portable")
    with pytest.raises(UnsupportedError, match=r"can't run gated feed-forwards with one thread, .* take openvino"):
        runtimes.load("openvino-bf16", bundle, threads=1)


@pytest.mark.parametrize("name", ["openvino", "openvino-bf16"])
def test_what_one_request_leaves_in_blocks_is_in_no_other(name: str, paged: Bundle) -> None:
    """Nor is a NaN in places without tokens, whose numbers attention may multiply by 0."""
    try:
        loaded: Any = runtimes.load(name, paged, threads=1)
    except (UnavailableError, UnsupportedError) as error:
        pytest.skip(str(error))
    prompts, lengths = np.array([[5, 6, 7, 8], [9, 4, 0, 0]]), np.array([4, 2])

    def begun() -> tuple[Any, np.ndarray, set[int]]:
        state = loaded.start(prompts, lengths, max_length=9)
        found, state = loaded.step(np.array([8, 4]), state)
        found, state = loaded.step(np.array([5, 6]), state)
        (store,) = {each.store for each in state.tensors.values() if isinstance(each, Cache)}
        return store, found.values.copy(), {each.ctypes.data for each in store._memory.values()}

    store, right, before = begun()
    for array in store._memory.values():
        array[:] = 0x7FC0 if array.dtype == np.uint16 else np.nan
    del store, array
    store, found, after = begun()
    assert before & after, "memory is used again"
    assert not any(np.isnan(Held(array).array).any() for array in store._memory.values())
    np.testing.assert_array_equal(found, right)


def test_where_openvino_can_not_page_caches_are_variables(paged: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention by pages is no part of its stable interface, and not on all processors."""
    expected = said(runtimes.load("openvino", paged, threads=1), paged)
    monkeypatch.setattr(openvino, "with_pages", lambda *_: 1 / 0)
    loaded: Any = runtimes.load("openvino", paged, threads=1)
    assert kinds_of(loaded)["MemoryInput"] == len(paged.manifest.facts.state)
    for found, right in zip(said(loaded, paged), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.mark.parametrize("mask", [[1, 0, 1], [1, 1, 0], [0, 0, 0]])
def test_a_mask_of_padding_elsewhere_is_refused(mask: list[int], paged: Bundle) -> None:
    loaded: Any = runtimes.load("openvino", paged, threads=1)
    lengths = {BATCH: 1, PAST: 0, TOKENS: 3}
    inputs = {each.name: np.zeros(each.shape(lengths), each.dtype) for each in paged.manifest.graphs[DECODER].inputs}
    with pytest.raises(RunError, match="attention_mask must hide the same first tokens of each row"):
        loaded.run_graph(DECODER, inputs | {ATTENTION_MASK: np.array([mask])})


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_runs_of_many_tokens_share_the_caches_of_few(precision: str, tmp_path: Path) -> None:
    """In bf16, prompts run with weights as numbers, and steps of few rows with those in few bits."""
    if reason := here("openvino-bf16"):
        pytest.skip(reason)
    checkpoint = load_checkpoint("preset:llama-tiny")
    bundle = bundle_of(checkpoint, tmp_path / "out", "portable", precision=precision)
    loaded: Any = runtimes.load("openvino-bf16", bundle)
    few, many = (
        Counter(map(_kind, each.model.get_runtime_model().get_ops())) for each in loaded._engine._decoder.forms
    )
    assert few["Const"] > many["Const"], "numbers have no scales"
    assert few["PagedAttention"] == many["PagedAttention"]
    for found, right in zip(said(loaded, bundle), said(runtimes.load("ort", bundle), bundle), strict=True):
        assert error(found, right) < CLOSE["int8"]


@pytest.mark.parametrize(("preset", "layers"), [("llama-tiny", 2), ("modernbert-tiny", 3)])
def test_openvino_rotates_by_one_operator(preset: str, layers: int, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(f"preset:{preset}"), tmp_path / "out", "portable")
    assert kinds_of(runtimes.load("openvino", bundle))["RoPE"] == 2 * layers  # queries and keys


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_openvino_computes_the_logits_of_wanted_places_only(precision: str, tmp_path: Path) -> None:
    """A prompt needs the last one only; the projection of all took a fifth of its time."""
    checkpoint = load_checkpoint("preset:llama-tiny")
    graph = bundle_of(checkpoint, tmp_path / "out", "portable", precision=precision).manifest.graphs["decoder"]
    model = openvino._core().read_model(tmp_path / "out" / graph.file)
    rewrite.with_places(model, "logits", 1)
    (logits,) = (each.get_node() for each in model.outputs if "logits" in each.get_names())
    assert logits.input_value(0).get_node().get_type_name() == "MatMul"


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_folded_weights_are_the_same_numbers_in_bf16(precision: str, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint("preset:bert-tiny"), tmp_path / "out", "portable", precision=precision)
    model = openvino._core().read_model(bundle.file("model"))
    inputs = [np.full((1, 5), 1) for _ in model.inputs]
    before = outputs(model, inputs)
    folded = rewrite.fold(model)
    read = [each.input_value(1).get_node() for each in folded.get_ordered_ops() if each.get_type_name() == "MatMul"]
    weights = [each for each in read if rewrite._is_constant(each)]
    constants = [each for each in weights if each.get_type_name() == "Constant"]
    assert {each.get_element_type() for each in constants} == {library.openvino.Type.bf16}
    assert error(outputs(folded, inputs), before) < CLOSE["bf16"]


@pytest.mark.parametrize("preset", ["llama-windows-tiny", "t5-tiny", "whisper-mini-tiny", "additive-tiny"])
def test_openvino_computes_groups_windows_and_biases(preset: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(f"preset:{preset}")
    assert check(bundle_of(checkpoint, tmp_path / "out", "portable"), checkpoint, {"openvino": "cpu"}).passed


def _kind(node: Any) -> str:
    return str(node.get_rt_info()["layerType"].astype(str))


def test_lengths_compile_nothing_anew(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = runtimes.load("openvino", bundle)
    monkeypatch.setattr(openvino, "_core", lambda: pytest.fail("it compiles again"))
    for length in (1, 7, 3):
        state = loaded.start(np.full((2, length), 5), np.array([length, 1]), max_length=4)
        for _ in range(3):
            _, state = loaded.step(np.array([4, 5]), state)
        loaded.select(state, np.array([1, 0]))


# ------------------------------------------------------------------------------------------------ what it can't


def test_a_bundle_of_another_target_is_refused(engine: str, checkpoint: Path, tmp_path: Path) -> None:
    made = bundle_of(load_checkpoint(str(checkpoint)), tmp_path / "cpu", "cpu")
    with pytest.raises(UnsupportedError) as caught:
        runtimes.load(engine, made)
    wanted = f"the {engine} runtime can't run bundles of the cpu target; ort can, and {engine} runs what"
    assert str(caught.value) == f"{wanted} `txport export --target portable` makes"


def _rename(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Softmax").op_type = "Nonsense"


def _drop_an_input(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "MatMul")
    node.input[0] = "nowhere"


def _close_a_circle(model: onnx.ModelProto) -> None:
    """Engines that take a graph's order for granted crash."""
    nodes = list(model.graph.node)
    first = next(at for at, node in enumerate(nodes) if node.op_type == "Add")
    nodes[first].input[0] = nodes[-1].output[0]


def _cut(model: onnx.ModelProto) -> None:
    tensor = next(each for each in model.graph.initializer if len(each.raw_data) > 64)
    tensor.raw_data = tensor.raw_data[:-8]


@pytest.mark.parametrize("edit", [_rename, _drop_an_input, _cut, _close_a_circle])
def test_a_damaged_graph_is_one_error(edit: Callable[[Any], None], engine: str, copied: Path) -> None:
    """Operators that it lacks exit with 3, as what is not here does; files that are damaged with 2."""
    with pytest.raises((BundleError, LoadError)) as caught:
        runtimes.load(engine, edit_graph(copied, ENCODER, edit), threads=1)
    assert "encoder_model.onnx: " in str(caught.value)
    if edit is _close_a_circle:
        assert "which nothing before it gives" in str(caught.value)
    assert "\n" not in str(caught.value)
    if edit is _rename:
        assert isinstance(caught.value, LoadError)
        assert "Nonsense" in str(caught.value)


def test_a_graph_with_other_ports_is_refused(engine: str, copied: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        old = model.graph.input[0].name
        new = "other_ids"
        model.graph.input[0].name = new
        for node in model.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]

    with pytest.raises(BundleError, match="input input_ids is missing"):
        runtimes.load(engine, edit_graph(copied, ENCODER, edit))


def test_a_graph_that_does_not_run_is_one_error(engine: str, bundle: Bundle) -> None:
    loaded = runtimes.load(engine, bundle)
    inputs = {"input_ids": np.ones((2, 3), np.int64), "attention_mask": np.ones((2, 4), np.int64)}
    with pytest.raises(RunError, match=r"the encoder graph does not run on (OpenVINO|tract): ") as caught:
        loaded.run_graph(ENCODER, inputs)
    assert "\n" not in str(caught.value)
    assert "Exception from" not in str(caught.value)
    assert "Stack backtrace" not in str(caught.value)


def test_openvino_sends_nothing() -> None:
    """Its package tells its maker of each import, unless the package that does so is not there."""
    code = f"import sys; from txport.runtimes.openvino.library import openvino; assert {TELEMETRY!r} not in sys.modules"
    seen = "; print(sorted(name for name in sys.modules if name.startswith('openvino.tools.ovc.telemetry')))"
    found = subprocess.run([sys.executable, "-c", code + seen], capture_output=True, text=True, check=True)
    assert "telemetry_stub" in found.stdout or found.stdout.strip() == "[]"


def test_doctor_tells_of_every_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnose.examine().runtimes == {name: here(name) for name in runtimes.RUNTIMES}
    whole = importlib.import_module

    def absent(name: str) -> Any:
        if "openvino" in name:
            raise ModuleNotFoundError("No module named 'openvino'", name="openvino")
        return whole(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    found = diagnose.examine()
    assert found.runtimes["openvino"] == (
        "the openvino runtime needs openvino, which is not installed: pip install 'txport[openvino]'"
    )
    assert found.problems == []  # nobody has to have it
