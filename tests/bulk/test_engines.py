"""Bulk work on Ray and Daft gives the outputs of the local engine, whatever is killed; for `make bulk-test`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.bulk import below, named
from tests.cli.processes import ENVIRONMENT, MAIN
from txport.bulk import Batch
from txport.bundles.bundle import Bundle

pd = pytest.importorskip("pandas", reason="`make bulk-test` has pandas")
ray = pytest.importorskip("ray", reason="`make bulk-test` has Ray")
daft = pytest.importorskip("daft", reason="`make bulk-test` has Daft")

WORDS = [f"{word}{end}" for end in ("", "a", "ed", "c") for word in ("bad", "chief", "ace", "dab", "face")] * 30
ROWS = ("--rows", "10", "--batch-size", "4")
RAY = ("--engine", "ray", "--actors", "2")
# Ray's own warnings and sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture
def place(tmp_path: Path, bundle: Bundle) -> Path:
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "bundle").symlink_to(bundle.path)
    return tmp_path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    yield ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    ray.shutdown()


def start(place: Path, *more: str) -> subprocess.Popen[str]:
    arguments = ["bulk", "bundle", "words.txt", "out", *ROWS, *RAY, *more]
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.Popen(command, cwd=place, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def wait_for_parts(place: Path, count: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and len(list((place / "out").glob("part-*"))) < count:
        time.sleep(0.001)


def expected(place: Path) -> list[dict[str, Any]]:
    batch = Batch(place / "bundle")
    table = pa.table({"row": range(len(WORDS)), "text": WORDS})
    return batch(table).to_pylist()  # type: ignore[no-any-return]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    assert (folder / "_SUCCESS").exists()
    return sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["row"])


def test_each_row_is_there_once_after_kills_of_actors(place: Path) -> None:
    process = start(place)
    draw = random.Random(7)
    killed = 0
    for count in (5, 30):
        wait_for_parts(place, count + draw.randrange(5), process)
        for pid in [pid for pid in below(process.pid) if named(pid).startswith("ray::Actor")][:1]:
            os.kill(pid, signal.SIGKILL)
            killed += 1
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert killed == 2
    assert rows_of(place / "out") == expected(place)


def test_each_row_is_there_once_after_a_kill_of_the_driver(place: Path) -> None:
    process = start(place)
    wait_for_parts(place, 7, process)
    actors = [pid for pid in below(process.pid) if named(pid).startswith("ray::Actor")]
    process.kill()
    process.communicate()
    assert not (place / "out" / "_SUCCESS").exists()
    while any(map(named, actors)):  # they end with their driver
        time.sleep(0.05)
    again = start(place, "--resume")
    _, err = again.communicate()
    assert again.returncode == 0, err
    assert ", of which " in err
    assert rows_of(place / "out") == expected(place)


def test_actors_that_have_no_room_are_refused(place: Path) -> None:
    """Ray itself would wait for ever and say nothing."""
    process = start(place, "--actors", "4096")
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith("txport: 4096 actors need 4096 cores, and the cluster has ")


def test_an_error_of_an_actor_is_one_line(place: Path) -> None:
    process = start(place, "--beams", "2", "--nbest", "3")
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith("txport: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("form", ["pyarrow", "numpy", "pandas"])
def test_map_batches_of_ray_data(place: Path, cluster: Any, form: str) -> None:
    rows = ray.data.from_items([{"row": row, "text": text} for row, text in enumerate(WORDS[:40])])
    found = rows.map_batches(Batch(place / "bundle"), batch_size=16, batch_format=form).take_all()
    found = sorted(found, key=lambda row: row["row"])
    assert [row["output"] for row in found] == [row["output"] for row in expected(place)[:40]]


def test_a_frame_keeps_its_index(place: Path) -> None:
    """So outputs join the rows that a frame was made of."""
    frame = pd.DataFrame({"text": WORDS[:6]})
    found = Batch(place / "bundle")(frame[frame.index % 2 == 1])
    assert isinstance(found, pd.DataFrame)
    outputs = frame.join(found[["output"]])["output"]
    wanted = [row["output"] for row in expected(place)[:6]]
    assert outputs[1::2].tolist() == wanted[1::2]
    assert outputs[::2].isna().all()


def test_batches_of_daft(place: Path) -> None:
    batch = Batch(place / "bundle")

    @daft.func.batch(return_dtype=daft.DataType.from_arrow_type(batch.type))
    def pronounce(texts: daft.Series) -> Any:
        return batch(texts.to_arrow())

    rows = daft.from_pydict({"row": list(range(40)), "text": WORDS[:40]})
    found = rows.with_column("found", pronounce(daft.col("text"))).select("row", daft.col("found").unnest()).sort("row")
    assert found.to_pydict()["output"] == [row["output"] for row in expected(place)[:40]]
