"""`txport bench` and `txport doctor`: speed and installation of this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from txport.bundles.manifest import PRECISIONS
from txport.cli import completion, textio
from txport.cli.guard import echo, progress
from txport.cli.options import (
    checkpoint_option,
    is_given,
    provider_option,
    threads_option,
    trust_option,
    variant_option,
)
from txport.cli.outputs import INPUT, OUTPUT, command, in_flags
from txport.errors import TextError, UnsupportedError
from txport.runtimes import MODULES


@command()
@click.argument("bundle", shell_complete=completion.models)
@checkpoint_option("The checkpoint of the bundle, unless it is included in txport.")
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
    "--precision",
    type=click.Choice(list(PRECISIONS)),
    help="Precision of the export, if BUNDLE is the name of a checkpoint.",
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Batch size.")
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="Beams per row.")
@click.option("--source", type=click.IntRange(1), default=16, show_default=True, help="Source length, in tokens.")
@click.option("--tokens", type=click.IntRange(2), default=16, show_default=True, help="Target length, in tokens.")
@click.option(
    "--rounds", type=click.IntRange(3), default=9, show_default=True, help="Measured rounds; runtimes alternate."
)
@click.option("--report", type=OUTPUT, help="Write all figures as JSON.")
@click.option(
    "--compare", type=INPUT, help="An older report: exit 1 if a figure is worse beyond the quartiles of both."
)
@click.option("--max-regression", type=float, default=10.0, show_default=True, help="Allowed slow-down, in percent.")
def bench(
    bundle: str,
    checkpoint: str | None,
    names: tuple[str, ...],
    provider: str,
    precision: str | None,
    report: Path | None,
    compare: Path | None,
    max_regression: float,
    trust_code: bool,
    variant: str | None,
    **protocol: Any,
) -> None:
    """Measure BUNDLE phase by phase, against PyTorch on the same machine.

    Each runtime runs in its own process; rounds alternate between runtimes. The end token is ignored, so
    that every runtime generates the same number of tokens.
    """
    from txport import runtimes
    from txport.api.locate import checkpoint_of, find_bundle
    from txport.bench import measure as measure
    from txport.cli import tables

    for name in names:
        runtimes.require(name, provider)
    if compare is None and is_given("max_regression"):
        raise UnsupportedError("--max-regression needs --compare with an older report")
    is_first = compare is not None and not compare.exists()  # the report may become the one to compare with
    old = measure.read_report(compare) if compare and not is_first else None
    how = measure.Protocol(provider=provider, **protocol)
    if old:
        measure.require_same(old, asdict(how), dict.fromkeys(names))
    found = find_bundle(bundle, precision=precision, variant=variant, progress=progress)
    for name in names:
        if name != "torch":
            runtimes.require_target(name, found.manifest.target, provider)
    source = checkpoint or (checkpoint_of(found, f"txport bench {bundle}") if "torch" in names else None)
    result = measure.run(found, source, names, how, progress, trust_code=trust_code)
    if report:
        textio.write_json(report, result)
    tables.show_bench(result)
    slower = measure.regressions(old, result, max_regression) if old else []
    for line in slower:
        echo(line, err=True)
    if slower:
        raise SystemExit(1)
    if is_first:
        written = f"; {report} can become it" if report else ""
        raise TextError(f"{compare} is missing, so nothing was compared with an older report{written}")


@command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def presets(as_json: bool) -> None:
    """List the presets with their architecture and sizes; `txport export preset:NAME OUT` exports one."""
    from txport.checkpoints import folder
    from txport.cli import tables

    known = folder.presets()
    import torch

    from txport.checkpoints.checkpoint import size_of
    from txport.models import architecture

    found = {}
    for name, config in known.items():
        with torch.device("meta"):
            model = architecture.of(config).build(config)
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
