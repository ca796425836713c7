"""Golden outputs of an encoder-only model, and the comparison of a runtime with them.

Shape comments: T tokens of a source, or 1 for an output of the whole source; C numbers of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txport.bundles.bundle import Bundle
from txport.bundles.manifest import Manifest
from txport.errors import BundleError
from txport.models.facts import Facts, Output
from txport.models.names import GOLDEN
from txport.proof.masks import largest_of
from txport.proof.parity.cases import Draw
from txport.proof.verify.gaps import ALLOWED, Check, check_of, differences, gap_of, in_turn, limit_of, values_of
from txport.proof.verify.golden import (
    DRAWN,
    IDS,
    NUMBERS,
    REAL,
    ROWS,
    TABLE,
    Arrays,
    GoldenLogits,
    lists_of,
    pack,
    require_tokens,
    shorten,
    split,
    stored_arrays,
    stored_values,
)
from txport.runtimes.base import EncoderRuntime, Floats, Outputs
from txport.runtimes.inputs import infer
from txport.system.arrays import Array, read_arrays
from txport.system.documents import DocumentError
from txport.system.terminal import percent
from txport.targets.ports import LOGITS

OUTPUTS, BATCH = "outputs", "batch"
NAMES = (OUTPUTS, BATCH)
MEMBERS = {"ids": ROWS, "values": TABLE, "sums": TABLE, "largest": NUMBERS, "rms": NUMBERS, "noise": NUMBERS}


@dataclass(frozen=True)
class EncoderGolden:
    """Sources, and a summary of each output of each source, in the form of a summary of logits."""

    sources: list[tuple[int, ...]]
    outputs: dict[str, list[GoldenLogits]]


def record(
    runtime: EncoderRuntime,
    facts: Facts,
    real: Iterable[Sequence[int]],
    errors_of: Callable[[Sequence[Sequence[int]]], list[dict[str, float]]],
    noise_of: Callable[[float, float], float],
) -> EncoderGolden:
    """Record the outputs of a correct runtime for `real` and random sources.

    `errors_of(sources)` returns the error of the best kernels in each output of each source. `noise_of(largest, error)`
    returns the allowed change of a number of an output.
    """
    known = [tuple(source) for source in real][:REAL]
    drawn = Draw(facts, np.random.default_rng(0)).sources(*(min(length, facts.vocabulary.longest) for length in DRAWN))
    sources = [*known, *map(tuple, drawn)]
    found = infer(runtime, sources, facts)
    errors = errors_of(sources)
    outputs = {
        each.name: [
            shorten(rows := table(each, one), noise_of(largest_of(rows), error[each.name]))
            for one, error in zip(found, errors, strict=True)
        ]
        for each in facts.outputs
    }
    return EncoderGolden(sources, outputs)


def table(output: Output, found: Outputs) -> Floats:
    """Return an output of one source as (T, C)."""
    values: Floats = found[output.name].astype(np.float32, copy=False)
    return values.reshape(len(values), -1) if output.is_of_tokens else values[None]


def save_golden(path: Path, golden: EncoderGolden) -> None:
    """Write one .npz file; equal golden outputs have equal bytes."""
    arrays = pack("sources", golden.sources)
    for name, stored in golden.outputs.items():
        arrays |= {f"{name}.{member}": array for member, array in stored_arrays(stored).items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]  # its keywords are arrays but for one


def load_golden(bundle: Bundle) -> EncoderGolden:
    """Return the golden outputs of a bundle; raise `BundleError` if it has none, or if they do not fit its model."""
    if GOLDEN not in bundle.manifest.files:
        raise BundleError(f"{bundle.path} holds no {GOLDEN} to be verified with; export it again")
    path = bundle.path / GOLDEN
    facts = bundle.manifest.facts
    members = {f"{each.name}.{name}": kind for each in facts.outputs for name, kind in MEMBERS.items()}
    try:
        return _unpack(read_arrays(path, {"sources": IDS, "sources.lengths": IDS, **members}), facts)
    except DocumentError as error:
        raise BundleError(f"{error}; export the bundle again") from error
    except ValueError as error:
        raise BundleError(f"{path} is damaged: {error}; export the bundle again") from error


def _unpack(arrays: Arrays, facts: Facts) -> EncoderGolden:
    sources = lists_of(arrays, "sources")
    require_tokens(sources, facts.source_ids, facts.vocabulary.longest)
    outputs = {}
    for each in facts.outputs:
        own = {name: arrays[f"{each.name}.{name}"] for name in MEMBERS}
        counts = arrays["sources.lengths"] if each.is_of_tokens else np.ones(len(sources), np.int64)
        parts = {name: split(own, name, counts) for name in ("ids", "values", "sums")}
        outputs[each.name] = stored_values(own, parts, each.shape(1, 1)[-1], len(sources))
    return EncoderGolden(sources, outputs)


def compare(
    golden: EncoderGolden, runtime: EncoderRuntime, manifest: Manifest, unlike: str | None = None
) -> Iterator[Check]:
    """Compare a runtime with the golden outputs; unless `unlike`, also compare each source alone with the batch."""
    found: list[Outputs] = []

    def check_outputs() -> Check:
        found.extend(infer(runtime, golden.sources, manifest.facts))
        return compare_outputs(golden, found, manifest)

    def check_batch() -> Check:
        return Check(BATCH, "not run", unlike) if unlike else compare_batches(golden, found, runtime, manifest)

    yield from in_turn({OUTPUTS: check_outputs, BATCH: check_batch})


def compare_outputs(golden: EncoderGolden, found: Sequence[Outputs], manifest: Manifest) -> Check:
    """Compare every output of every source."""
    worst = -1.0
    where = ""
    for each in manifest.facts.outputs:
        for row, (stored, one) in enumerate(zip(golden.outputs[each.name], found, strict=True)):
            hidden = not each.name.endswith(LOGITS)
            share, place = gap_of(stored, table(each, one), manifest.arithmetic, hidden=hidden)
            if not share <= worst:  # NaN is worse than any
                worst = share
                where = f"source {row}, {each.name}, {place}"
            if np.isnan(share):
                break
    names = " and ".join(each.name for each in manifest.facts.outputs)
    seen = f"{names} of {len(found)} sources, at worst {percent(worst, ALLOWED)}"
    kept: dict[str, Array] = {}
    for each in manifest.facts.outputs:
        for row, (stored, one) in enumerate(zip(golden.outputs[each.name], found, strict=True)):
            kept |= values_of(f"source_{row}.{each.name}", stored, table(each, one))
    return Check(OUTPUTS, "pass", seen, kept) if worst <= 1 else Check(OUTPUTS, "fail", f"{seen}: {where}", kept)


def compare_batches(
    golden: EncoderGolden, together: Sequence[Outputs], runtime: EncoderRuntime, manifest: Manifest
) -> Check:
    """Check that each source alone has the same outputs as in the batch, but for small differences."""
    problems = []
    most = 0.0
    for row, source in enumerate(golden.sources):
        alone = infer(runtime, [source], manifest.facts)[0]
        for each in manifest.facts.outputs:
            stored = golden.outputs[each.name][row]
            gap = float(differences(table(each, alone), table(each, together[row]), stored).max())
            limit = limit_of(stored, manifest)
            if not gap <= limit:
                problems.append(f"source {row} alone has another {each.name}, by {gap:.2g}, allowed {limit:.2g}")
            most = max(most, gap)
    near = "to the last bit" if most == 0 else f"within {most:.2g}"
    if problems and manifest.quantization:
        problems[0] += "; a bundle that was exported with rows=ROWS does not promise that they are the same"
    return check_of(BATCH, problems[:1], f"{len(together)} rows are the same alone and together, {near}")
