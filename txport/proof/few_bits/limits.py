"""Limits of what few bits may cost: the user's, and outputs that are right no more often than by chance."""

from __future__ import annotations

from txport.bundles.bundle import Bundle
from txport.bundles.loss import AUTO_LOSS, AUTO_LOSS_OF_VECTORS, describe_loss
from txport.models.checkpoint import Checkpoint
from txport.models.facts import Facts
from txport.proof.few_bits.loss import measure_loss
from txport.proof.reports.report import Report
from txport.runtimes.base import GraphRuntime


def measure(
    report: Report, bundle: Bundle, checkpoint: Checkpoint, runtime: GraphRuntime, max_loss: float | None
) -> None:
    """Add to a report what few bits cost, and the limits that this exceeds."""
    loss = measure_loss(bundle, checkpoint, runtime)
    report.about["loss"] = loss.record
    cost = describe_loss(loss.record, bundle.manifest.precision)
    if loss.by_chance:
        report.beyond.append(f"the outputs agree with those in fp32 no better than by chance; {cost}")
    elif max_loss is not None and loss.record["share"] > max_loss:
        report.beyond.append(f"the loss {loss.record['share']:.4g} is above the limit {max_loss:g}; {cost}")


def usual_aim(facts: Facts) -> float:
    """Return the loss that `export --auto` aims at by default."""
    return AUTO_LOSS_OF_VECTORS if facts.ability == "embed" else AUTO_LOSS
