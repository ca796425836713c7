"""Export, parity, matrix and bisect: a bundle is written only if it agrees with PyTorch."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txport.api.folders import listed, remember
from txport.bundles.bundle import Bundle
from txport.bundles.manifest import AUTO_LIMIT, MOST_IN_FP32
from txport.checkpoints.folder import code_name, files_of, find_folder, preset_name
from txport.errors import OutputError, ParityError, RunError, TxportError, UnsupportedError, quoted
from txport.models.names import MANIFEST
from txport.models.sentence import EXPORT_POOLINGS
from txport.system import machine
from txport.system.files import staged_folder
from txport.system.numbers import number, switch, whole
from txport.system.packages import needed
from txport.system.paths import ELSEWHERE, require_possible, told
from txport.system.progress import Progress, Stage, logged, within
from txport.targets import target_of

if TYPE_CHECKING:
    from torch.nn import Module

    from txport.checkpoints.adapters.adapter import Adapter
    from txport.checkpoints.checkpoint import Checkpoint
    from txport.exporters.cpu.calibrate import Text
    from txport.proof.bisect.culprit import Culprit
    from txport.proof.matrix import Matrix
    from txport.proof.metrics import Score
    from txport.proof.reports.report import Broken, Report

EXPORT = "txport[export]"
MOST_CASES = 10_000  # these take hours
GREATEST = 1 << 20  # far above any opset and any number of rows
MOST_SEED = 2**32 - 1


@dataclass(frozen=True)
class FewBits:
    """What weights in few bits may cost: `max_loss`, and the share `limit` of them that `auto` may keep in fp32."""

    auto: bool
    limit: float
    max_loss: float | None

    @classmethod
    def of(
        cls, auto: bool, limit: float | None, max_loss: float | None, target: str, precision: str, *, weights: bool
    ) -> FewBits:
        """Return the options of an export; raise `UnsupportedError` for what it does not suit, or is no share."""
        if not switch("auto", auto) and limit is not None:
            raise UnsupportedError("auto_limit needs auto")
        if auto and not target_of(target).has_choice(precision):
            what = "weights of int8 and int4 in fp32, on the cpu target alone"
            raise UnsupportedError(f"auto keeps {what}; {target} {precision} has none of them")
        if max_loss is not None and not target_of(target).quantises(precision):
            raise UnsupportedError(f"max_loss is what int8 and int4 may cost; {target} {precision} has neither")
        if (auto or max_loss is not None) and not weights:
            what = "auto" if auto else "max_loss"
            raise UnsupportedError(f"{what} needs weights; remove {what}, or export with weights")
        share = AUTO_LIMIT if limit is None else _share("auto_limit", limit, MOST_IN_FP32)
        return cls(auto, share, None if max_loss is None else _share("max_loss", max_loss, 1))


def _share(name: str, value: float, most: float) -> float:
    """Return a share; raise `UnsupportedError` unless it is one of at most `most`."""
    if not 0 <= (share := number(name, value)) <= most:
        raise UnsupportedError(f"{name} must lie in 0 to {most:g}, got {value}")
    return share


def load_source(bundle: Bundle, name: str | Path | Module, **how: Any) -> Checkpoint:
    """Load the checkpoint of a bundle; its model pools in the graph if the bundle does. `how`: of `load_checkpoint`."""
    checkpoint = load_checkpoint(name, **how)
    named = bundle.manifest.config.get("sentence")
    steps: tuple[str, ...] = tuple(named) if isinstance(named, list) else ()
    if not steps or not bundle.manifest.is_of(checkpoint.sha256):
        return checkpoint
    from txport.checkpoints.checkpoint import with_steps

    return with_steps(checkpoint, steps)


def load_checkpoint(
    name: str | Path | Module, *, adapter: Adapter | None = None, trust_code: bool = False
) -> Checkpoint:
    """Load a checkpoint by path or name; raise `UnavailableError` if PyTorch is not installed.

    `name` can be a module, which needs an `adapter`. With `trust_code` it is a Python file and the name of an adapter
    in it, `model.py:NAME`. Raises `ParityError` for an adapter that differs from its module.
    """
    with needed(EXPORT):
        from txport.checkpoints import checkpoint
    is_name = isinstance(name, str | Path)
    if switch("trust_code", trust_code) and not (is_name and code_name(str(name))):
        found = quoted(str(name)) if is_name else f"a {type(name).__name__}"
        raise UnsupportedError(f"trusted code is a file and the name of an adapter, model.py:NAME, got {found}")
    if is_name and adapter is not None:
        raise UnsupportedError(f"an adapter is for a module, got {quoted(name)}; a file of code has its own")
    if is_name and not trust_code:
        return checkpoint.load_checkpoint(str(name))
    if not is_name and adapter is None:
        raise UnsupportedError(f"a module needs an adapter (docs/adapters.md); got a {type(name).__name__}")
    with needed(EXPORT):
        from txport.checkpoints.adapters import load
        from txport.proof.adapters import require_sound
    loaded = load.load_code(str(name)) if is_name else load.adapt(name, adapter)
    require_sound(loaded)
    return loaded


def export(
    name: str | Path | Module,
    out: str | Path,
    *,
    adapter: Adapter | None = None,
    target: str = "portable",
    precision: str | None = None,
    opset: int | None = None,
    rows: int | None = None,
    auto: bool = False,
    auto_limit: float | None = None,
    max_loss: float | None = None,
    calibrate: str | Path | None = None,
    weights: bool = True,
    single: bool = False,
    pooling: str | None = None,
    force: bool = False,
    against: str | None = None,
    trust_code: bool = False,
    progress: Progress = logged,
) -> Bundle:
    """Export a checkpoint to a bundle at `out`, compare it with PyTorch, and write it only if both agree.

    A module of no supported architecture needs an `adapter`. With `trust_code`, `name` can be a Python file and the
    name of an adapter in it, `model.py:NAME`: see docs/adapters.md.

    `target` is "portable", "cpu" or "cuda"; `precision` is one that it supports (default: fp32, and fp16 for cuda).
    `rows` is the usual number of rows (batch x beams) per step of a quantised cpu bundle, for which its kernels are
    chosen. Without `rows`, the result for a text does not depend on the rest of its batch.
    The manifest of a quantised bundle states what few bits cost (`loss`): the share of tokens or labels that are not
    those of fp32, or the mean of 1 - cosine of vectors. An export that costs more than `max_loss` fails, or with `auto`
    gets wider forms for the matrices that cost most, at most the share `auto_limit` in fp32 (default: `AUTO_LIMIT`).
    Without `max_loss`, `auto` aims at a divergence from fp32 of 0.0002 (vectors: 0.001). int4 of the cpu target rounds
    weights by the texts in the file `calibrate`: docs/few-bits.md. Without `weights`, only graphs are written. `single`
    adds a graph to a portable bundle: docs/single-graph.md. `pooling` adds vectors of texts: docs/families/bert.md.

    `against` is the original, with which the checkpoint is compared first: "model.py:NAME" (with `trust_code`),
    "transformers" (default for folders that it saved, if installed), a folder that it runs, or "none".

    Raises `CheckpointError`, `ConfigError`, `OutputError`, `OutOfMemoryError`, or `ParityError` if results differ.
    """
    precision = target_of(target).offered(precision)
    how: dict[str, object] = {"target": target, "precision": precision, **_whole_numbers(opset=opset, rows=rows)}
    how |= {"weights": switch("weights", weights), "single": switch("single", single)}
    few_bits = FewBits.of(auto, auto_limit, max_loss, target, precision, weights=weights)
    _require_calibrated(calibrate, how)
    _require_place(name, Path(out))
    with staged_folder(Path(out), force=force, holding=MANIFEST, owned=listed, progress=progress) as folder:
        progress(Stage(f"reading {name if isinstance(name, str | Path) else 'the module'}", 0))
        is_original = against is not None and code_name(against) is not None  # what the trusted code is
        checkpoint = load_checkpoint(name, adapter=adapter, trust_code=trust_code and not is_original)
        _require_memory(checkpoint := _pooled(checkpoint, pooling), how, few_bits)
        how["original"] = _original(checkpoint, against, how, progress, trust_code=trust_code and is_original)
        how |= _texts(checkpoint, calibrate, progress)
        bundle = _written(checkpoint, folder, how, progress)
        if weights:
            bundle = _proven(bundle, checkpoint, progress, few_bits, how)
    if weights and checkpoint.folder is not None:
        remember(bundle, checkpoint.folder, checkpoint.loras)
    return replace(bundle, path=Path(out))


def _pooled(checkpoint: Checkpoint, pooling: str | None) -> Checkpoint:
    """Return the checkpoint with pooling in its graph; raise `UnsupportedError` for a pooling that it can't have."""
    if pooling is None:
        return checkpoint
    if pooling not in EXPORT_POOLINGS:
        raise UnsupportedError(f"pooling must be one of {', '.join(EXPORT_POOLINGS)}, got {quoted(pooling)}")
    from txport.checkpoints.checkpoint import pooled

    return pooled(checkpoint, pooling)


def _whole_numbers(**given: int | None) -> dict[str, int | None]:
    """Return numbers by name; raise `UnsupportedError` for one that is not whole, positive and sensible."""
    return {name: None if value is None else whole(name, value, 1, GREATEST) for name, value in given.items()}


def _require_memory(checkpoint: Checkpoint, how: Mapping[str, Any], few_bits: FewBits) -> None:
    """Raise `OutOfMemoryError` if the proof of an export, or `auto`, needs more memory than there is."""
    if not how["weights"]:  # nothing is compared
        return
    with needed(EXPORT):
        from txport.proof.memory import require_room
    require_room(checkpoint, how["target"], how["precision"], auto=few_bits.auto)


def _original(
    checkpoint: Checkpoint, against: str | None, how: Mapping[str, object], progress: Progress, *, trust_code: bool
) -> Mapping[str, object] | None:
    """Compare a checkpoint with its original and return the record of it; None for an export without weights.

    Raises `OutOfMemoryError` for too little memory, `ParityError` if they differ.
    """
    if not how["weights"]:
        if against not in (None, "none"):
            raise UnsupportedError("without weights, nothing can be compared with an original; leave out against")
        return None
    with needed(EXPORT):
        from txport.proof.against.hold import compare_original
    progress(Stage("comparing with the original", 0.02))
    return compare_original(checkpoint, against, trust_code=trust_code)


def _told(how: Mapping[str, object]) -> str:
    """Return a target and a precision for an error message."""
    return f"{how['target']} {how['precision']}{'' if how['weights'] else ' without weights'}"


def _require_calibrated(calibrate: str | Path | None, how: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` if texts are given for a bundle whose weights are not rounded by them."""
    if calibrate is not None and not (how["weights"] and how["precision"] in target_of(how["target"]).calibrates):
        raise UnsupportedError(f"calibrate rounds the weights of int4, on the cpu target alone; {_told(how)} has none")


def _texts(checkpoint: Checkpoint, calibrate: str | Path | None, progress: Progress) -> dict[str, list[Text]]:
    """Return what the model reads and writes, by which weights are rounded; {} without a file of texts."""
    if calibrate is None:
        return {}
    with needed(EXPORT):
        from txport.proof.few_bits.loss import calibration_texts
    progress(Stage("continuing the texts of the calibration", 0.03))
    return {"texts": calibration_texts(checkpoint, Path(calibrate))}


def _written(checkpoint: Checkpoint, folder: Path, how: Mapping[str, Any], progress: Progress) -> Bundle:
    """Write a bundle into a folder, without comparing it."""
    with needed(EXPORT):
        from txport.proof.proven import write
    progress(f"exporting {checkpoint.name} ({how['target']} {how['precision']})")
    progress(Stage("writing the graphs", 0.05))
    return write(checkpoint, folder, **how)


def _proven(
    bundle: Bundle, checkpoint: Checkpoint, progress: Progress, few_bits: FewBits, how: Mapping[str, Any]
) -> Bundle:
    """Compare the bundle with PyTorch and return it; with `few_bits.auto`, it is first written with wider forms.

    Raises `ParityError` if the bundle differs, or costs too much.
    """
    from txport.proof.adapters import note_on_lengths
    from txport.proof.fallback import costliest, fall_back
    from txport.proof.overflow import find_overflow
    from txport.proof.proven import prove

    if few_bits.auto:
        bounds: dict[str, Any] = {"max_loss": few_bits.max_loss, "limit": few_bits.limit}
        bundle = fall_back(bundle, checkpoint, progress, **bounds, **how)
    progress("comparing with PyTorch")
    if checkpoint.outline.fp32_only:
        progress(f"held against PyTorch in fp32: in float64 it does not run ({checkpoint.outline.fp32_only})")
    try:
        bundle, report = prove(bundle, checkpoint, max_loss=few_bits.max_loss, progress=within(progress, 0.1, 1))
    except (ParityError, RunError) as error:
        if beyond := find_overflow(bundle, checkpoint):
            raise ParityError(f"the export of {checkpoint.name} fails: {beyond}") from error
        if isinstance(error, RunError):
            raise
        raise ParityError(f"{error}{note_on_lengths(bundle, checkpoint)}") from error
    if report.is_equal and report.beyond:
        what = f"{report.beyond[0]}; {costliest(bundle, checkpoint)}"
        raise ParityError(f"the export of {checkpoint.name} costs too much: {what}")
    if not report.passed:
        beyond = find_overflow(bundle, checkpoint)
        worst = beyond or f"{report.describe_worst()}{note_on_lengths(bundle, checkpoint)}"
        raise ParityError(f"the export of {checkpoint.name} differs from PyTorch: {worst}")
    if beyond := find_overflow(bundle, checkpoint, most_cases=1):  # a CPU computes fp16 in fp32
        raise ParityError(f"the export of {checkpoint.name} would overflow on a GPU: {beyond}")
    return bundle


def _require_place(name: str | Path | Module, out: Path) -> None:
    """Raise `OutputError` for a path that can't be one, and for one that holds the checkpoint."""
    require_possible(out, OutputError)
    if isinstance(name, str | Path):
        _spare_source(str(name), out)


def _spare_source(name: str, out: Path) -> None:
    """Raise `OutputError` if the export would replace the checkpoint, or a folder that contains it."""
    if preset_name(name):
        return
    code = code_name(name)
    files = [code[0]] if code else files_of(Path(os.path.realpath(find_folder(name))))
    around = {folder for file in files for path in (file, Path(os.path.realpath(file))) for folder in path.parents}
    with told(out, ELSEWHERE):
        if out.exists() and any(out.samefile(folder) for folder in around):
            raise OutputError(f"{out} holds the checkpoint itself; choose another place")


def parity(
    bundle: Bundle,
    checkpoint: str | Path | Module,
    providers: Mapping[str, str],
    *,
    seed: int = 0,
    cases: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    metric: str | Score = "exact",
    max_loss: float | None = None,
    adapter: Adapter | None = None,
    trust_code: bool = False,
    progress: Progress = logged,
) -> Report:
    """Compare a bundle with the checkpoint that it was made from, on each runtime of `providers` (name -> provider).

    `cases` is the number of random cases in addition to the standard ones; `atol` and `rtol` tighten the tolerances.
    With `texts` and all correct outputs of each, the report contains the scores of the bundle and of PyTorch. Their
    `metric` is "exact" (the error rate), "wer", "cer", "bleu", "chrf", "accuracy", "f1", or a function
    `metric(references, outputs)` that returns points of 100, more for better outputs; `references` is a list of the
    correct outputs of each text. The comparison of a quantised bundle fails if it costs more than `max_loss` (see
    `export`).
    `checkpoint`, `adapter` and `trust_code` are those of `export`.
    """
    with needed(EXPORT):
        from txport.proof.metrics import metric_of
        from txport.proof.overflow import find_overflow
        from txport.proof.parity.check import check
        from txport.proof.parity.quality import require_targets
    require_targets(texts, metric, bundle.manifest.facts.labels)
    measure = metric_of(metric)
    seed = whole("seed", seed, 0, MOST_SEED)
    cases = whole("cases", cases, 0, MOST_CASES)
    if max_loss is not None:
        if not bundle.manifest.quantization:
            raise UnsupportedError("max_loss is what int8 and int4 may cost; this bundle has neither")
        max_loss = _share("max_loss", max_loss, 1)
    for name, value in {"atol": atol, "rtol": rtol}.items():
        if value is not None:
            number(name, value)
    source = load_source(bundle, checkpoint, adapter=adapter, trust_code=trust_code)
    how: dict[str, Any] = {"cases": cases, "atol": atol, "rtol": rtol, "texts": texts, "metric": measure}
    how["max_loss"] = max_loss
    report = check(bundle, source, providers, seed, **how, progress=progress)
    if overflow := find_overflow(bundle, source, most_cases=1 if report.passed else None):
        report.beyond.append(overflow)
    report.about["machine"] = machine.describe()
    return report


def compare(
    bundle: Bundle,
    checkpoint: str | Path | Module,
    providers: Mapping[str, str],
    *,
    baseline: Mapping[str, object] | None = None,
    with_culprit: bool = False,
    seed: int = 0,
    cases: int = 0,
    **options: Any,
) -> Report | Broken:
    """Like `parity` (`options`), plus regressions against `baseline`, an older report as JSON values.

    `with_culprit` adds the first part that differs. If a graph does not run, return `Broken` and raise nothing.
    """
    with needed(EXPORT):
        from txport.proof.reports.baseline import drift
        from txport.proof.reports.report import Broken
    if with_culprit:
        with needed(EXPORT):
            from txport.proof.bisect.culprit import require_parts
        require_parts(bundle)
    report: Report | Broken
    try:
        report = parity(bundle, checkpoint, providers, seed=seed, cases=cases, **options)
    except ParityError as error:
        report = Broken(error)
    if with_culprit:
        try:
            how = {name: options[name] for name in ("adapter", "trust_code") if name in options}
            passed = () if isinstance(report, Broken) else report.passed_cases
            culprit = bisect(bundle, checkpoint, seed=seed, cases=cases, passed=passed, **how)
            report = replace(report, bisected=True, culprit=culprit)
        except TxportError:
            if not isinstance(report, Broken):
                raise  # a graph that does not run is reported as that
    if baseline is not None and not isinstance(report, Broken):
        report.drift.extend(drift(dict(baseline), report.to_dict()))
    return report


def matrix(
    name: str | Path,
    *,
    targets: Sequence[str] = (),
    precisions: Sequence[str] = (),
    names: Sequence[str] = (),
    providers: Sequence[str] = (),
    keep: Path | None = None,
    trust_code: bool = False,
    progress: Progress = logged,
) -> Matrix:
    """Export a checkpoint for every target in every precision, and compare each bundle on every runtime and provider.

    `targets`, `precisions`, `names` (runtimes) and `providers` restrict the matrix. Each bundle is always compared on
    the runtime and the provider that `export` compares with.
    """
    with needed(EXPORT):
        from txport.proof.matrix import engines, fill, kinds
    chosen = kinds(targets, precisions)
    tried = engines(names, providers)
    return fill(load_checkpoint(name, trust_code=trust_code), chosen, tried, progress, keep)


def bisect(
    bundle: Bundle,
    checkpoint: str | Path | Module,
    *,
    seed: int = 0,
    cases: int = 0,
    adapter: Adapter | None = None,
    trust_code: bool = False,
    passed: Collection[str] = (),
) -> Culprit | None:
    """Return the first part at which a bundle differs from its checkpoint; None if there is none.

    The cases are those of `parity`; with a large model, the long ones of those that have `passed` are not tried. With
    an adapter, the result is a weight or an output, because the parts of the module are not known.
    """
    with needed(EXPORT):
        from txport.proof.bisect import culprit
        from txport.proof.context.check import compare_context
    source = load_source(bundle, checkpoint, adapter=adapter, trust_code=trust_code)
    found = culprit.bisect(bundle, source, seed=seed, more=cases, passed=passed)
    return found or culprit.of_context(compare_context(bundle, source, seed))
