"""The models of a service: loaded, used by requests, and replaced without dropping one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txport.api.locate import find_bundle, is_on_demand
from txport.api.model import Model, load
from txport.api.tuned import find as find_tuned
from txport.errors import BundleError, QueueFullError, UnsupportedError
from txport.models.audio import Features
from txport.proof.verify.check import verify
from txport.serving.engine import Engine
from txport.serving.service.batches import Batches
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.metrics import Load
from txport.serving.service.recordings import Recordings

logger = logging.getLogger("txport.serving")
TEXTS = 32  # texts of an encoder that run together


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the engine of each model: `slots` run together, `queue` wait, `budget` prompt tokens enter a step.

    Recordings that run or wait hold up to `audio` bytes.
    """

    slots: int
    queue: int
    budget: int
    audio: int


@dataclass(frozen=True)
class Source:
    """Where a model comes from, so that it can be loaded again: a folder, or the name of an included checkpoint."""

    bundle: str
    provider: str = "cpu"
    threads: int | None = None
    tuned: bool = True

    def load(self, *, is_verified: bool = False) -> Model:
        """Load the model; raise `BundleError` if it `is_verified` first and a check fails.

        The name of a checkpoint is exported once, for the cpu target.
        """
        path = find_bundle(self.bundle, target="cpu").path if is_on_demand(self.bundle) else Path(self.bundle)
        if is_verified:
            result = verify(path, provider=self.provider, threads=self.threads)
            if not result.passed:
                raise BundleError(f"{path} is not loaded: {result.wrong}")
        return load(path, provider=self.provider, threads=self._threads(path), tuned=False)

    def _threads(self, path: Path) -> int | None:
        """Return the threads: those of the command line, else those of `txport tune` if it found one worker of ort."""
        found = find_tuned(path) if self.tuned and self.threads is None and self.provider == "cpu" else None
        return found.threads if found and (found.runtime, found.workers) == ("ort", 1) else self.threads


@dataclass
class Served:
    """A model that runs; `users` are the requests it has now.

    Generating models have an `engine`, of speech with `recordings`, and encoder-only models `batches`.
    """

    name: str
    model: Model
    sizes: Sizes
    source: Source | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    users: int = 0
    is_replaced: bool = False
    engine: Engine | None = None
    batches: Batches | None = None
    recordings: Recordings | None = None

    def start(self) -> None:
        """Start the thread that runs requests; raise `UnsupportedError` for a bundle that can't be served."""
        sizes = self.sizes
        if self.model.facts.ability:
            self.batches = Batches(TEXTS, sizes.queue + TEXTS)
            return
        self.engine = self.model.engine(slots=sizes.slots, queue=sizes.queue, budget=sizes.budget)
        if isinstance(self.model.facts.reads, Features):
            self.recordings = Recordings(self.engine, sizes.slots, sizes.queue, sizes.audio)

    def close(self) -> None:
        """End the thread, and cancel what nobody waits for; a model that was loaded here releases its memory."""
        if self.recordings is not None:
            self.recordings.close()
        if self.engine is not None:
            self.engine.close(cancel=True)
        if self.batches is not None:
            self.batches.close()
        if self.source is not None:
            self.model.close()

    @property
    def runner(self) -> Engine | Batches | None:
        """What runs requests in a thread; None before `start`."""
        return self.engine or self.batches

    @property
    def is_open(self) -> bool:
        """Whether the thread takes requests; False if it has failed."""
        return self.runner is not None and self.runner.is_open

    @property
    def use(self) -> str:
        """What the model does: embed, classify, tag, fill, answer, transcribe, continue or translate."""
        facts = self.model.facts
        if isinstance(facts.reads, Features):
            return "transcribe"
        return facts.ability or ("continue" if facts.is_causal else "translate")

    @property
    def is_reranker(self) -> bool:
        """Whether the model is a classifier with one label, which scores pairs of texts."""
        return self.model.facts.ability == "classify" and len(self.model.facts.labels) == 1

    @property
    def load(self) -> Load:
        """The work that the model has now."""
        if self.engine is not None:
            stats = self.engine.stats()
            return Load(self.name, stats.running, stats.waiting + (self.recordings.waiting if self.recordings else 0))
        assert self.batches is not None
        return Load(self.name, self.batches.running, self.batches.waiting)


class Models:
    """The models of a service by name."""

    def __init__(self, models: Mapping[str, Model | Source], sizes: Sizes) -> None:
        self._given = dict(models)
        self._sizes = sizes
        self._served: dict[str, Served] = {}
        self._reloading = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()  # of models that were replaced
        self._is_started = False
        self.entering = 0  # requests that were read, and are not submitted yet
        self.reload_all: Callable[[str | None], Awaitable[list[str]]] = self.reload  # in all processes of the service

    @property
    def is_ready(self) -> bool:
        """Whether all models are loaded, and none has failed."""
        return self._is_started and all(each.is_open for each in self)

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    def loads(self) -> list[Load]:
        """Return the work of each model."""
        return [each.load for each in self]

    def full(self, others: int = 0) -> QueueFullError | None:
        """Return the error of a request that no model has room for beside `others`, or None if one has."""
        errors = [each.runner.full(1 + others) for each in self if each.runner is not None]
        return errors[0] if errors and all(errors) else None

    def enter(self, state: MutableMapping[str, Any]) -> None:
        """Count a request until `leave`, in the `state` of its scope; with several models, its own is not known yet."""
        if len(self._served) == 1:
            state["is_entering"] = True
            self.entering += 1

    def leave(self, state: MutableMapping[str, Any]) -> None:
        """Count a request no more, because its model counts it, or because it has ended."""
        self.entering -= state.pop("is_entering", False)

    def get(self, name: str) -> Served:
        """Return the model with a name; raise `InvalidRequestError` (404) if there is none."""
        if (served := self._served.get(name)) is None:
            what = f"there is no model {name[:100]!r}; `/v1/models` lists them"
            raise InvalidRequestError(what, param="model", code="model_not_found", status=404)
        return served

    @contextlib.asynccontextmanager
    async def use(self, served: Served) -> AsyncIterator[Served]:
        """Keep a model open while a request uses it, also if it is replaced meanwhile."""
        served.users += 1
        try:
            yield served
        finally:
            served.users -= 1
            if served.is_replaced and not served.users:
                self._close_soon(served)

    async def start(self, *, is_verified: bool = False) -> None:
        """Load and start all models, unless that was done; raise `BundleError` if they are verified, and one fails."""
        for name, given in self._given.items() if not self._is_started else ():
            self._served[name] = await asyncio.to_thread(self._open, name, given, is_verified=is_verified)
        self._is_started = True

    async def close(self) -> None:
        """Close all models; their requests have ended."""
        self._is_started = False
        for served in self:
            self._close_soon(served)
        self._served.clear()
        await asyncio.gather(*self._closing)

    async def reload(self, name: str | None = None) -> list[str]:
        """Load the bundle of a model, or of all, again, and replace it if `txport verify` passes on the new files.

        Requests that run end on the old one. Returns the names. Raises the error of the new bundle; models stay then.
        """
        async with self._reloading:
            old = [self.get(name)] if name else list(self)
            fresh: list[Served] = []
            try:
                for each in old:
                    fresh += [await asyncio.to_thread(self._open, each.name, _source(each), is_verified=True)]
            except BaseException:
                for served in fresh:
                    self._close_soon(served)
                raise
            for served in fresh:
                self._replace(served)
        return [each.name for each in old]

    def _open(self, name: str, given: Model | Source, *, is_verified: bool = False) -> Served:
        begin = time.perf_counter()
        source = given if isinstance(given, Source) else None
        model = given.load(is_verified=is_verified) if isinstance(given, Source) else given
        served = Served(name, model, self._sizes, source)
        served.start()
        told = {"model": name, "description": model.described, "seconds": round(time.perf_counter() - begin, 3)}
        logger.info("loaded", extra={"fields": told})
        return served

    def _replace(self, fresh: Served) -> None:
        old = self._served[fresh.name]
        self._served[fresh.name] = fresh
        old.is_replaced = True
        if not old.users:
            self._close_soon(old)

    def _close_soon(self, served: Served) -> None:
        task = asyncio.create_task(asyncio.to_thread(served.close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _source(served: Served) -> Source:
    if served.source is None:
        raise UnsupportedError(f"{served.name} was given as a loaded model, so that it can't be loaded again")
    return served.source
