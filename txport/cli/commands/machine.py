"""`txport bench`, `txport tune` and `txport doctor`: speed and installation of this machine."""

from __future__ import annotations

import math
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txport.bench.plan import GOALS, Plan, settings
from txport.bundles.manifest import PRECISIONS
from txport.cli import completion, textio
from txport.cli.guard import echo, progress
from txport.cli.options import (
    checkpoint_option,
    is_given,
    max_loss_option,
    provider_option,
    threads_option,
    trust_option,
    variant_option,
)
from txport.cli.outputs import INPUT, OUTPUT, OUTPUT_FOLDER, command, in_flags
from txport.errors import TextError, UnavailableError, UnsupportedError
from txport.proof.metrics import METRICS
from txport.runtimes import MODULES
from txport.system.files import require_folder
from txport.targets import TARGETS

if TYPE_CHECKING:
    from txport.bench.measure import Inputs
    from txport.bundles.bundle import Bundle

F = TypeVar("F", bound=Callable[..., object])


class Percent(click.FloatRange):
    """A percentage, with or without the sign."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise an error of usage unless it is finite and not negative."""
        return super().convert(str(value).removesuffix("%"), param, ctx)  # type: ignore[arg-type]  # click parses it


def plan_options(command: F) -> F:
    """Add an option for each setting that `txport.bench.plan` declares; a setting of several values is repeatable."""
    for name, default, setting in reversed(list(settings())):
        several = isinstance(default, tuple)
        kind: Any = click.Choice(setting.choices) if setting.choices else None
        of = type(default[0] if several else default)
        kind = kind or (click.IntRange(int(setting.least or 0)) if of is int else click.FloatRange(setting.least))
        quick = "" if setting.quick is None else f" With --quick {setting.quick:g}."
        text = f"{setting.help}{quick}{'  [repeatable]' if several else ''}"
        add = click.option(f"--{name}", type=kind, multiple=several, default=default, show_default=True, help=text)
        command = add(command)
    return command


@command()
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, shell_complete=completion.models)
@checkpoint_option("The checkpoint of the bundles, unless it is included in txport.")
@trust_option
@variant_option
@click.option(
    "--runtime",
    "names",
    type=click.Choice(list(MODULES)),
    multiple=True,
    default=("torch", "ort"),
    show_default=True,
    help="Measure this runtime.  [repeatable]",
)
@provider_option
@threads_option
@click.option(
    "--target",
    "targets",
    type=click.Choice(list(TARGETS)),
    multiple=True,
    default=("portable",),
    show_default=True,
    help="Target of the export, if BUNDLE is the name of a checkpoint.  [repeatable]",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    help="Precision of the export, if BUNDLE is the name of a checkpoint.  [repeatable]",
)
@plan_options
@click.option("--quick", is_flag=True, help="Measure less, in under a minute for a small model.")
@click.option(
    "--input",
    "texts",
    type=INPUT,
    help="Lines of TEXT, or of TEXT, a tab and TARGET: measure single, offline and quality on them.  [default: the"
    " samples of the checkpoint, or random tokens]",
)
@click.option(
    "--metric",
    type=click.Choice(list(METRICS)),
    default="exact",
    show_default=True,
    help="Score of the answers for the targets of --input; exact is the error rate.",
)
@click.option(
    "--report",
    "reports",
    type=OUTPUT,
    multiple=True,
    help="Write everything: .html a page with plots, .md Markdown, .csv a row a figure, others JSON.  [repeatable]",
)
@click.option(
    "--compare",
    type=INPUT,
    help="An older report as JSON: exit 1 if a phase became slower, 3 if the machine is too busy to tell.",
)
@click.option(
    "--max-regression",
    type=Percent(0, math.inf, max_open=True),
    default=10.0,
    show_default=True,
    help="Allowed slow-down, in percent.",
)
def bench(
    bundles: tuple[str, ...],
    checkpoint: str | None,
    names: tuple[str, ...],
    provider: str,
    targets: tuple[str, ...],
    precisions: tuple[str, ...],
    quick: bool,
    texts: Path | None,
    metric: str,
    reports: tuple[Path, ...],
    compare: Path | None,
    max_regression: float,
    trust_code: bool,
    variant: str | None,
    **given: Any,
) -> None:
    """Measure each BUNDLE on each runtime, beside PyTorch on the same machine: speed, memory and quality.

    Each candidate runs in its own process; rounds alternate between candidates. In phases, the end token is
    ignored, so that every candidate generates the same number of tokens.
    """
    from txport import runtimes
    from txport.api.locate import checkpoint_of
    from txport.bench import compare as comparing
    from txport.bench import measure as measure
    from txport.bench import page
    from txport.cli import tables

    for name in names:
        runtimes.require(name, provider)
    if compare is None and is_given("max_regression"):
        raise UnsupportedError("--max-regression needs --compare with an older report")
    if texts is None and is_given("metric"):
        raise UnsupportedError("--metric needs --input with targets")
    for path in reports:
        page.require(path)
    is_first = compare is not None and not compare.exists()  # the report may become the one to compare with
    old = comparing.read_report(compare) if compare and not is_first else None
    plan = Plan(provider=provider, **_settings(given, quick))
    inputs = _inputs(texts) if texts else None
    found = list(_bundles(bundles, targets, precisions, variant))
    for name in names:
        for _, bundle in found if name != "torch" else ():
            runtimes.require_target(name, bundle.manifest.target, provider)
    first = found[0][1]
    source = checkpoint or (checkpoint_of(first, f"txport bench {bundles[0]}") if "torch" in names else None)
    candidates = measure.candidates(found, names, source)
    if old:
        comparing.require_same(old, comparing.plan_of(plan), [each.label for each in candidates])
    result = measure.run(candidates, plan, inputs, progress, metric=metric, trust_code=trust_code)
    result = {"command": _command(), **result}
    for path in reports:
        textio.write_text(path, page.render(result, path))
    tables.show_bench(result)
    if old:
        _judge(old, result, max_regression)
    if is_first:
        written = f"; {reports[0]} can become it" if reports else ""
        raise TextError(f"{compare} is missing, so nothing was compared with an older report{written}")


def _settings(given: Mapping[str, Any], quick: bool) -> dict[str, Any]:
    """Return the settings; with `quick`, its values for those that were not given."""
    faster = {name: each.quick for name, _, each in settings() if quick and each.quick and not is_given(name)}
    return {**given, **faster}


def _bundles(
    names: Sequence[str], targets: Sequence[str], precisions: Sequence[str], variant: str | None
) -> Iterator[tuple[str, Bundle]]:
    from txport.api.locate import find_bundle, is_on_demand

    for name in names:
        for target in targets if is_on_demand(name) else targets[:1]:
            for precision in precisions or (None,):
                bundle = find_bundle(name, precision=precision, variant=variant, target=target, progress=progress)
                yield name, bundle


def _inputs(path: Path) -> Inputs:
    """Return the texts of a file, and their targets if its lines have a tab."""
    from txport.bench.measure import Inputs

    lines = list(textio.open_texts((), [path])[0])
    if not any("\t" in line for line in lines):
        return Inputs(lines, path.name)
    targets: dict[str, list[str]] = {}
    for text, target in textio.split_pairs(lines):
        targets.setdefault(text, []).append(target)
    return Inputs(list(targets), path.name, list(targets.values()))


def _command() -> str:
    """Return the command line that was given."""
    return shlex.join(["txport", *sys.argv[1:]])


def _judge(old: dict[str, object], new: dict[str, object], allowed: float) -> None:
    """Print the verdict on two reports; exit 1 for a slow-down, 3 if the machine is too noisy to tell."""
    from txport.bench import compare

    verdicts = compare.verdicts(old, new, allowed)
    why = compare.noise(old, new)
    worse = [] if why else [each for each in verdicts if each.is_worse]
    unclear = [] if why else [each for each in verdicts if not each.is_clear]
    for each in worse or unclear:
        echo(each.describe(), err=True)
    if worse:
        echo(f"verdict: slower in {len(worse)} of {len(verdicts)} figures", err=True)
        raise SystemExit(1)
    if why or unclear:
        reason = why or f"{len(unclear)} of {len(verdicts)} intervals contain the limit; give more --starts"
        raise UnavailableError(f"too noisy to tell: {reason}")
    most = max(verdicts, key=lambda each: each.change)
    echo(f"verdict: pass; the largest of {len(verdicts)} changes is that of {most.describe()}")


def seconds_of(_: click.Context, __: click.Parameter, value: str) -> float:
    """Return the seconds of a time such as 90s, 5m or 1h; raise an error of usage for anything else."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", value)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is not a time such as 90s, 5m or 1h.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


@command(arguments={"rows": "--rows"})
@click.argument("bundle", shell_complete=completion.models)
@click.option(
    "--for",
    "goal",
    type=click.Choice(list(GOALS)),
    default="latency",
    show_default=True,
    help="What is to be best: latency of one text, texts a second in batches, or peak memory.",
)
@click.option(
    "--budget",
    metavar="TIME",
    default="5m",
    show_default=True,
    callback=seconds_of,
    help="Maximum time of the search, after the exports: 90s, 5m.",
)
@click.option(
    "--input", "texts", type=INPUT, help="Lines of text to measure on.  [default: the samples of the checkpoint]"
)
@click.option(
    "--target",
    type=click.Choice(list(TARGETS)),
    default="portable",
    show_default=True,
    help="Target of the export, if BUNDLE is a checkpoint.",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    help="Compare exports in this precision, if BUNDLE is a checkpoint.  [repeatable]",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    multiple=True,
    help="int8 and int4 on cpu: compare an export with the fastest kernels for this number of rows, too.  [repeatable]",
)
@max_loss_option("leave an export out")
@click.option("--out", type=OUTPUT_FOLDER, help="Export the best to this folder, if BUNDLE is a checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune(
    bundle: str,
    goal: str,
    budget: float,
    texts: Path | None,
    target: str,
    out: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the runtime, threads, workers and batch size with which BUNDLE runs best on this machine, and keep them.

    `txport run`, `txport.load` and `txport serve` use them on this machine unless options of their own place the model,
    or --no-tuned is given. Only settings that give the outputs of the defaults are kept. The bundle is not changed.

    BUNDLE can be a checkpoint: its exports in each --precision are compared, and the command that makes the best one is
    printed.
    """
    from txport.api import tuned
    from txport.api.release import export
    from txport.bench import tune as search
    from txport.cli import tables

    if out:
        require_folder(out)
        search.require_checkpoint(bundle, "--out")
    if given["precisions"] or given["rows"] or given["max_loss"] is not None:
        search.require_checkpoint(bundle, "--precision, --rows or --max-loss")
    lines = list(textio.open_texts((), [texts])[0]) if texts else []
    with tempfile.TemporaryDirectory() as work:
        made = search.exports(bundle, Path(work), target, **given, progress=progress)
        best, *others = search.tune([each.bundle for each in made], goal, budget, lines, progress)
        chosen = made[best.bundle]
        kept = export(bundle, out, **chosen.options, progress=progress) if out else chosen.bundle
        file = tuned.store(kept.path, best.settings, goal=goal, figure=best.figure, gain=best.gain)
    if as_json:
        outcomes = [
            {**each._asdict(), "settings": asdict(each.settings), **made[each.bundle].to_dict()}
            for each in (best, *others)
        ]
        textio.print_json({"for": goal, "unit": GOALS[goal], "outcomes": outcomes}, indent=2)
    else:
        tables.show_tuned(made, [best, *others], GOALS[goal])
        if chosen.options:
            where = shlex.join([bundle, str(out or "OUT")])
            echo(f"made by: txport export {where} {tuned.as_options(chosen.options)}")
        echo(f"kept in {file}")


@command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def presets(as_json: bool) -> None:
    """List the presets with their architecture and sizes; `txport export preset:NAME OUT` exports one."""
    from txport.checkpoints import folder
    from txport.cli import tables

    known = folder.presets()
    from txport.checkpoints.checkpoint import size_of
    from txport.checkpoints.weights.streamed import outline
    from txport.models import architecture

    found = {}
    for name, config in known.items():
        model = outline(architecture.of(config).build, config)
        found[name] = (architecture.name_of(config), size_of(model), model.facts.reads.longest)
    if as_json:
        keys = ("architecture", "weights", "positions")
        textio.print_json({name: dict(zip(keys, values, strict=True)) for name, values in found.items()}, indent=2)
    else:
        tables.show_presets(found)


@command(short_help="Say what can run here, what can't, and how to fix it.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(as_json: bool) -> None:
    """Say what can run here, what can't, and how to fix it; exit 1 if the installation is broken."""
    from txport.api import diagnose
    from txport.cli import tables

    found = in_flags(diagnose.examine())
    if as_json:
        textio.print_json(in_flags(found.to_dict()), indent=2)
    else:
        tables.show_diagnosis(found)
    if found.problems:
        raise SystemExit(1)
