"""`txport bulk`: bulk work over files."""

from __future__ import annotations

from typing import Any

import click

from txport.cli import bulk as faults
from txport.cli import completion, texts
from txport.cli.commands import encoding
from txport.cli.commands.generation import early_stopping_of, runtime_option, token_ids
from txport.cli.guard import echo, prints_aside
from txport.cli.options import (
    batch_options,
    is_given,
    provider_option,
    section,
    threads_option,
    unknown_option,
    variant_option,
    workers_option,
)
from txport.cli.outputs import command, in_flags
from txport.cli.progress import shown, verbose_option
from txport.cli.searching import FLAGS, IDS, ONLY_GENERATING, search_options
from txport.errors import UnsupportedError
from txport.system.cores import usable_cores
from txport.system.packages import needed
from txport.system.progress import Progress

FORMATS = ("text", "jsonl", "csv", "tsv", "parquet")
TOKENS = (  # parameters that are tokens, which are ids in Python
    "suppress_tokens",
    "begin_suppress_tokens",
    *(flag.removeprefix("--").replace("-", "_") for flag in IDS.values()),
)
EXAMPLES = """\b
Examples:
  txport bulk BUNDLE articles.jsonl summaries --column article --id key --workers 2
  txport bulk BUNDLE 's3://bucket/rows/*.parquet' s3://bucket/vectors --engine ray --actors 8
"""


@command(arguments=FLAGS, epilog=EXAMPLES)
@click.argument("bundle", shell_complete=completion.models)
@click.argument("inputs", nargs=-1, required=True, metavar="IN...")
@click.argument("out", metavar="OUT")
@section(
    "Rows",
    click.option("--column", default="text", show_default=True, help="Column of texts."),
    click.option("--id", "id_", metavar="COLUMN", help="Column that identifies a row.  [default: rows are numbered]"),
    click.option("--format", "format_", type=click.Choice(FORMATS), help="Format of IN.  [default: by its suffix]"),
    click.option("--prefix", default="", help="Put this before the names of the new columns."),
    click.option("--rows", type=click.IntRange(1), default=2048, show_default=True, help="Rows of a file of OUT."),
    click.option("--resume", is_flag=True, help="Go on where an interrupted run with the same options ended."),
    verbose_option,
)
@section(
    "Where it runs",
    click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Engine."),
    click.option("--address", help="Ray: address of the cluster.  [default: $RAY_ADDRESS, or a new one here]"),
    click.option(
        "--actors", type=click.IntRange(1), help="Ray: processes with the model.  [default: one per core here]"
    ),
    runtime_option,
    provider_option,
    threads_option,
    workers_option,
    variant_option,
)
@section("Search", search_options)
@section("Texts", texts.text_options, unknown_option, texts.parse_option, faults.truncate_option)
@section("Encoder-only models", encoding.encoding_options)
@section("Batches", batch_options)
def bulk(
    bundle: str,
    inputs: tuple[str, ...],
    out: str,
    column: str,
    id_: str | None,
    format_: str | None,
    prefix: str,
    rows: int,
    resume: bool,
    verbose: bool,
    engine: str,
    address: str | None,
    actors: int | None,
    **options: Any,
) -> None:
    """Run BUNDLE on a column of the files IN; write all columns and its outputs into Parquet files in the folder OUT.

    IN is text (a row a line), JSON lines, CSV or Parquet, compressed or not: files, folders, patterns such as
    'rows/**/*.csv', or addresses such as s3://bucket/rows (docs/bulk.md). The new columns are output, score and finish
    of a generating model, vector, labels, tags, masks or answers of others; and error, if the model can't take a row.
    After an interrupt, even SIGKILL, --resume computes the rows that are missing.
    """
    with needed("txport[bulk]", "bulk work"):
        from txport.bulk.batch import Batch
        from txport.bulk.driver import local, run
    _require_fit(engine, address, actors)
    given = {name: value for name, value in options.items() if is_given(name)}
    batch = Batch(bundle, column, prefix=prefix, **given)
    batch.options = _in_python(batch.found, given, options)
    with prints_aside(), shown(verbose) as progress:  # Ray prints what has become of its processes
        where = local if engine == "local" else _ray(actors, address, progress)
        how: dict[str, Any] = {"id_": id_, "format_": format_, "rows": rows, "resume": resume, "progress": progress}
        try:
            done = run(batch, inputs, out, engine=where, **how)
        except BaseException as error:
            error.__notes__ = in_flags(getattr(error, "__notes__", []))
            raise
    before = f", of which {done.rows - done.computed} were there before" if done.rows > done.computed else ""
    echo(f"txport: {done.rows} rows are in {out}{before}; {done.errors} new rows have an error", err=True)


def _require_fit(engine: str, address: str | None, actors: int | None) -> None:
    """Raise `UnsupportedError` for options of the other engine, and for those whose outputs have no column."""
    if engine == "ray" and is_given("workers"):
        raise UnsupportedError("--workers are of --engine local; give --actors")
    if engine == "local" and (address is not None or actors is not None):
        raise UnsupportedError("--address and --actors need --engine ray; give --workers")
    if is_given("alignment"):
        raise UnsupportedError("--alignment has no column; `txport run --json` writes it")
    if is_given("context"):
        raise UnsupportedError("--context is of `txport run`; here each text is a question, a tab and its context")


def _in_python(bundle: Any, given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options by their names in Python; raise `UnsupportedError` for those that do not fit the model.

    `options` are all options of the command, as `token_ids` takes them.
    """
    from txport.text.load import tokenizer_of

    facts = bundle.manifest.facts
    encoding.require_fit(facts, None, (flag for name, flag in ONLY_GENERATING.items() if name in given))
    texts.tell_not_followed(bundle.manifest)
    given = dict(given)
    if facts.ability == "answer" and "top" in given:
        given["nbest"] = given.pop("top")
    if "early_stopping" in given:
        given["early_stopping"] = early_stopping_of(given["early_stopping"])
    variables = texts.chat_variables(options["as_chat"], options["template_options"], options["special"])
    if given.pop("as_chat", False):
        given["chat"] = True
    if given.pop("template_options", ()):
        given["template_options"] = variables
    in_python = {flag.removeprefix("--").replace("-", "_"): name for name, flag in IDS.items()}
    if named := {in_python.get(name, name) for name in TOKENS if name in given}:
        ids = token_ids(tokenizer_of(bundle.texts, bundle.path, facts), dict(options))
        given = {name: value for name, value in given.items() if name not in TOKENS}
        given |= {name: value for name, value in ids.items() if name in named}
    return given


def _ray(actors: int | None, address: str | None, progress: Progress) -> Any:
    with needed("txport[ray]", "--engine ray"):
        from txport.bulk.on_ray import RayEngine
    return RayEngine(usable_cores() if actors is None else actors, address, progress)
