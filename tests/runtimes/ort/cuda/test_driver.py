"""How the driver of cuda bundles goes about it, on the CPU in a GPU's place; test_drivers.py has what it finds."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.runtimes.driven import SEARCHES, Driven, found, numbers, seat_mixed, sources_of, tokens
from tests.seeded import bundle_of
from tests.tiny import update_hashes
from txport import runtimes
from txport.bundles.bundle import load_bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import BundleError, RunError, UnsupportedError
from txport.proof.proven import prove
from txport.proof.verify.check import verify
from txport.runtimes.inputs import infer
from txport.runtimes.ort.cuda import driver, steps
from txport.runtimes.ort.cuda.ahead import Ahead, StepOutputs
from txport.runtimes.ort.cuda.driver import CudaRuntime
from txport.runtimes.ort.cuda.host import HostDevice
from txport.runtimes.ort.cuda.state import CudaState
from txport.runtimes.ort.cuda.workspace import Workspace, batch_bucket
from txport.search.continuous import Scheduler
from txport.search.generate import generate
from txport.search.numbers import numbers_only
from txport.search.options import SearchOptions

KINDS = [("toy", "fp16"), ("gpt2-tiny", "bf16"), ("llama-tiny", "fp16")]
Make = Callable[[str, str, str], Driven]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def made(request: pytest.FixtureRequest, driven: Make) -> Driven:
    name, precision = request.param
    return driven(name, "cuda", precision)


@pytest.fixture(scope="module")
def toy(driven: Make) -> Driven:
    return driven("toy", "cuda", "fp16")


def test_others_are_encoded_while_steps_are_searched(toy: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sources are queued behind the first step, before there is a slot for them."""
    bundle, runtime, _ = toy
    begun: list[str] = []
    start = CudaRuntime.start
    step = CudaRuntime.step
    monkeypatch.setattr(CudaRuntime, "start", lambda *a, **how: (begun.append("start"), start(*a, **how))[1])
    monkeypatch.setattr(CudaRuntime, "step", lambda *a, **how: (begun.append("step"), step(*a, **how))[1])
    options = SearchOptions(max_new_tokens=9, min_new_tokens=9)
    requests = [(each, ()) for each in sources_of(bundle, 5)]
    for watched in (runtime, numbers_only(runtime)):
        begun.clear()
        Scheduler(watched, requests, bundle.manifest.facts, options, 2).run()  # type: ignore[arg-type]
        assert begun[:4] == ["start", "step", "start", "step"]
        assert begun.count("start") == 3


@pytest.mark.parametrize("options", [SEARCHES[at] for at in (0, 2, 3, 4, 6)], ids=str)
def test_steps_that_nobody_asked_for_change_nothing(
    made: Driven, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens and scores, to the last bit, in fixed and in continuous batches."""
    bundle, runtime, _ = made
    sources = sources_of(bundle)
    facts = bundle.manifest.facts
    chosen = SearchOptions(max_new_tokens=40, **options)
    requests = [(each, ()) for each in sources]

    def find() -> str:
        moving = Scheduler(runtime, requests, facts, chosen, 3).run()
        return repr((generate(runtime, sources, facts, chosen), moving))

    with_them = find()
    monkeypatch.setattr(Ahead, "wanted", lambda self, top: 0)
    assert find() == with_them


def test_steps_are_queued_as_long_as_they_are_taken() -> None:
    queue = Ahead()
    asked = StepOutputs(1, logits=False, align=False)
    active = np.ones(2, np.bool_)
    best = np.array([3, 4])
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
def test_no_step_goes_beyond_the_longest_target(toy: Driven, longest: int) -> None:
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
def faulty(toy: Driven) -> Any:
    """Whether a search on a driver with a fault is as good as without."""
    bundle, runtime, _ = toy
    sources = sources_of(bundle)
    options: list[dict[str, Any]] = [{}, {"beams": 3}, {"min_new_tokens": 9}, SEARCHES[-1]]
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
    def queue(self: Any, state: CudaState, asked: StepOutputs, given: Any) -> Any:
        bound = self._bound(state, asked.tokens)
        return self._run_step(state, bound, bound.graph, asked)

    monkeypatch.setattr(steps.Steps, "_queue", queue)
    assert fail(faulty)


def test_a_graph_that_is_taken_for_one_of_another_shape_is_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaState, "shape", property(lambda state: (state.batch, state.width, state.places)))
    assert fail(faulty)


def test_steps_ahead_that_are_kept_when_rows_move_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ahead, "matches_prediction", lambda self, given, active: self.best is not None)
    assert fail(faulty)


def test_rows_that_are_not_moved_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(self: Any, state: CudaState, moves: Any, *, is_written: bool) -> None:
        state.ahead.drop()
        state.on_device = None

    monkeypatch.setattr(CudaRuntime, "_move", stay)
    assert fail(faulty)


def test_rows_that_go_on_from_others_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "seat", seat_mixed)
    assert fail(faulty)


def test_sources_that_are_read_before_they_are_encoded_are_found(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaRuntime, "_join", lambda self, state: None)
    assert fail(faulty)


def test_memory_that_is_encoded_into_while_it_is_read_is_found(toy: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    _, runtime, _ = toy
    ids = np.array([[5, 9, 2], [6, 2, 0]])
    lengths = np.array([3, 2])

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


def test_the_memory_of_an_encoder_that_failed_is_used_again(driven: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = driven("bert-tiny", "cuda", "fp16").runtime
    ids = np.array([[5, 9, 2]])
    lengths = np.array([3])
    expected = runtime.infer(ids, lengths)
    with monkeypatch.context() as broken:
        broken.setattr(runtime.device, "run", lambda *a: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            runtime.infer(ids, lengths)
    monkeypatch.setattr(Workspace, "__init__", lambda *a: pytest.fail("no other workspace is needed"))
    for name, value in runtime.infer(ids, lengths).items():
        np.testing.assert_array_equal(value, expected[name])


def test_bulk_work_encodes_the_next_batch_before_the_steps_of_one(toy: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, runtime, _ = toy
    sources = sources_of(bundle)
    begun = list[str]()
    expected = [found(runtime, [source], bundle, beams=2)[0] for source in sources]
    start = CudaRuntime.start
    step = CudaRuntime.step
    monkeypatch.setattr(CudaRuntime, "start", lambda *a, **how: (begun.append("start"), start(*a, **how))[1])
    monkeypatch.setattr(CudaRuntime, "step", lambda *a, **how: (begun.append("step"), step(*a, **how))[1])
    together = toy.model().search(sources, batch_size=2, max_new_tokens=40, beams=2)
    assert tokens(together) == tokens(expected)
    assert numbers(together) == pytest.approx(numbers(expected), abs=1e-4)
    turns = [name for name, _ in itertools.groupby(begun)]
    assert begun[:3] == ["start", "start", "step"]
    assert turns == ["start", "step"] * 3  # the last two batches share a turn: nothing begins after them
    assert begun.count("start") == 4


def test_a_batch_moves_together_only_where_it_fits_a_smaller_bucket(toy: Driven) -> None:
    """Rows that leave are gathered at 4, 3, 2 and 1 sources, and nowhere between."""
    bundle, runtime, _ = toy
    sizes = list[int]()
    moves = list[int]()

    class Watching(HostDevice):
        def run(self, binding: Any, graph: int = -1) -> None:
            if binding.role == "step":
                sizes.append(binding.inputs["input_ids"].shape[0])
            if binding.role == "select_rows":
                moves.append(binding.inputs["rows"].shape[0])
            super().run(binding, graph)

    watched = CudaRuntime(runtime.facts, runtime.graphs, Watching())
    sources = sources_of(bundle)
    ends = [len(each[0].tokens) for each in found(watched, sources, bundle)]
    left = [sum(end > at for end in ends) for at in range(max(ends))]
    buckets = [size for size, _ in itertools.groupby(sizes)]
    assert buckets == sorted({batch_bucket(each) for each in left}, reverse=True)
    assert len(buckets) > 2
    assert moves == buckets[1:]


def test_prompts_in_parts_are_prompts_at_once(made: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, runtime, _ = made
    if bundle.manifest.facts.task != "causal":
        return
    sources = sources_of(bundle)
    whole = found(runtime, sources, bundle)
    monkeypatch.setattr(driver, "TOGETHER", 16)
    parts = found(runtime, sources, bundle)
    assert tokens(parts) == tokens(whole)
    assert numbers(parts) == pytest.approx(numbers(whole), abs=1e-5)


def test_a_row_that_says_nan_leaves_none_behind(toy: Driven) -> None:
    """What takes the place of it finds what it finds alone."""
    _, runtime, _ = toy
    ids = np.array([[5, 9, 2], [6, 7, 2]])
    lengths = np.array([3, 3])
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
    [("toy", "fp16"), ("t5-tiny", "fp16"), ("gpt2-tiny", "bf16"), ("bert-tiny", "fp16")],
)
def test_a_bundle_is_proven_without_a_gpu_to_fp32_of_its_own_weights(
    name: str, precision: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "home", lambda target: ("cuda-stand-in", "cpu"))  # there may be a GPU
    source = str(checkpoint) if name == "toy" else f"preset:{name}"
    loaded = load_checkpoint(source)
    bundle, report = prove(bundle_of(loaded, tmp_path / "out", "cuda", precision), loaded)
    assert bundle.manifest.parity["verdict"] == "pass"
    assert bundle.manifest.parity["runtimes"] == ["cuda-stand-in"]
    assert report.passed
    assert report.about["tolerances"]["cuda-stand-in"]["precision"] == "fp32"
    assert report.worst_output < 1e-4
    assert verify(bundle.path, runtime="cuda-stand-in").passed


def test_an_encoder_in_parts_gives_what_it_gives_at_once(driven: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, runtime, _ = driven("bert-tiny", "cuda", "fp16")
    sources = sources_of(bundle)
    whole = infer(runtime, sources, bundle.manifest.facts)
    monkeypatch.setattr(driver, "TOGETHER", 40)
    for part, expected in zip(infer(runtime, sources, bundle.manifest.facts), whole, strict=True):
        for name in expected:
            np.testing.assert_allclose(part[name], expected[name], atol=1e-5)


def test_tensors_come_and_go_by_dlpack(toy: Driven, driven: Make) -> None:
    bundle, runtime, _ = driven("bert-tiny", "cuda", "fp16")
    ids = torch.tensor([[5, 9, 2], [6, 2, 0]])
    lengths = torch.tensor([3, 2])
    found = runtime.infer_on_device(ids, lengths)
    expected = runtime.infer(ids.numpy(), lengths.numpy())
    for each in bundle.manifest.facts.outputs:
        np.testing.assert_array_equal(torch.from_dlpack(found[each.name]).numpy(), expected[each.name])
    with pytest.raises(UnsupportedError, match="input_ids must be of type int64, got int32; cast it"):
        runtime.infer_on_device(ids.int(), lengths)
    with pytest.raises(UnsupportedError, match="must have DLPack's methods, got 'list'"):
        runtime.infer_on_device([[5]], lengths)
    with pytest.raises(UnsupportedError, match="needs an encoder-only model"):
        toy.runtime.infer_on_device(ids, lengths)


def test_what_runs_it_is_said(toy: Driven) -> None:
    bundle = toy.bundle
    with pytest.raises(UnsupportedError, match=r"runs on provider cuda, got provider 'cpu'; give provider='cuda', or "):
        runtimes.load("ort", bundle)
    with pytest.raises(UnsupportedError, match="graphs are cast to fp32 for the CPU, got provider 'cuda'"):
        runtimes.load("cuda-stand-in", bundle, provider="cuda")
    with pytest.raises(UnsupportedError, match="user_compute_stream needs the ort runtime on cuda"):
        runtimes.load("cuda-stand-in", bundle, user_compute_stream=1)
    with pytest.raises(UnsupportedError, match="the reference runtime can't run bundles of the cuda target; ort can"):
        runtimes.load("reference", bundle)


def test_a_graph_that_can_not_be_cast_is_one_error(toy: Driven, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(toy.bundle.path, tmp_path / "copy"))

    model = onnx.load(str(copied / "onnx/step.onnx"), load_external_data=False)
    model.graph.initializer.add(name="odd", data_type=onnx.TensorProto.FLOAT16, dims=[3], raw_data=b"1")
    onnx.save(model, str(copied / "onnx/step.onnx"))
    update_hashes(copied)
    with pytest.raises(BundleError, match=r"step\.onnx can't be cast to fp32: .*; export it again"):
        runtimes.load("cuda-stand-in", load_bundle(copied))
