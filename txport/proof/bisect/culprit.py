"""Bisection of a bundle: the first part whose result differs from PyTorch, and the cause.

Each part of each graph gets its inputs from PyTorch, so an error stays in the part where it arises, and each wrong part
is found independently of the others. Fault models are then tried on its values. Finally, the exporter is run again step
by step, to find the step that introduced the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from txport import runtimes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint, smoothed
from txport.checkpoints.weights.plan import first_names
from txport.errors import ParityError, TxportError, UnsupportedError, brief
from txport.exporters.fused.quantize import steps
from txport.exporters.weights import Held, graph_weights, held_weights, holding
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.models.model import Model
from txport.proof.bisect.causes import UNKNOWN, cause_of, place_of
from txport.proof.bisect.evidence import evidence_of
from txport.proof.bisect.matrices import badly_quantised, describe_rounding, linear_inputs, roundings
from txport.proof.bisect.nodes import guilty_node
from txport.proof.bisect.origin import Miscompiled, miscompiled, origin
from txport.proof.bisect.probe import Finding, computed_in, find, is_widened, observations
from txport.proof.faults.common import EPSILON, weight_cause
from txport.proof.faults.evidence import WrongWeight
from txport.proof.faults.norms import epsilon_cause
from txport.proof.faults.words import describe
from txport.proof.few_bits.activations import rounding_activations
from txport.proof.parity.calls import compare_call, no_crash
from txport.proof.parity.cases import Case
from txport.proof.parity.check import cases_of, exact_of, is_large, require_checkpoint
from txport.proof.parity.exact import Exact, constants_of
from txport.proof.parity.measures import Comparison, finite
from txport.proof.parity.replay import Reference
from txport.proof.parity.tolerances import tolerance_of
from txport.proof.parity.weights import compare_epsilons, compare_own_epsilons, weighted
from txport.system.arrays import Array

# Maximum distance of a quantised weight from the checkpoint's, in steps of its grid: half a step from rounding; in 4
# bits the largest weight of a block may be clipped. `badly_quantised` checks the grid itself.
OWN_STEPS = {8: 0.501, 4: 2.1}
PIECE = 1 << 22  # weights that are compared at once
MOST_PLACES = 256  # positions of a case that passed, in a large model; longer ones take PyTorch minutes


@dataclass(frozen=True)
class Culprit:
    """The first error of a bundle: its position, kind and figures."""

    graph: str
    where: str
    kind: str
    what: str
    node: str = ""  # the first node whose value does not exist in PyTorch
    origin: str = ""  # the export step that introduced the error
    figures: dict[str, object] = field(default_factory=dict)
    also: tuple[str, ...] = ()  # other positions with independent errors

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; NaN and infinity become strings."""
        values = asdict(self)
        return {**values, "figures": finite(self.figures)}

    def describe(self) -> str:
        """Describe the culprit in one line."""
        return f"{self.where}: {self.what} ({self.kind})"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines to show, each as (label, text)."""
        yield "culprit", self.where + (f" (the {self.graph} graph)" if self.graph else "")
        yield "kind", self.kind
        yield "what", self.what
        if "max_abs" in self.figures:
            yield "figures", _describe_figures(self.figures)
        named = {"node": self.node, "origin": self.origin, "also": "; ".join(self.also)}
        yield from ((word, text) for word, text in named.items() if text)


def _describe_figures(figures: Mapping[str, Any]) -> str:
    where = f"case {figures['case']}, step {figures['step']}, {list(figures['index'])}"
    values = f"{figures['actual']:.6g}, PyTorch {figures['expected']:.6g}"
    cases = ", ".join(figures["cases"])
    return f"off by {figures['max_abs']:.3g}, allowed {figures['allowed']:.2g} ({where}: {values}); in {cases}"


def bisect(
    bundle: Bundle, checkpoint: Checkpoint, *, seed: int = 0, more: int = 0, passed: Collection[str] = ()
) -> Culprit | None:
    """Return the first culprit of a bundle that differs from its checkpoint; None if every part agrees with PyTorch.

    `more` is the number of random cases in addition to the usual ones. With a large model, the long ones of the cases
    that have `passed` are not tried.

    Raises `UnsupportedError` for bundles exported by other tools and if the bundle was not made from this checkpoint.
    Raises `BundleError` for a bundle without weights, and `ParityError` for graphs whose parts can't be identified.
    """
    require_parts(bundle)
    require_checkpoint(bundle, checkpoint)
    load_bundle(bundle.path)
    checkpoint = smoothed(checkpoint, bundle.manifest.smoothing)
    try:
        if isinstance(checkpoint.outline, Adapted):
            return _bisect_outputs(bundle, checkpoint, seed, more)
        return _bisect(bundle, checkpoint, seed, more, passed)
    except (TxportError, MemoryError):
        raise
    except Exception as error:  # an altered graph can have any structure
        what = f"{type(error).__name__}: {brief(error)}"
        raise ParityError(f"the graphs of {bundle.path} can't be taken apart ({what}); export it again") from error


def require_parts(bundle: Bundle) -> None:
    """Raise `UnsupportedError` for graphs exported by other tools, whose parts don't have txport's names."""
    if isinstance(bundle.manifest, ForeignManifest):
        why = "the parts of graphs that others exported have no names of ours"
        raise UnsupportedError(f"{bundle.path} can't be bisected: {why}; compare without bisect=True")


def _bisect(bundle: Bundle, checkpoint: Checkpoint, seed: int, more: int, passed: Collection[str]) -> Culprit | None:
    held = holding(bundle, checkpoint) if bundle.manifest.quantization else checkpoint
    if is_widened(bundle.manifest):  # nothing but the weights is rounded, so PyTorch has these
        exact = exact_of(bundle, checkpoint, computed_in(bundle.manifest))
    else:
        exact = Exact.of(held.model, computed_in(bundle.manifest))
    reference = Reference(exact, bundle.manifest)
    cases, _ = cases_of(bundle, checkpoint, seed, more)
    if is_large(checkpoint):
        cases = _affordable(cases, passed, checkpoint.facts)
    failures: list[tuple[str, str]] = []
    rounding = rounding_activations(reference.model, bundle.manifest.forms, 0) if _rounds(bundle) else nullcontext()
    with rounding, constants_of(bundle.manifest):
        findings = find(observations(bundle, reference, cases, seed, failures))
    wrong = wrong_weights(bundle, checkpoint)
    if findings:
        with constants_of(bundle.manifest):
            culprit = _explain(findings, reference.model, wrong)
        if culprit.kind == UNKNOWN:  # a factor that was fitted is none of the constants
            culprit = _explain(findings, reference.model, wrong)
        return replace(culprit, origin=origin(findings[0], held, bundle.manifest))
    if failures:
        role, what = failures[0]
        return Culprit(role, f"the {role} graph", "crash", what)
    if wrong:
        return _weight(wrong, lambda each: describe(checkpoint.outline, [each.name]))
    if bundle.manifest.quantization and (rounded := _rounded(bundle, checkpoint, cases, seed)):
        return rounded
    return _optimised(miscompiled(bundle, weighted(bundle.manifest), reference, cases, seed))


def _affordable(cases: list[Case], passed: Collection[str], facts: Facts) -> list[Case]:
    """Return the cases of a large model without the long ones that have passed.

    Features are long: of a model that hears, one source of each case is taken, and at least one case.
    """
    if not isinstance(facts.source, Features):
        return [case for case in cases if case.places <= MOST_PLACES or case.name not in passed]
    left = [case for case in cases if case.name not in passed] or cases[:1]
    return [replace(case, sources=case.sources[:1], targets=case.targets[:1]) for case in left]


def _rounds(bundle: Bundle) -> bool:
    """Return whether the kernels of a bundle round activations where they are probed; those of cuda do not."""
    return tolerance_of(computed_in(bundle.manifest)).rms is not None


def of_context(found: Iterable[Comparison]) -> Culprit | None:
    """Return the first wrong part of `compare_context`, which no whole graph shows, as a culprit; None if all pass."""
    wrong = [each for each in found if not each.passed]
    if not wrong:
        return None
    first = wrong[0]
    names = tuple(dict.fromkeys(each.tensor for each in wrong))
    what = "it agrees with PyTorch over short sequences and differs at the end of the context"
    figures = _figures(first, tuple(each.case for each in wrong if each.tensor == first.tensor))
    return Culprit("", first.tensor, "long context", what, figures=figures, also=names[1:])


def _bisect_outputs(bundle: Bundle, checkpoint: Checkpoint, seed: int, more: int) -> Culprit | None:
    """Bisect a user's module, whose parts are unknown: return a wrong weight, an optimiser fault or a wrong output."""
    if wrong := wrong_weights(bundle, checkpoint):
        return _weight(wrong, lambda each: each.name if each.cause.kind == EPSILON else f"the weight {each.name}")
    reference = Reference(exact_of(bundle, checkpoint), bundle.manifest)
    cases, _ = cases_of(bundle, checkpoint, seed, more)
    name, provider = runtimes.home(bundle.manifest.target)
    runtime = runtimes.load(name, bundle, provider=provider)
    tolerance = tolerance_of(bundle.manifest.arithmetic)
    for case in cases:
        for call in reference.replay(case, seed):
            where = f"the {call.role} graph"
            try:
                with no_crash(where):
                    actual = runtime.run_graph(call.role, call.inputs)
            except ParityError as error:
                return Culprit(call.role, where, "crash", str(error))
            found = compare_call(case, "ort", call, actual, reference, tolerance)
            worst = next((each for each in found if not each.passed), None)
            if worst is not None:
                optimised = _optimised(miscompiled(bundle, weighted(bundle.manifest), reference, [case], seed))
                what = "differs, and the module has no parts that are known: look at the code that it comes from"
                figures = _figures(worst, (case.name,))
                return optimised or Culprit(call.role, f"the output {worst.tensor}", "output", what, figures=figures)
    return None


def wrong_weights(bundle: Bundle, checkpoint: Checkpoint) -> dict[str, WrongWeight]:
    """Return the weights, tables and epsilons that differ from the checkpoint's, by the model's names."""
    model = checkpoint.outline
    tables = dict(model.named_buffers())
    first = first_names(model) | {name: name for name in tables}
    wrong: dict[str, WrongWeight] = {}
    for role in weighted(bundle.manifest):
        graph = graph_weights(bundle.file(role))
        for held in (held for held in held_weights(graph, bundle.manifest.weights) if held.name in first):
            name = first[held.name]
            expected = (tables[name] if name in tables else checkpoint.tensor(name)).detach().numpy()
            expected = expected if held.quantized is not None else expected.astype(bundle.manifest.dtype)
            if not _is_right(held, expected):
                wrong[name] = WrongWeight(held.name, weight_cause(held.name, held.values, expected))
    return {name: wrong[name] for name in first.values() if name in wrong} | _wrong_epsilons(bundle, model)


def _is_right(held: Held, expected: Array) -> bool:
    """Return whether a weight of a graph is the expected one, within its steps; some rows are compared at a time."""
    if held.values.shape != expected.shape:
        return False
    if held.quantized is None:
        return np.array_equal(held.values, expected)
    count = max(1, PIECE // expected.shape[1])
    for rows in (slice(start, start + count) for start in range(0, len(expected), count)):
        limit = OWN_STEPS[held.quantized.form.bits] * steps(held.quantized.rows(rows))
        if not (np.abs(held.values[rows] - expected[rows]) <= limit).all():
            return False
    return True


def _wrong_epsilons(bundle: Bundle, model: Model) -> dict[str, WrongWeight]:
    """Return the epsilons of norms that differ from the model's, by the names of the norms and `epsilon`."""
    found: dict[str, WrongWeight] = {}
    for role in weighted(bundle.manifest):
        if isinstance(model, Adapted):
            compared = compare_own_epsilons(role, bundle, model)
        else:
            compared = compare_epsilons(role, bundle, model)
        for each in compared:
            if not each.passed and not each.note:
                found[each.tensor] = WrongWeight(each.tensor, epsilon_cause(each.actual, each.expected))
    return found


def _explain(findings: list[Finding], model: Model, wrong: Mapping[str, WrongWeight]) -> Culprit:
    first = evidence_of(findings[0], model, wrong)
    first.read_weights()
    cause = cause_of(first)
    also = tuple(dict.fromkeys(place_of(evidence_of(each, model, wrong)) for each in findings[1:]))
    return Culprit(
        graph=first.finding.probe.role,
        where=place_of(first),
        kind=cause.kind,
        what=cause.what,
        node=guilty_node(first),
        figures=_figures(first.finding.worst, first.finding.cases),
        also=also,
    )


def _figures(worst: Comparison, cases: Sequence[str]) -> dict[str, Any]:
    kept = ("case", "step", "index", "expected", "actual", "max_abs", "allowed", "relative")
    return {**{name: getattr(worst, name) for name in kept}, "cases": tuple(cases)}


def _weight(wrong: Mapping[str, WrongWeight], where: Callable[[WrongWeight], str]) -> Culprit:
    first, *others = wrong.values()
    also = tuple(each.name for each in others)
    return Culprit("", where(first), first.cause.kind, first.cause.what, also=also)


def _optimised(found: Miscompiled | None) -> Culprit | None:
    """Return the culprit for a graph that only ONNX Runtime's optimiser makes wrong."""
    if found is None:
        return None
    what = f"{found.worst.tensor} is right without ONNX Runtime's optimiser and wrong from its level {found.level!r} on"
    figures = _figures(found.worst, (found.worst.case,))
    return Culprit(found.role, "ONNX Runtime's optimiser", "optimiser", what, figures=figures)


def _rounded(bundle: Bundle, checkpoint: Checkpoint, cases: Sequence[Case], seed: int) -> Culprit | None:
    """Return the badly quantised matrix as a culprit, or None; see `badly_quantised`."""
    reference = Reference(Exact.of(checkpoint.model), bundle.manifest)
    calls = (call for case in cases for call in reference.replay(case, seed))
    found = roundings(bundle, checkpoint, linear_inputs(reference.model, calls))
    bad = badly_quantised(found)
    if bad is None:
        return None
    return Culprit(
        graph="",
        where=describe(checkpoint.outline, [bad.name]),
        kind="quantisation",
        what=describe_rounding(bad, found),
        figures={**asdict(bad), "form": bad.form.describe(), "errors": {each.name: each.error for each in found}},
    )
