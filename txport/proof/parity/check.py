"""Proof that a bundle computes what PyTorch computes, in the form in which it ships.

All against the checkpoint in PyTorch, in float64 on the CPU: the weights inside the graphs, the outputs of each graph
over inputs chosen to break it, what whole runs give, as the model's task has them, and, where there are texts with
targets, how many come out right.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from txport import runtimes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.forms import PLAIN
from txport.bundles.ports import LOGITS
from txport.errors import BundleError, LoadError, ParityError
from txport.exporters.weights import holding
from txport.models.checkpoint import Checkpoint
from txport.models.facts import Task
from txport.models.weights.streamed import converted
from txport.proof.parity.calls import compare_graphs, no_crash
from txport.proof.parity.cases import Case, draw_cases, lighten, lightest, not_reached
from txport.proof.parity.exact import HALVES, Exact
from txport.proof.parity.measures import Comparison, compare
from txport.proof.parity.quality import Texts, digest_of
from txport.proof.parity.replay import Reference
from txport.proof.parity.tolerances import Tolerance, tolerance_of
from txport.proof.parity.truth import Truth
from txport.proof.parity.truth.encoding import EncoderTruth
from txport.proof.parity.truth.generation import GeneratorTruth
from txport.proof.parity.weights import compare_weights, unheld
from txport.proof.reports.report import Report
from txport.system.packages import version_of
from txport.version import __version__

__all__ = ["Case", "Comparison", "Report", "check", "compare", "compare_graphs", "draw_cases", "tolerance_of"]

FOREIGN_PARTS = "weights and graphs one by one, whose names and ports are not ours: whole runs are compared"
ROUNDED = "the checkpoint's own weights, so that what rounding did to them counts too"
Loaded = TypeVar("Loaded")

HUGE, LARGE, THREADED = 500_000_000, 20_000_000, 2_000_000  # parameters
TRUTHS: dict[Task, Callable[[Bundle, Checkpoint, Exact, list[Case], Texts], Truth]] = {
    "seq2seq": GeneratorTruth,
    "causal": GeneratorTruth,
    "encode": EncoderTruth,
}


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
    one that the bundle was made from or a tolerance would be loosened, `ParityError` where the manifest says something
    else of the model than the checkpoint, or a graph does not run at all.
    """
    require_checkpoint(bundle, checkpoint)
    if is_foreign := isinstance(bundle.manifest, ForeignManifest):
        bundle = of_checkpoint(bundle, checkpoint)
    else:
        load_bundle(bundle.path)
    computed = {name: runtimes.computes(name, bundle.manifest.arithmetic) for name in providers}
    held_in = bundle.manifest.precision
    tolerances = {name: tolerance_of(computed[name], each, atol, rtol, held_in) for name, each in providers.items()}
    report = Report(_about(bundle, providers, tolerances, seed, cases))
    report.about["texts"] = digest_of(texts) if texts else None
    if not is_foreign:
        with no_crash("the comparison of the weights in the graphs"):
            report.tensors.extend(compare_weights(bundle, checkpoint))
            report.about.update(unheld(bundle, checkpoint))
    if checkpoint.outline.fp32_only:
        report.about["reference"] = f"PyTorch in fp32: in float64 it does not run ({checkpoint.outline.fp32_only})"
    with fitting_threads(checkpoint):
        drawn = draw_cases(bundle, seed, cases)
        left_out = list[str]()
        if is_large(checkpoint):
            drawn, left_out = (lightest if is_huge(checkpoint) else lighten)(drawn)
        if is_foreign:
            left_out.append(FOREIGN_PARTS)
            report.about.update({"reference": ROUNDED} if bundle.manifest.precision in ("int8", "int4") else {})
        report.about["left_out"] = [*left_out, *not_reached(bundle.manifest.facts)]
        for held in dict.fromkeys(computed.values()):
            exact = exact_of(bundle, checkpoint, held)
            truth = TRUTHS[checkpoint.facts.task](bundle, checkpoint, exact, drawn, texts or {})
            reference = None if is_foreign else Reference(exact, bundle.manifest, remembers=True)
            report.about.setdefault("pytorch", truth.pytorch)
            for name in (each for each in providers if computed[each] == held):
                _compare(report, bundle, name, providers[name], truth, reference, tolerances[name], seed)
    return report


def _compare(
    report: Report,
    bundle: Bundle,
    name: str,
    provider: str,
    truth: Truth,
    reference: Reference | None,
    tolerance: Tolerance,
    seed: int,
) -> None:
    """One runtime, in the precision that it computes in; with a `reference`, its graphs one by one too."""
    label = name if provider == "cpu" else f"{name} {provider}"
    runtime = _load(name, bundle, provider, runtimes.load)
    report.about["ran"][label] = runtime.placement()
    if reference is not None:
        for case in truth.cases:
            report.tensors.extend(compare_graphs(case, label, runtime, reference, tolerance, seed))
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


def require_checkpoint(bundle: Bundle, checkpoint: Checkpoint) -> None:
    """Raise `UnsupportedError` for another checkpoint than a bundle's, `ParityError` if its manifest lies.

    A bundle without weights is a `BundleError`.
    """
    bundle.require_weights()
    bundle.require_source(checkpoint.name, checkpoint.sha256)
    try:
        bundle.require_model(checkpoint.described)
    except BundleError as error:
        raise ParityError(str(error)) from error


def of_checkpoint(bundle: Bundle, checkpoint: Checkpoint) -> Bundle:
    """A folder that others exported, with the facts of its checkpoint, which say more than those that were read."""
    source = {"name": checkpoint.name, "sha256": checkpoint.sha256}
    return replace(bundle, manifest=replace(bundle.manifest, facts=checkpoint.facts, checkpoint=source))


def is_large(checkpoint: Checkpoint) -> bool:
    """Whether a model has so many parameters that some cases take long and prove nothing that others do not."""
    return size_of(checkpoint) >= LARGE


def is_huge(checkpoint: Checkpoint) -> bool:
    """Whether a model is so large that one run of it takes seconds: only the shortest cases are tried."""
    return size_of(checkpoint) >= HUGE


def size_of(checkpoint: Checkpoint) -> int:
    """Its parameters, tied ones once."""
    return sum(parameter.numel() for parameter in checkpoint.outline.parameters())


@contextlib.contextmanager
def fitting_threads(checkpoint: Checkpoint) -> Iterator[None]:
    """One thread of PyTorch for a small model: several would wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if size_of(checkpoint) >= THREADED else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def exact_of(bundle: Bundle, checkpoint: Checkpoint, precision: str = "") -> Exact:
    """What a bundle is held against: the checkpoint, with the weights that it holds where they are quantised.

    What computes it in another `precision` than the bundle's is held against the same.
    """
    manifest = bundle.manifest
    if isinstance(manifest, ForeignManifest):
        return Exact.of(checkpoint.model, manifest.precision, together=True)
    held = holding(bundle, checkpoint).model
    together = manifest.rows is not None
    own = manifest.arithmetic
    if precision not in ("", own):
        narrow = HALVES.get(own) if not manifest.quantization else None
        if narrow is not None:  # what computes finer than the bundle has its weights all the same
            held = converted(converted(held, narrow), torch.float32)
        return Exact.of(held, precision)
    plain = {name for name, form in manifest.forms.items() if form == PLAIN}
    return Exact.of(held, own, together=together, plain=plain)


def _load(name: str, bundle: Bundle, provider: str, load: Callable[..., Loaded]) -> Loaded:
    """A runtime that is here, so that a graph which it can't load is at fault."""
    try:
        return load(name, bundle, provider=provider)
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
