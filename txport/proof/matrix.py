"""The matrix: all bundles of a checkpoint on all runtimes and providers, compared with PyTorch.

Each cell is one bundle on one runtime and provider. Its verdict is pass, near-tie (it passes with near-ties), fail or
not available; the last two have a reason. Each bundle is exported and compared once, as by `export`.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from txport import runtimes
from txport.bundles.bundle import Bundle, seal
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import OutOfMemoryError, ParityError, TxportError, UnavailableError, UnsupportedError
from txport.proof.overflow import find_overflow
from txport.proof.parity.check import Report, check
from txport.proof.parity.measures import finite
from txport.proof.proven import prove, write
from txport.system.files import staged_folder
from txport.system.packages import version_of
from txport.targets import TARGETS, target_of
from txport.version import __version__

PASS, NEAR_TIE, FAIL, NOT_AVAILABLE = "pass", "near-tie", "fail", "not available"
VERDICTS = (PASS, NEAR_TIE, FAIL, NOT_AVAILABLE)
FAILED = ParityError.exit_code  # exit code of a failed comparison; a graph that breaks its contract has another
USUAL = ("ort", "cpu")  # where most bundles are compared

Kind = tuple[str, str]  # target, precision
Engine = tuple[str, str]  # runtime, provider
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    """One bundle on one runtime and provider; numbers that were not measured are None."""

    target: str
    precision: str
    runtime: str
    provider: str
    verdict: str
    why: str = ""  # reason if it failed or is not available
    bytes: int | None = None
    worst_logit_difference: float | None = None
    near_ties: int | None = None
    loss: float | None = None  # of few bits: see bundles/comparisons.py
    rows_searched: int | None = None
    export_seconds: float | None = None
    parity_seconds: float | None = None


@dataclass(frozen=True)
class Matrix:
    """All cells; `about` describes the checkpoint, the versions and the machine."""

    about: dict[str, Any]
    cells: list[Cell]

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells per verdict."""
        found = Counter(cell.verdict for cell in self.cells)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def passed(self) -> bool:
        """True if no cell failed."""
        return not self.counts[FAIL]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; infinity and NaN become strings."""
        cells = [finite(asdict(cell)) for cell in self.cells]
        return {"verdict": PASS if self.passed else FAIL, **self.about, "counts": self.counts, "cells": cells}


def kinds(targets: Sequence[str] = (), precisions: Sequence[str] = ()) -> list[Kind]:
    """Return the supported pairs of these targets and precisions; an empty argument means all.

    Raises `UnsupportedError` for a given target or precision that has no pair.
    """
    chosen = [
        (target, precision)
        for target, made_for in TARGETS.items()
        for precision in made_for.precisions
        if (not targets or target in targets) and (not precisions or precision in precisions)
    ]
    made = {name for pair in chosen for name in pair}
    for target in targets:
        if target not in made:
            target_of(target).offered(precisions[0] if precisions else "fp32")
    for precision in precisions:
        if precision not in made:
            target_of(targets[0] if targets else "portable").offered(precision)
    return chosen


def engines(names: Sequence[str] = (), providers: Sequence[str] = ()) -> list[Engine]:
    """Return the pairs of runtime and provider to try; an empty argument means all that keep a bundle's precision.

    ONNX Runtime on the CPU is always included, as the first pair.
    """
    from txport.runtimes.ort.providers import candidates, short_name

    wanted = list(dict.fromkeys(map(short_name, providers or candidates())))
    pairs = [
        (name, provider)
        for name in names or runtimes.USUAL
        for provider in wanted
        if name == "ort" or provider == "cpu" or (names and providers)  # other runtimes have no providers
    ]
    return [USUAL, *(pair for pair in pairs if pair != USUAL)]


def fill(
    checkpoint: Checkpoint,
    chosen: Sequence[Kind],
    tried: Sequence[Engine],
    progress: Progress,
    keep: Path | None = None,
) -> Matrix:
    """Export each kind of bundle, and compare it on each runtime and provider.

    If `keep` is given, the bundles stay in this new folder; the name of a bundle that failed in any cell ends in
    `-failed`. Raises `UnavailableError` if the runtime or provider on which a target is compared is not available.
    """
    for target in dict.fromkeys(target for target, _ in chosen):
        runtimes.require(*runtimes.home(target))
    with staged_folder(keep, progress=progress) if keep else TemporaryDirectory(prefix="txport-matrix-") as folder:
        cells = [cell for kind in chosen for cell in _row(checkpoint, kind, tried, Path(folder), progress, bool(keep))]
    return Matrix(_about(checkpoint, tried), cells)


def _about(checkpoint: Checkpoint, tried: Sequence[Engine]) -> dict[str, object]:
    packages = {name: version_of(name) for name in ("torch", "onnx", "onnxscript", "numpy")}
    versions = {
        "python": platform.python_version(),
        "txport": __version__,
        **packages,
        **runtimes.versions_of(dict(tried)),
    }
    source = {"name": checkpoint.name, "sha256": checkpoint.sha256}
    return {"checkpoint": source, "versions": versions, "machine": platform.machine()}


def _row(
    checkpoint: Checkpoint, kind: Kind, tried: Sequence[Engine], folder: Path, progress: Progress, keep: bool
) -> list[Cell]:
    """Return the cells of one bundle."""
    path = folder / "-".join(kind)
    path.mkdir()
    cells = list(_cells(checkpoint, kind, tried, path, progress))
    verdicts = {cell.verdict for cell in cells}
    if not keep or verdicts == {NOT_AVAILABLE}:
        shutil.rmtree(path, ignore_errors=True)
    elif FAIL in verdicts:
        path.rename(path.with_name(f"{path.name}-failed"))
    return cells


def _cells(
    checkpoint: Checkpoint, kind: Kind, tried: Sequence[Engine], path: Path, progress: Progress
) -> Iterator[Cell]:
    proven = runtimes.home(kind[0])
    others = [each for each in tried if each not in (proven, USUAL)]
    blank = Cell(*kind, *proven, FAIL)
    begun = time.perf_counter()
    try:
        progress(f"{' '.join(kind)}: exporting")
        bundle = write(checkpoint, path, target=kind[0], precision=kind[1])
        blank = replace(blank, bytes=bundle.size, export_seconds=_since(begun))
        progress(f"{' '.join(kind)}: comparing on {' '.join(proven)}")
        begun = time.perf_counter()
        bundle, report = _proven(bundle, checkpoint)
    except OutOfMemoryError:
        raise
    except TxportError as error:
        if error.exit_code != FAILED and not isinstance(error, UnsupportedError):
            raise
        verdict = FAIL if error.exit_code == FAILED else NOT_AVAILABLE
        yield from (
            replace(blank, runtime=name, provider=each, verdict=verdict, why=_why(error, path))
            for name, each in (proven, *others)
        )
        return
    blank = replace(blank, bytes=bundle.size)
    yield _judge(blank, report, begun)
    for name, provider in others:
        progress(f"{' '.join(kind)}: comparing on {name} {provider}")
        yield compare(replace(blank, runtime=name, provider=provider), bundle, checkpoint)


def _proven(bundle: Bundle, checkpoint: Checkpoint) -> tuple[Bundle, Report]:
    """Prove a bundle; one with a value that would overflow on a GPU fails, as in `export`."""
    bundle, report = prove(bundle, checkpoint)
    if report.passed and (beyond := find_overflow(bundle, checkpoint, most_cases=1)):
        report.beyond.append(beyond)
        bundle = seal(bundle.path, replace(bundle.manifest, parity=report.summary()), written=())
    return bundle, report


def compare(blank: Cell, bundle: Bundle, checkpoint: Checkpoint) -> Cell:
    """Compare a bundle on one runtime and provider.

    "not available" means that the runtime or provider is missing, or does not support the bundle.
    """
    begun = time.perf_counter()
    try:
        runtimes.require(blank.runtime, blank.provider)
        runtimes.require_target(blank.runtime, blank.target, blank.provider)
    except (UnavailableError, UnsupportedError) as error:
        return replace(blank, verdict=NOT_AVAILABLE, why=str(error))
    try:
        with np.errstate(all="ignore"):  # the results are compared
            return _judge(blank, check(bundle, checkpoint, {blank.runtime: blank.provider}), begun)
    except UnsupportedError as error:
        return replace(blank, verdict=NOT_AVAILABLE, why=_why(error, bundle.path))
    except Exception as error:  # each runtime raises other exception types
        return replace(blank, verdict=FAIL, why=_why(error, bundle.path), parity_seconds=_since(begun))


def _why(error: Exception, path: Path) -> str:
    """Return the message of an error, without the path of a temporary bundle."""
    return str(error).replace(str(path), path.name) or type(error).__name__


def _judge(blank: Cell, report: Report, begun: float) -> Cell:
    summary = report.summary()
    ties = report.near_ties
    verdict = FAIL if not report.passed else NEAR_TIE if ties else PASS
    return replace(
        blank,
        verdict=verdict,
        why="" if report.passed else report.describe_worst(),
        worst_logit_difference=report.worst_output,
        near_ties=ties,
        loss=report.about.get("loss", {}).get("share"),
        rows_searched=summary["rows_searched"],
        parity_seconds=_since(begun),
    )


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 2)


def require_run(matrix: Matrix, asked: Mapping[str, Sequence[str]]) -> None:
    """Raise `UnavailableError` if a requested name ran in no cell.

    `asked` maps a field of `Cell`, such as "provider", to the requested names.
    """
    from txport.runtimes.ort.providers import short_name

    for field, names in asked.items():
        for name in names:
            known = short_name(name) if field == "provider" else name
            cells = [cell for cell in matrix.cells if getattr(cell, field) == known]
            if all(cell.verdict == NOT_AVAILABLE for cell in cells):
                why = cells[0].why if cells else "no bundle of these targets is compared there"
                raise UnavailableError(f"{field} {name} ran nowhere: {why}")
