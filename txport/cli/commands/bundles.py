"""`txport export`, `txport inspect` and `txport verify`: bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from txport.bundles.comparisons import (
    AUTO_DISTANCE,
    AUTO_DIVERGENCE,
    describe_calibrated,
    describe_kept,
    describe_loss,
    describe_original,
)
from txport.bundles.manifest import AUTO_LIMIT, MOST_IN_FP32, PRECISIONS, STAND_IN, STOOD_IN
from txport.cli import completion, textio
from txport.cli.guard import echo, progress
from txport.cli.options import (
    lora_option,
    max_loss_option,
    provider_option,
    threads_option,
    trust_option,
    variant_option,
)
from txport.cli.outputs import INPUT, OUTPUT, OUTPUT_FOLDER, command, in_flags
from txport.cli.progress import shown, verbose_option
from txport.errors import UnsupportedError
from txport.models.sentence import EXPORT_POOLINGS
from txport.runtimes import GRAPH_RUNTIMES
from txport.targets import TARGETS


@command()
@click.argument("checkpoint", shell_complete=completion.models)
@click.argument("out", type=OUTPUT_FOLDER, shell_complete=completion.folders)
@lora_option("CHECKPOINT")
@click.option(
    "--target", type=click.Choice(list(TARGETS)), default="portable", show_default=True, help="Target of the export."
)
@click.option(
    "--precision",
    type=click.Choice(list(PRECISIONS)),
    help="Precision of the weights.  [default: fp32; for cuda fp16]",
)
@click.option("--opset", type=click.IntRange(18, 25), help="ONNX operator set: 18 unless the target prefers another.")
@click.option(
    "--rows",
    type=click.IntRange(1),
    help="int8 and int4 on cpu: use the fastest kernels for this number of rows (batch x beams) per step. Results may"
    " then depend on the batch.  [default: batch-independent kernels]",
)
@click.option(
    "--auto",
    is_flag=True,
    help="int8 and int4 on cpu: if the bundle loses more than --max-loss, store the matrices that cost most in wider"
    f" forms, a few in fp32. Without --max-loss, it aims at a divergence of {AUTO_DIVERGENCE:g} from fp32, for vectors"
    f" {AUTO_DISTANCE:g}.",
)
@click.option(
    "--auto-limit",
    type=click.FloatRange(0, MOST_IN_FP32),
    help=f"Maximum fraction of the quantised weights that --auto may keep in fp32.  [default: {AUTO_LIMIT}]",
)
@max_loss_option()
@click.option(
    "--calibrate",
    type=INPUT,
    metavar="FILE",
    help="int4 on cpu: round weights by the inputs of each layer for the texts in FILE, one a line (docs/few-bits.md).",
)
@click.option(
    "--weights",
    type=click.Choice(["all", "none"]),
    default="all",
    show_default=True,
    help="none: write graphs without weights; `inspect` shows them, but they can't be run.",
)
@click.option(
    "--single",
    is_flag=True,
    help="Add onnx/generate.onnx, a single graph that contains the model and the search (docs/single-graph.md).",
)
@click.option(
    "--pooling",
    type=click.Choice(EXPORT_POOLINGS),
    help="Encoders: add the output sentence_embedding, the vector of a text. modules: as modules.json says; others"
    " replace only its pooling.  [default: modules if layers follow the pooling]",
)
@click.option(
    "--against",
    metavar="ORIGINAL",
    help="Original model that CHECKPOINT is compared with first: model.py:NAME (with --trust-code), transformers, a"
    " folder that transformers runs, or none.  [default: transformers, if it saved CHECKPOINT and is installed]",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists; other files in it stay.")
@trust_option
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def export(
    checkpoint: str,
    out: Path,
    loras: tuple[str, ...],
    target: str,
    precision: str | None,
    weights: str,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Export CHECKPOINT to a bundle at OUT, and verify it against PyTorch.

    CHECKPOINT is compared with its original (--against), and the graphs with PyTorch; OUT is only written if all agree.
    If OUT is a symbolic link, the link is kept, and OUT is the folder that it leads to. OUT can't be the working folder
    or a mount point. With --trust-code, CHECKPOINT can be a Python file and an adapter in it, model.py:NAME.
    """
    from txport.api import model as api
    from txport.checkpoints.folder import with_loras

    if options["auto_limit"] is not None and not options["auto"]:
        raise UnsupportedError("--auto-limit needs --auto")
    options["weights"] = weights == "all"
    with shown(verbose) as progress:
        name = with_loras(checkpoint, loras)
        bundle = api.export(name, out, target=target, precision=precision, progress=progress, **options)
    if as_json:
        textio.print_json(bundle.manifest.to_dict())
    else:
        description = f"{target} {bundle.manifest.described_precision}"
        echo(f"{out}  {description}, {_size(bundle.size)}, {_verdict(bundle)}")
        if kept := bundle.manifest.kept_in_fp32:
            more = _size(kept["bytes"] - kept["bytes_before"])
            gained = f"a divergence of {kept['divergence']:.2g} instead of {kept['divergence_before']:.2g}"
            echo(f"--auto: {gained}, for {more}: {describe_kept(kept)}")
        if original := describe_original(bundle.manifest.original):
            echo(original)
        if calibrated := describe_calibrated(bundle.manifest.calibrated):
            echo(calibrated)
        if cost := describe_loss(bundle.manifest.loss, bundle.manifest.precision):
            echo(cost)


def _verdict(bundle: Any) -> str:
    if bundle.manifest.weightless:
        return "graphs without weights, not compared"
    difference = bundle.measured["worst_logit_difference"]
    names = " and ".join(each.name for each in bundle.manifest.facts.outputs) or "logits"
    where = f", {STOOD_IN}" if STAND_IN in bundle.manifest.parity["runtimes"] else ""
    return f"parity {bundle.manifest.parity['verdict']} ({names} differ by at most {difference:.1e}){where}"


def _size(size: float) -> str:
    from txport.cli.tables import megabytes

    return megabytes(size)


@command()
@click.argument("bundle", shell_complete=completion.models)
@variant_option
@click.option("--brief", is_flag=True, help="Print only the summary, the parity figures and the path.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
@click.option(
    "--html",
    type=OUTPUT,
    help="Write an HTML page with drawings of the run, weights, graphs and operators.",
)
def inspect(bundle: str, variant: str | None, brief: bool, as_json: bool, html: Path | None) -> None:
    """Show a bundle's ports, operators, sizes, and its measured difference from PyTorch.

    For a cuda bundle, it also lists the nodes with CUDA kernels and the data on the host; this needs no GPU.

    The page of --html is one file without scripts or external resources.
    """
    from txport.api.locate import find_bundle
    from txport.cli import tables

    found = find_bundle(bundle, variant=variant, progress=progress)
    if html:
        from txport.inspection.page import page

        textio.write_text(html, page(found))
    if as_json:
        textio.print_json({"path": str(found.path.resolve()), **found.manifest.to_dict(), **_kernels(found)})
    else:
        tables.show_bundle(found, brief)


def _kernels(bundle: Any) -> dict[str, object]:
    """Return what `inspect --json` adds for a cuda bundle: the audit of each graph, or why there is none."""
    if not bundle.manifest.made_for.on_gpu:
        return {}
    from txport.inspection.kernels import audits_or_why

    found, why = audits_or_why(bundle)
    return {"on_cuda": {role: each.to_dict() for role, each in found.items()} or why}


@command()
@click.argument("bundle", shell_complete=completion.models)
@click.option(
    "--runtime",
    type=click.Choice(GRAPH_RUNTIMES),
    default="ort",
    show_default=True,
    help="Runtime that executes the bundle.",
)
@provider_option
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--save", type=OUTPUT, help="Write the expected and the actual values to this .npz file of NumPy.")
@verbose_option
def verify(
    bundle: str, runtime: str, provider: str, threads: int | None, as_json: bool, save: Path | None, verbose: bool
) -> None:
    """Check that BUNDLE is whole and computes here what PyTorch computed; exit 1 if not.

    For the machine that it was deployed to: it takes a second or two and needs neither PyTorch nor the checkpoint,
    since the bundle holds golden inputs and outputs.
    """
    from txport import runtimes
    from txport.api.locate import find_path, is_on_demand
    from txport.cli import tables
    from txport.proof.verify.check import verify as check

    if is_on_demand(bundle):
        runtimes.require(runtime, provider)
    with shown(verbose) as progress:
        path = find_path(bundle, progress=progress)
        result = in_flags(check(path, runtime=runtime, provider=provider, threads=threads, progress=progress))
    if save:
        textio.write_arrays(save, result.values)
    if as_json:
        textio.print_json(result.to_dict(), indent=2)
    else:
        tables.show_verification(bundle, result)
    if not result.passed:
        raise SystemExit(1)
