"""Verify that a bundle is complete and computes the same as where it was exported, without torch or onnx.

The files are compared with their hashes, the ports of the graphs with the manifest, and the runtime's outputs with the
golden outputs, which PyTorch computed at export.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txport import runtimes
from txport.bundles.bundle import Bundle, damage, steady
from txport.bundles.comparisons import recorded_original
from txport.bundles.foreign.files import recognises
from txport.bundles.manifest import Manifest
from txport.bundles.reading import read_manifest
from txport.errors import BundleError, TxportError, UnavailableError, UnsupportedError
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.proof.parity.cases import sides
from txport.proof.parity.tolerances import coarser
from txport.proof.verify import encoding
from txport.proof.verify.at_once import SINGLE, check_single_graph
from txport.proof.verify.gaps import ALLOWED, Check, check_of, differences, gap_of, in_turn, limit_of, values_of
from txport.proof.verify.golden import (
    GREEDY,
    REAL,
    SEARCHES,
    Golden,
    find,
    load_golden,
)
from txport.runtimes.base import Floats, GraphRuntime, Runtime
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions
from txport.search.scoring import has_one_pass, logits, score
from txport.system.arrays import Array
from txport.system.machine import is_x86
from txport.system.progress import Progress, Stage, logged
from txport.system.terminal import percent
from txport.text.load import load_tokenizer
from txport.version import __version__

FILES, EXPORT, PORTS, TOKENIZER, LOGITS, BATCH = "files", "export", "ports", "tokenizer", "logits", "batch"
FIRST = (FILES, EXPORT, PORTS, TOKENIZER)
ROUNDING = 1e-5  # relative rounding error of a score: log-probs are not small even if all logits are
WIDE, FEW_KEYS = 128, 64  # numbers of a head that are always added at once, and keys up to which more are
SMALL = 16  # inputs of a 4-bit block whose sums have one order on x86 alone
SPOKEN = 12  # maximum tokens of a target that is searched both alone and in the batch
UNEVEN = 4  # one in so many tokens ends a sample, so that samples of one source have unequal lengths


@dataclass(frozen=True)
class Verification:
    """All checks of a bundle, with the runtime, provider and versions that they ran on."""

    about: dict[str, Any]
    checks: list[Check]
    seconds: float

    @property
    def passed(self) -> bool:
        """Return whether no check failed."""
        return all(check.verdict != "fail" for check in self.checks)

    @property
    def is_whole(self) -> bool:
        """Whether the files, the ports and the tokenizer are those that were exported."""
        return all(check.verdict != "fail" for check in self.checks if check.name in FIRST)

    @property
    def wrong(self) -> str:
        """Describe the first failed check in one line."""
        first = next(check for check in self.checks if check.verdict == "fail")
        return f"{first.name}: {first.detail}"

    @property
    def values(self) -> dict[str, Array]:
        """The expected and actual values of all checks, by name: docs/verify.md describes them."""
        return {name: array for check in self.checks for name, array in check.values.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as JSON values."""
        verdict = "pass" if self.passed else "fail"
        kept = ("name", "verdict", "detail")
        checks = [{name: getattr(check, name) for name in kept} for check in self.checks]
        return {"verdict": verdict, **self.about, "seconds": round(self.seconds, 3), "checks": checks}


@steady
def verify(
    path: Path,
    *,
    runtime: str = "ort",
    provider: str = "cpu",
    threads: int | None = None,
    load: Callable[..., GraphRuntime] = runtimes.load,
    progress: Progress = logged,
) -> Verification:
    """Check the bundle at `path` as it runs on one runtime and provider; `load` starts it there.

    Raises `UnavailableError` if the runtime or the provider is not installed, `BundleError` if `path` is no bundle or
    has no golden outputs, and `UnsupportedError` for models exported by other tools and for runtimes that compute in a
    coarser precision than the bundle's.
    """
    begun = time.perf_counter()
    runtimes.require_known(runtime, provider)
    if recognises(path):
        fix = f"`txport parity {path} --checkpoint CHECKPOINT` compares it with PyTorch"
        raise UnsupportedError(f"{path} was exported by others, and holds no goldens to be held to; {fix}")
    bundle = Bundle(path, read_manifest(path))
    runtimes.require_target(runtime, bundle.manifest.target, provider)
    runtimes.require(runtime, provider)
    bundle.require_weights()
    precision = bundle.manifest.arithmetic
    computed = runtimes.computes(runtime, precision)
    if precision != coarser(computed, precision):
        what = f"the goldens tell how far {precision} may be off, and {runtime} computes in {computed}"
        raise UnsupportedError(f"{what}; `txport parity --runtime {runtime}` compares it")
    names = (*FIRST, *TASKS[bundle.manifest.facts.task].names, *([SINGLE] if bundle.manifest.single else []))
    checks = list[Check]()
    progress(Stage(f"verifying {names[0]}", 0))
    for check in _checks(bundle, runtime, provider, threads, load):
        checks.append(check)
        for following in names[len(checks) :][:1]:
            progress(Stage(f"verifying {following}", len(checks) / len(names)))
    seen = {check.name for check in checks}
    checks += [Check(name, "not run", "what comes before it failed") for name in names if name not in seen]
    return Verification(_about(bundle, runtime, provider), checks, time.perf_counter() - begun)


def _about(bundle: Bundle, runtime: str, provider: str) -> dict[str, object]:
    manifest = bundle.manifest
    what = {"checkpoint": manifest.checkpoint, "target": manifest.target, "precision": manifest.precision}
    versions = {"txport": __version__, "numpy": np.__version__, **runtimes.versions_of([runtime])}
    what |= recorded_original(manifest.original)
    return {**what, "runtime": runtime, "provider": provider, "versions": versions}


def _checks(
    bundle: Bundle, name: str, provider: str, threads: int | None, load: Callable[..., GraphRuntime]
) -> Iterator[Check]:
    """Yield each check; stop if a failure makes the following checks meaningless."""
    manifest = bundle.manifest
    problems = damage(bundle)
    yield check_of(FILES, problems, f"{len(manifest.files)} files, {bundle.size / 1e6:.1f} MB")
    if problems:
        return
    task = TASKS[manifest.facts.task]
    golden = task.load(bundle)
    verdict = manifest.parity.get("verdict", "missing")
    yield check_of(EXPORT, [] if verdict == "pass" else [f"verdict {verdict}; export it again"], "equal to PyTorch")
    try:
        runtime: Any = load(name, bundle, provider=provider, threads=threads)
    except BundleError as error:
        yield check_of(PORTS, [str(error)], "")
        return
    yield check_of(PORTS, [], f"those of {', '.join(manifest.driven)}")
    yield _tokenizer(bundle, golden.sources)
    yield from task.compare(golden, runtime, manifest, unlike=_unlike(manifest, name, provider))
    if manifest.single and not runtimes.RUNTIMES[name].single:
        yield Check(SINGLE, "not run", f"{name} runs no graph that searches by itself")
    elif manifest.single:
        yield from in_turn({SINGLE: partial(check_single_graph, golden, runtime, bundle, name, provider, threads)})


def _unlike(manifest: Manifest, runtime: str, provider: str) -> str | None:
    """Return why the result of a text may depend on the other texts of its batch; None if it does not."""
    if (runtime, provider) != ("ort", "cpu"):
        return f"kernels of {runtime} {provider} depend on the batch"
    if manifest.rows:
        return f"kernels for {manifest.rows} rows depend on the batch"
    if manifest.is_quantised and manifest.made_for.is_standard:
        return "roundings of activations enlarge the last bits of attention, which depend on the batch"
    if not is_x86() and any(form.bits == 4 and form.block == SMALL for form in manifest.forms.values()):
        return f"kernels for 4-bit blocks of {SMALL} depend on the batch on this processor"
    return None


def _tokenizer(bundle: Bundle, sources: Sequence[Sequence[int]]) -> Check:
    """Check that the installed tokenizer library tokenizes text as the one used at export."""
    texts = bundle.samples[:REAL]
    try:
        tokenizer = load_tokenizer(bundle.path, bundle.manifest.facts)
        if not texts:
            return Check(TOKENIZER, "not run", "the bundle has no samples of text")
        found = [tuple(tokenizer.encode(text)) for text in texts]
    except UnavailableError:
        raise
    except TxportError as error:
        return check_of(TOKENIZER, [str(error)], "")
    problems = [
        f"{text!r} is {list(ids)}, expected {list(wanted)}"
        for text, ids, wanted in zip(texts, found, sources, strict=False)
        if ids[: sides(bundle.manifest.facts)[0]] != wanted
    ]
    return check_of(TOKENIZER, problems[:1], f"{len(texts)} samples")


def compare(golden: Golden, runtime: Runtime, manifest: Manifest, unlike: str | None = None) -> Iterator[Check]:
    """Compare a runtime with the golden outputs; unless `unlike`, also compare each source alone with the batch."""
    found: list[Floats] = []
    sources = golden.given(manifest.facts)

    def check_logits() -> Check:
        found.extend(logits(runtime, sources, golden.targets, manifest.facts, by_step=True))
        check = compare_logits(golden, found, manifest.arithmetic)
        if check.verdict != "pass" or not has_one_pass(runtime, manifest.facts):
            return check
        passed = compare_logits(golden, logits(runtime, sources, golden.targets, manifest.facts), manifest.arithmetic)
        return check if passed.verdict == "pass" else replace(passed, detail=f"{passed.detail}, in one pass")

    def check_batch() -> Check:
        return Check(BATCH, "not run", unlike) if unlike else compare_batches(golden, found, runtime, manifest)

    checks: dict[str, Callable[[], Check]] = {LOGITS: check_logits}
    checks |= {name: partial(compare_search, name, golden, runtime, manifest) for name in SEARCHES}
    checks[BATCH] = check_batch
    yield from in_turn(checks)


def compare_logits(golden: Golden, found: Sequence[Floats], precision: str) -> Check:
    """Compare the logits of each target token, given the tokens before it (teacher forcing)."""
    gaps = [gap_of(stored, values, precision) for stored, values in zip(golden.logits, found, strict=True)]
    worst = max(range(len(gaps)), key=lambda row: (np.isnan(gaps[row][0]), gaps[row][0]))
    share, where = gaps[worst]
    seen = f"{sum(map(len, golden.targets))} tokens, at worst {percent(share, ALLOWED)}"
    kept: dict[str, Array] = {}
    for row, (stored, values) in enumerate(zip(golden.logits, found, strict=True)):
        kept |= values_of(f"source_{row}.{LOGITS}", stored, values)
    if share <= 1:
        return Check(LOGITS, "pass", seen, kept)
    return Check(LOGITS, "fail", f"{seen}: source {worst}, {where}", kept)


def compare_batches(golden: Golden, together: Sequence[Floats], runtime: Runtime, manifest: Manifest) -> Check:
    """Check that each source alone has the same logits, samples and beams as in the batch.

    Small differences are allowed, because the processor determines the kernels and their summation order.
    """
    facts = manifest.facts
    if manifest.quantization and _widest_head(facts) > WIDE:
        golden = _short(golden)
        together = logits(runtime, golden.given(facts), golden.targets, facts, by_step=True)
    found = {True: together}
    if has_one_pass(runtime, facts):
        found[False] = logits(runtime, golden.given(facts), golden.targets, facts)
    problems = []
    most = 0.0
    for by_step, row in product(found, range(len(together))):
        stored = golden.logits[row]
        (alone,) = logits(runtime, [golden.given(facts)[row]], [golden.targets[row]], facts, by_step=by_step)
        gaps = differences(alone, found[by_step][row], stored).max(axis=1)
        limit = limit_of(stored, manifest)
        if others := np.flatnonzero(~(gaps <= limit)).tolist():
            what = f"by up to {gaps.max():.2g}, allowed {limit:.2g}{'' if by_step else ', in one pass'}"
            problems.append(f"source {row} alone has other logits from step {others[0]} on, {what}")
        most = max(most, float(gaps.max()))
    near = "to the last bit" if most == 0 else f"within {most:.2g}"
    problems += [] if problems else _unlike_alone(golden, runtime, manifest)
    return check_of(BATCH, problems[:1], f"{len(together)} rows are the same alone and together, {near}")


def _widest_head(facts: Facts) -> int:
    """Return the numbers of the widest key or value of a head."""
    return max((each.shape(1, 1)[-1] for each in facts.state), default=0)


def _short(golden: Golden) -> Golden:
    """Return the golden outputs of the sources whose sums do not depend on the length of the batch, for wide heads.

    ONNX Runtime adds the products of more than 128 numbers at once for up to 64 keys, and in two parts for more keys.
    8-bit activations enlarge the difference.
    """
    pairs = zip(golden.sources, golden.targets, strict=True)
    rows = [row for row, (source, target) in enumerate(pairs) if len(source) + max(len(target), SPOKEN) <= FEW_KEYS]

    def of_rows(values: Sequence[object]) -> list[Any]:
        return [values[row] for row in rows]

    lists: dict[str, Any] = {
        name: of_rows(getattr(golden, name)) for name in ("sources", "targets", "logits", "steady")
    }
    return replace(golden, **lists, found={name: of_rows(each) for name, each in golden.found.items()})


def _unlike_alone(golden: Golden, runtime: Runtime, manifest: Manifest) -> Iterator[str]:
    """Describe the searches with several rows per source that find other targets alone than in the batch.

    Some rows of a source end before the others.
    """
    facts = manifest.facts
    ends = range(0, facts.writes.size, UNEVEN)
    is_heard = isinstance(facts.reads, Features)  # each row has a cache of all features, so a source has one row
    searches: dict[str, dict[str, Any]] = {
        "samples": {"do_sample": True, "nbest": 1 if is_heard else 3, "seed": 0, "eos_token_id": ends},
        "beam groups": {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "nbest": 4},
    }
    if is_heard:
        del searches["beam groups"]
    for name, how in searches.items():
        options = SearchOptions(max_new_tokens=min(SPOKEN, golden.longest), **how)
        together = generate(runtime, golden.given(facts), facts, options)
        alone = [generate(runtime, [source], facts, options)[0] for source in golden.given(facts)]
        limits = [2 * limit_of(stored, manifest) for stored in golden.logits]
        other = [row for row, limit in enumerate(limits) if not _same(together[row], alone[row], limit)]
        if len(other) > (0 if manifest.quantization else 1):  # rounding may change one sample, but hardly two
            first, second = (", ".join(map(_describe_found, each[other[0]])) for each in (alone, together))
            yield f"source {other[0]} alone has other {name}: {first}, together {second}"


def _same(ones: Sequence[Found], others: Sequence[Found], limit: float) -> bool:
    """Return whether two lists of targets have the same tokens, and scores that differ by at most `limit`."""
    tokens = [one.tokens for one in ones] == [other.tokens for other in others]
    return tokens and not any(_differ(one, other, limit) for one, other in zip(ones, others, strict=True))


def compare_search(name: str, golden: Golden, runtime: Runtime, manifest: Manifest) -> Check:
    """Compare the tokens and scores of a search; other tokens pass if they are as good within the noise."""
    expected = golden.found[name]
    actual = find(runtime, manifest.facts, golden.given(manifest.facts), name, golden.longest)
    pairs = list(zip(expected, actual, strict=True))
    other = [row for row, (one, two) in enumerate(pairs) if one.tokens != two.tokens]
    limits = [stored.noise for stored in golden.logits]
    wrong = {row for row, (one, two) in enumerate(pairs) if row not in other and _differ(one, two, limits[row])}
    equal = len(pairs) - len(other) - len(wrong)
    wrong |= set(_worse(name, golden, actual, {row: limits[row] for row in other}, runtime, manifest))
    open_ = len(set(other) - wrong)
    seen = f"{equal} of {len(pairs)} rows are equal" + (f", {open_} within the noise" if open_ else "")
    for row in sorted(wrong)[:1]:
        seen += f"; source {row}: {_describe_found(actual[row])}, expected {_describe_found(expected[row])}"
    kept: dict[str, Array] = {}
    for row, (one, two) in enumerate(pairs):
        own = f"source_{row}.{name.replace(' ', '_')}"
        kept |= {f"{own}.expected": np.array(one.tokens), f"{own}.actual": np.array(two.tokens)}
    return Check(name, "fail" if wrong else "pass", seen, kept)


def _worse(
    name: str, golden: Golden, actual: list[Found], limits: dict[int, float], runtime: Runtime, manifest: Manifest
) -> Iterator[int]:
    """Yield the rows whose different tokens are worse, by the runtime's teacher-forced scores of both targets.

    These scores are trusted because `compare_logits` compares them with PyTorch's. In greedy search, the first two
    tokens that differ must be equally good. In beam search, the whole targets must be, unless noise may decide. The
    score of each target must equal the runtime's teacher-forced score.
    """
    if not limits:
        return
    ours, theirs = (
        score(
            runtime,
            [golden.given(manifest.facts)[row] for row in limits],
            [each[row].tokens for row in limits],
            manifest.facts,
            by_step=True,
        )
        for each in (golden.found[name], actual)
    )
    for (row, limit), one, two in zip(limits.items(), ours, theirs, strict=True):
        if name == GREEDY:
            is_far = not _parting(one, two) <= 2 * limit
        else:
            is_far = golden.steady[row] and _differ(one, two, limit)
        if is_far or _differ(golden.found[name][row], one, limit) or _differ(actual[row], two, limit):
            yield row


def _parting(one: Found, two: Found) -> float:
    """Return the score difference of the first two tokens that differ; infinite if one target is a prefix."""
    pairs = enumerate(zip(one.tokens, two.tokens, strict=False))
    first = next((at for at, (each, other) in pairs if each != other), None)
    return np.inf if first is None else abs(one.token_scores[first] - two.token_scores[first])


def _differ(one: Found, two: Found, limit: float) -> bool:
    """Return whether two scores differ by more than `limit`; False in greedy search, which has no scores."""
    rounding = ROUNDING * max(1.0, abs(one.score))
    return not np.isnan(one.score) and not abs(one.score - two.score) <= limit + rounding


def _describe_found(found: Found) -> str:
    return f"{list(found.tokens)}" + ("" if np.isnan(found.score) else f" (score {found.score:.6g})")


class Task(NamedTuple):
    """How bundles of a task are verified: the names of the checks, the loader of golden outputs, and the comparison."""

    names: tuple[str, ...]
    load: Callable[[Bundle], Any]
    compare: Callable[..., Iterator[Check]]


GENERATING = Task((LOGITS, *SEARCHES, BATCH), load_golden, compare)
TASKS = {
    "seq2seq": GENERATING,
    "causal": GENERATING,
    "encode": Task(encoding.NAMES, encoding.load_golden, encoding.compare),
}
