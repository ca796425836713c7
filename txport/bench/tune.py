"""Search the settings that run a bundle best on this machine: successive halving, with rounds that alternate.

Settings run in processes of their own, as `txport.load` and the model's methods run them. After each stage the better
half goes on, with more time for each. The defaults always do: a figure is compared with theirs in the same round.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from txport import runtimes
from txport.api.model import load
from txport.api.tuned import Settings
from txport.bench.plan import LATENCY, THROUGHPUT, Protocol
from txport.bench.rounds import draw_source
from txport.bench.worker import Worker, errors_sent
from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.errors import TxportError, UnsupportedError
from txport.models.audio import Features
from txport.system import machine, memory
from txport.system.cores import cores
from txport.system.progress import Progress, logged
from txport.text.numbers import NumberTokenizer

BATCHES = (8, 32, 128)
SLOW = "reference"  # a runtime that computes one node after the other in Python
ROUNDS = 5  # of a stage
COMPARED = 16  # texts whose outputs must be those of the defaults
TOKENS = 16  # new tokens of models whose answers have no end of their own
CLEAR = 1.02  # a gain below this is noise: the defaults stay
HELD = 3  # times its size on disk that a bundle takes in memory, at most
DEFAULT = Settings()


class Outcome(NamedTuple):
    """The median figure of settings in their last stage, and how many times as good as the defaults it is."""

    settings: Settings
    figure: float
    gain: float
    stage: int


def candidates(bundle: Bundle, goal: str) -> list[Settings]:
    """Return the settings that may be better than the defaults for a goal."""
    names = [name for name in runtimes.installed(bundle.manifest.target) if name != SLOW]
    counts = [2**power for power in range(cores().bit_length())]
    places = [(cores() // count, count) if goal == THROUGHPUT else (count, 1) for count in counts]
    batches = (DEFAULT.batch_size,) if goal == LATENCY else BATCHES
    return [
        Settings(runtime=name, threads=threads, workers=workers, batch_size=size)
        for name, (threads, workers), size in itertools.product(names, places, batches)
    ]


def tune(bundle: Bundle, goal: str, seconds: float, texts: Sequence[str], progress: Progress = logged) -> list[Outcome]:
    """Return the best settings first, the defaults if none is clearly better; then the others.

    Settings that can't run, or whose outputs are not those of the defaults, are left out. Without `texts`, the samples
    of the checkpoint are run, or random tokens. Raises `UnsupportedError` for a bundle of other tools, one that reads
    audio, or one of the cuda target.
    """
    manifest = bundle.manifest
    if isinstance(manifest, ForeignManifest) or isinstance(manifest.facts.reads, Features) or manifest.made_for.on_gpu:
        what = "a bundle of `txport export` that reads text and runs on the CPU"
        raise UnsupportedError(f"tune needs {what}; {bundle.path} is another")
    texts = texts or bundle.samples
    left = candidates(bundle, goal)
    stages = max(1, math.ceil(math.log2(len(left))))
    found: dict[Settings, Outcome] = {}
    for stage in range(stages):
        progress(f"stage {stage + 1} of {stages}: {len(left)} settings beside the defaults")
        each = seconds / stages / (len(left) + 1)
        for group in _groups(left, bundle):
            found |= {one.settings: one for one in _measure(bundle, goal, [DEFAULT, *group], each, texts, stage)}
        left = sorted((one for one in left if one in found), key=lambda one: -found[one].gain)
        left = left[: max(1, len(left) // 2)]
    ranked = sorted(found.values(), key=lambda one: (-one.stage, -one.gain))
    best = next((one for one in ranked if one.settings in left and one.gain > CLEAR), found[DEFAULT])
    return [best, *(one for one in ranked if one is not best)]


def _groups(settings: Sequence[Settings], bundle: Bundle) -> Iterator[Sequence[Settings]]:
    """Yield settings that fit into memory at once, beside the defaults."""
    free = memory.available()
    count = len(settings) if free is None else max(1, free // (HELD * max(1, bundle.size)) - 1)
    for start in range(0, len(settings), count):
        yield settings[start : start + count]


def _measure(
    bundle: Bundle, goal: str, settings: Sequence[Settings], seconds: float, texts: Sequence[str], stage: int
) -> Iterator[Outcome]:
    """Measure settings in turns, the first of which are the defaults, for some seconds each, their start included."""
    figures: dict[Settings, list[float]] = {}
    with contextlib.ExitStack() as stack:
        workers: dict[Settings, Worker] = {}
        expected: object = None
        begun = time.monotonic()
        for each in settings:
            process = Worker(each.describe(), work, str(bundle.path), each, list(texts))
            workers[each] = stack.enter_context(process)
            with contextlib.suppress(*() if each == DEFAULT else (TxportError,)):  # what can't run is left out
                outputs = workers[each].request("outputs")
                expected = outputs if each == DEFAULT else expected
                if outputs == expected:
                    figures[each] = []
        left = len(settings) * seconds - (time.monotonic() - begun)
        for number in range(ROUNDS + 1):
            for each, values in figures.items():
                figure = workers[each].request(goal, max(0.0, left / (ROUNDS + 1) / len(figures)))["figure"]
                if number:  # the first is the warm-up
                    values.append(figure)
    sign = 1 if goal == THROUGHPUT else -1
    base = np.array(figures[DEFAULT])
    for each, values in figures.items():
        gain = float(np.median((np.array(values) / base) ** sign))
        yield Outcome(each, float(np.median(values)), gain, stage)


class Session:
    """A bundle with settings, in a process of its own; each method answers a request of the parent."""

    def __init__(self, path: str, settings: Settings, texts: Sequence[str]) -> None:
        self._model = load(path, runtime=settings.runtime, threads=settings.threads, workers=settings.workers)
        self._size = settings.batch_size
        self._at_once = settings.batch_size * settings.workers
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
        tokens = None if facts.is_encoder_decoder else TOKENS
        found = self._model.generate(texts, batch_size=self._size, max_new_tokens=tokens, do_sample=False)
        return [each.output for each in found]


def work(pipe: Connection, path: str, settings: Settings, texts: Sequence[str]) -> None:
    """Load a bundle with settings, then answer requests until the pipe is closed."""
    with errors_sent(pipe):
        session = Session(path, settings, texts)
        while True:
            what, *arguments = pipe.recv()
            pipe.send(getattr(session, what)(*arguments))
