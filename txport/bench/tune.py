"""Search the exports and settings that run a model best on this machine: successive halving, in alternating rounds.

Settings run in processes of their own, as `txport.load` and the model's methods run them. After each stage the better
half goes on, with more time for each. The defaults always do: a figure is compared with theirs in the same round.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txport import runtimes
from txport.api.locate import find_bundle, is_checkpoint, is_on_demand
from txport.api.model import load
from txport.api.release import export
from txport.api.tuned import Settings, as_options
from txport.bench.plan import LATENCY, THROUGHPUT, Protocol
from txport.bench.rounds import draw_source
from txport.bench.worker import LateError, Worker, errors_sent
from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.errors import ParityError, TxportError, UnsupportedError
from txport.models.audio import Features
from txport.system import machine, memory
from txport.system.cores import cores
from txport.system.progress import Progress, logged
from txport.targets import target_of
from txport.text.numbers import NumberTokenizer

BATCHES = (8, 32, 128)
SLOW = "reference"  # a runtime that computes one node after the other in Python
ROUNDS = 5  # of a stage
MAX_ROUND = 10.0  # seconds of a choice
COMPARED = 16  # texts whose outputs must be those of the defaults
TOKENS = 16  # new tokens where answers have no end of their own: of causal models, and for random sources
CLEAR = 1.02  # a gain below this is noise: the defaults stay
HELD = 3  # times its size on disk that a bundle takes in memory, at most
SLOWER = 10  # times the defaults' time to start and to answer that settings may take
DEFAULT = Settings()


class Export(NamedTuple):
    """A bundle, and the options of the export that made it; none for a bundle that was given."""

    bundle: Bundle
    options: Mapping[str, Any]

    @property
    def loss(self) -> float:
        """The share of tokens or labels that are not those of fp32, of vectors 1 - cosine; 0 without few bits."""
        share = self.bundle.manifest.loss.get("share", 0.0)
        assert isinstance(share, float | int)
        return float(share)

    def describe(self) -> str:
        """Return its precision, and its number of rows if it has one."""
        manifest = self.bundle.manifest
        return f"{manifest.precision} rows {self.options['rows']}" if "rows" in self.options else manifest.precision

    def to_dict(self) -> dict[str, object]:
        """Return the options and the loss."""
        return {"precision": self.bundle.manifest.precision, **self.options, "loss": self.loss}


class Choice(NamedTuple):
    """Settings, and the number of the bundle that runs with them."""

    bundle: int
    settings: Settings


class Outcome(NamedTuple):
    """The median figure of a choice in its last stage, and how many times as good as that of `BASE` it is."""

    bundle: int
    settings: Settings
    figure: float
    gain: float
    stage: int

    @property
    def choice(self) -> Choice:
        """What was measured."""
        return Choice(self.bundle, self.settings)


BASE = Choice(0, DEFAULT)  # the first bundle with the defaults


def exports(
    name: str,
    work: Path,
    target: str = "portable",
    precisions: Sequence[str] = (),
    rows: Sequence[int] = (),
    max_loss: float | None = None,
    progress: Progress = logged,
) -> list[Export]:
    """Return the bundle of a path or a name, or those that are made of a checkpoint, in folders of `work`.

    Options are for checkpoints (`require_checkpoint`): one export for each precision, and each of `rows` that chooses
    kernels. Those that fail, or lose more than `max_loss`, are left out. Raises `ParityError` if none remains.
    """
    if not _is_checkpoint(name):
        return [Export(find_bundle(name, progress=progress), {})]
    found, reasons = [], []
    for options in _variants(target, precisions, rows):
        try:
            made = Export(_export(name, work, options, progress), options)
            if max_loss is not None and made.loss > max_loss:
                raise ParityError(f"its loss is {made.loss:.3g}")
        except ParityError as error:
            reasons.append(f"{as_options(options)} is left out: {error}")
            progress(reasons[-1])
        else:
            found.append(made)
    if not found:
        raise ParityError("; ".join(reasons))
    return found


def require_checkpoint(name: str, options: str) -> None:
    """Raise `UnsupportedError` for a bundle, which these options of an export can't change."""
    if not _is_checkpoint(name):
        raise UnsupportedError(f"{options} needs a checkpoint that can be exported; {name} is none")


def _is_checkpoint(name: str) -> bool:
    return is_on_demand(name) or is_checkpoint(name)


def _variants(target: str, precisions: Sequence[str], rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return the options of each export; raise `UnsupportedError` if `rows` are given and none has that choice."""
    made_for = target_of(target)
    if made_for.on_gpu:
        raise UnsupportedError(f"tune runs bundles on the CPU; those of target={target!r} need a GPU")
    chosen = [made_for.offered(each) for each in dict.fromkeys(precisions or (None,))]
    if rows and not any(map(made_for.has_choice, chosen)):
        raise UnsupportedError("rows chooses the kernels of int8 and int4 on the cpu target; give such a precision")
    return [
        {"target": target, "precision": precision, **({} if count is None else {"rows": count})}
        for precision in chosen
        for count in (None, *(rows if made_for.has_choice(precision) else ()))
    ]


def _export(name: str, work: Path, options: Mapping[str, Any], progress: Progress) -> Bundle:
    if is_on_demand(name) and "rows" not in options:
        return find_bundle(name, **options, progress=progress)
    return export(name, work / "-".join(map(str, options.values())), **options, progress=progress)


def candidates(bundles: Sequence[Bundle], goal: str) -> list[Choice]:
    """Return the choices that may be better than `BASE` for a goal."""
    counts = [2**power for power in range(cores().bit_length())]
    places = [(cores() // count, count) if goal == THROUGHPUT else (count, 1) for count in counts]
    batches = (DEFAULT.batch_size,) if goal == LATENCY else BATCHES
    return [
        Choice(number, Settings(runtime=name, threads=threads, workers=workers, batch_size=size))
        for number, bundle in enumerate(bundles)
        for name in runtimes.installed(bundle.manifest.target)
        if name != SLOW
        for (threads, workers), size in itertools.product(places, batches)
    ]


def tune(
    bundles: Sequence[Bundle], goal: str, seconds: float, texts: Sequence[str] = (), progress: Progress = logged
) -> list[Outcome]:
    """Return the best choice first, that of the defaults if none is clearly better; then the others.

    Choices that can't run, or whose outputs are not those of their bundle's defaults, are left out, and so are those
    that were not measured when the `seconds` ended. Without `texts`, the samples of the checkpoint are run, or random
    tokens. Raises `UnsupportedError` for a bundle of other tools, one that reads audio, or one of the cuda target, and
    `LateError` if the defaults take longer.
    """
    for bundle in bundles:
        _require(bundle)
    left = candidates(bundles, goal)
    stages = max(1, math.ceil(math.log2(len(left))))
    end = time.monotonic() + seconds
    search = Search(bundles, goal, texts or bundles[0].samples, end)
    found: dict[Choice, Outcome] = {}
    for stage in range(stages):
        if time.monotonic() > end:
            break
        progress(f"stage {stage + 1} of {stages}: {len(left)} settings beside the defaults")
        with contextlib.suppress(LateError):
            for one in search.stage(left, stage, stages):
                found[one.choice] = one
        left = sorted((one for one in left if one in found), key=lambda one: -found[one].gain)
        left = left[: max(1, len(left) // 2)]
    if BASE not in found:
        raise LateError(f"the defaults were not measured in {seconds:g} s; give a larger budget")
    ranked = sorted(found.values(), key=lambda one: (-one.stage, -one.gain))
    best = next((one for one in ranked if one.choice in left and one.gain > CLEAR), found[BASE])
    return [best, *(one for one in ranked if one is not best)]


def _require(bundle: Bundle) -> None:
    manifest = bundle.manifest
    if isinstance(manifest, ForeignManifest) or isinstance(manifest.facts.reads, Features) or manifest.made_for.on_gpu:
        what = "a bundle of `txport export` that reads text and runs on the CPU"
        raise UnsupportedError(f"tune needs {what}; {bundle.path} is another")


class Search:
    """The bundles that are compared for a goal, until the time `end`."""

    def __init__(self, bundles: Sequence[Bundle], goal: str, texts: Sequence[str], end: float) -> None:
        self._bundles = bundles
        self._goal = goal
        self._texts = list(texts)
        self._end = end
        begun = time.monotonic()
        self._outputs: list[object] = []
        for number in range(len(bundles)):
            with self._start(Choice(number, DEFAULT)) as process:
                self._outputs.append(process.request("outputs", end=end))
        self._usual = time.monotonic() - begun  # of all bundles

    def stage(self, choices: Sequence[Choice], number: int, count: int) -> Iterator[Outcome]:
        """Measure choices for their share of the time that is left, in groups that fit into memory."""
        free = memory.available()
        size = max(each.size for each in self._bundles)
        room = len(choices) if free is None else max(1, free // (HELD * max(1, size)) - 1)
        seconds = (self._end - time.monotonic()) / (count - number)
        for start in range(0, len(choices), room):
            group = choices[start : start + room]
            for choice, figure, gain in self.measure(group, seconds * len(group) / len(choices)):
                yield Outcome(*choice, figure, gain, number)

    def measure(self, choices: Sequence[Choice], seconds: float) -> Iterator[tuple[Choice, float, float]]:
        """Yield the median figure of `BASE` and of choices, and its gain, after rounds of some seconds in all.

        The start of the processes counts. Raises `LateError` if `BASE` has not answered when the time ends.
        """
        end = time.monotonic() + seconds
        with contextlib.ExitStack() as stack:
            workers: dict[Choice, Worker] = {}
            for each in (BASE, *choices):
                late = self._end if each == BASE else min(self._end, time.monotonic() + SLOWER * self._usual)
                left_out = () if each == BASE else (TxportError,)  # a choice that can't run
                with contextlib.suppress(*left_out), contextlib.ExitStack() as trial:
                    process = trial.enter_context(self._start(each))
                    is_same = process.request("outputs", end=late) == self._outputs[each.bundle]
                    if is_same or each == BASE:
                        workers[each] = process
                        stack.push(trial.pop_all())
            rounds = list(self._rounds(workers, end))[1:]  # the first is the warm-up
        sign = 1 if self._goal == THROUGHPUT else -1
        for each in workers if rounds else ():
            figures = np.array([one[each] for one in rounds])
            base = np.array([one[BASE] for one in rounds])
            yield each, float(np.median(figures)), float(np.median((figures / base) ** sign))

    def _start(self, choice: Choice) -> Worker:
        path = str(self._bundles[choice.bundle].path)
        return Worker(choice.settings.describe(), work, path, choice.settings, self._texts)

    def _rounds(self, workers: Mapping[Choice, Worker], end: float) -> Iterator[dict[Choice, float]]:
        """Yield the figures of each whole round; all rounds end at a time, or after a run of each choice."""
        left = max(0.0, end - time.monotonic()) / (ROUNDS + 1) / max(1, len(workers))
        seconds = min(MAX_ROUND, left)
        with contextlib.suppress(LateError):
            for _ in range(ROUNDS + 1):
                asked = {each: one.request(self._goal, seconds, end=self._end) for each, one in workers.items()}
                yield {each: answer["figure"] for each, answer in asked.items()}


class Session:
    """A bundle with settings, in a process of its own; each method answers a request of the parent."""

    def __init__(self, path: str, settings: Settings, texts: Sequence[str]) -> None:
        self._model = load(path, runtime=settings.runtime, threads=settings.threads, workers=settings.workers)
        self._size = settings.batch_size
        self._at_once = settings.batch_size * settings.workers
        # none for an encoder-decoder that reads real texts: its answers have an end of their own
        self._tokens = None if texts and self._model.facts.is_encoder_decoder else TOKENS
        if not texts:  # random tokens
            texts = [" ".join(map(str, row)) for row in draw_source(self._model.facts, Protocol(batch=COMPARED))]
            self._model.tokenizer = NumberTokenizer(self._model.facts, exact=True)
        self._texts = texts
        self._rest = itertools.cycle(texts)

    def outputs(self) -> dict[str, object]:
        """Return the outputs of some texts: generated texts, or the positions of the largest numbers."""
        return {"outputs": self._run(self._texts[:COMPARED])}

    def latency(self, seconds: float) -> dict[str, float]:
        """Return the median milliseconds of one text at a time."""
        return {"figure": 1e3 * float(np.median(self._times(1, seconds)))}

    def throughput(self, seconds: float) -> dict[str, float]:
        """Return the texts a second, where each worker has a batch."""
        times = self._times(self._at_once, seconds)
        return {"figure": len(times) * self._at_once / sum(times)}

    def memory(self, seconds: float) -> dict[str, float]:
        """Return the peak memory of the process in MB, after batches."""
        self._times(self._at_once, seconds)
        return {"figure": machine.peak_memory()}

    def _times(self, count: int, seconds: float) -> list[float]:
        """Return the seconds of each run of `count` texts, for `seconds` in all, or of one run."""
        times: list[float] = []
        while sum(times) < seconds or not times:
            texts = list(itertools.islice(self._rest, count))
            begun = time.perf_counter()
            self._run(texts)
            times.append(time.perf_counter() - begun)
        return times

    def _run(self, texts: Sequence[str]) -> list[object]:
        facts = self._model.facts
        if not facts.generates:
            name = facts.outputs[-1].name
            return [each[name].argmax(axis=-1).tolist() for each in self._model.infer(texts, batch_size=self._size)]
        found = self._model.generate(texts, batch_size=self._size, max_new_tokens=self._tokens, do_sample=False)
        return [each.output for each in found]


def work(pipe: Connection, path: str, settings: Settings, texts: Sequence[str]) -> None:
    """Load a bundle with settings, then answer requests until the pipe is closed."""
    with errors_sent(pipe):
        session = Session(path, settings, texts)
        while True:
            what, *arguments = pipe.recv()
            pipe.send(getattr(session, what)(*arguments))
