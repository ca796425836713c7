"""Fallback for a quantised bundle whose outputs cost too much: some matrices get wider forms, a few of them fp32."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from txport import runtimes
from txport.bundles.bundle import Bundle, seal
from txport.bundles.comparisons import VECTORS, describe_kept
from txport.bundles.forms import PLAIN, Form
from txport.bundles.manifest import MOST_IN_FP32
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.plan import first_names
from txport.errors import ParityError
from txport.models.facts import Facts
from txport.models.model import Model
from txport.proof.few_bits.costs import WORTH, Matrix, Option, choose_options, costs_of, measure_costs
from txport.proof.few_bits.loss import Loss, measure_loss, trial_of, usual_aim
from txport.proof.proven import write
from txport.runtimes.base import GraphRuntime
from txport.system.progress import Progress
from txport.system.terminal import percent

ATTEMPTS = 4  # at most so many bundles are written
LESS = 0.5  # at least so much smaller are the costs of the next bundle
NAMED = 3  # matrices that an error message lists


def fall_back(
    bundle: Bundle,
    checkpoint: Checkpoint,
    progress: Progress,
    *,
    max_loss: float | None,
    limit: float,
    **how: Any,
) -> Bundle:
    """Write a bundle that costs too much again, with wider forms, until it does not; nothing of it is proven.

    It costs too much if its loss is above `max_loss`, or, if this is None, if its divergence is above the usual aim.
    The forms are those that save most of what the matrices cost, for their bytes and time; the last attempt takes as
    many as may be. `limit` bounds the share of the weights in fp32. `how` are the arguments with which the bundle was
    written. Returns the last bundle, whose manifest records the forms, and the figures before. Raises `ParityError` if
    the loss remains above `max_loss`.
    """
    runtime = _load(bundle)
    size = bundle.size
    loss = before = measure_loss(bundle, checkpoint, runtime)
    if excess(loss, max_loss, checkpoint.facts) <= 1:
        return bundle
    trial = trial_of(bundle, checkpoint, runtime)
    del runtime  # it holds the weights
    matrices = measure_costs(bundle, checkpoint, trial)
    fits = partial(_fits, matrices, limit)
    worth = WORTH if max_loss is None else 0.0
    chosen = [each.options[0] for each in matrices]
    for attempt in range(ATTEMPTS):
        part = 0.0 if attempt == ATTEMPTS - 1 else min(LESS, 1 / excess(loss, max_loss, checkpoint.facts))
        wider = choose_options(matrices, part * sum(each.cost for each in chosen), fits, worth)
        if wider == chosen:
            break
        chosen = wider
        progress(f"{_figures(loss)}; {describe_kept(record_of(matrices, chosen, limit))}, and again")
        shutil.rmtree(bundle.path / "onnx")
        bundle = write(checkpoint, bundle.path, chosen=forms_of(checkpoint.outline, matrices, chosen), **how)
        loss = measure_loss(bundle, checkpoint, _load(bundle))
        if excess(loss, max_loss, checkpoint.facts) <= 1:
            break
    if max_loss is not None and loss.record["share"] > max_loss:
        raise ParityError(beyond(checkpoint, loss.record["share"], matrices, chosen, max_loss, limit))
    sizes = {"bytes": bundle.size, "bytes_before": size, "loss_before": before.record["share"]}
    gained = {"divergence": loss.divergence, "divergence_before": before.divergence}
    kept = {**record_of(matrices, chosen, limit), **sizes, **gained}
    return seal(bundle.path, dataclasses.replace(bundle.manifest, kept_in_fp32=kept))


def excess(loss: Loss, max_loss: float | None, facts: Facts) -> float:
    """Return by how many times the costs of the matrices are too large.

    The share of other tokens grows with the error, costs with its square.
    """
    if max_loss is None:
        return loss.divergence / usual_aim(facts)
    share = loss.record["share"]
    if share <= max_loss:
        return 0.0
    power = 1 if loss.record["measure"] == VECTORS else 2
    return float((share / max_loss) ** power) if max_loss else np.inf


def _figures(loss: Loss) -> str:
    return f"the loss is {loss.record['share']:.3g}, the divergence {loss.divergence:.2g}"


def _load(bundle: Bundle) -> GraphRuntime:
    runtime, provider = runtimes.home(bundle.manifest.target)
    return runtimes.load(runtime, bundle, provider=provider)


def _fits(matrices: Sequence[Matrix], limit: float, forms: Sequence[Form]) -> bool:
    """Return whether at most `limit` of the weights are in fp32, and at most half of the narrowest ones are wider."""
    before = [each.options[0].form.bits for each in matrices]
    narrow = [bits == min(before) for bits in before]
    wider = [is_narrow and new.bits > min(before) for is_narrow, new in zip(narrow, forms, strict=True)]
    return in_fp32(matrices, forms) <= limit and share_of(matrices, wider) <= MOST_IN_FP32 * share_of(matrices, narrow)


def in_fp32(matrices: Sequence[Matrix], forms: Sequence[Form]) -> float:
    """Return the share of the weights that is in fp32."""
    return share_of(matrices, [form == PLAIN for form in forms])


def share_of(matrices: Sequence[Matrix], are_chosen: Sequence[bool]) -> float:
    """Return the share of the weights that some matrices have."""
    chosen = sum(each.size for each, is_chosen in zip(matrices, are_chosen, strict=True) if is_chosen)
    return chosen / sum(each.size for each in matrices)


def record_of(matrices: Sequence[Matrix], chosen: Sequence[Option], limit: float) -> dict[str, Any]:
    """Return the manifest's record of the matrices in other forms than before."""
    changed = [(each, option.form) for each, option in zip(matrices, chosen, strict=True) if option != each.options[0]]
    return {
        "kept": [name for each, form in changed if form == PLAIN for name in each.weights],
        "wider": {name: form.describe() for each, form in changed if form != PLAIN for name in each.weights},
        "share": in_fp32(matrices, [option.form for option in chosen]),
        "limit": limit,
    }


def forms_of(model: Model, matrices: Sequence[Matrix], chosen: Sequence[Option]) -> dict[str, Form]:
    """Return the form of each weight that has another than before, by all of its names."""
    first = first_names(model)
    changed = {
        first[name]: option.form
        for each, option in zip(matrices, chosen, strict=True)
        if option != each.options[0]
        for name in each.weights
    }
    return {name: changed[each] for name, each in first.items() if each in changed}


def beyond(
    checkpoint: Checkpoint,
    loss: float,
    matrices: Sequence[Matrix],
    chosen: Sequence[Option],
    aim: float,
    limit: float,
) -> str:
    """Return the error message for a loss that remains too large, with a fix."""
    share = percent(in_fp32(matrices, [each.form for each in chosen]))
    worst = _name_costliest([(option.cost, each.name) for each, option in zip(matrices, chosen, strict=True)])
    return (
        f"the export of {checkpoint.name} loses {loss:.4g} with {share} of its weights in fp32, the limit being "
        f"{percent(limit)}, and the aim is {aim:g}; {worst}: export with precision='fp32', with a higher limit, "
        "auto_limit=SHARE, or with a higher aim, max_loss=SHARE"
    )


def costliest(bundle: Bundle, checkpoint: Checkpoint) -> str:
    """Return a clause that names the matrices that cost most."""
    return _name_costliest(costs_of(bundle, checkpoint, trial_of(bundle, checkpoint, _load(bundle))))


def _name_costliest(costs: Sequence[tuple[float, str]]) -> str:
    total = sum(cost for cost, _ in costs) or 1.0
    worst = sorted(costs, key=lambda each: (-each[0], each[1]))[:NAMED]
    return f"what costs most: {', '.join(f'{name} ({percent(cost / total)} of the cost)' for cost, name in worst)}"
