"""Exports of models at their published sizes, each in a process of its own: `python -m tests.sizes smollm2-135m`.

Each checkpoint has random weights. `written` writes a bundle without comparing it; `proven` is `txport export`, which
compares it with transformers too where that is installed. `verify`, `parity`, `bisect` (`parity --bisect`) and `auto`
(`export --auto`) are those commands. The command exits with 1 if one takes more memory than its shape may, mapped files
apart, or fails. A process is stopped before the machine runs out of memory.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from tests.pages import split_page, write_table
from tests.sizes.folders import write_folder
from tests.sizes.measure import Usage, measure
from tests.sizes.shapes import SHAPES, Shape
from txport.system import machine

GB = 1_000_000_000
KINDS = {"cpu-int8": ("cpu", "int8"), "cpu-fp32": ("cpu", "fp32"), "portable-fp32": ("portable", "fp32")}
PARTS = ("written", "proven", "verify", "parity", "bisect", "auto")
USUAL_PARTS = PARTS[:2]
WRITE = """
import sys
from pathlib import Path
from txport.checkpoints.checkpoint import load_checkpoint
from txport.proof.proven import write
write(load_checkpoint(sys.argv[1]), Path(sys.argv[2]), target=sys.argv[3], precision=sys.argv[4])
"""
PAGE = Path(__file__).parents[2] / "docs" / "sizes.md"
TABLE = "sizes"
HEAD = (
    "| model | target, precision | | s | processor s | memory, GB | without mapped files, GB | |",
    "|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Verdict:
    """What is said of an export, and whether the command fails because of it."""

    text: str
    is_failure: bool = False


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--kind", "kinds", type=click.Choice(list(KINDS)), multiple=True, help="[default: all; repeatable]")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="[default: written, proven; repeatable]")
@click.option("--short", is_flag=True, help="Few layers and a small vocabulary.")
@click.option("--write-docs", is_flag=True, help="Replace the table of docs/sizes.md by this one.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep checkpoints and bundles in this folder.")
def main(
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    parts: tuple[str, ...],
    short: bool,
    write_docs: bool,
    keep: Path | None,
) -> None:
    """Measure all exports, print a line for each, and exit with 1 if any failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the export, removes its files
    if strange := set(names) - set(SHAPES):
        raise click.UsageError(f"unknown name {min(strange)}; there are {', '.join(SHAPES)}")
    if write_docs:
        split_page(PAGE, TABLE)
    lines = [_describe_machine(), "", *HEAD]
    click.echo("\n".join(lines))
    has_failed = False
    for shape in (SHAPES[name] for name in names or SHAPES):
        for line, verdict in _measure_shape(
            shape.short() if short else shape, kinds or tuple(KINDS), parts or USUAL_PARTS, keep
        ):
            click.echo(line)
            lines.append(line)
            has_failed |= verdict.is_failure
    if write_docs:
        write_table(PAGE, TABLE, lines)
    sys.exit(has_failed)


def _measure_shape(
    shape: Shape, kinds: Sequence[str], parts: Sequence[str], keep: Path | None
) -> Iterator[tuple[str, Verdict]]:
    """Yield a line of the table and the verdict for each export of a shape."""
    with _place(shape.name, keep) as place:
        checkpoint = write_folder(shape, place / "checkpoint")
        for kind in kinds:
            for part in sorted(parts, key=PARTS.index):
                command = _command(part, checkpoint, place / kind, kind)
                usage = measure(command, place / f"{kind}-{part}.log")
                verdict = judge(shape, part, usage)
                yield _line(shape, kind, part, usage, verdict), verdict
            if keep is None:
                shutil.rmtree(place / kind, ignore_errors=True)


@contextmanager
def _place(name: str, keep: Path | None) -> Iterator[Path]:
    """Yield a folder for one shape, which is removed unless it is kept."""
    if keep is not None:
        (keep / name).mkdir(parents=True, exist_ok=True)
        yield keep / name
        return
    with tempfile.TemporaryDirectory(prefix="sizes-") as scratch:
        yield Path(scratch)


def _command(part: str, checkpoint: Path, bundle: Path, kind: str) -> list[str]:
    """Return the command of a part. It reads the bundle that an earlier part wrote, or replaces it."""
    target, precision = KINDS[kind]
    if part == "written":
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir()
        return [sys.executable, "-c", WRITE, str(checkpoint), str(bundle), target, precision]
    options = ["--target", target, "--precision", precision, "--force"]
    arguments = {
        "proven": ["export", str(checkpoint), str(bundle), *options],
        "auto": ["export", str(checkpoint), str(bundle), *options, "--auto"],
        "verify": ["verify", str(bundle)],
        "parity": ["parity", str(bundle), "--checkpoint", str(checkpoint)],
        "bisect": ["parity", str(bundle), "--checkpoint", str(checkpoint), "--bisect"],
    }
    return [sys.executable, "-m", "txport", *arguments[part]]


def judge(shape: Shape, part: str, usage: Usage) -> Verdict:
    """Compare what a command took with the limits of its shape; its time is limited for an export with its proof."""
    limits = shape.limits
    if usage.is_stopped:
        return Verdict("stopped: the machine ran out of memory", is_failure=True)
    problems = []
    if usage.code:
        problems.append(f"exit {usage.code}: {usage.last_line}".replace("|", r"\|"))
    is_failure = usage.code != 0
    if limits is not None and usage.anonymous > limits.memory * GB:
        problems.append(f"above {limits.memory:g} GB")
        is_failure = True
    if limits is not None and part == "proven" and usage.seconds > limits.seconds:
        problems.append(f"above {limits.seconds:g} s")
    return Verdict("; ".join(problems) or "ok", is_failure)


def _line(shape: Shape, kind: str, part: str, usage: Usage, verdict: Verdict) -> str:
    cells = [
        shape.name,
        " ".join(KINDS[kind]),
        part,
        f"{usage.seconds:.0f}",
        f"{usage.processor_seconds:.0f}",
        f"{usage.resident / GB:.2f}",
        f"{usage.anonymous / GB:.2f}",
        verdict.text,
    ]
    return f"| {' | '.join(cells)} |"


def _describe_machine() -> str:
    """Name the processor; its name may be that of many, so family and model are added."""
    found = machine.describe()
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    numbers = [
        f"{name} {each[1]}" for name in ("family", "model") if (each := re.search(rf"{name}\s*: (\d+)", cpuinfo))
    ]
    instructions = ", ".join(found["instructions"])
    return f"Measured on {found['cores']} cores of {found['cpu']} ({', '.join(numbers)}; {instructions})."


if __name__ == "__main__":
    main()
