"""All commands, in the order of a typical workflow."""

from __future__ import annotations

import click

from txport.cli.commands import bulk, bundles, generation, imports, machine, proofs, serving
from txport.version import __version__


@click.group("txport", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="txport")
def cli() -> None:
    """Take a PyTorch Transformer to production: export it to ONNX, run it, prove it, measure it.

    CHECKPOINT and BUNDLE are paths, or the name of a checkpoint that ships (g2p-en), or a preset
    (`txport presets`, such as preset:base), which is a published size with random weights.
    """


for command in (
    imports.import_,
    bundles.export,
    generation.run,
    generation.score,
    generation.rank,
    bulk.bulk,
    serving.serve,
    proofs.parity,
    proofs.matrix,
    bundles.verify,
    machine.bench,
    machine.tune,
    bundles.inspect,
    machine.presets,
    machine.doctor,
):
    cli.add_command(command)
