"""After a warm-up, no request of its sizes captures anything, and finds what it found."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txport
from tests.audio.noise import PIECES, noise
from tests.fakes import TableRuntime, random_table
from tests.recorded import WHISPER
from tests.runtimes.driven import Driven, tokens
from tests.seeded import bundle_of
from tests.tiny import tiny_facts
from txport.api import warming
from txport.api.model import Model
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import UnsupportedError
from txport.runtimes.ort.cuda import warm as cuda_warm
from txport.runtimes.ort.cuda.device import EAGER
from txport.runtimes.ort.cuda.driver import CudaRuntime
from txport.runtimes.ort.cuda.host import HostDevice
from txport.targets.ports import MODEL
from txport.text.numbers import NumberTokenizer

LONGEST, BATCH = 13, 5
Make = Callable[[str, str, str], Driven]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"scores": False, "min_new_tokens": 9},
    {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]},
    {"repetition_penalty": 1.3},
    {"beams": 3, "nbest": 3},
    {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5},
    {"do_sample": True, "nbest": 3, "seed": 3, "top_k": 4},
    {
        "min_new_tokens": 9,
        "eos_token_id": [2, 5, 8, 11],
        "begin_suppress_tokens": [6, 7],
        "bad_words_ids": [[9], [4, 4]],
    },
]


class Counting(HostDevice):
    """It counts the graphs that it captures, and the runs of each role."""

    def __init__(self) -> None:
        super().__init__()
        self.captures = 0
        self.runs = Counter[str]()

    def run(self, binding: Any, graph: int = EAGER) -> None:
        self.runs[binding.role] += 1
        self.captures += graph != EAGER and not self.is_captured(graph)
        super().run(binding, graph)


@pytest.fixture(scope="module", params=[("toy", "fp16"), ("gpt2-tiny", "bf16")], ids="-".join)
def made(request: pytest.FixtureRequest, driven: Make) -> Driven:
    name, precision = request.param
    return driven(name, "cuda", precision)


def fresh(made: Driven, workers: int = 1) -> tuple[Model, Counting]:
    device = Counting()
    facts = made.runtime.facts
    runtime = CudaRuntime(facts, made.runtime.graphs, device)
    return made._replace(runtime=runtime).model(workers), device


def sources(count: int = 11) -> list[list[int]]:
    """Batches of up to 13 tokens, and of up to 6."""
    rng = np.random.default_rng(3)
    return [rng.integers(4, 20, size).tolist() for size in rng.permutation(np.resize([3, 6, 13, 9, 13], count))]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_nothing_is_captured_after_a_warm_up(made: Driven, options: dict[str, Any]) -> None:
    """In fixed batches and in continuous ones."""
    how = {"max_new_tokens": 40, **options}
    cold = fresh(made)
    warm = fresh(made)
    warm[0].warm(BATCH, LONGEST, **how)
    captured = warm[1].captures
    for continuous in (False, True):
        expected = cold[0].search(sources(), batch_size=BATCH, continuous=continuous, **how)
        assert cold[1].captures
        assert repr(warm[0].search(sources(), batch_size=BATCH, continuous=continuous, **how)) == repr(expected)
        assert warm[1].captures == captured
    one = sources(1)
    warm[0].search(one, **how)
    assert warm[1].captures == captured


def test_workers_are_warmed_whatever_their_threads(made: Driven) -> None:
    """Each call begins threads of its own."""
    how = {"batch_size": BATCH, "max_new_tokens": 40, "beams": 2}
    model, device = fresh(made, workers=3)
    alone, _ = fresh(made)
    expected = alone.search(sources(24), **how)
    model.warm(BATCH, LONGEST, max_new_tokens=40, beams=2)
    captured = device.captures
    for continuous in (False, True, False, True):
        assert tokens(model.search(sources(24), continuous=continuous, **how)) == tokens(expected)
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
    with pytest.raises(UnsupportedError, match="unknown option 'nonsense'"):
        fresh(made)[0].warm(nonsense=1)
    with pytest.raises(UnsupportedError, match="batch_size must be at least 1, got 0"):
        fresh(made)[0].warm(0)
    for wrong in (8.5, True, "8", [4, 9]):
        with pytest.raises(UnsupportedError, match="source_tokens must be a whole number"):
            fresh(made)[0].warm(source_tokens=wrong)  # type: ignore[arg-type]
    for empty in (range(0), range(4), range(5, 9000)):
        with pytest.raises(UnsupportedError, match=r"source_tokens must lie in 1 to .*; got range\("):
            fresh(made)[0].warm(source_tokens=empty)
    with pytest.raises(UnsupportedError, match="prefix_tokens must not be negative, got -1"):
        fresh(made)[0].warm(prefix_tokens=-1)


@pytest.fixture(scope="module")
def seq2seq(driven: Make) -> Driven:
    return driven("toy", "cuda", "fp16")


def captured_by(model: Model, device: Counting, *requests: list[int], **options: Any) -> int:
    before = device.captures
    for request in requests:
        model.search([request], **options)
    return device.captures - before


def test_sources_of_any_length_up_to_the_longest_are_covered(seq2seq: Driven) -> None:
    model, device = fresh(seq2seq)
    model.warm(1, np.int64(30), max_new_tokens=8)  # type: ignore[arg-type]
    assert device.captures
    assert not captured_by(model, device, *([5] * size for size in (4, 12, 20, 30)), max_new_tokens=8)
    assert captured_by(model, device, [5] * 40, max_new_tokens=8)


def test_a_range_covers_its_own_lengths(seq2seq: Driven) -> None:
    model, device = fresh(seq2seq)
    model.warm(1, range(18, 24), max_new_tokens=8)
    assert not captured_by(model, device, [5] * 18, [5] * 23, max_new_tokens=8)
    assert captured_by(model, device, [5] * 4, max_new_tokens=8)


def test_rules_that_first_ban_during_a_request_are_covered(seq2seq: Driven) -> None:
    """Their first match asks for more candidates than any step before it."""
    how: dict[str, Any] = {"max_new_tokens": 20, "min_new_tokens": 20}
    model, device = fresh(seq2seq)
    usual = model.search([[5, 6, 7]], **how)[0][0].tokens
    for rule in ({"bad_words_ids": [list(usual[4:6])]}, {"no_repeat_ngram_size": 1}):
        model, device = fresh(seq2seq)
        model.warm(1, 4, **how, **rule)
        assert model.search([[5, 6, 7]], **how, **rule)[0][0].tokens != usual
        assert not captured_by(model, device, [5, 6, 7], **how, **rule)


def test_prefixes_are_covered_up_to_their_longest(seq2seq: Driven) -> None:
    how: dict[str, Any] = {"max_new_tokens": 30, "min_new_tokens": 30}
    for prefix, is_covered in ((0, False), (6, True)):
        model, device = fresh(seq2seq)
        model.warm(1, 4, prefix_tokens=prefix, **how)
        captured = device.captures
        model.search([[5, 6, 7]], prefixes=[[6] * 6], **how)
        assert (device.captures == captured) is is_covered


def test_prefixes_that_no_target_can_have_are_refused(made: Driven) -> None:
    model = fresh(made)[0]
    what = (
        "a causal model continues its prompt" if made.runtime.facts.task == "causal" else "leaves no room for a target"
    )
    with pytest.raises(UnsupportedError, match=what):
        model.warm(prefix_tokens=model.facts.writes.longest)


def test_speech_is_covered_with_its_prompts_and_times(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(WHISPER))
    made = txport.load(bundle_of(checkpoint, tmp_path / "bundle", "cuda").path, runtime="cuda-stand-in", threads=1)
    device = Counting()
    model = Model(CudaRuntime(made.facts, made.runtime.graphs, device), made.tokenizer, made.facts)  # type: ignore[attr-defined]
    how = {"max_new_tokens": 30}
    model.warm(2, **how)
    captured = device.captures
    pieces = [noise(name) for name in list(PIECES)[:2]]
    for timestamps in (False, True):
        model.transcribe(pieces, batch_size=2, timestamps=timestamps, **how)
    assert device.captures == captured > 0


def test_too_much_is_refused_with_its_size(seq2seq: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    model, device = fresh(seq2seq)
    monkeypatch.setattr(cuda_warm, "MOST_CAPTURES", 15)
    what = "batches of up to 2 sources, 1 rows of each and 40 tokens a row have 16 kinds of steps, more than 15 to"
    with pytest.raises(UnsupportedError, match=what):
        model.warm(2, 4, max_new_tokens=40)
    monkeypatch.setattr(warming, "MOST_UNASKED", 79)
    with pytest.raises(UnsupportedError, match=r"this model writes up to 80 tokens.*; give max_new_tokens"):
        model.warm(2, 4)
    monkeypatch.setattr(device, "allocate", fail)
    with pytest.raises(MemoryError, match="2 sources, 1 rows of each and 8 tokens a row take more memory"):
        model.warm(2, 4, max_new_tokens=8)


def test_sources_stay_where_they_are_where_there_is_no_memory_for_steps(
    seq2seq: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, device = fresh(seq2seq)
    runtime = model.runtime
    expected = fresh(seq2seq)[0].search([[5, 6, 7]], max_new_tokens=1)
    assert isinstance(runtime, CudaRuntime)
    state = runtime.start(np.array([[5, 6, 7]]), np.array([3]), max_length=4)
    with monkeypatch.context() as full:
        full.setattr(device, "allocate", fail)
        with pytest.raises(MemoryError):
            runtime.step(np.array([model.facts.writes.start]), state, top=1)
    found = runtime.step(np.array([model.facts.writes.start]), state, top=1)[0]
    assert found.ids is not None
    assert tuple(found.ids[0]) == expected[0][0].tokens


def fail(size: int) -> Any:
    raise MemoryError(f"no room for {size} bytes")


@pytest.mark.parametrize("options", SEARCHES[:5:2], ids=str)
def test_any_runtime_takes_a_warm_up(bundle: Bundle, options: dict[str, Any]) -> None:
    model = txport.load(bundle.path, threads=1)
    expected = model.search([[5, 6, 2]], **options)
    steps: list[int] = []
    step = model.runtime.step
    model.runtime.step = lambda tokens, *a, **how: (steps.append(len(tokens)), step(tokens, *a, **how))[1]  # type: ignore[method-assign]
    model.warm(3, 9, **options)
    assert steps == [3 * options.get("beams", 1)] * 2
    assert repr(model.search([[5, 6, 2]], **options)) == repr(expected)


@pytest.mark.parametrize(("task", "longest"), [("seq2seq", 3), ("causal", 9)])
def test_a_model_of_short_texts_takes_a_warm_up_without_a_word(task: str, longest: int) -> None:
    """As many special tokens around a source as it has room for."""
    facts = dataclasses.replace(tiny_facts(max_length=longest), task="seq2seq")
    if task == "causal":
        facts = load_checkpoint("preset:gpt2-tiny").facts
        facts = dataclasses.replace(facts, target=dataclasses.replace(facts.writes, longest=longest))
    runtime = TableRuntime(random_table(facts.writes.size, 0))
    model = Model(runtime, NumberTokenizer(facts, exact=True), facts)
    model.warm()
    model.warm(2, 1)
    assert runtime.stepped == [32, 32, 2, 2]


def test_an_encoder_is_warmed_by_a_run(driven: Make) -> None:
    model, device = fresh(driven("bert-tiny", "cuda", "fp16"), workers=2)
    model.warm(2, LONGEST)
    assert (device.captures, device.runs) == (0, {MODEL: 1})
    with pytest.raises(UnsupportedError, match="prefix_tokens needs a generating model; this model is encoder-only"):
        model.warm(prefix_tokens=2)
    with pytest.raises(UnsupportedError, match="beams needs a generating model; this model is encoder-only"):
        model.warm(beams=2)
