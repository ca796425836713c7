"""Word and phone error rates of a bundle on a dictionary, through its ONNX graphs.

python -m benchmarks.g2p g2p-en DICTIONARY [--beams 5] [--report FILE]
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import txport
from recipes.g2p_en import g2p
from txport.cli.guard import run_guarded


def measure(bundle: str, dictionary: g2p.Dictionary, beams: int, runtime: str, batch_size: int) -> dict[str, Any]:
    """Pronounce every word of a dictionary; return the number of words, wer and per in percent, and words per second.

    The result also has the runtime and the number of beams.
    """
    model = txport.load(bundle, runtime=runtime)
    started = time.perf_counter()
    results = model.generate(list(dictionary), beams=beams, batch_size=batch_size)
    seconds = time.perf_counter() - started
    score = g2p.score(dictionary, {result.input: result.output.split() for result in results})
    rates = {name: round(value, 2) for name, value in asdict(score).items()}
    return {"runtime": runtime, "beams": beams, **rates, "words_per_second": round(len(dictionary) / seconds)}


@click.command(help=__doc__)
@click.argument("bundle")
@click.argument("dictionary", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--beams", type=click.IntRange(1), multiple=True, default=(1, 5), show_default=True, help="Repeatable.")
@click.option("--runtime", default="ort", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--report", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def main(
    bundle: str, dictionary: Path, beams: tuple[int, ...], runtime: str, batch_size: int, report: Path | None
) -> None:
    """Print a line of JSON for each width of beam."""
    entries = g2p.read_dictionary(dictionary)
    figures = [measure(bundle, entries, width, runtime, batch_size) for width in beams]
    for line in figures:
        click.echo(json.dumps(line))
    if report:
        report.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_guarded(main)
