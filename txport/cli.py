"""The command line: data to stdout, progress to stderr, one line for an error, and an exit code that means something.

0 good; 1 a check failed; 2 wrong usage or bad input; 3 what was asked for is not available here.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from click.core import ParameterSource

from txport import __version__
from txport.models.bundle import AUTO_LIMIT, PRECISIONS, TARGETS, percent
from txport.models.errors import OutputError, ParityError, TxportError, UnsupportedError
from txport.runtimes import GRAPH_RUNTIMES, MODULES

F = TypeVar("F", bound=Callable[..., Any])
QUALITY_TEXTS = 1000


def say(message: str) -> None:
    """Progress, for people only: nothing when stderr is no terminal."""
    if sys.stderr.isatty():
        click.echo(message, err=True)


@click.group("txport", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="txport")
def cli() -> None:
    """Take a PyTorch Transformer to production: export it to ONNX, run it, prove it, measure it.

    CHECKPOINT and BUNDLE are paths, or the name of a checkpoint that ships (g2p-en), or preset:tiny,
    preset:base, preset:big, which are published sizes with random weights.
    """


def provider_option(command: F) -> F:
    """Which execution provider; never another than the one asked for."""
    text = "Execution provider: cpu, cuda, tensorrt, or any that ONNX Runtime knows by name. No fallback."
    return click.option("--provider", default="cpu", show_default=True, help=text)(command)


def threads_option(command: F) -> F:
    """How many threads one operator may use."""
    return click.option("--threads", type=click.IntRange(1), help="Threads of one operator.  [default: all cores]")(
        command
    )


def unknown_option(command: F) -> F:
    """Whether characters that the model does not know are an error."""
    text = "What to do with characters outside the vocabulary."
    choice = click.Choice(["error", "skip"])
    return click.option("--unknown", type=choice, default="error", show_default=True, help=text)(command)


SEARCH: list[tuple[str, dict[str, Any]]] = [
    ("--beams", {"type": click.IntRange(1), "default": 1, "help": "Width of beam search; 1 is greedy."}),
    ("--nbest", {"type": click.IntRange(1), "default": 1, "help": "Hypotheses a text; with --do-sample, samples."}),
    (
        "--beam-groups",
        {
            "type": click.IntRange(1),
            "default": 1,
            "help": "Groups of beams, each avoiding what others say.",
        },
    ),
    (
        "--diversity-penalty",
        {
            "type": float,
            "default": 0.0,
            "help": "Taken off a token's score for each beam of an earlier group that says it.",
        },
    ),
    ("--length-penalty", {"type": float, "default": 1.0, "help": "Power of the length in a score."}),
    (
        "--coverage-penalty",
        {
            "type": float,
            "default": 0.0,
            "help": "Weight of the penalty for source places that got little attention.",
        },
    ),
    (
        "--early-stopping",
        {
            "type": click.Choice(["true", "false", "never"]),
            "default": "false",
            "help": "When beam search ends, with Hugging Face's meaning.",
        },
    ),
    ("--patience", {"type": float, "default": 1.0, "help": "Ended hypotheses to wait for, in multiples of --beams."}),
    ("--do-sample", {"is_flag": True, "help": "Draw each token instead of taking the likeliest."}),
    (
        "--temperature",
        {
            "type": float,
            "default": 1.0,
            "help": "Divide scores by this before drawing; below 1, likely tokens get likelier.",
        },
    ),
    ("--top-k", {"type": click.IntRange(0), "default": 0, "help": "Draw from so many tokens; 0: all."}),
    (
        "--top-p",
        {"type": float, "default": 1.0, "help": "Draw from the fewest tokens whose probabilities add up to this."},
    ),
    (
        "--min-p",
        {"type": float, "default": 0.0, "help": "Draw from tokens at least this share as likely as the likeliest."},
    ),
    ("--seed", {"type": click.IntRange(0), "help": "Repeat the same draws for a text, whatever its batch."}),
    ("--max-new-tokens", {"type": click.IntRange(1), "help": "Longest target.  [default: the model's longest]"}),
    (
        "--min-new-tokens",
        {"type": click.IntRange(0), "default": 0, "help": "Tokens that come before the end token may."},
    ),
    (
        "--repetition-penalty",
        {"type": float, "default": 1.0, "help": "Above 1, tokens that were said get less likely."},
    ),
    (
        "--no-repeat-ngram-size",
        {
            "type": click.IntRange(0),
            "default": 0,
            "help": "Let no sequence of this many tokens occur twice; 0: no limit.",
        },
    ),
    ("--prefixes", {"metavar": "TOKENS", "default": "", "help": "What each target begins with."}),
    ("--forced-bos-token", {"metavar": "TOKEN", "help": "The first token."}),
    ("--suppress-tokens", {"metavar": "TOKENS", "default": "", "help": "Never say one of these."}),
    ("--bad-words", {"metavar": "TOKENS", "multiple": True, "help": "Never say these in a row.  [repeatable]"}),
    (
        "--eos-token",
        {
            "metavar": "TOKEN",
            "multiple": True,
            "help": "End a target at this token instead of the model's own.  [repeatable]",
        },
    ),
    (
        "--alignment",
        {
            "type": click.Choice(["soft", "hard"]),
            "help": "With --json: each token's attention over the input (soft), or where it looked most (hard).",
        },
    ),
]


IDS = {  # options whose tokens are ids in Python
    "forced_bos_token_id": "--forced-bos-token",
    "bad_words_ids": "--bad-words",
    "eos_token_id": "--eos-token",
}
NAMED = [*(name for name, _ in SEARCH), "--batch-size", "--batch-tokens"]
FLAGS = {**{flag.removeprefix("--").replace("-", "_"): flag for flag in NAMED}, **IDS}  # by name in Python
NOT_STREAMED = {
    "as_json": "--json",
    "workers": "--workers",
    "batch_size": "--batch-size",
    "batch_tokens": "--batch-tokens",
    "continuous": "--continuous",
}


def search_options(command: F) -> F:
    """How to search; tokens are written as the vocabulary writes them, apart by spaces."""
    for name, how in reversed(SEARCH):
        shown = how.get("default") not in (None, "") and not how.get("is_flag")
        command = click.option(name, show_default=shown, **how)(command)
    return command


@cli.command()
@click.argument("checkpoint")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--target", type=click.Choice(TARGETS), default="portable", show_default=True, help="What it is made for."
)
@click.option(
    "--precision", type=click.Choice(list(PRECISIONS)), default="fp32", show_default=True, help="Of the weights."
)
@click.option("--opset", type=click.IntRange(18, 25), default=18, show_default=True, help="ONNX operator set.")
@click.option(
    "--rows",
    type=click.IntRange(1),
    help="Take the kernels of int8 and int4 cpu bundles that are the fastest for so many rows (batch x beams) in a"
    " step, though tokens then depend on the batch.  [default: kernels with which they do not]",
)
@click.option("--auto", is_flag=True, help="If int8 or int4 differs from PyTorch, keep what errs most in fp32.")
@click.option(
    "--auto-limit",
    type=click.FloatRange(0, 1),
    help="Share of the weights that --auto may keep in fp32, of those that the precision quantises; where that is not"
    f" enough, exit 1.  [default: {AUTO_LIMIT}]",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def export(checkpoint: str, out: Path, target: str, precision: str, as_json: bool, **options: Any) -> None:
    """Export CHECKPOINT to a bundle at OUT, and prove it.

    The graphs are checked, compared with PyTorch, and appear at OUT only if they agree.
    """
    from txport import api

    if options["auto_limit"] is not None and not options["auto"]:
        raise UnsupportedError("--auto-limit bounds what --auto keeps in fp32; give --auto too")
    bundle = api.export(checkpoint, out, target=target, precision=precision, say=say, **options)
    if as_json:
        click.echo(json.dumps(bundle.manifest.to_dict()))
    else:
        mended, said = bundle.manifest.mended, f"{target} {bundle.manifest.described_precision}"
        click.echo(f"{out}  {said}, {_size(bundle.size)}, {_verdict(bundle)}")
        if mended:
            cost = f"{_size(mended['bytes'] - mended['bytes_before'])}, the limit being {percent(mended['limit'])}"
            click.echo(f"kept in fp32, for {cost}: {', '.join(mended['kept'])}")


@cli.command()
@click.argument("bundle")
@click.argument("text", nargs=-1)
@click.option("--runtime", type=click.Choice(list(MODULES)), default="ort", show_default=True, help="The engine.")
@provider_option
@threads_option
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Batches at once, for bulk work; with several, each takes one thread, unless --threads says more.",
)
@click.option("--checkpoint", help="For --runtime torch: the checkpoint, if it does not ship.")
@search_options
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Texts at once.")
@click.option("--batch-tokens", type=click.IntRange(1), help="Source tokens at once, at most, padding counted.")
@click.option("--continuous", is_flag=True, help="Let texts take the places of those that are done (cpu bundles).")
@unknown_option
@click.option(
    "--input", "inputs", type=click.Path(path_type=Path), multiple=True, help="Read lines from a file.  [repeatable]"
)
@click.option("--output", type=click.Path(path_type=Path), help="Write to a file, whole or not at all.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
@click.option("--stream", "as_stream", is_flag=True, help="Print each text while it grows, one after the other.")
def run(
    bundle: str,
    text: tuple[str, ...],
    runtime: str,
    provider: str,
    threads: int | None,
    workers: int,
    checkpoint: str | None,
    inputs: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
    as_stream: bool,
    early_stopping: str,
    **options: Any,
) -> None:
    """Run BUNDLE on TEXT, on files, or on the lines of standard input."""
    from txport import api, textio

    if text and inputs:
        raise UnsupportedError("give TEXT or --input, not both")
    if as_stream and (others := [flag for name, flag in NOT_STREAMED.items() if _is_given(name)]):
        raise UnsupportedError(f"--stream prints one text after the other; it does not go with {', '.join(others)}")
    if options["alignment"] and not as_json:
        raise UnsupportedError("--alignment is shown with --json only")
    options["early_stopping"] = {"true": True, "false": False}.get(early_stopping, early_stopping)
    if options["beams"] == options["nbest"] == 1 and not as_json:  # no score is shown
        options["scores"] = False
        if options["length_penalty"] != 1:
            raise UnsupportedError("--length-penalty only changes scores here, which are shown with --json")
    where: dict[str, Any] = {"runtime": runtime, "provider": provider, "threads": threads, "workers": workers}
    model = api.load(bundle, **where, checkpoint=checkpoint, say=say)
    options.update(_token_ids(model.tokenizer, options))
    source, total = textio.open_texts(text, inputs)
    with textio.open_output(output) as stream, _in_flags():
        if as_stream:
            _follow(model, source, stream, options)
            return
        for result in textio.with_progress(model.stream(source, **options), total):
            for line in _lines(result, as_json, options["nbest"]):
                print(line, file=stream, flush=total is None)


def _is_given(name: str) -> bool:
    """Whether an option was given, whatever its value."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


@contextlib.contextmanager
def _in_flags() -> Iterator[None]:
    """Refusals name options as in Python; those of a command name what was typed."""
    try:
        yield
    except UnsupportedError as error:
        names = re.compile(rf"(?<![-\w])({'|'.join(FLAGS)})\b")
        raise UnsupportedError(names.sub(lambda found: FLAGS[found[1]], str(error))) from error


def _follow(model: Any, texts: Iterable[str], stream: IO[str], options: dict[str, Any]) -> None:
    """Print what is certain of each text as soon as it is."""
    del options["batch_size"], options["batch_tokens"], options["continuous"]
    options["prefix"] = options.pop("prefixes")
    for text in texts:
        shown = ""
        for output in model.follow(text, **options):
            if output.startswith(shown):  # what was said may be written in another way once more is known
                print(output[len(shown) :], end="", file=stream, flush=True)
                shown = output
        print("" if output == shown else f"\n{output}", file=stream, flush=True)


def _token_ids(tokenizer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What options name by tokens, as ids; those options are taken away."""
    first, ends = options.pop("forced_bos_token"), options.pop("eos_token")
    for name, token in (("--forced-bos-token", first), *(("--eos-token", each) for each in ends)):
        if token is not None and len(tokenizer.ids(token)) != 1:
            raise UnsupportedError(f"{name} must be one token, got {token!r}")
    return {
        "suppress_tokens": tuple(tokenizer.ids(options.pop("suppress_tokens"))),
        "bad_words_ids": tuple(tuple(tokenizer.ids(words)) for words in options.pop("bad_words")),
        "forced_bos_token_id": None if first is None else tokenizer.ids(first)[0],
        "eos_token_id": tuple(id_ for tokens in ends for id_ in tokenizer.ids(tokens)) or None,
    }


@cli.command()
@click.argument("bundle")
@click.argument("pair", nargs=-1)
@click.option(
    "--input",
    "inputs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Read lines of TEXT, a tab and TARGET from a file.  [repeatable]",
)
@click.option("--runtime", type=click.Choice(list(MODULES)), default="ort", show_default=True, help="The engine.")
@provider_option
@threads_option
@click.option("--checkpoint", help="For --runtime torch: the checkpoint, if it does not ship.")
@click.option("--length-penalty", type=float, default=1.0, show_default=True, help="Power of the length in a score.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Texts at once.")
@unknown_option
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line, with the tokens' shares.")
def score(
    bundle: str,
    pair: tuple[str, ...],
    inputs: tuple[Path, ...],
    runtime: str,
    provider: str,
    threads: int | None,
    checkpoint: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """How likely TARGET is for TEXT: tokens as the vocabulary writes them, apart by spaces.

    PAIR is TEXT TARGET; without one, lines of TEXT, a tab and TARGET come from files or standard input.
    """
    from txport import api, textio

    if pair and (inputs or len(pair) != 2):
        raise UnsupportedError("give TEXT and TARGET, or --input, or lines on standard input")
    model = api.load(bundle, runtime=runtime, provider=provider, threads=threads, checkpoint=checkpoint, say=say)
    lines = ["\t".join(pair)] if pair else textio.open_texts((), inputs)[0]
    pairs, texts, targets = itertools.tee(textio.split_pairs(lines), 3)
    with _in_flags():
        scored = model.score((text for text, _ in texts), (target for _, target in targets), **options)
    for (text, target), found in zip(pairs, scored, strict=True):
        values = {"input": text, "target": target, "score": found.score, "token_scores": found.token_scores}
        click.echo(json.dumps(values, ensure_ascii=False) if as_json else f"{found.score:.4f}\t{text}\t{target}")


def _lines(result: Any, as_json: bool, nbest: int) -> Iterator[str]:
    if as_json:
        yield json.dumps(result.to_dict(), ensure_ascii=False)
    elif nbest == 1:
        yield result.output
    else:
        yield from (f"{each.score:.4f}\t{each.output}" for each in result.hypotheses)


@cli.command()
@click.argument("bundle")
@click.option("--checkpoint", help="What the bundle was made from, if it does not ship.")
@click.option(
    "--runtime",
    "names",
    type=click.Choice(GRAPH_RUNTIMES),
    multiple=True,
    help="Compare this runtime.  [repeatable; default: all that are installed and run its target]",
)
@provider_option
@click.option(
    "--precision", type=click.Choice(list(PRECISIONS)), help="For a checkpoint's name: export it in this one."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the random inputs.")
@click.option(
    "--cases", type=click.IntRange(0), default=0, show_default=True, help="Random cases beyond the usual ones."
)
@click.option("--atol", type=float, help="Largest difference, if it is to be tighter than the precision's.")
@click.option("--rtol", type=float, help="The same, over the largest value of a tensor; added to --atol.")
@click.option(
    "--quality",
    type=click.Path(path_type=Path),
    help="Lines of TEXT, a tab and TARGET: measure how many texts come out wrong, beside PyTorch.",
)
@click.option(
    "--quality-texts",
    type=click.IntRange(1),
    help=f"How many texts of --quality to use, drawn by seed.  [default: {QUALITY_TEXTS}]",
)
@click.option("--baseline", type=click.Path(path_type=Path), help="An older --report: exit 1 if anything became worse.")
@click.option("--report", type=click.Path(path_type=Path), help="Write everything that was compared, as JSON.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML, for CI.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write a summary for a pull request.")
@click.option("--bisect", is_flag=True, help="Name the first part that differs, and why; see docs/differs.md.")
def parity(
    bundle: str,
    checkpoint: str | None,
    names: tuple[str, ...],
    provider: str,
    precision: str | None,
    quality: Path | None,
    quality_texts: int | None,
    baseline: Path | None,
    report: Path | None,
    bisect: bool,
    junit: Path | None,
    markdown: Path | None,
    seed: int,
    cases: int,
    **options: Any,
) -> None:
    """Compare BUNDLE with PyTorch; exit 1 if it does not compute the same.

    docs/parity.md says what is compared, what may differ and why, and how to run it in CI.
    """
    from txport import api, release, runtimes, tables
    from txport.locate import checkpoint_of, find_bundle
    from txport.runtimes.providers import short_name

    if quality_texts and not quality:
        raise UnsupportedError("--quality-texts counts those of --quality, which is not given")
    for name in names or ("ort",):
        runtimes.require(name, provider)
    provider = short_name(provider)
    old = _read_baseline(baseline) if baseline else None
    texts = _read_quality(quality, quality_texts or QUALITY_TEXTS, seed) if quality else None
    found = find_bundle(bundle, precision=precision, say=say)
    chosen = names or (runtimes.installed(found.manifest.target) if provider == "cpu" else ("ort",))
    source = checkpoint or checkpoint_of(found)
    started = time.perf_counter()
    try:
        result = api.parity(
            found, source, dict.fromkeys(chosen, provider), texts=texts, seed=seed, cases=cases, **options
        )
    except ParityError as error:  # a graph does not run; CI looks for its files all the same
        _write_broken(str(error), time.perf_counter() - started, report, junit, markdown)
        if bisect:
            culprit = release.bisect(found, source, seed=seed, cases=cases)
            tables.show_culprit(culprit)
            if report:
                _write_json(report, json.loads(report.read_text("utf-8")) | {"culprit": culprit and culprit.to_dict()})
        raise
    seconds = time.perf_counter() - started
    if bisect:
        result = replace(result, bisected=True, culprit=release.bisect(found, source, seed=seed, cases=cases))
    if old:
        result.drift.extend(_drift(old, result))
    if report:
        _write_json(report, result.to_dict())
    _write_summaries(result, seconds, junit, markdown)
    tables.show_parity(result)
    if not result.passed:
        raise SystemExit(1)


MATRIX_NOTE = "  [repeatable; default: all]"


@cli.command()
@click.argument("checkpoint")
@click.option("--target", "targets", type=click.Choice(TARGETS), multiple=True, help="Export for this." + MATRIX_NOTE)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    help="Export in this precision." + MATRIX_NOTE,
)
@click.option(
    "--runtime", "names", type=click.Choice(GRAPH_RUNTIMES), multiple=True, help="Compare this runtime." + MATRIX_NOTE
)
@click.option("--provider", "providers", multiple=True, help="Compare on this provider of ort." + MATRIX_NOTE)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the bundles in this new folder.")
@click.option("--report", type=click.Path(path_type=Path), help="Write the matrix as JSON.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the matrix as Markdown.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the matrix as one HTML file.")
def matrix(checkpoint: str, report: Path | None, markdown: Path | None, html: Path | None, **chosen: Any) -> None:
    """Export CHECKPOINT in every way, and compare each bundle with PyTorch on every runtime and provider.

    A cell that is not available says why, and is never a success: exit 1 if a cell fails, 3 if something that was
    named ran nowhere. On ort and its cpu, where `export` proves, each bundle is compared in any case.
    """
    from txport import release, tables

    result = release.matrix(checkpoint, **chosen, say=say)
    from txport.proof import pages
    from txport.proof.matrix import require_run

    tables.show_matrix(result)
    if report:
        _write_json(report, result.to_dict())
    for path, render in ((markdown, pages.markdown), (html, pages.page)):
        if path:
            _write_text(path, render(result))
    if not result.passed:
        raise SystemExit(1)
    fields = {"target": "targets", "precision": "precisions", "runtime": "names", "provider": "providers"}
    require_run(result, {field: chosen[key] for field, key in fields.items()})


@cli.command()
@click.argument("bundle")
@click.option("--runtime", type=click.Choice(GRAPH_RUNTIMES), default="ort", show_default=True, help="The engine.")
@provider_option
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def verify(bundle: str, runtime: str, provider: str, threads: int | None, as_json: bool) -> None:
    """Check that BUNDLE is whole and computes here what PyTorch computed; exit 1 if not.

    For the machine that it was deployed to: it takes a second or two and needs neither PyTorch nor the checkpoint,
    since the bundle holds golden inputs and outputs.
    """
    from txport import runtimes, tables
    from txport.locate import find_path
    from txport.proof.verify import verify as check

    runtimes.require(runtime, provider)
    result = check(find_path(bundle, say=say), runtime=runtime, provider=provider, threads=threads)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
    else:
        tables.show_verification(bundle, result)
    if not result.passed:
        raise SystemExit(1)


def _read_baseline(path: Path) -> dict[str, Any]:
    from txport.proof.baseline import read_baseline

    return read_baseline(path)


def _read_quality(path: Path, count: int, seed: int) -> dict[str, list[str]]:
    from txport import textio

    return textio.draw_texts(textio.split_pairs(textio.open_texts((), [path])[0]), count, seed)


def _drift(old: dict[str, Any], result: Any) -> list[str]:
    from txport.proof.baseline import drift

    return drift(old, result.to_dict())


def _write_summaries(result: Any, seconds: float, junit: Path | None, markdown: Path | None) -> None:
    from txport.proof import reports

    if junit:
        _write_text(junit, reports.junit(result, seconds))
    if markdown:
        _write_text(markdown, reports.markdown(result))


def _write_broken(message: str, seconds: float, report: Path | None, junit: Path | None, markdown: Path | None) -> None:
    from txport.proof import reports

    if report:
        _write_json(report, reports.broken(message))
    if junit:
        _write_text(junit, reports.junit_broken(message, seconds))
    if markdown:
        _write_text(markdown, reports.markdown_broken(message))


@cli.command()
@click.argument("bundle")
@click.option("--checkpoint", help="What the bundle was made from, if it does not ship.")
@click.option(
    "--runtime",
    "names",
    type=click.Choice(list(MODULES)),
    multiple=True,
    default=("torch", "ort"),
    show_default=True,
    help="Measure this runtime.  [repeatable]",
)
@provider_option
@threads_option
@click.option(
    "--precision", type=click.Choice(list(PRECISIONS)), help="For a checkpoint's name: export it in this one."
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Rows at once.")
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="Beams a row.")
@click.option("--source", type=click.IntRange(1), default=16, show_default=True, help="Source length, in tokens.")
@click.option("--tokens", type=click.IntRange(2), default=16, show_default=True, help="Target length, in tokens.")
@click.option(
    "--rounds", type=click.IntRange(3), default=9, show_default=True, help="Measured rounds; runtimes alternate."
)
@click.option("--report", type=click.Path(path_type=Path), help="Write all figures as JSON.")
@click.option("--compare", type=click.Path(path_type=Path), help="An older report: exit 1 if this one is slower.")
@click.option("--max-regression", type=float, default=10.0, show_default=True, help="Allowed slow-down, in percent.")
def bench(
    bundle: str,
    checkpoint: str | None,
    names: tuple[str, ...],
    provider: str,
    precision: str | None,
    report: Path | None,
    compare: Path | None,
    max_regression: float,
    **protocol: Any,
) -> None:
    """Measure BUNDLE phase by phase, against PyTorch on the same machine.

    Each runtime works in a process of its own and their rounds alternate. The end token is ignored, so
    that every runtime generates the same number of tokens.
    """
    from txport import bench as measure
    from txport import runtimes, tables
    from txport.locate import checkpoint_of, find_bundle

    for name in names:
        runtimes.require(name, provider)
    if compare is None and _is_given("max_regression"):
        raise UnsupportedError("--max-regression is for --compare; give an older report too")
    old = measure.read_report(compare) if compare else None
    found = find_bundle(bundle, precision=precision, say=say)
    source = checkpoint or (checkpoint_of(found) if "torch" in names else None)
    result = measure.run(found, source, names, measure.Protocol(provider=provider, **protocol), say)
    if report:
        _write_json(report, result)
    tables.show_bench(result)
    slower = measure.regressions(old, result, max_regression) if old else []
    for line in slower:
        click.echo(line, err=True)
    if slower:
        raise SystemExit(1)


@cli.command()
@click.argument("bundle")
@click.option("--brief", is_flag=True, help="Print only what it is, its parity figures, and where it lies.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def inspect(bundle: str, brief: bool, as_json: bool) -> None:
    """Show what BUNDLE is: ports, operators, sizes, and how far it is from PyTorch."""
    from txport import tables
    from txport.locate import find_bundle

    found = find_bundle(bundle, say=say)
    if as_json:
        click.echo(json.dumps({"path": str(found.path.resolve()), **found.manifest.to_dict()}))
    else:
        tables.show_bundle(found, brief)


@cli.command(short_help="Say what can run here, what can't, and how to mend it.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(as_json: bool) -> None:
    """Say what can run here, what can't, and how to mend it; exit 1 if the installation is broken."""
    from txport import diagnose, tables

    found = diagnose.examine()
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        tables.show_diagnosis(found)
    if found.problems:
        raise SystemExit(1)


def _verdict(bundle: Any) -> str:
    difference = bundle.measured["worst_logit_difference"]
    return f"parity {bundle.manifest.parity['verdict']} (logits differ by at most {difference:.1e})"


def _size(size: float) -> str:
    from txport.tables import megabytes

    return megabytes(size)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    _write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    from txport.textio import open_output

    with open_output(path) as stream:
        stream.write(text)


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the command line and exit."""
    run_guarded(cli, arguments)


def run_guarded(command: click.Command, arguments: Iterable[str] | None = None) -> None:
    """Run a command and exit with the code that its end means; every error a user can cause is one line."""
    signal.signal(signal.SIGTERM, _interrupt)
    _prepare_streams()
    try:
        # Not command.main(): it answers Ctrl-C and a closed pipe in ways of its own.
        with command.make_context(command.name, list(sys.argv[1:] if arguments is None else arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except TxportError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # `txport run ... | head`
        _give_up_stdout()
    except (KeyboardInterrupt, click.Abort):
        say("")  # ends the line on which the terminal wrote ^C
        _fail("interrupted; nothing was left half-written", 130)
    except OSError as error:
        _give_up_stdout()
        _fail(f"{error.strerror or error}: {error.filename or 'standard output'}", OutputError.exit_code)


def _prepare_streams() -> None:
    """A stream that the caller has closed takes what we write all the same; data is UTF-8 whatever the locale."""
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def _give_up_stdout() -> None:
    """Send what can't be written nowhere, else Python tries again at its end and complains in its own way."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> None:
    click.echo(f"txport: {' '.join(message.split())}", err=True)
    sys.exit(code)
