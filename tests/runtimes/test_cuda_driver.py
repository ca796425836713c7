"""The driver of cuda bundles, on the CPU in a GPU's place, finds what PyTorch finds with the bundle's weights."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.tiny import mend, tiny_config, tiny_model
from txport import runtimes
from txport.api import Model
from txport.bundles.bundle import Bundle, load_bundle
from txport.errors import BundleError, RunError, UnsupportedError
from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.models.tokenizers.numbers import NumberTokenizer
from txport.models.weights.streamed import converted
from txport.proof import proven
from txport.proof.parity.check import check
from txport.proof.verify.check import verify
from txport.runtimes.base import ContinuousRuntime
from txport.runtimes.encoding import infer
from txport.runtimes.ort.cuda import ahead, driver, steps
from txport.runtimes.ort.cuda.ahead import Ahead, Asked
from txport.runtimes.ort.cuda.driver import CudaRuntime
from txport.runtimes.ort.cuda.host import HostDevice
from txport.runtimes.ort.cuda.state import CudaState
from txport.runtimes.ort.cuda.workspace import Workspace
from txport.runtimes.pytorch import TorchRuntime
from txport.search.continuous import Scheduler
from txport.search.generate import generate, search
from txport.search.numbers import numbers_only
from txport.search.options import Found, SearchOptions

KINDS = {"toy": "fp16", "gpt2-tiny": "bf16", "llama-tiny": "fp16"}
LONGEST = 80
ENDS = [2, 5, 8, 11]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"scores": False, "min_new_tokens": 9},
    {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]},
    {"repetition_penalty": 1.3},
    {"beams": 3, "nbest": 3},
    {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "nbest": 2, "early_stopping": True},
    {"do_sample": True, "nbest": 3, "seed": 3, "top_k": 4, "eos_token_id": ENDS, "min_new_tokens": 2},
    {"do_sample": True, "nbest": 2, "seed": 3, "eos_token_id": ENDS, "min_new_tokens": 2},
]
Made = tuple[Bundle, CudaRuntime, TorchRuntime]


def written(name: str, precision: str, folder: Path, **changes: Any) -> Made:
    """A bundle, on the CPU in a GPU's place, and PyTorch with the weights that it holds."""
    if name == "toy":
        save_checkpoint(folder / "toy", tiny_model(tiny_config(max_length=LONGEST, **changes)))
    checkpoint: Checkpoint = load_checkpoint(str(folder / "toy") if name == "toy" else f"preset:{name}")
    (folder / "out").mkdir()
    bundle = proven.write(checkpoint, folder / "out", target="cuda", precision=precision)
    runtime = runtimes.load("cuda-stand-in", bundle, threads=1)
    assert isinstance(runtime, CudaRuntime)
    narrow = {"fp16": torch.half, "bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    return bundle, runtime, TorchRuntime(converted(converted(checkpoint.model, narrow), torch.float32))


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written(request.param, KINDS[request.param], tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written("toy", "fp16", tmp_path_factory.mktemp("cuda"))


def sources_of(bundle: Bundle, count: int = 7) -> list[list[int]]:
    """Of many lengths, in no order."""
    rng, size = np.random.default_rng(5), min(bundle.manifest.facts.reads.size, 20)  # type: ignore[union-attr]
    return [rng.integers(4, size, length).tolist() for length in rng.permutation(np.arange(count) * 3 % 19 + 2)]


def found(runtime: Any, sources: list[list[int]], bundle: Bundle, new: int = 40, **options: Any) -> list[list[Found]]:
    return generate(runtime, sources, bundle.manifest.facts, SearchOptions(max_new_tokens=new, **options))


def tokens(found: list[list[Found]]) -> list[list[tuple[int, ...]]]:
    return [[one.tokens for one in each] for each in found]


def numbers(found: list[list[Found]]) -> list[float]:
    return [one.score for each in found for one in each]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_tokens_are_those_of_pytorch_beyond_the_first_capacity(made: Made, options: dict[str, Any]) -> None:
    bundle, runtime, torch_runtime = made
    sources = sources_of(bundle)
    expected, actual = (found(each, sources, bundle, **options) for each in (torch_runtime, runtime))
    assert tokens(actual) == tokens(expected)
    assert numbers(actual) == pytest.approx(numbers(expected), abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("options", SEARCHES, ids=str)
@pytest.mark.parametrize("slots", [1, 3])
def test_what_is_found_is_the_same_in_continuous_batches(made: Made, options: dict[str, Any], slots: int) -> None:
    bundle, runtime, _ = made
    assert isinstance(runtime, ContinuousRuntime)
    sources = sources_of(bundle)
    chosen = SearchOptions(max_new_tokens=36, **options)
    fixed = generate(runtime, sources, bundle.manifest.facts, chosen)
    moving = Scheduler(runtime, [(each, ()) for each in sources], bundle.manifest.facts, chosen, slots).run()
    assert tokens(moving) == tokens(fixed)
    assert numbers(moving) == pytest.approx(numbers(fixed), abs=1e-4, nan_ok=True)


def test_others_are_encoded_while_steps_are_searched(toy: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sources are queued behind the first step, before there is a slot for them."""
    bundle, runtime, _ = toy
    begun: list[str] = []
    start, step = CudaRuntime.start, CudaRuntime.step
    monkeypatch.setattr(CudaRuntime, "start", lambda *a, **how: (begun.append("start"), start(*a, **how))[1])
    monkeypatch.setattr(CudaRuntime, "step", lambda *a, **how: (begun.append("step"), step(*a, **how))[1])
    options = SearchOptions(max_new_tokens=9, min_new_tokens=9)
    requests = [(each, ()) for each in sources_of(bundle, 5)]
    for watched in (runtime, numbers_only(runtime)):
        begun.clear()
        Scheduler(watched, requests, bundle.manifest.facts, options, 2).run()  # type: ignore[arg-type]
        assert begun[:4] == ["start", "step", "start", "step"]
        assert begun.count("start") == 3


def test_prefixes_and_attention_are_those_of_pytorch(toy: Made) -> None:
    bundle, runtime, torch_runtime = toy
    sources, prefixes = sources_of(bundle), [[6, 7], [], [9], [4, 4, 4], [], [5], [8, 9]]
    for more in ({}, {"beams": 3, "coverage_penalty": 0.3}):
        options = SearchOptions(max_new_tokens=30, alignment="soft", **more)
        both = [generate(each, sources, bundle.manifest.facts, options, prefixes) for each in (torch_runtime, runtime)]
        assert tokens(both[1]) == tokens(both[0])
        for one, other in zip(*both, strict=True):
            np.testing.assert_allclose(other[0].alignment, one[0].alignment, atol=1e-4)


def test_what_is_streamed_is_what_a_batch_finds(made: Made) -> None:
    bundle, runtime, _ = made
    sources, facts = sources_of(bundle, 3), bundle.manifest.facts
    for options in SEARCHES[::3]:
        together = tokens(found(runtime, sources, bundle, **options))
        for source, expected in zip(sources, together, strict=True):
            walk = search(runtime, [source], facts, SearchOptions(max_new_tokens=40, **options))
            ended = None
            while ended is None:
                try:
                    next(walk)
                except StopIteration as end:
                    ended = end.value
            assert tokens(ended) == [expected]


@settings(max_examples=40)
@given(data=st.data())
def test_select_is_the_same_rows_as_in_pytorch(made: Made, data: st.DataObject) -> None:
    """Any rows, kept, dropped, repeated or turned around, at any time: the next logits are PyTorch's."""
    both = made[1:]
    ids = np.array([[5, 9, 2], [6, 2, 0], [4, 8, 2]])
    states = [runtime.start(ids, np.array([3, 2, 3]), max_length=30) for runtime in both]
    rows = 3
    for _ in range(data.draw(st.integers(1, 4))):
        for _ in range(data.draw(st.integers(1, 2))):
            given = np.array(data.draw(st.lists(st.integers(3, 12), min_size=rows, max_size=rows)))
            results = [runtime.step(given, state) for runtime, state in zip(both, states, strict=True)]
            states = [state for _, state in results]
            np.testing.assert_allclose(results[0][0].values, results[1][0].values, atol=1e-4)
        chosen = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=7)))
        states = [runtime.select(state, chosen) for runtime, state in zip(both, states, strict=True)]
        rows = len(chosen)


def test_memory_that_is_used_again_is_clean(made: Made) -> None:
    bundle, runtime, _ = made
    sources = sources_of(bundle)
    first = found(runtime, sources, bundle, beams=3)
    for part in (sources[:2], sources[::-1], sources[3:]):
        found(runtime, part, bundle, beams=3)
    assert found(runtime, sources, bundle, beams=3) == first


@pytest.mark.parametrize("options", [SEARCHES[at] for at in (0, 2, 3, 4, 6)], ids=str)
def test_steps_that_nobody_asked_for_change_nothing(
    made: Made, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens and scores, to the last bit, in fixed and in continuous batches."""
    bundle, runtime, _ = made
    sources, facts = sources_of(bundle), bundle.manifest.facts
    chosen = SearchOptions(max_new_tokens=40, **options)
    requests = [(each, ()) for each in sources]

    def find() -> str:
        moving = Scheduler(runtime, requests, facts, chosen, 3).run()
        return repr((generate(runtime, sources, facts, chosen), moving))

    with_them = find()
    monkeypatch.setattr(Ahead, "wanted", lambda self, top: 0)
    assert find() == with_them


@settings(max_examples=30)
@given(data=st.data())
def test_a_row_that_goes_another_way_finds_what_it_finds_without_steps_ahead(toy: Made, data: st.DataObject) -> None:
    """Greedy for a while, then any token, rows that rest, and greedy again: PyTorch's scores at each step."""
    both = toy[1:]
    ids = np.array([[5, 9, 2], [6, 2, 0]])
    states = [runtime.start(ids, np.array([3, 2]), max_length=40) for runtime in both]
    given = np.array([1, 1])
    for _ in range(data.draw(st.integers(1, 30))):
        results = [runtime.step(given, state, top=1) for runtime, state in zip(both, states, strict=True)]
        states = [state for _, state in results]
        np.testing.assert_allclose(results[0][0].values, results[1][0].values, atol=1e-4)
        assert results[0][0].ids is not None
        given = results[0][0].ids[:, 0].copy()
        if data.draw(st.integers(0, 4)) == 0:
            given[data.draw(st.integers(0, 1))] = data.draw(st.integers(3, 12))


def test_steps_are_queued_as_long_as_they_are_taken() -> None:
    queue, asked = Ahead(), Asked(1, logits=False, align=False)
    active, best = np.ones(2, np.bool_), np.array([3, 4])
    wanted = []
    for _ in range(6):
        queue.take(best, active, asked)
        queue.best = best
        wanted.append(queue.wanted(1))
    assert wanted == [1, 2, 4, 8, 8, 8]
    assert queue.take(np.array([3, 5]), active, asked) is None
    assert queue.wanted(1) == 0
    queue.best = best
    queue.take(np.array([3, 9]), np.array([True, False]), asked)  # a row that rests goes on from nothing
    assert (queue.wanted(1), queue.wanted(2)) == (1, 0)
    queue.drop()
    assert queue.wanted(1) == 0


class Counting(HostDevice):
    """It counts the steps that are queued, and those that somebody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def run(self, binding: Any, graph: int = -1) -> None:
        self.steps += binding.role == "step"
        super().run(binding, graph)


@pytest.mark.parametrize("longest", [1, 2, 3, 7, 31, 32, 33, 60])
def test_no_step_goes_beyond_the_longest_target(toy: Made, longest: int) -> None:
    """Nor beyond the caches: there ONNX Runtime would raise on the CPU, and write anywhere on a GPU."""
    _, runtime, _ = toy
    counting = CudaRuntime(runtime.facts, runtime.graphs, Counting())
    state = counting.start(np.array([[5, 9, 2]]), np.array([3]), max_length=longest)
    given = np.array([1])
    for _ in range(longest):
        scores, state = counting.step(given, state, top=1)
        assert scores.ids is not None
        given = scores.ids[:, 0]
    counting.device.synchronize()
    captures = counting.device.steps - longest  # type: ignore[attr-defined]
    assert captures == (longest >= 3) + (longest > 32 + 3)


@pytest.fixture
def faulty(toy: Made) -> Any:
    """Whether a search on a driver with a fault is as good as without."""
    bundle, runtime, _ = toy
    sources = sources_of(bundle)
    options: list[dict[str, Any]] = [{}, {"beams": 3}, {"min_new_tokens": 9}]
    right = [tokens(found(runtime, sources, bundle, **each)) for each in options]

    def is_right() -> bool:
        fresh = CudaRuntime(runtime.facts, runtime.graphs, HostDevice())
        return [tokens(found(fresh, sources, bundle, **each)) for each in options] == right

    assert is_right()
    return is_right


def fail(is_right: Any) -> bool:
    try:
        return not is_right()
    except (AssertionError, RunError):
        return True


def test_lengths_that_are_not_told_after_a_capture_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def queue(self: Any, state: CudaState, asked: Asked, given: Any) -> Any:
        bound = self._bound(state, asked.tokens)
        return self._run_step(state, bound, bound.graph, asked)

    monkeypatch.setattr(steps.Steps, "_queue", queue)
    assert fail(faulty)


def test_a_graph_that_is_taken_for_one_of_another_shape_is_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaState, "shape", property(lambda state: (state.batch, state.width, state.places)))
    assert fail(faulty)


def test_steps_ahead_that_are_kept_when_rows_move_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ahead, "follows", lambda self, given, active: self.best is not None)
    assert fail(faulty)


def test_rows_that_are_not_moved_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(self: Any, state: CudaState, moves: Any, *, is_written: bool) -> None:
        state.ahead.drop()
        state.on_device = None

    monkeypatch.setattr(CudaRuntime, "_move", stay)
    assert fail(faulty)


def test_sources_that_are_read_before_they_are_encoded_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaRuntime, "_join", lambda self, state: None)
    assert fail(faulty)


def test_memory_that_is_encoded_into_while_it_is_read_is_found(toy: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    _, runtime, _ = toy
    ids, lengths = np.array([[5, 9, 2], [6, 2, 0]]), np.array([3, 2])

    def encode_twice() -> None:
        fresh = CudaRuntime(runtime.facts, runtime.graphs, HostDevice())
        first = fresh.select(fresh.start(ids, lengths, max_length=9), np.array([1, 0]))
        second = fresh.start(ids[:, :2], lengths - 1, max_length=9)
        assert first.workspace is not second.workspace
        fresh.synchronize()

    encode_twice()
    monkeypatch.setattr(Workspace, "used", property(lambda self: None, lambda self, mark: None), raising=False)
    with pytest.raises(AssertionError, match="queue 1 does not wait"):
        encode_twice()


def test_bulk_work_encodes_the_next_batch_before_the_steps_of_one(toy: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, runtime, _ = toy
    sources, begun = sources_of(bundle), list[str]()
    model = Model(runtime, NumberTokenizer(bundle.manifest.facts, exact=True), bundle.manifest.facts)
    expected = [found(runtime, [source], bundle, beams=2)[0] for source in sources]
    start, step = CudaRuntime.start, CudaRuntime.step
    monkeypatch.setattr(CudaRuntime, "start", lambda *a, **how: (begun.append("start"), start(*a, **how))[1])
    monkeypatch.setattr(CudaRuntime, "step", lambda *a, **how: (begun.append("step"), step(*a, **how))[1])
    together = model.search(sources, batch_size=2, max_new_tokens=40, beams=2)
    assert tokens(together) == tokens(expected)
    assert numbers(together) == pytest.approx(numbers(expected), abs=1e-4)
    turns = [name for name, _ in itertools.groupby(begun)]
    assert begun[:3] == ["start", "start", "step"]
    assert turns == ["start", "step"] * 3  # the last two batches share a turn: nothing begins after them
    assert begun.count("start") == 4


def test_prompts_in_parts_are_prompts_at_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, runtime, _ = made
    if bundle.manifest.facts.task != "causal":
        return
    sources = sources_of(bundle)
    whole = found(runtime, sources, bundle)
    monkeypatch.setattr(driver, "TOGETHER", 16)
    parts = found(runtime, sources, bundle)
    assert tokens(parts) == tokens(whole)
    assert numbers(parts) == pytest.approx(numbers(whole), abs=1e-5)


def test_a_row_that_says_nan_leaves_none_behind(toy: Made) -> None:
    """What takes the place of it finds what it finds alone."""
    _, runtime, _ = toy
    ids, lengths = np.array([[5, 9, 2], [6, 7, 2]]), np.array([3, 3])
    alone, _ = runtime.step(np.array([1, 1]), runtime.start(ids, lengths, max_length=20))
    state = runtime.start(ids, lengths, max_length=20)
    given = np.array([1, 1])
    scores, state = runtime.step(given, state, top=1)
    for each in runtime._caches.tensors(state, "row"):
        runtime.device.upload(np.full(each.shape, np.nan), each)
    state.ahead.drop()
    scores, state = runtime.step(given, state, top=1)
    assert np.isnan(scores.values).all()
    runtime.step(np.array([-1, -1]), state)
    others = runtime.start(ids, lengths, max_length=20)
    state = runtime.admit(state, np.array([1, 0]), others, np.array([1, 0]))
    scores, _ = runtime.step(np.array([1, 1]), state)
    np.testing.assert_allclose(scores.values, alone.values, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("toy", "fp16"), ("toy", "bf16"), ("t5-tiny", "fp16"), ("gpt2-tiny", "bf16"), ("bert-tiny", "fp16")],
)
def test_a_bundle_is_proven_without_a_gpu_to_fp32_of_its_own_weights(
    name: str, precision: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "home", lambda target: ("cuda-stand-in", "cpu"))  # there may be a GPU
    source = str(checkpoint) if name == "toy" else f"preset:{name}"
    bundle = txport.export(source, tmp_path / "out", target="cuda", precision=precision)
    assert bundle.manifest.parity["verdict"] == "pass"
    assert bundle.manifest.parity["runtimes"] == ["cuda-stand-in"]
    report = check(bundle, load_checkpoint(source), {"cuda-stand-in": "cpu"})
    assert report.passed
    assert report.about["tolerances"]["cuda-stand-in"]["precision"] == "fp32"
    assert report.worst_output < 1e-4
    assert verify(bundle.path, runtime="cuda-stand-in").passed


def test_an_encoder_gives_what_pytorch_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, runtime, torch_runtime = written("bert-tiny", "fp16", tmp_path)
    sources = sources_of(bundle)
    expected, actual = (infer(each, sources, bundle.manifest.facts) for each in (torch_runtime, runtime))
    monkeypatch.setattr(driver, "TOGETHER", 40)
    parts = infer(runtime, sources, bundle.manifest.facts)
    for one, other, part in zip(expected, actual, parts, strict=True):
        for name in one:
            np.testing.assert_allclose(other[name], one[name], atol=1e-4)
            np.testing.assert_allclose(part[name], one[name], atol=1e-4)


def test_tensors_come_and_go_by_dlpack(toy: Made, tmp_path: Path) -> None:
    bundle, runtime, _ = written("bert-tiny", "fp16", tmp_path)
    ids, lengths = torch.tensor([[5, 9, 2], [6, 2, 0]]), torch.tensor([3, 2])
    found = runtime.infer_on_device(ids, lengths)
    expected = runtime.infer(ids.numpy(), lengths.numpy())
    for each in bundle.manifest.facts.outputs:
        np.testing.assert_array_equal(torch.from_dlpack(found[each.name]).numpy(), expected[each.name])
    with pytest.raises(UnsupportedError, match="input_ids must be of type int64, got int32; cast it"):
        runtime.infer_on_device(ids.int(), lengths)
    with pytest.raises(UnsupportedError, match="must have DLPack's methods, got 'list'"):
        runtime.infer_on_device([[5]], lengths)
    with pytest.raises(UnsupportedError, match="for models that only encode"):
        toy[1].infer_on_device(ids, lengths)


def test_what_runs_it_is_said(toy: Made) -> None:
    bundle = toy[0]
    with pytest.raises(UnsupportedError, match=r"runs on provider cuda, got provider 'cpu'; give --provider cuda, or "):
        runtimes.load("ort", bundle)
    with pytest.raises(UnsupportedError, match="cuda-stand-in is the CPU in a GPU's place, got provider 'cuda'"):
        runtimes.load("cuda-stand-in", bundle, provider="cuda")
    with pytest.raises(UnsupportedError, match="user_compute_stream is for the ort runtime on cuda"):
        runtimes.load("cuda-stand-in", bundle, user_compute_stream=1)
    with pytest.raises(UnsupportedError, match="the reference runtime can't run bundles of the cuda target; ort can"):
        runtimes.load("reference", bundle)


def test_a_graph_that_can_not_be_cast_is_one_error(toy: Made, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(toy[0].path, tmp_path / "copy"))

    model = onnx.load(str(copied / "onnx/step.onnx"), load_external_data=False)
    model.graph.initializer.add(name="odd", data_type=onnx.TensorProto.FLOAT16, dims=[3], raw_data=b"1")
    onnx.save(model, str(copied / "onnx/step.onnx"))
    mend(copied)
    with pytest.raises(BundleError, match=r"step\.onnx can't be cast to fp32: .*; export it again"):
        runtimes.load("cuda-stand-in", load_bundle(copied))


def test_most_steps_ahead_are_a_power_of_two() -> None:
    assert ahead.MOST & (ahead.MOST - 1) == 0
