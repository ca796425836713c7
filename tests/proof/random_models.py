"""Random small models, to see that parity raises no false alarm: `python -m tests.proof.random_models --count 300`.

Each number stands for one configuration, kind of weights, target and precision, the same in every run, so that a range
of them can be done in parts and a failure repeated by itself (`--first 17 --count 1`). `--instruction-sets` gives each
of the instruction sets that this processor's libraries can be told to do without a part of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch.nn import functional as F

from tests.instruction_sets import SETS, describe_processor
from txport.bundles.bundle import seal
from txport.bundles.manifest import OFFERED
from txport.errors import ParityError
from txport.exporters.export import DEFAULT_OPSET, export_graphs
from txport.models.architectures.transformer import CHOICES, Transformer, TransformerConfig
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.proof.parity.measures import Comparison
from txport.proof.proven import prove
from txport.proof.reports.report import Report

PLANS = [(target, precision) for target, precisions in OFFERED.items() for precision in precisions]

WIDTH = 16  # of a model whose weights are changed by 0.3 each
STEPS, ROWS, LENGTH = 400, 32, 10  # of training


@dataclass(frozen=True)
class Plan:
    """One model and what it is exported to."""

    number: int
    config: TransformerConfig
    weights: str
    target: str
    precision: str


def draw_plan(number: int) -> Plan:
    """Every choice of the configuration, sizes from the smallest, and each target, precision and kind of weights."""
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
    weights = list(WEIGHTS)[number // len(PLANS) % len(WEIGHTS)]
    return Plan(number, config, weights, target, precision)


def plain(model: Transformer) -> None:
    """Weights, biases and norms that count, and whose gain does not grow with the width, as it does not in training."""
    for parameter in model.parameters():
        size = parameter.shape[-1] if parameter.dim() > 1 else WIDTH
        parameter.add_(0.3 * (WIDTH / size) ** 0.5 * torch.randn(parameter.shape))


def rescaled(model: Transformer, factor: float) -> None:
    """Keys, values, logits and, with norms before the sublayers, the residual stream so many times as large.

    Queries, outputs and norms undo it for all that follows.
    """
    plain(model)
    for name, module in model.named_modules():
        part, power = name.rpartition(".")[2], 0
        if "attention" in name:
            power = {"key": 1, "query": -1, "value": 1, "output": -1}.get(part, 0)
        if power and hasattr(module, "weight"):
            module.weight.mul_(factor**power)
            if part != "output":
                module.bias.mul_(factor**power)
    if model.config.norm == "pre":
        stream = ("attention.output.weight", "attention.output.bias", "outer.weight", "outer.bias", "positions")
        for name, parameter in model.named_parameters():
            if name.endswith(stream) or "embedding" in name:
                parameter.mul_(factor)


def large(model: Transformer) -> None:
    """Keys of up to thousands."""
    rescaled(model, 1000.0)


def small(model: Transformer) -> None:
    """Keys of thousandths."""
    rescaled(model, 1e-3)


def outliers(model: Transformer) -> None:
    """A few channels of the residual stream far from the rest, as in large trained models."""
    plain(model)
    chosen = torch.randperm(model.config.d_model)[: max(1, model.config.d_model // 16)]
    for name, parameter in model.named_parameters():
        if name.removesuffix(".weight").removesuffix(".bias").endswith(("attention.output", "outer")):
            parameter[chosen] *= 40


def decaying(model: Transformer) -> None:
    """Matrices whose singular values fall as those of trained ones do, some far above the rest."""
    plain(model)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            left, values, right = torch.linalg.svd(parameter, full_matrices=False)
            fall = torch.arange(1, len(values) + 1) ** -0.8
            fall *= values.square().sum().sqrt() / fall.square().sum().sqrt()
            parameter.copy_(left @ torch.diag(fall) @ right)


def trained(model: Transformer) -> None:
    """A few hundred steps on a small task: to say the source backwards."""
    with torch.enable_grad():
        train(model.train(), STEPS)
    model.eval()


def train(model: Transformer, steps: int) -> float:
    """Teach a model to say its source backwards; -> the last loss."""
    config, loss = model.config, torch.tensor(0.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    length = max(1, min(LENGTH, config.max_length - 1))
    low, high = 3, min(config.source_vocab_size, config.target_vocab_size)
    for _ in range(steps):
        lengths = torch.randint(1, length + 1, (ROWS,))
        words = torch.randint(low, max(high, low + 1), (ROWS, length)).clamp(max=high - 1)
        places = torch.arange(length)
        back = (lengths[:, None] - 1 - places).clamp(min=0)
        inside = places < lengths[:, None]
        targets = torch.where(inside, words.gather(1, back), config.eos_id)
        given = torch.cat([torch.full((ROWS, 1), config.bos_id), targets[:, :-1]], 1)
        logits = model(torch.where(inside, words, config.pad_id), lengths, given)
        counted = torch.arange(length) <= lengths[:, None]
        loss = F.cross_entropy(logits[counted], targets[counted])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return float(loss.detach())


WEIGHTS: dict[str, Callable[[Transformer], None]] = {
    "plain": plain,
    "large": large,
    "small": small,
    "outliers": outliers,
    "decaying": decaying,
    "trained": trained,
}


def random_model(config: TransformerConfig, weights: str, seed: int) -> Transformer:
    """A seeded model with one kind of weights."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Transformer(config).eval()
        WEIGHTS[weights](model)
    return model


def examine(plan: Plan, folder: Path) -> Report:
    """Export a model without proof, and prove it, to the goldens; `ParityError` if these do not hold."""
    save_checkpoint(folder / "model", random_model(plan.config, plan.weights, plan.number))
    checkpoint = load_checkpoint(str(folder / "model"))
    place = folder / "bundle"
    place.mkdir()
    how = {"target": plan.target, "precision": plan.precision, "opset": DEFAULT_OPSET, "rows": None}
    bundle = seal(place, export_graphs(checkpoint, place, **how))
    return prove(bundle, checkpoint, seed=plan.number, cases=1)[1]


def judge(plan: Plan) -> tuple[bool, str]:
    """Whether a sound export raises no alarm, and what to say of it."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = examine(plan, Path(folder))
    except ParityError as error:
        return False, f"fail: {error}"
    summary = report.summary()
    ties = f"{report.near_ties} near-ties in {summary['rows_searched']} rows"
    share = f"{100 * report.worst.badness:.0f} % of what is allowed"
    return is_right(report), f"{report.verdict}: {share}, {ties}; {report.describe_worst()}"


def is_right(report: Report) -> bool:
    """Whether it passes, or all that fails is what PyTorch itself gets as wrong with so few bits: no false alarm."""
    unsuited = any(isinstance(each, Comparison) and each.is_unsuited for each in report.everything())
    failed = [each for each in report.everything() if not each.passed]
    return all(each.is_unsuited if isinstance(each, Comparison) else unsuited for each in failed)


@click.command(help=__doc__)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True)
@click.option("--count", type=click.IntRange(1), default=300, show_default=True)
@click.option("--step", type=click.IntRange(1), default=1, show_default=True, help="Take every so manieth.")
@click.option("--instruction-sets", "spread", is_flag=True, help="A part of them under each instruction set.")
def main(first: int, count: int, step: int, spread: bool) -> None:
    """Print a line for each model, and how many raised an alarm."""
    if spread:
        parts = {name: range(first + at, first + count, len(SETS)) for at, name in enumerate(SETS)}
        codes = [run_part(name, part) for name, part in parts.items() if part]
        sys.exit(any(codes))
    click.echo(describe_processor())
    alarms = 0
    numbers = range(first, first + count, step)
    for number in numbers:
        plan = draw_plan(number)
        passed, what = judge(plan)
        alarms += not passed
        click.echo(f"{number} {plan.target} {plan.precision} {plan.weights} {what}")
    click.echo(f"{alarms} false alarms in {len(numbers)} sound exports")
    sys.exit(alarms > 0)


def run_part(name: str, part: range) -> int:
    """Some of the models, in a process that does without some instruction sets; -> 0 if it ends well."""
    click.echo(f"instruction set: {name} {SETS[name]}")
    numbers = ["--first", str(part.start), "--count", str(part.stop - part.start), "--step", str(part.step)]
    command = [sys.executable, "-m", "tests.proof.random_models", *numbers]
    return subprocess.run(command, env={**os.environ, **SETS[name]}, check=False).returncode


if __name__ == "__main__":
    main()
