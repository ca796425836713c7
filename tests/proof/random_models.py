"""Random small models, to see that parity raises no false alarm: `python -m tests.proof.random_models --count 200`.

Each number stands for one configuration, weights, target and precision, the same in every run, so that a range of them
can be done in parts and a failure repeated by itself (`--first 17 --count 1`).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch

from txport.exporters.export import DEFAULT_OPSET, export_graphs
from txport.models.bundle import OFFERED, seal
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import CHOICES, TransformerConfig
from txport.models.errors import ParityError
from txport.models.transformer import Transformer
from txport.proof.proven import prove
from txport.proof.report import Report

PLANS = [(target, precision) for target, precisions in OFFERED.items() for precision in precisions]

WIDTH = 16  # of a model whose weights are changed by 0.3 each


@dataclass(frozen=True)
class Plan:
    """One model and what it is exported to."""

    number: int
    config: TransformerConfig
    target: str
    precision: str


def draw_plan(number: int) -> Plan:
    """Every choice of the configuration, sizes from the smallest, and each target and precision in turn."""
    rng = np.random.default_rng((2017, number))
    target, precision = PLANS[number % len(PLANS)]

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    heads = pick(1, 2, 3, 4)
    head_size = pick(8, 16, 24) if target == "cpu" else pick(2, 4, 6, 8, 16)  # fused operators take multiples of 8
    if heads * head_size < 8:  # to norm two or four numbers is to take their signs, which no rounding leaves alone
        heads, head_size = 2, 4
    tied = str(rng.choice(CHOICES["tied"]))
    vocabulary = pick(4, 11, 40, 300)
    config = TransformerConfig(
        source_vocab_size=vocabulary if tied == "all" else pick(4, 17, 90),
        target_vocab_size=vocabulary,
        d_model=heads * head_size,
        heads=heads,
        feed_forward=pick(8, 24, 48, 96),
        encoder_layers=pick(1, 1, 2, 3),
        decoder_layers=pick(1, 1, 2, 3),
        max_length=pick(1, 2, 5, 16, 40, 70),
        norm=str(rng.choice(CHOICES["norm"])),
        norm_epsilon=float(rng.choice([1e-6, 1e-5, 1e-3])),
        positions=str(rng.choice(CHOICES["positions"])),
        activation=str(rng.choice(CHOICES["activation"])),
        tied=tied,
        scale_embedding=bool(rng.integers(2)),
    )
    return Plan(number, config, target, precision)


def random_model(plan: Plan) -> Transformer:
    """Weights, biases and norms that count, and whose gain does not grow with the width, as it does not in training.

    With a gain beyond that, attention gets so sharp that fp32 itself is off by more than parity allows.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(plan.number)
        model = Transformer(plan.config).eval()
        for parameter in model.parameters():
            size = parameter.shape[-1] if parameter.dim() > 1 else WIDTH
            parameter.add_(0.3 * (WIDTH / size) ** 0.5 * torch.randn(parameter.shape))
    return model


def examine(plan: Plan, folder: Path) -> Report:
    """Export a model without proof, and prove it, to the goldens; `ParityError` if these do not hold."""
    save_checkpoint(folder / "model", random_model(plan))
    checkpoint = load_checkpoint(str(folder / "model"))
    place = folder / "bundle"
    place.mkdir()
    how = {"target": plan.target, "precision": plan.precision, "opset": DEFAULT_OPSET, "rows": None}
    bundle = seal(place, export_graphs(checkpoint, place, **how))
    return prove(bundle, checkpoint, seed=plan.number, cases=1)[1]


@click.command(help=__doc__)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True)
@click.option("--count", type=click.IntRange(1), default=200, show_default=True)
def main(first: int, count: int) -> None:
    """Print a line for each model, and how many raised an alarm."""
    alarms = 0
    for number in range(first, first + count):
        plan = draw_plan(number)
        try:
            with tempfile.TemporaryDirectory() as folder:
                report = examine(plan, Path(folder))
        except ParityError as error:
            alarms += 1
            click.echo(f"{number} {plan.target} {plan.precision} fail: {error}")
            continue
        alarms += not report.passed
        summary = report.summary()
        ties = f"{summary['near_ties']} near-ties in {summary['rows_searched']} rows"
        share = f"{100 * report.worst.badness:.0f} % of what is allowed"
        click.echo(
            f"{number} {plan.target} {plan.precision} {report.verdict}: {share}, {ties}; {report.describe_worst()}"
        )
    click.echo(f"{alarms} false alarms in {count} sound exports")
    sys.exit(alarms > 0)


if __name__ == "__main__":
    main()
