"""Proof that a bundle computes what PyTorch computes, in the form in which it ships.

All against the checkpoint in PyTorch, in float64 on the CPU: the weights inside the graphs, the outputs of each graph
over inputs chosen to break it, the logits of whole targets step by step, the tokens that search finds, and, where
there are texts with targets, how many come out right.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txport import runtimes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.forms import PLAIN
from txport.errors import BundleError, LoadError, ParityError, brief
from txport.exporters.weights import holding
from txport.models.checkpoint import Checkpoint
from txport.proof.parity.calls import compare_call
from txport.proof.parity.cases import Case, draw_cases, lighten
from txport.proof.parity.exact import Exact
from txport.proof.parity.forced import compare_forced
from txport.proof.parity.measures import Comparison, compare
from txport.proof.parity.quality import Texts, compare_quality, digest_of, right_ones
from txport.proof.parity.replay import Reference
from txport.proof.parity.tokens import TokenComparison, compare_search, search_together
from txport.proof.parity.tolerances import Tolerance, tolerance_of
from txport.proof.parity.weights import compare_weights
from txport.proof.reports.report import Report
from txport.runtimes.base import GraphRuntime, Runtime
from txport.runtimes.pytorch import TorchRuntime
from txport.search.options import Found
from txport.system.machine import is_out_of_memory
from txport.version import __version__

__all__ = ["Case", "Comparison", "Report", "check", "compare", "compare_graphs", "draw_cases", "tolerance_of"]
Array = NDArray[Any]

LARGE, THREADED = 20_000_000, 2_000_000  # parameters


def check(
    bundle: Bundle,
    checkpoint: Checkpoint,
    providers: Mapping[str, str],
    seed: int = 0,
    *,
    cases: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    texts: Texts | None = None,
) -> Report:
    """Compare a bundle with its checkpoint on each runtime of `providers` (runtime -> provider).

    `cases` random ones are added to those that every bundle has to pass; `atol` and `rtol` tighten the tolerances;
    `texts` with their targets tell how well it does its task. Raises `UnsupportedError` if the checkpoint is not the
    one that the bundle was made from or a tolerance would be loosened, `ParityError` where a graph does not run at all.
    """
    bundle.require_source(checkpoint.name, checkpoint.sha256)
    load_bundle(bundle.path)
    precision = bundle.manifest.precision
    tolerances = {name: tolerance_of(precision, provider, atol, rtol) for name, provider in providers.items()}
    report = Report(_about(bundle, providers, tolerances, seed, cases))
    report.about["texts"] = digest_of(texts) if texts else None
    with no_crash("the comparison of the weights in the graphs"):
        report.tensors.extend(compare_weights(bundle, checkpoint))
    with fitting_threads(checkpoint):
        drawn = draw_cases(bundle, seed, cases)
        if is_large(checkpoint):
            drawn, report.about["left_out"] = lighten(drawn)
        truth = Truth(bundle, checkpoint, drawn, texts or {}, seed)
        report.about["pytorch"] = truth.pytorch
        for name, provider in providers.items():
            label = name if provider == "cpu" else f"{name} {provider}"
            runtime = _load(name, bundle, provider)
            report.about["ran"][label] = runtime.placement()
            truth.compare(report, label, runtime, tolerances[name])
    return report


def is_large(checkpoint: Checkpoint) -> bool:
    """Whether a model has so many parameters that some cases take long and prove nothing that others do not."""
    return size_of(checkpoint) >= LARGE


def size_of(checkpoint: Checkpoint) -> int:
    """Its parameters, tied ones once."""
    return sum(parameter.numel() for parameter in checkpoint.model.parameters())


@contextlib.contextmanager
def fitting_threads(checkpoint: Checkpoint) -> Iterator[None]:
    """One thread of PyTorch for a small model: several would wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if size_of(checkpoint) >= THREADED else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def exact_of(bundle: Bundle, checkpoint: Checkpoint) -> Exact:
    """What a bundle is held against: the checkpoint, with the weights that it holds where they are quantised."""
    manifest = bundle.manifest
    held, together = holding(bundle, checkpoint).model, manifest.rows is not None
    plain = {name for name, form in manifest.forms.items() if form == PLAIN}
    return Exact.of(held, manifest.precision, together=together, plain=plain)


class Truth:
    """What PyTorch says in every case, in float64, computed once for all runtimes.

    In the cases with the weights that a quantised bundle holds, so that nothing but the computation differs; on the
    texts of the task with those of the checkpoint, since that is what users had.
    """

    def __init__(self, bundle: Bundle, checkpoint: Checkpoint, cases: list[Case], texts: Texts, seed: int) -> None:
        self._bundle, self._texts, self._seed = bundle, texts, seed
        self._exact = exact_of(bundle, checkpoint)
        self._graphs = Reference(self._exact, bundle.manifest)
        runtime = TorchRuntime(self._exact.model)
        self._found = search_together(cases, runtime, checkpoint.facts)
        self._cases = [replace(case, targets=case.targets or self._said(case)) for case in cases]
        self.pytorch = self._compare_pytorch(checkpoint)
        self._right = right_ones(bundle, TorchRuntime(Exact.of(checkpoint.model).model), texts) if texts else []

    def _compare_pytorch(self, checkpoint: Checkpoint) -> dict[str, float]:
        """How far PyTorch itself is off in fp32, with the checkpoint's weights, over the targets of the cases."""
        exact = self._exact if self._exact.own.model is checkpoint.model else Exact.of(checkpoint.model)
        pairs = [(case.sources, case.targets) for case in self._cases]
        return {
            "worst_logit_difference": max(exact.own_error(*pair) for pair in pairs),
            "largest_logit": max(float(np.abs(each).max()) for pair in pairs for each in exact.logits(*pair)),
        }

    def _said(self, case: Case) -> tuple[tuple[int, ...], ...]:
        greedy: list[Found] = self._found[case.name]["greedy"]
        return tuple(found.tokens for found in greedy)

    def compare(self, report: Report, label: str, runtime: GraphRuntime, tolerance: Tolerance) -> None:
        """Add to a report all that one runtime computes: graphs first, then whole runs."""
        for case in self._cases:
            report.tensors.extend(compare_graphs(case, label, runtime, self._graphs, tolerance, self._seed))
        for case in self._cases:
            with no_crash(f"{label}, case {case.name}: a search"):
                report.tensors.extend(compare_forced(case, label, runtime, self._exact, tolerance))
                report.tokens.extend(self._compare_search(case, label, runtime, tolerance))
        if self._texts:
            with no_crash(f"{label}, texts: a search"):
                right = right_ones(self._bundle, runtime, self._texts)
            report.quality.append(compare_quality(label, right, self._right, tolerance))

    def _compare_search(
        self, case: Case, label: str, runtime: Runtime, tolerance: Tolerance
    ) -> Iterator[TokenComparison]:
        return compare_search(case, label, runtime, self._found[case.name], self._exact, tolerance)


def _load(name: str, bundle: Bundle, provider: str) -> GraphRuntime:
    """A runtime that is here, so that a graph which it can't load is at fault."""
    try:
        return runtimes.load(name, bundle, provider=provider)
    except (LoadError, BundleError) as error:
        raise ParityError(str(error)) from error


def _about(
    bundle: Bundle, providers: Mapping[str, str], tolerances: Mapping[str, Tolerance], seed: int, cases: int
) -> dict[str, Any]:
    packages = ("torch", "onnx", "onnxscript", "numpy")
    return {
        "checkpoint": bundle.manifest.checkpoint,
        "target": bundle.manifest.target,
        "precision": bundle.manifest.precision,
        "files": bundle.manifest.files,
        "providers": dict(providers),
        "ran": {},
        "tolerances": {name: each.to_dict() for name, each in tolerances.items()},
        "seed": seed,
        "random_cases": cases,
        "left_out": [],
        "versions": {
            "python": platform.python_version(),
            "txport": __version__,
            **{name: version(name) for name in packages},
            **runtimes.versions(),
        },
        "machine": platform.machine(),
    }


def compare_graphs(
    case: Case, label: str, runtime: GraphRuntime, reference: Reference, tolerance: Tolerance, seed: int
) -> Iterator[Comparison]:
    """Every output of every graph, call by call, each call fed what PyTorch computed before."""
    for call in reference.replay(case, seed):
        with no_crash(f"{label}, case {case.name}, step {call.step}: the {call.role} graph"):
            actual = runtime.run_graph(call.role, call.inputs)
        yield from compare_call(case, label, call, actual, reference, tolerance)


@contextlib.contextmanager
def no_crash(what: str) -> Iterator[None]:
    """`ParityError` for any error of a runtime, but not where memory is at its end: that says nothing of the graph."""
    try:
        yield
    except Exception as error:  # each runtime has errors of its own
        if is_out_of_memory(error):
            raise
        raise ParityError(f"{what} does not run: {brief(error)}") from error
