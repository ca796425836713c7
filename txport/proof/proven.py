"""Writing a bundle from a checkpoint, and comparing it with PyTorch, which also records its golden outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from txport import runtimes
from txport.bundles.bundle import Bundle, seal
from txport.checkpoints.checkpoint import Checkpoint, smoothed
from txport.errors import ConfigError, ParityError, UnsupportedError
from txport.exporters import export as exporter
from txport.models.audio import Features
from txport.models.facts import Task
from txport.models.names import GOLDEN
from txport.proof.parity.check import Report, check, exact_of, fitting_threads, is_large, size_of
from txport.proof.parity.exact import Exact, Ids, largest_difference
from txport.proof.parity.tolerances import Tolerance, tolerance_of
from txport.proof.verify import encoding, golden
from txport.proof.verify.check import verify
from txport.runtimes.base import GraphRuntime
from txport.runtimes.inputs import infer
from txport.runtimes.pytorch import TorchRuntime
from txport.search.options import require_defaults
from txport.system.progress import Progress, Stage, logged, within
from txport.text.load import load_tokenizer

SLOW = 500_000_000  # parameters of a model whose golden outputs have fewer tokens: PyTorch reads all for each of them


def write(checkpoint: Checkpoint, folder: Path, *, original: Mapping[str, object] | None = None, **how: Any) -> Bundle:
    """Write the files of a bundle into an empty folder, without comparing it.

    `original` is the record of the comparison with the original, and `how` are the arguments of `export_graphs`. Raises
    `ConfigError` if the checkpoint's generation options are not valid.
    """
    try:
        require_defaults(checkpoint.generation, checkpoint.facts)
    except UnsupportedError as error:
        what = checkpoint.facts.ability or "generation"
        raise ConfigError(f"the {what} options of {checkpoint.folder} are not valid: {error}") from error
    manifest = exporter.export_graphs(checkpoint, folder, **how)
    return seal(folder, dataclasses.replace(manifest, original=dict(original or {})))


def prove(
    bundle: Bundle,
    checkpoint: Checkpoint,
    *,
    seed: int = 0,
    cases: int = 0,
    max_loss: float | None = None,
    progress: Progress = logged,
) -> tuple[Bundle, Report]:
    """Compare a bundle with PyTorch on its target's runtime; return the bundle with its verdict, and the report.

    If the bundle passes, golden outputs are added. A cuda bundle runs on the GPU, or on the CPU if there is none; the
    verdict states which. `seed`, `cases` and `max_loss` are those of `check`. Raises `ParityError` if a graph does not
    run, or if the bundle does not reproduce the golden outputs on this machine.
    """
    checkpoint = smoothed(checkpoint, bundle.manifest.smoothing)
    runtime, provider = runtimes.home(bundle.manifest.target)
    searches = bundle.manifest.single or not is_large(checkpoint)  # golden outputs have searches of their own
    how: dict[str, Any] = {"cases": cases, "searches": searches, "max_loss": max_loss}
    how["progress"] = within(progress, 0, 0.7)
    how["load"] = load = partial(_load_once, {})  # packing the weights of a large bundle takes long
    exact = cache(partial(exact_of, bundle, checkpoint))
    report = check(bundle, checkpoint, {runtime: provider}, seed, exact=exact, **how)
    if report.passed:
        progress(Stage("recording golden outputs", 0.7))
        with fitting_threads(checkpoint), exact().encoding_once() as right:
            _add_golden(bundle, checkpoint, right)
        del right  # and what it has encoded
        exact.cache_clear()
    proven = dataclasses.replace(bundle.manifest, parity=report.summary(), loss=report.about.get("loss", {}))
    bundle = seal(bundle.path, proven, written=[GOLDEN])
    if report.passed:
        result = verify(bundle.path, runtime=runtime, provider=provider, load=load, progress=within(progress, 0.9, 1))
        if not result.passed:
            raise ParityError(f"the export of {checkpoint.name} can't be verified: {result.wrong}")
    return dataclasses.replace(bundle, measured=report.figures()), report


def _load_once(loaded: dict[str, GraphRuntime], name: str, bundle: Bundle, **how: Any) -> GraphRuntime:
    """Return a bundle on a runtime, started when it is needed first; its graphs must stay the same."""
    if name not in loaded:
        loaded[name] = runtime = runtimes.load(name, bundle, **how)
        if isinstance(bundle.manifest.facts.reads, Features):
            vars(runtime)["encoded"] = {}  # of few sources, which are encoded once
    return loaded[name]


def _add_golden(bundle: Bundle, checkpoint: Checkpoint, exact: Exact) -> None:
    tokenizer = load_tokenizer(bundle.path, checkpoint.facts)
    real = [tokenizer.encode(text) for text in bundle.samples[: golden.REAL]]
    size = golden.Size(golden.LONGEST)
    if is_large(checkpoint) and isinstance(checkpoint.facts.reads, Features):  # which all have one length, a long one
        size = golden.Size(golden.BRIEF, golden.FEW, disturbed=1, draws=1)
    elif is_large(checkpoint):
        longest = golden.BRIEF if size_of(checkpoint) > SLOW else golden.SHORT
        size = golden.Size(longest, disturbed=1, draws=golden.FEW_DRAWS)
    tolerance = tolerance_of(bundle.manifest.arithmetic)
    RECORDERS[checkpoint.facts.task](bundle, exact, tolerance, real, size)


def _record_generation(bundle: Bundle, exact: Exact, tolerance: Tolerance, real: Ids, size: golden.Size) -> None:
    model = exact.model
    noise_of = tolerance.lasting_noise
    runtime = TorchRuntime(model)
    errors_of = partial(exact.rounding_errors, draws=size.draws)
    with exact.reproduced():
        found = golden.record(runtime, model.facts, real, exact.logits, errors_of, noise_of, size)
    golden.save_golden(bundle.path / GOLDEN, found)


def _record_encoding(bundle: Bundle, exact: Exact, tolerance: Tolerance, real: Ids, size: golden.Size) -> None:
    def errors_of(sources: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        with exact.reproduced():
            right = infer(TorchRuntime(exact.model), sources, facts)
        errors = [dict.fromkeys(each, 0.0) for each in right]
        for found in islice(exact.draws(lambda model: infer(TorchRuntime(model), sources, facts)), size.draws):
            for worst, one, other in zip(errors, right, found, strict=True):
                for name, error in worst.items():
                    worst[name] = max(error, largest_difference(one[name], other[name]))
        return errors

    facts = exact.model.facts
    with exact.reproduced():
        found = encoding.record(TorchRuntime(exact.model), facts, real, errors_of, tolerance.lasting_noise)
    encoding.save_golden(bundle.path / GOLDEN, found)


RECORDERS: dict[Task, Callable[[Bundle, Exact, Tolerance, Ids, golden.Size], None]] = {
    "seq2seq": _record_generation,
    "causal": _record_generation,
    "encode": _record_encoding,
}
