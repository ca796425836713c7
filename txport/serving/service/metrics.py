"""Metrics for Prometheus, under vLLM's names with the prefix `txport:`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

MODEL = "model_name"
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
        self.registry.register(self)
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

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; called by Prometheus's registry."""
        running = GaugeMetricFamily("txport:num_requests_running", "Requests that run.", labels=[MODEL])
        waiting = GaugeMetricFamily("txport:num_requests_waiting", "Requests that wait.", labels=[MODEL])
        for load in self._loads():
            running.add_metric([load.name], load.running)
            waiting.add_metric([load.name], load.waiting)
        yield running
        yield waiting

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
