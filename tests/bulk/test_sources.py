"""Files of rows: each row once and in order, with one schema, and a bad one alone."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txport.bulk import sources
from txport.bulk.places import files_of, place_of
from txport.bulk.sources import FAULT, Source, survey
from txport.errors import OutputError, TextError, TxportError

ROWS = [{"id": 1, "text": "a", "more": None}, {"id": 2, "text": "b", "more": [1]}, {"id": 3, "text": "c", "more": []}]


def source_of(names: list[Path], out: str = "/out", format_: str | None = None, **how: Any) -> Source:
    files = files_of([str(name) for name in names], place_of(out, OutputError))
    return survey(files, format_, how.get("column", "text"), how.get("id_"))


def rows_of(source: Source, size: int = 2) -> list[dict[str, Any]]:
    return [row for _, table in source.shards(size) for row in table.to_pylist()]


def written(place: Path, text: str | bytes) -> Path:
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=4), st.integers(1, 7), st.data())
def test_shards_have_each_row_once_and_in_order(files: list[list[int]], size: int, data: st.DataObject) -> None:
    expected = [str(value) for file in files for value in file]
    done = data.draw(st.sets(st.integers(0, len(expected) // size)))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK", 3)
        names = [
            written(Path(folder, f"{at}.txt"), "".join(f"{value}\n" for value in file)) for at, file in enumerate(files)
        ]
        if not expected:
            with pytest.raises(TextError, match="no row is in"):
                source_of(names)
            return
        shards = dict(source_of(names).shards(size, done))
    assert shards.keys() == set(range(-(-len(expected) // size))) - done
    for number, table in shards.items():
        assert table.column("row").to_pylist() == list(range(number * size, min((number + 1) * size, len(expected))))
        assert table.column("text").to_pylist() == expected[number * size : (number + 1) * size]


def test_formats_of_the_same_rows(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    written(tmp_path / "rows.jsonl", lines)
    written(tmp_path / "rows.json.gz", gzip.compress(lines.encode()))
    for name in ("rows.parquet", "rows.jsonl", "rows.json.gz"):
        found = rows_of(source_of([tmp_path / name], id_="id"))
        assert [{name: row[name] for name in ROWS[0]} for row in found] == ROWS
    written(tmp_path / "rows.tsv", 'id\ttext\n01\t"a\nb"\n02\tc\n')
    written(tmp_path / "rows.csv", 'id,text\n01,"a\nb"\n02,c\n')
    for name in ("rows.tsv", "rows.csv"):  # fields are texts: no zero is lost
        found = rows_of(source_of([tmp_path / name], id_="id"))
        assert [(row["id"], row["text"]) for row in found] == [("01", "a\nb"), ("02", "c")]


def test_all_shards_have_one_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is null in one part of a file, or has two types, or that only one row has."""
    monkeypatch.setattr(sources, "CHUNK", 1)
    rows = [{"text": "a", "n": None}, {"text": "b", "n": 1}, {"text": "c", "n": 1.5}, {"text": "d", "n": "x", "z": {}}]
    file = written(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    shards = list(source_of([file]).shards(1))
    assert len({table.schema for _, table in shards}) == 1
    assert [table.column("n").to_pylist() for _, table in shards] == [[None], ["1"], ["1.5"], ["x"]]
    pq.write_table(pa.concat_tables([table for _, table in shards]), tmp_path / "out.parquet")


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_whole_numbers_beside_fractions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, chunk: int
) -> None:
    """A whole number that no float equals becomes the nearest one, and ends no run in its middle."""
    monkeypatch.setattr(sources, "CHUNK", chunk)
    rows = [{"text": "a", "n": 2**53 + 1}, {"text": "b", "n": 1.5}]
    files = [tmp_path / f"{at}.{format_}" for at in range(2)]
    if format_ == "jsonl":
        files = [written(tmp_path / "all.jsonl", "".join(json.dumps(row) + "\n" for row in rows))]
    for file, row in zip(files, rows, strict=False):
        if format_ == "parquet":
            pq.write_table(pa.Table.from_pylist([row]), file)
    assert [row["n"] for row in rows_of(source_of(files))] == [float(2**53), 1.5]


@pytest.mark.parametrize(
    ("name", "data", "faults"),
    [
        ("rows.txt", b"a\n\xff\nb\n", [None, "the line is not UTF-8 text", None]),
        ("rows.jsonl", b'{"text": "a"}\nno\n{"text": "b"}\n', [None, "the line is not JSON", None]),
        ("rows.jsonl", b'{"text": "a"}\n[1]\n{"text": "b"}\n', [None, "the line is not a JSON object", None]),
        ("rows.jsonl", b'{"text": "a"}\n{"text": "\\uD800"}\n{"text": "b"}\n', [None, "the line is not JSON", None]),
        (
            "rows.jsonl",
            b'{"text": "a"}\n' + b"[" * 100_000 + b'\n{"text": "b"}\n',
            [None, "the line is not JSON", None],
        ),
        ("rows.csv", b"text,n\na,1\nb\nb,2\n", [None, "the row has 1 fields, and the header 2", None]),
        ("rows.csv", b"text,n\na,1\n\xff,1\nb,2\n", [None, "the row is not UTF-8 text", None]),
    ],
)
def test_a_bad_row_affects_itself_alone(tmp_path: Path, name: str, data: bytes, faults: list[str | None]) -> None:
    found = rows_of(source_of([written(tmp_path / name, data)]))
    assert [row["text"] for row in found] == ["a", None, "b"]
    for row, fault in zip(found, faults, strict=True):
        assert row[FAULT] is None if fault is None else row[FAULT].startswith(fault)


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE", 10)
    found = rows_of(source_of([written(tmp_path / "rows.txt", "a" * 35 + "\nb\n")]))
    assert [(row["text"], row[FAULT]) for row in found] == [(None, "the line is longer than 10 bytes"), ("b", None)]


def test_folders_patterns_and_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt", "_hidden.txt", "sub/.hidden.txt", "out/part.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        written(tmp_path / name, f"{name}\n")
    monkeypatch.chdir(tmp_path)

    def found(*names: str) -> list[str]:
        return [place.path.removeprefix(f"{tmp_path}/") for place in files_of(names, place_of("out", OutputError))]

    assert found("a.txt", "*.txt") == ["a.txt"]
    assert found(".") == ["a.txt"]
    assert found("**/*.txt") == ["a.txt", "sub/b.txt", "sub/deep/c.txt"]
    assert found("sub/*/?.txt", "sub") == ["sub/deep/c.txt", "sub/b.txt"]
    assert found(tmp_path.as_uri(), f"{tmp_path.as_uri()}/sub/[ab].txt") == ["a.txt", "sub/b.txt"]


@pytest.mark.parametrize(
    ("files", "how", "message"),
    [
        ({"a.txt": ""}, {}, "no row is in .*a.txt"),
        ({"a.train": "x"}, {}, "a.train has no suffix of .txt, .*; give format_=NAME, one of text, "),
        ({"a.txt": "x", "b.csv": "text\nx"}, {}, "a.txt and .*b.csv have different formats"),
        ({"a.csv": "text\nx"}, {"column": "t"}, "the input has no column 't'; its columns are text"),
        ({"a.csv": "text\nx"}, {"id_": "id"}, "the input has no column 'id'"),
        ({"a.csv": "text,text\nx,y"}, {}, "a.csv can't be read: its header names the column 'text' twice"),
        ({"a.csv": "row,text\nx,y"}, {}, "has a column row, which numbers the rows; id_=COLUMN names"),
        ({"a.txt": "x"}, {"id_": "id"}, "lines of text have no column of ids"),
        ({"a.csv": "id,text\n1,x\n1,y"}, {"id_": "id"}, "several rows have the id '1' in 'id'"),
        ({"a.jsonl": '{"id": 1, "text": ""}\n{"text": ""}'}, {"id_": "id"}, "1 rows have no id in 'id'"),
        ({"a.jsonl": '{"id": 1, "text": ""}', "b.jsonl": '{"text": ""}'}, {"id_": "id"}, "1 rows have no id in 'id'"),
        ({"a.parquet": "no"}, {}, "a.parquet can't be read: "),
        ({"a.txt.gz": "no"}, {}, "a.txt.gz can't be read: "),
    ],
)
def test_files_that_are_refused(tmp_path: Path, files: dict[str, str], how: dict[str, Any], message: str) -> None:
    with pytest.raises(TxportError, match=message):
        source_of([written(tmp_path / name, text) for name, text in files.items()], **how)


@pytest.mark.parametrize("name", ["missing.txt", "*.txt", "s4://bucket/rows.txt", "file:///missing/*"])
def test_names_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TextError, match=r"names no file|can't be read"):
        source_of([Path(name)] if "://" not in name else [name])  # type: ignore[list-item]


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    source = source_of([written(tmp_path / "rows.txt", "a\nb\n")])
    written(tmp_path / "rows.txt", "a\nb\nc\n")
    with pytest.raises(TextError, match="they have changed"):
        list(source.shards(2))
