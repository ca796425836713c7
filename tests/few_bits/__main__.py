"""What few bits cost with real weights, and which faults are found in them: `python -m tests.few_bits`.

`--faults` plants each fault of `faults.py` into exports of small models, in every target and precision, and prints what
is found by export and by parity, and named by --bisect. It exits with 1 if one is not.

With folders, each is exported, and a table printed. Each bundle of the cpu target is compared with the fp32 bundle of
the same folder. A model with a chat template answers 30 questions, one row at a time, with 48 greedy tokens. An encoder
makes vectors of 400 sentences of the docs. An encoder-decoder reads what `--sources` gives. int4 of the others is also
calibrated with calibration.txt, which has none of these questions. `--precision` selects. Bundles are written without
proof; random weights have no large inputs, so they hide what few bits cost.
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import txport
from benchmarks.peers.engines import begins
from benchmarks.peers.environments import pythons_of
from tests.few_bits import peers, planted
from tests.few_bits.noise import write_noisy
from tests.instruction_sets import describe_processor
from tests.pages import split_page, write_table
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.proof.few_bits.loss import calibration_texts
from txport.proof.proven import write

Array = NDArray[np.float64]

QUESTIONS = Path(__file__).with_name("questions.txt")
DOCS = Path(__file__).parents[2] / "docs"
TOKENS, SENTENCES, NEAREST = peers.TOKENS, 400, 10
PAGE, TABLE = DOCS / "few-bits.md", "faults"
SHORTEST, LONGEST = 40, 160  # characters of a sentence
CALIBRATION = Path(__file__).with_name("calibration.txt")
SOURCES_HELP = "What encoder-decoders read: token ids, a source a line, or features (N, M, F) in a .npy file."
FORMS: tuple[tuple[str, int | None, bool], ...] = (
    ("int8", None, False),
    ("int8", 1, False),
    ("int4", None, False),
    ("int4", None, True),
    ("int4", 1, False),
    ("int4", 1, True),
)
HEAD = ("| model | precision | size, MB | as in fp32 |", "|---|---|---|---|")


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--faults", is_flag=True, help="Plant faults.")
@click.option("--sources", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=SOURCES_HELP)
@click.option("--precision", type=click.Choice(["int8", "int4"]), help="Only this precision of folders.")
@click.option("--peers", "with_peers", is_flag=True, help="Other engines with the same folders, ids and sentences.")
@click.option("--peers-python", multiple=True, help="As of `python -m benchmarks.peers`.")
@click.option("--noise", is_flag=True, help="First add noise to the matrices, since weights may have been in 4 bits.")
@click.option("--write-docs", is_flag=True, help="Replace the table of faults in docs/few-bits.md by this one.")
def main(
    folders: tuple[Path, ...],
    faults: bool,
    sources: Path | None,
    precision: str | None,
    with_peers: bool,
    peers_python: tuple[str, ...],
    noise: bool,
    write_docs: bool,
) -> None:
    """Print the table of faults, and a line for each folder and form."""
    if not (folders or faults) or (write_docs and not faults):
        raise click.UsageError("give folders with real weights, or --faults, which alone writes docs")
    if folders:
        click.echo("\n".join([f"Measured on {describe_processor()}.", "", *HEAD]))
    pythons = pythons_of(peers_python) if with_peers else {}
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch, folder.name)
            if noise:
                write_noisy(folder, place)
            for line in lines_of(place if noise else folder, sources, precision, pythons):
                click.echo(line)
    if faults:
        sys.exit(not print_faults(write_docs=write_docs))


def print_faults(*, write_docs: bool) -> bool:
    """Print the table of planted faults; return whether each one is found and named."""
    if write_docs:
        split_page(PAGE, TABLE)
    outcomes = planted.examine_all()
    lines = list(planted.lines_of(outcomes))
    click.echo("\n".join(lines))
    if write_docs:
        write_table(PAGE, TABLE, lines)
    missed = [f"{each.words}: {outcome.words}" for each, outcome in outcomes.items() if not outcome.is_found]
    click.echo("\n".join(["", f"{len(outcomes) - len(missed)} of {len(outcomes)} are found and named", *missed]))
    return not missed


def lines_of(folder: Path, sources: Path | None, precision: str | None, pythons: Mapping[str, Path]) -> Iterator[str]:
    """Yield the lines of the table for one folder: those of txport's forms, then those of the peers in `pythons`."""
    checkpoint = load_checkpoint(str(folder))
    is_encoder = not checkpoint.facts.generates
    is_paired = checkpoint.facts.is_encoder_decoder
    if is_paired and sources is None:
        raise click.UsageError(f"{folder} is an encoder-decoder: give what it reads by --sources")
    outputs: Callable[[Any, Any], Any] = vectors_of if is_encoder else answers_of
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, "fp32")
        place.mkdir()
        write(checkpoint, place, target="cpu", precision="fp32")
        model = txport.load(place)
        given = given_to(model, sources)
        expected = outputs(model, given)

        def line(name: str, place: Path, actual: Any) -> str:
            size = sum(each.stat().st_size for each in place.rglob("*") if each.is_file()) / 1e6
            figures = compare_vectors(expected, actual) if is_encoder else compare_answers(expected, actual)
            return f"| {folder.name} | {name} | {size:.0f} | {figures} |"

        forms = [form for form in FORMS if precision in (None, form[0]) and not (is_paired and form[2])]
        for name, place in bundles(checkpoint, forms, Path(scratch)):
            yield line(name, place, outputs(txport.load(place), given))
        if pythons:
            read = str(sources) if isinstance(given, np.ndarray) else given
            for name, place, found in peers.run_all(folder, precision, read, model.facts, Path(scratch), pythons):
                yield line(name, place, unit(found) if is_encoder else with_ends(found, model.facts.writes.end))


def bundles(
    checkpoint: Checkpoint, forms: Sequence[tuple[str, int | None, bool]], scratch: Path
) -> Iterator[tuple[str, Path]]:
    """Write txport's bundles; yield the name of each form with its folder."""
    texts = calibration_texts(checkpoint, CALIBRATION) if any(calibrated for *_, calibrated in forms) else []
    for precision, rows, calibrated in forms:
        place = scratch / f"{precision}-{rows}-{calibrated}"
        place.mkdir()
        write(checkpoint, place, target="cpu", precision=precision, rows=rows, texts=texts if calibrated else [])
        name = precision if rows is None else f"{precision} `--rows {rows}`"
        yield name + (", calibrated" if calibrated else ""), place


def given_to(model: Any, sources: Path | None) -> Any:
    """Return what a model reads: sentences or questions as ids, or `sources`, which may be features (N, M, F)."""
    if not model.facts.generates:
        return [model.encode(each) for each in sentences()]
    if not model.facts.is_encoder_decoder:
        encode = model.reading_chats().tokenizer.encode
        return [encode(question) for question in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    assert sources is not None
    if sources.suffix == ".npy":
        return np.load(sources)
    return [[int(word) for word in line.split()] for line in sources.read_text(encoding="utf-8").splitlines()]


def answers_of(model: Any, given: Any) -> list[tuple[int, ...]]:
    """Return the greedy tokens after each source and the first tokens of a target, one source at a time."""
    begin = begins(model.facts)
    how: dict[str, Any] = {"prefixes": [begin]} if begin else {}
    return [model.search([each], max_new_tokens=TOKENS, **how)[0][0].tokens[len(begin) :] for each in given]


def with_ends(answers: list[list[int]], end: int) -> list[tuple[int, ...]]:
    """Return the answers of a peer with the end token where it wrote one, as txport returns it."""
    return [tuple(answer) if len(answer) == TOKENS else (*answer, end) for answer in answers]


def compare_answers(expected: list[tuple[int, ...]], actual: list[tuple[int, ...]]) -> str:
    """Describe how many tokens are those of fp32 before the first other one, and how many answers."""
    rows = list(zip(expected, actual, strict=True))
    until = [TOKENS if one == other else _until(one, other) for one, other in rows]
    equal = sum(one == other for one, other in rows)
    return (
        f"{np.mean(until):.1f} of {TOKENS} tokens until the first other one; {equal} of {len(rows)} answers are equal"
    )


def _until(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), len(one))


@functools.cache  # the docs may be edited while it measures
def sentences() -> list[str]:
    """Return plain sentences of the docs."""
    text = " ".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    every = (re.sub(r"\s+", " ", each).strip() for each in re.split(r"(?<=[.!?])\s", text))
    return [each for each in every if SHORTEST < len(each) < LONGEST and not re.search(r"[|`#*]", each)][:SENTENCES]


def vectors_of(model: Any, _given: Any) -> Array:
    """Return a vector of length 1 for each sentence, (N, D)."""
    return unit(model.embed(sentences()))


def unit(vectors: Any) -> Array:
    """Return vectors of length 1."""
    found = np.asarray(vectors, np.float64)
    scaled: Array = found / np.linalg.norm(found, axis=1, keepdims=True)
    return scaled


def compare_vectors(expected: Array, actual: Array) -> str:
    """Describe the angles between the vectors, and the share of the nearest sentences that stay."""
    costs = 1 - (expected * actual).sum(axis=1)
    pairs = zip(_nearest(expected), _nearest(actual), strict=True)
    kept = np.mean([len(one & other) / NEAREST for one, other in pairs])
    return f"1 - cosine {costs.mean():.5f}, at worst {costs.max():.5f}; {kept:.1%} of the {NEAREST} nearest stay"


def _nearest(vectors: Array) -> list[set[int]]:
    near = vectors @ vectors.T
    np.fill_diagonal(near, -np.inf)
    return [set(row) for row in np.argsort(-near, axis=1)[:, :NEAREST].tolist()]


if __name__ == "__main__":
    main()
