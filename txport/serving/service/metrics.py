"""Metrics for Prometheus, under vLLM's names with the prefix `txport:`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MODEL = "model_name"
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder in which the processes of a service count, by which each has the sums
FRESH = 1.0  # seconds for which others may read how much work this process has
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


@dataclass(frozen=True)
class Load:
    """How much work a model has now: requests, or texts of an encoder, that run and that wait."""

    name: str
    running: int
    waiting: int


class Metrics:
    """What one service counts; `loads` returns the work of each model when Prometheus asks."""

    def __init__(self, loads: Callable[[], Iterable[Load]]) -> None:
        self.registry = CollectorRegistry()
        self._loads = loads
        self._running = self._gauge("num_requests_running", "Requests that run.", MODEL)
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait.", MODEL)
        self._gauge("workers", "Processes of the service.").set(1)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts and sources.", MODEL)
        self.generation_tokens = self._counter("generation_tokens", "Generated tokens.", MODEL)
        self.successes = self._counter("request_success", "Finished outputs.", MODEL, "finished_reason")
        self.failures = self._counter("request_failure", "Failed or refused requests.", MODEL, "code")
        self.cancelled = self._counter("request_cancelled", "Requests whose caller went away.", MODEL)
        self.answers = self._counter("http_requests", "Answers by endpoint and status.", "endpoint", "status")
        self.first = self._timer("time_to_first_token_seconds", "Seconds from a request to its first token.")
        self.each = self._timer(
            "time_per_output_token_seconds", "Seconds of a request, divided by its generated tokens."
        )
        self.whole = self._timer("e2e_request_latency_seconds", "Seconds of a request.")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"txport:{name}", text, labels, registry=self.registry)

    def _timer(self, name: str, text: str) -> Histogram:
        return Histogram(f"txport:{name}", text, (MODEL,), registry=self.registry, buckets=SECONDS)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"txport:{name}", text, labels, registry=self.registry, multiprocess_mode="livesum")

    async def keep_fresh(self) -> None:
        """Note the work of the models again and again, for processes that are asked."""
        while True:
            self._note_loads()
            await asyncio.sleep(FRESH)

    def _note_loads(self) -> None:
        for load in self._loads():
            self._running.labels(load.name).set(load.running)
            self._waiting.labels(load.name).set(load.waiting)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's format: sums over all processes that count in the folder `SHARED`."""
        self._note_loads()
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def finished(self, model: str, prompt: int, generated: int, reasons: Iterable[str], begin: float) -> None:
        """Count a finished request that began at `begin`, of `time.perf_counter`."""
        seconds = time.perf_counter() - begin
        self.prompt_tokens.labels(model).inc(prompt)
        self.generation_tokens.labels(model).inc(generated)
        self.whole.labels(model).observe(seconds)
        if generated:
            self.each.labels(model).observe(seconds / generated)
        for reason in reasons:
            self.successes.labels(model, reason).inc()
