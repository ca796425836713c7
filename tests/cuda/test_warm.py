"""After a warm-up, no request of its sizes captures anything, and finds what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import txport
from tests.runtimes.driven import Driven, tokens
from txport.api import Model
from txport.bundles.bundle import Bundle
from txport.errors import UnsupportedError
from txport.runtimes.ort.cuda.device import EAGER
from txport.runtimes.ort.cuda.driver import CudaRuntime
from txport.runtimes.ort.cuda.host import HostDevice

LENGTHS, BATCH = (13, 6), 5
Make = Callable[[str, str, str], Driven]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"scores": False, "min_new_tokens": 9},
    {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]},
    {"repetition_penalty": 1.3},
    {"beams": 3, "nbest": 3},
    {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5},
    {"do_sample": True, "nbest": 3, "seed": 3, "top_k": 4},
]


class Counting(HostDevice):
    """It counts the graphs that it captures."""

    def __init__(self) -> None:
        super().__init__()
        self.captures = 0

    def run(self, binding: Any, graph: int = EAGER) -> None:
        self.captures += graph != EAGER and not self.is_captured(graph)
        super().run(binding, graph)


@pytest.fixture(scope="module", params=[("toy", "fp16"), ("gpt2-tiny", "bf16")], ids="-".join)
def made(request: pytest.FixtureRequest, driven: Make) -> Driven:
    name, precision = request.param
    return driven(name, "cuda", precision)


def fresh(made: Driven, workers: int = 1) -> tuple[Model, Counting]:
    device, facts = Counting(), made.runtime.facts
    runtime = CudaRuntime(facts, made.runtime.graphs, device)
    return made._replace(runtime=runtime).model(workers), device


def sources(count: int = 11) -> list[list[int]]:
    """Batches of up to 13 tokens, and of up to 6."""
    rng = np.random.default_rng(3)
    return [rng.integers(4, 20, size).tolist() for size in rng.permutation(np.resize([3, 6, 13, 9, 13], count))]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
@pytest.mark.parametrize("continuous", [False, True])
def test_nothing_is_captured_after_a_warm_up(made: Driven, options: dict[str, Any], continuous: bool) -> None:
    how = {"max_new_tokens": 40, **options}
    cold, warm = fresh(made), fresh(made)
    expected = cold[0].search(sources(), batch_size=BATCH, continuous=continuous, **how)
    assert cold[1].captures
    warm[0].warm(BATCH, LENGTHS, **how)
    captured = warm[1].captures
    assert repr(warm[0].search(sources(), batch_size=BATCH, continuous=continuous, **how)) == repr(expected)
    one = sources(1)
    warm[0].search(one, **how)
    assert warm[1].captures == captured


@pytest.mark.parametrize("continuous", [False, True])
def test_workers_are_warmed_whatever_their_threads(made: Driven, continuous: bool) -> None:
    """Each call begins threads of its own."""
    how = {"batch_size": BATCH, "max_new_tokens": 40, "beams": 2}
    (model, device), (alone, _) = fresh(made, workers=3), fresh(made)
    expected = alone.search(sources(30), **how)
    model.warm(BATCH, LENGTHS, max_new_tokens=40, beams=2)
    captured = device.captures
    for _ in range(3):
        assert tokens(model.search(sources(30), continuous=continuous, **how)) == tokens(expected)
    assert device.captures == captured


def test_a_warm_up_of_other_sizes_is_no_warm_up(made: Driven) -> None:
    model, device = fresh(made)
    model.warm(2, 6, max_new_tokens=20)
    captured = device.captures
    model.search(sources(), max_new_tokens=40, batch_size=BATCH)
    assert device.captures > captured


def test_what_can_not_be_warmed_is_told(made: Driven) -> None:
    with pytest.raises(UnsupportedError, match=r"source_tokens must lie in 1 to the model's longest, .*; got 9000"):
        fresh(made)[0].warm(source_tokens=9000)
    with pytest.raises(UnsupportedError, match="there is no option 'nonsense'"):
        fresh(made)[0].warm(nonsense=1)
    with pytest.raises(UnsupportedError):
        fresh(made)[0].warm(0)


@pytest.mark.parametrize("options", SEARCHES[:5:2], ids=str)
def test_any_runtime_takes_a_warm_up(bundle: Bundle, options: dict[str, Any]) -> None:
    model = txport.load(bundle.path, threads=1)
    expected = model.search([[5, 6, 2]], **options)
    model.warm(3, [4, 9], **options)
    assert repr(model.search([[5, 6, 2]], **options)) == repr(expected)


def test_an_encoder_is_warmed_by_a_run(driven: Make) -> None:
    model, device = fresh(driven("bert-tiny", "cuda", "fp16"))
    model.warm(2, LENGTHS)
    assert device.captures == 0
    with pytest.raises(UnsupportedError, match="beams is for models that generate; this one only encodes"):
        model.warm(beams=2)
