"""The folder of a bulk run: one Parquet file for each shard, written whole, and a record of what they depend on."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from txport.bulk.places import Place, opening, write
from txport.errors import OutputError
from txport.system.paths import told
from txport.system.stages import locked

RECORD = "_bulk.json"  # readers of a folder of tables pass over names that begin with "_" or "."
SUCCESS = "_SUCCESS"
PART = re.compile(r"part-(\d{7,})\.parquet")
AGAIN = "give the same, or another folder"


@dataclass(frozen=True)
class Output:
    """The folder of a run, locked by this process; `done` are the shards that are there."""

    place: Place
    done: frozenset[int]

    def write(self, number: int, table: pa.Table) -> None:
        """Write a shard, whole or not at all."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write(self.place.below(f"part-{number:07}.parquet"), sink.getvalue().to_pybytes())

    def complete(self) -> None:
        """Write the empty file that says that all shards are there."""
        write(self.place.below(SUCCESS), b"")


@contextlib.contextmanager
def opened(place: Place, record: Mapping[str, Any], is_resumed: bool) -> Iterator[Output]:
    """Yield the folder of a run, new or resumed.

    Raises `OutputError` for a folder with other files, one of a run that is not resumed, of another run or in use.
    """
    with opening(place.name, OutputError):
        if place.info().type == fs.FileType.File:
            raise OutputError(f"{place.name} is a file, expected a folder for the files of outputs")
        place.system.create_dir(place.path)
    with _locked(place):
        names = [name for name in place.names() if not name.startswith(".")]  # what a killed process left
        done = frozenset(int(part[1]) for part in map(PART.fullmatch, names) if part)
        if done:
            _require_same(place, record, is_resumed)
        elif any(name != RECORD for name in names):
            raise OutputError(f"{place.name} is not empty, and no bulk run has made it; choose another folder")
        else:
            write(place.below(RECORD), json.dumps(record, indent=2).encode() + b"\n")
        yield Output(place, done)


@contextlib.contextmanager
def _locked(place: Place) -> Iterator[None]:
    """Lock a folder of this machine for the block; folders elsewhere have no locks."""
    if (path := place.local) is None:
        yield
        return
    with told(path, "choose another folder"), locked(path, without=True) as is_ours:
        if not is_ours:
            raise OutputError(f"{place.name} is being written by another run; choose another folder")
        yield


def _require_same(place: Place, record: Mapping[str, Any], is_resumed: bool) -> None:
    file = place.below(RECORD)
    with opening(file.name, OutputError):
        try:
            found = json.loads(file.system.open_input_stream(file.path).read())
        except (FileNotFoundError, ValueError, RecursionError):
            found = None
    if not isinstance(found, dict) or not isinstance(found.get("options"), dict):
        raise OutputError(f"{file.name} is not the record of a bulk run; choose another folder")
    if not is_resumed:
        raise OutputError(f"{place.name} has the outputs of a run; resume=True goes on there, or choose another folder")
    given, other = record["options"], found["options"]
    changed = [name for name in record if name != "options" and record[name] != found.get(name)]
    changed += [name for name in sorted({*given, *other}) if given.get(name) != other.get(name)]
    if changed:
        raise OutputError(f"{place.name} was begun with another {', '.join(changed)}; {AGAIN}")
