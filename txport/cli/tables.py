"""Printed results: the tables of parity, verify, matrix, bench, inspect and doctor, and the culprit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from txport.bundles.comparisons import RECORDED, describe_calibrated, describe_loss, describe_original
from txport.bundles.foreign.manifest import ForeignManifest
from txport.cli.guard import echo, results, write
from txport.cli.outputs import in_flags
from txport.system.terminal import one_line
from txport.targets.ports import Port

if TYPE_CHECKING:
    from txport.api.diagnose import Diagnosis
    from txport.bench.tune import Export, Outcome
    from txport.bundles.bundle import Bundle
    from txport.proof.bisect.culprit import Culprit
    from txport.proof.matrix import Matrix
    from txport.proof.reports.report import Report
    from txport.proof.verify.check import Verification
    from txport.runtimes.ort.nvidia.problems import Nvidia

CUDA = "CUDAExecutionProvider"
FURTHER = 6  # failures to show


def megabytes(size: float) -> str:
    """Format a number of bytes in MB."""
    return f"{size / 1e6:.1f} MB"


def show(title: str, columns: list[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print one table, 200 columns wide if stdout is not a terminal."""
    console = Console(highlight=False, file=results())
    if not console.is_terminal:
        console.width = 200
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    echo(title)
    with console.capture() as drawn:  # rich exits with 1 if the pipe is closed
        console.print(table)
    write(drawn.get())


def show_parity(report: Report) -> None:
    """Print each case on each runtime, the worst first; then the runtimes, the quality and the verdict."""
    from txport.proof.reports import render

    echo(render.title(report))
    show("", list(render.COLUMNS), render.rows(report))
    echo()
    for line in render.ran(report):
        echo(line)
    for line in (*render.pytorch(report), *render.recorded(report), *render.cost(report)):
        echo(line)
    for line in report.about["left_out"]:
        echo(f"left out: {line}")
    if "reference" in report.about:
        echo(f"held against {report.about['reference']}")
    for word, what in (("computed", "tensors that the module's code computes"), ("unused", "weights in no graph")):
        if names := report.about.get(word):
            echo(f"{what}: {', '.join(names)}")
    for line in render.quality(report):
        echo(f"quality: {line}")
    for line in report.failures()[1:FURTHER]:
        echo(f"failed: {line}")
    if (rest := len(report.failures()) - FURTHER) > 0:
        echo(f"failed: {rest} more, which --report names")
    echo(f"verdict: {'pass' if report.passed else 'FAIL'}; worst: {report.describe_worst()}")
    if report.bisected:
        show_culprit(report.culprit)


def show_verification(name: str, result: Verification) -> None:
    """Print each check, the verdict with the target, precision, runtime and provider, and the next command."""
    rows = [(check.name, check.verdict, check.detail) for check in result.checks]
    about = result.about
    show(f"Verified {name}", ["check", "verdict", "seen"], rows)
    if original := result.about.get(RECORDED):
        echo()
        echo(f"recorded at export: {original}")
    where = f"{about['target']} {about['precision']} on {about['runtime']} {about['provider']}"
    echo()
    echo(f"verdict: {'pass' if result.passed else 'FAIL'}; {where}, {result.seconds:.1f} s")
    echo(f"next: {_next_command(shlex.quote(name), result)}")


def _next_command(bundle: str, result: Verification) -> str:
    """Return the command after `verify`: run the bundle, export it again, or find the part that differs."""
    about = result.about
    if result.passed:
        usual = {"runtime": "ort", "provider": "cpu"}
        flags = [f" --{name} {about[name]}" for name, value in usual.items() if about[name] != value]
        return f"txport run {bundle}{''.join(flags)}"
    checkpoint = shlex.quote(about["checkpoint"]["name"])
    if result.is_whole:
        return f"txport parity {bundle} --checkpoint {checkpoint} --bisect"
    return f"txport export {checkpoint} {bundle} --target {about['target']} --precision {about['precision']} --force"


def show_matrix(result: Matrix) -> None:
    """Print one row per compared cell, then each reason once, and the number of cells per verdict."""
    from txport.proof.reports.pages import COLUMNS, compared, rows, summary, title, unavailable

    cells = list(rows(compared(result)))
    reasons = list(dict.fromkeys(why for *_, why in cells if why))
    shown = [(*cell, f"({reasons.index(why) + 1})" if why else "") for *cell, why in cells]
    show(title(result), list(COLUMNS), shown)
    for number, reason in enumerate(reasons, 1):
        echo(f"({number}) {reason}")
    for reason, (where, count) in unavailable(result).items():
        echo(f"not available: {where}, {count} {'cell' if count == 1 else 'cells'}: {reason}")
    echo()
    echo(f"verdict: {'pass' if result.passed else 'FAIL'}; {summary(result)}")


def show_culprit(culprit: Culprit | None) -> None:
    """Print the first part that differs, one line per fact."""
    if culprit is None:
        echo("culprit: none; every part of the graphs computes what PyTorch does from the same values")
        return
    for word, text in culprit.lines():
        echo(f"{word + ':':<9}{text}")


def show_bench(result: dict[str, Any]) -> None:
    """Print the tables of a report of `bench`."""
    from txport.bench.sections import about, sections

    for line in about(result):
        echo(line)
    for each in sections(result):
        echo()
        show(f"{each.title}. {each.note}", list(each.columns), [tuple(row) for row in each.rows])


def show_bundle(bundle: Bundle, brief: bool) -> None:
    """Print files, ports and operators unless `brief`; then the checkpoint, the parity figures and the path."""
    manifest = bundle.manifest
    if not brief:
        from txport.inspection import kernels

        placed, why = kernels.audits_or_why(bundle)
        show("Files", ["file", "size"], [(name, megabytes(entry["bytes"])) for name, entry in manifest.files.items()])
        for graph in manifest.graphs.values():
            rows = [("in", *_port(port)) for port in graph.inputs] + [("out", *_port(port)) for port in graph.outputs]
            echo()
            show(graph.file, ["", "port", "type", "dims"], rows)
            if graph.role in placed:
                show("", list(kernels.COLUMNS), kernels.rows(placed[graph.role]))
                echo(kernels.sentence(placed[graph.role]))
            else:
                echo(_operators(bundle, graph.role))
        if why:
            echo(why)
    if isinstance(manifest, ForeignManifest):
        echo()
        plain = f", variant {manifest.variant}" if manifest.variant else ""
        echo(f"exported by others: {manifest.architecture}, {manifest.facts.task}, layout {manifest.layout}{plain}")
        echo(f"precision: {manifest.precision}, opset: {manifest.opset}; no parity was recorded")
        echo(f"folder: {bundle.path.resolve()}  ({megabytes(bundle.size)})")
        return
    name = manifest.checkpoint["name"]
    digest = manifest.checkpoint["sha256"]
    parity = ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in manifest.parity.items())
    echo()
    echo(f"checkpoint: {name} (SHA-256 {digest[:16]}...)")
    if before := manifest.checkpoint.get("quantised"):
        echo(f"quantised before: {before}")
    chosen = f", kernels for {manifest.rows} rows" if manifest.rows else ""
    echo(f"target: {manifest.target}, precision: {manifest.described_precision}, opset: {manifest.opset}{chosen}")
    echo("weights: none, so nothing runs it" if manifest.weightless else f"parity with PyTorch: {parity}")
    if original := describe_original(manifest.original):
        echo(f"original: {original}")
    for line in (describe_calibrated(manifest.calibrated), describe_loss(manifest.loss, manifest.precision)):
        if line:
            echo(line)
    echo(f"bundle: {bundle.path.resolve()}  ({megabytes(bundle.size)})")


def _port(port: Port) -> tuple[str, str, str]:
    return port.name, port.dtype, "[" + ", ".join(str(dim) for dim in port.dims) + "]"


def _short(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _operators(bundle: Bundle, role: str) -> str:
    from txport.bundles.graphs import read_outline

    counts = read_outline(bundle.file(role)).operators
    return f"{counts.total()} operators: " + ", ".join(f"{count} {name}" for name, count in counts.most_common())


def show_diagnosis(found: Diagnosis) -> None:
    """Print versions, runtimes, providers, NVIDIA GPUs and problems."""
    show("Installed", ["package", "version"], [(name, version or "-") for name, version in found.versions.items()])
    echo()
    here = [(name, "runs" if reason is None else f"does not run: {reason}") for name, reason in found.runtimes.items()]
    show("Runtimes", ["runtime", "here"], here)
    rows = [
        (name, "starts" if reason is None else f"does not start: {reason}") for name, reason in found.providers.items()
    ]
    echo()
    show("Providers of ONNX Runtime", ["provider", "here"], rows)
    echo()
    show_gpu(found.gpu)
    if found.tuned:
        echo()
        show("Tuned", ["bundle", "settings"], list(found.tuned.items()))
    for problem in found.problems:
        echo()
        echo(f"problem: {problem}")
    if not found.problems:
        echo()
        echo("no problems found")
        target = "cuda --precision fp16" if found.providers.get(CUDA, "") is None else "cpu --precision int8"
        echo(f"fastest here: txport export CHECKPOINT OUT --target {target}")


def show_tuned(exports: Sequence[Export], outcomes: Sequence[Outcome], unit: str) -> None:
    """Print the exports and settings that `tune` measured, the best first."""
    rows = [
        (
            exports[each.bundle].describe(),
            f"{exports[each.bundle].loss:.3g}",
            each.settings.describe(),
            f"{each.figure:.3g}",
            f"{each.gain:.2f}",
            str(each.stage + 1),
        )
        for each in outcomes
    ]
    columns = ["export", "loss", "settings", unit, "times as good as the first", "stage"]
    show("Exports and settings, the best first", columns, rows)


def show_presets(presets: Mapping[str, tuple[str, int, int]]) -> None:
    """Print the presets: name -> architecture, number of weights, largest number of source positions."""
    rows = [
        (f"preset:{name}", kind, f"{size / 1e6:,.1f} M", f"{most:,}") for name, (kind, size, most) in presets.items()
    ]
    show("Published sizes with random weights", ["name", "architecture", "weights", "positions"], rows)


def show_gpu(found: Nvidia) -> None:
    """Print the driver, the GPUs, and the problems that stop the CUDA provider."""
    driver = found.driver
    newest = f", runs CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
    rows = [("driver", f"{driver.version or 'of no known version'}{newest}" if driver.is_there else "none")]
    for number, device in enumerate(driver.devices):
        free = "" if device.free is None else f", {megabytes(device.free)} free"
        rows.append((f"GPU {number}", f"{device.described}, {megabytes(device.memory)}{free}"))
    if found.wheel:
        rows.append(("ONNX Runtime", found.wheel))
    show("NVIDIA", ["", "found"], rows)
    echo()
    for problem in found.problems:
        echo(in_flags(f"for CUDA: {problem}"))
    if found.cudnn:
        echo(in_flags(f"for convolutions, and for bundles of other targets than cuda, on CUDA: {found.cudnn}"))
    if found.wheel and not found.problems and not found.cudnn:
        echo("nothing that CUDA needs is missing")
