"""A bulk run: shards of rows go to an engine, and their outputs into files, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txport.bulk import output
from txport.bulk.batch import Batch
from txport.bulk.columns import ERROR
from txport.bulk.output import Output
from txport.bulk.places import files_of, place_of
from txport.bulk.sources import FAULT, Source, require_texts, survey
from txport.errors import OutputError
from txport.system.numbers import whole
from txport.system.progress import Progress, Stage, logged
from txport.version import __version__

ROWS = 2048  # rows of a shard
FREE = ("threads", "workers", "batch_size", "batch_tokens", "continuous")  # options that change no output
Texts = Iterator[tuple[int, pa.ChunkedArray]]  # number and texts of each shard: (R,)
Outputs = Iterator[tuple[int, pa.StructArray]]  # number of a shard, in any order, and its outputs: (R,)
Engine = Callable[[Batch, Texts], Outputs]


class Summary(NamedTuple):
    """What a run has done: the number of all rows, of those that it has computed, and of errors among these."""

    rows: int
    computed: int
    errors: int


def local(batch: Batch, shards: Texts) -> Outputs:
    """Compute shards in this process, one after the other; the `workers` of the batch run batches in parallel."""
    return ((number, batch.outputs(texts)) for number, texts in shards)


def run(
    batch: Batch,
    inputs: Sequence[str],
    out: str,
    *,
    id_: str | None = None,
    format_: str | None = None,
    rows: int = ROWS,
    resume: bool = False,
    engine: Engine = local,
    progress: Progress = logged,
) -> Summary:
    """Write the rows of files, with the columns of a `Batch`, into Parquet files in the folder `out`.

    `inputs` are files, folders or patterns; `id_` is the column that identifies a row, and `rows` the size of a shard.
    Each shard is a file that is there whole or not at all, so that `resume` computes those that are missing. Raises
    `TextError` for rows that can't be read, `OutputError` for a folder that is not of this run, or not resumed.
    """
    rows = whole("rows", rows, 1)
    place = place_of(out, OutputError)
    progress(Stage("reading the rows", 0.0))
    source = survey(files_of(inputs, place), format_, batch.column, id_)
    require_texts(source, bool(batch.options.get("chat")))
    batch.require_new(source.schema if id_ else source.schema.append(pa.field("row", pa.int64())), batch.type)
    with output.opened(place, _record(batch, source, rows), resume) as folder:
        summary = _computed(batch, source, folder, rows, engine, progress)
        folder.complete()
    return summary


def _record(batch: Batch, source: Source, rows: int) -> dict[str, object]:
    """Return what the files of a run depend on, as JSON."""
    options = {name: value for name, value in batch.options.items() if name not in FREE}
    record = {
        "version of txport": __version__,
        "bundle": batch.sha256,
        "input": source.record,
        "format": source.format,
        "column": source.column,
        "id": source.id,
        "prefix": batch.prefix,
        "rows": rows,
        "options": options,
    }
    found: dict[str, object] = json.loads(json.dumps(record))
    return found


def _computed(batch: Batch, source: Source, folder: Output, size: int, engine: Engine, progress: Progress) -> Summary:
    """Compute and write the shards that are missing."""
    tables: dict[int, pa.Table] = {}  # with the engine
    begun = 0.0  # when the engine asks for the first shard: it has started then
    computed = errors = 0
    left = source.rows - sum(min(size, source.rows - number * size) for number in folder.done)

    def texts() -> Texts:
        nonlocal begun
        begun = time.monotonic()
        for number, table in source.shards(size, folder.done):
            tables[number] = table
            yield number, table.column(source.column)

    done = source.rows - left
    try:
        for number, outputs in engine(batch, texts()) if left else ():
            table = _finished(batch, tables.pop(number), outputs)
            folder.write(number, table)
            computed += len(table)
            errors += len(table) - table.column(batch.prefix + ERROR).null_count
            rate = computed / (time.monotonic() - begun)
            news = f"{done + computed} of {source.rows} rows, {rate:.0f} rows/s"
            progress(Stage(news, (done + computed) / source.rows))
    except BaseException as error:
        if done + computed:
            error.add_note(
                f"{folder.place.name} keeps {done + computed} of {source.rows} rows, and resume=True goes on there"
            )
        raise
    return Summary(source.rows, computed, errors)


def _finished(batch: Batch, table: pa.Table, outputs: pa.StructArray) -> pa.Table:
    """Return rows with their outputs; the error of a row that could not be read is the one of its file."""
    faults = table.column(FAULT).combine_chunks()
    columns = {field.name: outputs.field(at) for at, field in enumerate(outputs.type)}
    columns[ERROR] = pc.coalesce(faults, columns[ERROR])
    return batch.join(table.drop_columns([FAULT]), pa.StructArray.from_arrays(list(columns.values()), list(columns)))
