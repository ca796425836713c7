"""Rows of text files, JSON lines, CSV and Parquet, in a fixed order, cut into shards."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txport.bulk.batch import require_column, require_type
from txport.bulk.places import Place, opening
from txport.errors import TextError, UnsupportedError, brief, quoted

SUFFIXES = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".br")  # which Arrow recognises by their names
FAULT = "\0fault"  # column of what is wrong with a row of a file
ROW = "row"  # column of the number of a row among all rows, without a column of ids
LARGEST = 1 << 64  # of a whole number in a column with fractions
CHUNK = 4096  # rows that are read together
MAX_LINE = 4_000_000  # bytes; bounds the memory for a file without line ends, and exceeds what any model accepts
EMPTY = str(pa.struct([]))
MIXED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
Line = tuple[str, str | None]  # a line without its end, and what is wrong with it


@dataclass(frozen=True)
class Source:
    """Files of one format, and what a first reading has found: the schema of all rows, and their number."""

    files: Sequence[Place]
    format: str
    column: str
    id: str | None
    schema: pa.Schema
    rows: int

    def shards(self, size: int, done: Iterable[int] = ()) -> Iterator[tuple[int, pa.Table]]:
        """Yield number and rows of each shard of `size` rows that is not `done`: (R, columns).

        Without a column of ids, the first column is the number of each row. Raises `TextError` if files have changed.
        """
        done = set(done)
        tables = (table for file in self.files for table in _read(file, self.format, self.column, self.schema))
        start = 0
        for number, table in enumerate(_regrouped(tables, size)):
            if number not in done:
                yield number, table if self.id else _numbered(table, start)
            start += len(table)
        if start != self.rows:
            raise TextError(f"the files had {self.rows} rows, and {start} when they were read again: they have changed")

    @property
    def record(self) -> list[dict[str, Any]]:
        """What identifies the files: names, sizes in bytes, and times of change in nanoseconds."""
        infos = [file.info() for file in self.files]
        return [{"path": info.path, "size": info.size, "modified": info.mtime_ns} for info in infos]


def survey(files: Sequence[Place], format_: str | None, column: str, id_: str | None) -> Source:
    """Read all files once; return what they have.

    Raises `TextError` for files that can't be read, without rows or without the columns, and for an id that is null or
    that two rows have, `UnsupportedError` for files of several formats or of an unknown one.
    """
    format_ = format_ or _format(files)
    if format_ == "text" and id_:
        raise UnsupportedError("lines of text have no column of ids; without one, `row` is the number of each line")
    schema = pa.schema([])
    rows = 0
    ids = []
    for file in files:
        for found, count, some in _surveyed(file, format_, column, id_):
            schema = _joined(schema, found, file, format_)
            rows += count
            ids += [some] if some is not None else []
    if not rows:
        raise TextError(f"no row is in {', '.join(file.name for file in files)}; give at least one")
    schema = schema.remove(schema.get_field_index(FAULT)) if FAULT in schema.names else schema
    for name in filter(None, (column, id_)):
        require_column(schema, name, "the input")
    if id_ is None and ROW in schema.names:
        raise UnsupportedError(
            f"the input has a column {ROW}, which numbers the rows; id_=COLUMN names the column of ids"
        )
    _require_ids(ids, id_)
    return Source(files, format_, column, id_, schema, rows)


def _format(files: Sequence[Place]) -> str:
    """Return the format of all files by their names."""
    found: dict[str, Place] = {}
    for file in files:
        name = PurePosixPath(file.path)
        suffix = (PurePosixPath(name.stem) if name.suffix in COMPRESSED else name).suffix
        if suffix not in SUFFIXES:
            raise UnsupportedError(
                f"{file.name} has no suffix of {', '.join(SUFFIXES)}; give format_=NAME, one of {', '.join(FORMATS)}"
            )
        found.setdefault(SUFFIXES[suffix], file)
    if len(found) > 1:
        raise UnsupportedError(f"{' and '.join(file.name for file in found.values())} have different formats")
    return next(iter(found))


Found = tuple[pa.Schema, int, pa.ChunkedArray | None]  # schema, number of rows, and their ids


def _surveyed(file: Place, format_: str, column: str, id_: str | None) -> Iterator[Found]:
    if format_ != "parquet":
        tables = _read(file, format_, column, None)
        yield from ((table.schema, len(table), _ids(table, id_)) for table in tables)
        return
    with _reading(file), file.system.open_input_file(file.path) as stream, pq.ParquetFile(stream) as found:
        schema = found.schema_arrow.remove_metadata()
        ids = None if id_ is None else _column(found.read(columns=[id_]), id_)
        yield schema, found.metadata.num_rows, ids


def _ids(table: pa.Table, name: str | None) -> pa.ChunkedArray | None:
    """Return the ids of rows that could be read; None without a column of ids."""
    return None if name is None else _column(table.filter(pc.is_null(table.column(FAULT))), name)


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column; nulls if the table has none of this name."""
    return table.column(name) if name in table.column_names else pa.chunked_array([pa.nulls(len(table))])


def _joined(known: pa.Schema, found: pa.Schema, file: Place, format_: str) -> pa.Schema:
    """Return a schema with the columns of both; columns of JSON of two types become JSON text."""
    if format_ != "jsonl":
        try:
            return pa.unify_schemas([known, found], promote_options="permissive")
        except MIXED as error:
            raise TextError(f"{file.name} has columns that do not fit the files before: {brief(error)}") from error
    for field in found:
        at = known.get_field_index(field.name)
        kind = _common(field.type if at < 0 else known.field(at).type, field.type)
        known = known.append(pa.field(field.name, kind)) if at < 0 else known.set(at, pa.field(field.name, kind))
    return known


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    both = [pa.schema([("", kind)]) for kind in (one, other)]
    try:
        kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
    except MIXED:
        return pa.string()
    return pa.string() if EMPTY in str(kind) else kind  # Parquet has no struct without fields


def _require_ids(ids: Sequence[pa.ChunkedArray], name: str | None) -> None:
    """Raise `TextError` for an id that is null or that two rows have."""
    if name is None:
        return
    chunks = [chunk.combine_chunks() for chunk in ids]
    kinds = {chunk.type for chunk in chunks} - {pa.null()}
    if len(kinds) > 1:
        raise TextError(f"the ids in {quoted(name)} have the types {' and '.join(map(str, kinds))}; give them one")
    kind = next(iter(kinds), pa.null())
    every = pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)
    if every.null_count:
        raise TextError(f"{every.null_count} rows have no id in {quoted(name)}; give each row its own")
    counts = pc.value_counts(every)
    if len(counts) < len(every):
        twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[0].as_py()
        raise TextError(f"several rows have the id {quoted(twice)} in {quoted(name)}; give each row its own")


# ------------------------------------------------------------------------------------------------ tables


def _regrouped(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield the same rows in tables of `size` rows; the last one can have fewer."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        while sum(map(len, waiting)) >= size:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, size)
            waiting = [whole.slice(size)]
    if any(map(len, waiting)):
        yield pa.concat_tables(waiting)


def _numbered(table: pa.Table, start: int) -> pa.Table:
    numbers = pa.array(range(start, start + len(table)), pa.int64())
    return table.add_column(0, ROW, numbers)


def _read(file: Place, format_: str, column: str, schema: pa.Schema | None) -> Iterator[pa.Table]:
    """Yield the rows of a file, with the columns of `schema` (None: those found) and `FAULT`."""
    if format_ == "parquet":
        assert schema is not None
        yield from _parquet(file, schema)
        return
    with _reading(file), file.system.open_input_stream(file.path) as opened:
        stream = io.BufferedReader(opened)
        yield from READERS[format_](stream, column, schema)


@contextmanager
def _reading(file: Place) -> Iterator[None]:
    with opening(file.name, TextError):
        try:
            yield
        except (csv.Error, *MIXED) as error:
            raise TextError(f"{file.name} can't be read: {brief(error)}") from error


def _parquet(file: Place, schema: pa.Schema) -> Iterator[pa.Table]:
    with _reading(file), file.system.open_input_file(file.path) as stream, pq.ParquetFile(stream) as found:
        for batch in found.iter_batches(CHUNK):
            columns = [_kept(batch, field) for field in schema]
            yield _with_faults(pa.table(columns, schema), [None] * len(batch))


def _kept(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(len(batch), field.type)
    return batch.column(field.name).cast(field.type, safe=not pa.types.is_floating(field.type))


def _with_faults(table: pa.Table, faults: Sequence[str | None]) -> pa.Table:
    return table.append_column(FAULT, pa.array(faults, pa.string()))


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    return iter(lambda: list(itertools.islice(iterator, CHUNK)), [])


def _lines(stream: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a file; one that is no text, or too long, is empty and has a fault."""
    first = True
    while raw := stream.readline(MAX_LINE + 1):
        is_long = len(raw) > MAX_LINE
        part = raw
        while is_long and part and not part.endswith(b"\n"):
            part = stream.readline(MAX_LINE)
        try:
            text = raw.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
            yield ("", f"the line is longer than {MAX_LINE} bytes") if is_long else (text, None)
        except UnicodeDecodeError as error:
            yield "", f"the line is not UTF-8 text ({error.reason} at byte {error.start})"
        first = False


def _text_tables(stream: BinaryIO, column: str, _: pa.Schema | None) -> Iterator[pa.Table]:
    for chunk in _chunks(_lines(stream)):
        texts = [None if fault else text for text, fault in chunk]
        yield _with_faults(pa.table({column: pa.array(texts, pa.string())}), [fault for _, fault in chunk])


def _json_tables(stream: BinaryIO, _: str, schema: pa.Schema | None) -> Iterator[pa.Table]:
    lines = (line for line in _lines(stream) if line[0].strip() or line[1])
    for chunk in _chunks(map(_json_row, lines)):
        rows = [row for row, _ in chunk]
        names = dict.fromkeys(itertools.chain(*rows)) if schema is None else schema.names
        columns = {
            name: _typed([row.get(name) for row in rows], None if schema is None else schema.field(name).type)
            for name in names
        }
        empty = pa.table({ROW: pa.nulls(len(rows))}).select([])  # keeps the number of rows without any column
        table = pa.table(columns) if columns else empty
        yield _with_faults(table, [fault for _, fault in chunk])


def _json_row(line: Line) -> tuple[Mapping[str, object], str | None]:
    text, fault = line
    if fault:
        return {}, fault
    try:
        row = json.loads(text)
        text.encode() if "\\ud" not in text.lower() else json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return {}, f"the line is not JSON: {brief(error)}"
    return (row, None) if isinstance(row, dict) else ({}, "the line is not a JSON object")


def _typed(values: list[object], kind: pa.DataType | None) -> pa.Array:
    """Return an array of JSON values; values of several types become strings of JSON."""
    if kind is None:
        try:
            return pa.array(values)
        except MIXED:
            kind = pa.float64() if _are_numbers(values) else pa.string()
    if pa.types.is_string(kind):
        values = [value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False) for value in values]
    if pa.types.is_floating(kind):  # Arrow refuses whole numbers that become others
        values = [float(value) if isinstance(value, int) else value for value in values]
    return pa.array(values, kind)


def _are_numbers(values: list[object]) -> bool:
    """Return whether all values are numbers that a float has, and one has a fraction; None is any."""
    kinds = {type(value) for value in values} - {type(None)}
    return kinds == {int, float} and all(abs(value) < LARGEST for value in values if isinstance(value, int))


def _csv_tables(stream: BinaryIO, _: str, schema: pa.Schema | None, delimiter: str = ",") -> Iterator[pa.Table]:
    csv.field_size_limit(MAX_LINE)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter=delimiter)
    header = next(rows, [])
    if twice := [name for at, name in enumerate(header) if name in header[:at]]:
        raise csv.Error(f"its header names the column {quoted(twice[0])} twice")
    for chunk in _chunks(row for row in rows if row):
        faults = [_csv_fault(row, header) for row in chunk]
        whole = [[None] * len(header) if fault else row for row, fault in zip(chunk, faults, strict=True)]
        columns = dict(zip(header, zip(*whole, strict=True), strict=True))
        names = header if schema is None else schema.names
        table = pa.table({name: pa.array(columns.get(name, [None] * len(whole)), pa.string()) for name in names})
        yield _with_faults(table, faults)


def _csv_fault(row: Sequence[str], header: Sequence[str]) -> str | None:
    if len(row) != len(header):
        return f"the row has {len(row)} fields, and the header {len(header)}"
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return "the row is not UTF-8 text"
    return None


READERS: dict[str, Callable[[BinaryIO, str, pa.Schema | None], Iterator[pa.Table]]] = {
    "text": _text_tables,
    "jsonl": _json_tables,
    "csv": _csv_tables,
    "tsv": partial(_csv_tables, delimiter="\t"),
}


def require_texts(source: Source, is_chat: bool) -> None:
    """Raise `TextError` if the column of texts has another type."""
    require_type(source.schema.field(source.column).type, source.column, is_chat)
