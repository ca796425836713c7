"""`txport run` and `txport score`: generation and scores."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import click

from txport.cli import bulk, completion, resuming, textio, texts
from txport.cli.commands import encoding, speech
from txport.cli.guard import progress, results
from txport.cli.options import (
    batch_options,
    checkpoint_option,
    is_given,
    provider_option,
    section,
    threads_option,
    trust_option,
    tuned_option,
    unknown_option,
    variant_option,
    workers_option,
)
from txport.cli.outputs import INPUT, OUTPUT, command, in_flags
from txport.cli.searching import FLAGS, IDS, ONLY_GENERATING, search_options
from txport.errors import UnsupportedError
from txport.runtimes import MODULES
from txport.text.numbers import NumberTokenizer

NOT_STREAMED = {
    "as_json": "--json",
    "workers": "--workers",
    "batch_size": "--batch-size",
    "batch_tokens": "--batch-tokens",
    "continuous": "--continuous",
    "errors": "--errors",
    "resume": "--resume",
}
NOT_EXPLAINED = {
    "as_stream": "--stream",
    "as_json": "--json",
    "as_ids": "--ids",
    "nbest": "--nbest",
    "errors": "--errors",
    "single": "--single",
}

EXAMPLES = """\b
Examples:
  txport run g2p-en hello world
  txport run BUNDLE --input texts.txt --output outputs.txt --workers 2 --errors column
  echo "What is ONNX?" | txport run BUNDLE --chat --stream
"""

PAIR = "a text, a tab and its target"
runtime_option = click.option(
    "--runtime",
    type=click.Choice(list(MODULES)),
    default="ort",
    show_default=True,
    help="Runtime that executes the bundle.",
)


@command(arguments=FLAGS, epilog=EXAMPLES)
@click.argument("bundle", shell_complete=completion.models)
@click.argument("text", nargs=-1)
@section(
    "Input and output",
    click.option("--input", "inputs", type=INPUT, multiple=True, help="Read lines from a file.  [repeatable]"),
    click.option("--output", type=OUTPUT, help="Write to a file, atomically."),
    click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line."),
    click.option("--raw", is_flag=True, help="Write outputs with their line ends and tabs, not escaped."),
    click.option(
        "--stream",
        "as_stream",
        is_flag=True,
        help="Stream each output while it is generated, one text after the other.",
    ),
    click.option(
        "--explain",
        "explained",
        is_flag=True,
        help="After each output, a line for each of its tokens: the most probable ones there, with log-probs.",
    ),
    bulk.bulk_options,
)
@section(
    "Where it runs",
    runtime_option,
    provider_option,
    threads_option,
    workers_option,
    tuned_option,
    checkpoint_option("For --runtime torch: the checkpoint, if it does not ship."),
    trust_option,
    click.option("--single", is_flag=True, help="Run the single graph that contains the search (export --single)."),
    variant_option,
)
@section("Search", search_options)
@section(
    "Texts",
    texts.text_options,
    unknown_option,
    texts.parse_option,
    click.option(
        "--ids", "as_ids", is_flag=True, help="Read and write token ids, special tokens included, without a tokenizer."
    ),
)
@section("Encoder-only models", encoding.encoding_options)
@section("Audio", speech.speech_options)
@section("Batches", batch_options)
def run(
    bundle: str,
    text: tuple[str, ...],
    runtime: str,
    provider: str,
    threads: int | None,
    workers: int,
    no_tuned: bool,
    checkpoint: str | None,
    trust_code: bool,
    single: bool,
    variant: str | None,
    inputs: tuple[Path, ...],
    output: Path | None,
    as_ids: bool,
    as_json: bool,
    raw: bool,
    as_stream: bool,
    explained: bool,  # see `_write`
    early_stopping: str,
    errors: str,
    truncate: bool,
    resume: bool,
    **options: object,
) -> None:
    """Run BUNDLE on TEXT, on files, or on the lines of standard input.

    A model that reads audio expects audio files as TEXT, such as talk.wav, and transcribes them. The output of a causal
    model is the continuation of each text. An encoder-only model prints labels, tokens for each mask, or vectors (as
    lists, or as an array with --output X.npy). A classifier prints its most probable label; with independent labels,
    score and label of those with a score of at least 0.5; with a single label or a regression, score and label of each.

    Line ends in an output are escaped, and tabs in rows with scores, so that lines of output match lines of input;
    --raw, --json and --stream keep them. With --unknown skip, a text without known characters gets an empty output;
    with --output X.npy this is an error.
    """
    textio.require_one(text, inputs)
    _require_shown(as_stream, as_json, raw, options["alignment"])
    bulk.require_fit(truncate)
    options["early_stopping"] = early_stopping_of(early_stopping)
    where: dict[str, Any] = {"runtime": runtime, "provider": provider, "threads": threads, "workers": workers}
    where |= {"checkpoint": checkpoint, "trust_code": trust_code, "single": single, "variant": variant}
    model = _load(bundle, options, **where, tuned=not no_tuned)
    if as_ids:
        model.tokenizer = NumberTokenizer(model.facts, exact=True)
    speech.require_fit(model.facts)
    encoding.require_fit(model.facts, output, (flag for name, flag in ONLY_GENERATING.items() if is_given(name)))
    counts: list[int] = []
    blank = options["unknown"] == "skip" or errors != "fail"
    source, total = textio.open_texts(text, inputs, blank, counts)
    lines = list(source) if total is not None and not as_stream and not encoding.is_array(output) else None
    with resuming.open_rows(output, lines, resume, textio.Rows(raw, flush=total is None)) as out:
        source = itertools.islice(source, out.done, None)
        total = None if total is None else total - out.done
        if not speech.is_for(model.facts):
            source = map(speech.require_text, source)
        faults = bulk.Bulk(bulk.places(inputs, counts, text), errors, truncate, out.done)
        _carry_out(model, source, total, output, out, options, as_json, as_stream, faults)


def _load(bundle: str, options: dict[str, object], **where: Any) -> Any:
    """Load a model; where no option places it, what `txport tune` found does, and sets the batch size."""
    from txport.api import model as api

    unset = {name for name in ("runtime", "threads", "workers") if not is_given(name)}
    model = api.load(bundle, **{name: where[name] for name in where if name not in unset}, progress=progress)
    if model.tuned and not is_given("batch_size"):
        options["batch_size"] = model.tuned.batch_size
    return model


def _carry_out(
    model: Any,
    source: Iterable[str],
    total: int | None,
    output: Path | None,
    out: textio.Rows,
    options: dict[str, object],
    as_json: bool,
    as_stream: bool,
    faults: bulk.Bulk,
) -> None:
    """Encode, transcribe or generate, depending on the model, with the options that apply."""
    shown = {name: options.pop(name) for name in encoding.FLAGS}
    heard = {name: options.pop(name) for name in speech.FLAGS}
    if model.facts.ability:
        how = {name: options[name] for name in ("batch_size", "batch_tokens", "unknown", "special")}
        how["truncate"] = faults.truncates
        with texts.told_of_texts(model):
            encoding.run(model, source, total, output, out, as_json, shown, how)
        return
    texts.tell_not_followed(model)
    model = texts.told(model, options)
    options = _chosen(options | token_ids(model.tokenizer, options), model.defaults, as_json)
    if not speech.is_for(model.facts):
        source = faults.texts(model, options, source, total)
    with texts.told_of_texts(model):
        if speech.is_for(model.facts):
            speech.run(model, source, total, out, as_json, heard, options)
            return
        _write(model, source, total, out, options, as_json, as_stream, faults)


def _require_shown(as_stream: bool, as_json: bool, raw: bool, alignment: object) -> None:
    """Raise `UnsupportedError` for output options of `run` that can't be combined."""
    if is_given("explained") and (others := [flag for name, flag in NOT_EXPLAINED.items() if is_given(name)]):
        raise UnsupportedError(f"--explain writes lines for people; it can't be combined with {', '.join(others)}")
    if as_stream and (others := [flag for name, flag in NOT_STREAMED.items() if is_given(name)]):
        raise UnsupportedError(f"--stream prints text by text; it can't be combined with {', '.join(others)}")
    if raw and as_json:
        raise UnsupportedError("--raw writes text and --json writes JSON; remove one of them")
    if alignment and not as_json:
        raise UnsupportedError("--alignment needs --json")


def _write(
    model: Any,
    source: Iterable[str],
    total: int | None,
    out: textio.Rows,
    options: dict[str, Any],
    as_json: bool,
    as_stream: bool,
    faults: bulk.Bulk,
) -> None:
    """Write the result of each text, in order; at the end, print how many texts have an empty output."""
    if as_stream:
        _stream(model, source, out.stream, options)
        return
    count = unknown = 0
    plain = copy.copy(model)  # not watched: texts are encoded once more to be explained
    explained = is_given("explained")
    if explained and options["nbest"] != 1:
        raise UnsupportedError(
            f"--explain writes lines for people, of one output a text; give --nbest 1, not {options['nbest']}"
        )
    results = model.generate_iter(source, errors="return", **options)
    for count, found in enumerate(textio.with_progress(results, total, out.stream), 1):
        result = replace(found, error=in_flags(found.error))
        if result.error is not None:
            faults.tell(count, result.error)
        last = () if as_json or faults.errors != "column" else (result.error or "",)
        rows = [(*row, *last) for row in _rows(result, as_json, options["nbest"])]
        out.put([*rows, *_explanation(plain, result, options)] if explained and result.hypotheses else rows)
        unknown += not result.hypotheses and result.error is None
    faults.end()
    textio.tell_unknown(unknown, count)


def _explanation(model: Any, result: Any, options: Mapping[str, object]) -> Iterator[tuple[str]]:
    """Yield a line for each token of an output: its number, and the most probable tokens in its place."""
    how = {"unknown": options["unknown"], "special": options["special"]}
    steps = model.explain(result.input, result.hypotheses[0].tokens, **how)
    for number, best in enumerate(steps, 1):
        yield (
            f"{number:5}  "
            + "  ".join(f"{json.dumps(token, ensure_ascii=False)} {log_prob:.2f}" for token, log_prob in best),
        )


def _stream(model: Any, texts: Iterable[str], stream: IO[str], options: dict[str, object]) -> None:
    """Print the output of each text while it is generated."""
    del options["batch_size"], options["batch_tokens"], options["continuous"]
    options["prefix"] = options.pop("prefixes")
    for text in texts:
        shown = ""
        for output in model.stream(text, **options):
            if output.startswith(shown):  # later tokens can change how earlier ones are decoded
                textio.print_line(output[len(shown) :], stream, end="")
                shown = output
        textio.print_line("" if output == shown else f"\n{output}", stream)


def _chosen(options: dict[str, object], defaults: Mapping[str, object], as_json: bool) -> dict[str, object]:
    """Return the options of search: the given values, then the model's defaults, then the command's.

    Raises `UnsupportedError` for a length penalty that has no effect.
    """
    from txport.search.options import applied

    flags = {name: flag.removeprefix("--").replace("-", "_") for name, flag in IDS.items()}
    given = {name: value for name, value in options.items() if is_given(flags.get(name, name))}
    chosen = options | applied(defaults, given)
    if chosen["beams"] == chosen["nbest"] == 1 and not as_json:  # no score is printed
        chosen["scores"] = False
        if is_given("length_penalty") and chosen["length_penalty"] != 1:
            raise UnsupportedError("--length-penalty only changes scores here, which are shown with --json")
        chosen["length_penalty"] = 1.0  # of the bundle
    return chosen


def early_stopping_of(choice: str) -> str | bool:
    """Return the value of `--early-stopping`."""
    return {"true": True, "false": False}.get(choice, choice)


def token_ids(tokenizer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that name tokens, as ids, and remove them from `options`.

    Raises `UnsupportedError` if an option for a single token has several.
    """
    first = options.pop("forced_bos_token")
    last = options.pop("forced_eos_token")
    ends = options.pop("eos_token")
    named = [("--forced-bos-token", first), ("--forced-eos-token", last), *(("--eos-token", each) for each in ends)]
    for name, token in named:
        if token is not None and len(tokenizer.ids(token)) != 1:
            raise UnsupportedError(f"{name} must be one token, got {token!r}")
    return {
        "suppress_tokens": tuple(tokenizer.ids(options.pop("suppress_tokens"))),
        "begin_suppress_tokens": tuple(tokenizer.ids(options.pop("begin_suppress_tokens"))),
        "bad_words_ids": tuple(tuple(tokenizer.ids(words)) for words in options.pop("bad_words")),
        "forced_bos_token_id": None if first is None else tokenizer.ids(first)[0],
        "forced_eos_token_id": None if last is None else tokenizer.ids(last)[0],
        "eos_token_id": tuple(id_ for tokens in ends for id_ in tokenizer.ids(tokens)) or None,
    }


@command(arguments=FLAGS)
@click.argument("bundle", shell_complete=completion.models)
@click.argument("pair", nargs=-1)
@click.option(
    "--input",
    "inputs",
    type=INPUT,
    multiple=True,
    help="Read lines of TEXT, a tab and TARGET from a file.  [repeatable]",
)
@runtime_option
@provider_option
@threads_option
@checkpoint_option("For --runtime torch: the checkpoint, if it does not ship.")
@trust_option
@variant_option
@click.option(
    "--length-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Exponent of the length that a score is divided by.",
)
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Batch size, in texts.")
@unknown_option
@texts.parse_option
@texts.language_options
@click.option("--pieces", is_flag=True, help="TARGET is tokens as the vocabulary writes them, separated by spaces.")
@click.option(
    "--ids",
    "as_ids",
    is_flag=True,
    help="TEXT and TARGET are token ids, special tokens included; no tokenizer is used.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line, with the log-probs of the tokens.")
def score(
    bundle: str,
    pair: tuple[str, ...],
    inputs: tuple[Path, ...],
    runtime: str,
    provider: str,
    threads: int | None,
    checkpoint: str | None,
    trust_code: bool,
    variant: str | None,
    as_ids: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """How likely TARGET is for TEXT: text as `run` writes it.

    The TARGET of a causal model is what follows TEXT; both are tokenised as one text. TEXT may be empty: the model then
    begins at its start token. For other models, the end token is added to TARGET, except with --ids.

    PAIR is TEXT TARGET; without one, lines of TEXT, a tab and TARGET come from files or standard input.
    """
    from txport.api import model as api

    if pair and (inputs or len(pair) != 2):
        raise UnsupportedError("give TEXT and TARGET, or --input, or lines on standard input")
    where: dict[str, Any] = {"runtime": runtime, "provider": provider, "threads": threads, "variant": variant}
    model = api.load(bundle, **where, checkpoint=checkpoint, trust_code=trust_code, progress=progress)
    if as_ids:
        model.tokenizer = NumberTokenizer(model.facts, exact=True)
    model = texts.between(model, options)
    given = [(pair[0], pair[1])] if pair else textio.split_pairs(textio.open_texts((), inputs, what=PAIR)[0])
    pairs, sources, targets = itertools.tee(given, 3)
    with texts.told_of_texts(model):
        scored = model.score(
            (text for text, _ in sources), (target for _, target in targets), add_end=not as_ids, **options
        )
        for (text, target), found in zip(pairs, scored, strict=True):
            values = {"input": text, "target": target, "score": found.score, "tokens": found.tokens}
            values["token_scores"] = found.token_scores
            row = (textio.to_json(values),) if as_json else (f"{found.score:.4f}", text, target)
            textio.print_row(row, results())


@command(arguments=FLAGS)
@click.argument("bundle", shell_complete=completion.models)
@click.argument("query")
@click.argument("text", nargs=-1)
@click.option("--top", type=click.IntRange(1), help="Number of texts to print.  [default: all]")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Batch size, in pairs.")
@click.option("--input", "inputs", type=INPUT, multiple=True, help="Read texts, one a line, from a file.  [repeatable]")
@runtime_option
@provider_option
@threads_option
@variant_option
@unknown_option
@texts.parse_option
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
def rank(
    bundle: str,
    query: str,
    text: tuple[str, ...],
    inputs: tuple[Path, ...],
    runtime: str,
    provider: str,
    threads: int | None,
    variant: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Order each TEXT, or lines of files or standard input, by its score for QUERY, best first.

    For rerankers (cross-encoders): classifiers with one label that read two texts as a pair. Texts that are too long
    are cut at their ends. It prints rows of score and text.
    """
    from txport.api import model as api

    textio.require_one(text, inputs)
    model = api.load(bundle, runtime=runtime, provider=provider, threads=threads, variant=variant, progress=progress)
    with texts.told_of_texts(model):
        found = model.rank(query, textio.open_texts(text, inputs)[0], **options)
    for each in found:
        row = textio.to_json(asdict(each)) if as_json else (f"{each.score:.4f}", each.text)
        textio.print_row((row,) if isinstance(row, str) else row, results())


def _rows(result: Any, as_json: bool, nbest: int) -> Iterator[tuple[str, ...]]:
    if as_json:
        yield (textio.to_json(result.to_dict()),)
    elif nbest == 1:
        yield (result.output,)
    elif not result.hypotheses:
        yield from [("", "")] * nbest  # the same number of lines as for other texts
    else:
        yield from ((f"{each.score:.4f}", each.output) for each in result.hypotheses)
