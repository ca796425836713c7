"""Parity and speed of the portable bundle on an NVIDIA GPU, beside PyTorch on the same GPU; one JSON file.

    python -m benchmarks.gpu [--results FOLDER]

Works from the packages that are installed, without network, in under five minutes. Exits 3 where there is no
GPU that both ONNX Runtime and PyTorch can use, 1 if a bundle does not compute what PyTorch computes.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from txport import api, bench, runtimes
from txport.bundles.bundle import Bundle
from txport.cli.guard import run_guarded
from txport.proof.reports import render
from txport.system import machine

RESULTS = Path(__file__).parent / "results"
CHECKPOINT = "g2p-en"
# (checkpoint, precision, protocols): what is measured against PyTorch in the same precision
SPEED: list[tuple[str, str, list[bench.Protocol]]] = [
    (
        CHECKPOINT,
        precision,
        [bench.Protocol(provider="cuda", batch=batch, source=16, tokens=16) for batch in (1, 32, 256)],
    )
    for precision in ("fp32", "fp16")
]


def progress(message: str) -> None:
    """Progress to stderr, so that a log shows where the time goes."""
    click.echo(f"{datetime.datetime.now(tz=datetime.UTC):%H:%M:%S} {message}", err=True)


def export_all(folder: Path) -> dict[tuple[str, str], Bundle]:
    """Every bundle that is measured."""
    bundles = {}
    for checkpoint, precision, _ in SPEED:
        progress(f"export {checkpoint} {precision}")
        out = folder / f"{checkpoint.replace(':', '-')}-{precision}"
        bundles[checkpoint, precision] = api.export(checkpoint, out, precision=precision)
    return bundles


def prove(bundle: Bundle) -> dict[str, Any]:
    """Parity of one bundle on CUDA, with TF32 off."""
    progress(f"parity {bundle.path.name}")
    report = api.parity(bundle, bundle.manifest.checkpoint["name"], {"ort": "cuda"})
    summary = {"checkpoint": bundle.manifest.checkpoint["name"], "precision": bundle.manifest.precision}
    return {**summary, **report.summary(), "worst": report.describe_worst(), "table": render.rows(report)}


def measure(bundles: dict[tuple[str, str], Bundle]) -> list[dict[str, Any]]:
    """Each protocol, ONNX Runtime and PyTorch alternating on the GPU."""
    results = []
    for checkpoint, precision, protocols in SPEED:
        for protocol in protocols:
            progress(f"bench {checkpoint} {precision} batch {protocol.batch}")
            results.append(bench.run(bundles[checkpoint, precision], checkpoint, ("torch", "ort"), protocol))
    return results


@click.command(help=__doc__)
@click.option("--results", type=click.Path(file_okay=False, path_type=Path), default=RESULTS, show_default=False)
def gpu(results: Path) -> None:
    """Prove, measure, write."""
    for name in ("ort", "torch"):
        runtimes.require(name, "cuda")
    with tempfile.TemporaryDirectory() as folder:
        bundles = export_all(Path(folder))
        proofs = [prove(bundle) for bundle in bundles.values()]
        speed = measure(bundles)
    found = machine.describe()
    record = {"machine": found, "versions": speed[0]["versions"], "parity": proofs, "speed": speed}
    results.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", str(found["gpu"]).lower()).strip("-")
    path = results / f"gpu-{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    click.echo(path)
    if any(each["verdict"] != "pass" for each in proofs):
        sys.exit(1)


if __name__ == "__main__":
    run_guarded(gpu)
