"""The command line: data to stdout, progress to stderr, one line for an error, and an exit code that means something.

0 good; 1 a check failed; 2 wrong usage or bad input; 3 what was asked for is not available here.
"""

from __future__ import annotations

from collections.abc import Iterable

import click

from txport import __version__
from txport.cli import bundles, generation, machine, proofs
from txport.cli.guard import run_guarded


@click.group("txport", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="txport")
def cli() -> None:
    """Take a PyTorch Transformer to production: export it to ONNX, run it, prove it, measure it.

    CHECKPOINT and BUNDLE are paths, or the name of a checkpoint that ships (g2p-en), or preset:tiny,
    preset:base, preset:big, which are published sizes with random weights.
    """


for command in (
    bundles.export,
    generation.run,
    generation.score,
    proofs.parity,
    proofs.matrix,
    bundles.verify,
    machine.bench,
    bundles.inspect,
    machine.doctor,
):
    cli.add_command(command)


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the command line and exit."""
    run_guarded(cli, arguments)
