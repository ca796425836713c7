"""The CPU in a GPU's place does what CUDA does, and tells what CUDA would not."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtimes.ort.cuda.device_graphs import counter, counting, session_of, tensor
from txport.errors import RunError
from txport.runtimes.ort.cuda import gpu
from txport.runtimes.ort.cuda.device import CAPTURE_RUNS, ENCODE_QUEUE, MAIN, Threads, bind, stored, unstored
from txport.runtimes.ort.cuda.host import HostDevice
from txport.runtimes.ort.cuda.workspace import (
    Workspace,
    batch_bucket,
    capacity_bucket,
    source_bucket,
)
from txport.targets.ports import ENCODER


@pytest.fixture(scope="module")
def session() -> Any:
    return session_of(counter())


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def test_nothing_is_done_before_somebody_waits(device: HostDevice, session: Any) -> None:
    count = tensor(device, (2,))
    array = np.array([3, 5])
    device.upload(array, count)
    array[:] = 0  # what was given counts, not what it has become
    device.run(counting(device, session, count))
    first = device.fetch(count)
    device.run(counting(device, session, count))
    memory = count.block._memory  # type: ignore[attr-defined]
    assert (memory == 0xFF).all()
    assert first.arrays()[0].tolist() == [4, 6]
    assert device.fetch(count).arrays()[0].tolist() == [5, 7]


def test_a_new_model_frees_what_a_closed_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's functions are counted in its place: it frees nothing by itself."""
    held: dict[int, int] = {}
    pinned = []

    def pin(place: Any, size: Any, flags: int) -> None:
        pinned.append(ctypes.create_string_buffer(size.value))
        place._obj.value = ctypes.addressof(pinned[-1])

    def allocate(place: Any, size: Any) -> None:
        place._obj.value = max(held, default=0) + 1
        held[place._obj.value] = size.value

    functions = {"cudaHostAlloc": pin, "cudaMalloc": allocate, "cudaFree": lambda place: held.pop(place.value)}

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return functions.get(name, lambda *given: None)

    monkeypatch.setattr(gpu, "Cudart", Counted)
    gpu.UNUSED.clear()
    for _ in range(3):
        blocks = [gpu.CudaDevice().allocate(1 << 20) for _ in range(2)]
        assert sum(held.values()) == 2 << 20
        del blocks
    gpu.UNUSED.clear()


def test_new_memory_holds_no_zeros(device: HostDevice) -> None:
    values = tensor(device, (3,), "float32")
    assert np.isnan(device.fetch(values).arrays()[0]).all()
    device.clear(values)
    assert device.fetch(values).arrays()[0].tolist() == [0, 0, 0]


def test_the_first_run_of_a_graph_counts_three_times(device: HostDevice, session: Any) -> None:
    count = tensor(device, (1,))
    device.upload(np.array([0]), count)
    bound = counting(device, session, count)
    device.run(bound)  # captures nothing
    assert not device.is_captured(7)
    device.run(bound, 7)
    assert device.is_captured(7)
    assert device.fetch(count).arrays()[0].tolist() == [1 + CAPTURE_RUNS]
    device.run(bound, 7)
    assert device.fetch(count).arrays()[0].tolist() == [2 + CAPTURE_RUNS]


def test_a_graph_is_captured_for_the_first_thread_and_once_for_all_others(device: HostDevice, session: Any) -> None:
    """Else each new thread would capture again, and ONNX Runtime would keep that when the thread has ended."""
    count = tensor(device, (1,))
    device.upload(np.array([0]), count)
    bound = counting(device, session, count)
    runs = []
    for number in range(4):
        thread = threading.Thread(target=lambda: runs.append(device.is_captured(7)) or device.run(bound, 7))  # type: ignore[func-returns-value]
        if number == 1:
            runs.append(device.is_captured(7))
            device.run(bound, 7)
        thread.start()
        thread.join()
    assert runs == [False, False, True, True, True]
    assert device.fetch(count).arrays()[0].tolist() == [2 * CAPTURE_RUNS + 3]


def test_a_run_on_the_wrong_thread_is_told(device: HostDevice, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would capture, and step three times."""
    count = tensor(device, (1,))
    device.clear(count)
    bound = counting(device, session, count)
    device.run(bound, 7)
    monkeypatch.setattr(Threads, "_is_first", True)
    raised: list[BaseException] = []

    def replay() -> None:
        try:
            device.run(bound, 7)
        except AssertionError as error:
            raised.append(error)

    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
    assert [str(each) for each in raised] == ["graph 7 was captured on another thread"]


def test_an_error_on_another_thread_reaches_the_one_that_asked() -> None:
    threads = Threads()
    seen = list[object]()

    def fail() -> None:
        seen.append(threading.current_thread().name)
        raise RunError("no")

    def ask() -> None:
        try:
            threads.run(fail)
        except RunError as error:
            seen.append(str(error))

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert seen == ["txport-device_0", "no"] * 2
    with pytest.raises(RunError):
        threads.run(fail)
    assert seen[-1] == threading.current_thread().name


def test_a_replay_over_anything_else_is_told(device: HostDevice, session: Any) -> None:
    """CUDA would run over what it captured, and say nothing."""
    one = tensor(device, (1,))
    other = tensor(device, (1,))
    wider = tensor(device, (2,))
    for each in (one, other, wider):
        device.clear(each)
    device.run(counting(device, session, one), 1)
    for changed in (other, wider):
        with pytest.raises(AssertionError, match="captured over other memory, shapes or values of input count"):
            device.run(counting(device, session, changed), 1)
    with pytest.raises(AssertionError, match="values of input step"):
        device.run(counting(device, session, one, step=2), 1)


def test_memory_that_goes_before_its_run_is_told(device: HostDevice, session: Any) -> None:
    count = tensor(device, (1,))
    device.clear(count)
    device.run(counting(device, session, count))
    del count
    with pytest.raises(AssertionError, match="freed before"):
        device.synchronize()


def test_behind_a_run_that_fails_nothing_is_done(device: HostDevice, session: Any) -> None:
    count = tensor(device, (1,))
    wrong = tensor(device, (3,))
    device.clear(count)
    device.run(bind(device, "counter", session, {"count": count}, {"next": wrong}, {"step": np.array([1])}))
    behind = device.fetch(count)
    with pytest.raises(RunError, match="the counter graph does not run on ONNX Runtime"):
        device.synchronize()
    with pytest.raises(RunError, match="a run before it failed"):
        behind.arrays()
    device.upload(np.array([4]), count)
    assert device.fetch(count).arrays()[0].tolist() == [4]


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=9))
def test_numbers_in_bfloat16_are_those_of_pytorch(values: list[float]) -> None:
    import torch

    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
    bits = stored(array, "bfloat16")
    device = HostDevice()
    found = unstored(bits.view(np.uint8), tensor(device, array.shape, "bfloat16"))
    np.testing.assert_array_equal(found, expected)


@given(count=st.integers(1, 5000))
def test_buckets_are_few_and_close(count: int) -> None:
    bucket = batch_bucket(count)
    assert count <= bucket == batch_bucket(bucket)
    assert bucket <= max(count + 1, 1.5 * count)
    room = capacity_bucket(count, 1 << 20)
    assert count <= room <= max(32, 2 * count - 1)
    assert capacity_bucket(2 * room, 1 << 20) == 2 * room
    assert capacity_bucket(count, count) == count
    for longest in (count, 5000):
        size = source_bucket(count, longest)
        assert count <= size <= longest


def test_memory_of_one_shape_lies_where_it_lay(session: Any) -> None:
    device = HostDevice()
    workspace = Workspace(device, iter(range(9)))
    small = workspace.tensor("ids", (2, 3), "int64")
    bound = workspace.bound(("step", 2, 3), lambda: counting(device, session, small._replace(shape=(6,))))
    assert workspace.tensor("ids", (6,), "int64").address == small.address
    assert workspace.bound(("step", 2, 3), pytest.fail) is bound
    large = workspace.tensor("ids", (7,), "int64")
    assert large.block is not small.block
    again = workspace.bound(("step", 2, 3), lambda: counting(device, session, large))
    assert again.graph != bound.graph, "it is captured anew over other memory"


def encoding(session: Any, device: HostDevice, source: Any, target: Any) -> Any:
    """A binding in the queue of encoders, which counts from a source to a target."""
    return bind(device, ENCODER, session, {"count": source}, {"next": target}, {"step": np.array([1])})


def test_a_queue_that_does_not_wait_for_the_other_is_told(device: HostDevice, session: Any) -> None:
    """A GPU would read what lay there before, or half of what is being written."""
    source, target, other = (tensor(device, (2,)) for _ in range(3))
    device.upload(np.array([1, 2]), source, ENCODE_QUEUE)
    device.run(encoding(session, device, source, target))
    with pytest.raises(AssertionError, match="queue 0 does not wait for what another one does to memory"):
        device.fetch(target)
    with pytest.raises(AssertionError, match="queue 0 does not wait"):
        device.copy(target, other)
    with pytest.raises(AssertionError, match="queue 0 does not wait"):
        device.clear(source)
    mark = device.mark(ENCODE_QUEUE)
    device.wait_event(MAIN, mark)
    device.copy(target, other)
    assert device.fetch(other).arrays()[0].tolist() == [2, 3]


def test_memory_is_encoded_into_again_once_it_was_read(device: HostDevice, session: Any) -> None:
    source, target, other = (tensor(device, (2,)) for _ in range(3))
    binding = encoding(session, device, source, target)
    device.upload(np.array([1, 2]), source, ENCODE_QUEUE)
    device.run(binding)
    device.wait_event(MAIN, device.mark(ENCODE_QUEUE))
    device.copy(target, other)
    with pytest.raises(AssertionError, match="queue 1 does not wait"):
        device.run(binding)
    device.wait_event(ENCODE_QUEUE, device.mark(MAIN))
    device.run(binding)


def test_a_host_that_has_waited_needs_no_mark(device: HostDevice, session: Any) -> None:
    source = tensor(device, (2,))
    target = tensor(device, (2,))
    device.upload(np.array([1, 2]), source, ENCODE_QUEUE)
    device.run(encoding(session, device, source, target))
    device.synchronize()
    fetch = device.fetch(target)
    assert fetch.arrays()[0].tolist() == [2, 3]
    device.run(encoding(session, device, source, target))


def test_a_mark_is_of_what_was_queued_by_then(device: HostDevice, session: Any) -> None:
    source = tensor(device, (2,))
    target = tensor(device, (2,))
    mark = device.mark(ENCODE_QUEUE)
    device.upload(np.array([1, 2]), source, ENCODE_QUEUE)
    device.run(encoding(session, device, source, target))
    device.wait_event(MAIN, mark)
    with pytest.raises(AssertionError, match="queue 0 does not wait"):
        device.fetch(target)
