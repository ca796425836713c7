"""`Batch`: a callable that adds a model's outputs to batches of rows, for engines such as Ray, Daft and Spark."""

from __future__ import annotations

import functools
import inspect
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from txport.api import model as api
from txport.api.encoding import Batches
from txport.api.folders import files_in
from txport.api.locate import find_bundle
from txport.bulk.columns import ERROR, Columns, columns_of
from txport.bundles.bundle import Bundle
from txport.errors import NoRoomError, RunError, TextError, TxportError, UnsupportedError, quoted
from txport.models.facts import Ability, Facts
from txport.models.names import MANIFEST
from txport.system.files import hash_of, sha256

LOADING = ("runtime", "provider", "threads", "workers", "variant")  # options of `txport.load`
READING = ("chat", "template_options", "special_tokens", "truncate", "pairs")  # how texts are read, and outputs written
LANGUAGES = ("source_language", "target_language")
NOT_OF_TEXTS = ("prefixes", "batch_size", "batch_tokens", "continuous")  # options that do not change what a model takes
METHODS: dict[Ability | None, str] = {
    None: "generate_iter",
    "embed": "embed_iter",
    "classify": "classify_iter",
    "tag": "tag_iter",
    "fill": "fill_iter",
    "answer": "answer_iter",
}
Work = Callable[[list[Any]], Iterator[object]]
_running = threading.Lock()  # one batch at a time: a model with one worker is not for several threads


class Batch:
    """Adds columns with a model's outputs to batches of rows (docs/bulk.md).

    It can be pickled, and loads its bundle once in each process. A batch is a table or record batch of Arrow, a
    DataFrame of pandas or a dict of arrays; the result has the same rows, and is of the same kind (of a dict: a table),
    with the index of a DataFrame. Of an Arrow array of texts, the result is an array of structs. A row that the model
    can't take has only an `error`.
    """

    def __init__(self, bundle: str | Path, column: str = "text", *, prefix: str = "", **options: Any) -> None:
        """Name the bundle, the column of texts, and options.

        `prefix` is put before the names of the new columns. `options` are those of `txport.load` (`runtime`,
        `provider`, `threads`, `workers`, `variant`), those of the model's method (`generate_iter`, `embed_iter`,
        `classify_iter`, `tag_iter`, `fill_iter` or `answer_iter`), `truncate`, and for generating models `chat`,
        `template_options` and `special_tokens`. With `pairs`, a text is two texts separated by a tab.
        """
        is_path = os.path.exists(bundle)  # noqa: PTH110 - False for text that can't be a path
        self.bundle = str(Path(bundle).absolute() if is_path else bundle)  # for processes with other working folders
        self.column = column
        self.prefix = prefix
        self.options = options

    def __call__(self, batch: Any) -> object:
        """Return a batch with the new columns; raise `TextError` for one without texts in the column."""
        if isinstance(batch, pa.Array | pa.ChunkedArray):
            return self.outputs(batch)
        is_frame = hasattr(batch, "iloc")
        table = pa.Table.from_pandas(batch, preserve_index=False) if is_frame else batch
        table = pa.table(table) if isinstance(batch, dict) else table
        require_column(table.schema, self.column, "the batch")
        found = self.join(table, self.outputs(table.column(self.column)))
        return found.to_pandas().set_axis(batch.index) if is_frame else found

    @property
    def type(self) -> pa.StructType:
        """The type of the new columns, as one struct; the graphs are not loaded."""
        return self._columns(self.found).struct

    @functools.cached_property
    def found(self) -> Bundle:
        """The bundle; raise `UnsupportedError` for one that reads audio."""
        bundle = find_bundle(self.bundle, variant=self.options.get("variant"))
        require_texts(bundle.manifest.facts)
        return bundle

    @property
    def sha256(self) -> str:
        """The hash of the bundle, in hex."""
        folder = self.found.path
        if (folder / MANIFEST).is_file():
            return sha256(folder / MANIFEST)
        return hash_of({str(file): sha256(file) for file in files_in(folder)})

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the open bundle, which belongs to a process."""
        return {name: value for name, value in self.__dict__.items() if name != "found"}

    def join(self, table: Any, outputs: pa.StructArray) -> Any:
        """Return a table with the new columns, which replace none; raise `UnsupportedError` for equal names."""
        self.require_new(table.schema, outputs.type)
        for at, field in enumerate(outputs.type):
            table = table.append_column(self.prefix + field.name, outputs.field(at))
        return table

    def require_new(self, schema: pa.Schema, added: pa.StructType) -> None:
        """Raise `UnsupportedError` if a table has a column with the name of a new one."""
        names = [self.prefix + field.name for field in added]
        if same := [name for name in names if name in schema.names]:
            raise UnsupportedError(
                f"the rows already have the columns {', '.join(same)}; a prefix gives new ones other names"
            )

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> pa.StructArray:
        """Return the new columns of texts, as one array of structs: (R,)."""
        values = _texts(texts, bool(self.options.get("chat")), self.column)
        with _running:
            loaded = _load(self.bundle, _key(self._of(LOADING)), _key({**self._of(READING), **self._of(LANGUAGES)}))
            columns = self._columns_of(loaded.facts, loaded.defaults)
            rows = list(_rows(self._work(loaded), [value for value in values if value is not None]))
        known = iter(rows)
        found = [TextError("the text is null") if value is None else next(known) for value in values]
        return pa.array([_values(each, columns) for each in found], columns.struct)

    def _of(self, names: Iterable[str]) -> dict[str, object]:
        return {name: self.options[name] for name in names if name in self.options}

    def _columns(self, bundle: Bundle) -> Columns:
        return self._columns_of(bundle.manifest.facts, bundle.manifest.generation)

    def _columns_of(self, facts: Facts, defaults: Mapping[str, Any]) -> Columns:
        return columns_of(facts, defaults, self.options)

    def _work(self, model: Any) -> Work:
        """Return the function that yields the result of each text, in order, or raises the error of one."""
        rest = {name: value for name, value in self.options.items() if name not in (*LOADING, *READING, *LANGUAGES)}
        method = getattr(model, METHODS[model.facts.ability])
        if model.facts.ability is None:
            cut = functools.partial(_cut, model, rest) if self.options.get("truncate") else str
            return lambda texts: method(map(cut, texts), errors="return", **rest)
        require_options(method, rest)
        split = _pair if self.options.get("pairs") or model.facts.ability == "answer" else str
        if "truncate" in self.options:  # otherwise as the method does: with other labels it cuts
            rest["truncate"] = bool(self.options["truncate"])
        return lambda texts: method(map(split, texts), **rest)


def require_texts(facts: Facts) -> None:
    """Raise `UnsupportedError` for a model that does not read texts."""
    if facts.vocabulary is not facts.reads:
        raise UnsupportedError("bulk work is for models that read texts; `txport run` transcribes audio files")


def require_column(schema: pa.Schema, column: str, what: str) -> None:
    """Raise `TextError` for rows without the column."""
    if column not in schema.names:
        raise TextError(f"{what} has no column {quoted(column)}; its columns are {', '.join(schema.names)}")


def require_options(method: Callable[..., object], options: Mapping[str, object]) -> None:
    """Raise `UnsupportedError` for an option that a method of an encoder-only model does not have."""
    known = [name for name in inspect.signature(method).parameters if name not in ("texts", "how")]
    known += [name for name in Batches.__annotations__ if name not in known]
    if (strange := next((name for name in options if name not in known), None)) is not None:
        raise UnsupportedError(f"unknown option {strange!r}; supported: {', '.join(known)}")


def require_type(kind: pa.DataType, column: str, is_chat: bool = False) -> None:
    """Raise `TextError` for a type that is not text; chats can be lists of messages."""
    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    if not (any(test(of) for test in tests) or (is_chat and pa.types.is_nested(of))):
        raise TextError(f"the column {quoted(column)} has the type {kind}, expected text")


def _texts(column: pa.Array | pa.ChunkedArray, is_chat: bool, name: str) -> list[str | None]:
    """Return texts; a chat that is a list of messages becomes JSON."""
    require_type(column.type, name, is_chat)
    values: list[object] = column.to_pylist()
    return [value if isinstance(value, str | None) else json.dumps(_without_nulls(value)) for value in values]


def _without_nulls(value: object) -> object:
    """Return the messages of a chat without keys that only other messages have, which Arrow makes null."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value


def _key(options: Mapping[str, object]) -> str:
    return json.dumps(options, sort_keys=True)


@functools.cache
def _load(bundle: str, loading: str, reading: str) -> Any:
    """Return the model of a bundle, loaded once in a process, with its options for texts."""
    model = api.load(bundle, **json.loads(loading))
    require_texts(model.facts)
    options = json.loads(reading)
    if model.facts.ability is None and (languages := {name: options[name] for name in LANGUAGES if name in options}):
        model = model.between(**languages)
    if options.get("chat"):
        model = model.reading_chats(options.get("template_options"))
    return model.writing_special_tokens() if options.get("special_tokens") else model


def _cut(model: Any, options: Mapping[str, object], text: str) -> str:
    try:
        cut: str = model.truncate(text, **{name: options[name] for name in options if name not in NOT_OF_TEXTS})
    except (TextError, NoRoomError):  # the text has this error when it is encoded
        return text
    return cut


def _pair(text: str) -> tuple[str, ...]:
    parts = tuple(text.split("\t"))
    if len(parts) != 2:
        raise TextError(f"expected two texts with a tab between them, got {quoted(text)}")
    return parts


def _rows(work: Work, texts: list[str]) -> Iterator[object]:
    """Yield the result of each text, or its error; an error of a text changes no other result.

    An error of a text comes after the results of all texts before it. An error of a run is of a whole batch: halves
    lead to its text.
    """
    done = 0
    while done < len(texts):
        try:
            for result in work(texts[done:]):
                done += 1
                yield result
        except (TextError, NoRoomError) as error:
            done += 1
            yield error
        except RunError as error:
            left = texts[done:]
            half = len(left) // 2
            yield from [error] if len(left) == 1 else [*_rows(work, left[:half]), *_rows(work, left[half:])]
            return


def _values(found: object, columns: Columns) -> dict[str, object]:
    error = str(found) if isinstance(found, TxportError) else getattr(found, "error", None)
    return {ERROR: error} if error is not None else columns.values(found)
