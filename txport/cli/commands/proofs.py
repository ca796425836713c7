"""`txport parity` and `txport matrix`: comparison with PyTorch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from txport.bundles.manifest import PRECISIONS
from txport.cli import completion, textio
from txport.cli.guard import progress
from txport.cli.options import (
    checkpoint_option,
    is_given,
    lora_option,
    max_loss_option,
    provider_option,
    trust_option,
    variant_option,
)
from txport.cli.outputs import INPUT, OUTPUT, OUTPUT_FOLDER, command, in_flags
from txport.cli.progress import shown, verbose_option
from txport.errors import TextError, UnsupportedError
from txport.proof.metrics import METRICS
from txport.runtimes import GRAPH_RUNTIMES
from txport.system.files import require_folder
from txport.targets import TARGETS

QUALITY_TEXTS = 1000
MATRIX_NOTE = "  [repeatable; default: all]"


@command()
@click.argument("bundle", shell_complete=completion.models)
@checkpoint_option("The checkpoint of the bundle, unless it is included in txport.")
@lora_option("--checkpoint")
@trust_option
@variant_option
@click.option(
    "--runtime",
    "names",
    type=click.Choice(GRAPH_RUNTIMES),
    multiple=True,
    help="Compare this runtime.  [repeatable; default: ort and reference, where they run it; for a cuda bundle, ort"
    " with cuda where there is a GPU, else cuda-stand-in]",
)
@provider_option
@click.option(
    "--precision",
    type=click.Choice(list(PRECISIONS)),
    help="Precision of the export, if BUNDLE is the name of a checkpoint.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option(
    "--cases", type=click.IntRange(0), default=0, show_default=True, help="Random cases beyond the usual ones."
)
@click.option("--atol", type=float, help="Absolute tolerance; can only tighten the precision's.")
@click.option("--rtol", type=float, help="Tolerance relative to the largest value of a tensor; added to --atol.")
@click.option(
    "--quality",
    type=INPUT,
    help="Lines of TEXT, a tab and TARGET: measure the error rate, and PyTorch's on the same texts.",
)
@click.option(
    "--metric",
    type=click.Choice(list(METRICS)),
    default="exact",
    show_default=True,
    help="Measure this on the texts of --quality; exact is the error rate. wer and cer need jiwer, bleu and chrf"
    " sacrebleu: pip install 'txport[quality]'.",
)
@click.option(
    "--quality-texts",
    type=click.IntRange(1),
    help=f"How many texts of --quality to use, drawn by seed.  [default: {QUALITY_TEXTS}]",
)
@max_loss_option()
@click.option("--baseline", type=INPUT, help="An older --save-baseline or --report: exit 1 if anything became worse.")
@click.option("--save-baseline", type=OUTPUT, help="If all passed, write what --baseline compares, a few KB.")
@click.option("--report", type=OUTPUT, help="Write everything that was compared, as JSON.")
@click.option("--junit", type=OUTPUT, help="Write JUnit XML, for CI.")
@click.option("--markdown", type=OUTPUT, help="Write a summary for a pull request.")
@click.option("--bisect", is_flag=True, help="Find the first part that differs, and the cause; see docs/differs.md.")
@verbose_option
def parity(
    bundle: str,
    checkpoint: str | None,
    loras: tuple[str, ...],
    names: tuple[str, ...],
    provider: str,
    precision: str | None,
    quality: Path | None,
    quality_texts: int | None,
    baseline: Path | None,
    save_baseline: Path | None,
    report: Path | None,
    bisect: bool,
    variant: str | None,
    junit: Path | None,
    markdown: Path | None,
    verbose: bool,
    **options: Any,
) -> None:
    """Compare BUNDLE with PyTorch; exit 1 if they differ.

    docs/parity.md describes what is compared, the tolerances, and how to run it in CI.
    """
    from txport import runtimes
    from txport.api import release
    from txport.api.locate import checkpoint_of, find_bundle
    from txport.checkpoints.folder import with_loras
    from txport.cli import tables
    from txport.runtimes.ort.providers import short_name

    if loras and checkpoint is None:
        raise UnsupportedError("--lora needs --checkpoint, the model that it is merged with")
    texts = _read_quality(quality, quality_texts, options["seed"])
    for name in names or ("ort",):
        runtimes.require(name, provider)
    named = short_name(provider) if is_given("provider") else None
    is_first = baseline is not None and not baseline.exists()  # the report, or a part of it, may become the baseline
    old = _read_baseline(baseline) if baseline and not is_first else None
    found = find_bundle(bundle, precision=precision, variant=variant, progress=progress)
    providers = dict.fromkeys(names, named or "cpu") or runtimes.compared(found.manifest.target, named)
    source = with_loras(checkpoint or checkpoint_of(found, f"txport parity {bundle}"), loras)
    started = time.perf_counter()
    with shown(verbose) as report_progress:
        options["progress"] = report_progress
        result = release.compare(found, source, providers, texts=texts, baseline=old, with_culprit=bisect, **options)
    from txport.proof.reports.report import Broken

    _write(result, time.perf_counter() - started, report, junit, markdown, save_baseline)
    if isinstance(result, Broken):
        if bisect:
            tables.show_culprit(result.culprit)
        raise result.error
    tables.show_parity(result)
    if not result.passed:
        raise SystemExit(1)
    if is_first:
        written = save_baseline or report
        how = f"{written} can become it" if written else "--save-baseline writes one"
        raise TextError(f"{baseline} is missing, so nothing was compared with a baseline; {how}")


def _read_baseline(path: Path) -> dict[str, Any]:
    from txport.proof.reports.baseline import read_baseline

    return read_baseline(path)


def _read_quality(path: Path | None, count: int | None, seed: int) -> dict[str, list[str]] | None:
    if path is None and count:
        raise UnsupportedError("--quality-texts needs --quality")
    if path is None and is_given("metric"):
        raise UnsupportedError("--metric needs --quality")
    if path is None:
        return None
    return textio.draw_texts(textio.split_pairs(textio.open_texts((), [path])[0]), count or QUALITY_TEXTS, seed)


def _write(
    result: Any,
    seconds: float,
    report: Path | None,
    junit: Path | None,
    markdown: Path | None,
    baseline: Path | None,
) -> None:
    from txport.proof.reports import render
    from txport.proof.reports.baseline import summary
    from txport.proof.reports.report import Broken

    if report:
        textio.write_json(report, result.to_dict())
    if baseline and not isinstance(result, Broken) and result.passed:
        textio.write_json(baseline, summary(result.to_dict()))
    if junit:
        textio.write_text(junit, render.junit(result, seconds))
    if markdown:
        textio.write_text(markdown, render.markdown(result))


@command()
@click.argument("checkpoint", shell_complete=completion.models)
@click.option(
    "--target", "targets", type=click.Choice(list(TARGETS)), multiple=True, help="Export for this." + MATRIX_NOTE
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    help="Export in this precision." + MATRIX_NOTE,
)
@click.option(
    "--runtime",
    "names",
    type=click.Choice(GRAPH_RUNTIMES),
    multiple=True,
    help="Compare this runtime.  [repeatable; default: all that keep a bundle's precision]",
)
@click.option(
    "--provider",
    "providers",
    multiple=True,
    shell_complete=completion.providers,
    help="Compare on this provider of ort." + MATRIX_NOTE,
)
@trust_option
@click.option("--keep", type=OUTPUT_FOLDER, help="Keep the bundles in this new folder.")
@click.option("--report", type=OUTPUT, help="Write the matrix as JSON.")
@click.option("--markdown", type=OUTPUT, help="Write the matrix as Markdown.")
@click.option("--html", type=OUTPUT, help="Write the matrix as one HTML file.")
@verbose_option
def matrix(
    checkpoint: str, report: Path | None, markdown: Path | None, html: Path | None, verbose: bool, **chosen: Any
) -> None:
    """Export CHECKPOINT for each target and precision, and compare each bundle on each runtime and provider.

    Cells that can't run show the reason and do not count as passed: exit 1 if a cell fails, 3 if a requested runtime or
    provider ran nowhere. Each bundle is always compared on ort with cpu.
    """
    from txport.api import release
    from txport.cli import tables

    if chosen["keep"]:
        require_folder(chosen["keep"])
    with shown(verbose) as report_progress:
        result = in_flags(release.matrix(checkpoint, **chosen, progress=report_progress))
    from txport.proof.matrix import require_run
    from txport.proof.reports import pages

    tables.show_matrix(result)
    if report:
        textio.write_json(report, result.to_dict())
    for path, render in ((markdown, pages.markdown), (html, pages.page)):
        if path:
            textio.write_text(path, render(result))
    if not result.passed:
        raise SystemExit(1)
    fields = {"target": "targets", "precision": "precisions", "runtime": "names", "provider": "providers"}
    require_run(result, {field: chosen[key] for field, key in fields.items()})
