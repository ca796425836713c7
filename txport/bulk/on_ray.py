"""Shards on the actors of Ray: each has the model, and reads and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from txport.bulk.batch import Batch
from txport.bulk.driver import Outputs, Texts
from txport.errors import BundleError, EngineError, TxportError, UnavailableError, UnsupportedError, brief
from txport.system.progress import Progress, logged

AHEAD = 2  # shards of each actor: the next one is there when one ends
RETRIES = 5  # of a shard whose actor died
SECONDS = 10.0  # after which a line says that actors wait for cores


class Actor:
    """A process with the model of a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def load(self, sha256: str) -> None:
        """Load the model; raise `BundleError` if this machine has another bundle than the one with the hash."""
        if self._batch.sha256 != sha256:
            where = ray.util.get_node_ip_address()
            raise BundleError(f"{self._batch.bundle} is another bundle on {where}; copy it there")
        self._batch.outputs(pa.array([], pa.string()))

    def outputs(self, texts: pa.ChunkedArray) -> pa.StructArray:
        """See `Batch.outputs`."""
        return self._batch.outputs(texts)


@dataclass(frozen=True)
class RayEngine:
    """An engine for `run`: actors of a cluster at `address`, or of one that begins here for the run.

    Each actor takes a core for each thread, or a GPU.
    """

    actors: int
    address: str | None = None
    progress: Progress = logged

    def __call__(self, batch: Batch, shards: Texts) -> Outputs:
        """Yield the outputs of shards, in the order in which they end; raise `EngineError` if actors keep dying."""
        own = not ray.is_initialized()
        if own:
            _start(self.address)
        try:
            pool = self._started(batch)
            yield from self._computed(pool, shards)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TxportError):
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            raise EngineError(f"actors of Ray end again and again ({brief(error)}); resume=True goes on") from error
        finally:
            if own:
                ray.shutdown()

    def _started(self, batch: Batch) -> list[object]:
        cores = int(batch.options.get("threads") or 1)
        batch = Batch(batch.bundle, batch.column, prefix=batch.prefix, **{**batch.options, "threads": cores})
        gpus = int(batch.options.get("provider", "cpu") != "cpu")
        self._require("CPU", self.actors * cores)
        self._require("GPU", self.actors * gpus)
        limits = {"max_restarts": -1, "max_task_retries": RETRIES}
        options: dict[str, Any] = {"num_cpus": cores, "num_gpus": gpus, **limits}
        actor = ray.remote(Actor).options(**options)
        pool = [actor.remote(batch) for _ in range(self.actors)]
        waiting = [each.load.remote(batch.sha256) for each in pool]
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SECONDS)
            ray.get(ready)
            if waiting:
                free = ray.available_resources()
                self.progress(
                    f"{len(waiting)} of {self.actors} actors wait; the cluster has {free.get('CPU', 0):g} free cores"
                )
        return pool

    def _require(self, kind: str, needed: int) -> None:
        """Raise `UnsupportedError` for actors that a cluster has no room for: Ray would wait for ever."""
        total = ray.cluster_resources().get(kind, 0)
        if needed > total:
            noun = {"CPU": "cores", "GPU": "GPUs"}[kind]
            wanted = f"{self.actors} actors need {needed} {noun}, and the cluster has {total:g}"
            raise UnsupportedError(f"{wanted}; give fewer actors or more machines")

    def _computed(self, pool: list[Any], shards: Texts) -> Outputs:
        running: dict[object, tuple[int, object]] = {}  # a future -> number of its shard, and its actor
        free = [actor for _ in range(AHEAD) for actor in pool]
        while True:
            while free and (shard := next(shards, None)) is not None:
                number, texts = shard
                actor = free.pop(0)
                running[actor.outputs.remote(texts)] = number, actor
            if not running:
                return
            (done,), _ = ray.wait(list(running))
            number, actor = running.pop(done)
            yield number, ray.get(done)
            free.append(actor)


def _start(address: str | None) -> None:
    """Connect to a cluster, or begin one on this machine; raise `UnavailableError` if that fails."""
    try:
        ray.init(
            address=address,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UnavailableError(f"Ray does not start: {brief(error)}") from error
