"""Proof that a bundle computes what PyTorch computes, in the form in which it ships.

The reference is the checkpoint in PyTorch, in float64 on the CPU. Four things are compared with it: the weights in the
graphs, the outputs of each graph for inputs chosen to break it, the outputs of whole runs (search or encoding, by the
model's task), and, if there are texts with targets, the number of correct outputs.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from txport import runtimes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.comparisons import recorded_original
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.forms import ROWS
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint, smoothed
from txport.checkpoints.weights.streamed import converted
from txport.errors import BundleError, LoadError, ParityError
from txport.exporters.weights import holding
from txport.models.facts import Task
from txport.proof.context.check import compare_context, unreached
from txport.proof.few_bits.loss import measure
from txport.proof.few_bits.products import ByProduct, compare_products, first_of
from txport.proof.metrics import METRICS, Metric
from txport.proof.parity.calls import compare_graphs, no_crash
from txport.proof.parity.cases import Case, draw_cases, lighten, not_reached
from txport.proof.parity.exact import HALVES, Exact, constants_of
from txport.proof.parity.measures import Comparison, compare
from txport.proof.parity.quality import EXACT, Texts, digest_of
from txport.proof.parity.replay import Reference
from txport.proof.parity.tolerances import Tolerance, tolerance_of
from txport.proof.parity.truth import Truth
from txport.proof.parity.truth.encoding import EncoderTruth
from txport.proof.parity.truth.generation import GeneratorTruth
from txport.proof.parity.weights import compare_weights, unheld
from txport.proof.reports.report import Report
from txport.runtimes.base import GraphRuntime
from txport.system.packages import version_of
from txport.system.progress import Progress, Stage, counted, logged, within
from txport.targets.ports import LOGITS
from txport.version import __version__

__all__ = ["Case", "Comparison", "Report", "check", "compare", "compare_graphs", "draw_cases", "tolerance_of"]

FOREIGN_PARTS = "weights and graphs one by one, whose names and ports are not ours: whole runs are compared"
GOLDEN_SEARCHES = "searches, which are compared in the golden outputs"
ROUNDED = "the checkpoint's own weights, so that what rounding did to them counts too"
Loaded = TypeVar("Loaded")

LARGE, THREADED = 20_000_000, 2_000_000  # parameters
TRUTHS: dict[Task, Callable[[Bundle, Checkpoint, Exact, list[Case], Texts, Metric], Truth]] = {
    "seq2seq": GeneratorTruth,
    "causal": GeneratorTruth,
    "encode": EncoderTruth,
}


@np.errstate(over="ignore", invalid="ignore")  # values beyond fp16 are reported as differences
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
    metric: Metric = METRICS[EXACT],
    searches: bool = True,
    max_loss: float | None = None,
    load: Callable[..., GraphRuntime] = runtimes.load,
    exact: Callable[[], Exact] | None = None,
    progress: Progress = logged,
) -> Report:
    """Compare a bundle with its checkpoint on each runtime of `providers` (runtime -> provider).

    A portable bundle in fp16 that runs on ort is also compared in fp32, since rounding to fp16 hides small faults.
    `cases`: number of additional random cases. `atol` and `rtol` tighten the tolerances. `texts`: texts with their
    targets, to measure task quality by a `metric`. Without `searches`, only logits and outputs are compared, not tokens
    of searches. `max_loss` limits what few bits cost. `load` starts a bundle, and `exact` makes its reference.

    Raises `UnsupportedError` if the bundle was made from another checkpoint or a tolerance would be loosened, and
    `ParityError` if the manifest contradicts the checkpoint or a graph does not run.
    """
    require_checkpoint(bundle, checkpoint)
    if is_foreign := isinstance(bundle.manifest, ForeignManifest):
        bundle = of_checkpoint(bundle, checkpoint)
    else:
        load_bundle(bundle.path)
        checkpoint = smoothed(checkpoint, bundle.manifest.smoothing)
    providers = _compared_on(bundle, providers)
    computed = {name: runtimes.computes(name, bundle.manifest.arithmetic) for name in providers}
    tolerances = _tolerances(bundle, providers, computed, atol, rtol)
    report = Report(_about(bundle, providers, tolerances, seed, cases, metric))
    report.about["texts"] = digest_of(texts) if texts else None
    if not is_foreign:
        _compare_held(report, bundle, checkpoint, progress)
        _compare_context(report, bundle, checkpoint, seed, atol, rtol, within(progress, 0.05, 0.15))
    report.about.update(_about_reference(bundle, checkpoint))
    with fitting_threads(checkpoint):
        drawn, report.about["left_out"] = _cases(bundle, checkpoint, seed, cases, searches=searches)
        for number, held in enumerate(precisions := list(dict.fromkeys(computed.values()))):
            part = within(progress, *(0.15 + 0.85 * (number + more) / len(precisions) for more in (0, 1)))
            part(Stage("running PyTorch in float64", 0))
            names = [each for each in providers if computed[each] == held]
            made = partial(exact_of, bundle, checkpoint, held)
            once = (exact or made) if held == bundle.manifest.arithmetic else made
            constants, some, given = _beside(bundle, names, drawn, texts or {})
            with constants, once().encoding_once() as right:
                truth = TRUTHS[checkpoint.facts.task](bundle, checkpoint, right, some, given, metric)
                reference = None if is_foreign else _reference(bundle, right)
                report.about.setdefault("pytorch", truth.pytorch)
                for at, name in enumerate(names):
                    own = within(part, *(0.25 + 0.75 * (at + more) / len(names) for more in (0, 1)))
                    _compare(report, bundle, name, providers[name], load, truth, reference, tolerances[name], seed, own)
                    _measure_cost(report, bundle, checkpoint, name, providers[name], load, max_loss)
    return report


def _about_reference(bundle: Bundle, checkpoint: Checkpoint) -> dict[str, str]:
    """Return what the reference is where it is not the checkpoint in float64."""
    if checkpoint.outline.fp32_only:
        return {"reference": f"PyTorch in fp32: in float64 it does not run ({checkpoint.outline.fp32_only})"}
    is_rounded = isinstance(bundle.manifest, ForeignManifest) and bundle.manifest.precision in ("int8", "int4")
    return {"reference": ROUNDED} if is_rounded else {}


def _compared_on(bundle: Bundle, providers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the runtimes, with `IN_FP32` for a portable bundle in fp16 that runs on ort."""
    is_half = bundle.manifest.made_for.is_standard and bundle.manifest.arithmetic == "fp16"
    return {**providers, runtimes.IN_FP32: "cpu"} if is_half and "ort" in providers else providers


def _tolerances(
    bundle: Bundle,
    providers: Mapping[str, str],
    computed: Mapping[str, str],
    atol: float | None,
    rtol: float | None,
) -> dict[str, Tolerance]:
    """Return the tolerance of each runtime; `IN_FP32` has its own, since a given one is for fp16."""
    given = {name: (None, None) if name == runtimes.IN_FP32 else (atol, rtol) for name in providers}
    held_in = bundle.manifest.precision
    return {name: tolerance_of(computed[name], each, *given[name], held_in) for name, each in providers.items()}


def _beside(bundle: Bundle, names: Sequence[str], cases: list[Case], texts: Texts) -> tuple[Any, list[Case], Texts]:
    """Return the constants, cases and texts for some runtimes; `IN_FP32` runs beside ort and searches none."""
    if names != [runtimes.IN_FP32]:
        return contextlib.nullcontext(), cases, texts
    return constants_of(bundle.manifest), [replace(case, search_tokens=0) for case in cases], {}


def _measure_cost(
    report: Report,
    bundle: Bundle,
    checkpoint: Checkpoint,
    name: str,
    provider: str,
    load: Callable[..., GraphRuntime],
    max_loss: float | None,
) -> None:
    """Measure what few bits cost on the first runtime, if all that was compared is equal."""
    if bundle.manifest.quantization and report.is_equal and "loss" not in report.about:
        with no_crash(f"{name}: the outputs of a text"):
            measure(report, bundle, checkpoint, _load(name, bundle, provider, load), max_loss)


def _compare_held(report: Report, bundle: Bundle, checkpoint: Checkpoint, progress: Progress) -> None:
    """Compare the weights in the graphs with the checkpoint's."""
    progress(Stage("comparing weights", 0))
    with no_crash("the comparison of the weights in the graphs"):
        report.tensors.extend(compare_weights(bundle, checkpoint))
        report.about.update(unheld(bundle, checkpoint))


def _compare_context(
    report: Report,
    bundle: Bundle,
    checkpoint: Checkpoint,
    seed: int,
    atol: float | None,
    rtol: float | None,
    progress: Progress,
) -> None:
    """Compare the parts that depend on positions at the end of the context."""
    with no_crash("attention and positions at the end of the context"):
        report.tensors.extend(compare_context(bundle, checkpoint, seed, atol, rtol, progress=progress))


def cases_of(bundle: Bundle, checkpoint: Checkpoint, seed: int = 0, more: int = 0) -> tuple[list[Case], list[str]]:
    """Return the cases of a bundle, `more` of them random, and descriptions of what a large model leaves out."""
    drawn = draw_cases(bundle, seed, more)
    return lighten(drawn, bundle.manifest.facts) if is_large(checkpoint) else (drawn, [])


def _cases(
    bundle: Bundle, checkpoint: Checkpoint, seed: int, more: int, *, searches: bool
) -> tuple[list[Case], list[str]]:
    """Return the cases of a comparison, and descriptions of what they leave out."""
    is_foreign = isinstance(bundle.manifest, ForeignManifest)
    drawn, left_out = cases_of(bundle, checkpoint, seed, more)
    if not searches and any(case.search_tokens for case in drawn):
        drawn = [replace(case, search_tokens=0) for case in drawn]
        left_out = [GOLDEN_SEARCHES, *(line for line in left_out if not line.startswith("search beyond"))]
    left_out += [FOREIGN_PARTS] if is_foreign else []
    by_part = not (is_foreign or isinstance(checkpoint.outline, Adapted))
    left_out += not_reached(bundle.manifest.facts, by_part=by_part)
    return drawn, [*left_out, *(unreached(checkpoint) if by_part else [])]


def _compare(
    report: Report,
    bundle: Bundle,
    name: str,
    provider: str,
    load: Callable[..., GraphRuntime],
    truth: Truth,
    reference: Reference | None,
    tolerance: Tolerance,
    seed: int,
    progress: Progress,
) -> None:
    """Compare one runtime with `truth`; with a `reference`, also compare its graphs one by one."""
    label = name if provider == "cpu" else f"{name} {provider}"
    if isinstance(reference, ByProduct):
        _compare_products(report, label, reference, truth.cases, tolerance, seed, within(progress, 0, 0.8))
        reference.close()
    runtime = _load(name, bundle, provider, load)
    report.about["ran"][label] = runtime.placement()
    if reference is not None and not isinstance(reference, ByProduct):
        graphs = within(progress, 0, 0.8)
        encoded: set[bytes] = set()
        for case in counted(graphs, truth.cases, lambda case: f"comparing graphs on {label}, case {case.name}"):
            report.tensors.extend(compare_graphs(case, label, runtime, reference, tolerance, seed, encoded))
    progress(Stage(f"comparing whole runs on {label}", 0.8))
    truth.compare(report, label, runtime, tolerance)
    if not (bundle.manifest.single and isinstance(truth, GeneratorTruth)):
        return
    if not runtimes.RUNTIMES[name].single:
        report.about["left_out"].append(f"the single graph on {label}, which runs none")
        return
    del runtime  # each holds the weights
    single = _load(name, bundle, provider, runtimes.load_single)
    report.about["ran"][label] |= single.placement()
    truth.compare_at_once(report, label, single, tolerance)


def _reference(bundle: Bundle, exact: Exact) -> Reference:
    """Return the reference of the calls of a bundle's graphs."""
    if bundle.manifest.arithmetic in ("int8", "int4"):
        return ByProduct(exact, bundle)
    return Reference(exact, bundle.manifest, remembers=True)


def _compare_products(
    report: Report,
    label: str,
    reference: ByProduct,
    cases: list[Case],
    tolerance: Tolerance,
    seed: int,
    progress: Progress,
) -> None:
    """Compare the graphs of a quantised bundle product by product."""
    for case in counted(progress, cases, lambda case: f"comparing products on {label}, case {case.name}"):
        report.tensors.extend(compare_products(first_of(case), label, reference, tolerance, seed))


def require_checkpoint(bundle: Bundle, checkpoint: Checkpoint) -> None:
    """Raise `UnsupportedError` if the checkpoint is not the bundle's, `ParityError` if its manifest contradicts it.

    Raise `BundleError` if the bundle has no weights.
    """
    bundle.require_weights()
    bundle.require_source(checkpoint.name, checkpoint.sha256)
    try:
        bundle.require_model(checkpoint.described)
    except BundleError as error:
        raise ParityError(str(error)) from error


def of_checkpoint(bundle: Bundle, checkpoint: Checkpoint) -> Bundle:
    """Return a bundle exported by another tool with the facts of its checkpoint, which are more complete."""
    source = {"name": checkpoint.name, "sha256": checkpoint.sha256}
    return replace(bundle, manifest=replace(bundle.manifest, facts=checkpoint.facts, checkpoint=source))


def is_large(checkpoint: Checkpoint) -> bool:
    """Return whether a model is so large that cases which take long and add no evidence are left out."""
    return size_of(checkpoint) >= LARGE


def size_of(checkpoint: Checkpoint) -> int:
    """Return the number of parameters; tied parameters count once."""
    return sum(parameter.numel() for parameter in checkpoint.outline.parameters())


@contextlib.contextmanager
def fitting_threads(checkpoint: Checkpoint) -> Iterator[None]:
    """Use one PyTorch thread for a small model: several threads would synchronise longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if size_of(checkpoint) >= THREADED else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def exact_of(bundle: Bundle, checkpoint: Checkpoint, precision: str = "") -> Exact:
    """Return the reference of a bundle: the checkpoint, with the bundle's weights where these are quantised.

    `precision` is the one that a runtime computes in, if it is not the bundle's.
    """
    manifest = bundle.manifest
    if isinstance(manifest, ForeignManifest):
        weights = (name for name, _ in checkpoint.outline.named_parameters())
        return Exact.of(checkpoint.model, manifest.precision, dict.fromkeys(weights, ROWS))
    held = holding(bundle, checkpoint).model
    own = manifest.arithmetic
    if precision in ("", own):
        return Exact.of(held, own, manifest.forms)
    narrow = HALVES.get(own) if not manifest.quantization else None
    if narrow is not None:  # what computes finer than the bundle has its weights all the same
        held = converted(converted(held, narrow), torch.float32)
    return Exact.of(held, precision)


def _load(name: str, bundle: Bundle, provider: str, load: Callable[..., Loaded]) -> Loaded:
    """Load a bundle with an installed runtime; raise `ParityError` if the runtime can't load a graph."""
    try:
        return load(name, bundle, provider=provider)
    except (LoadError, BundleError) as error:
        raise ParityError(str(error)) from error


def _about(
    bundle: Bundle,
    providers: Mapping[str, str],
    tolerances: Mapping[str, Tolerance],
    seed: int,
    cases: int,
    metric: Metric,
) -> dict[str, Any]:
    packages = ("torch", "onnx", "onnxscript", "numpy", *filter(None, [metric.package]))
    return {
        "checkpoint": bundle.manifest.checkpoint,
        "target": bundle.manifest.target,
        "precision": bundle.manifest.precision,
        "files": bundle.manifest.files,
        **recorded_original(bundle.manifest.original),
        "providers": dict(providers),
        "outputs": [each.name for each in bundle.manifest.facts.outputs] or [LOGITS],
        "ran": {},
        "tolerances": {name: each.to_dict() for name, each in tolerances.items()},
        "seed": seed,
        "random_cases": cases,
        "left_out": [],
        "versions": {
            "python": platform.python_version(),
            "txport": __version__,
            **{name: version_of(name) for name in packages},
            **runtimes.versions_of(providers),
        },
        "machine": platform.machine(),
    }
