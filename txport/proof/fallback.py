"""Fallback for a quantised bundle whose outputs cost too much: the matrices with the largest errors stay in fp32."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from txport import runtimes
from txport.bundles.bundle import Bundle, seal
from txport.bundles.forms import PLAIN
from txport.errors import ParityError
from txport.exporters.weights import holding
from txport.models.checkpoint import Checkpoint
from txport.models.model import Model
from txport.proof.bisect.matrices import linear_inputs, roundings
from txport.proof.bisect.probe import Observation, Probe, observations
from txport.proof.bisect.taps import OUT
from txport.proof.few_bits.loss import measure_loss
from txport.proof.parity.check import cases_of
from txport.proof.parity.exact import Exact
from txport.proof.parity.measures import compare
from txport.proof.parity.replay import Reference
from txport.proof.parity.weights import first_names
from txport.proof.proven import prove, write
from txport.proof.reports.report import Report
from txport.system.terminal import percent

Errors = dict[str, float]

NAMED = 3  # matrices that an error message lists


def fall_back_to_fp32(
    bundle: Bundle,
    report: Report,
    checkpoint: Checkpoint,
    progress: Callable[[str], None],
    *,
    aim: float,
    limit: float,
    **how: Any,
) -> tuple[Bundle, Report]:
    """Write a bundle that costs too much again with more matrices in fp32, until its loss is at most `aim`.

    The first attempt keeps one matrix in fp32; each further attempt at most doubles their number. `how` are the
    arguments with which the bundle was written. Returns the first bundle that costs no more, with its report; the
    manifest records the kept matrices, their cost in bytes and the loss before. Raises `ParityError` before the share
    of weights in fp32 would exceed `limit`.
    """
    size = bundle.size
    before = report.about["loss"]["share"]
    loss = before
    kept = list[str]()
    matrices = [stored.weights for stored in bundle.manifest.quantization.values()]
    while not kept or loss > aim:
        worst = [name for name in worst_matrices(bundle, checkpoint) if name not in kept]
        wanted = [kept + worst[: count + 1] for count in range(max(1, len(kept)))] if worst else []
        fitting = [each for each in wanted if kept_share(checkpoint.outline, matrices, each) <= limit]
        if not fitting:
            raise ParityError(beyond(checkpoint, loss, matrices, kept, worst, aim, limit))
        more = fitting[-1][len(kept) :]
        kept += more
        progress(f"the loss is {loss:.3g}; {', '.join(more)} in fp32, and again")
        shutil.rmtree(bundle.path / "onnx")
        bundle = write(checkpoint, bundle.path, keep=aliases(checkpoint.outline, kept), **how)
        runtime, provider = runtimes.home(bundle.manifest.target)
        loss = measure_loss(bundle, checkpoint, runtimes.load(runtime, bundle, provider=provider)).record["share"]
    bundle, report = prove(bundle, checkpoint)
    share = kept_share(checkpoint.outline, matrices, kept)
    record = {"kept": kept, "share": share, "limit": limit, "bytes": bundle.size, "bytes_before": size}
    sealed = seal(bundle.path, dataclasses.replace(bundle.manifest, kept_in_fp32={**record, "loss_before": before}))
    return dataclasses.replace(sealed, measured=bundle.measured), report


def kept_share(model: Model, matrices: Iterable[Sequence[str]], kept: Iterable[str]) -> float:
    """Return the share of the weights in `matrices` that stays in fp32.

    Each item of `matrices` lists weights that are packed together. If one of them is in `kept`, all of them stay in
    fp32. A tied tensor counts once.
    """
    first = first_names(model)
    parameters = dict(model.named_parameters())
    packs = [{first[name] for name in names} for names in matrices]
    names = {first[name] for name in kept}
    every, plain = (
        sum(parameters[name].numel() for name in set[str]().union(*some))
        for some in (packs, [pack for pack in packs if pack & names])
    )
    return plain / every


def beyond(
    checkpoint: Checkpoint,
    loss: float,
    matrices: Iterable[Sequence[str]],
    kept: list[str],
    worst: list[str],
    aim: float,
    limit: float,
) -> str:
    """Return the error message for a fallback that would exceed `limit`, with a fix."""
    now = percent(kept_share(checkpoint.outline, matrices, kept))
    what = f"the export of {checkpoint.name} loses {loss:.4g} with {now} of its weights in fp32, the aim is {aim:g}"
    fix = "export with precision='fp32', with a higher limit, auto_limit=SHARE, or with a higher aim, max_loss=SHARE"
    if not worst:
        return f"{what}; no more can be kept: {fix}"
    others = f" (then {', '.join(worst[1:NAMED])})" if worst[1:] else ""
    then = percent(kept_share(checkpoint.outline, matrices, [*kept, worst[0]]))
    return (
        f"{what}; keeping what errs most, {worst[0]}{others}, would make it {then}, above the limit "
        f"of {percent(limit)}: {fix}"
    )


def costliest(bundle: Bundle, checkpoint: Checkpoint) -> str:
    """Return a clause that names the matrices with the largest errors."""
    return f"what errs most: {', '.join(worst_matrices(bundle, checkpoint)[:NAMED])}"


def aliases(model: Model, names: Iterable[str]) -> set[str]:
    """Return all names of the given weights; tied weights have several."""
    first = first_names(model)
    wanted = {first[name] for name in names}
    return {name for name, each in first.items() if each in wanted}


def worst_matrices(bundle: Bundle, checkpoint: Checkpoint, seed: int = 0) -> list[str]:
    """Return the names of the quantised weights of a bundle, ordered by error, largest first.

    The error combines two relative errors of the matrix product, as a root sum of squares. One comes from rounding the
    weights, computed with PyTorch's inputs. The other comes from rounding the activations, measured in the graph.
    """
    cases, _ = cases_of(bundle, checkpoint, seed)
    manifest = bundle.manifest
    exact = Reference(Exact.of(checkpoint.model), manifest)
    calls = (call for case in cases for call in exact.replay(case, seed))
    errors = {each.name: each.error for each in roundings(bundle, checkpoint, linear_inputs(exact.model, calls))}
    held = Reference(Exact.of(holding(bundle, checkpoint).model), manifest)
    seen = activation_errors(observations(bundle, held, cases, seed))
    quantised = {name for name, form in manifest.forms.items() if form != PLAIN}
    total = {name: float(np.hypot(errors.get(name, 0.0), seen.get(name, 0.0))) for name in quantised}
    return sorted(total, key=lambda name: (-np.nan_to_num(total[name], nan=np.inf), name))


def activation_errors(pairs: Iterable[tuple[Probe, Observation | ParityError]]) -> Errors:
    """Return the largest relative error of each matrix product over all cases, by weight; inputs are PyTorch's."""
    found: Errors = {}
    for _probe, observation in pairs:
        if isinstance(observation, ParityError):
            raise observation
        for tap in (tap for tap in observation.truths if tap.form is not None and tap.side == OUT):
            error = compare("", "", 0, tap.name, observation.truths[tap], observation.seen[tap], np.inf).relative
            for name in (f"{module}.weight" for module in tap.modules):
                found[name] = float(np.fmax(found.get(name, 0.0), error))
    return found
