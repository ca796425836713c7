"""A live engine: what it finds is what each request finds alone, and what ends one request disturbs no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.audio.noise import PIECES, noise
from tests.runtimes.driven import ENDS, ENGINES
from tests.seeded import bundle_of, saved, seeded_model
from tests.tiny import tiny_config, tiny_model
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.checkpoints.folder import preset_config
from txport.errors import DeadlineError, EngineError, NoRoomError, QueueFullError, RunError, TextError, UnsupportedError
from txport.models.architectures.gpt2 import GPT2Config
from txport.runtimes.base import Floats, Ints
from txport.serving.engine import Engine, Handle
from txport.text.numbers import NumberTokenizer

LONGEST = 40
OPTIONS: list[dict[str, Any]] = [
    {},
    {"scores": False},
    {"max_new_tokens": 3},
    {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]},
    {"repetition_penalty": 1.3, "eos_token_id": ENDS},
    {"beams": 3, "nbest": 3},
    {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "nbest": 2, "early_stopping": True},
    {"do_sample": True, "nbest": 3, "seed": 3, "top_k": 4, "eos_token_id": ENDS, "min_new_tokens": 2},
    {"do_sample": True, "seed": 5, "eos_token_id": ENDS},
    {"do_sample": True, "seed": 5, "top_k": 4, "scores": False},
    {"stop": ["5 7", "9"]},
]
SEQ2SEQ: list[dict[str, Any]] = [{"prefix": "7 9"}, {"alignment": "hard"}, {"beams": 2, "coverage_penalty": 0.4}]
TEXTS = ["5 9 5", "4", "8 8 12 3 6", "10 6 13 12 2 7 5 9 5 8 14 3 3 4 11 12", "7 7", " ".join(["9"] * 21)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model and one with an encoder, for each target."""
    folder = tmp_path_factory.mktemp("engine")
    sizes = {"vocab_size": 21, "d_model": 32, "heads": 4, "decoder_layers": 2, "max_length": LONGEST}
    config = GPT2Config(**sizes, pad_id=0, eos_id=1, tied=False)
    save_checkpoint(folder / "causal", seeded_model(config, 3))
    save_checkpoint(folder / "seq2seq", tiny_model(tiny_config(max_length=LONGEST)))
    return folder


@pytest.fixture(scope="module")
def models(folder: Path) -> Callable[..., txport.Model]:
    @cache
    def load(name: str, target: str, precision: str) -> txport.Model:
        checkpoint = load_checkpoint(str(folder / name))
        bundle = bundle_of(checkpoint, folder / f"{name} {target} {precision}", target, precision)
        runtime = txport.load(bundle.path, runtime=ENGINES[target], threads=1).runtime
        facts = bundle.manifest.facts
        return txport.Model(runtime, NumberTokenizer(facts, exact=True), facts)

    return lambda name, target="cpu", precision="fp32": load(name, target, precision)


@pytest.fixture(params=["causal", "seq2seq"])
def model(request: pytest.FixtureRequest, models: Callable[..., txport.Model]) -> txport.Model:
    return models(request.param)


class Gate:
    """A `logits_processor` that waits until it is opened, so that the engine stands still in the middle of a step."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, scores: Floats, tokens: Ints) -> Floats:
        self.reached.set()
        assert self.opened.wait(60)
        return scores


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def shut(engine: Engine, gate: Gate, **options: Any) -> Handle:
    """Submit a request that stands still; the steps of all others wait for it."""
    handle = engine.submit("5 6", logits_processor=gate, **options)
    assert gate.reached.wait(60)
    return handle


KINDS = [("causal", "cpu", "fp32"), ("causal", "cpu", "int8"), ("seq2seq", "cpu", "fp32"), ("seq2seq", "cpu", "int8")]


@pytest.mark.parametrize("kind", [*KINDS, ("causal", "cuda", "fp32"), ("seq2seq", "cuda", "fp32")], ids=" ".join)
def test_a_request_finds_what_it_finds_alone(kind: tuple[str, str, str], models: Callable[..., txport.Model]) -> None:
    """To the last bit on the cpu target, whatever else runs, comes or is cancelled meanwhile."""
    model = models(*kind)
    known = [*OPTIONS, *(SEQ2SEQ if kind[0] == "seq2seq" else [])]

    @cache
    def alone(text: str, number: int) -> str:
        options = dict(known[number])
        prefix = {"prefixes": options.pop("prefix")} if "prefix" in options else {}
        return told(model.generate([text], **prefix, **options)[0])

    def told(found: txport.Generated) -> str:
        return repr(found if kind[1] == "cpu" else [(each.tokens, each.finish) for each in found.hypotheses])

    request = st.tuples(st.sampled_from(TEXTS), st.integers(0, len(known) - 1), st.integers(0, 9), st.integers(0, 3))

    @settings(max_examples=12, deadline=None)
    @given(requests=st.lists(request, min_size=1, max_size=24), slots=st.integers(1, 9), budget=st.integers(1, 60))
    def check(requests: list[tuple[str, int, int, int]], slots: int, budget: int) -> None:
        with model.engine(slots=slots, budget=budget) as engine:
            handles = []
            for text, number, is_cancelled, ended in requests:
                handles.append(engine.submit(text, **known[number]))
                if not is_cancelled:
                    handles[len(handles) // 2].cancel()
                while not (ended or handles[len(handles) // 2].done()):
                    time.sleep(0)
            for handle, (text, number, *_) in zip(handles, requests, strict=True):
                try:
                    assert told(handle.result(60)) == alone(text, number)
                except CancelledError:
                    assert handle.done()
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.lanes) == (0, 0, 0)
        assert stats.finished + stats.cancelled == len(requests)

    check()


def test_threads_share_an_engine(model: txport.Model) -> None:
    wanted = [each.hypotheses for each in model.generate(TEXTS)]
    found: list[Any] = [None] * 24

    def call(number: int) -> None:
        found[number] = engine.submit(TEXTS[number % len(TEXTS)]).result(60).hypotheses

    with model.engine(slots=5) as engine:
        threads = [threading.Thread(target=call, args=(number,)) for number in range(len(found))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == wanted * 4


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"stop": "7 5"}])
def test_a_stream_grows_as_that_of_the_model(model: txport.Model, options: dict[str, Any]) -> None:
    every = list(model.stream(TEXTS[0], **options))
    with model.engine() as engine:
        found = list(engine.submit(TEXTS[0], **options).stream())
        handle = engine.submit(TEXTS[0], **options)
        handle.result()
        assert list(handle.stream()) == every[-1:]
        several = engine.submit(TEXTS[0], beams=2, nbest=2)
        with pytest.raises(UnsupportedError, match="only one hypothesis can be streamed, got nbest 2"):
            several.stream()
    places = [every.index(text) for text in found]
    assert places == sorted(set(places))
    assert found[-1] == every[-1]


def test_tasks_of_an_event_loop_share_an_engine(model: txport.Model, gate: Gate) -> None:
    """Without a thread for each, and a cancelled task cancels its request."""

    async def follow(engine: Engine) -> list[str]:
        return [text async for text in engine.submit(TEXTS[0])]

    async def run(engine: Engine) -> None:
        before = threading.active_count()
        found, *streamed = await asyncio.gather(asyncio.gather(*map(engine.submit, TEXTS)), follow(engine))
        assert threading.active_count() <= before + 1  # that of the encoder
        assert [each.hypotheses for each in found] == [each.hypotheses for each in model.generate(TEXTS)]
        assert [texts[-1] for texts in streamed] == [found[0].output]
        await asyncio.to_thread(shut, engine, gate)
        for work in (follow(engine), wait(engine.submit(TEXTS[1]))):
            task = asyncio.create_task(work)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gate.opened.set()

    async def wait(handle: Handle) -> txport.Generated:
        return await handle

    with model.engine() as engine:
        asyncio.run(run(engine))
    assert engine.stats().cancelled == 2


def test_a_cancelled_request_frees_its_slot(model: txport.Model, gate: Gate) -> None:
    with model.engine(slots=1) as engine:
        running = shut(engine, gate, suppress_tokens=[1, 2], max_new_tokens=30)
        waiting = engine.submit("5")
        last = engine.submit("6", max_new_tokens=4)
        assert running.cancel()
        assert waiting.cancel()
        assert not waiting.cancel()
        gate.opened.set()
        assert last.result(60).hypotheses == model.generate(["6"], max_new_tokens=4)[0].hypotheses
        for handle in (running, waiting):
            with pytest.raises(CancelledError):
                handle.result()
        stats = engine.stats()
    assert (stats.cancelled, stats.finished) == (2, 1)
    assert stats.steps < 10


def test_a_prefix_that_does_not_fit_is_refused_before_it_runs(models: Callable[..., txport.Model], gate: Gate) -> None:
    """With the ids of a source, too; requests that run already go on."""
    model = models("seq2seq")
    wrong: list[dict[str, Any]] = [
        {"prefix": "7 9", "max_new_tokens": LONGEST},
        {"prefix": "7 9", "forced_bos_token_id": 5},
        {"prefix": str(model.facts.writes.end)},
    ]
    with model.engine() as engine:
        running = shut(engine, gate)
        for options in wrong:
            with pytest.raises(UnsupportedError, match=r"prefix|room|tokens"):
                engine.submit(ids=[5, 9], **options)
        other = engine.submit(ids=[5, 9], prefix="7 9", logits_processor=gate)
        gate.opened.set()
        (found,) = model.search([[5, 9]], prefixes=[[7, 9]])
        assert tuple(other.result(60).hypotheses[0].tokens) == found[0].tokens
        assert running.result(60).output == model.generate(["5 6"])[0].output
    with models("causal").engine() as engine, pytest.raises(UnsupportedError, match="put them at its end"):
        engine.submit(ids=[5, 9], prefix="7")


def test_an_error_of_a_request_is_its_own(model: txport.Model) -> None:
    def fail(scores: Floats, tokens: Ints) -> Floats:
        raise ZeroDivisionError("mine")

    def spoil(scores: Floats, tokens: Ints) -> Floats:
        return scores * float("nan")

    with model.engine() as engine:
        others = [engine.submit(text) for text in TEXTS]
        broken = engine.submit("5", logits_processor=fail)
        spoilt = engine.submit("5", logits_processor=spoil)
        with pytest.raises(ZeroDivisionError, match="mine"):
            broken.result(60)
        with pytest.raises(UnsupportedError, match="got NaN"):
            spoilt.result(60)
        assert [each.result(60).hypotheses for each in others] == [each.hypotheses for each in model.generate(TEXTS)]
        stats = engine.stats()
        assert (stats.failed, stats.finished) == (2, len(TEXTS))


@pytest.mark.parametrize("method", ["start", "step", "admit"])
def test_a_runtime_that_fails_ends_its_requests_and_not_the_engine(
    method: str, model: txport.Model, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(model.runtime, method)
    broken = threading.Event()

    def fail(*arguments: Any, **options: Any) -> Any:
        if broken.is_set():
            raise RunError("out of order")
        return whole(*arguments, **options)

    monkeypatch.setattr(model.runtime, method, fail)
    with model.engine() as engine:
        engine._worker._encoder = None  # so that the first request runs while the second one enters
        first = shut(engine, gate)
        second = engine.submit("5 6 7", logits_processor=lambda scores, tokens: scores)
        broken.set()
        gate.opened.set()
        with pytest.raises(RunError, match="out of order"):
            second.result(60)
        if method != "start":
            with pytest.raises(RunError, match="out of order"):
                first.result(60)
        broken.clear()
        assert engine.submit(TEXTS[0]).result(60).hypotheses == model.generate(TEXTS[:1])[0].hypotheses


def test_nobody_waits_for_a_dead_engine(model: txport.Model, gate: Gate) -> None:
    engine = model.engine(slots=1)
    running = shut(engine, gate)
    waiting = engine.submit("5")

    def die() -> None:
        raise SystemExit("a fault of ours")

    engine._worker._admit = die  # type: ignore[method-assign]
    gate.opened.set()
    for handle in (running, waiting):
        with pytest.raises(EngineError, match="the engine has failed; the log has the reason"):
            handle.result(60)
    with pytest.raises(EngineError, match="the engine has failed"):
        engine.submit("5")
    engine.close()


def test_a_full_queue_refuses(model: txport.Model, gate: Gate) -> None:
    with model.engine(slots=1, queue=2) as engine:
        shut(engine, gate)
        engine.submit("5")
        second = engine.submit("5")
        with pytest.raises(
            QueueFullError, match="2 requests wait in the engine, whose queue holds 2; try again in"
        ) as full:
            engine.submit("5")
        assert full.value.retry_after > 0
        second.cancel()
        engine.submit("6")
        gate.opened.set()
    stats = engine.stats()
    assert (stats.refused, stats.cancelled, stats.finished) == (1, 1, 3)


def test_a_deadline_ends_a_request_that_waits_or_runs(model: txport.Model, gate: Gate) -> None:
    with model.engine(slots=1) as engine:
        running = shut(engine, gate, deadline=0.001)
        waiting = engine.submit("5", deadline=0.001)
        patient = engine.submit("6", deadline=600)
        time.sleep(0.01)
        gate.opened.set()
        with pytest.raises(DeadlineError, match=r"the deadline of the request, 0\.001 seconds, passed while it waited"):
            waiting.result(60)
        with pytest.raises(DeadlineError, match="passed before its result was complete"):
            running.result(60)
        assert patient.result(60).hypotheses
    assert engine.stats().expired == engine.stats().failed == 2


def test_a_request_has_ended_once(model: txport.Model, gate: Gate) -> None:
    """Also if its deadline passes later, or its caller gives it up."""
    with model.engine(slots=1) as engine:
        done = engine.submit("5")
        done.result(60)
        ended = done.times.ended
        assert not done._ticket.end(DeadlineError("it passed"))
        assert done.times.ended == ended is not None
        shut(engine, gate)
        waiting = engine.submit("5")
        waiting.cancel()
        assert waiting.times.ended is not None
        gate.opened.set()


def test_a_result_is_seen_after_its_slot_is_free(model: txport.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the thread of the engine loses its core as soon as it has set the result."""
    call_back = Future._invoke_callbacks  # type: ignore[attr-defined]

    def slowly(self: Future[Any]) -> None:
        time.sleep(0.05)
        call_back(self)

    monkeypatch.setattr(Future, "_invoke_callbacks", slowly)
    with model.engine(slots=1, queue=0) as engine:
        for finished in range(1, 4):
            found = engine.submit("5").result(60)
            stats = engine.stats()
            assert (stats.finished, stats.running) == (finished, 0)
            assert stats.tokens == finished * len(found.hypotheses[0].tokens)


def test_a_high_priority_comes_first_and_age_counts(model: txport.Model, gate: Gate) -> None:
    with model.engine(slots=1) as engine:
        shut(engine, gate)
        handles = {priority: engine.submit("5", priority=priority) for priority in (0, -5, 5)}
        gate.opened.set()
        for handle in handles.values():
            handle.result(60)
    admitted = {priority: handle.times.admitted or 0 for priority, handle in handles.items()}
    assert admitted[5] < admitted[0] < admitted[-5]


def test_sources_enter_by_budget(model: txport.Model, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    start = model.runtime.start

    def record(source: Ints, lengths: Ints, **how: Any) -> Any:
        sizes.append(int(lengths.sum()))
        return start(source, lengths, **how)

    monkeypatch.setattr(model.runtime, "start", record)
    with model.engine(budget=12) as engine:
        shut(engine, gate, suppress_tokens=[1, 2])
        for text in ("5 6 7 8", "5", TEXTS[-1], "6 6", "7 7", "8 8 8", "4 4 4 4 4 4"):
            engine.submit(text)
        gate.opened.set()
    more = int(sizes[0] == 3)  # an encoder reads an end token
    assert sizes[1:] == [5 + 2 * more, 21 + more, 7 + 3 * more, 6 + more]


def test_a_closed_engine_has_ended_or_cancelled_all(model: txport.Model, gate: Gate) -> None:
    engine = model.engine()
    handles = [engine.submit(text) for text in TEXTS]
    engine.close()
    assert all(handle.done() and handle.result().hypotheses for handle in handles)
    with pytest.raises(EngineError, match="the engine is closed"):
        engine.submit("5")
    engine = model.engine(slots=1)
    running = shut(engine, gate)
    waiting = engine.submit("5")
    threading.Timer(0.01, gate.opened.set).start()
    with pytest.raises(KeyError), engine:
        raise KeyError
    for handle in (running, waiting):
        with pytest.raises(CancelledError):
            handle.result()


def test_audio_is_written_down_as_by_the_model(folder: Path) -> None:
    """With retries by sampling, prompts and rules of timestamps, beside other audio."""
    config = preset_config("whisper-mini-tiny")
    bundle = bundle_of(saved(config, folder / "speech"), folder / "speech cpu")
    model = txport.load(bundle.path, threads=1)
    audio = [noise(name) for name in PIECES]
    options: list[dict[str, Any]] = [{}, {"beams": 2}, {"timestamps": True, "fallback": True}]
    with model.engine(slots=3) as engine:
        with ThreadPoolExecutor(3) as executor:
            found = list(executor.map(lambda how: engine.transcribe(audio, **how), options))
        with pytest.raises(UnsupportedError, match="this model reads audio, not text: use transcribe"):
            engine.submit("5")
        with pytest.raises(DeadlineError):
            engine.transcribe(audio, deadline=0)
    assert found == [model.transcribe(audio, **how) for how in options]


def test_ids_are_taken_as_they_are(models: Callable[..., txport.Model]) -> None:
    model = models("causal")
    with model.engine() as engine:
        found = engine.submit(ids=[5, 9, 5]).result(60)
        assert found.hypotheses == model.generate(["5 9 5"])[0].hypotheses


def test_options_that_are_lists_are_read_once(model: txport.Model) -> None:
    with model.engine() as engine:
        for _ in range(3):
            engine.submit("5", bad_words_ids=[[5, 7], [9]], stop=["7"])
    assert engine._chosen.cache_info().misses == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, UnsupportedError, "give one of text, messages and ids"),
        ({"text": "5", "ids": [5]}, UnsupportedError, "give one of text, messages and ids"),
        ({"text": "5 x"}, TextError, "text is read as token ids"),
        ({"ids": [99]}, TextError, "token ids must lie in 0 to 20, got 99 to 99"),
        ({"ids": [5] * 39, "max_new_tokens": 3}, NoRoomError, "exceed the model's longest sequence"),
        ({"text": "5", "beems": 3}, UnsupportedError, "unknown option 'beems'; supported: text, "),
        ({"text": "5", "priority": "high"}, UnsupportedError, "priority must be a whole number"),
        ({"text": "5", "deadline": "soon"}, UnsupportedError, "deadline must be a number"),
        ({"text": "5", "target_language": "de"}, UnsupportedError, "this model has no language option"),
        ({"messages": "hello"}, UnsupportedError, "this model has no chat template"),
    ],
)
def test_refusals(
    arguments: dict[str, Any], error: type[Exception], message: str, models: Callable[..., txport.Model]
) -> None:
    with models("causal").engine() as engine, pytest.raises(error, match=message):
        engine.submit(**arguments)
    assert engine.stats() == type(engine.stats())(slots=32)


def test_models_without_a_live_engine(models: Callable[..., txport.Model]) -> None:
    with pytest.raises(UnsupportedError, match="a live engine needs a cpu or cuda bundle"):
        models("seq2seq", "portable").engine()
    with pytest.raises(UnsupportedError, match="slots must be at least 1, got 0"):
        models("seq2seq").engine(slots=0)
