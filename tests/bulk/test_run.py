"""`txport bulk`: after any end of a run, each row is there once, with its output."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import txport
from tests.called import Cli
from tests.cli.processes import assert_one_line, run, start, without
from txport import bulk
from txport.bulk import Batch
from txport.bulk.driver import local
from txport.bundles.bundle import Bundle
from txport.errors import OutputError, TextError
from txport.system.stages import locked

WORDS = [f"{word}{end}" for end in ("", "a", "ed", "c") for word in ("bad", "chief", "ace", "dab", "face")] * 15
SMALL = ["--rows", 20, "--batch-size", 4]


@pytest.fixture
def place(tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "bundle").symlink_to(bundle.path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*more: object) -> list[object]:
    return ["bulk", "bundle", "words.txt", "out", *SMALL, *more]


def parts(place: Path) -> int:
    return len(list((place / "out").glob("part-*.parquet")))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    assert (folder / "_SUCCESS").exists()
    return sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["row"])


def test_the_outputs_are_those_of_run(place: Path, call: Cli) -> None:
    (place / "words.txt").write_text("\n".join(["bad", "", "chief", "bad" * 100]) + "\n", encoding="utf-8")
    done = call(*command("--workers", 2, "--beams", 2))
    assert done == (0, "", "txport: 4 rows are in out; 2 new rows have an error\n")
    lines = call("run", "bundle", "--input", "words.txt", "--json", "--errors", "column", "--beams", 2).out.splitlines()
    for row, expected in zip(rows_of(place / "out"), map(json.loads, lines), strict=True):
        if "error" in expected:
            assert row["error"] == expected["error"]
        else:
            assert (row["text"], row["output"]) == (expected["input"], expected["output"])
            assert row["score"] == pytest.approx(expected["score"], abs=1e-6)


def test_each_row_is_there_once_after_kills_at_drawn_moments(place: Path, bundle: Bundle) -> None:
    draw = random.Random(5)
    resumed: list[object] = []
    for count in sorted(draw.sample(range(1, 12), 3)):
        process = start(*command(*resumed), cwd=place)
        while process.poll() is None and parts(place) < count:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (place / "out" / "_SUCCESS").exists()
        resumed = ["--resume"]
    before = parts(place)
    done = run(*command("--resume"), cwd=place)
    assert done.returncode == 0
    assert f"300 rows are in out, of which {20 * before} were there before; 0 new rows have an error" in done.stderr
    rows = rows_of(place / "out")
    assert [(row["row"], row["text"]) for row in rows] == list(enumerate(WORDS))
    assert [row["output"] for row in rows] == [each.output for each in txport.load(bundle.path).generate(WORDS)]


def test_an_interrupt_says_what_is_kept(place: Path) -> None:
    process = start(*command(), cwd=place)
    while process.poll() is None and parts(place) < 3:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.strip().endswith("of 300 rows, and --resume goes on there")


def test_a_run_that_was_killed_before_its_first_part_begins_again(place: Path, call: Cli) -> None:
    (place / "out").mkdir()
    (place / "out" / "_bulk.json").write_text("{}", encoding="utf-8")
    assert call(*command()).code == 0


def test_a_complete_run_is_resumed_without_work(place: Path, call: Cli) -> None:
    assert call(*command()).code == 0
    before = {path: path.stat().st_mtime_ns for path in (place / "out").glob("part-*")}
    assert "of which 300 were there before" in call(*command("--resume", "--workers", 2)).err
    assert {path: path.stat().st_mtime_ns for path in (place / "out").glob("part-*")} == before


def test_what_a_resume_refuses(place: Path, call: Cli, checkpoint: Path) -> None:
    assert call(*command()).code == 0
    before = {path.name: path.read_bytes() for path in (place / "out").iterdir()}

    def refused(*more: object) -> str:
        code, out, err = call(*command(*more))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert {path.name: path.read_bytes() for path in (place / "out").iterdir()} == before
        return err

    assert "out has the outputs of a run; --resume goes on there" in refused()
    assert "out was begun with another beams; give the same" in refused("--resume", "--beams", 2)
    assert "out was begun with another rows;" in refused("--resume", "--rows", 30)
    assert "out was begun with another prefix;" in refused("--resume", "--prefix", "p_")
    with (place / "words.txt").open("a", encoding="utf-8") as file:
        file.write("bad\n")
    assert "out was begun with another input;" in refused("--resume")
    (place / "words.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (place / "bundle").unlink()
    txport.export(checkpoint, place / "bundle", precision="fp16")
    assert "out was begun with another bundle, input;" in refused("--resume")


@pytest.mark.parametrize("name", ["notes.txt", "part.parquet", "_SUCCESS"])
def test_a_folder_of_other_files_is_refused(place: Path, call: Cli, name: str) -> None:
    (place / "out").mkdir()
    (place / "out" / name).touch()
    for more in ([], ["--resume"]):
        assert "out is not empty, and no bulk run has made it" in call(*command(*more)).err
    assert [path.name for path in (place / "out").iterdir()] == [name]


def test_two_runs_do_not_share_a_folder(place: Path, call: Cli) -> None:
    (place / "out").mkdir()
    with locked(place / "out", without=True):
        assert "out is being written by another run" in call(*command()).err


def test_nothing_is_written_before_wrong_input_is_refused(place: Path, call: Cli) -> None:
    for more, message in (
        (["--column", "row"], "has a column row"),
        (["--top", 3], "--top needs a model that can classify or fill"),
        (["--context", "words.txt"], "--context is of `txport run`"),
        (["--alignment", "soft"], "--alignment has no column; `txport run --json` writes it"),
        (["--actors", 2], "--address and --actors need --engine ray; give --workers"),
        (["--engine", "ray", "--workers", 2], "--workers are of --engine local; give --actors"),
        (["--template-option", "a=1"], "--template-option needs"),
    ):
        code, _, err = call(*command(*more))
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    assert "words.txt is a file, expected a folder" in call("bulk", "bundle", "words.txt", "words.txt").err
    assert not (place / "out").exists()


def test_questions_are_answered_by_their_own_contexts(place: Path, encoders: dict[str, Path], call: Cli) -> None:
    pq.write_table(pa.table({"text": ["a b\tc d e", "f\ta b c"]}), "in.pq")
    assert call("bulk", encoders["answer"], "in.pq", "out", "--top", 2).code == 0
    (first, _) = pq.read_table("out").to_pylist()
    assert first["answers"] == [vars(each) for each in txport.load(encoders["answer"]).answer("a b", "c d e", nbest=2)]


def test_rows_of_tables_keep_their_columns(place: Path, call: Cli) -> None:
    pq.write_table(pa.table({"key": ["x", "y"], "word": ["bad", "ace"], "n": pa.array([1, None], pa.int8())}), "in.pq")
    assert call("bulk", "bundle", "in.pq", "out", "--column", "word", "--id", "key", "--prefix", "p_").code == 0
    table = pq.read_table("out")
    names = ["key", "word", "n", "p_output", "p_score", "p_finish", "p_error"]
    assert table.column_names == names
    assert table.schema.field("n").type == pa.int8()
    assert table.schema.field("p_error").type == pa.string()
    assert table.column("key").to_pylist() == ["x", "y"]
    again = call("bulk", "bundle", "out", "more", "--column", "word", "--id", "key", "--prefix", "p_")
    assert "the rows already have the columns p_output, p_score, p_finish, p_error; a prefix gives" in again.err
    assert call("bulk", "bundle", "out", "more", "--column", "p_output", "--id", "key", "--prefix", "q_").code == 0


def test_tokens_of_options_are_ids_in_python(place: Path, call: Cli) -> None:
    assert call(*command("--suppress-tokens", "b a", "--early-stopping", "true", "--beams", 2)).code == 0
    assert not any({"a", "b"} & set(row["output"]) for row in rows_of(place / "out"))


def test_options_of_tokens_go_together(place: Path, call: Cli) -> None:
    assert call(*command("--suppress-tokens", "b", "--bad-words", "a", "--forced-eos-token", "d")).code == 0
    assert not any({"a", "b"} & set(row["output"]) for row in rows_of(place / "out"))


def test_places_of_fsspec_and_arrow(place: Path, bundle: Bundle) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe({"/rows/a.txt": b"bad\n", "/rows/b.txt": b"chief\nace\n"})
    batch = Batch(bundle.path)
    for out, system in (("memory://out", fs.PyFileSystem(fs.FSSpecHandler(memory))), ((place / "out").as_uri(), None)):
        done = bulk.run(batch, ["memory://rows/*.txt"], out, rows=2)
        assert done == (3, 3, 0)
        with pytest.raises(OutputError, match="has the outputs of a run"):
            bulk.run(batch, ["memory://rows/*.txt"], out, rows=2)
        folder = "/out" if system else str(place / "out")
        table = pq.read_table(folder, filesystem=system)
        assert sorted(table.column("text").to_pylist()) == ["ace", "bad", "chief"]
        assert bulk.run(batch, ["memory://rows/*.txt"], out, rows=2, resume=True) == (3, 0, 0)
    assert sorted(path.rpartition("/")[2] for path in memory.ls("/out", detail=False)) == [
        "_SUCCESS",
        "_bulk.json",
        "part-0000000.parquet",
        "part-0000001.parquet",
    ]


def test_an_error_says_what_is_kept_and_a_row_of_a_broken_file_has_its_error(place: Path, bundle: Bundle) -> None:
    (place / "words.txt").write_bytes(b"bad\n\xff\nace\n")

    def broken(batch: Batch, shards: Any) -> Any:
        yield from list(local(batch, shards))[:2]
        raise TextError("the engine has failed")

    with pytest.raises(TextError) as caught:
        bulk.run(Batch(bundle.path), ["words.txt"], "out", rows=1, engine=broken)
    assert caught.value.__notes__ == ["out keeps 2 of 3 rows, and resume=True goes on there"]
    assert bulk.run(Batch(bundle.path), ["words.txt"], "out", rows=1, resume=True) == (3, 1, 0)
    assert [(row["error"] or "")[:25] for row in rows_of(place / "out")] == ["", "the line is not UTF-8 text"[:25], ""]


def test_a_missing_package_is_one_line(place: Path) -> None:
    done = run(*command(), before=without("pyarrow"), cwd=place)
    assert_one_line(done, "bulk work needs pyarrow, which is not installed: pip install 'txport[bulk]'", 3)
    done = run(*command("--engine", "ray"), before=without("ray"), cwd=place)
    assert_one_line(done, "--engine ray needs ray, which is not installed: pip install 'txport[ray]'", 3)
