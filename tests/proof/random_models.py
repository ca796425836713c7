"""Random small models, to see that parity raises no false alarm: `python -m tests.proof.random_models --count 500`.

Each number stands for one architecture, configuration, kind of weights, target and precision, the same in every run, so
that a range of them can be done in parts and a failure repeated by itself (`--first 17 --count 1`). Configurations are
drawn by the architecture itself: a new one takes part without a word here; `--architecture` takes only the numbers that
stand for one. With `--target cuda`, numbers stand for other models, of that target alone; without it, none is.
`--instruction-sets` gives each of the instruction sets that this processor's libraries can be told to do without a part
of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.instruction_sets import SETS, describe_processor
from txport.bundles.bundle import Bundle, seal
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.errors import ParityError, RunError, UnsupportedError
from txport.exporters.export import export_graphs
from txport.exporters.exporter import exporter_of
from txport.models import architecture
from txport.models.audio import Features
from txport.models.config import Config
from txport.models.facts import LENGTH, Task
from txport.models.model import Model
from txport.models.parts import Attention, DotProduct, Embedding, Linear, Residual, SoftCap
from txport.models.stacks import DecoderOnly
from txport.proof.overflow import find_overflow
from txport.proof.proven import prove
from txport.proof.reports.report import Report
from txport.targets import TARGETS

PLANS = [(target, precision) for target in ("portable", "cpu") for precision in TARGETS[target].precisions]
ON_CUDA = [("cuda", precision) for precision in TARGETS["cuda"].precisions]
Kinds = list[tuple[str, str]]  # targets and precisions

WIDTH = 16  # of a model whose weights are changed by 0.3 each
STEPS, RATE, ROWS, LONGEST = 400, 2e-3, 32, 10  # of training
REFUSED = "refused"
BY_CHANCE = "no better than by chance"
TOO_SMALL = "needs matrices of whole blocks"  # what the cuda target says of a model that it can't quantise
BEYOND = "beyond the range of fp16"
TRIES = 100  # to draw a config that a target can run


@dataclass(frozen=True)
class Plan:
    """One model and what it is exported to."""

    number: int
    config: Config
    weights: str
    target: str
    precision: str


def draw_plan(number: int, plans: Kinds = PLANS) -> Plan:
    """Each target and precision in turn, within that each architecture, and within that each kind of weights."""
    rng = np.random.default_rng((2017, number))
    name = name_of(number, plans)
    target, precision = plans[number % len(plans)]
    weights = list(WEIGHTS)[number // (len(plans) * len(architecture.names())) % len(WEIGHTS)]
    return Plan(number, draw_config(rng, name, target), weights, target, precision)


def name_of(number: int, plans: Kinds = PLANS) -> str:
    """The architecture that a number stands for."""
    names = architecture.names()
    return names[number // len(plans) % len(names)]


def draw_config(rng: np.random.Generator, name: str, target: str) -> Config:
    """A config of an architecture that the target does not refuse."""
    for _ in range(TRIES):
        config = architecture.find(name).draw(rng)
        with torch.device("meta"):
            model = architecture.of(config).build(config)
        try:
            exporter_of(target).require(model)
        except UnsupportedError:
            continue
        return config
    raise UnsupportedError(f"none of {TRIES} configs of {name} suits the {target} target")


def plain(model: Model) -> None:
    """Weights, biases and norms that count, and whose gain does not grow with the width, as it does not in training."""
    for parameter in model.parameters():
        size = parameter.shape[-1] if parameter.dim() > 1 else WIDTH
        parameter.add_(0.3 * (WIDTH / size) ** 0.5 * torch.randn(parameter.shape))


def rescaled(model: Model, factor: float) -> None:
    """Keys, values, logits and, with norms before the sublayers, the residual stream so many times as large.

    Queries, outputs and norms undo it for all that follows. Without norms, a feed-forward may leave fp32's range.
    """
    plain(model)
    for part in (each for each in model.modules() if isinstance(each, Attention)):
        powers = {part.value: 1, part.output: -1}
        if isinstance(part.core, DotProduct) and part.query_norm is None:
            powers |= {part.key: 1, part.query: -1}
        for linear, power in powers.items():
            linear.weight.mul_(factor**power)
            if linear is not part.output and linear.bias is not None:
                linear.bias.mul_(factor**power)
    residuals = [each.first for each in model.modules() if isinstance(each, Residual)]
    if residuals and all(residuals) and getattr(model.config, "input_norm", True):
        stream = [each for part in model.modules() if isinstance(part, Embedding) for each in part.parameters()]
        norms = [each.result_norm for each in model.modules() if isinstance(each, Residual)]
        last: Iterable[nn.Module] = [each for each in norms if each is not None] or written_to_stream(model)
        stream += [each for part in last for each in part.parameters()]
        for parameter in {id(each): each for each in stream}.values():
            parameter.mul_(factor)
        capped = isinstance(model, DecoderOnly) and isinstance(model.logit_cap, SoftCap)
        if capped and model.projection.weight is model.target_embedding.tokens.weight:
            model.decoder_norm.weight.div_(factor)  # of all logits far beyond it, a cap would make one


def written_to_stream(model: Model) -> Iterator[Linear]:
    """The linear maps whose products are added to the residual stream."""
    tags = ("attention_out", "cross_attention_out", "ffn_out")
    yield from (each for each in model.modules() if isinstance(each, Linear) and each.tag in tags)


def large(model: Model) -> None:
    """Keys of up to thousands."""
    rescaled(model, 1000.0)


def small(model: Model) -> None:
    """Keys of thousandths."""
    rescaled(model, 1e-3)


def outliers(model: Model) -> None:
    """A few channels of the residual stream far from the rest, as in large trained models."""
    plain(model)
    channels = next(written_to_stream(model)).out_features  # states may be narrower
    chosen = torch.randperm(channels)[: max(1, channels // 16)]
    for linear in written_to_stream(model):
        for parameter in linear.parameters():
            parameter[chosen] *= 40


def decaying(model: Model) -> None:
    """Matrices whose singular values fall as those of trained ones do, some far above the rest."""
    plain(model)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            left, values, right = torch.linalg.svd(parameter, full_matrices=False)
            fall = torch.arange(1, len(values) + 1) ** -0.8
            fall *= values.square().sum().sqrt() / fall.square().sum().sqrt()
            parameter.copy_(left @ torch.diag(fall) @ right)


def trained(model: Model) -> None:
    """A few hundred steps on a small task."""
    with torch.enable_grad():
        train(model.train(), STEPS)
    model.eval()


def train(model: Model, steps: int) -> float:
    """Teach a model its task; -> the last loss."""
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = LOSSES[model.facts.task](model)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return float(loss.detach())


def draw_words(model: Model, length: int) -> Tensor:
    """Tokens that are not special, if there are others: (ROWS, length)."""
    size = min(model.facts.reads.size, model.facts.writes.size)
    special = {*model.facts.vocabulary.special, *model.facts.writes.special}
    words = [token for token in range(size) if token not in special] or [size - 1]
    return torch.tensor(words)[torch.randint(len(words), (ROWS, length))]


def say_backwards(model: Model) -> Tensor:
    """The loss of a target that is the source backwards."""
    reads = model.facts.reads
    writes = model.facts.writes
    length = max(1, min(LONGEST, reads.longest - 1, writes.longest - 1))
    words = draw_words(model, length)
    lengths = torch.randint(1, length + 1, (ROWS,))
    places = torch.arange(length)
    inside = places < lengths[:, None]
    back = words.gather(1, (lengths[:, None] - 1 - places).clamp(min=0))
    targets = torch.where(inside, back, writes.end)
    given = torch.cat([torch.full((ROWS, 1), cast(int, writes.start)), targets[:, :-1]], 1)
    if isinstance(reads, Features):  # one bin for each word, in the frame of its place
        told = F.one_hot(torch.where(inside, words, 0), reads.size).float() * inside[..., None]
        sound = F.pad(told.transpose(1, 2), (0, reads.frames - length))
        logits = model(sound, torch.full((ROWS,), reads.longest), given)
    else:
        logits = model(torch.where(inside, words, reads.pad), lengths, given)
    counted = places <= lengths[:, None]
    return F.cross_entropy(logits[counted], targets[counted])


def go_on_backwards(model: Model) -> Tensor:
    """The loss of a text that goes on with its first half backwards."""
    longest = model.facts.writes.longest
    half = draw_words(model, max(1, min(LONGEST, longest // 2)))
    tokens = torch.cat([half, half.flip(1)], 1)[:, : longest + 1]
    given = tokens[:, :-1]
    mask = torch.ones_like(tokens[:, :-1]).bool()
    places = torch.arange(given.shape[1]).expand(given.shape)
    logits = model.extend(given, mask, places, model.empty_state(ROWS)).logits
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def classify(model: Model) -> Tensor:
    """The loss of an encoder's first output, which is to tell a token's remainder: of each, or of the first."""
    words = draw_words(model, min(LONGEST, model.facts.reads.longest))
    found = model.infer(words, torch.ones_like(words).bool())[0]
    remainders = (words if LENGTH in model.facts.outputs[0].dims else words[:, 0]) % found.shape[-1]
    return F.cross_entropy(found.flatten(0, -2), remainders.flatten())


LOSSES: dict[Task, Callable[[Model], Tensor]] = {
    "seq2seq": say_backwards,
    "causal": go_on_backwards,
    "encode": classify,
}
WEIGHTS: dict[str, Callable[[Model], None]] = {
    "plain": plain,
    "large": large,
    "small": small,
    "outliers": outliers,
    "decaying": decaying,
    "trained": trained,
}


def random_model(config: Config, weights: str, seed: int) -> Model:
    """A seeded model with one kind of weights."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = architecture.of(config).build(config).eval()
        WEIGHTS[weights](model)
    return model


def examine(plan: Plan, folder: Path) -> Report:
    """Export a model without proof, and prove it, to the goldens; `ParityError` if these do not hold."""
    save_checkpoint(folder / "model", random_model(plan.config, plan.weights, plan.number))
    checkpoint = load_checkpoint(str(folder / "model"))
    place = folder / "bundle"
    place.mkdir()
    how = {"target": plan.target, "precision": plan.precision, "rows": None}
    bundle = seal(place, export_graphs(checkpoint, place, **how))
    try:
        report = prove(bundle, checkpoint, seed=plan.number, cases=1)[1]
    except (ParityError, RunError):
        refuse_overflow(bundle, checkpoint)
        raise
    if not report.passed:
        refuse_overflow(bundle, checkpoint)
    return report


def refuse_overflow(bundle: Bundle, checkpoint: Checkpoint) -> None:
    """Raise `UnsupportedError` for a model that leaves the range of fp16 in PyTorch, too: its alarm is right."""
    if beyond := find_overflow(bundle, checkpoint):
        raise UnsupportedError(beyond)


def judge(plan: Plan) -> tuple[bool, str]:
    """Whether a sound export raises no alarm, and what to say of it; few bits may be too few for a model."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = examine(plan, Path(folder))
    except ParityError as error:
        return False, f"fail: {error}"
    except UnsupportedError as error:
        if TOO_SMALL not in str(error) and BEYOND not in str(error):
            raise
        return True, f"{REFUSED}: {error}"
    summary = report.summary()
    ties = f"{report.near_ties} near-ties in {summary['rows_searched']} rows"
    share = f"{100 * report.worst.badness:.0f} % of what is allowed"
    worst = report.describe_worst()
    if BY_CHANCE in worst and report.worst.badness <= 1:  # the graphs are right, and the model is useless in few bits
        return True, f"{REFUSED}: {worst}"
    return report.passed, f"{report.verdict}: {share}, {ties}; {worst}"


@click.command(help=__doc__)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True)
@click.option("--count", type=click.IntRange(1), default=500, show_default=True)
@click.option("--architecture", "only", type=click.Choice(architecture.names()), help="Models of this one alone.")
@click.option("--step", type=click.IntRange(1), default=1, show_default=True, help="Take every so manieth.")
@click.option("--target", type=click.Choice(["cuda"]), help="Models of this target alone.")
@click.option("--instruction-sets", "spread", is_flag=True, help="A part of them under each instruction set.")
def main(first: int, count: int, only: str | None, step: int, target: str | None, spread: bool) -> None:
    """Print a line for each model, and how many raised an alarm."""
    if spread:
        parts = {name: range(first + at, first + count, len(SETS)) for at, name in enumerate(SETS)}
        given = {"--architecture": only, "--target": target}
        options = [word for flag, value in given.items() if value for word in (flag, value)]
        codes = [run_part(name, part, *options) for name, part in parts.items() if part]
        sys.exit(any(codes))
    click.echo(describe_processor())
    alarms = 0
    refused = 0
    plans = ON_CUDA if target else PLANS
    numbers = [number for number in range(first, first + count, step) if only in (None, name_of(number, plans))]
    for number in numbers:
        plan = draw_plan(number, plans)
        passed, what = judge(plan)
        alarms += not passed
        refused += what.startswith(REFUSED)
        name = architecture.name_of(plan.config)
        click.echo(f"{number} {name} {plan.target} {plan.precision} {plan.weights} {what}")
    click.echo(f"{alarms} false alarms in {len(numbers) - refused} sound exports; {refused} refused")
    sys.exit(alarms > 0)


def run_part(name: str, part: range, *options: str) -> int:
    """Some of the models, in a process that does without some instruction sets; -> 0 if it ends well."""
    click.echo(f"instruction set: {name} {SETS[name]}")
    numbers = ["--first", str(part.start), "--count", str(part.stop - part.start), "--step", str(part.step)]
    command = [sys.executable, "-m", "tests.proof.random_models", *numbers, *options]
    return subprocess.run(command, env={**os.environ, **SETS[name]}, check=False).returncode


if __name__ == "__main__":
    main()
